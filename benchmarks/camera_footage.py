"""Clips filmed by a virtual camera whose motion is known, for `benchmarks/camera.py`.

The camera stands over a picture that is mirrored at its edges, so that it can travel any distance.
Units are those of the signals: short sides of the frame per second, 1/s, degrees per second.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import tests_path  # noqa: F401
from film_makers import write_video
from film_shots import photograph, texture
from numpy.typing import NDArray

from curator.footage.scenes import Picture

WIDTH, HEIGHT = 640, 360
_SHUTTER = 0.5
_BLUR_STEP_PX = 2.0
_OBJECT_ENLARGED = 1.6
"""As much as the pictures are, so that objects are not sharper than what stands behind them."""
_OBJECTS = ("camera", "ihc", "gravel", "retina")


@dataclass(frozen=True, slots=True, kw_only=True)
class Motion:
    """What the camera does.

    Attributes:
        pan: Short sides per second to the right.
        tilt: Short sides per second upwards.
        zoom: Logarithm of the magnification per second.
        roll: Degrees per second, clockwise.
        shake: RMS of the shaking, in short sides.
        ease: Share of the speed by which it is slower at the ends and faster in the middle.
    """

    pan: float = 0.0
    tilt: float = 0.0
    zoom: float = 0.0
    roll: float = 0.0
    shake: float = 0.0
    ease: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraCase:
    """A clip and its truth.

    Attributes:
        name: For tables.
        picture: What is filmed: `texture:SEED` or a photograph.
        motion: What the camera does.
        tags: What `camera_tags` should say.
        object_share: Part of the frame that moving objects cover.
        noise: Standard deviation of sensor noise, 8-bit levels.
        flicker: Amplitude of brightness changes, share of the level.
        seconds: Length.
        fps: Frame rate.
        seed: Of shake, objects and noise.
    """

    name: str
    picture: str
    motion: Motion
    tags: frozenset[str]
    object_share: float = 0.0
    noise: float = 2.0
    flicker: float = 0.0
    seconds: float = 5.0
    fps: int = 30
    seed: int = 0

    @property
    def n_frames(self) -> int:
        """Length."""
        return round(self.seconds * self.fps)


def path_of(case: CameraCase, times_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """The camera at some times: x (right), y (up), log zoom, roll; float64 [T, 4]."""
    move, t = case.motion, times_s / case.seconds
    eased = case.seconds * (t - move.ease * np.sin(2 * np.pi * t) / (2 * np.pi))
    rates = np.array([move.pan, move.tilt, move.zoom, np.radians(move.roll)])
    path: NDArray[np.float64] = eased[:, None] * rates
    if move.shake > 0:
        rng = np.random.default_rng(case.seed + 101)
        path[:, 0] += move.shake * _shaking(rng, times_s) / np.sqrt(2)
        path[:, 1] += move.shake * _shaking(rng, times_s) / np.sqrt(2)
        path[:, 3] += 0.5 * move.shake * _shaking(rng, times_s)
    return path


def _shaking(rng: np.random.Generator, times_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shaking of a hand: 16 tones of 1 to 8 Hz with amplitudes as 1/f, RMS 1."""
    tones = rng.uniform(1.0, 8.0, 16)
    size = 1 / tones
    size *= np.sqrt(2 / np.sum(size**2))
    waves = np.sin(2 * np.pi * (np.outer(times_s, tones) + rng.uniform(0, 1, 16)))
    total: NDArray[np.float64] = waves @ size
    return total


def film(case: CameraCase) -> Iterator[Picture]:
    """Frames of a case, uint8 RGB, HEIGHT x WIDTH x 3."""
    source = _enlarged(case)
    rng = np.random.default_rng(case.seed + 7)
    objects = _Objects(case)
    flicker_hz = rng.uniform(3, 13)
    for index in range(case.n_frames):
        begin = index / case.fps
        frame = np.zeros((HEIGHT, WIDTH, 3), np.float32)
        times = begin + _exposures(case, begin) / case.fps
        for view in path_of(case, times):
            frame += _seen(source, view)
        frame /= len(times)
        frame = objects.over(frame, begin)
        if case.flicker > 0:
            wave = np.sin(2 * np.pi * flicker_hz * begin) + rng.normal(0, 0.5)
            frame *= 1 + case.flicker * wave
        if case.noise > 0:
            grain = rng.standard_normal((HEIGHT, WIDTH, 1), np.float32)
            frame += case.noise * grain
        yield np.clip(frame + 0.5, 0, 255).astype(np.uint8)


