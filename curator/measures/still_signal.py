"""Whether anything at all changes between two pictures, and whether all of it is noise."""

# ruff: noqa: N803 - shape letters

import cv2
import numpy as np
from numpy.typing import NDArray

from curator.measures.picture_signal import quantile
from curator.measures.signal_spec import Signal

SIGNALS = {
    "change": Signal(
        unit="levels of 255",
        range="0 for equal pictures upwards; below 2 the picture is frozen, and what changes is "
        "compression",
        meaning="99.5th percentile of the absolute difference between a sample and the frame about "
        "0.1 s later: the largest change of any part, after 3x3 averaging",
    ),
}


def change_signals(before_HW: NDArray[np.uint8], after_HW: NDArray[np.uint8]) -> dict[str, float]:
    """The signals of this module.

    Args:
        before_HW: uint8 luma; the longer side is `stages.measure.SMALL_PX` or the source's own.
        after_HW: The later picture, of the same size.
    """
    before, after = cv2.blur(before_HW, (3, 3)), cv2.blur(after_HW, (3, 3))
    return {"change": float(quantile(np.asarray(cv2.absdiff(before, after), np.uint8), 0.995, 256))}


_NOTHING_COMMON = 0.3
"""Covariance of two pictures, as a share of their variance, below which they are unlike: that of
made static is 0.0, that of real footage as a rule above 0.6, but over cuts and in whip pans."""
_WHITE = 0.4
"""Share of a difference's deviation that averaging 8 x 8 px leaves of it: 0.12 of white noise, up
to 0.35 of static with grains of 2 px after a coarse encode, more over cuts."""
_LEAST_NOISE = 2.0


def full_frame_noise(before_HW: NDArray[np.uint8], after_HW: NDArray[np.uint8]) -> float:
    """Standard deviation of noise where there is nothing else, as without an aerial; else 0.

    Such noise is no weaker in the flattest blocks than elsewhere, and a coarse encode leaves only
    its coarse scales, so that one picture alone does not tell it from texture.

    Args:
        before_HW: uint8 luma; the longer side is `stages.measure.SMALL_PX` or the source's own.
        after_HW: The later picture, of the same size.

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


def _deviation(picture_HW: cv2.typing.MatLike) -> float:
    return float(cv2.meanStdDev(picture_HW)[1][0, 0])
