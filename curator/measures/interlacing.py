"""Interlacing that shows: lines of two moments in one frame."""

# ruff: noqa: N803 - shape letters: N lines, L their length

import numpy as np
from numpy.typing import NDArray

from curator.measures.measure_contract import ScoreSpec
from curator.media.opencv import cv2

FAMILY = "quality"

_COMB_PX = 16
_COMB_STEP = 6  # mean step of a comb, in levels


def combing(columns_NL: NDArray[np.uint8]) -> float:
    """Share of 16 px stretches of a column where neighbours differ more than every other line."""
    lines = columns_NL[::2]
    next_line = cv2.absdiff(lines[:, 2:], lines[:, 1:-1])
    every_other = cv2.absdiff(lines[:, 2:], lines[:, :-2])
    n = next_line.shape[1] // _COMB_PX
    if n == 0:
        return 0.0
    near, far = (
        cv2.resize(
            change[:, : n * _COMB_PX].astype(np.float32),
            (n, len(lines)),
            interpolation=cv2.INTER_AREA,
        )
        for change in (next_line, every_other)
    )
    return float(np.mean((near > 2 * far) & (near > _COMB_STEP)))


SCORES = {
    "combing": ScoreSpec(
        unit="share",
        range="0 to 1; above 0.01 interlaced",
        meaning="lines of two moments in one frame, where something moves",
        outside="interlaced",
        aggregate="p75",
    )
}
