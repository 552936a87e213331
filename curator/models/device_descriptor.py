"""Computes the perceptual descriptor (`perceptual.describe`) of batches of pictures on a device.

Blurs are products with constant matrices. The columns of these matrices are OpenCV's blurs of
single lines, so borders and kernels equal OpenCV's. Cosines to the host's descriptors are above
0.9999.

Shape letters: S pictures, H, W height and width, D dimensions.
"""

# ruff: noqa: N803, N806 - shape letters

from typing import TYPE_CHECKING, Any

import numpy as np

from curator.media.device_frames import scaling_matrix_on
from curator.media.device_graphs import constants
from curator.models import perceptual as host

if TYPE_CHECKING:
    from torch import Tensor

LEAST_PX = host.SIDE
"""Shortest side of pictures that the device describes; the host describes smaller ones."""


def describe_of(gray_SHW: "Tensor") -> "Tensor":
    """Describes uint8 luma pictures without black bars.

    Returns:
        float32 [S, D], unit vectors; zeros for a picture without structure.
    """
    import torch

    H, W = gray_SHW.shape[1:]
    device = gray_SHW.device
    down, across = (scaling_matrix_on(side, host.SIDE, device) for side in (H, W))
    square = (down @ gray_SHW.float() @ across.t()).round() / 255
    flat = _blurred(square, host.FLAT_BLUR_PX).std(dim=(1, 2), correction=0) < host.FLAT_STD
    cosines, weights, kept = _constants(device)
    coefficients = (cosines @ _maps(square) @ cosines.t() * weights).flatten(1)
    weighted = coefficients.index_select(1, kept)
    rooted = weighted.sign() * weighted.abs().sqrt()
    unit = torch.nn.functional.normalize(rooted, dim=1)
    return unit.masked_fill(flat[:, None], 0.0)


def _maps(square_SHW: "Tensor") -> "Tensor":
    import torch

    detail = square_SHW - _blurred(square_SHW, host.CONTRAST_SIGMA_PX)
    power = _blurred(detail * detail, host.CONTRAST_SIGMA_PX)
    luma = detail / (power + host.CONTRAST_FLOOR**2).sqrt()
    luma = luma - luma.mean(dim=(1, 2), keepdim=True)
    fine, coarse = (_gradients(square_SHW, blur_px) for blur_px in host.BLURS_PX)
    return torch.cat([luma[:, None], fine + coarse, fine - coarse], dim=1)


def _gradients(square_SHW: "Tensor", blur_px: float) -> "Tensor":
    import torch

    padded = torch.nn.functional.pad(
        _blurred(square_SHW, blur_px)[:, None], (1, 1, 1, 1), mode="reflect"
    )
    both = torch.nn.functional.conv2d(padded, _scharr(square_SHW.device))
    energy = (both * both).sum(1)
    floor = (host.SCHARR_GAIN * host.CONTRAST_FLOOR / blur_px) ** 2
    around = _blurred(energy, host.CONTRAST_SIGMA_PX) + floor
    strength = (energy / around) ** host.STRENGTH_POWER
    cos1, sin1 = (both / (energy.sqrt()[:, None] + 1e-6)).unbind(1)
    cos2, sin2 = cos1 * cos1 - sin1 * sin1, 2 * cos1 * sin1
    cos4, sin4 = cos2 * cos2 - sin2 * sin2, 2 * cos2 * sin2
    oriented = torch.stack([cos2, sin2, cos4, sin4], dim=1) * strength[:, None]
    centred = strength - strength.mean(dim=(1, 2), keepdim=True)
    return torch.cat([centred[:, None], oriented], dim=1)


def _blurred(square_SHW: "Tensor", sigma_px: float) -> "Tensor":
    blur = _blur(sigma_px, square_SHW.device)
    return blur @ square_SHW @ blur.t()


@constants(16)
def _blur(sigma_px: float, device: Any) -> "Tensor":  # noqa: ANN401
    import torch

    lines = np.eye(host.SIDE, dtype=np.float32)
    columns = [
        host.blurred(np.repeat(line[:, None], host.SIDE, 1), sigma_px)[:, 0] for line in lines
    ]
    return torch.from_numpy(np.stack(columns, axis=1)).to(device)


@constants(4)
def _scharr(device: Any) -> "Tensor":  # noqa: ANN401
    import torch

    across = np.outer([3, 10, 3], [-1, 0, 1]).astype(np.float32)
    return torch.from_numpy(np.stack([across, across.T])[:, None].copy()).to(device)


@constants(4)
def _constants(device: Any) -> "tuple[Tensor, Tensor, Tensor]":  # noqa: ANN401
    import torch

    kept = np.flatnonzero(host.KEPT_MKK)
    arrays = host.COSINES_KS, host.WEIGHTS_MKK, kept
    cosines, weights, places = (torch.from_numpy(array).to(device) for array in arrays)
    return cosines, weights, places
