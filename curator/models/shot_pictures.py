"""The small pictures that the shot network reads, and their luma."""

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
"""Longer side of the picture for sharpness and exposure; it still shows out-of-focus edges."""
LUMA = np.array([0.2126, 0.7152, 0.0722], np.float32)
"""ITU-R BT.709 luma weights."""


def needs_smoothing(stream: VideoStream) -> bool:
    """Returns whether measurements of a stream this small need the loop filter on all frames.

    Larger pictures are scaled to half their size or less, which removes the filter's effect on
    block edges.
    """
    return max(stream.width, stream.height) < 2 * PICTURE_PX


def tiny_scaler(rotation_deg: int) -> Scaler:
    """Returns a scaler to the shot network's picture, which turns `rotation_deg` clockwise."""
    return Scaler(WIDTH, HEIGHT, rotation_deg=rotation_deg)


def tiny_luma(rgb_HWC: NDArray[np.uint8]) -> tuple[float, float]:
    """Returns mean and standard deviation of the luma of uint8 RGB, 0 (black) to 1 (white)."""
    luma = rgb_HWC.reshape(-1, 3).astype(np.float32) @ LUMA
    # The arithmetic of `mean` and `std`, a third of their time.
    n_pixels = np.float32(len(luma))
    mean = np.add.reduce(luma) / n_pixels
    luma -= mean
    luma *= luma
    return float(mean) / 255, float(np.sqrt(np.add.reduce(luma) / n_pixels)) / 255


def tiny_luma_of(frames_BHWC: "Tensor") -> "Tensor":
    """Returns the values of `tiny_luma` for many pictures on any device, float32 [B, 2]."""
    import torch

    # No product with a tensor of weights: copying the weights to a GPU would wait for the GPU.
    red, green, blue = frames_BHWC.flatten(1, 2).float().unbind(2)
    r, g, b = LUMA.tolist()
    luma = red * r + green * g + blue * b
    return torch.stack(torch.std_mean(luma, dim=1, correction=0)[::-1], dim=1).div_(255)
