"""Tells which arithmetic is fast on this CPU."""

import re
from contextlib import suppress
from functools import cache
from pathlib import Path
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


@cache
def has_fast_bfloat16() -> bool:
    """Returns whether this CPU multiplies bfloat16 in hardware (AVX-512 BF16 or AMX).

    Imports no torch. False for systems other than Linux.
    """
    with suppress(OSError):
        return bool(re.search(r"\bavx512_bf16\b|\bamx_tile\b", Path("/proc/cpuinfo").read_text()))
    return False
