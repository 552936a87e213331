"""Detects logos.

A mark is drawn over the picture if its edges are in the same cells in nearly all overlay samples,
and if its surroundings move more than its own cells. If the clip stands still, overlay samples of
the source around the clip are used, too. If these also stand still, the score is null.
"""

import numpy as np
from numpy.typing import NDArray

from curator.measures.clip_view import ClipView
from curator.measures.look_maps import moved_of
from curator.measures.measure_contract import OF_TIME, ScoreSpec
from curator.media.opencv import cv2

EDGE_SIDE = 72  # cells of an edge map each way: 8.9 by 5 px in a picture of 640 by 360 px
EDGE_BYTES = 2 * EDGE_SIDE * EDGE_SIDE // 8
EDGE = 2.0  # smallest mean gradient of a cell with an edge, in levels per px; grain has less
EDGE_OVER_MEAN = 1.25  # and as a multiple of the mean of all cells
_MIN_LOOKS = 3
_ENOUGH_LOOKS = 8
_MORE_LOOKS = 24
_AROUND_S = 60.0
_ALWAYS = 0.8  # smallest share of overlay samples with an edge that is drawn over the picture
_STILL = 0.25  # largest share of lasting edges in a picture that moves
_LARGEST = (0.28, 0.24)  # sides of the largest logo, as shares of width and height
_MIN_CELLS = 3  # smallest number of cells with an edge, for each of the two directions
_OFF_CENTRE = 0.22
"""Smallest distance of a logo's middle from the picture's middle, as a share of a side. The
object of a zoom also keeps its place."""
_MIN_SIDE = 2  # smallest width and height of a logo, in cells
_RING = (4, 5)  # width of the ring around a mark in which motion is measured, in cells (x, y)
_MOVES_AROUND = 0.75  # smallest motion around a mark, as log2(1 + levels)
_PASSING = 0.25
"""Smallest share of cells next to a mark with edges that come and go. On asphalt and
other surfaces without such edges, flicker of brightness looks like motion."""
_CALMER = 0.5  # smallest excess of motion around a mark over its calmest quarter, in log2 units
_LASTING = 0.7
"""Around a mark, the largest mean share of overlay samples with an edge. Above it, the edges of the
mark may last by chance."""


