"""Measures noise: its standard deviation where the picture is flat, or in pure static.

Shape letters: N lines, L length of a line.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from curator.measures.measure_contract import ScoreSpec
from curator.measures.strips import STRIP_PX
from curator.media.opencv import cv2

NATIVE_NOISE, FULL_FRAME_NOISE = "native_noise", "full_frame_noise"
"""The signals from which `noise` is computed: of one picture, and of the difference of two."""

_Blocks = NDArray[np.float32]
_IMMERKAER = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], np.float32)
_NOTHING_COMMON = 0.3
"""Two pictures have nothing in common if their covariance, as a share of their variance, is below
this. Generated static has 0.0; real footage mostly has over 0.6, except over cuts and whip pans."""
_WHITE = 0.4
"""Largest share of a difference's deviation that remains after averaging of 8 x 8 px, for noise.
White noise has 0.12; static with 2 px grains has up to 0.35 after a coarse encode; cuts have more.
"""
_LEAST_NOISE = 2.0


def noise(rows_NL: NDArray[np.uint8], *, black: int = 0, white: int = 255) -> float:
    """Returns the standard deviation of noise, in levels; NaN with fewer than 32 unclipped blocks.

    Uses the flattest tenth of the blocks of 8 px, and Immerkaer's method (Computer Vision and Image
    Understanding 64, 1996). The result is reduced if structure at coarser scales shows texture.
    """
    n_blocks = rows_NL.shape[1] // STRIP_PX
    rows = np.ascontiguousarray(rows_NL[:, : n_blocks * STRIP_PX])
    response = cv2.filter2D(rows, cv2.CV_16S, _IMMERKAER)
    size = np.asarray(cv2.convertScaleAbs(response), np.uint8)
    size = size.reshape(-1, STRIP_PX, rows.shape[1])
    # The filter at the first and the last row of a strip reads another strip.
    fine = _block_means(size[:, 1:-1].reshape(-1, rows.shape[1]), STRIP_PX - 2)
    fine *= (np.pi / 2) ** 0.5 / 6
    mean, coarse = _plane_residual(rows.astype(np.float32))
    margin = 0.02 * (white - black)
    usable = (mean > black + margin) & (mean < white - margin)
    if usable.sum() < 32:
        return float("nan")
    fine, coarse = fine[usable], coarse[usable]
    flat = np.argpartition(coarse, len(coarse) // 10)[: max(8, len(coarse) // 10)]
    # The ratio is about 1 for white noise, and less in its flattest blocks. Clean texture has a low
    # ratio, because most of its energy is at coarser scales.
    level, total = float(np.mean(fine[flat])), float(np.mean(coarse[flat]))
    is_noise = float(np.clip((level / max(total, 0.3) - 0.4) / 0.4, 0, 1))
    return level / 0.9 * is_noise


def _plane_residual(rows_NL: NDArray[np.float32]) -> tuple[_Blocks, _Blocks]:
    """Returns mean and deviation from the best plane of each block, float32 [N / 8, L / 8]."""
    ramp = np.arange(STRIP_PX, dtype=np.float32) - (STRIP_PX - 1) / 2
    power = float((ramp**2).mean())
    along = np.tile(ramp, rows_NL.shape[1] // STRIP_PX)[None, :]
    down = np.tile(ramp, rows_NL.shape[0] // STRIP_PX)[:, None]
    # Centred levels keep the difference of squares precise in 32 bits.
    middle = rows_NL - 128
    mean, square = _block_means(middle), _block_means(middle * middle)
    tilt, slope = _block_means(middle * along), _block_means(middle * down)
    variance = square - mean**2 - (tilt**2 + slope**2) / power
    # A plane leaves 61 of 64 degrees of freedom.
    return mean + 128, np.sqrt(np.maximum(variance, 0) * (64 / 61)).astype(np.float32)


def _block_means(rows_NL: NDArray[np.uint8] | NDArray[np.float32], height: int = 8) -> _Blocks:
    """Returns the means of blocks of `height` by 8 px, float32 [N / height, L / 8]."""
    n, length = rows_NL.shape
    size = length // STRIP_PX, n // height
    floats = rows_NL.astype(np.float32, copy=False)
    return np.asarray(cv2.resize(floats, size, interpolation=cv2.INTER_AREA), np.float32)


def full_frame_noise(before_HW: NDArray[np.uint8], after_HW: NDArray[np.uint8]) -> float:
    """Returns the standard deviation of pure static, as of a receiver without aerial; else 0.

    One picture cannot distinguish static from texture: the flattest blocks have as much noise as
    all others, and a coarse encode keeps only the coarse scales of static.

    Returns:
        Levels at this size; full size has more if the grains are smaller than a pixel.
    """
    difference = cv2.subtract(after_HW, before_HW, dtype=cv2.CV_16S)
    deviation = _deviation(difference)
    if min(before_HW.shape) < 16 or deviation < _LEAST_NOISE:
        return 0.0
    common = 1 - deviation**2 / (_deviation(before_HW) ** 2 + _deviation(after_HW) ** 2)
    if common > _NOTHING_COMMON:
        return 0.0
    size = before_HW.shape[1] // 8, before_HW.shape[0] // 8
    coarse = cv2.resize(difference.astype(np.float32), size, interpolation=cv2.INTER_AREA)
    return deviation / 2**0.5 if _deviation(coarse) < _WHITE * deviation else 0.0


def _deviation(picture_HW: "cv2.typing.MatLike") -> float:
    return float(cv2.meanStdDev(picture_HW)[1][0, 0])


SCORES = {
    "noise": ScoreSpec(
        unit="levels of 255",
        range="0 and more; below 1 clean, above 5 visibly noisy",
        meaning="standard deviation of noise at full size, where the picture is flat",
        aggregate="median",
    )
}


def with_noise(signals: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Adds the signal `noise` if both of its signals exist."""
    if NATIVE_NOISE not in signals or FULL_FRAME_NOISE not in signals:
        return dict(signals)
    native, full = signals[NATIVE_NOISE], signals[FULL_FRAME_NOISE]
    return {**signals, "noise": np.where(full > 0, np.fmax(native, full), native)}
