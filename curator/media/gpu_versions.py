"""Which versions of PyNvVideoCodec, torch and the driver fit, read without importing any of them.

A message is a fault, a semicolon, and the remedy.
"""

import re

from curator.errors import install_extra

CODEC = "PyNvVideoCodec"
FIRST_CODEC = "2.2.4"
"""First version whose frames of 10 bits have the right strides; `pyproject.toml` asks for it."""

_FIRST_DRIVER = {13: "580", 12: "525", 11: "450"}
"""First driver for each major version of CUDA; within one, all are compatible. Source: NVIDIA's
CUDA compatibility guide."""

_LAST_TORCH = {12: "uv pip install 'torch<2.11' in the checkout of this package"}
"""How to install a torch for an older CUDA: PyPI's builds are for CUDA 12 up to 2.10."""


def codec_fault(installed: str | None) -> str | None:
    """Returns why an installed version of PyNvVideoCodec, None for none, is not used; or None."""
    if installed is None:
        return f"{CODEC} is not installed; {install_extra('gpu')}"
    if _numbers(installed) >= _numbers(FIRST_CODEC):
        return None
    return (
        f"{CODEC} is {installed}, and before {FIRST_CODEC} frames of 10 bits are wrong; "
        f"{install_extra('gpu')}"
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def torch_cuda_build(version_file: str | None) -> str | None:
    """Returns the CUDA that torch was built for, such as `13.2`; None for CPU-only.

    Args:
        version_file: Text of its `version.py`: importing torch takes seconds.
    """
    for line in (version_file or "").splitlines():
        name, equals, value = line.partition("=")
        if equals and name.split(":")[0].strip() == "cuda":
            build = value.strip().strip("'\"")
            return None if build == "None" else build
    return None


def driver_fault(build: str, driver_cuda: int) -> str | None:
    """Returns why a torch cannot use a driver, or None.

    Args:
        build: CUDA that torch was built for.
        driver_cuda: Newest CUDA of the driver, such as 13020 for 13.2.
    """
    wanted, newest = int(build.partition(".")[0]), driver_cuda // 1000
    if newest >= wanted:
        return None
    other = f"install a torch for CUDA {newest}"
    if newest in _LAST_TORCH:
        other += f": {_LAST_TORCH[newest]}"
    return (
        f"the driver knows CUDA up to {cuda_words(driver_cuda)}: it is too old; "
        f"update the driver to {_FIRST_DRIVER.get(wanted, 'a newer version')} or newer, or {other}"
    )


def cuda_words(number: int) -> str:
    """Formats CUDA's version number 13020 as `13.2`."""
    return f"{number // 1000}.{number % 1000 // 10}"
