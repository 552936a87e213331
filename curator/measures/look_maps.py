"""Computes two maps of an overlay sample and the sample after it: standing lines, and motion.

An inset has straight sides that stand still, and its content has its own motion. `inset` combines
the maps of a clip.

Shape letters: T overlay samples, A pieces along a line, P places across lines, S pictures.
"""

import numpy as np
from numpy.typing import NDArray

from curator.media.opencv import cv2

LINE_ACROSS = 256  # places across the direction of lines: 2.5 px each in a width of 640
LINE_ALONG = 40  # pieces along a line: 9 px each in a height of 360, 16 px in a width of 640
LINE_BYTES = 2 * LINE_ALONG * LINE_ACROSS // 8

MOVED_SIDE = 32  # cells of the map of motion, each way
MOVED_BYTES = MOVED_SIDE * MOVED_SIDE // 2

STEP = 7  # a pixel is on a sharp edge if luma changes by more over two pixels, in levels
FILLED = 0.5  # smallest share of a piece's pixels on sharp edges
SHOWN = 4.0  # least mean square gradient, in levels per px, of a cell that can show a standstill
UNLIKE = 0.25  # gradients' energy counts as at least this share of the other picture's
CODES_PER_OCTAVE = 3


def standing_lines(before_HW: NDArray[np.uint8], after_HW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns the places with sharp straight edges in both pictures: packed bits [`LINE_BYTES`].

    The first half has vertical lines: `LINE_ALONG` pieces from top to bottom by `LINE_ACROSS`
    places from left to right. The second half has horizontal lines: pieces from left to right by
    places from top to bottom.
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
    """Returns `LINE_ACROSS` places of columns of pixels; a place is set if any of its pixels is."""
    if n_places < LINE_ACROSS:
        return filled[:, np.arange(LINE_ACROSS) * n_places // LINE_ACROSS]
    begins = -(-np.arange(LINE_ACROSS) * n_places // LINE_ACROSS)
    return np.logical_or.reduceat(filled, begins, axis=1)


def lines_of(packed_TB: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Returns unpacked standing lines, bool [T, 2, `LINE_ALONG`, `LINE_ACROSS`]."""
    bits = np.unpackbits(packed_TB, axis=1)
    return bits.reshape(-1, 2, LINE_ALONG, LINE_ACROSS).astype(bool)


def lasting_lines(lines_T2AP: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Returns the share of overlay samples with a line at each piece and place: [2, A, P].

    A line in a neighbouring place counts. Lines at the picture's border do not count: interlacing
    and scaling cause them.
    """
    near = lines_T2AP.copy()
    near[..., 1:] |= lines_T2AP[..., :-1]
    near[..., :-1] |= lines_T2AP[..., 1:]
    lasting: NDArray[np.float64] = near.mean(0)
    lasting[..., 0] = lasting[..., -1] = 0
    return lasting


def moved_map(before_HW: NDArray[np.uint8], after_HW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns how much each part of the picture moved between two pictures: uint8 [`MOVED_BYTES`].

    The value of a cell is the mean difference of luma in levels, reduced by the share of gradients
    that kept their place: flicker and noise over a standing scene are no motion. A byte has two of
    the `MOVED_SIDE` by `MOVED_SIDE` cells, row by row, each a logarithm in 16 steps (`moved_of`).
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
    """Returns codes of cells, packed two per byte."""
    first, second = codes.reshape(-1, 2).T
    return np.asarray((first << 4) | second, np.uint8)


def moved_of(packed_TB: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Returns unpacked maps of motion, in levels, float32 [T, `MOVED_SIDE`, `MOVED_SIDE`]."""
    codes = np.stack([packed_TB >> 4, packed_TB & 15], axis=2)
    levels = np.exp2(codes.astype(np.float32) / CODES_PER_OCTAVE) - 1
    return np.asarray(levels.reshape(-1, MOVED_SIDE, MOVED_SIDE), np.float32)


def _cells(values_HW: NDArray[np.float32]) -> NDArray[np.float32]:
    cells = cv2.resize(values_HW, (MOVED_SIDE, MOVED_SIDE), interpolation=cv2.INTER_AREA)
    return np.asarray(cells, np.float32)
