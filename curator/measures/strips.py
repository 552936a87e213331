"""Strips of full-size luma, on which noise, blocks, bands, combs and resolution are measured.

Some rows of the picture inside its borders, and some columns turned into rows: an eighth of a 1080p
picture says as much as the whole. Shape letters: N lines, L their length.
"""

# ruff: noqa: N803 - shape letters

import numpy as np
from numpy.typing import NDArray

from curator.media.opencv import cv2

STRIP_PX = 8
_N_STRIPS = 16


def strips(luma_HW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Rows of the picture in strips of 8 that lie evenly, uint8 [N, L] with N a multiple of 8."""
    height = luma_HW.shape[0]
    n = min(_N_STRIPS, height // STRIP_PX)
    starts = np.linspace(0, height - STRIP_PX, n).astype(int)
    rows = starts[:, None] + np.arange(STRIP_PX)
    return np.asarray(luma_HW[rows.ravel()])


def every_other_strip(lines_NL: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Half of the strips, uint8 [N / 2, L]."""
    halves = lines_NL.reshape(-1, STRIP_PX, lines_NL.shape[1])[::2]
    return halves.reshape(-1, lines_NL.shape[1])


def at_most(lines_NL: "cv2.typing.MatLike", level: int) -> NDArray[np.uint8]:
    """Levels, those above one cut down to it."""
    return np.asarray(cv2.threshold(lines_NL, level, level, cv2.THRESH_TRUNC)[1], np.uint8)


def within(lines_NL: "cv2.typing.MatLike", low: int, high: int) -> NDArray[np.uint8]:
    """255 where a level lies between two, both of them included, else 0."""
    return np.asarray(cv2.inRange(lines_NL, np.array([low]), np.array([high])), np.uint8)
