"""Finds black borders around the picture: in each frame, and for a clip from all its samples.

A border is a nearly black and nearly constant strip along a side. The strip ends in a straight
line, where most of the picture begins. In a dark scene without such a line, a sample gives no
evidence for this side; the samples of the clip decide together. Text and logos do not prevent
detection if most of the strip is constant.

Shape letters: N lines that are read, L lines from a side inwards, A places along a line.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator.measures.clip_view import ClipView
from curator.measures.measure_contract import ScoreSpec
from curator.records.cuts import Crop

_DEEPEST = 0.48  # largest border, as a share of the picture
_BLACKEST = 0.13
"""Highest level of a black border, as a share of the range from black to white. Analog captures and
faulty ranges raise the level."""
_STEP = 8  # distance of the columns (rows) that are read
EVERY = slice(_STEP // 2, None, _STEP)  # the rows and columns that are read
_TOLERANCE = 2.0  # levels by which compression varies a border without noise
_NOISIEST = 14.0  # largest tolerance; a strip that varies more is part of the picture
_MOST = 0.55  # smallest constant share of the outermost line
_LEAST = 0.35  # smallest constant share of each line of a border; the largest subtitles leave more
_TYPICAL = 0.93  # constant share of lines without text, which are at least a third of a border
_DROP = 0.3  # smallest fall of the constant share where a border ends; glyphs cause less
MIN_SHARE = 0.005  # smallest border, as a share of the side: one or two lines are not worth a crop
AGREEMENT = 0.75
"""Smallest share of samples that agree on a border, out of these samples and the samples that show
no border or a larger border."""
_WITNESSES = 0.15  # smallest share of all samples that agree: dark samples can show false lines
_WITHIN_PX = 2.5


Box = tuple[int, int, int, int]  # top, bottom, left and right of a part of a picture, half-open


class Sides(NamedTuple):
    """Borders as shares of width or height; NaN for a side without evidence."""

    left: float
    top: float
    right: float
    bottom: float


def find_borders(luma_HW: NDArray[np.uint8], *, black: int = 0, white: int = 255) -> Sides:
    """Returns the borders of a picture; reads every eighth row and column."""
    return borders_of(luma_HW[EVERY], luma_HW[:, EVERY].T, black=black, white=white)


def borders_of(
    rows_NA: NDArray[np.uint8], columns_NA: NDArray[np.uint8], *, black: int = 0, white: int = 255
) -> Sides:
    """Does the same as `find_borders`, from rows and columns 4, 12, 20, ... of a picture."""
    width, height = rows_NA.shape[1], columns_NA.shape[1]
    if min(height, width) < 4 * _STEP:
        return Sides(0.0, 0.0, 0.0, 0.0)
    span = white - black
    left, right = _both(rows_NA.T, black, span)
    top, bottom = _both(_inside(columns_NA, left, right, width).T, black, span)
    if (top or bottom) and (left is None or right is None):
        left, right = _both(_inside(rows_NA, top, bottom, height).T, black, span)
    depths = ((left, width), (top, height), (right, width), (bottom, height))
    return Sides(*(float("nan") if depth is None else depth / size for depth, size in depths))


def _inside(
    lines_NA: NDArray[np.uint8], before: int | None, behind: int | None, size: int
) -> NDArray[np.uint8]:
    """Returns the lines out of 4, 12, 20, ... that are between the borders, at least one."""
    half = _STEP // 2 - 1
    first, end = ((before or 0) + half) // _STEP, (size - (behind or 0) + half) // _STEP
    return lines_NA[first : max(end, first + 1)]


def content_of(luma_HW: NDArray[np.uint8], sides: Sides) -> NDArray[np.uint8]:
    """Returns a view of the picture without its borders, at least one pixel each way."""
    top, bottom, left, right = inside(luma_HW.shape[0], luma_HW.shape[1], sides)
    return luma_HW[top:bottom, left:right]


def inside(height: int, width: int, sides: Sides) -> Box:
    """Returns the part of a picture that `content_of` keeps, from the picture's size."""
    left, right = _pixels(sides.left, width), _pixels(sides.right, width)
    top, bottom = _pixels(sides.top, height), _pixels(sides.bottom, height)
    return top, max(top + 1, height - bottom), left, max(left + 1, width - right)


def _pixels(share: float, size: int) -> int:
    """Returns the size of a border, with two more pixels for the blur along it."""
    return 0 if not share > 0 else int(np.ceil(share * size)) + 2


def _both(lines_LA: NDArray[np.uint8], black: int, span: int) -> tuple[int | None, int | None]:
    return _depth(lines_LA, black, span), _depth(lines_LA[::-1], black, span)


