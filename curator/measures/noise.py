"""Noise: its standard deviation where the picture is flat, or in all of it.

Shape letters: N lines, L their length.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from curator.measures.measure_contract import ScoreSpec
from curator.measures.strips import STRIP_PX
from curator.media.opencv import cv2

NATIVE_NOISE, FULL_FRAME_NOISE = "native_noise", "full_frame_noise"
"""Signals that the signal `noise` is made of: of one picture, and of the difference of two."""

_Blocks = NDArray[np.float32]
_IMMERKAER = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], np.float32)
_NOTHING_COMMON = 0.3
"""Covariance of two pictures, as a share of their variance, below which they are unlike: that of
made static is 0.0, that of real footage as a rule above 0.6, but over cuts and in whip pans."""
_WHITE = 0.4
"""Share of a difference's deviation that averaging 8 x 8 px leaves of it: 0.12 of white noise, up
to 0.35 of static with grains of 2 px after a coarse encode, more over cuts."""
_LEAST_NOISE = 2.0


def noise(rows_NL: NDArray[np.uint8], *, black: int = 0, white: int = 255) -> float:
    """Standard deviation of noise, in levels; NaN where too little is flat and unclipped.

    In the flattest tenth of blocks of 8 px, by Immerkaer's method (Computer Vision and Image
    Understanding 64, 1996), less where coarser structure says that it is texture.
    """
    n_blocks = rows_NL.shape[1] // STRIP_PX
    rows = np.ascontiguousarray(rows_NL[:, : n_blocks * STRIP_PX])
    response = cv2.filter2D(rows, cv2.CV_16S, _IMMERKAER)
    size = np.asarray(cv2.convertScaleAbs(response), np.uint8)
    size = size.reshape(-1, STRIP_PX, rows.shape[1])
    # The first and last row of a strip have another strip beside them.
    fine = _block_means(size[:, 1:-1].reshape(-1, rows.shape[1]), STRIP_PX - 2)
    fine *= (np.pi / 2) ** 0.5 / 6
    mean, coarse = _plane_residual(rows.astype(np.float32))
    margin = 0.02 * (white - black)
    usable = (mean > black + margin) & (mean < white - margin)
    if usable.sum() < 32:
        return float("nan")
    fine, coarse = fine[usable], coarse[usable]
    flat = np.argpartition(coarse, len(coarse) // 10)[: max(8, len(coarse) // 10)]
    # White noise has a ratio of 1 and less where the flattest of its blocks are chosen; a clean
    # texture has most of its energy at coarser scales.
    level, total = float(np.mean(fine[flat])), float(np.mean(coarse[flat]))
    is_noise = float(np.clip((level / max(total, 0.3) - 0.4) / 0.4, 0, 1))
    return level / 0.9 * is_noise


def _plane_residual(rows_NL: NDArray[np.float32]) -> tuple[_Blocks, _Blocks]:
    """Mean of blocks, and the standard deviation around the best plane, float32 [N / 8, L / 8]."""
    ramp = np.arange(STRIP_PX, dtype=np.float32) - (STRIP_PX - 1) / 2
    power = float((ramp**2).mean())
    along = np.tile(ramp, rows_NL.shape[1] // STRIP_PX)[None, :]
    down = np.tile(ramp, rows_NL.shape[0] // STRIP_PX)[:, None]
    # Levels around the middle, because 32 bits are few for a difference of squares.
    middle = rows_NL - 128
    mean, square = _block_means(middle), _block_means(middle * middle)
    tilt, slope = _block_means(middle * along), _block_means(middle * down)
    variance = square - mean**2 - (tilt**2 + slope**2) / power
    # 61 of 64 degrees of freedom are left by a plane.
    return mean + 128, np.sqrt(np.maximum(variance, 0) * (64 / 61)).astype(np.float32)


def _block_means(rows_NL: NDArray[np.uint8] | NDArray[np.float32], height: int = 8) -> _Blocks:
    """Means of blocks 8 wide, float32 [N / height, L / 8]."""
    n, length = rows_NL.shape
    size = length // STRIP_PX, n // height
    floats = rows_NL.astype(np.float32, copy=False)
    return np.asarray(cv2.resize(floats, size, interpolation=cv2.INTER_AREA), np.float32)


def full_frame_noise(before_HW: NDArray[np.uint8], after_HW: NDArray[np.uint8]) -> float:
    """Standard deviation of noise where there is nothing else, as without an aerial; else 0.

    Such noise is no weaker in the flattest blocks than elsewhere, and a coarse encode leaves only
    its coarse scales, so that one picture alone does not tell it from texture.

    Returns:
        Levels at this size; less than at full size, as far as the grains are smaller than a pixel.
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
        range="0 upwards; below 1 clean, above 5 visibly noisy",
        meaning="standard deviation of noise at full size, where the picture is flat",
        aggregate="median",
    )
}


def with_noise(signals: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Adds `noise`, where both signals that it is made of exist."""
    if NATIVE_NOISE not in signals or FULL_FRAME_NOISE not in signals:
        return dict(signals)
    native, full = signals[NATIVE_NOISE], signals[FULL_FRAME_NOISE]
    return {**signals, "noise": np.where(full > 0, np.fmax(native, full), native)}
