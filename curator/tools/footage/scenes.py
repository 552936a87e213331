"""Renders shots of a virtual camera over photographs, and films edited from these shots.

The camera's crop is resampled at sub-pixel positions, because jumps of whole pixels would count as
camera shake. Grain is added after resampling, because enlarged pictures are smoother than those of
a camera. Photographs come from scikit-image's wheel. They are read by path, because `skimage.data`
downloads pictures that are not in the wheel.
"""

import importlib.util
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from curator.errors import UsageError
from curator.installation import install_extra, pip_command

Picture = NDArray[np.uint8]
"""A picture or video frame: uint8 RGB, height x width x 3."""

_GRAIN_MARGIN_PX = 64
_OVERSAMPLING = 1.5


@cache
def photograph(file: str) -> Picture:
    """Returns a photograph of `skimage/data`, 300 to 1411 pixels a side; shared and read-only.

    Raises:
        UsageError: scikit-image is missing, or lacks the file.
    """
    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        raise UsageError(f"the demo needs the photographs of scikit-image: {install_extra('demo')}")
    path = Path(spec.origin).parent / "data" / file
    bgr = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if bgr is None:
        again = pip_command("install", "scikit-image", again=True)
        raise UsageError(f"cannot read {path}, a file of scikit-image's wheel; {again}")
    picture = np.ascontiguousarray(bgr[:, :, ::-1]).astype(np.uint8, copy=False)
    picture.setflags(write=False)
    return picture


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Position of the camera over a picture.

    `x` and `y` place the crop within the picture: 0 is at the left or top edge, 1 at the right or
    bottom edge. `span` is the crop's width, divided by the largest width that fits.
    """

    x: float = 0.5
    y: float = 0.5
    span: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sprite:
    """A round piece of a picture that moves over a shot on a straight line.

    The sprite is the largest ellipse inside `patch`, without scaling. `start` and `end` are its
    centre (x, y) on the first and the last frame, as shares of the width and height of the picture
    between black bars.
    """

    patch: Picture
    start: tuple[float, float]
    end: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShotSpec:
    """One shot: a camera that moves over a picture.

    Args:
        picture: Picture under the camera.
        n_frames: Length.
        start: Camera on the first frame.
        end: Camera on the last frame; equal to `start` for a static shot.
        sprites: Objects that move over the picture.
        grain: Standard deviation of the noise in 8-bit levels. With 0, all frames of a static shot
            are equal.
        picture_aspect: Width by height of the picture between black bars; None fills the frame.
        seed: Seed of the noise.
    """

    picture: Picture
    n_frames: int
    start: View = View()
    end: View = View()
    sprites: tuple[Sprite, ...] = ()
    grain: float = 2.0
    picture_aspect: Fraction | None = None
    seed: int = 0


def render_shot(
    shot: ShotSpec, *, width_px: int, height_px: int, only: Sequence[int] | None = None
) -> Iterator[Picture]:
    """Yields the frames of a shot: all frames, or those with an index in `only`."""
    box = _active_box(shot, width_px=width_px, height_px=height_px)
    inner_w, inner_h = box[2] - box[0], box[3] - box[1]
    first = _crop(shot.picture, shot.start, inner_w / inner_h)
    last = _crop(shot.picture, shot.end, inner_w / inner_h)
    source, scale = _prescaled(shot.picture, inner_w / min(first[2], last[2]))
    sprites = [(s, *_sprite_layers(s)) for s in shot.sprites]
    grain = _grain_plate(shot, inner_w, inner_h)
    rng = np.random.default_rng(shot.seed)
    for index in range(shot.n_frames) if only is None else only:
        t = index / max(shot.n_frames - 1, 1)
        x, y, width = _between(first, last, t)
        frame = _resample(source, x * scale, y * scale, width * scale, inner_w, inner_h)
        for sprite, patch, alpha in sprites:
            (x0, y0), (x1, y1) = sprite.start, sprite.end
            centre = (x0 + (x1 - x0) * t) * inner_w, (y0 + (y1 - y0) * t) * inner_h
            frame = _pasted(frame, patch, alpha, centre)
        if grain is not None:
            # Each frame shows another window of the noise, which is larger than a frame.
            top, left = (int(v) for v in rng.integers(0, _GRAIN_MARGIN_PX, 2))
            window = grain[top : top + inner_h, left : left + inner_w]
            frame = cv2.add(frame, window, dtype=cv2.CV_8U).astype(np.uint8, copy=False)
        if (inner_w, inner_h) != (width_px, height_px):
            inner, frame = frame, np.zeros((height_px, width_px, 3), np.uint8)
            frame[box[1] : box[3], box[0] : box[2]] = inner
        yield frame


def _active_box(shot: ShotSpec, *, width_px: int, height_px: int) -> tuple[int, int, int, int]:
    """Returns left, top, right and bottom of the picture between black bars, half-open."""
    aspect = shot.picture_aspect
    if aspect is None:
        return 0, 0, width_px, height_px
    # Even sizes, because 4:2:0 needs them.
    inner_w = min(width_px, round(height_px * aspect / 2) * 2)
    inner_h = min(height_px, round(width_px / aspect / 2) * 2)
    left, top = (width_px - inner_w) // 4 * 2, (height_px - inner_h) // 4 * 2
    return left, top, left + inner_w, top + inner_h


def _crop(picture: Picture, view: View, aspect: float) -> tuple[float, float, float]:
    """Returns left, top and width of the crop, in pixels of the picture."""
    height, width = picture.shape[:2]
    crop_w = min(width, height * aspect) * view.span
    return view.x * (width - crop_w), view.y * (height - crop_w / aspect), crop_w


def _prescaled(picture: Picture, factor: float) -> tuple[Picture, float]:
    """Returns the picture as RGBA, scaled once with a slow, sharp filter, and the scale factor.

    Each frame is then sampled linearly, which is 2.5 times as fast as bicubic. Linear sampling
    softens a frame, so the scaled picture has `_OVERSAMPLING` pixels per frame pixel on each side.
    """
    height, width = picture.shape[:2]
    factor *= _OVERSAMPLING
    size = (round(width * factor), round(height * factor))
    how = cv2.INTER_LANCZOS4 if factor > 1 else cv2.INTER_AREA
    large = cv2.resize(picture, size, interpolation=how)
    if factor > 1:
        soft = cv2.GaussianBlur(large, (0, 0), factor * 0.8)
        large = cv2.addWeighted(large, 1.6, soft, -0.6, 0)
    # OpenCV warps four channels 2.5 times as fast as three.
    padded = cv2.cvtColor(large, cv2.COLOR_RGB2RGBA)
    return padded.astype(np.uint8, copy=False), size[0] / width


def _between(
    first: tuple[float, float, float], last: tuple[float, float, float], t: float
) -> tuple[float, float, float]:
    """Returns the crop at t in [0, 1]; sizes change by a constant factor per time."""
    ratio = last[2] / first[2]
    s = t if math.isclose(ratio, 1) else (ratio**t - 1) / (ratio - 1)
    x, y, width = (a + (b - a) * s for a, b in zip(first, last, strict=True))
    return x, y, width


def _resample(source: Picture, x: float, y: float, width: float, out_w: int, out_h: int) -> Picture:
    step = width / out_w
    # Pixel centres: the middle of frame pixel 0 is the middle of the crop's first step.
    matrix = np.array([[step, 0, x + step / 2 - 0.5], [0, step, y + step / 2 - 0.5]])
    warped = cv2.warpAffine(
        source,
        matrix,
        (out_w, out_h),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REFLECT_101,
    )
    return cv2.cvtColor(warped, cv2.COLOR_RGBA2RGB).astype(np.uint8, copy=False)


def _sprite_layers(sprite: Sprite) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns the patch and its soft elliptical mask, with a border for sub-pixel positions."""
    height, width = sprite.patch.shape[:2]
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    radius = np.hypot((x + 0.5) / width * 2 - 1, (y + 0.5) / height * 2 - 1)
    edge = 3 / min(width, height)
    alpha = np.clip((1 - radius) / edge, 0, 1).astype(np.float32)
    border = ((1, 1), (1, 1))
    patch = np.pad(sprite.patch.astype(np.float32), (*border, (0, 0)), mode="edge")
    return patch, np.pad(alpha, border)


