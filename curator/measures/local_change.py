"""Measures how much a picture changes in a way that neither the camera nor the light explains.

Cameras that see one event from several sides agree in when things move, and in little else. A
hand-held camera moves the whole picture, and lamps and exposure change all of it. So the change
from the frame before is fitted by a shift, a turn, a zoom, a gain and an offset of levels, and what
remains is measured. Pictures are the shot network's, of 48x27 pixels: there, shake moves less than
a pixel per frame, for which one linear fit is enough.

Shape letters: T frames, H, W height and width, C channels, P pixels.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from curator.models.transnet import LUMA

if TYPE_CHECKING:
    from torch import Tensor

_BATCH = 64
_RIDGE = 1e-3
"""Weight of the prior for no motion, so that flat pictures have a fit; of squared levels."""


class LocalChange:
    """Gets the frames of a source in order, as uint8 RGB on the CPU or batches on any device."""

    def __init__(self) -> None:
        self._frames: list[NDArray[np.uint8]] = []
        self._last: Any = None
        self._changes: list[Any] = []

    def push(self, rgb_HWC: NDArray[np.uint8]) -> None:
        """Takes the next frame."""
        self._frames.append(rgb_HWC)
        if len(self._frames) == _BATCH:
            self._measure()

    def push_batch(self, rgb_THWC: "Tensor") -> None:
        """Takes the next frames, and leaves their changes on their device."""
        import torch

        # Not a product with a tensor of weights: copying it to a GPU would wait for the GPU.
        r, g, b = LUMA.tolist()
        red, green, blue = rgb_THWC.float().unbind(3)
        luma_THW = red * r + green * g + blue * b
        if self._last is None:
            self._last = luma_THW[:1]
        self._changes.append(_changes(torch, torch.cat([self._last, luma_THW])))
        self._last = luma_THW[-1:].clone()

    def finish(self) -> NDArray[np.float32]:
        """Returns the root mean square of each frame's unexplained change of luma, 0 to 1, [T].

        The first frame has 0.
        """
        if self._frames:
            self._measure()
        on_host = [c if isinstance(c, np.ndarray) else c.cpu().numpy() for c in self._changes]
        return np.concatenate([np.zeros(0, np.float32), *on_host]).astype(np.float32)

    def _measure(self) -> None:
        luma_THW = np.stack(self._frames).astype(np.float32) @ LUMA
        self._frames.clear()
        first = luma_THW[:1] if self._last is None else self._last
        self._changes.append(_changes(np, np.concatenate([first, luma_THW])))
        self._last = luma_THW[-1:]


def _changes(xp: Any, luma_THW: Any) -> Any:  # noqa: ANN401 - NumPy or torch, and their arrays
    """Returns the change of each frame but the first; `xp` is the arrays' library."""
    before, after = luma_THW[:-1], luma_THW[1:]
    n, height, width = before.shape
    middle = before + after
    level = middle[:, 1:-1, 1:-1]
    right = middle[:, 1:-1, 2:] - middle[:, 1:-1, :-2]
    down = middle[:, 2:, 1:-1] - middle[:, :-2, 1:-1]
    place = {"dtype": luma_THW.dtype} | ({} if xp is np else {"device": luma_THW.device})
    y = (xp.arange(1, height - 1, **place) * 2 + 1 - height)[:, None] / width
    x = (xp.arange(1, width - 1, **place) * 2 + 1 - width)[None, :] / width
    parts = [level * 0 + 1, level, right, down, x * right + y * down, x * down - y * right]
    terms = xp.stack(parts, 1).reshape(n, len(parts), -1)
    change = (after - before)[:, 1:-1, 1:-1].reshape(n, -1, 1)
    ridge = _RIDGE * terms.shape[2] * xp.eye(len(parts), **place)
    normal, wanted = terms @ terms.swapaxes(1, 2) + ridge, terms @ change
    # `solve` would wait for a GPU; the ridge makes each system solvable.
    fit = np.linalg.solve(normal, wanted) if xp is np else xp.linalg.solve_ex(normal, wanted)[0]
    rest = (change - terms.swapaxes(1, 2) @ fit)[:, :, 0]
    return (rest * rest).mean(1) ** 0.5 / 255
