"""What errors say of a GPU; the numbers are compared with CUDA's own header."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
from fake_nvdec import PyNvVCException

from curator.errors import DeviceError, DeviceLostError, DeviceMemoryError
from curator.media.device_errors import STAYING, device_error

ENDS_THE_PROCESS = r"must be terminated|context cannot be used anymore"


def cuda_header() -> str:
    """CUDA's own `cuda.h`, which comes with torch's libraries."""
    found = importlib.util.find_spec("nvidia")
    assert found is not None
    folders = [Path(folder) for folder in found.submodule_search_locations or ()]
    return next(path for f in folders for path in f.glob("cu*/include/cuda.h")).read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="torch comes with CUDA's header on Linux alone")
def test_all_errors_after_which_cuda_wants_a_new_process_are_known() -> None:
    """Pins the numbers by the header: one that is missing would poison a process."""
    numbers = {
        int(number): " ".join(words.replace("*", " ").split())
        for words, number in re.findall(r"/\*\*((?:(?!\*/).)*)\*/\s*CUDA_ERROR_\w+\s*=\s*(\d+)",
                                        cuda_header(), re.S)
    }  # fmt: skip
    wanted = {number for number, words in numbers.items() if re.search(ENDS_THE_PROCESS, words)}
    assert {226, 700, 719, 721, 810, 911} <= wanted <= STAYING
    assert set(numbers) >= STAYING


def with_number(words: str, number: int) -> Exception:
    error = torch.AcceleratorError(f"CUDA error: {words}")
    error.error_code = number  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PyNvVCException("cuvidDecodePicture", 2), DeviceMemoryError),
        (PyNvVCException("cuvidDecodePicture", 721), DeviceLostError),
        (PyNvVCException("cuvidDecodePicture", 801), None),
        (torch.OutOfMemoryError("CUDA out of memory"), DeviceMemoryError),
        (with_number("out of memory", 2), DeviceMemoryError),
        (with_number("an exception was contained", 226), DeviceLostError),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), DeviceMemoryError),
        (RuntimeError("CUBLAS_STATUS_NOT_INITIALIZED when calling"), DeviceMemoryError),
        (RuntimeError("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), DeviceMemoryError),
        (RuntimeError("CUDNN_STATUS_BAD_PARAM"), None),
        (DeviceMemoryError("said already"), DeviceMemoryError),
    ],
)
def test_memory_that_is_short_and_a_context_that_is_lost_are_told_apart(
    error: Exception, kind: type[DeviceError] | None
) -> None:
    """Pins each package's own words and numbers; a device that answers is not lost."""
    found = device_error(error, int)
    assert found is None if kind is None else type(found) is kind


def test_whatever_the_error_a_device_that_does_not_answer_is_lost() -> None:
    def synchronize() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    found = device_error(ValueError("wrong shape"), synchronize)
    assert isinstance(found, DeviceLostError)
    assert "wrong shape" in str(found)
    assert "illegal memory access" in str(found)
