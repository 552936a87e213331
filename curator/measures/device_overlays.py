"""Computes the maps of `drawn_marks` and `look_maps` for pictures in a device's memory.

A call only queues work for several pictures; the host does not wait. Each function returns the same
values as its counterpart in those modules, before packing. Results are equal to the bit, except
that codes of motion may differ by one if a side of the picture is odd.

Shape letters: S pictures or pairs of pictures, H, W height and width.
"""

from typing import TYPE_CHECKING

import numpy as np

from curator.measures.drawn_marks import EDGE, EDGE_OVER_MEAN, EDGE_SIDE
from curator.measures.look_maps import (
    CODES_PER_OCTAVE,
    FILLED,
    LINE_ALONG,
    MOVED_SIDE,
    SHOWN,
    STEP,
    UNLIKE,
    places_of,
)
from curator.media.device_frames import scaling_matrix_on
from curator.media.device_graphs import constants

if TYPE_CHECKING:
    from torch import Tensor

LEAST_PX = 2 * max(EDGE_SIDE, LINE_ALONG, MOVED_SIDE)  # the host measures pictures below this size


def edges_of(gray_SHW: "Tensor") -> "Tensor":
    """Returns cells with strong edges, uint8 0 or 1 [S, 2, 72, 72]; see `edge_map`."""
    import torch

    gradients = _sobel(gray_SHW.float()).abs()
    cells = _area(gradients, EDGE_SIDE, EDGE_SIDE)
    mean = cells.mean(dim=(2, 3), keepdim=True)
    return (cells > torch.clamp(EDGE_OVER_MEAN * mean, min=EDGE)).to(torch.uint8)


def standing_of(before_SHW: "Tensor", after_SHW: "Tensor") -> "Tensor":
    """Returns places of standing lines, uint8 0 or 1 [S, 2, 40, 256]; see `standing_lines`."""
    import torch

    planes = []
    pair = torch.stack([before_SHW, after_SHW]).to(torch.int16)
    for grays in (pair, pair.transpose(2, 3)):
        steps = (grays[..., 2:] - grays[..., :-2]).abs().amin(dim=0)
        sharp = (steps > STEP).float()
        along = scaling_matrix_on(sharp.shape[1], LINE_ALONG, sharp.device)
        filled = (along @ sharp >= FILLED - 1e-6).float()
        gathered = filled @ _gathering(sharp.shape[2] + 2, sharp.device)[1:-1]
        planes.append(gathered > 0)
    return torch.stack(planes, dim=1).to(torch.uint8)


def moved_of(before_SHW: "Tensor", after_SHW: "Tensor") -> "Tensor":
    """Returns motion of cells as codes from 0 to 15, uint8 [S, 32, 32]; see `moved_map`."""
    import torch

    n, height, width = before_SHW.shape
    pair = torch.cat([before_SHW, after_SHW]).float()
    half = _area(pair, height // 2, width // 2)
    # OpenCV rounds halves up if four pixels become one pixel, else to even numbers.
    half = (half + 0.5).floor() if height % 2 == width % 2 == 0 else half.round()
    gradients = _sobel(half)
    a, b = gradients[:n], gradients[n:]
    products = torch.stack([(a * b).sum(1), (a * a).sum(1), (b * b).sum(1)], dim=1)
    cells = _area(products, MOVED_SIDE, MOVED_SIDE)
    cross, before, after = cells.unbind(1)
    most = torch.maximum(before, after)
    scale = torch.maximum((before * after).sqrt(), UNLIKE * most).clamp_min(1e-6)
    stays = torch.where(most >= SHOWN, (cross / scale).clamp(0, 1), 0.0)
    moved = _area((half[:n] - half[n:]).abs(), MOVED_SIDE, MOVED_SIDE) * (1 - stays)
    codes = (CODES_PER_OCTAVE * torch.log2(1 + moved)).round()
    return codes.clamp(0, 15).to(torch.uint8)


def _sobel(gray_SHW: "Tensor") -> "Tensor":
    """Returns gradients to the right and downwards, in levels per px, float32 [S, 2, H, W]."""
    import torch

    kernels = _sobel_kernels(gray_SHW.device)
    padded = torch.nn.functional.pad(gray_SHW[:, None], (1, 1, 1, 1), mode="reflect")
    return torch.nn.functional.conv2d(padded, kernels)


def _area(values_XHW: "Tensor", height: int, width: int) -> "Tensor":
    """Scales the last two axes to a height and width, by means of areas."""
    H, W = values_XHW.shape[-2:]
    down = scaling_matrix_on(H, height, values_XHW.device)
    across = scaling_matrix_on(W, width, values_XHW.device)
    return down @ values_XHW @ across.t()


@constants(16)
def _sobel_kernels(device: object) -> "Tensor":
    import torch

    across = np.outer([1, 2, 1], [-1, 0, 1]) / 8
    both = np.stack([across, across.T])[:, None].astype(np.float32)
    return torch.from_numpy(both).to(device)  # type: ignore[call-overload,no-any-return]


@constants(64)
def _gathering(n_places: int, device: object) -> "Tensor":
    """Returns the map from pixels to places of lines, float32 0 or 1 [n_places, 256]."""
    import torch

    places = places_of(np.eye(n_places, dtype=bool), n_places)
    return torch.from_numpy(places.astype(np.float32)).to(device)  # type: ignore[call-overload,no-any-return]
