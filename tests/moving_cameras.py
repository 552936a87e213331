"""Made footage of known motions of a camera, for tests and benchmarks.

Shape letters: T times, F frames.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import cv2
import numpy as np
from film_shots import texture
from numpy.typing import NDArray

from curator.measures.camera_path import RATES, turned
from curator.records.tracks import Track
from curator.tools.footage.scenes import Picture

Floats = NDArray[np.float64]
Velocity = Callable[[Floats], Floats]
"""Pan, tilt (short sides/s or degrees/s), zoom (1/s) and roll (degrees/s) at times, [T] to [T, 4].
"""
_STEPS = 20
"""Steps per frame with which velocities are integrated."""
_WORLD_PX = 2400
_FINER = 2
"""Rendered pixels per pixel and side, which are averaged as a sensor does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingCamera:
    """A camera that moves over a texture.

    Attributes:
        velocity: The camera's velocity.
        n_frames: Length.
        seed: Seed of the texture and of the noise.
        fps: Frames per second.
        width_px: Width.
        height_px: Height, the short side.
        noise: Standard deviation of the sensor's noise, in 8-bit levels.
        field_of_view_deg: Angle of the short side. The camera then turns on its place, with pans
            and tilts in degrees per second; None for a camera that moves along the texture.
    """

    velocity: Velocity
    n_frames: int
    seed: int
    fps: float = 25.0
    width_px: int = 640
    height_px: int = 360
    noise: float = 2.0
    field_of_view_deg: float | None = None

    def motion(self) -> Floats:
        """Returns the motion of each frame from the frame before, float64 [F, 4]; 0 for the first.

        Units are those of `Velocity`, without the second.
        """
        return np.concatenate([np.zeros((1, 4)), self._steps().sum(axis=1)])

    def _steps(self) -> Floats:
        n_steps = (self.n_frames - 1) * _STEPS
        step_s = 1 / self.fps / _STEPS
        steps = self.velocity(np.float64(step_s) * (np.arange(n_steps) + 0.5)) * step_s
        return steps.reshape(self.n_frames - 1, _STEPS, 4)

    def frames(self) -> Iterator[Picture]:
        """Yields the frames, uint8 RGB."""
        world = texture(self.seed, width_px=_WORLD_PX, height_px=_WORLD_PX)
        rng = np.random.default_rng(self.seed)
        size = self.width_px * _FINER, self.height_px * _FINER
        short = size[1]
        to_unit = np.array([[1 / short, 0, (1 - size[0]) / 2 / short],
                            [0, 1 / short, (1 - size[1]) / 2 / short], [0, 0, 1]])  # fmt: skip
        to_pixels = np.array([[self.height_px, 0, _WORLD_PX / 2],
                              [0, self.height_px, _WORLD_PX / 2], [0, 0, 1]])  # fmt: skip
        for to_place in self._places():
            large = cv2.warpPerspective(
                world, to_pixels @ to_place @ to_unit, size,
                flags=cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REFLECT_101,
            )  # fmt: skip
            frame = cv2.resize(large, (self.width_px, self.height_px), interpolation=cv2.INTER_AREA)
            noisy = frame + self.noise * rng.standard_normal(frame.shape)
            yield np.clip(np.rint(noisy), 0, 255).astype(np.uint8)

    def _places(self) -> Iterator[Floats]:
        """Yields for each frame the homography from its picture to the texture, in short sides."""
        angle_deg = self.field_of_view_deg
        focal = 1.0 if angle_deg is None else 0.5 / np.tan(np.radians(angle_deg) / 2)
        lens = np.diag([focal, focal, 1.0])
        centre, turn, scale, to_camera = 0j, 1 + 0j, 1.0, np.eye(3)
        for steps in (np.zeros((0, 4)), *self._steps()):
            for pan, tilt, zoom, roll in steps.tolist():
                if angle_deg is None:
                    centre += complex(pan, -tilt) * turn / scale
                    turn *= np.exp(1j * np.radians(roll))
                else:
                    to_camera = turned(pan, tilt, roll) @ to_camera
                scale *= np.exp(zoom)
            seen = np.diag([1 / focal / scale, 1 / focal / scale, 1.0])
            if angle_deg is None:
                t = turn / scale
                yield np.array([[t.real, -t.imag, centre.real], [t.imag, t.real, centre.imag],
                                [0, 0, 1]])  # fmt: skip
            else:
                yield lens @ to_camera.T @ seen


