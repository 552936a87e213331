"""Makes rigs: one scene, seen and heard by several cameras whose clocks differ in a known way.

A scene has textured bodies that move in three dimensions, lights that change, and sounds. Each
camera has its own view, lens, backdrop, exposure, noise, frame rate, hand-held shake and
microphone. The time of a frame is the middle of its exposure.

Shape letters: F frames, H, W height and width, N samples of a curve.
"""

# ruff: noqa: N803, N806, N815 - shape letters

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rng = np.random.Generator
Kind = Literal[
    "all", "motion", "light", "sound", "flash",
    "still", "periodic", "other event", "other time", "too late", "same beat",
]  # fmt: skip
POSITIVE: tuple[Kind, ...] = ("all", "motion", "light", "sound", "flash")
"""What the cameras of a group share."""
NEGATIVE: tuple[Kind, ...] = ("still", "other event", "other time", "too late", "same beat")
"""Groups that must be refused; `periodic` must be refused or right."""
RATES = (24.0, 25.0, 30000 / 1001, 30.0, 60.0)
CURVE_HZ = 240.0
"""Samples per second of a scene's curves."""
SOUND_HZ = 1000.0
"""Samples per second of the power of sounds."""
SOUND_M_S = 343.0
MOST_OFFSET_S, MOST_DRIFT_PPM = 2.0, 100.0


@dataclass(frozen=True, kw_only=True)
class Body:
    """A textured body, as places in m over time [N, 3], and its turn in radians [N]."""

    place_N3: Floats
    turn_N: Floats
    size_m: float
    bright: float
    patches: Floats
    """Centres and brightness of the patches on it, [P, 3]."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Curves of a scene, from -`lead_s` on."""

    bodies: list[Body]
    light_N: Floats
    """Brightness of the changing lamps; 1 is the constant light."""
    power_N: Floats
    """Power of the sound at `SOUND_HZ`."""
    lead_s: float

    def at(self, curve: Floats, times_s: Floats, rate: float = CURVE_HZ) -> Floats:
        """Returns the values of a curve at times."""
        grid = np.arange(len(curve))
        return np.interp((times_s + self.lead_s) * rate, grid, curve)


@dataclass(frozen=True, kw_only=True)
class Drop:
    """Frames that were lost without a trace in the timestamps."""

    at_s: float
    """True time of the loss."""
    lost_s: float


@dataclass(frozen=True, kw_only=True)
class CameraFilm:
    """What one camera recorded, by its own clock.

    Attributes:
        shown_s: Time of each frame by the camera's clock, [F].
        true_s: True time of each frame, [F].
        sound_db: Level of cells of 0.1 s, or None without a microphone.
    """

    name: str
    fps: float
    shown_s: Floats
    true_s: Floats
    offset_s: float
    drift: float
    drops: list[Drop]
    sound_db: Floats | None
    render: "Renderer" = field(repr=False)
    sound: "Sound | None" = field(repr=False, default=None)

    def frames(self) -> Iterator[NDArray[np.uint8]]:
        """Yields uint8 luma [H, W] of each frame."""
        return self.render.frames(self.true_s)


@dataclass(frozen=True, kw_only=True)
class Sound:
    """What a microphone hears: power of the scene, delayed and weakened, and its own noise."""

    scene: Scene
    delay_s: float
    gain: float
    noise: float

    def power(self, true_s: Floats) -> Floats:
        """Returns the power at true times."""
        heard = self.scene.at(self.scene.power_N, true_s - self.delay_s, SOUND_HZ)
        return np.asarray(self.gain * heard + self.noise)


def _smooth(values: Floats, sigma: float) -> Floats:
    """Smooths [N] or [N, C] along time."""
    columns = values.reshape(len(values), -1)
    blurred = np.stack(
        [
            cv2.GaussianBlur(c[None], (0, 0), sigmaX=sigma, sigmaY=1e-3)[0]
            for c in np.ascontiguousarray(columns.T)
        ],
        axis=1,
    )
    return np.asarray(blurred.reshape(values.shape))


