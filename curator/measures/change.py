"""How a film changes from frame to frame: what the fusion of shot boundaries is made of.

Everything is measured on the shot network's pictures of 48x27 pixels, and a frame's values depend
on no frame farther away than `REACH`.
"""

# ruff: noqa: N803 - shape letters

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator.media.opencv import cv2

CHANGES = ("step", "step_3", "step_13", "colour_13", "net_24")
"""Values of a frame, float32 each.

step: distance of the frame and the next in levels of 255, beyond what moving a pixel explains; a
    cut has tens, or a few where little of the picture differs.
step_3: the same between the frame before and the second after.
step_13: the same between the sixth frame before and the seventh after.
colour_13: half the L1 distance of colour histograms (4x4x4) of those two frames: 0 same colours to
    1 no colour in common.
net_24: net change of contrast between the twelfth frame before and the twelfth after, in standard
    deviations, with brightness and contrast of the whole picture taken out; about 1 between unlike
    pictures.
"""

REACH = 12
"""Frames on either side that a frame's values depend on."""

_KERNEL = np.ones((3, 3), np.uint8)
_FLAT_LEVELS = 4.0
"""Spread of luma, in levels, below which contrast is not raised: noise is no content."""


class _Seen(NamedTuple):
    """What is kept of a frame: its pixels, the range around each, its colours, its contrast."""

    rgb: NDArray[np.uint8]
    high: "cv2.typing.MatLike"
    low: "cv2.typing.MatLike"
    colours: "cv2.typing.MatLike"
    contrast: NDArray[np.float32]


def _seen(rgb_HWC: NDArray[np.uint8]) -> _Seen:
    colours = cv2.calcHist([rgb_HWC], [0, 1, 2], None, [4, 4, 4], [0, 256, 0, 256, 0, 256])
    gray = cv2.cvtColor(rgb_HWC, cv2.COLOR_RGB2GRAY).astype(np.float32)
    mean, spread = cv2.meanStdDev(gray)
    contrast = (gray - mean[0, 0]) / max(spread[0, 0], _FLAT_LEVELS)
    high, low = cv2.dilate(rgb_HWC, _KERNEL), cv2.erode(rgb_HWC, _KERNEL)
    return _Seen(rgb_HWC, high, low, colours.ravel(), contrast)


def _step(one: _Seen, other: _Seen) -> float:
    """Mean distance of each picture from what the other holds around the same place."""
    total = 0.0
    for a, b in ((one, other), (other, one)):
        outside = cv2.max(cv2.subtract(b.rgb, a.high), cv2.subtract(a.low, b.rgb))
        total += float(cv2.norm(outside, cv2.NORM_L1))
    return total / (2 * one.rgb.size)


class ChangeStream:
    """Measures change while frames come; holds no more than 25 of them."""

    def __init__(self) -> None:
        self._seen: deque[_Seen] = deque(maxlen=2 * REACH + 1)
        self._n_pushed = 0
        self._values: list[tuple[float, ...]] = []

    def push(self, rgb_HWC: NDArray[np.uint8]) -> None:
        """Takes the next frame.

        Args:
            rgb_HWC: uint8 RGB, of the size that the shot network takes; not changed afterwards.
        """
        self._append(_seen(rgb_HWC))

    def finish(self) -> dict[str, NDArray[np.float32]]:
        """Ends the film.

        Returns:
            The values of `CHANGES`, float32 [F] each. Beyond the ends, the first and the last frame
            count as repeated.
        """
        n_frames = self._n_pushed
        while len(self._values) < n_frames:
            self._append(self._seen[-1])
        columns = np.array(self._values, np.float32).reshape(-1, len(CHANGES))
        return {name: columns[:, index].copy() for index, name in enumerate(CHANGES)}

    def _append(self, seen: _Seen) -> None:
        self._seen.append(seen)
        self._n_pushed += 1
        if self._n_pushed > REACH:
            self._values.append(self._measured())

    def _measured(self) -> tuple[float, ...]:
        """Values of the frame that stands `REACH` before the last one."""
        now = len(self._seen) - 1 - REACH

        def at(offset: int) -> _Seen:
            return self._seen[max(0, now + offset)]

        first, last = at(-6), at(7)
        size = first.rgb.shape[0] * first.rgb.shape[1]
        colours = float(cv2.norm(first.colours, last.colours, cv2.NORM_L1))
        net = float(cv2.norm(at(REACH).contrast, at(-REACH).contrast, cv2.NORM_L1))
        steps = _step(at(0), at(1)), _step(at(-1), at(2)), _step(first, last)
        return (*steps, colours / (2 * size), net / size)
