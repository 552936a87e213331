"""Measures on a small picture: sharpness of edges, stripes, and change."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from curator.measures.clip_view import ClipView
from curator.measures.measure_contract import OF_TIME, ScoreSpec
from curator.media.opencv import cv2

WINDOW_PX = 32
_EDGE_CONTRAST = 16  # smallest contrast, in levels, of a window with an edge; skies have less


def sharpness(gray_HW: NDArray[np.uint8]) -> float:
    """Returns the steepness of the sharpest edges, 0 to 1.

    The value is the 90th percentile, over windows with contrast, of largest step / contrast.
    Windows without contrast do not count: a smooth sky does not make a sharp picture soft.

    Returns:
        About 0.1 out of focus, above 0.3 in focus, 1 without any edge.
    """
    height, width = gray_HW.shape
    size = min(WINDOW_PX, height, width)
    rows, columns = height // size * size, width // size * size
    if size < 4:
        return 1.0
    smooth = cv2.GaussianBlur(gray_HW[:rows, :columns], (3, 3), 0.6)
    slope = np.maximum(
        cv2.absdiff(smooth, np.roll(smooth, 1, axis=1)),
        cv2.absdiff(smooth, np.roll(smooth, 1, axis=0)),
    )
    slope[0], slope[:, 0] = 0, 0
    box = np.ones((size, size), np.uint8)
    low = _windows(cv2.erode(smooth, box), size)
    high = _windows(cv2.dilate(smooth, box), size)
    steepest = _windows(cv2.dilate(slope, box), size)
    contrast = high.astype(np.float32) - low
    has_edge = contrast >= _EDGE_CONTRAST
    if not has_edge.any():
        return 1.0
    return min(1.0, float(np.quantile(steepest[has_edge] / contrast[has_edge], 0.9)))


def _windows(filtered_HW: "cv2.typing.MatLike", size: int) -> NDArray[np.uint8]:
    """Returns the values of a filter at the middle of each window."""
    return np.asarray(filtered_HW, np.uint8)[size // 2 :: size, size // 2 :: size]


_FOURIER_PX = 256
_WEDGES = 90
_BESIDE = (np.arange(_WEDGES)[:, None] + np.array([-5, -4, -3, 3, 4, 5])) % _WEDGES
"""For each wedge, the wedges that are 6 to 10 degrees away."""
_BANDS = 3
_Places = NDArray[np.int64]
_FourierMaps = tuple[NDArray[np.float32], _Places, _Places, _Places, _Places, _Places]


def stripes(gray_HW: NDArray[np.uint8]) -> float:
    """Returns how far one direction stands out in Fourier space; NaN below 64 px.

    The value is the energy of a wedge of 2 degrees (after arXiv 1901.08001), divided by the larger
    of two references: the median wedge, and the wedges 6 to 10 degrees away. The result is the
    minimum over scales, and the maximum over wedges.
    """
    height, width = gray_HW.shape
    size = min(_FOURIER_PX, height, width) // 2 * 2
    if size < 64:
        return float("nan")
    top, left = (height - size) // 2, (width - size) // 2
    square = gray_HW[top : top + size, left : left + size].astype(np.float32)
    window, used, ring, cell, n_of_ring, n_of_cell = _fourier_maps(size)
    power = _right_half((square - square.mean()) * window).ravel()[used]
    mean = np.bincount(ring, power, len(n_of_ring)) / n_of_ring
    # The floor is noise of one level. The cap prevents that one peak counts as a wedge.
    even = np.minimum(power / (mean + float((window**2).sum()))[ring], 12)
    energy = (np.bincount(cell, even, len(n_of_cell)) / n_of_cell).reshape(_WEDGES, _BANDS)
    # Edges of blocks are short, so their energy spreads around the axes: neighbours count, too.
    reference = np.maximum(np.median(energy, axis=0), energy[_BESIDE].mean(axis=1))
    # Lines stand out at all scales, a brick wall only at some scales.
    standing_out = energy / (reference + 0.25)
    return float(standing_out.min(axis=1).max())


def _right_half(square_HW: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the power at the frequencies of the right half, float32 [size, size / 2].

    OpenCV packs the spectrum of a real square of even size: rows have pairs of real and imaginary
    part. The first column has pairs downwards, without negative frequencies.
    """
    packed = np.asarray(cv2.dft(square_HW), np.float32)
    squares = packed * packed
    half = len(packed) // 2
    power = np.empty((2 * half, half), np.float32)
    np.add(squares[:, 1:-1:2], squares[:, 2:-1:2], out=power[:, 1:])
    upright = squares[1:-1:2, 0] + squares[2:-1:2, 0]
    power[0, 0], power[half, 0] = squares[0, 0], squares[-1, 0]
    power[1:half, 0], power[half + 1 :, 0] = upright, upright[::-1]
    return power


