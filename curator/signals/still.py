"""Whether anything at all changes between two pictures."""

# ruff: noqa: N803 - shape letters

import cv2
import numpy as np
from numpy.typing import NDArray

from curator.signals.picture import quantile
from curator.signals.spec import Signal

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
