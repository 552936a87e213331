"""Makes films with exact labels, for training and tuning a shot head.

Takes come from recordings of one part of the footage (`footage_split.py`), from moving views of
photographs, and from drawn scenes: slides, text, dancing figures, fire and water. Cuts, cuts within
one take, and the transitions of `shot_transitions.py` join them. `shot_distractors.py` disturbs
them. The whole film then gets a frame rate, repeated, lost and mixed frames, bars, subtitles, grain
and low-bitrate encoding.

Shape letters: F frames, H, W height and width, C channels.
"""

import io
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal, cast

import av
import cv2
import numpy as np
import tests_path  # noqa: F401
from av.video.stream import VideoStream
from film_shots import PHOTOGRAPHS, pan_zoom, photograph, texture
from footage_split import Part, recordings
from numpy.typing import NDArray
from shot_dark_fades import dark_fade, dimmed, dipped, slowed
from shot_distractors import disturb, outline_of
from shot_effects import TRAIN, rendered
from shot_effects_held_out import TUNE, Draw
from shot_stop_motion import stop_motion_take
from shot_transitions import HEIGHT, WIDTH, Clip, Rng, draw_kind, noise_map, transition

from curator.media.encode import with_steady_bytes
from curator.models.transnet import HEIGHT as TINY_HEIGHT
from curator.models.transnet import WIDTH as TINY_WIDTH
from curator.models.transnet import tiny_scaler
from curator.tools.footage.scenes import View, render_shot

HANDLE = 62
"""Frames of a take before and after its shot, used for transitions."""

_PHOTOGRAPHS: dict[Part, list[str]] = {
    "train": sorted(PHOTOGRAPHS)[::2] + sorted(PHOTOGRAPHS)[1::4],
    "tune": sorted(PHOTOGRAPHS)[3::4],
}
"""The blind part uses no photographs, because its films are made elsewhere."""


@dataclass
class MadeFilm:
    """A film at the shot network's size.

    Attributes:
        frames: uint8 [F, 27, 48, 3].
        gaps: Half-open spans of frames between shots, and their kind; empty at a cut.
        ignored: Half-open spans that are not scored.
    """

    frames: Clip
    gaps: list[tuple[int, int, str]] = field(default_factory=list)
    ignored: list[tuple[int, int]] = field(default_factory=list)


@cache
def _decoded(path: Path) -> Clip:
    """Returns all frames of a recording as decoded."""
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return np.stack(frames)


def _ground(number: int) -> NDArray[np.uint8]:
    """Returns the colour, or grey, of a plain background."""
    colour = np.random.default_rng(number).uniform(0, 255, 3)
    if number % 2:
        colour[:] = colour.mean()
    return colour.astype(np.uint8)


