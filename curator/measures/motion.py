"""Motion between two pictures: dense optical flow."""

# ruff: noqa: N803 - shape letters

import numpy as np
from numpy.typing import NDArray

from curator.measures.measure_contract import ScoreSpec
from curator.media.hardware_flow import HardwareFlow
from curator.media.opencv import cv2

FAMILY = "motion"
MIN_SIDE_PX = 16  # smallest side that DIS optical flow takes


class DenseFlow:
    """Dense optical flow between pictures of one size."""

    def __init__(self) -> None:
        self._flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)

    def between(
        self, before_HW: NDArray[np.uint8], after_HW: NDArray[np.uint8]
    ) -> NDArray[np.float32] | None:
        """Where each pixel went, float32 [H, W, 2] in pixels (x, y); None for tiny pictures."""
        if min(before_HW.shape) < MIN_SIDE_PX:
            return None
        flow = self._flow.calc(before_HW, after_HW, None)  # type: ignore[call-overload]
        return np.asarray(flow, np.float32)


Flow = DenseFlow | HardwareFlow


def motion_signals(
    before_HW: NDArray[np.uint8],
    after_HW: NDArray[np.uint8],
    flow_HW2: NDArray[np.float32] | None,
    seconds: float,
) -> dict[str, float]:
    """`motion`: mean magnitude of flow in short sides/s; NaN for tiny pictures that differ."""
    if flow_HW2 is None:
        return {"motion": 0.0 if np.array_equal(before_HW, after_HW) else float("nan")}
    pixels = float(np.mean(np.hypot(flow_HW2[..., 0], flow_HW2[..., 1])))
    return {"motion": pixels / int(min(before_HW.shape)) / seconds}


SCORES = {
    "motion": ScoreSpec(
        unit="short sides/s",
        range="0 still upwards; above 4 a blur",
        meaning="mean optical flow over the picture",
        aggregate="mean",
    )
}
