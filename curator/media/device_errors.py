"""What an error says of a GPU: its memory is short, or its context is of no more use."""

import re
import sys
from collections.abc import Callable
from typing import Any

from curator.errors import DeviceError, DeviceLostError, DeviceMemoryError, one_line

OUT_OF_MEMORY = 2
"""CUDA's number of the error."""

STAYING = frozenset(
    {3, 4, 46, 100, 201, 214, 220, 226, 700, 702, 709, 710, *range(714, 720), 721, 805, 806, 807,
     810, 911, 999}
)  # fmt: skip
"""CUDA's numbers of errors after which the context, its device or MPS's server is of no more use.

All after which the process "must be terminated" by cuda.h of CUDA 13.2, and those of a device or a
context that is not there. The driver's and the runtime's numbers of these are the same."""

_NUMBER = re.compile(r"Error code : (\d+)")
"""In PyNvVideoCodec's errors."""

_NO_ROOM = re.compile(r"CU\w+_STATUS_(\w*ALLOC\w*_FAILED|NOT_INITIALIZED)")
"""In torch's errors of cuBLAS and cuDNN, which allocate for themselves when they begin."""


def device_error(error: Exception, synchronize: Callable[[], object]) -> DeviceError | None:
    """Returns what an error says of the GPU, or None where the GPU still answers after it.

    Whatever its kind: the call that meets a context that is lost need not be the one that lost it.

    Args:
        error: Of PyNvVideoCodec, of torch, or of anything that was computed meanwhile.
        synchronize: A short call of the device, which raises a `RuntimeError` if that is lost.
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