@cache
def _fourier_maps(size: int) -> _FourierMaps:
    """Returns the window [size, size], and place, ring and cell of each used frequency.

    Frequencies are those of the right half. A cell is a wedge within a band of scales. The last two
    arrays are the numbers of frequencies in each ring and each cell.
    """
    hann = np.hanning(size).astype(np.float32)
    fy = np.fft.fftfreq(size, 1 / size)[:, None]
    fx = np.arange(size // 2)[None, :]
    radius = np.hypot(fx, fy)
    low, high = size * 0.1, size * 0.45
    used = np.flatnonzero((radius >= low) & (radius < high))
    radius = radius.ravel()[used]
    # Wedges are centred on the axes.
    angle = np.arctan2(fy, fx + np.zeros_like(fy)).ravel()[used] / np.pi + 0.5
    wedge = np.round(angle * _WEDGES).astype(np.int64) % _WEDGES
    band = ((radius - low) / (high - low) * _BANDS).astype(np.int64)
    ring, cell = ((radius - low) // 4).astype(np.int64), wedge * _BANDS + band
    n_of_ring = np.maximum(np.bincount(ring), 1)
    n_of_cell = np.maximum(np.bincount(cell, minlength=_WEDGES * _BANDS), 1)
    return np.outer(hann, hann), used, ring, cell, n_of_ring, n_of_cell


FROZEN_CHANGE = 2.0
"""Nothing moves between two frames if the change is less than this, in levels. x264 refines a still
picture by up to 1 level from frame to frame."""


def change_signals(before_HW: NDArray[np.uint8], after_HW: NDArray[np.uint8]) -> dict[str, float]:
    """Returns `change`, the largest change of luma between two pictures of 320 px, in levels.

    The value is the 99.5th percentile of the absolute difference, after 3x3 averaging.
    """
    before, after = cv2.blur(before_HW, (3, 3)), cv2.blur(after_HW, (3, 3))
    counts = cv2.calcHist([cv2.absdiff(before, after)], [0], None, [256], [0, 256])
    # The smallest level that at least this share of the pixels does not exceed.
    return {"change": float(np.searchsorted(np.cumsum(counts), 0.995 * before.size))}


def _frozen_fraction(clip: ClipView) -> float | None:
    change = clip.signal("change")
    return float(np.mean(change < FROZEN_CHANGE)) if len(change) else None


SCORES = {
    "sharpness": ScoreSpec(
        unit="slope / contrast",
        range="0 soft to 1; about 0.1 out of focus; above 0.3 in focus; 1 without edges",
        meaning="steepness of the sharpest edges at 640 px",
        aggregate="median",
    ),
    "stripes": ScoreSpec(
        unit="ratio",
        range="about 1 if no direction stands out; above 4 for one clear direction",
        meaning="strength of parallel lines, such as scratches and scan lines; fences and facades "
        "also have parallel lines",
        outside="stripes",
        aggregate="median",
    ),
    "frozen_fraction": ScoreSpec(
        unit="0 to 1",
        range="0 to 1",
        meaning="share of samples after which the picture does not change for 0.1 s",
        outside="frozen",
        of=_frozen_fraction,
        media=OF_TIME,
    ),
}