def _eased(n: int, rng: Rng, reach: tuple[float, float, float], pause_s: float) -> Floats:
    """Returns a path of moves and pauses, [N, 3], as people and things move."""
    path = np.zeros((n, 3))
    place, at = (rng.uniform(-1, 1, 3) * reach), 0
    while at < n:
        rest = int(rng.exponential(pause_s) * CURVE_HZ)
        path[at : at + rest] = place
        at += rest
        goal = rng.uniform(-1, 1, 3) * reach
        seconds = max(0.25, float(np.linalg.norm(goal - place)) / rng.uniform(0.5, 3.0))
        steps = int(seconds * CURVE_HZ)
        u = np.linspace(0, 1, steps)[: max(0, n - at), None]
        path[at : at + steps] = place + (goal - place) * (u**3 * (10 - 15 * u + 6 * u * u))
        place, at = goal, at + steps
    return path


def _bounces(n: int, rng: Rng) -> tuple[Floats, Floats]:
    """Returns the height of a thing that falls and bounces, [N], and impacts, [N]."""
    height, hits = np.zeros(n), np.zeros(n)
    at = 0
    while at < n:
        at += int(rng.exponential(1.5) * CURVE_HZ)
        speed = rng.uniform(2.0, 5.0)
        while speed > 0.6 and at < n:
            steps = max(2, int(2 * speed / 9.81 * CURVE_HZ))
            t = np.arange(steps)[: n - at] / CURVE_HZ
            height[at : at + steps] = speed * t - 4.905 * t * t
            at += steps
            if at < n:
                hits[at] += speed
            speed *= rng.uniform(0.5, 0.8)
    return np.maximum(height, 0), hits


def _body(place_N3: Floats, rng: Rng, turn_N: Floats | None = None) -> Body:
    n = len(place_N3)
    turn = turn_N if turn_N is not None else _smooth(rng.normal(size=n), 40) * rng.uniform(0, 8)
    patches = np.column_stack([rng.uniform(-0.7, 0.7, (4, 2)), rng.uniform(-0.5, 0.5, 4)])
    return Body(place_N3=place_N3, turn_N=turn, size_m=rng.uniform(0.15, 0.55),
                bright=rng.uniform(0.05, 0.95), patches=patches)  # fmt: skip


def make_scene(seed: int, kind: Kind, length_s: float) -> Scene:
    """Makes what happens: bodies, lights and sounds, each only if the kind has it."""
    rng = np.random.default_rng([seed, 1])
    lead_s = 8.0
    seconds = length_s + 2 * lead_s
    n, n_sound = int(seconds * CURVE_HZ), int(seconds * SOUND_HZ)
    has_all = kind in ("all", "other event", "other time", "too late", "same beat")
    bodies, light, power = [], np.zeros(n), np.zeros(n_sound)
    time_s = np.arange(n) / CURVE_HZ
    sound_s = np.arange(n_sound) / SOUND_HZ

    def strike(at_s: float, strength: float, fade_s: float) -> None:
        since = sound_s - at_s
        inside = (since >= 0) & (since < 8 * fade_s)
        power[inside] += strength * np.exp(-since[inside] / fade_s)

    if has_all or kind == "motion":
        for _ in range(int(rng.integers(1, 5))):
            path = _eased(n, rng, (1.8, 1.5, 0.7), rng.uniform(0.2, 2.5))
            if rng.random() < 0.4:
                height, hits = _bounces(n, rng)
                path[:, 2] = height - 0.6
                for hit in np.flatnonzero(hits):
                    strike(hit / CURVE_HZ, hits[hit] * 0.1, 0.05)
            path += _smooth(rng.normal(size=(n, 3)), 12) * rng.uniform(0, 0.5)
            bodies.append(_body(path, rng))
    if kind == "periodic":
        for _ in range(int(rng.integers(1, 3))):
            period_s, phase = rng.uniform(0.5, 3.0), rng.uniform(0, 7)
            swing = np.sin(2 * np.pi * time_s / period_s + phase)
            centre = rng.uniform(-1, 1, 3) * (1.5, 1.2, 0.4)
            path = centre + swing[:, None] * rng.uniform(-1, 1, 3)
            bodies.append(_body(path, rng, turn_N=0.4 * swing))
        if rng.random() < 0.5:
            light += 0.3 * (np.sin(2 * np.pi * time_s / rng.uniform(0.4, 3.0)) > 0)
        if rng.random() < 0.5:
            for beat in np.arange(0, seconds, rng.uniform(0.3, 1.0)):
                strike(beat, 0.3, 0.06)
    if kind == "still":
        bodies += [_body(np.tile(rng.uniform(-1, 1, 3), (n, 1)), rng, np.zeros(n)) for _ in "ab"]
    if (has_all and rng.random() < 0.5) or kind == "light":
        at = 0.0
        while at < seconds:
            begin, ramp = int(at * CURVE_HZ), int(rng.uniform(0.02, 0.6) * CURVE_HZ)
            change = np.clip((np.arange(n) - begin) / max(1, ramp), 0, 1)
            light += rng.uniform(-0.3, 0.3) * change
            at += rng.exponential(2.0 if kind == "light" else 6.0)
        if rng.random() < 0.5:
            light += 0.1 * _smooth(rng.normal(size=n), 20) * 8
        light -= light.min()
    if (has_all and rng.random() < 0.3) or kind == "flash":
        gap_s = rng.uniform(2.0, 6.0) if kind == "flash" else rng.uniform(4.0, 15.0)
        at = rng.exponential(gap_s)
        while at < seconds:
            begin, width = int(at * CURVE_HZ), max(4, int(rng.uniform(0.02, 0.12) * CURVE_HZ))
            light[begin : begin + width] += rng.uniform(0.3, 1.5)
            at += 0.3 + rng.exponential(gap_s)
    if has_all or kind == "sound":
        at = 0.0
        while at < seconds:  # phrases of syllables, and pauses
            if rng.random() < 0.3:
                at += rng.exponential(1.0)
            length = rng.uniform(0.08, 0.3)
            inside = (sound_s >= at) & (sound_s < at + length)
            power[inside] += rng.lognormal(-2, 1) * np.sin(np.pi * (sound_s[inside] - at) / length)
            at += length + rng.uniform(0.0, 0.08)
    if kind == "same beat":
        bar_s = 60 / 120
        for beat in np.arange(0, seconds, bar_s):
            strike(beat, 2.0, 0.07)
            strike(beat + bar_s / 2, 0.6, 0.03)
    return Scene(bodies=bodies, light_N=light, power_N=power, lead_s=lead_s)


