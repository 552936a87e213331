"""Measures how much a picture changes in a way that neither the camera nor the light explains.

Cameras that see one event from several sides agree in when things move, and in little else. A
hand-held camera moves the whole picture, and lamps and exposure change all of it. So the change from
the frame before is fitted by a shift, a turn, a zoom, a gain and an offset of levels, and what
remains is measured. Pictures are the shot network's, of 48x27 pixels: there, shake moves less than a
pixel per frame, for which one linear fit is enough.

Shape letters: H, W height and width, P pixels.
"""

import numpy as np
from numpy.typing import NDArray

from curator.models.transnet import LUMA

_RIDGE = 1e-3
"""Weight of the prior for no motion, so that flat pictures have a fit; of squared levels."""


class LocalChange:
    """Gets the frames of a source in order, and returns the change of each from the one before."""

    def __init__(self) -> None:
        self._before: NDArray[np.float32] | None = None
        self._places: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None

    def __call__(self, rgb_HWC: NDArray[np.uint8]) -> float:
        """Returns the root mean square of the unexplained change of luma, 0 to 1.

        The first frame has 0.
        """
        luma_HW = rgb_HWC.astype(np.float32) @ LUMA
        before, self._before = self._before, luma_HW
        if before is None:
            return 0.0
        if self._places is None:
            height, width = luma_HW.shape
            y, x = np.mgrid[1 - height : height : 2, 1 - width : width : 2].astype(np.float32) / width
            self._places = y[1:-1, 1:-1].ravel(), x[1:-1, 1:-1].ravel()
        y_P, x_P = self._places
        middle = before + luma_HW
        right_P = (middle[1:-1, 2:] - middle[1:-1, :-2]).ravel()
        down_P = (middle[2:, 1:-1] - middle[:-2, 1:-1]).ravel()
        change_P = (luma_HW - before)[1:-1, 1:-1].ravel()
        level_P = middle[1:-1, 1:-1].ravel()
        terms = np.stack(
            [
                np.ones_like(level_P), level_P, right_P, down_P,
                x_P * right_P + y_P * down_P, x_P * down_P - y_P * right_P,
            ]
        )  # fmt: skip
        normal = terms @ terms.T
        normal[np.diag_indices(6)] += _RIDGE * len(change_P)
        rest_P = change_P - np.linalg.solve(normal, terms @ change_P) @ terms
        return float(np.sqrt(rest_P @ rest_P / len(rest_P))) / 255
