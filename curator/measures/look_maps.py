"""Two maps of a look and the sample after it: straight lines that stand, and what moved.

An inset has straight sides that stand still whatever it shows, and its content moves by itself;
`inset` puts the looks of a clip together.
"""

import numpy as np
from numpy.typing import NDArray

from curator.media.opencv import cv2

LINE_ACROSS = 256  # places of a line across its direction: 2.5 px of a width of 640
LINE_ALONG = 40  # pieces of a line along its direction: 9 px of a height of 360, 16 of the width
LINE_BYTES = 2 * LINE_ALONG * LINE_ACROSS // 8

MOVED_SIDE = 32  # cells of the map of what moved, each way
MOVED_BYTES = MOVED_SIDE * MOVED_SIDE // 2

STEP = 7  # change of luma over two pixels, in levels, from which a pixel is on a sharp edge
FILLED = 0.5  # share of a piece's pixels that must be
SHOWN = 4.0  # mean square of the gradient, in levels per px, at which a cell shows motion
UNLIKE = 0.25  # of gradients that are weaker than those of the other picture, at least this share
CODES_PER_OCTAVE = 3


def standing_lines(before_HW: NDArray[np.uint8], after_HW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Where sharp straight edges are in the same place in two pictures: uint8 [`LINE_BYTES`].

    Packed bits; the first half is of upright lines, `LINE_ALONG` pieces from top to bottom by
    `LINE_ACROSS` places from left to right; the second half of level lines, pieces from left to
    right by places from top to bottom.
    """
    planes = []
    for pair in ((before_HW, after_HW), (before_HW.T, after_HW.T)):
        if min(before_HW.shape) <= 2:
            planes.append(np.zeros((LINE_ALONG, LINE_ACROSS), bool))
            continue
        grays = map(np.ascontiguousarray, pair)
        steps = [cv2.absdiff(gray[:, 2:], gray[:, :-2]) for gray in grays]
        both = cv2.threshold(cv2.min(*steps), STEP, 255, cv2.THRESH_BINARY)[1]
        n_places = both.shape[1] + 2
        pieces = cv2.resize(both, (both.shape[1], LINE_ALONG), interpolation=cv2.INTER_AREA)
        filled = np.pad(np.asarray(pieces) >= 255 * FILLED, ((0, 0), (1, 1)))
        planes.append(places_of(filled, n_places))
    return np.packbits(np.stack(planes))


def places_of(filled: NDArray[np.bool_], n_places: int) -> NDArray[np.bool_]:
    """Columns of pixels as `LINE_ACROSS` places: one is set where any of its pixels is."""
    if n_places < LINE_ACROSS:
        return filled[:, np.arange(LINE_ACROSS) * n_places // LINE_ACROSS]
    begins = -(-np.arange(LINE_ACROSS) * n_places // LINE_ACROSS)
    return np.logical_or.reduceat(filled, begins, axis=1)


def lines_of(packed_TB: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Standing lines of some looks, bool [T, 2, `LINE_ALONG`, `LINE_ACROSS`]."""
    bits = np.unpackbits(packed_TB, axis=1)
    return bits.reshape(-1, 2, LINE_ALONG, LINE_ACROSS).astype(bool)


def lasting_lines(lines_T2AP: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Share of looks in which a line stands at each piece and place, or the next place: [2, A, P].

    Lines at the picture's own border, as interlacing and scaling leave them, do not count.
    """
    near = lines_T2AP.copy()
    near[..., 1:] |= lines_T2AP[..., :-1]
    near[..., :-1] |= lines_T2AP[..., 1:]
    lasting: NDArray[np.float64] = near.mean(0)
    lasting[..., 0] = lasting[..., -1] = 0
    return lasting


def moved_map(before_HW: NDArray[np.uint8], after_HW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """How much of what a picture shows moved from one to a later: uint8 [`MOVED_BYTES`].

    Of each of `MOVED_SIDE` by `MOVED_SIDE` cells, row by row, the mean difference of luma in
    levels, less the share of it where gradients kept their place: flicker and noise over a
    standing scene are no motion. Two cells a byte, each a logarithm in 16 steps; see `moved_of`.
    """
    size = max(1, before_HW.shape[1] // 2), max(1, before_HW.shape[0] // 2)
    halves = [cv2.resize(g, size, interpolation=cv2.INTER_AREA) for g in (before_HW, after_HW)]
    (ax, ay), (bx, by) = (
        [cv2.Sobel(half, cv2.CV_32F, dx, 1 - dx, ksize=3, scale=1 / 8) for dx in (1, 0)]
        for half in halves
    )
    cross, before, after = (
        _cells(product) for product in (ax * bx + ay * by, ax * ax + ay * ay, bx * bx + by * by)
    )
    most = np.maximum(before, after)
    alike = cross / np.maximum(np.maximum(np.sqrt(before * after), UNLIKE * most), 1e-6)
    stays = np.where(most >= SHOWN, np.clip(alike, 0, 1), 0)
    moved = _cells(cv2.absdiff(*halves).astype(np.float32)) * (1 - stays)
    codes = np.clip(np.rint(CODES_PER_OCTAVE * np.log2(1 + moved)), 0, 15).astype(np.uint8)
    return packed_codes(codes)


def packed_codes(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Codes of cells, two a byte."""
    first, second = codes.reshape(-1, 2).T
    return np.asarray((first << 4) | second, np.uint8)


def moved_of(packed_TB: NDArray[np.uint8]) -> NDArray[np.float32]:
    """What moved in some looks, in levels, float32 [T, `MOVED_SIDE`, `MOVED_SIDE`]."""
    codes = np.stack([packed_TB >> 4, packed_TB & 15], axis=2)
    levels = np.exp2(codes.astype(np.float32) / CODES_PER_OCTAVE) - 1
    return np.asarray(levels.reshape(-1, MOVED_SIDE, MOVED_SIDE), np.float32)


def _cells(values_HW: NDArray[np.float32]) -> NDArray[np.float32]:
    cells = cv2.resize(values_HW, (MOVED_SIDE, MOVED_SIDE), interpolation=cv2.INTER_AREA)
    return np.asarray(cells, np.float32)