def edge_map(gray_HW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns the cells with strong edges, packed bits: uint8 [`EDGE_BYTES`].

    The first half has a bit for each of `EDGE_SIDE` by `EDGE_SIDE` cells, row by row: whether luma
    changes strongly from left to right. The second half is for changes from top to bottom.
    """
    planes = []
    for dx, dy in ((1, 0), (0, 1)):
        gradient = cv2.Sobel(gray_HW, cv2.CV_32F, dx, dy, ksize=3, scale=1 / 8)
        # Rows first: two steps are several times faster than one step for both directions.
        rows = cv2.resize(
            cv2.absdiff(gradient, np.zeros(1)),
            (gray_HW.shape[1], EDGE_SIDE),
            interpolation=cv2.INTER_AREA,
        )
        cells = cv2.resize(rows, (EDGE_SIDE, EDGE_SIDE), interpolation=cv2.INTER_AREA)
        planes.append(cells > max(EDGE, EDGE_OVER_MEAN * float(cells.mean())))
    return np.packbits(np.stack(planes))


def edges_of(packed_TB: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Returns unpacked edge maps, bool [T, 2, `EDGE_SIDE`, `EDGE_SIDE`]."""
    return np.unpackbits(packed_TB, axis=1).reshape(-1, 2, EDGE_SIDE, EDGE_SIDE).astype(bool)


def _logo_area(clip: ClipView) -> float | None:
    own = clip.holds(clip.track.look_frame)
    if not own.any():
        return None
    for wanted in (_ENOUGH_LOOKS, _MORE_LOOKS):
        looks = _widened(clip, own, wanted)
        if len(looks) < _MIN_LOOKS:
            return None
        edges = edges_of(clip.track.look_edges[looks])
        share = edges.mean(0)
        always = share >= _ALWAYS
        seen = int((share > 0).sum())
        if always.sum() <= _STILL * seen or seen == 0:
            return _marks(always, share, clip.track.look_moved[looks])
    # Even if most of the picture stands still, a mark in front of motion can be detected.
    return _marks(always, share, clip.track.look_moved[looks]) or None


def _widened(clip: ClipView, own: NDArray[np.bool_], n_wanted: int) -> NDArray[np.intp]:
    """Returns the clip's overlay samples, and samples around the clip if they are too few."""
    track, indices = clip.track, np.flatnonzero(own)
    if len(indices) >= n_wanted:
        return indices
    reach = round(_AROUND_S / float(track.time_base))
    pts = track.frame_pts[track.look_frame]
    begin, end = int(pts[indices[0]]), int(pts[indices[-1]])
    away = np.maximum(np.maximum(begin - pts, pts - end), 0)
    near = np.flatnonzero((away <= reach) & ~own)
    if n_wanted > _ENOUGH_LOOKS and len(near) > n_wanted:
        chosen = near[np.linspace(0, len(near) - 1, n_wanted - len(indices)).astype(int)]
    else:
        chosen = near[np.argsort(away[near], kind="stable")][: n_wanted - len(indices)]
    return np.union1d(indices, chosen)


def _marks(
    always: NDArray[np.bool_], share: NDArray[np.float64], packed: NDArray[np.uint8]
) -> float:
    """Returns the share of the picture inside the boxes of compact marks.

    `always` is the mask of lasting edges by direction, bool [2, cells, cells]. `share` is the part
    of overlay samples with each edge. `packed` has the maps of motion.
    """
    both = np.asarray(always.any(0), np.uint8)
    joined = cv2.dilate(both, np.ones((3, 3), np.uint8))
    n, labels, stats, _ = cv2.connectedComponentsWithStats(joined, connectivity=8)
    moved = np.log2(1 + moved_of(packed).mean(0))
    moved = cv2.resize(moved, (EDGE_SIDE, EDGE_SIDE), interpolation=cv2.INTER_NEAREST)
    area = 0.0
    for label in range(1, n):
        x, y, width, height = (int(value) for value in stats[label, :4])
        # Dilation added the outermost cells.
        if width - 2 > _LARGEST[0] * EDGE_SIDE or height - 2 > _LARGEST[1] * EDGE_SIDE:
            continue
        middle = (x + width / 2) / EDGE_SIDE - 0.5, (y + height / 2) / EDGE_SIDE - 0.5
        if max(abs(middle[0]), abs(middle[1])) < _OFF_CENTRE:
            continue
        inside = labels == label
        counts = [int((plane & inside).sum()) for plane in always]
        around = _grown((x, y, width, height), 3, 3) & ~inside
        wide = _grown((x, y, width, height), *_RING) & ~_grown((x, y, width, height), 0, 0)
        others = share.max(0)[around]
        crowded = float((others >= _ALWAYS).sum()) > 0.3 * float((others > 0).sum())
        if min(counts) < _MIN_CELLS or crowded or float(others.mean()) > _LASTING:
            continue
        if float(((others > 0) & (others < _ALWAYS)).mean()) < _PASSING:
            continue
        # The surroundings of a mark move, and its own cells move less.
        there = float(np.median(moved[wide])) if wide.any() else 0.0
        own = float(np.percentile(moved[(both > 0) & inside], 25))
        stands_before = there >= _MOVES_AROUND and there - own >= _CALMER
        if min(width, height) - 2 < _MIN_SIDE or not stands_before:
            continue
        area += max(1, width - 2) * max(1, height - 2) / EDGE_SIDE**2
    return min(area, 1.0)


def _grown(box: tuple[int, int, int, int], across: int, down: int) -> NDArray[np.bool_]:
    """Returns the mask of a box (x, y, width, height) that is widened by cells on each side."""
    x, y, width, height = box
    grown = np.zeros((EDGE_SIDE, EDGE_SIDE), bool)
    grown[max(0, y - down) : y + height + down, max(0, x - across) : x + width + across] = True
    return grown


SCORES = {
    "logo_area": ScoreSpec(
        unit="0 to 1",
        range="0 without logos to 1; null with fewer than 3 overlay samples, and if the picture "
        "stands still",
        meaning="share of the picture inside compact marks that stay while the rest moves",
        outside="logo",
        of=_logo_area,
        media=OF_TIME,
    )
}