def _depth(lines_LA: NDArray[np.uint8], black: int, span: int) -> int | None:
    """Returns the lines of the border at the first line; 0 for none, None without evidence."""
    outer = lines_LA[0].astype(np.float32)
    level = float(np.median(outer))
    if level > black + _BLACKEST * span:
        return 0
    # The standard deviation of a normal distribution is 1.48 median absolute deviations.
    sigma = 1.48 * float(np.median(np.abs(lines_LA[:4].astype(np.float32) - level)))
    tolerance = _TOLERANCE + 2.5 * sigma
    if tolerance > _NOISIEST or float(np.mean(np.abs(outer - level) <= tolerance)) < _MOST:
        return 0
    n_lines = lines_LA.shape[0]
    deep = lines_LA[: int(n_lines * _DEEPEST) + 1]
    gap = max(2, round(n_lines / 360))
    excess_LA = np.abs(deep.astype(np.int16) - round(level))
    share_L = np.mean(excess_LA <= tolerance, axis=1)
    place = _fall(share_L, gap)
    return None if place is None else _refined(excess_LA, place, gap, tolerance)


def _fall(share_L: NDArray[np.float64], gap: int) -> int | None:
    """Returns the first line after the border, where the constant share falls most."""
    # A border ends at the latest at a line with a constant share below `_LEAST`.
    ends = np.flatnonzero(share_L < _LEAST)
    limit = min(int(ends[0]) + 1 if len(ends) else len(share_L), len(share_L) - gap)
    if limit < 2:
        return None
    fall_L = share_L[: limit - 1] - share_L[gap : gap + limit - 1]
    best = int(np.argmax(fall_L))
    if fall_L[best] < _DROP or float(np.quantile(share_L[: best + 1], 0.65)) < _TYPICAL:
        return None
    return best + 1


def _refined(excess_LA: NDArray[np.int16], place: int, gap: int, tolerance: float) -> int:
    """Returns the line where the picture has half its strength: blur and ringing widen the edge."""
    first, last = max(0, place - gap), min(len(excess_LA), place + 3 * gap)
    inside = excess_LA[min(place + gap, last - 1) : last].mean(axis=0)
    bright_A = inside > 2 * tolerance
    if not bright_A.any():
        return place
    strength = excess_LA[first:last][:, bright_A].mean(axis=1)
    above = np.flatnonzero(strength >= 0.5 * float(inside[bright_A].mean()))
    return first + int(above[0]) if len(above) else place


def crop_of(clip: ClipView) -> Crop | None:
    """Returns the picture inside the borders of a clip, upright; None without borders."""
    track = clip.track
    # Coded sides that are left, top, right and bottom after rotation and mirroring.
    names = np.roll(Sides._fields, track.rotation_deg // 90)
    if track.is_mirrored:
        names[[0, 2]] = names[[2, 0]]
    sizes = (track.width, track.height, track.width, track.height)
    borders = [_border(clip, name, size) * size for name, size in zip(names, sizes, strict=True)]
    if not any(borders):
        return None
    # Rounds up to even numbers; 0.01 px allows for the rounding of shares to 32 bits.
    left, top, right, bottom = (int(np.ceil((border - 0.01) / 2)) * 2 for border in borders)
    width = (track.width - left - right) // 2 * 2
    height = (track.height - top - bottom) // 2 * 2
    return Crop(x=left, y=top, width=max(2, width), height=max(2, height))


def content_area(clip: ClipView) -> float | None:
    """Returns the share of the picture inside the borders; None for a clip without samples."""
    if not clip.samples.any():
        return None
    crop = crop_of(clip)
    if crop is None:
        return 1.0
    return crop.width * crop.height / (clip.track.width * clip.track.height)


def _border(clip: ClipView, side: str, size: int) -> float:
    """Returns the border of a coded side on which the samples agree, as a share; 0 for none."""
    shares = clip.signal(f"border_{side}")
    n_samples = int(clip.samples.sum())
    if not len(shares):
        return 0.0
    # The largest group of values that are near one value.
    near = np.abs(shares[:, None] - shares[None, :]) <= _WITHIN_PX / size
    agreeing = shares[near[int(np.argmax(near.sum(axis=1)))]]
    border = float(np.median(agreeing))
    # A smaller border does not contradict: it ends at a line of text within this border.
    contrary = np.count_nonzero((shares < MIN_SHARE) | (shares > border + _WITHIN_PX / size))
    witnesses = max(min(2, n_samples), _WITNESSES * n_samples, len(shares) / 2)
    needed = max(witnesses, AGREEMENT * (len(agreeing) + contrary))
    return border if border >= MIN_SHARE and len(agreeing) >= needed else 0.0


SCORES = {
    "content_area": ScoreSpec(
        unit="0 to 1",
        range="0 to 1 no borders",
        meaning="share of the picture inside black borders",
        low="borders_too_large",
        high="borders_too_small",
        of=content_area,
    )
}
