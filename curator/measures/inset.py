"""Detects a picture in the picture, such as a webcam in a game or a reporter's box.

The detector searches for a rectangle with motion inside. The sides are straight lines that stay in
one place through the clip, are sharper than their surroundings, and end at the corners. If the
surroundings stand still, any four edges of the scene could be such sides. Then the sides must have
no gaps and be straight to a pixel or two; the sides of a screen in a room seldom are.

A frame drawn over a scene, such as the display of a game, has such sides too, but the scene goes on
behind it. So the motion must also change across the sides, more than between other cells, and the
inside must move more or less than the rest, at least for a time.

Shape letters: T overlay samples, A pieces along a line, P places, C cells, N rectangles.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.measures.clip_view import ClipView
from curator.measures.look_maps import (
    LINE_ACROSS,
    LINE_ALONG,
    MOVED_SIDE,
    lasting_lines,
    lines_of,
    moved_of,
)
from curator.measures.measure_contract import OF_TIME, ScoreSpec

_MIN_LOOKS = 3
_MAX_LOOKS = 60
_MOVES = 3.0  # smallest mean motion of the most active cell of a clip, in levels; grain has less
_ACTIVE = 0.75  # smallest motion of an active cell in one overlay sample, in levels
_SMALLEST, _LARGEST = 0.085, 0.56  # sides of insets, as shares of width and height
_SHAPES = (0.45, 2.6)  # smallest and largest width / height of insets, in pixels
_N_LINES = 24  # largest number of lines per direction that are examined
_BESIDE = (5, 6, 7, 8)  # distances from a line to its neighbours, in places
_MARGIN = 0.15  # share of a rectangle at each side that is outside its core
_N_POINTS = 12  # points of a side where motion is read

_WEIGHTS = {
    "low": 7.3,
    "stands_out": 3.6,
    "goes_on": -4.2,
    "core": 5.5,
    "near": -9.3,
    "real": 1.2,
    "exact": 10.4,
    "size": 3.9,
}
_FULL_AT = {"core": 0.6, "near": 0.2, "size": 0.3}  # values at which these features are 1
_BIAS = -26.7
"""Fitted on generated insets, seeds 1 to 7 of the half `tune` (results/overlay.md). The bias is
lowered to give five false insets in 567 clips without a screen in the scene."""
_ENOUGH_LOOKS = 6
_PER_MISSING_LOOK = 0.35
"""Reduction of log odds per missing overlay sample, because in few samples lines last by chance.
Three samples then give as many false rectangles as six."""
_NO = -99.0
_LEVEL = 0.2  # log2 units added to differences, so that differences of still parts have no weight
_REACH = 1.25  # distance of the cells compared across a side, in steps of `_points`
_MIN_JUMP = (
    0.6  # smallest difference of motion across the sides from the mean between cells, in octaves
)
_MIN_APART = 0.25  # smallest root mean square of inside less outside over time, in octaves

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Rectangles:
    """Rectangles that may be insets. Only `uneven` uses sides on the picture's border.

    Attributes:
        boxes: float64 [N, 4]: x0, y0, x1, y1 as shares. A side at 0 or 1 is on the border.
        features: Features of the rectangles, float64 [N], by name:

            low: share of overlay samples and pieces with the line, of the weakest side;
            stands_out: smallest excess of a side's share over its neighbours on the better side;
            exact: smallest part of a side's share in one place, without neighbouring places;
            goes_on: share of the sides' lines just beyond the corners, mean;
            outside: share of overlay samples with motion just outside, mean over points and sides;
            core: share of overlay samples with motion, mean over the cells of the core;
            uneven: decrease of motion towards a side on the picture's border, the largest;
            size: geometric mean of width and height, as a share;
            real: number of sides that are not on the picture's border;
            near: distance to the nearest border of the picture, as a share.
    """

    boxes: Floats
    features: dict[str, Floats]


def _picture_in_picture(clip: ClipView) -> float | None:
    track, looks = clip.track, clip.paired_looks(_MAX_LOOKS)
    if len(looks) < _MIN_LOOKS:
        return None
    moved = moved_of(track.look_moved[looks])
    if moved.mean(0).max() < _MOVES:
        return None
    candidates = rectangles(lines_of(track.look_standing[looks]), moved, clip.size)
    if candidates is None:
        return 0.0
    # No rectangle behind the best one is asked: frames drawn over a scene have several.
    best = int((odds := inset_odds(candidates.features)).argmax())
    box = candidates.boxes[best]
    if odds[best] < _PER_MISSING_LOOK * max(0, _ENOUGH_LOOKS - len(looks)):
        return 0.0
    if not has_own_motion(np.log2(1 + moved.astype(np.float64)), box):
        return 0.0
    x0, y0, x1, y1 = box
    return float((x1 - x0) * (y1 - y0))


def has_own_motion(level_TCC: Floats, box: Floats) -> bool:
    """Returns whether the motion inside a rectangle is another than around it.

    `level_TCC` is the motion of each cell and overlay sample, as log2(1 + levels), and `box` a row
    of `Rectangles.boxes`.
    """
    on_border = (box <= 0) | (box >= 1)
    across = [
        np.abs(_cells_at(level, points + _REACH * step) - _cells_at(level, points - _REACH * step))
        for side, (points, step) in zip((0, 2, 1, 3), _points(box[None]), strict=True)
        if not on_border[side]
        for level in level_TCC
    ]
    between_cells = [
        np.abs(level_TCC[:, :, 2:] - level_TCC[:, :, :-2]).mean(),
        np.abs(level_TCC[:, 2:] - level_TCC[:, :-2]).mean(),
    ]
    jump = np.log2((np.mean(across) + _LEVEL) / (np.mean(between_cells) + _LEVEL))
    x0, y0, x1, y1 = (box * MOVED_SIDE).astype(int)
    inside = level_TCC[:, y0 + 1 : max(y1, y0 + 2), x0 + 1 : max(x1, x0 + 2)]
    rest = level_TCC.sum((1, 2)) - inside.sum((1, 2))
    apart = inside.mean((1, 2)) - rest / (level_TCC[0].size - inside[0].size)
    return bool(jump >= _MIN_JUMP and np.sqrt((apart**2).mean()) >= _MIN_APART)


def rectangles(
    lines_T2AP: NDArray[np.bool_], moved_TCC: NDArray[np.float32], size: tuple[int, int]
) -> Rectangles | None:
    """Returns rectangles of standing lines with their features; None without such lines.

    `lines_T2AP` is from `lines_of`, `moved_TCC` from `moved_of`. `size` is width and height of the
    picture, in pixels.
    """
    lasting = lasting_lines(lines_T2AP)
    beside = np.stack([_shifted(lasting, d) for d in _BESIDE]).mean(0)
    beyond = np.stack([_shifted(lasting, -d) for d in _BESIDE]).mean(0)
    excess = lasting - np.minimum(beside, beyond)
    places = [np.concatenate([[0], _places(plane), [LINE_ACROSS]]) for plane in excess]
    (x0, x1), (y0, y1) = _pairs(places[0]), _pairs(places[1])
    if not len(x0) or not len(y0):
        return None
    sums = np.pad(lasting.cumsum(1), ((0, 0), (1, 0), (0, 0)))
    exact = np.pad(lines_T2AP.mean(0).cumsum(1), ((0, 0), (1, 0), (0, 0)))
    grid = np.meshgrid(np.arange(len(x0)), np.arange(len(y0)), indexing="ij")
    across, down = (index.ravel() for index in grid)
    shape = (x1 - x0)[across] * size[0] / ((y1 - y0)[down] * size[1])
    fits = (shape >= _SHAPES[0]) & (shape <= _SHAPES[1])
    across, down = across[fits], down[fits]
    sides = _sides(x0[across], y0[down], x1[across], y1[down])
    cover = np.stack([_mean(sums, *side) for side in sides])
    real = np.stack([(at > 0) & (at < LINE_ACROSS) for _, at, _, _ in sides])
    low = np.where(real, cover, 1).min(0)
    good = (low >= 0.6) & (real.sum(0) >= 2)
    if not good.any():
        return None
    sides = [(plane, at[good], lo[good], hi[good]) for plane, at, lo, hi in sides]
    boxes = np.stack([x0[across], y0[down], x1[across], y1[down]], 1)[good] / LINE_ACROSS
    return Rectangles(
        boxes, _features(sums, exact, sides, cover[:, good], real[:, good], boxes, moved_TCC)
    )


def inset_odds(features: dict[str, Floats]) -> Floats:
    """Returns the log odds that a rectangle is an inset; `_NO` for impossible rectangles."""
    f = features
    # If the surroundings stand still, a picture on a wall is almost as straight.
    at_rest = (f["low"] >= 0.8) & (f["exact"] >= 0.85)
    at_rest &= (f["uneven"] < 0.9) | (f["low"] > 0.97)
    can_be = (f["stands_out"] >= 0.36) & (f["core"] >= 0.15) & (at_rest | (f["outside"] >= 0.1))
    terms = f | {name: np.minimum(f[name] / full, 1) for name, full in _FULL_AT.items()}
    odds = _BIAS + np.stack([weight * terms[name] for name, weight in _WEIGHTS.items()]).sum(0)
    return np.where(can_be, odds, _NO)


def _shifted(values: Floats, by: int) -> Floats:
    """Returns the values moved by some places, 0 beyond the picture."""
    moved = np.zeros_like(values)
    if by > 0:
        moved[..., by:] = values[..., :-by]
    else:
        moved[..., :by] = values[..., -by:]
    return moved


def _places(excess_AP: Floats) -> Places:
    """Returns the places with the longest lines; a line may have gaps of one piece."""
    on = excess_AP >= 0.5
    on[1:-1] |= on[:-2] & on[2:]
    length = np.zeros(LINE_ACROSS)
    longest = np.zeros(LINE_ACROSS)
    for row, values in zip(on, excess_AP, strict=True):
        length = np.where(row, length + values, 0)
        longest = np.maximum(longest, length)
    # Among equal places, the last place is the peak.
    longest += 1e-6 * np.arange(LINE_ACROSS)
    padded = np.pad(longest, 2)
    peaks = longest >= np.lib.stride_tricks.sliding_window_view(padded, 5).max(1)
    longest[:3] = longest[-3:] = 0
    longest = np.where(peaks, longest, 0)
    best = np.argsort(-longest, kind="stable")[:_N_LINES]
    return np.sort(best[longest[best] >= 0.06 * LINE_ALONG])


def _pairs(places: Places) -> tuple[Places, Places]:
    first, last = np.triu_indices(len(places), 1)
    length = (places[last] - places[first]) / LINE_ACROSS
    fits = (length >= _SMALLEST) & (length <= _LARGEST)
    return places[first[fits]], places[last[fits]]


Side = tuple[int, Places, Places, Places]  # plane, places, begin and end in pieces


def _sides(x0: Places, y0: Places, x1: Places, y1: Places) -> list[Side]:
    rows, columns = _pieces(y0, y1), _pieces(x0, x1)
    return [(0, x0, *rows), (0, x1, *rows), (1, y0, *columns), (1, y1, *columns)]


def _pieces(begin: Places, end: Places) -> tuple[Places, Places]:
    """Returns the pieces between two places; a fifth of the first and last may be outside."""
    first = np.ceil(begin * LINE_ALONG / LINE_ACROSS - 0.2).astype(np.intp)
    last = np.floor(end * LINE_ALONG / LINE_ACROSS + 0.2).astype(np.intp)
    return first, np.maximum(last, first + 1)


def _mean(sums: Floats, plane: int, at: Places, lo: Places, hi: Places) -> Floats:
    """Returns the mean of summed values at places, over pieces [lo, hi) inside the picture."""
    lo, hi = np.clip(lo, 0, LINE_ALONG), np.clip(hi, 0, LINE_ALONG)
    at = np.clip(at, 0, LINE_ACROSS - 1)
    total = sums[plane, hi, at] - sums[plane, lo, at]
    return np.asarray(total / np.maximum(hi - lo, 1), np.float64)


def _features(
    sums: Floats,
    exact: Floats,
    sides: list[Side],
    cover: Floats,
    real: NDArray[np.bool_],
    boxes: Floats,
    moved_TCC: NDArray[np.float32],
) -> dict[str, Floats]:
    """Returns the features of `Rectangles`.

    `sums` has the shares of `lasting_lines`, cumulated along lines, [2, A + 1, P]; `exact` has the
    same without lines in neighbouring places. `cover` [4, N] is the mean share of each side, and
    `real` [4, N] says which sides are not on the picture's border.
    """
    moved = moved_TCC.mean(0)
    often, level = (moved_TCC >= _ACTIVE).mean(0), np.log2(1 + moved).astype(np.float64)
    core, n_core = _inside(often, boxes, _MARGIN)
    core_level = _inside(level, boxes, _MARGIN)[0] / n_core
    beside, ends, outside, still, one_place = [], [], [], [], []
    for (plane, at, lo, hi), inwards, (points, step) in zip(
        sides, (1, -1, 1, -1), _points(boxes), strict=True
    ):
        near = [
            np.mean([_mean(sums, plane, at + sign * d, lo, hi) for d in _BESIDE], 0)
            for sign in (inwards, -inwards)
        ]
        beside.append(np.minimum(*near))
        before = _mean(sums, plane, at, lo - 4, lo - 1)
        behind = _mean(sums, plane, at, hi + 1, hi + 4)
        both = np.where(hi > LINE_ALONG - 2, before, (before + behind) / 2)
        ends.append(np.where(lo < 2, behind, both))
        one_place.append(np.max([_mean(exact, plane, at + d, lo, hi) for d in (-1, 0, 1)], 0))
        outside.append(_cells_at(often, points - step).mean(1))
        border = _cells_at(level, points + step / 2).mean(1)
        still.append(np.clip(1 - border / np.maximum(core_level, 0.1), 0, 1))
    n_real = real.sum(0).astype(np.float64)

    def mean(values: list[Floats]) -> Floats:
        return np.asarray(np.where(real, np.stack(values), 0).sum(0) / n_real, np.float64)

    return {
        "low": np.where(real, cover, 1).min(0),
        "stands_out": np.where(real, cover - np.stack(beside), 1).min(0),
        "exact": np.where(real, np.stack(one_place) / np.maximum(cover, 0.1), 1).min(0),
        "goes_on": mean(ends),
        "outside": mean(outside),
        "core": core / n_core,
        "size": np.sqrt(np.prod(boxes[:, 2:] - boxes[:, :2], 1)),
        "uneven": np.where(real, 0, np.stack(still)).max(0),
        "real": n_real,
        "near": np.minimum(boxes[:, :2].min(1), 1 - boxes[:, 2:].max(1)),
    }


def _points(boxes: Floats) -> list[tuple[Floats, Floats]]:
    """Returns points along each side, [N, points, 2], and the step from them to the inner cell.

    The order of the sides is that of `_sides`: left, right, top, bottom.
    """
    t = (np.arange(_N_POINTS) + 0.5) / _N_POINTS
    x0, y0, x1, y1 = (column[:, None] for column in boxes.T)
    x, y = x0 + (x1 - x0) * t, y0 + (y1 - y0) * t
    step = 0.8 / MOVED_SIDE
    return [
        (np.stack([x0 + 0 * y, y], 2), np.array([step, 0])),
        (np.stack([x1 + 0 * y, y], 2), np.array([-step, 0])),
        (np.stack([x, y0 + 0 * x], 2), np.array([0, step])),
        (np.stack([x, y1 + 0 * x], 2), np.array([0, -step])),
    ]


def _cells_at(cells: NDArray[Any], points: Floats) -> NDArray[Any]:
    index = np.clip((points * MOVED_SIDE).astype(int), 0, MOVED_SIDE - 1)
    return np.asarray(cells[index[..., 1], index[..., 0]])


def _inside(cells: NDArray[Any], boxes: Floats, margin: float) -> tuple[Floats, Floats]:
    """Returns sum and number of the cells inside boxes, without a margin."""
    sums = np.pad(cells.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    sides = boxes[:, 2:] - boxes[:, :2]
    begin = np.ceil((boxes[:, :2] + margin * sides) * MOVED_SIDE - 0.2).astype(int)
    end = np.floor((boxes[:, 2:] - margin * sides) * MOVED_SIDE + 0.2).astype(int)
    end = np.minimum(np.maximum(end, begin + 1), MOVED_SIDE)
    (x0, y0), (x1, y1) = begin.T, end.T
    total = sums[y1, x1] - sums[y0, x1] - sums[y1, x0] + sums[y0, x0]
    return np.asarray(total, np.float64), np.maximum((x1 - x0) * (y1 - y0), 1).astype(np.float64)


SCORES = {
    "picture_in_picture": ScoreSpec(
        unit="0 to 1",
        range="0 without to 1; null with fewer than 3 overlay samples, and if nothing moves",
        meaning="share of the picture that an inset covers: a rectangle with sides that stay in "
        "place and with its own motion",
        outside="picture_in_picture",
        of=_picture_in_picture,
        media=OF_TIME,
    )
}