def _pasted(
    frame: Picture,
    patch: NDArray[np.float32],
    alpha: NDArray[np.float32],
    centre: tuple[float, float],
) -> Picture:
    height, width = frame.shape[:2]
    shift = (centre[0] - patch.shape[1] / 2, centre[1] - patch.shape[0] / 2)
    matrix = np.array([[1, 0, shift[0]], [0, 1, shift[1]]])
    layer = cv2.warpAffine(patch, matrix, (width, height), borderMode=cv2.BORDER_REPLICATE)
    mask = cv2.warpAffine(alpha, matrix, (width, height))[:, :, None]
    return (frame + (layer - frame) * mask + 0.5).astype(np.uint8)


def _grain_plate(shot: ShotSpec, width: int, height: int) -> NDArray[np.int16] | None:
    if shot.grain == 0:
        return None
    rng = np.random.default_rng(shot.seed + 7919)
    shape = (height + _GRAIN_MARGIN_PX, width + _GRAIN_MARGIN_PX)
    soft = cv2.GaussianBlur(rng.standard_normal(shape).astype(np.float32), (0, 0), 0.7)
    plate = np.rint(soft * (shot.grain / soft.std())).astype(np.int16)
    return np.repeat(plate[:, :, None], 3, axis=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A film: a sequence of shots with a cut or a dissolve after each but the last.

    Each shot must have at least one frame outside of dissolves.
    """

    shots: Sequence[ShotSpec]
    dissolves: Sequence[int]
    """Length in frames of the dissolve after each shot but the last; 0 is a cut."""
    width_px: int = 960
    height_px: int = 540

    def spans(self) -> list[tuple[int, int]]:
        """Returns for each shot the frames of the film that show it alone, half-open."""
        spans, at = [], 0
        for shot, before, after in zip(
            self.shots, (0, *self.dissolves), (*self.dissolves, 0), strict=True
        ):
            end = at + shot.n_frames - before - after
            spans.append((at, end))
            at = end + after
        return spans

    def frames(self) -> Iterator[Picture]:
        """Yields the frames of the film."""
        shown = self._opened(0)
        for number, (start, end) in enumerate(self.spans()):
            yield from islice(shown, end - start)
            if number < len(self.dissolves):
                following, n = self._opened(number + 1), self.dissolves[number]
                for i in range(n):
                    weight = (i + 1) / (n + 1)
                    mixed = cv2.addWeighted(next(shown), 1 - weight, next(following), weight, 0)
                    yield mixed.astype(np.uint8, copy=False)
                shown = following

    def _opened(self, number: int) -> Iterator[Picture]:
        return render_shot(self.shots[number], width_px=self.width_px, height_px=self.height_px)
