"""Scores how damaged a picture is, from crops of its full-size luma.

Damage lives at full size: a smaller picture hides blocks, noise and blur. So the network sees
crops of 128 px, spread over the picture and cut on the grid of 16 px on which codecs place their
blocks. Crops go through the first layers of EfficientNet-Lite0 (`scene_network`), as far as a
stride of 16. The mean and the deviation of each channel over a crop say which textures it has. A
small head (two hidden layers, several networks with different seeds) turns these numbers into a
score. `benchmarks/train_distortion.py` fits the head.

Colours are not read: luma is at hand in full size without a conversion.

Shape letters: H, W height and width, N crops, C channels, D numbers per crop, M networks.
"""

# ruff: noqa: N803, N806 - shape letters

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from curator.models.picture_network import Picture, PictureNetwork
from curator.models.scene_network import SceneNetwork, scene_model_name

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = Path(__file__).with_name("distortion_head.safetensors")
CROP_PX = 128
GRID_PX = 16
LEAST_PX = 16
"""Smallest side of a picture: a smaller one has nothing left behind a stride of 16."""
LONG, SHORT = 3, 2
"""Places of crops along the longer and the shorter side."""
READ = (0, 2, 3, 5)
"""The places that are read, row by row of a wide picture: those near the corners."""
BLOCKS = (0, 2, 4, 6)
"""Blocks of the network whose outputs are read, besides the stem."""

Luma = NDArray[np.uint8]
Box = tuple[int, int, int, int]


@cache
def distortion_model_name() -> str:
    """Returns the name under which scores are stored, which depends on all weights."""
    digest = hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()[:16]
    return f"distortion_head/{digest} {scene_model_name()}"


def crop_corners(box: Box) -> list[tuple[int, int]]:
    """Returns top and left of each crop inside a box (top, bottom, left, right) of a picture.

    Crops begin on the grid of the picture. In a small picture, places coincide and count once.
    """
    top, bottom, left, right = box
    is_wide = right - left >= bottom - top
    rows, columns = (SHORT, LONG) if is_wide else (LONG, SHORT)
    tops, lefts = _starts(top, bottom, rows), _starts(left, right, columns)
    places = [(tops[r], lefts[c]) for r in range(rows) for c in range(columns)]
    if not is_wide:
        places = [places[r * columns + c] for c in range(columns) for r in range(rows)]
    return list(dict.fromkeys(places))


def read_corners(box: Box) -> list[tuple[int, int]]:
    """Returns top and left of the crops that are read; all of them in a small picture."""
    corners = crop_corners(box)
    return [corners[n] for n in READ] if len(corners) == LONG * SHORT else corners


def crops_of(
    luma_HW: Luma, corners: Sequence[tuple[int, int]], *, black: int = 0, white: int = 255
) -> Luma:
    """Returns crops of a picture, uint8 [N, h, w], in full range.

    A crop has 128 px a side, or the picture's own side if that is smaller.
    """
    crops = [luma_HW[top : top + CROP_PX, left : left + CROP_PX] for top, left in corners]
    return full_range(np.stack(crops), black=black, white=white)


def full_range(crops_NHW: Luma, *, black: int, white: int) -> Luma:
    """Returns pixels as levels from 0 (black) to 255 (white)."""
    if (black, white) == (0, 255):
        return crops_NHW
    levels = (np.arange(256) - black) * (255 / (white - black))
    table = np.clip(np.rint(levels), 0, 255).astype(np.uint8)
    return np.asarray(table[crops_NHW], np.uint8)


def _starts(begin: int, end: int, n: int) -> list[int]:
    """Returns where `n` crops begin along a side, on the grid where the side is long enough."""
    last = max(begin, end - CROP_PX)
    middles = begin + (np.arange(n) + 0.5) * (end - begin) / n - CROP_PX / 2
    grid = np.rint(middles / GRID_PX).astype(int) * GRID_PX
    first_on_grid, last_on_grid = -(-begin // GRID_PX) * GRID_PX, last // GRID_PX * GRID_PX
    if first_on_grid > last_on_grid:
        return [begin] * n
    return np.clip(grid, first_on_grid, last_on_grid).tolist()  # type: ignore[no-any-return]


def crop_features(network: SceneNetwork, crops_NHW: Luma) -> NDArray[np.float32]:
    """Returns mean and deviation of each channel, float32 [N, D], of crops from `crops_of`."""
    import torch

    if network.device == "cpu":
        # More threads would compete with other workers for cores.
        torch.set_num_threads(1)
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


class DistortionHead:
    """Turns features of crops into a score.

    Args:
        path: Weights: `mean` and `scale` [D] of the features; per layer `weight_0` [M, D, K],
            `weight_1`, `weight_2`, and `bias_0` [M, 1, K], `bias_1`, `bias_2`.
    """

    def __init__(self, path: Path = WEIGHTS) -> None:
        from safetensors.numpy import load_file

        stored = {name: array.astype(np.float32) for name, array in load_file(path).items()}
        self._mean, self._scale = stored["mean"], stored["scale"]
        self._layers = [(stored[f"weight_{n}"], stored[f"bias_{n}"]) for n in range(3)]

    def score(self, features_ND: NDArray[np.float32]) -> float:
        """Returns the score of a picture, 0 clean to 1 destroyed, from its crops."""
        x_MNK = ((features_ND - self._mean) / self._scale)[None]
        for number, (weight, bias) in enumerate(self._layers):
            x_MNK = x_MNK @ weight + bias
            if number < len(self._layers) - 1:
                x_MNK = np.maximum(x_MNK, 0)
        return float(1 / (1 + np.exp(-x_MNK.mean())))


class DistortionNetwork(PictureNetwork):
    """Scores pictures by their crops; a worker has one.

    Args:
        scenes: The network whose first layers are read; None to load it.
        device: torch's name of the device.

    Raises:
        ModelError: The weights of the network are missing, or differ from the tested ones.
    """

    def __init__(self, scenes: SceneNetwork | None = None, *, device: str = "cpu") -> None:
        super().__init__(device=device, batch=1, side_px=CROP_PX, dim=1, name="distortion")
        self._scenes = scenes or SceneNetwork(device=device)
        self._head = DistortionHead()

    def prepare(self, rgb_HWC: Picture) -> Picture:
        """Returns its argument: crops are made while the frame is at hand."""
        return rgb_HWC

    def embed(self, prepared_NHWC: Sequence[Picture]) -> NDArray[np.float32]:
        """Returns the score of each picture, float32 [N, 1]; each element is crops [n, h, w].

        A picture with a side below `LEAST_PX` has no score, NaN.
        """
        scores = [
            self._head.score(crop_features(self._scenes, crops))
            if min(crops.shape[1:]) >= LEAST_PX
            else float("nan")
            for crops in prepared_NHWC
        ]
        return np.array(scores, np.float32).reshape(-1, 1)
