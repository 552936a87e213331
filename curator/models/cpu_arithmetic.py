"""Tells which arithmetic is fast on this CPU."""

from functools import cache
from typing import Literal

Precision = Literal["auto", "float32", "int8"]


@cache
def has_fast_int8() -> bool:
    """Returns whether this CPU multiplies 8-bit integers in hardware (VNNI or AMX) for oneDNN.

    A variable such as `DNNL_MAX_CPU_ISA` may disable this. Then sums of two products overflow.
    """
    import torch

    if not (torch.backends.mkldnn.is_available() and torch.cpu._is_vnni_supported()):
        return False
    from curator.models.shot_layers import int8_convolution

    most = torch.full((1, 32, 3, 3), 255, dtype=torch.uint8)
    weights = torch.ones(32, 32, 3, 3)
    convolve = int8_convolution(weights, tuple(most.shape), step=1.0)
    products = convolve(most.contiguous(memory_format=torch.channels_last))
    return bool(torch.allclose(products, torch.tensor(255.0 * 32 * 9)))


def has_fast_bfloat16() -> bool:
    """Returns whether this CPU multiplies bfloat16 in hardware (AVX-512 BF16 or AMX)."""
    import torch

    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, bool)()) for name in checks)
