"""Scores how damaged a picture is, from crops of its full-size luma.

Damage lives at full size: a smaller picture hides blocks, noise and blur. So the network sees six
crops of 128 px, spread evenly over the picture and cut on the grid of 16 px on which codecs place
their blocks. Crops go through the first layers of EfficientNet-Lite0 (`scene_network`), as far as a
stride of 16. The mean and the deviation of each channel over a crop say which textures it has. A
small head turns these numbers into a score; `benchmarks/train_distortion.py` fits the head.

Colours are not read: luma is at hand in full size without a conversion.

Shape letters: H, W height and width, N crops, C channels, D numbers per crop.
"""

# ruff: noqa: N803, N806 - shape letters

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from curator.models.scene_network import SceneNetwork

if TYPE_CHECKING:
    from torch import Tensor

CROP_PX = 128
GRID_PX = 16
LONG, SHORT = 3, 2
"""Crops along the longer and the shorter side."""
BLOCKS = (0, 2, 4, 6)
"""Blocks of the network whose outputs are read, besides the stem."""

Luma = NDArray[np.uint8]


def crops_of(luma_HW: Luma, *, black: int = 0, white: int = 255) -> Luma:
    """Returns crops of a picture, uint8 [N, h, w], in full range.

    `luma_HW` is uint8, without black borders. A crop has 128 px a side, or the picture's own side
    if that is smaller.
    """
    height, width = luma_HW.shape
    rows, columns = (SHORT, LONG) if width >= height else (LONG, SHORT)
    crops = np.stack([
        luma_HW[top : top + CROP_PX, left : left + CROP_PX]
        for top in _starts(height, rows)
        for left in _starts(width, columns)
    ])  # fmt: skip
    if (black, white) == (0, 255):
        return crops
    levels = (np.arange(256) - black) * (255 / (white - black))
    table = np.clip(np.rint(levels), 0, 255).astype(np.uint8)
    return np.asarray(table[crops], np.uint8)


def _starts(side_px: int, n: int) -> list[int]:
    """Returns where crops begin along a side, on the grid."""
    most = max(0, side_px - CROP_PX)
    if most == 0:
        return [0]
    middles = (np.arange(n) + 0.5) * side_px / n - CROP_PX / 2
    grid = np.rint(np.clip(middles, 0, most) / GRID_PX) * GRID_PX
    return np.unique(np.minimum(grid, most // GRID_PX * GRID_PX)).astype(int).tolist()


def crop_features(network: SceneNetwork, crops_NHW: Luma) -> NDArray[np.float32]:
    """Returns mean and deviation of each channel, float32 [N, D], of crops from `crops_of`."""
    import torch

    with torch.inference_mode():
        given = torch.from_numpy(crops_NHW).to(network.device).float()[:, None]
        pooled = [
            torch.cat([mean, (square - mean * mean).clamp_(min=0).sqrt()], dim=1)
            for mean, square in map(_moments, network.early_outputs(given, BLOCKS))
        ]
        features: NDArray[np.float32] = torch.cat(pooled, dim=1).cpu().numpy()
    return features


def _moments(x_NCHW: "Tensor") -> "tuple[Tensor, Tensor]":
    return x_NCHW.mean(dim=(2, 3)), (x_NCHW * x_NCHW).mean(dim=(2, 3))
