"""Classifies errors of a GPU: it is out of memory, or it is lost."""

import re
import sys
from collections.abc import Callable
from typing import Any

from curator.errors import DeviceError, DeviceLostError, DeviceMemoryError, one_line

OUT_OF_MEMORY = 2
"""CUDA's error number for too little memory."""

STAYING = frozenset(
    {3, 4, 46, 100, 201, 214, 220, 226, 700, 702, 709, 710, *range(714, 720), 721, 805, 806, 807,
     810, 911, 999}
)  # fmt: skip
"""CUDA's numbers of errors after which the context, its device or the server of MPS is unusable.

These are the errors after which the process "must be terminated" (cuda.h of CUDA 13.2), and those
of a missing device or context. The driver and the runtime use the same numbers for them."""

_NUMBER = re.compile(r"Error code : (\d+)")
"""CUDA's error number in the text of PyNvVideoCodec's errors."""

_NO_ROOM = re.compile(r"CU\w+_STATUS_(\w*ALLOC\w*_FAILED|NOT_INITIALIZED)")
"""Names of errors of cuBLAS and cuDNN, which allocate their own memory when they begin."""


def device_error(error: Exception, synchronize: Callable[[], object]) -> DeviceError | None:
    """Returns the failure of the GPU behind an error; None if the GPU still works.

    Every kind of error is checked, because any later call may be the first to report that the
    context is lost.

    Args:
        error: Raised by PyNvVideoCodec, by torch, or during work on the GPU.
        synchronize: A short call to the device, which raises `RuntimeError` if the device is lost.
    """
    if isinstance(error, DeviceError):
        return error
    torch: Any = sys.modules.get("torch")
    words = one_line(error)
    named = _NUMBER.search(words)
    number = int(named[1]) if named is not None else 0
    if isinstance(error, RuntimeError):
        number = getattr(error, "error_code", number)
    is_short = torch is not None and isinstance(error, torch.OutOfMemoryError)
    if is_short or number == OUT_OF_MEMORY or _NO_ROOM.search(str(error)):
        return DeviceMemoryError(f"the GPU's memory is short ({words})")
    if number not in STAYING:
        try:
            synchronize()
            return None
        except RuntimeError as second:
            words += f"; then {one_line(second)}"
    return DeviceLostError(f"the GPU is lost ({words})")