def signals_of(track: Track) -> dict[str, NDArray[np.float32]]:
    """Returns signals and times as an annotator of a clip of the whole film gets them."""
    shown_s = (track.frame_pts - track.frame_pts[0]) * float(track.time_base)
    at = np.searchsorted(track.sample_frame, np.arange(track.n_frames), side="right") - 1
    times = {
        "source_s": shown_s,
        "sample_s": shown_s[track.sample_frame][at],
        "sample_pair_s": shown_s[track.sample_pair_frame][at],
    }
    values = {name: column[at] for name, column in track.signals.items()} | times
    return {name: each.astype(np.float32) for name, each in values.items()}


def measured_signals(
    velocity: Velocity, shown_s: Floats, starts_s: Floats, pair_s: float
) -> dict[str, NDArray[np.float32]]:
    """Returns the signals that an exact analysis measures for frames at some times.

    Samples begin at `starts_s` and have the mean velocity of `pair_s`; frames before the first have
    NaN.
    """
    steps = (np.arange(200) + 0.5) / 200 * pair_s
    means = np.array([velocity(start + steps).mean(axis=0) for start in starts_s])
    at = np.searchsorted(starts_s, shown_s, side="right") - 1

    def held(values: Floats) -> NDArray[np.float32]:
        return np.where(at < 0, np.nan, values[at]).astype(np.float32)

    rates = {name: held(means[:, column]) for column, name in enumerate(RATES)}
    return rates | {
        "source_s": shown_s.astype(np.float32),
        "sample_s": held(starts_s),
        "sample_pair_s": held(starts_s + pair_s),
    }


def eased(start_s: float, end_s: float) -> Callable[[Floats], Floats]:
    """Returns a speed that rises from 0 to 1 and falls again, smoothly."""

    def speed(times_s: Floats) -> Floats:
        share = np.clip((times_s - start_s) / (end_s - start_s), 0, 1)
        return np.asarray(np.sin(np.pi * share) ** 2)

    return speed


def along(*components: float) -> Floats:
    """Returns a direction of motion: pan, tilt, zoom, roll."""
    return np.array(components)


MOTIONS = ("still", "steady", "pan", "tilt", "sway", "zoom", "dolly", "roll", "mixed", "shake")


def velocity_of(motion: str, seed: int) -> Velocity:
    """Returns a motion of `MOTIONS` that lasts some 8 s, with sizes and times by the seed."""
    rng = np.random.default_rng([seed, MOTIONS.index(motion)])
    size, hertz, phase = rng.uniform(0.7, 1.4), rng.uniform(0.15, 0.4), rng.uniform(0, 2 * np.pi)
    sign = rng.choice([-1.0, 1.0])
    ease = eased(rng.uniform(0, 1.5), rng.uniform(6.5, 8))

    def wave(times_s: Floats) -> Floats:
        return np.asarray(np.sin(2 * np.pi * hertz * times_s + phase))

    if motion == "shake":
        waves = rng.uniform(1.5, 5, (6, 1)), rng.uniform(0, 2 * np.pi, (6, 1))
        sizes = 0.06 * rng.standard_normal((6, 4)) * along(1, 1, 0, 15)
        return lambda t: np.asarray(np.sin(2 * np.pi * waves[0] * t + waves[1]).T @ sizes)
    if motion == "dolly":
        # At constant speed towards a wall, the picture's scale grows faster and faster.
        wall_s = rng.uniform(11, 16)
        return lambda t: (1 / (wall_s - t))[:, None] * along(0, 0, 1, 0)
    if motion == "mixed":
        return lambda t: (
            sign * ease(t)[:, None] * along(0.25 * size, 0, 0.12, 0)
            + wave(t)[:, None] * along(0, 0.1, 0, 5 * size)
        )
    directions: dict[str, tuple[Callable[[Floats], Floats], Floats]] = {
        "still": (ease, along(0, 0, 0, 0)),
        "steady": (lambda t: np.ones(len(t)), along(0.15 * size, 0, 0, 0)),
        "pan": (ease, along(0.4 * size, 0, 0, 0)),
        "tilt": (ease, along(0, 0.3 * size, 0, 0)),
        "sway": (wave, along(0.2 * size, 0, 0, 0)),
        "zoom": (ease, along(0, 0, 0.2 * size, 0)),
        "roll": (wave, along(0, 0, 0, 12 * size)),
    }
    speed, direction = directions[motion]
    return lambda t: sign * speed(t)[:, None] * direction
