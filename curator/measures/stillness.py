"""Whether anything at all changes between two pictures."""

# ruff: noqa: N803 - shape letters

import numpy as np
from numpy.typing import NDArray

from curator.measures.clip_view import ClipView
from curator.measures.measure_contract import ScoreSpec
from curator.media.opencv import cv2

FAMILY = "quality"

FROZEN_CHANGE = 2.0
"""Change between two frames, in levels, below which nothing moved: x264 refines a still picture by
up to 1 level from frame to frame."""


def change_signals(before_HW: NDArray[np.uint8], after_HW: NDArray[np.uint8]) -> dict[str, float]:
    """`change` of the luma of two pictures of 320 px: the largest of any part, in levels.

    It is the 99.5th percentile of the absolute difference, after 3x3 averaging.
    """
    before, after = cv2.blur(before_HW, (3, 3)), cv2.blur(after_HW, (3, 3))
    counts = cv2.calcHist([cv2.absdiff(before, after)], [0], None, [256], [0, 256])
    # The smallest level that this share of the pixels does not exceed.
    return {"change": float(np.searchsorted(np.cumsum(counts), 0.995 * before.size))}


def _frozen_fraction(clip: ClipView) -> float | None:
    change = clip.signal("change")
    return float(np.mean(change < FROZEN_CHANGE)) if len(change) else None


SCORES = {
    "frozen_fraction": ScoreSpec(
        unit="0 to 1",
        range="0 to 1",
        meaning="share of samples after which nothing in the picture changes for 0.1 s",
        outside="frozen",
        of=_frozen_fraction,
    )
}
