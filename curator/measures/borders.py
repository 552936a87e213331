"""Black borders around the picture: where a frame shows them, and what a clip's samples agree on.

A border is a strip along a side that is nearly black and nearly constant, and that ends in a
straight line at which most of the picture begins. A dark scene is dark without such a line; there a
sample says nothing, and the samples of a clip together decide. Text and logos may stand in a border
as long as most of it stays constant.

Shape letters: L lines from a side inwards, A across.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator.measures.clip_view import ClipView
from curator.measures.measure_contract import ScoreSpec
from curator.records.cuts import Crop

_DEEPEST = 0.48  # share of the picture that one border takes at most
_BLACKEST = 0.13
"""Level up to which a border is black, of the range from black to white: analog captures and faulty
ranges lift it."""
_STEP = 8  # every so many columns (rows) are looked at
EVERY = slice(_STEP // 2, None, _STEP)  # the rows and columns that are looked at
_TOLERANCE = 2.0  # levels by which a border without noise varies, from compression
_NOISIEST = 14.0  # largest tolerance; a strip that varies more is picture
_MOST = 0.55  # share of the outermost line that must be constant
_LEAST = 0.35  # share of any line of a border that is constant: the largest subtitles leave more
_TYPICAL = 0.93  # share constant of the lines without text, a third of a border or more
_DROP = 0.3  # fall of the constant share where a border ends: glyphs cover less of a line
MIN_SHARE = 0.005  # smallest border, of the side: a line or two is not worth an encoding
AGREEMENT = 0.75
"""Share of the samples which must agree on where a border ends, of those that do and those in which
there is none or a larger one."""
_WITNESSES = 0.15  # share of all samples that must agree: in the dark a few may see false lines
_WITHIN_PX = 2.5


Box = tuple[int, int, int, int]  # top, bottom, left and right of a part of a picture, half-open


class Sides(NamedTuple):
    """Shares of width or height at the sides of a picture; NaN for a side that says nothing."""

    left: float
    top: float
    right: float
    bottom: float


def find_borders(luma_HW: NDArray[np.uint8], *, black: int = 0, white: int = 255) -> Sides:
    """Where borders end; of the picture, every eighth row and column is read."""
    return borders_of(luma_HW[EVERY], luma_HW[:, EVERY].T, black=black, white=white)


def borders_of(
    rows_NA: NDArray[np.uint8], columns_NA: NDArray[np.uint8], *, black: int = 0, white: int = 255
) -> Sides:
    """As `find_borders`, of rows 4, 12, 20, ... of a picture and its columns 4, 12, 20, ..."""
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
    """Those of the lines 4, 12, 20, ... of a side that lie between its borders, at least one."""
    half = _STEP // 2 - 1
    first, end = ((before or 0) + half) // _STEP, (size - (behind or 0) + half) // _STEP
    return lines_NA[first : max(end, first + 1)]


def content_of(luma_HW: NDArray[np.uint8], sides: Sides) -> NDArray[np.uint8]:
    """The picture without its borders, a view; at least a twentieth of each side stays."""
    top, bottom, left, right = inside(luma_HW.shape[0], luma_HW.shape[1], sides)
    return luma_HW[top:bottom, left:right]


def inside(height: int, width: int, sides: Sides) -> Box:
    """The part of a picture of some size that `content_of` keeps."""
    left, right = _pixels(sides.left, width), _pixels(sides.right, width)
    top, bottom = _pixels(sides.top, height), _pixels(sides.bottom, height)
    return top, max(top + 1, height - bottom), left, max(left + 1, width - right)


def _pixels(share: float, size: int) -> int:
    """A border and two pixels of the blur along it."""
    return 0 if not share > 0 else int(np.ceil(share * size)) + 2


def _both(lines_LA: NDArray[np.uint8], black: int, span: int) -> tuple[int | None, int | None]:
    return _depth(lines_LA, black, span), _depth(lines_LA[::-1], black, span)


def _depth(lines_LA: NDArray[np.uint8], black: int, span: int) -> int | None:
    """Lines of the border along the first line; 0 for none, None where nothing says it."""
    outer = lines_LA[0].astype(np.float32)
    level = float(np.median(outer))
    if level > black + _BLACKEST * span:
        return 0
    # 1.48: median absolute deviation of a normal distribution to its standard deviation.
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
    """First line after the border, by the largest fall of the constant share."""
    # A border ends at the latest where a line has less left than large subtitles leave.
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
    """The line at which what is not black has half of its strength: blur and ringing spread it."""
    first, last = max(0, place - gap), min(len(excess_LA), place + 3 * gap)
    inside = excess_LA[min(place + gap, last - 1) : last].mean(axis=0)
    bright_A = inside > 2 * tolerance
    if not bright_A.any():
        return place
    strength = excess_LA[first:last][:, bright_A].mean(axis=1)
    above = np.flatnonzero(strength >= 0.5 * float(inside[bright_A].mean()))
    return first + int(above[0]) if len(above) else place


def crop_of(clip: ClipView) -> Crop | None:
    """The picture inside the borders of a clip; None where there are none to be cut away."""
    track = clip.track
    # Sides as coded that are left, top, right and bottom after a clockwise rotation.
    names = np.roll(Sides._fields, track.rotation_deg // 90)
    sizes = (track.width, track.height, track.width, track.height)
    borders = [_border(clip, name, size) * size for name, size in zip(names, sizes, strict=True)]
    if not any(borders):
        return None
    # The next even number, but for the error of storing a share in 32 bits.
    left, top, right, bottom = (int(np.ceil((border - 0.01) / 2)) * 2 for border in borders)
    width = (track.width - left - right) // 2 * 2
    height = (track.height - top - bottom) // 2 * 2
    return Crop(x=left, y=top, width=max(2, width), height=max(2, height))


def content_area(clip: ClipView) -> float | None:
    """Share of the picture inside the borders; None for a clip without samples."""
    if not clip.samples.any():
        return None
    crop = crop_of(clip)
    if crop is None:
        return 1.0
    return crop.width * crop.height / (clip.track.width * clip.track.height)


def _border(clip: ClipView, side: str, size: int) -> float:
    """The border of a side (as coded) that the samples agree on, as a share; 0 for none."""
    shares = clip.signal(f"border_{side}")
    n_samples = int(clip.samples.sum())
    if not len(shares):
        return 0.0
    # The values near the one that has most of them near it.
    near = np.abs(shares[:, None] - shares[None, :]) <= _WITHIN_PX / size
    agreeing = shares[near[int(np.argmax(near.sum(axis=1)))]]
    border = float(np.median(agreeing))
    # A smaller border that is not none is a line of text within this one.
    contrary = np.count_nonzero((shares < MIN_SHARE) | (shares > border + _WITHIN_PX / size))
    witnesses = max(min(2, n_samples), _WITNESSES * n_samples, len(shares) / 2)
    needed = max(witnesses, AGREEMENT * (len(agreeing) + contrary))
    return border if border >= MIN_SHARE and len(agreeing) >= needed else 0.0


SCORES = {
    "content_area": ScoreSpec(
        unit="0 to 1",
        range="0 to 1 no borders",
        meaning="share of the picture that lies inside black borders",
        low="borders_too_large",
        high="borders_too_small",
        of=content_area,
    )
}
