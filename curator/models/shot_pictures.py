"""The shot network's small pictures of a frame, and the luma that is measured on them."""

# ruff: noqa: N803 - shape letters

from typing import TYPE_CHECKING

import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray

from curator.media.scale import Scaler
from curator.models.transnet import HEIGHT, WIDTH

if TYPE_CHECKING:
    from torch import Tensor

PICTURE_PX = 640
"""Longer side of the picture for sharpness and exposure: out-of-focus edges still show at it."""
LUMA = np.array([0.2126, 0.7152, 0.0722], np.float32)
"""ITU-R BT.709 luma weights."""


def needs_smoothing(stream: VideoStream) -> bool:
    """Whether a stream is so small that the loop filter of all frames shows in a measurement.

    At half the size and below, what it does to a block's edge is gone.
    """
    return max(stream.width, stream.height) < 2 * PICTURE_PX


def tiny_scaler(rotation_deg: int) -> Scaler:
    """Scaler to the shot network's picture; `rotation_deg` is clockwise, to show it upright."""
    return Scaler(WIDTH, HEIGHT, rotation_deg=rotation_deg)


def tiny_luma(rgb_HWC: NDArray[np.uint8]) -> tuple[float, float]:
    """Mean and standard deviation of luma, 0 (black) to 1 (white), of uint8 RGB."""
    luma = rgb_HWC.astype(np.float32) @ LUMA
    return float(luma.mean()) / 255, float(luma.std()) / 255


def tiny_luma_of(frames_BHWC: "Tensor") -> "Tensor":
    """The same of many pictures on any device, float32 [B, 2]."""
    import torch

    # Not a product with weights made here, whose copy to a GPU would wait for it.
    red, green, blue = frames_BHWC.flatten(1, 2).float().unbind(2)
    r, g, b = LUMA.tolist()
    luma = red * r + green * g + blue * b
    return torch.stack(torch.std_mean(luma, dim=1, correction=0)[::-1], dim=1).div_(255)
