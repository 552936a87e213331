"""Sharpness: how steep the sharpest edges are."""

# ruff: noqa: N803 - shape letters

import numpy as np
from numpy.typing import NDArray

from curator.measures.measure_contract import ScoreSpec
from curator.media.opencv import cv2

FAMILY = "quality"

WINDOW_PX = 32
_EDGE_CONTRAST = 16
"""Contrast of a window, in levels, below which it has no edge: a sky's gradient is weaker."""


def sharpness(gray_HW: NDArray[np.uint8]) -> float:
    """Steepness of the sharpest edges: the 90th percentile of windows' largest step over contrast.

    A picture out of focus has no steep edge anywhere. Windows without contrast do not count, so
    that a smooth sky beside one sharp edge is sharp, and a smooth sky alone is not soft.

    Returns:
        0 to 1: about 0.1 out of focus, above 0.3 in focus, 1 without any edge.
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
    """What a filter of even windows says at their middles."""
    return np.asarray(filtered_HW, np.uint8)[size // 2 :: size, size // 2 :: size]


SCORES = {
    "sharpness": ScoreSpec(
        unit="slope / contrast",
        range="0 soft to 1; about 0.1 out of focus; above 0.3 in focus; 1 where nothing has edges",
        meaning="steepness of the sharpest edges at 640 px",
        aggregate="median",
    )
}
