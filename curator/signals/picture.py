"""Sharpness and exposure of one picture."""

# ruff: noqa: N803 - shape letters

import cv2
import numpy as np
from numpy.typing import NDArray

from curator.signals.spec import Signal

SIGNALS = {
    "sharpness": Signal(
        unit="Laplacian / contrast",
        range="0 for a flat picture; about 0.1 out of focus; above 0.3 in focus",
        meaning="strength of the sharpest edges relative to the picture's contrast",
    ),
    "dark_fraction": Signal(
        unit="share", range="0 to 1", meaning="share of pixels at most 16/255 luma"
    ),
    "bright_fraction": Signal(
        unit="share", range="0 to 1", meaning="share of pixels at least 250/255 luma"
    ),
}


def picture_signals(gray_HW: NDArray[np.uint8]) -> dict[str, float]:
    """The signals of this module.

    Args:
        gray_HW: uint8 luma; the longer side is `stages.measure.PICTURE_PX` or the source's own.
    """
    return {
        "sharpness": sharpness(gray_HW),
        "dark_fraction": float(np.mean(gray_HW <= 16)),
        "bright_fraction": float(np.mean(gray_HW >= 250)),
    }


def sharpness(gray_HW: NDArray[np.uint8]) -> float:
    """Strength of the sharpest edges relative to the picture's contrast.

    The 99th percentile of the absolute Laplacian over the 1st-to-99th percentile range of luma: a
    smooth sky beside one sharp edge is sharp, a picture out of focus has no sharp edge anywhere.

    Args:
        gray_HW: uint8 luma; the longer side is `stages.measure.PICTURE_PX` or the source's own.

    Returns:
        0 for a flat picture; about 0.1 out of focus; above 0.3 in focus.
    """
    if min(gray_HW.shape) < 3:
        return 0.0
    low, high = quantile(gray_HW, 0.01, 256), quantile(gray_HW, 0.99, 256)
    if high - low < 8:
        return 0.0
    edges = np.abs(cv2.Laplacian(gray_HW, cv2.CV_16S, ksize=1)).astype(np.uint16)
    return quantile(edges, 0.99, 4 * 255 + 1) / (high - low)


def quantile(values_HW: NDArray[np.uint8] | NDArray[np.uint16], share: float, n_levels: int) -> int:
    """Smallest level that at least this share of the values does not exceed.

    Args:
        values_HW: uint8 or uint16 levels.
        share: 0 to 1.
        n_levels: One more than the largest level there can be.
    """
    counts = cv2.calcHist([values_HW], [0], None, [n_levels], [0, n_levels])
    return int(np.searchsorted(np.cumsum(counts), share * values_HW.size))
