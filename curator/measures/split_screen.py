"""Detects a divided picture: two or more recordings next to or above each other.

Standing scenes also have long straight edges: bricks, a shelf, the frame of a door. So a line
counts only if both of its sides move, and if their motion differs more than the motion of
neighbours elsewhere in the picture. Each piece of the line and each overlay sample is compared. If
a camera pans along an edge, or looks through a window with a bar, both sides move alike, and one
motion of the camera explains the whole picture.

Shape letters: T overlay samples, A pieces along a line, P places, C cells, N lines.
"""

import numpy as np
from numpy.typing import NDArray

from curator.measures.clip_view import ClipView
from curator.measures.look_maps import LINE_ACROSS, MOVED_SIDE, lasting_lines, lines_of, moved_of
from curator.measures.measure_contract import OF_TIME, ScoreSpec

_MIN_LOOKS = 4
_MAX_LOOKS = 60
_MARGIN = 0.15  # share at each end without dividing lines: bars and tickers have edges there
_N_LINES = 12  # largest number of lines per direction that are examined
_MIN_COVER = 0.6  # smallest share of overlay samples and pieces with the line
_MIN_EXACT = 0.7  # smallest ratio of the cover in one place to the cover with neighbouring places
_MOVES = 2.0  # smallest log2(1 + levels) of a moving cell: 3 levels, above noise and grain
_MIN_MOVING = 0.02  # smallest share of moving cells on each side, over all overlay samples
_WIDE = 2  # cells that are compared on each side of a line; as many between are skipped
_LEVEL = 0.2  # log2 units added to differences, so that differences of still parts have no weight
_FULL_APART = 0.5  # deviation over time, in log2 units, at which `apart` is 1

_WEIGHTS = {"cover": 7.1, "own": 2.0, "together": -4.4, "jump": 2.2, "apart": 2.9}
_BIAS = -11.2
"""Fitted on the half `tune` (results/split_screens.md), where a false detection costs as much as
three misses. The bias is lowered by 0.5, so that none of the 222 clips there is false."""
_ENOUGH_LOOKS = 5
_PER_MISSING_LOOK = 0.5
"""Reduction of the log odds per overlay sample below `_ENOUGH_LOOKS`: with few samples, both sides
may differ by chance. With four samples, 2 of 222 clips are false."""

Floats = NDArray[np.float64]


def _split_screen(clip: ClipView) -> float | None:
    looks = clip.paired_looks(_MAX_LOOKS)
    if len(looks) < _MIN_LOOKS:
        return None
    moved_TCC = moved_of(clip.track.look_moved[looks])
    level_TCC = np.log2(1 + moved_TCC.astype(np.float64))
    if not (level_TCC >= _MOVES).any():
        return None
    features = line_features(clip, looks, level_TCC)
    if not len(features["cover"]):
        return 0.0
    odds = _BIAS + np.stack([weight * features[name] for name, weight in _WEIGHTS.items()]).sum(0)
    best = float(odds.max()) - _PER_MISSING_LOOK * max(0, _ENOUGH_LOOKS - len(looks))
    return float(1 / (1 + np.exp(-best)))


def line_features(clip: ClipView, looks: NDArray[np.intp], level_TCC: Floats) -> dict[str, Floats]:
    """Returns the features of lines that may divide the picture, float64 [N] by name.

    cover: share of overlay samples and pieces with the line;
    own: share of the textured places that no single motion of the camera explains;
    together: correlation of motion on both sides, over pieces and overlay samples, at least 0;
    jump: difference of motion across the line, relative to the rest of the picture, in octaves;
    apart: variation over time of the difference of motion between both sides, 0 to 1.
    """
    lines_T2AP = lines_of(clip.track.look_standing[looks])
    cover_2P = lasting_lines(lines_T2AP).mean(1)
    exact_2P = lines_T2AP.mean((0, 2))
    share = clip.signal("camera_share")
    own = 1 - float(np.median(share)) if len(share) else 0.0
    features: list[tuple[float, ...]] = []
    for plane, level in ((0, level_TCC), (1, level_TCC.transpose(0, 2, 1))):
        for place in _places(cover_2P[plane], exact_2P[plane]):
            at = int(np.floor(place / LINE_ACROSS * MOVED_SIDE - 0.3))
            sides = _sides(level, at)
            if sides is not None:
                features.append((float(cover_2P[plane, place]), own, *sides))
    columns = np.array(features, np.float64).reshape(-1, len(_WEIGHTS)).T
    return dict(zip(_WEIGHTS, columns, strict=True))


def _places(cover_P: Floats, exact_P: Floats) -> NDArray[np.intp]:
    """Returns the places of the lines with the largest cover, inside the margins."""
    exact = np.maximum(exact_P, np.maximum(np.roll(exact_P, 1), np.roll(exact_P, -1)))
    may_be = (cover_P >= _MIN_COVER) & (exact >= _MIN_EXACT * cover_P)
    margin = round(_MARGIN * LINE_ACROSS)
    may_be[:margin] = may_be[-margin:] = False
    places = np.flatnonzero(may_be)
    return places[np.argsort(-cover_P[places], kind="stable")[:_N_LINES]]


def _sides(level_TCC: Floats, at: int) -> tuple[float, float, float] | None:
    """Returns `together`, `jump` and `apart` of a line's two sides; None if a side is still."""
    left, right = level_TCC[:, :, :at], level_TCC[:, :, at + _WIDE :]
    if min(float((side >= _MOVES).mean()) for side in (left, right)) < _MIN_MOVING:
        return None
    means = (level_TCC[:, :, :-1] + level_TCC[:, :, 1:]) / 2
    before, behind = means[:, :, : -2 * _WIDE], means[:, :, 2 * _WIDE :]
    differs = np.abs(before - behind).mean((0, 1))
    seam = at - _WIDE
    starts = np.arange(len(differs))
    elsewhere = differs[(starts + 3 * _WIDE <= at) | (starts >= at + _WIDE)]
    over_time = left.mean((1, 2)) - right.mean((1, 2))
    return (
        max(0.0, _correlation(before[:, :, seam], behind[:, :, seam])),
        float(np.log2((differs[seam] + _LEVEL) / (elsewhere.mean() + _LEVEL))),
        min(float(over_time.std()) / _FULL_APART, 1.0),
    )


def _correlation(first: Floats, second: Floats) -> float:
    """Returns Pearson's correlation; 1 if one of both is constant."""
    first, second = first - first.mean(), second - second.mean()
    size = float(np.sqrt((first * first).sum() * (second * second).sum()))
    return float((first * second).sum()) / size if size > 1e-6 else 1.0


SCORES = {
    "split_screen": ScoreSpec(
        unit="0 to 1",
        range="0 to 1; above 0.5 a divided picture; null with fewer than 4 overlay samples, and if "
        "nothing moves",
        meaning="probability that a straight line that stays in place divides the picture into "
        "parts with different motion; not found if one part stands still",
        outside="split_screen",
        of=_split_screen,
        media=OF_TIME,
    )
}
