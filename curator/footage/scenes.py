"""Shots filmed by a virtual camera over pictures, and films edited from them with known truth.

The camera's crop is resampled at sub-pixel positions, so that slow moves do not jump by whole
pixels, which an optical flow would measure as shaking. Grain is added after resampling: an enlarged
picture is otherwise smoother than any camera's, and sharpness scores of it would mean nothing.

A film's truth is known because the edit made it: a shot's clean span holds the frames that show
that shot alone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from curator.footage.pictures import Picture

_GRAIN_MARGIN_PX = 64
_OVERSAMPLING = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Where the camera stands over a picture; every value from 0 to 1 stays inside the picture.

    Args:
        x: Place in the horizontal room that the crop leaves: 0 is the left end, 1 the right end.
        y: Place in the vertical room: 0 is the top end, 1 the bottom end.
        span: Size of the crop as a part of the largest crop of the frame's shape.
    """

    x: float = 0.5
    y: float = 0.5
    span: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.x <= 1 and 0 <= self.y <= 1 and 0 < self.span <= 1):
            raise ValueError(f"x and y must be in [0, 1] and span in (0, 1], not {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sprite:
    """A round piece of a picture that moves over the shot on a straight line.

    Args:
        patch: The piece, of about the size it is shown at; its inscribed ellipse is visible.
        start: Centre on the first frame (x, y), as parts of the frame's width and height.
        end: Centre on the last frame.
    """

    patch: Picture
    start: tuple[float, float]
    end: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShotSpec:
    """One shot.

    Args:
        picture: What is filmed.
        n_frames: Length.
        start: The camera on the first frame.
        end: The camera on the last frame; equal to `start` for a static shot.
        sprites: What moves over the picture.
        grain: Standard deviation of the sensor noise in 8-bit levels; 0 is none, which makes
            the frames of a static shot equal.
        picture_aspect: Width by height of the active picture, with black bars around it; None
            fills the frame.
        seed: Of the noise.
    """

    picture: Picture
    n_frames: int
    start: View = View()
    end: View = View()
    sprites: tuple[Sprite, ...] = ()
    grain: float = 2.0
    picture_aspect: Fraction | None = None
    seed: int = 0


def static(picture: Picture, n_frames: int, *, view: View | None = None, seed: int = 0) -> ShotSpec:
    """A shot whose camera stands still and whose grain does not, like a tripod's."""
    view = view or View()
    return ShotSpec(picture=picture, n_frames=n_frames, start=view, end=view, seed=seed)


def pan(
    picture: Picture,
    n_frames: int,
    *,
    span: float = 0.7,
    start: tuple[float, float] = (0.0, 0.5),
    end: tuple[float, float] = (1.0, 0.5),
    seed: int = 0,
) -> ShotSpec:
    """A shot whose camera goes from place to place at one size; see `View` for the values."""
    return ShotSpec(
        picture=picture,
        n_frames=n_frames,
        start=View(x=start[0], y=start[1], span=span),
        end=View(x=end[0], y=end[1], span=span),
        seed=seed,
    )


def zoom(
    picture: Picture,
    n_frames: int,
    *,
    span: tuple[float, float] = (1.0, 0.6),
    centre: tuple[float, float] = (0.5, 0.5),
    seed: int = 0,
) -> ShotSpec:
    """A shot whose camera goes in (or out, when the second span is the larger)."""
    return ShotSpec(
        picture=picture,
        n_frames=n_frames,
        start=View(x=centre[0], y=centre[1], span=span[0]),
        end=View(x=centre[0], y=centre[1], span=span[1]),
        seed=seed,
    )


def pan_zoom(picture: Picture, n_frames: int, *, start: View, end: View, seed: int = 0) -> ShotSpec:
    """A shot whose camera moves and changes its size at once."""
    return ShotSpec(picture=picture, n_frames=n_frames, start=start, end=end, seed=seed)


def render_shot(
    shot: ShotSpec, *, width_px: int, height_px: int, only: Sequence[int] | None = None
) -> Iterator[Picture]:
    """Films a shot.

    Args:
        shot: What to film.
        width_px: Frame width.
        height_px: Frame height.
        only: Indexes of the frames to film, such as those that a variable frame rate keeps of
            an even clock; None films all.

    Yields:
        `shot.n_frames` frames, or those of `only`; uint8 RGB, height x width x 3.
    """
    box = active_box(shot, width_px=width_px, height_px=height_px)
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
            frame = _pasted(frame, patch, alpha, _line(sprite, t, inner_w, inner_h))
        frame = _with_grain(frame, grain, rng)
        yield _framed(frame, box, width_px, height_px)


def active_box(shot: ShotSpec, *, width_px: int, height_px: int) -> tuple[int, int, int, int]:
    """The active picture inside the frame: left, top, right, bottom; right and bottom excluded."""
    aspect = shot.picture_aspect
    if aspect is None:
        return 0, 0, width_px, height_px
    inner_w = min(width_px, _even(height_px * aspect))
    inner_h = min(height_px, _even(width_px / aspect))
    left, top = (width_px - inner_w) // 4 * 2, (height_px - inner_h) // 4 * 2
    return left, top, left + inner_w, top + inner_h


def _even(value: Fraction) -> int:
    return round(value / 2) * 2


def _crop(picture: Picture, view: View, aspect: float) -> tuple[float, float, float]:
    """Left, top and width of the crop, in picture pixels; its height is width / aspect."""
    height, width = picture.shape[:2]
    crop_w = min(width, height * aspect) * view.span
    return view.x * (width - crop_w), view.y * (height - crop_w / aspect), crop_w


def _prescaled(picture: Picture, factor: float) -> tuple[Picture, float]:
    """The picture as RGBA, enlarged once with a slow, sharp filter, and the factor that did it.

    Each frame is then sampled linearly, which is 2.5 times as fast as bicubic. `_OVERSAMPLING`
    pixels per frame pixel keep that from softening the frames between whole pixels.
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
    """The crop at t in [0, 1]: even motion when its size stays, even zoom when it changes."""
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
    """The patch and its soft elliptical mask, with an empty border for sub-pixel places."""
    height, width = sprite.patch.shape[:2]
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    radius = np.hypot((x + 0.5) / width * 2 - 1, (y + 0.5) / height * 2 - 1)
    edge = 3 / min(width, height)
    alpha = np.clip((1 - radius) / edge, 0, 1).astype(np.float32)
    border = ((1, 1), (1, 1))
    patch = np.pad(sprite.patch.astype(np.float32), (*border, (0, 0)), mode="edge")
    return patch, np.pad(alpha, border)


def _line(sprite: Sprite, t: float, width: int, height: int) -> tuple[float, float]:
    x = sprite.start[0] + (sprite.end[0] - sprite.start[0]) * t
    y = sprite.start[1] + (sprite.end[1] - sprite.start[1]) * t
    return x * width, y * height


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
    """Noise larger than the frame, of which every frame shows another window."""
    if shot.grain == 0:
        return None
    rng = np.random.default_rng(shot.seed + 7919)
    shape = (height + _GRAIN_MARGIN_PX, width + _GRAIN_MARGIN_PX)
    soft = cv2.GaussianBlur(rng.standard_normal(shape).astype(np.float32), (0, 0), 0.7)
    plate = np.rint(soft * (shot.grain / soft.std())).astype(np.int16)
    return np.repeat(plate[:, :, None], 3, axis=2)


def _with_grain(
    frame: Picture, plate: NDArray[np.int16] | None, rng: np.random.Generator
) -> Picture:
    if plate is None:
        return frame
    height, width = frame.shape[:2]
    top, left = (int(v) for v in rng.integers(0, _GRAIN_MARGIN_PX, 2))
    window = plate[top : top + height, left : left + width]
    return cv2.add(frame, window, dtype=cv2.CV_8U).astype(np.uint8, copy=False)


def _framed(
    picture: Picture, box: tuple[int, int, int, int], width_px: int, height_px: int
) -> Picture:
    left, top, right, bottom = box
    if (right - left, bottom - top) == (width_px, height_px):
        return picture
    frame = np.zeros((height_px, width_px, 3), np.uint8)
    frame[top:bottom, left:right] = picture
    return frame


TransitionKind = Literal["cut", "dissolve", "fade"]
Boundary = Literal["cut", "gradual", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """How one shot becomes the next; made by `cut`, `dissolve` or `fade`.

    Args:
        kind: A dissolve overlaps both shots; a fade darkens the first and then brings up the
            second, which share no frame.
        n_frames: Frames on which it is seen; 0 for a cut.
    """

    kind: TransitionKind
    n_frames: int

    def __post_init__(self) -> None:
        if (self.n_frames == 0) != (self.kind == "cut") or self.n_frames < 0:
            raise ValueError(f"a cut has 0 frames and a gradual transition at least 1, not {self}")

    @property
    def taken_from(self) -> tuple[int, int]:
        """Frames taken from the end of the first shot and from the start of the second."""
        if self.kind == "dissolve":
            return self.n_frames, self.n_frames
        return self.n_frames // 2, self.n_frames - self.n_frames // 2


def cut() -> Transition:
    """The next shot's first frame follows the last of this one."""
    return Transition(kind="cut", n_frames=0)


def dissolve(n_frames: int) -> Transition:
    """Both shots overlap on `n_frames` frames, each of which shows some of both."""
    return Transition(kind="dissolve", n_frames=n_frames)


def fade(n_frames: int) -> Transition:
    """The first half of `n_frames` darkens to black and the second half comes up from it."""
    return Transition(kind="fade", n_frames=n_frames)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrueShot:
    """The frames that show one shot alone.

    Args:
        start_frame: The first.
        end_frame: The one after the last.
        transition_in: What stands before it; "none" at the start of the film.
        transition_out: What stands after it; "none" at the end of the film.
    """

    start_frame: int
    end_frame: int
    transition_in: Boundary
    transition_out: Boundary


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A film: shots, and a transition between each two.

    Args:
        shots: In order.
        transitions: One fewer than `shots`.
        width_px: Frame width.
        height_px: Frame height.
    """

    shots: Sequence[ShotSpec]
    transitions: Sequence[Transition]
    width_px: int = 960
    height_px: int = 540

    def __post_init__(self) -> None:
        if len(self.transitions) != len(self.shots) - 1:
            raise ValueError(
                f"{len(self.shots)} shots need {len(self.shots) - 1} transitions, "
                f"not {len(self.transitions)}"
            )
        for number, span in enumerate(self.truth()):
            if span.end_frame <= span.start_frame:
                raise ValueError(f"shot {number} is all transition: it has no frame of its own")

    @property
    def n_frames(self) -> int:
        """Length of the film; a dissolve's frames count once."""
        overlaps = sum(t.n_frames for t in self.transitions if t.kind == "dissolve")
        return sum(shot.n_frames for shot in self.shots) - overlaps

    def truth(self) -> tuple[TrueShot, ...]:
        """The clean span of each shot, in film frames."""
        spans = []
        at = 0
        for i, shot in enumerate(self.shots):
            before = self.transitions[i - 1] if i > 0 else None
            after = self.transitions[i] if i < len(self.transitions) else None
            head = before.taken_from[1] if before else 0
            tail = after.taken_from[0] if after else 0
            end = at + shot.n_frames - head - tail
            spans.append(
                TrueShot(
                    start_frame=at,
                    end_frame=end,
                    transition_in=_boundary(before),
                    transition_out=_boundary(after),
                )
            )
            at = end + (after.n_frames if after else 0)
        return tuple(spans)

    def frames(self) -> Iterator[Picture]:
        """Renders the film.

        Yields:
            `n_frames` frames, uint8 RGB, height x width x 3.
        """
        for i, span in enumerate(self.truth()):
            if i == 0:
                shot = self._open(0)
            yield from islice(shot, span.end_frame - span.start_frame)
            if i < len(self.transitions):
                following = self._open(i + 1)
                yield from _mixed(self.transitions[i], shot, following)
                shot = following

    def _open(self, index: int) -> Iterator[Picture]:
        return render_shot(self.shots[index], width_px=self.width_px, height_px=self.height_px)


def _boundary(transition: Transition | None) -> Boundary:
    if transition is None:
        return "none"
    return "cut" if transition.kind == "cut" else "gradual"


def _mixed(
    transition: Transition, first: Iterator[Picture], second: Iterator[Picture]
) -> Iterator[Picture]:
    """The frames of a transition, none of which equals a frame of either shot."""
    n = transition.n_frames
    if transition.kind == "dissolve":
        for i in range(n):
            weight = (i + 1) / (n + 1)
            yield _blend(next(first), next(second), weight)
        return
    out, back = transition.taken_from
    for i in range(out):
        frame = next(first)
        yield _blend(frame, np.zeros_like(frame), (i + 1) / out)
    for i in range(back):
        frame = next(second)
        yield _blend(np.zeros_like(frame), frame, i / back)


def _blend(a: Picture, b: Picture, weight: float) -> Picture:
    return cv2.addWeighted(a, 1 - weight, b, weight, 0).astype(np.uint8, copy=False)