@lru_cache(maxsize=4)
def _keyed(path: Path, ground: int) -> Clip:
    """Returns the moving parts of a recording, on a background 1.5 times as large."""
    source = _decoded(path)
    high, wide = source.shape[1:3]
    still = _still(path)
    out = np.empty((len(source), high * 3 // 2, wide * 3 // 2, 3), np.uint8)
    out[:] = _ground(ground)
    for i, frame in enumerate(source):
        mask = _moved(frame, still)
        figure = out[i, high // 4 : high // 4 + high, wide // 4 : wide // 4 + wide]
        figure[:] = figure * (1 - mask) + frame * mask
    return out


@cache
def _is_figure(path: Path) -> bool:
    """Returns whether the moving parts cover a medium share of a recording's picture."""
    source, still = _decoded(path), _still(path)
    share = 0.0
    for frame in source:
        share += float(_moved(frame, still).mean()) / len(source)
    return 0.02 < share < 0.5


@cache
def _still(path: Path) -> NDArray[np.float64]:
    """Returns the static background of a recording: its median."""
    source = _decoded(path)
    return np.asarray(np.median(source[:: max(1, len(source) // 24)], axis=0))


def _moved(frame: NDArray[np.uint8], still: NDArray[np.float64]) -> NDArray[np.float32]:
    """Returns how far each pixel belongs to moving parts, [H, W, 1]."""
    moved = (np.abs(frame - still).max(axis=2) > 28).astype(np.float32)
    mask = cv2.blur((cv2.blur(moved, (7, 7)) > 0.4).astype(np.float32), (5, 5))
    return np.asarray(mask[:, :, None], np.float32)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A way to show a recording: speed, direction, part of the picture, colours.

    With `ground`, the seed of a background colour, only moving parts are shown, on that background.
    """

    path: Path
    speed: float
    mirrored: bool
    corner: tuple[float, float]
    size: float
    drift: tuple[float, float]
    table: NDArray[np.uint8]
    swap: tuple[int, ...]
    ground: int | None = None

    @property
    def source(self) -> Clip:
        """Frames of the recording, or of its moving parts."""
        if self.ground is None:
            return _decoded(self.path)
        return _keyed(self.path, self.ground)

    @classmethod
    def drawn(cls, rng: Rng, path: Path) -> "_Recorded":
        size = float(rng.choice([1.0, rng.uniform(0.45, 1.0)]))
        levels = np.linspace(0, 1, 256) ** np.exp(rng.normal(0, 0.25))
        gains = np.exp(rng.normal(0, 0.12, 3)) if rng.random() < 0.5 else np.ones(3)
        bias = rng.normal(0, 12) if rng.random() < 0.4 else 0.0
        table = np.clip(levels[:, None] * 255 * gains + bias, 0, 255).astype(np.uint8)
        moves = rng.random() < 0.25
        return cls(
            path=path,
            speed=float(rng.choice([0.5, 0.8, 1, 1, 1, 1.5, 2, 3, 8], p=_SPEED_SHARES))
            * float(rng.choice([-1, 1], p=[0.25, 0.75])),
            mirrored=bool(rng.random() < 0.5),
            corner=(float(rng.random()), float(rng.random())),
            size=size,
            drift=(float(rng.normal(0, 0.004)), float(rng.normal(0, 0.002))) if moves else (0, 0),
            table=table,
            swap=tuple(rng.permutation(3)) if rng.random() < 0.2 else (0, 1, 2),
        )

    def frames(self, start: int, n: int) -> Clip:
        """Returns `n` frames from `start` on; playback reverses at either end."""
        source = self.source
        at = start + np.arange(n) * self.speed
        period = max(1, 2 * (len(source) - 1))
        folded = np.abs(np.mod(at + period / 2, period) - period / 2)
        out = np.empty((n, HEIGHT, WIDTH, 3), np.uint8)
        for i, position in enumerate(folded):
            first = int(position)
            frame = source[first]
            rest = position - first
            if rest > 0.01 and first + 1 < len(source) and abs(self.speed) < 1:
                frame = np.asarray(
                    cv2.addWeighted(frame, 1 - rest, source[first + 1], rest, 0), np.uint8
                )
            out[i] = self._shown(frame, i)
        return out

    def _shown(self, frame: NDArray[np.uint8], i: int) -> NDArray[np.uint8]:
        high, wide = frame.shape[:2]
        view_wide = min(wide, high * WIDTH / HEIGHT) * self.size
        view_high = view_wide * HEIGHT / WIDTH
        u = np.clip(self.corner[0] + self.drift[0] * i, 0, 1)
        v = np.clip(self.corner[1] + self.drift[1] * i, 0, 1)
        x, y = (wide - view_wide) * u, (high - view_high) * v
        scale = view_wide / WIDTH
        matrix = np.array([[scale, 0, x], [0, scale, y]])
        view = cv2.warpAffine(
            frame, matrix, (WIDTH, HEIGHT),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REPLICATE,
        )  # fmt: skip
        coloured = cv2.LUT(view[:, :, list(self.swap)], self.table[:, None, :].reshape(1, 256, 3))
        return np.asarray(coloured[:, ::-1] if self.mirrored else coloured, np.uint8)


_SPEED_SHARES = [0.1, 0.1, 0.15, 0.15, 0.15, 0.12, 0.12, 0.08, 0.03]


def _wander(rng: Rng, n: int, reach: float) -> NDArray[np.float64]:
    """Returns a path that wanders by about `reach` in 30 frames."""
    steps = rng.normal(0, 1, n + 40)
    kernel = np.hanning(41)
    path = np.cumsum(np.convolve(steps, kernel / kernel.sum(), "valid"))[:n]
    return np.asarray(path - path[0]) * reach / 6


def _photographed(rng: Rng, name: str, n: int) -> Clip:
    """Returns pans and zooms over a photograph."""
    picture = photograph(name)
    gain = rng.uniform(0.5, 1.2) * rng.uniform(0.8, 1.2, 3)
    picture = np.clip(picture[:, :, rng.permutation(3)] * gain, 0, 255).astype(np.uint8)
    high, wide = picture.shape[:2]
    speed = float(rng.choice([0.0, 0.02, 0.05, 0.15, 0.4, 0.8]))
    width = rng.uniform(0.3, 0.8) * min(wide, high * 16 / 9)
    x = rng.uniform(0.2, 0.8) * wide + _wander(rng, n, speed * width)
    y = rng.uniform(0.2, 0.8) * high + _wander(rng, n, 0.5 * speed * width)
    widths = width * np.exp(np.clip(_wander(rng, n, min(speed, 0.3)), -1, 1))
    shake = float(rng.choice([0.0, 0.0, 0.004, 0.01])) * width
    out = np.empty((n, HEIGHT, WIDTH, 3), np.uint8)
    for i in range(n):
        scale = widths[i] / WIDTH
        at = x[i] + rng.normal(0, shake), y[i] + rng.normal(0, shake)
        matrix = np.array(
            [[scale, 0, at[0] - widths[i] / 2], [0, scale, at[1] - widths[i] * 9 / 32]]
        )
        out[i] = cv2.warpAffine(
            picture, matrix, (WIDTH, HEIGHT),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REFLECT,
        )  # fmt: skip
    return out


def _panned(rng: Rng, picture: Clip, n: int) -> Clip:
    """Returns a steady move from one view of a picture to another, and back."""
    views = [View(x=rng.random(), y=rng.random(), span=rng.uniform(0.4, 1)) for _ in range(2)]
    length = int(np.exp(rng.uniform(np.log(15), np.log(300))))
    shot = pan_zoom(picture, length, start=views[0], end=views[1], seed=int(rng.integers(10**6)))
    frames = np.stack(list(render_shot(shot, width_px=WIDTH, height_px=HEIGHT)))
    at = np.mod(np.arange(n) + int(rng.integers(2 * length)), 2 * length)
    return np.asarray(frames[np.minimum(at, 2 * length - 1 - at)])


def _jerky(rng: Rng, n: int, reach: float) -> NDArray[np.float64]:
    """Returns a path with rests, and moves of about `reach` in 3 to 12 frames between them."""
    path, at = np.zeros(n), int(rng.integers(5, 60))
    while at < n:
        length = int(rng.integers(3, 13))
        ramp = np.clip((np.arange(n) - at + 1) / length, 0, 1)
        path += (rng.normal(0, reach) - path[at]) * (1 - np.cos(np.pi * ramp)) / 2
        at += length + int(rng.integers(10, 90))
    return path


def _near(rng: Rng, ground: Clip, figure: Clip) -> Clip:
    """Returns a hand-held close-up: a large object moves in jerks, and the camera may, too.

    Motion blur: each frame is the mean of three moments within half a frame.
    """
    n, fine = len(ground), 6
    moments = np.arange(n * fine) / fine
    tremor = float(rng.choice([0.0, 0.001, 0.004]))
    eager = float(np.exp(rng.uniform(np.log(0.08), np.log(0.7))))

    def path(slow: float, fast: float) -> NDArray[np.float64]:
        whole = _wander(rng, n, slow) + _jerky(rng, n, fast) + rng.normal(0, tremor, n)
        return np.interp(moments, np.arange(n), whole)

    camera = path(0.05, 0.4 * eager), path(0.05, 0.3 * eager)
    thing = path(0.08, eager), path(0.08, eager)
    turn, grow = path(0.05, 0.4 * eager), path(0.03, 0.25 * eager)
    size, middle, outline = rng.uniform(0.25, 0.9), rng.uniform(0.25, 0.75, 2), outline_of(rng)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    out = np.empty_like(ground)
    for i in range(n):
        total = np.zeros((HEIGHT, WIDTH, 3), np.float32)
        for k in range(3):
            j = fine * i + k
            shift = np.array([[0.7, 0, (0.15 + camera[0][j]) * WIDTH],
                                [0, 0.7, (0.15 + camera[1][j]) * HEIGHT]])  # fmt: skip
            back = cv2.warpAffine(
                ground[i], shift, (WIDTH, HEIGHT), flags=flags, borderMode=cv2.BORDER_REFLECT
            )
            scale = float(np.exp(-np.clip(grow[j], -1, 1)))
            cos, sin = float(np.cos(turn[j])) * scale, float(np.sin(turn[j])) * scale
            at_x = (middle[0] + thing[0][j] - camera[0][j]) * WIDTH
            at_y = (middle[1] + thing[1][j] - camera[1][j]) * HEIGHT
            matrix = np.array([[cos, -sin, WIDTH / 2 - cos * at_x + sin * at_y],
                               [sin, cos, HEIGHT / 2 - sin * at_x - cos * at_y]])  # fmt: skip
            front = cv2.warpAffine(
                figure[i], matrix, (WIDTH, HEIGHT), flags=flags, borderMode=cv2.BORDER_REFLECT
            )
            turned = np.array([[cos, -sin], [sin, cos]]) / scale**2
            points = outline @ turned * size * HEIGHT + (at_x, at_y)
            mask = np.zeros((HEIGHT, WIDTH), np.float32)
            cv2.fillPoly(mask, [np.round(points).astype(np.int32)], 1.0)
            soft = np.asarray(cv2.blur(mask, (3, 3)))[:, :, None]
            total += back * (1 - soft) + front * soft
        out[i] = total / 3
    return out


def _page(rng: Rng, style: int) -> NDArray[np.uint8]:
    """Returns a slide or screen page with boxes and lines of text; slides of a style are alike."""
    page = np.empty((HEIGHT * 2, WIDTH * 2, 3), np.float32)
    of_style = np.random.default_rng(style)
    page[:] = of_style.choice([255.0, 240.0, 30.0, of_style.uniform(0, 255)])
    page[: int(of_style.integers(0, 40))] = of_style.uniform(0, 255, 3)
    ink = of_style.uniform(0, 255, 3)
    # In most styles, slides share their boxes and differ in their text.
    boxes = of_style if of_style.random() < 0.6 else rng
    for _ in range(int(boxes.integers(1, 5))):
        x, y = int(boxes.integers(0, WIDTH * 2 - 60)), int(boxes.integers(0, HEIGHT * 2 - 40))
        wide, high = int(boxes.integers(30, 260)), int(boxes.integers(10, 120))
        page[y : y + high, x : x + wide] = boxes.uniform(0, 255, 3)
    for y in range(int(rng.integers(10, 60)), HEIGHT * 2 - 20, int(rng.integers(10, 24))):
        x = int(rng.integers(10, 80))
        for _ in range(int(rng.integers(1, 12))):
            end = x + int(rng.integers(6, 34))
            if end > WIDTH * 2 - 16:
                break
            page[y : y + 5, x:end] = ink
            x = end + 5
    return np.asarray(cv2.resize(page, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA), np.uint8)


def _document(rng: Rng, film: int) -> NDArray[np.uint8]:
    """Returns a page of small print in a frame; pages of one film differ only in their lines."""
    of_film = np.random.default_rng(film)
    page = np.full((HEIGHT * 2, WIDTH * 2, 3), of_film.choice([0.0, 20.0, 200.0]), np.float32)
    left, top = int(of_film.integers(0, 80)), int(of_film.integers(0, 60))
    paper = page[top : HEIGHT * 2 - top, left : WIDTH * 2 - left]
    paper[:] = of_film.choice([255.0, 235.0, 25.0])
    ink = of_film.uniform(0, 255, 3)
    step, thick = int(of_film.integers(10, 26)), int(of_film.integers(2, 6))
    for y in range(8, len(paper) - 8, step):
        indent = int(rng.choice([8, 30, 60]))
        length = int(rng.uniform(-0.4, 1) * (paper.shape[1] - 2 * indent))
        if length > 0:
            words = rng.random(length) < 0.75
            paper[y : y + thick, indent : indent + length][:, words] = ink
    return np.asarray(cv2.resize(page, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA), np.uint8)


def _slide(rng: Rng, n: int, style: int) -> Clip:
    return np.repeat(_page(rng, style)[None], n, 0)


def _figures(rng: Rng, n: int) -> Clip:
    """Returns moving figures on a flat or smooth background: drawings, dancers before a wall."""
    ground = np.empty((HEIGHT, WIDTH, 3), np.float32)
    ground[:] = rng.uniform(20, 240, 3)
    if rng.random() < 0.4:
        ground += (noise_map(rng, 4)[:, :, None] - 0.5) * rng.uniform(0, 120)
    out = np.repeat(np.clip(ground, 0, 255).astype(np.uint8)[None], n, 0)
    for _ in range(int(rng.integers(1, 6))):
        colour = rng.uniform(0, 255, 3).tolist()
        x, y = rng.uniform(0.1, 0.9) * WIDTH, rng.uniform(0.2, 0.9) * HEIGHT
        xs, ys = x + _wander(rng, n, rng.uniform(0, 25)), y + _wander(rng, n, rng.uniform(0, 12))
        size, beat, phase = rng.uniform(3, 26), rng.uniform(8, 60), rng.uniform(0, 6.3)
        shape = rng.choice(["body", "ball", "line"])
        for i in range(n):
            sway = float(np.sin(2 * np.pi * i / beat + phase))
            at = int(xs[i] + sway * size * 0.4), int(ys[i])
            if shape == "ball":
                cv2.circle(out[i], at, int(size), colour, -1, cv2.LINE_AA)
            elif shape == "line":
                end = int(xs[i] + np.cos(sway * 2) * size * 3), int(ys[i] + np.sin(sway) * size * 3)
                cv2.line(out[i], at, end, colour, max(1, int(size / 6)), cv2.LINE_AA)
            else:
                axes = int(size * 0.6) + 1, int(size * 1.6) + 1
                cv2.ellipse(out[i], at, axes, sway * 20, 0, 360, colour, -1, cv2.LINE_AA)
                head = at[0] + int(sway * size * 0.5), at[1] - int(size * 2)
                cv2.circle(out[i], head, int(size * 0.6) + 1, colour, -1, cv2.LINE_AA)
    return out


def _flowing(rng: Rng, n: int) -> Clip:
    """Returns smooth noise that flows and boils, like water, fire, smoke or leaves."""
    layers = [noise_map(rng, int(rng.choice([6, 12, 24]))) for _ in range(3)]
    dark, light = rng.uniform(0, 90, 3), rng.uniform(90, 255, 3)
    velocity = rng.normal(0, 3, (3, 2))
    boil = rng.uniform(0.02, 0.4)
    out = np.empty((n, HEIGHT, WIDTH, 3), np.uint8)
    for i in range(n):
        value = np.zeros((HEIGHT, WIDTH), np.float32)
        for layer, (dx, dy), k in zip(layers, velocity, range(3), strict=True):
            moved = np.roll(layer, (int(dy * i), int(dx * i)), (0, 1))
            value += moved * np.float32(0.5 + 0.5 * np.sin(boil * i + 2 * k))
        value = np.clip(value / 1.8, 0, 1)[:, :, None]
        out[i] = dark + (light - dark) * value
    return out


class Takes:
    """Draws takes of one part of the footage, and has the effects of this part."""

    def __init__(self, footage: Path, part: Part) -> None:
        self.effects: dict[str, Draw] = TRAIN if part == "train" else TUNE
        self._of: dict[str, list[Path]] = {}
        for one in recordings(footage, part):
            self._of.setdefault(one.repository, []).append(one.path)
        self._photographs = _PHOTOGRAPHS[part]

    def recorded(self, rng: Rng) -> _Recorded:
        """Draws a repository, then one of its recordings; large repositories weigh little more."""
        repositories = list(self._of)
        weights = np.sqrt([len(self._of[name]) for name in repositories])
        repository = str(rng.choice(repositories, p=weights / weights.sum()))
        paths = self._of[repository]
        return _Recorded.drawn(rng, paths[int(rng.integers(len(paths)))])

    def figure(self, rng: Rng, film: int) -> _Recorded:
        """Draws a recording with a moving figure, on one of the film's two backgrounds."""
        while True:
            way = self.recorded(rng)
            corner = tuple(0.25 + 0.5 * np.array(way.corner))
            size, ground = 0.5 + 0.5 * way.size, 2 * film + int(rng.random() < 0.2)
            way = replace(way, ground=ground, corner=corner, size=size)
            if _is_figure(way.path):
                return way

    def other(self, rng: Rng, n: int) -> Clip:
        """Returns frames of any take, for pictures within a picture."""
        return self.take(rng, n)[0]

    def take(
        self, rng: Rng, n: int, *, film: int = 0, of: str = "all"
    ) -> tuple[Clip, tuple[_Recorded, int] | None]:
        """Draws a take.

        Args:
            rng: Random generator.
            n: Number of frames.
            film: Number of the film; each film has slides of two styles.
            of: A key of `_MIXES`.

        Returns:
            The frames, and for a recording how and from which frame it is shown.
        """
        kind = str(rng.choice(_TAKES, p=_MIXES[of]))
        if kind == "recorded":
            shown = self.recorded(rng)
            start = int(rng.integers(len(_decoded(shown.path))))
            return shown.frames(start, n), (shown, start)
        if kind == "photograph":
            return _photographed(rng, str(rng.choice(self._photographs)), n), None
        if kind == "panned":
            name, is_texture = str(rng.choice(self._photographs)), rng.random() < 0.5
            picture = texture(int(rng.integers(10**3, 10**6))) if is_texture else photograph(name)
            return _panned(rng, picture, n), None
        if kind == "near":
            ground, figure = (self.take(rng, n, film=film, of="plain")[0] for _ in range(2))
            return _near(rng, ground, figure), None
        if kind == "keyed":
            way = self.figure(rng, film)
            start = int(rng.integers(len(way.source)))
            return way.frames(start, n), (way, start)
        if kind == "stop_motion":
            return stop_motion_take(rng, n, self.other), None
        if kind == "document":
            return np.repeat(_document(rng, film)[None], n, 0), None
        if kind == "slide":
            return _slide(rng, n, 2 * film + int(rng.integers(2))), None
        return (_figures if kind == "figures" else _flowing)(rng, n), None


_TAKES = [
    "recorded", "photograph", "slide", "figures", "flowing", "near", "keyed", "document", "panned",
    "stop_motion",
]  # fmt: skip
_MIXES = {
    "all": [0.7, 0.14, 0.04, 0.04, 0.03, 0.05, 0.0, 0.0, 0.0, 0.0],
    "plain": [0.7, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    "restless": [0.45, 0.1, 0.0, 0.05, 0.1, 0.3, 0.0, 0.0, 0.0, 0.0],
    "slides": [0.15, 0.1, 0.65, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    "drawings": [0.1, 0.0, 0.1, 0.75, 0.05, 0.0, 0.0, 0.0, 0.0, 0.0],
    "studio": [0.08, 0.04, 0.04, 0.1, 0.0, 0.02, 0.42, 0.3, 0.0, 0.0],
    "moving": [0.35, 0.12, 0.02, 0.06, 0.1, 0.05, 0.05, 0.0, 0.25, 0.0],
    "animated": [0.1, 0.05, 0.0, 0.05, 0.0, 0.0, 0.0, 0.0, 0.0, 0.8],
}
_EDITED = ["all", "plain", "restless", "slides", "drawings"]
_MIX_SHARES = [0.57, 0.06, 0.19, 0.12, 0.06]
_CALM_SHARES = [0.6, 0.3, 0.02, 0.05, 0.03]
"""Probabilities of the mixes in `_EDITED`."""


def _tiny(clip: Clip) -> NDArray[np.float32]:
    size = (TINY_WIDTH, TINY_HEIGHT)
    return np.stack([cv2.resize(f, size, interpolation=cv2.INTER_AREA) for f in clip]).astype(
        np.float32
    )


def _jump_shows(a: Clip, b: Clip, *, is_nearer: bool = False) -> bool | None:
    """Returns whether a cut within a take is visible; None if that is unclear.

    The cut is visible if the step exceeds all steps around it. A smaller step suffices for a figure
    on a plain background with a changed size, because the figure cannot move like that.
    """
    before, after = _tiny(a[-9:]), _tiny(b[:9])
    step = float(np.abs(after[0] - before[-1]).mean())
    steps = [np.abs(np.diff(side, axis=0)).mean(axis=(1, 2, 3)) for side in (before, after)]
    around = max(float(side.max(initial=0.0)) for side in steps)
    stands_out = step > 5 and step > 3 * around
    if stands_out or (is_nearer and step > max(2, 1.5 * around)):
        return True
    return False if step < 1.0 or step < 1.2 * around else None


def _jumped(
    rng: Rng, shown: tuple[_Recorded, int], n_before: int, n: int
) -> tuple[Clip, tuple[_Recorded, int]]:
    """Returns the same take at another time, with the same or another size."""
    way, start = shown
    length = len(way.source)
    again = int(start + n_before * way.speed + rng.choice([-1, 1]) * rng.uniform(20, length)) % (
        2 * length
    )
    if rng.random() < 0.35:
        size = float(
            np.clip(way.size * np.exp(rng.choice([-1, 1]) * rng.uniform(0.15, 0.6)), 0.3, 1)
        )
        way = replace(way, size=size)
    return way.frames(again, n), (way, again)


Style = Literal[
    "edited",
    "calm",
    "by_hand",
    "studio",
    "short",
    "held",
    "returns",
    "effects",
    "dark",
    "animated",
    "mixed",
]


def _returning(
    rng: Rng, earlier: list[tuple[_Recorded, int] | None]
) -> tuple[_Recorded, int] | None:
    """Returns an earlier take, at its old position or as if it had continued; or None."""
    if len(earlier) < 2 or rng.random() < 0.3:
        return None
    before = earlier[-2 if rng.random() < 0.75 else -int(rng.integers(2, len(earlier) + 1))]
    if before is None:
        return None
    way, at = before
    return way, max(0, at + int(rng.choice([0, rng.uniform(0, 150)]) * way.speed))


_DISTRACTORS: dict[Style, Literal["moves", "held"]] = {"by_hand": "moves", "held": "held"}


def make_film(takes: Takes, seed: int, style: Style = "edited") -> MadeFilm:
    """Makes a film of about 1,000 frames.

    Args:
        takes: Source of the takes.
        seed: Seed; the same seed gives the same film.
        style: "edited" has more distractors than real edited films; "calm", for calibration, has as
            many as those; "by_hand" has many fast camera moves and objects before the lens, and
            mostly cuts; "studio" has figures on plain backgrounds and printed pages, with many cuts
            within a take; "short" is one or two shots of 6 to 150 frames; "held" is one or two
            shots in which an object is held before the lens; "returns" goes back to earlier takes,
            also by gradual transitions, so a returning picture does not always mean one shot;
            "effects" joins a few shots by the effects of the part; "dark" has dim shots and slow
            fades through black; "animated" is one to three takes of stop motion or time lapse;
            "mixed" has all of these joins between a few short shots, goes back to earlier takes,
            and its shots may be dim, dipped, disturbed or animated.
    """
    is_calm, by_hand = style == "calm", style == "by_hand"
    rng = np.random.default_rng(seed)
    of = str(rng.choice(_EDITED, p=_CALM_SHARES if is_calm else _MIX_SHARES))
    distractors = [0.85, 0.13, 0.02] if is_calm else [0.45, 0.4, 0.15]
    joins = [0.42, 0.16, 0.42]
    if by_hand:
        of, distractors, joins = "plain", [0.15, 0.6, 0.25], [0.7, 0.1, 0.2]
    shortest, longest, n_shots = 12, 220, 16
    if style == "studio":
        of, distractors, joins = "studio", [0.8, 0.2, 0.0], [0.35, 0.5, 0.15]
    if style == "short":
        of, distractors, joins = "moving", [0.7, 0.3, 0.0], [0.6, 0.1, 0.3]
        shortest, longest, n_shots = 6, 150, int(rng.choice([1, 1, 2]))
    if style == "held":
        of, distractors, joins = "plain", [0.0, 0.8, 0.2], [0.7, 0.0, 0.3]
        shortest, longest, n_shots = 60, 220, int(rng.choice([1, 1, 2]))
    if style == "returns":
        distractors, joins = [0.7, 0.25, 0.05], [0.35, 0.05, 0.6]
        shortest, longest = 10, 130
    if style in ("effects", "dark"):
        distractors = [0.85, 0.15, 0.0] if style == "effects" else [1.0, 0.0, 0.0]
        joins = [0.2, 0.1, 0.7] if style == "effects" else [0.3, 0.0, 0.7]
        shortest, longest, n_shots = 14, 80, 6
    if style == "animated":
        of, distractors, joins = "animated", [1.0, 0.0, 0.0], [0.75, 0.0, 0.25]
        shortest, longest, n_shots = 20, 200, int(rng.choice([1, 1, 2, 3]))
    if style == "mixed":
        distractors, joins = [0.5, 0.4, 0.1], [0.2, 0.2, 0.6]
        shortest, longest, n_shots = 14, 80, 7
    is_dark = style == "dark" or (style == "mixed" and rng.random() < 0.25)
    effect_share = 0.55 if style == "mixed" else 0.8 if style == "effects" else 0.0
    fade_share = (0.75 if is_dark else 0.2) if style == "mixed" else 0.8 if is_dark else 0.0
    pieces: list[Clip] = []
    gaps: list[tuple[int, int, str]] = []
    ignored: list[tuple[int, int]] = []
    position = 0
    before: Clip | None = None
    shown: tuple[_Recorded, int] | None = None
    n_shown = 0
    earlier: list[tuple[_Recorded, int] | None] = []
    for number in range(n_shots):
        length = int(np.exp(rng.uniform(np.log(shortest), np.log(longest))))
        kind = str(rng.choice(["cut", "jump", "gradual"], p=joins)) if number else ""
        n_gap = 0
        if kind == "gradual":
            n_gap = int(np.exp(rng.uniform(0, np.log(60.99))))
        if kind == "jump" and shown is not None:
            size = shown[0].size
            shot, shown = _jumped(rng, shown, n_shown, length + 2 * HANDLE)
        else:
            kind = "cut" if kind == "jump" else kind
            is_return = style == "returns" or (style == "mixed" and rng.random() < 0.5)
            if is_return and (again := _returning(rng, earlier)):
                shot, shown = again[0].frames(again[1], length + 2 * HANDLE), again
            else:
                now = "animated" if style == "mixed" and rng.random() < 0.15 else of
                shot, shown = takes.take(rng, length + 2 * HANDLE, film=seed, of=now)
        if is_dark:
            shot = dimmed(rng, shot) if rng.random() < 0.75 else shot
        n_shown = length + HANDLE
        earlier.append(shown and (shown[0], shown[1] + int(length * shown[0].speed)))
        body = shot[HANDLE : HANDLE + length].copy()
        if kind == "gradual":
            assert before is not None
            sides = before[:n_gap], shot[HANDLE - n_gap : HANDLE]
            if fade_share and rng.random() < fade_share:
                n_gap = max(4, round(n_gap * float(rng.choice([1, 1, 2]))))
                gradual = "dark_fade"
                joined = dark_fade(rng, *(slowed(side, n_gap) for side in sides))
            elif effect_share and rng.random() < effect_share:
                gradual = str(rng.choice(list(takes.effects)))
                joined = rendered(rng, takes.effects[gradual], *sides)
            else:
                gradual = draw_kind(rng)
                joined = transition(rng, gradual, *sides)
            pieces.append(joined)
            gaps.append((position, position + n_gap, gradual))
            position += n_gap
        elif kind == "jump":
            is_nearer = False
            if style == "studio":
                assert shown is not None
                is_nearer = max(shown[0].size / size, size / shown[0].size) > 1.25
            does = _jump_shows(pieces[-1], body, is_nearer=is_nearer)
            if does:
                gaps.append((position, position, "jump"))
            elif does is None:
                ignored.append((max(0, position - 4), position + 4))
        elif kind == "cut":
            gaps.append((position, position, "cut"))
        may_dip = 0.3 if style == "dark" else 0.15 if style == "mixed" else 0.0
        if may_dip and length >= 24 and rng.random() < may_dip:
            body = dipped(rng, body)
        if length >= 24:
            for _ in range(int(rng.choice([0, 1, 2], p=distractors))):
                body = disturb(rng, body, takes.other, of=_DISTRACTORS.get(style, "all"))
            if rng.random() < (0.02 if is_calm else 0.12):
                at, n_lost = int(rng.integers(6, length - 6)), int(rng.integers(1, 7))
                body = np.concatenate([body[:at], body[min(at + n_lost, length - 4) :]])
        pieces.append(body)
        position += len(body)
        before = shot[HANDLE + length :]
    film = MadeFilm(np.concatenate(pieces), gaps, ignored)
    return _finished(rng, film, _BY_HAND_RATES if by_hand else _RATES)


def _finished(rng: Rng, film: MadeFilm, rates: dict[str, float]) -> MadeFilm:
    """Adds bars, subtitles, grain, frame rate and encoding; scales to the network's size."""
    if rng.random() < 0.25:
        _bars(rng, film.frames)
    if rng.random() < 0.25:
        _subtitles(rng, film.frames)
    film = _at_rate(rng, film, rates)
    if rng.random() < 0.15:
        _add_grain(rng, film.frames)
    if rng.random() < 0.65:
        film.frames = _coded(rng, film.frames)
    else:
        film.frames = _tiny(film.frames).round().astype(np.uint8)
    return film


def _bars(rng: Rng, frames: Clip) -> None:
    if rng.random() < 0.5:
        depth = int(rng.uniform(0.04, 0.16) * HEIGHT)
        frames[:, :depth] = frames[:, HEIGHT - depth :] = 0
    else:
        depth = int(rng.uniform(0.05, 0.34) * WIDTH)
        frames[:, :, :depth] = frames[:, :, WIDTH - depth :] = 0


def _subtitles(rng: Rng, frames: Clip) -> None:
    at = 0
    while at < len(frames):
        length, x = int(rng.integers(20, 120)), int(rng.integers(20, 80))
        y = int(rng.uniform(0.75, 0.9) * HEIGHT)
        ink = (rng.random((6, WIDTH - 2 * x)) < 0.6)[None, :, :, None]
        part = frames[at : at + length, y : y + 6, x : WIDTH - x]
        part[:] = np.where(ink, 235, part)
        at += length + int(rng.choice([0, 0, 15, 60]))


def _add_grain(rng: Rng, frames: Clip) -> None:
    deviation = rng.uniform(2, 14)
    for i in range(len(frames)):
        noise = rng.normal(0, deviation, frames[i].shape).astype(np.float32)
        frames[i] = np.clip(frames[i] + noise, 0, 255)


_RATES = {
    "same": 0.4, "sparse": 0.2, "repeated": 0.14, "mixed": 0.1, "pulldown": 0.08, "dropped": 0.08,
}  # fmt: skip
_BY_HAND_RATES = {"same": 0.4, "sparse": 0.25, "repeated": 0.3, "dropped": 0.05}
"""Phones and webcams record fewer frames in the dark, and repeat them."""


def _at_rate(rng: Rng, film: MadeFilm, rates: dict[str, float]) -> MadeFilm:
    """Changes the frame rate: drops, repeats, mixes or loses frames, or applies pulldown."""
    n = len(film.frames)
    kind = rng.choice(list(rates), p=list(rates.values()))
    if kind == "same":
        return film
    mixes = np.zeros(0)
    if kind == "sparse":
        shown = np.arange(0, n, float(rng.choice([1.2, 1.5, 2, 2.5, 3])))
    elif kind == "repeated":
        rate = float(rng.choice([0.33, 0.4, 0.5, 0.8, 0.96]))
        shown = np.floor(np.arange(n) * rate + 1e-6) / rate
    elif kind == "mixed":
        shown = np.arange(0, n - 1, float(rng.choice([0.8, 1.2, 1.25, 0.5])))
        mixes = shown % 1
    elif kind == "pulldown":
        # Four frames become five; the third and fourth mix fields of two frames.
        cadence = np.array([0.0, 1.0, 1.5, 2.5, 3.0])
        shown = (np.arange(n // 4)[:, None] * 4 + cadence).ravel()
        shown = shown[shown < n - 1]
        mixes = shown % 1
    else:
        # A recorder that loses a frame repeats the previous one.
        lost = rng.random(n) < rng.uniform(0.02, 0.2)
        lost[0] = False
        shown = np.maximum.accumulate(np.where(lost, 0, np.arange(n))).astype(np.float64)
    first = np.floor(shown + 1e-6).astype(int)
    frames = film.frames[first]
    for i in np.flatnonzero(mixes > 1e-3).tolist():
        share = float(mixes[i])
        frames[i] = cv2.addWeighted(frames[i], 1 - share, film.frames[first[i] + 1], share, 0)
    last = first + (mixes > 1e-3 if len(mixes) else 0)

    def span(start: int, end: int) -> tuple[int, int]:
        # Frames that show part of the gap, or a mix of both sides.
        return int(np.searchsorted(last, start)), int(np.searchsorted(first, end))

    gaps = []
    for start, end, kind_ in film.gaps:
        a, b = span(start, end)
        gaps.append((min(a, b), max(a, b), kind_))
    return MadeFilm(frames, gaps, [span(*one) for one in film.ignored])


def _coded(rng: Rng, frames: Clip) -> Clip:
    """Encodes at a low bitrate and decodes in memory; scales as curate does."""
    codec = str(rng.choice(["libx264", "libx264", "libx264", "mpeg4", "mpeg2video"]))
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        if codec == "libx264":
            options = {
                "preset": str(rng.choice(["ultrafast", "superfast", "veryfast"])),
                "crf": str(int(rng.integers(20, 42))),
                "g": str(int(rng.choice([12, 30, 60, 250]))),
                "x264-params": with_steady_bytes("threads=1"),
            }
        else:
            q = str(int(rng.integers(3, 28)))
            options = {"qmin": q, "qmax": q, "g": str(int(rng.choice([8, 12, 30])))}
        stream = cast(VideoStream, container.add_stream(codec, rate=25, options=options))
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for rgb in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(rgb, format="rgb24")))
        container.mux(stream.encode(None))
    file.seek(0)
    scaler = tiny_scaler(0)
    with av.open(file, "r") as container:
        tiny = [scaler.rgb_HWC(frame) for frame in container.decode(video=0)]
    if len(tiny) != len(frames):
        raise ValueError(f"the encoder gave {len(tiny)} of {len(frames)} frames")
    return np.stack(tiny)
