"""Which arithmetic is fast on this CPU."""

from typing import Literal

Precision = Literal["auto", "float32", "int8"]


def has_fast_int8() -> bool:
    """Whether this CPU multiplies 8-bit integers in hardware (VNNI or AMX)."""
    import torch

    return torch.backends.mkldnn.is_available() and bool(torch.cpu._is_vnni_supported())


def has_fast_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware (AVX-512 BF16 or AMX)."""
    import torch

    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, bool)()) for name in checks)