def _exposures(case: CameraCase, begin_s: float) -> NDArray[np.float64]:
    """Moments of an exposure, in frames: as many as the motion blur needs."""
    ends = path_of(case, np.array([begin_s, begin_s + 1 / case.fps]))
    step = np.abs(ends[1] - ends[0])
    reach_px = HEIGHT * (step[0] + step[1] + step[2] + step[3]) * _SHUTTER
    count = int(np.clip(reach_px / _BLUR_STEP_PX, 1, 8))
    return np.arange(count) / count * _SHUTTER


def _enlarged(case: CameraCase) -> Picture:
    """The picture so that its shorter side is 2 frame heights, as RGBA, which warps faster."""
    kind, _, seed = case.picture.partition(":")
    picture = texture(int(seed), width_px=960, height_px=720) if seed else photograph(kind)
    factor = 2 * HEIGHT / min(picture.shape[:2])
    size = (round(picture.shape[1] * factor), round(picture.shape[0] * factor))
    large = cv2.resize(picture, size, interpolation=cv2.INTER_LANCZOS4)
    return cv2.cvtColor(large, cv2.COLOR_RGB2RGBA).astype(np.uint8, copy=False)


def _seen(source: Picture, view: NDArray[np.float64]) -> NDArray[np.float32]:
    """The frame of one moment; one source pixel is one frame pixel at no zoom."""
    x, y, zoom, roll = view
    height, width = source.shape[:2]
    scale = np.exp(-zoom)
    # A camera that rolls clockwise sees the picture turn the other way.
    turn = scale * np.array([[np.cos(roll), -np.sin(roll)], [np.sin(roll), np.cos(roll)]])
    centre = np.array([width / 2 + x * HEIGHT, height / 2 - y * HEIGHT])
    offset = centre - turn @ np.array([WIDTH / 2, HEIGHT / 2])
    warped = cv2.warpAffine(
        source,
        np.column_stack([turn, offset]),
        (WIDTH, HEIGHT),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REFLECT_101,
    )
    return cv2.cvtColor(warped, cv2.COLOR_RGBA2RGB).astype(np.float32)


class _Objects:
    """Discs cut out of photographs that swing over the frame, independent of the camera.

    At their fastest they go at 0.1 to 0.5 short sides per second, as people do who cross the frame
    in some seconds.
    """

    def __init__(self, case: CameraCase) -> None:
        rng = np.random.default_rng(case.seed + 13)
        self._discs = []
        left, area = case.object_share * WIDTH * HEIGHT, 0.0
        while left > 0.01 * WIDTH * HEIGHT:
            area = min(left, rng.uniform(0.08, 0.16) * WIDTH * HEIGHT)
            left -= area
            side = max(8, round(2 * np.sqrt(area / np.pi)))
            photo = photograph(_OBJECTS[int(rng.integers(len(_OBJECTS)))])
            cropped = round(side / _OBJECT_ENLARGED)
            top, begin = (int(rng.integers(0, max(1, n - cropped))) for n in photo.shape[:2])
            patch = cv2.resize(photo[top : top + cropped, begin : begin + cropped], (side, side))
            grid = np.mgrid[0:side, 0:side] - (side - 1) / 2
            mask = np.clip(side / 2 - np.hypot(*grid), 0, 1).astype(np.float32)
            self._discs.append((patch, mask, rng.uniform(size=2), rng.uniform(0.03, 0.12, 2)))

    def over(self, frame: NDArray[np.float32], time_s: float) -> NDArray[np.float32]:
        for patch, mask, phase, hz in self._discs:
            side = len(mask)
            at = 0.5 + 0.5 * np.sin(2 * np.pi * (hz * time_s + phase))
            shift = at * (WIDTH - side, HEIGHT - side)
            matrix = np.array([[1, 0, shift[0]], [0, 1, shift[1]]])
            layer = cv2.warpAffine(patch, matrix, (WIDTH, HEIGHT)).astype(np.float32)
            alpha = cv2.warpAffine(mask, matrix, (WIDTH, HEIGHT))[:, :, None]
            frame = (frame + (layer - frame) * alpha).astype(np.float32)
        return frame


def write_case(case: CameraCase, path: Path) -> None:
    """Writes a case as H.264 at a quality that the web has (CRF 26)."""
    write_video(path, film(case), fps=Fraction(case.fps), options={"crf": "26"})
