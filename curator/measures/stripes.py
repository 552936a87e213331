"""Stripes: whether one direction stands out in Fourier space."""

# ruff: noqa: N803 - shape letters

from functools import cache

import numpy as np
from numpy.typing import NDArray

from curator.measures.measure_contract import ScoreSpec
from curator.media.opencv import cv2

FAMILY = "quality"

_FOURIER_PX = 256
_WEDGES = 90
_BESIDE = (np.arange(_WEDGES)[:, None] + np.array([-5, -4, -3, 3, 4, 5])) % _WEDGES
"""Wedges 6 to 10 degrees beside each."""
_BANDS = 3
_Places = NDArray[np.int64]
_FourierMaps = tuple[NDArray[np.float32], _Places, _Places, _Places, _Places, _Places]


def stripes(gray_HW: NDArray[np.uint8]) -> float:
    """How far one direction stands out in Fourier space; NaN below 64 px.

    Energy in the strongest wedge of 2 degrees (after arXiv 1901.08001) over that of the median
    wedge and of those 6 to 10 degrees beside it, in the scale at which it is least.
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
    # The floor is noise of one level, the cap keeps one peak from being a wedge.
    even = np.minimum(power / (mean + float((window**2).sum()))[ring], 12)
    energy = (np.bincount(cell, even, len(n_of_cell)) / n_of_cell).reshape(_WEDGES, _BANDS)
    # Edges of blocks are short, and so energy around the axes and not on them alone.
    reference = np.maximum(np.median(energy, axis=0), energy[_BESIDE].mean(axis=1))
    # Lines stand out at all scales, a brick wall at some.
    standing_out = energy / (reference + 0.25)
    return float(standing_out.min(axis=1).max())


def _right_half(square_HW: NDArray[np.float32]) -> NDArray[np.float32]:
    """Power at the frequencies of the right half, float32 [size, size / 2].

    OpenCV packs the spectrum of a real square of even size: pairs of real and imaginary part along
    the rows, and down the first column, where negative frequencies are left out.
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
    """Window [size, size]; for frequencies of the right half that are used: place, ring, and cell.

    A cell is a wedge within a band of scales. The last two arrays count members of rings and cells.
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


SCORES = {
    "stripes": ScoreSpec(
        unit="ratio",
        range="about 1 with no direction; above 4 one direction stands out",
        meaning="scratches, scan lines and other parallel lines; fences and facades too",
        outside="stripes",
        aggregate="median",
    )
}
