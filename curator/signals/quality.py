"""Technical quality that shows only at full size."""

# ruff: noqa: N803 - shape letters

import cv2
import numpy as np
from numpy.typing import NDArray

from curator.signals.spec import Signal

SIGNALS = {
    "noise": Signal(
        unit="levels of 255",
        range="0 upwards; below 1 clean, above 5 visibly noisy",
        meaning="standard deviation of noise at full size, by Immerkaer's method "
        "(Computer Vision and Image Understanding 64, 1996)",
    ),
}

_IMMERKAER = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], np.float32)


def native_signals(luma_HW: NDArray[np.uint8]) -> dict[str, float]:
    """The signals of this module.

    Args:
        luma_HW: uint8 luma at the source's own size, as coded: not turned, pixels not squared.
    """
    if min(luma_HW.shape) < 3:
        return {"noise": float("nan")}
    response = cv2.filter2D(luma_HW, cv2.CV_16S, _IMMERKAER)[1:-1, 1:-1]
    return {"noise": float(np.abs(response).mean()) * (np.pi / 2) ** 0.5 / 6}