class Renderer:
    """One camera's pictures of a scene."""

    def __init__(
        self, scene: Scene, rng: Rng, fps: float, size: tuple[int, int], hand: Rng
    ) -> None:
        self.scene, self.size = scene, size
        self._noise_rng = np.random.default_rng(int(hand.integers(1 << 31)))
        self.azimuth = rng.uniform(-1.2, 1.2)
        self.distance_m, self.lift = rng.uniform(3.0, 7.0), rng.uniform(-0.1, 0.5)
        self.focal = rng.uniform(0.8, 1.6)
        self.gain, self.gamma = rng.uniform(0.5, 1.1), rng.uniform(0.6, 1.1)
        self.lamp = rng.uniform(0.25, 1.0)
        self.noise = rng.uniform(0.5, 3.0)
        self.auto_s = rng.uniform(0.5, 4.0) if rng.random() < 0.4 else None
        self.shutter_s = rng.uniform(0.2, 0.9) / fps
        n = len(scene.light_N)
        shake = hand.uniform(0.001, 0.012) if hand.random() < 0.6 else 0.0
        wobble = _smooth(hand.normal(size=(n, 3)), CURVE_HZ * hand.uniform(0.03, 0.1))
        sway = _smooth(hand.normal(size=(n, 3)), CURVE_HZ * 0.6)
        self._shake_N3 = shake * (wobble / wobble.std() + 2 * sway / sway.std())
        self._backdrop = self._made_backdrop(rng)

    def _made_backdrop(self, rng: Rng) -> NDArray[np.float32]:
        width, height = self.size
        picture = np.full((height * 2, width * 2), rng.uniform(0.2, 0.6), np.float32)
        for cells, strength in ((4, 0.25), (12, 0.2), (40, 0.12)):
            coarse = rng.normal(size=(cells, cells * 2)).astype(np.float32)
            picture += strength * cv2.resize(coarse, (width * 2, height * 2))
        for _ in range(12):
            x, y = int(rng.integers(0, width * 2)), int(rng.integers(0, height * 2))
            w, h = int(rng.integers(4, width // 2)), int(rng.integers(4, height // 2))
            cv2.rectangle(picture, (x, y), (x + w, y + h), float(rng.uniform(0, 1)), -1)
        return np.clip(picture, 0.02, 1)

    def frames(self, true_s: Floats) -> Iterator[NDArray[np.uint8]]:
        """Yields the picture of each time, with the light that falls during its exposure."""
        scene, (width, height) = self.scene, self.size
        across = np.linspace(-0.5, 0.5, 9) * self.shutter_s
        light_F = np.mean([scene.at(scene.light_N, true_s + dt) for dt in across], axis=0)
        shake_F3 = np.stack([scene.at(c, true_s) for c in self._shake_N3.T], axis=1)
        places = [
            np.stack([scene.at(c, true_s) for c in body.place_N3.T], axis=1)
            for body in scene.bodies
        ]
        turns = [scene.at(body.turn_N, true_s) for body in scene.bodies]
        eye = self.distance_m * np.array(
            [np.sin(self.azimuth), -np.cos(self.azimuth), np.sin(self.lift)]
        )
        forward = -eye / np.linalg.norm(eye)
        right = np.cross(forward, [0, 0, 1])
        right /= np.linalg.norm(right)
        axes = np.stack([right, -np.cross(right, forward), forward])
        seen = [(place - eye) @ axes.T for place in places]
        exposure, last_s = 1.0, float(true_s[0])
        for k in range(len(true_s)):
            dx, dy, roll = shake_F3[k] * height
            angle = roll / height
            c, s = np.cos(angle), np.sin(angle)
            flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
            inverse = np.array([[c, -s, width / 2 - dx], [s, c, height / 2 - dy]], np.float32)
            warped = cv2.warpAffine(
                self._backdrop, inverse, (width, height), flags=flags,
                borderMode=cv2.BORDER_REFLECT,
            )  # fmt: skip
            picture = np.asarray(warped, np.float32)
            order = np.argsort([-of[k, 2] for of in seen]).tolist() if seen else []
            for number in order:
                self._draw(picture, scene.bodies[number], seen[number][k], turns[number][k], dx, dy)
            level = picture * np.float32(1 + self.lamp * light_F[k])
            if self.auto_s is not None:
                dt, last_s = float(true_s[k]) - last_s, float(true_s[k])
                wanted = 0.45 / max(0.02, float(level.mean()) * self.gain)
                exposure += (wanted - exposure) * (1 - np.exp(-dt / self.auto_s))
            level *= np.float32(self.gain * exposure)
            level = cv2.pow(np.clip(level, 1e-4, 1), self.gamma)
            level *= 255
            level += self._grain()
            yield np.clip(level, 0, 255).astype(np.uint8)

    def _grain(self) -> NDArray[np.float32]:
        width, height = self.size
        if not hasattr(self, "_grains"):
            shape = (height * 2, width * 2)
            self._grains = self._noise_rng.normal(size=shape).astype(np.float32) * self.noise
        y, x = self._noise_rng.integers(0, height), self._noise_rng.integers(0, width)
        return self._grains[y : y + height, x : x + width]

    def _draw(
        self,
        picture: NDArray[np.float32],
        body: Body,
        at: Floats,
        turn: float,
        dx: float,
        dy: float,
    ) -> None:
        width, height = self.size
        if at[2] < 0.5:
            return
        scale = self.focal * height / at[2]
        x, y = at[0] * scale + width / 2 - dx, at[1] * scale + height / 2 - dy
        radius = body.size_m * scale
        if not (-radius < x < width + radius and -radius < y < height + radius):
            return
        centre = (round(x * 16), round(y * 16))
        axes = (max(1, round(radius * 16)), max(1, round(radius * 11)))
        cv2.ellipse(
            picture, centre, axes, np.degrees(turn), 0, 360, body.bright, -1, cv2.LINE_AA, 4
        )
        c, s = np.cos(turn), np.sin(turn)
        for px, py, add in body.patches:
            spot = x + radius * (c * px - s * py * 0.7), y + radius * (s * px + c * py * 0.7)
            shade = float(np.clip(body.bright + add, 0, 1))
            cv2.circle(picture, (round(spot[0] * 16), round(spot[1] * 16)),
                       max(1, round(radius * 4)), shade, -1, cv2.LINE_AA, 4)  # fmt: skip


def _times(
    rng: Rng, fps: float, length_s: float, offset_s: float, drift: float, drops: list[Drop],
    gaps: bool,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Returns times by the camera's clock and true times of its frames."""
    shown = np.arange(int(length_s * fps)) / fps
    true = offset_s + shown * (1 + drift)
    for drop in drops:
        true[true >= drop.at_s] += drop.lost_s
    if gaps:
        kept = rng.random(len(shown)) > rng.uniform(0, 0.05)
        for _ in range(int(rng.integers(0, 3))):
            at = int(rng.integers(1, len(shown)))
            kept[at : at + int(rng.integers(2, 12))] = False
        shown, true = shown[kept], true[kept]
    return shown, true


@dataclass(frozen=True, kw_only=True)
class Rig:
    """A group of cameras. `is_one` says whether they recorded the same event within the bounds."""

    seed: int
    kind: Kind
    films: list[CameraFilm]
    is_one: bool


def make_rig(
    seed: int, kind: Kind, *, length_s: float = 40.0, size: tuple[int, int] = (96, 54),
    n_cameras: int | None = None,
) -> Rig:  # fmt: skip
    """Makes the rig of a seed; `length_s` is that of each recording."""
    rng = np.random.default_rng([seed, 0])
    n = n_cameras or int(rng.integers(2, 5))
    scene = make_scene(seed, kind, length_s)
    offsets, drifts = np.zeros(n), np.zeros(n)
    while True:  # any two clocks differ by at most the bounds
        offsets[1:] = rng.uniform(-1, 1, n - 1) * MOST_OFFSET_S
        drifts[1:] = rng.uniform(-1, 1, n - 1) * MOST_DRIFT_PPM * 1e-6
        if np.ptp(offsets) <= MOST_OFFSET_S and np.ptp(drifts) <= MOST_DRIFT_PPM * 1e-6:
            break
    films = []
    for camera in range(n):
        own = scene
        if camera and kind in ("other event", "other time", "same beat"):
            own = make_scene(seed + 10_000_000 * camera, kind, length_s)
        look = np.random.default_rng([seed, 2, camera])
        if kind == "other time":  # the same camera at another time
            look = np.random.default_rng([seed, 2, 0])
        fps = float(rng.choice(RATES))
        hand = np.random.default_rng([seed, 3, camera])
        renderer = Renderer(own, look, fps, size, hand)
        offset_s = float(offsets[camera])
        if camera and kind == "too late":
            offset_s = float(rng.choice([-1, 1]) * rng.uniform(3.0, 6.0)) * (
                1 if camera % 2 else -1
            )
        drops, has_sound = [], kind not in ("motion", "light", "flash", "still")
        if kind in ("all", "motion", "light") and camera and rng.random() < 0.3:
            has_sound = False  # a recorder that counts frames
            for at_s in rng.uniform(0.2, 0.8, int(rng.integers(1, 3))) * length_s:
                lost = int(rng.integers(3, 16)) / fps
                drops.append(Drop(at_s=float(at_s), lost_s=lost))
        shown, true = _times(rng, fps, length_s, offset_s, float(drifts[camera]), drops,
                             gaps=bool(rng.random() < 0.4))  # fmt: skip
        sound, levels = None, None
        if has_sound and (kind in ("sound", "same beat") or rng.random() < 0.75):
            distance_m = renderer.distance_m + rng.uniform(-2, 2)
            sound = Sound(scene=own, delay_s=distance_m / SOUND_M_S, gain=rng.uniform(0.2, 1.0),
                          noise=10 ** rng.uniform(-4, -1.3))  # fmt: skip
            levels = levels_of(sound, offset_s, float(drifts[camera]), length_s, rng)
        films.append(
            CameraFilm(
                name=f"camera {camera}",
                fps=fps,
                shown_s=shown,
                true_s=true,
                offset_s=offset_s,
                drift=float(drifts[camera]),
                drops=drops,
                sound_db=levels,
                render=renderer,
                sound=sound,
            )
        )
    return Rig(seed=seed, kind=kind, films=films, is_one=kind not in NEGATIVE)


def levels_of(sound: Sound, offset_s: float, drift: float, length_s: float, rng: Rng) -> Floats:
    """Returns the level of each cell of 0.1 s in dBFS, as `media.audio_level` measures it."""
    own_s = np.arange(int(length_s * SOUND_HZ)) / SOUND_HZ
    power = sound.power(offset_s + own_s * (1 + drift))
    power = power * rng.gamma(8, 1 / 8, len(power))  # of a carrier of noise
    cells = power[: len(power) // 100 * 100].reshape(-1, 100).mean(axis=1)
    return np.asarray(np.maximum(10 * np.log10(cells + 1e-12) - 10, -120.0))
