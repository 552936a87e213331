"""Checks whether this machine's GPU decodes; `python -m curator.media.nvdec_check` prints why not.

The versions of PyNvVideoCodec, torch and the driver are read without importing these packages. A
message consists of a fault, a semicolon, and the remedy.
"""

import ctypes
import importlib.util
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from curator.errors import CuratorError
from curator.installation import install_extra, pip_command
from curator.media.nvdec import Nvdec

TIMEOUT_S = 120
CODEC = "PyNvVideoCodec"
FIRST_CODEC = "2.2.4"
"""First version with the right strides of 10-bit frames; `pyproject.toml` requires it."""

_FIRST_DRIVER = {13: "580", 12: "525", 11: "450"}
"""First driver for each major version of CUDA; minor versions are compatible. Source: NVIDIA's CUDA
compatibility guide."""
_LAST_TORCH = {12: "torch<2.11"}
"""The newest torch for an older CUDA. PyPI's builds are for CUDA 12 up to torch 2.10."""


@cache
def nvdec_refusal() -> str | None:
    """Returns why sources cannot be decoded on the first visible GPU; None if they can.

    The check runs in a separate process, because a CUDA context takes hundreds of MB of the GPU's
    memory, and a broken driver may end the process.
    """
    command = [sys.executable, "-P", "-m", __name__]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"NVDEC does not answer within {TIMEOUT_S} s"
    if done.returncode == 0:
        return None
    return done.stdout.strip() or f"the check of NVDEC ended with status {done.returncode}"


def installed_version(distribution: str) -> str | None:
    """Returns the version of a distribution; None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def codec_fault(installed: str | None) -> str | None:
    """Returns why PyNvVideoCodec of an `installed` version cannot be used; None if it can."""
    if installed is None:
        return f"{CODEC} is not installed; {install_extra('gpu')}"
    if _numbers(installed) >= _numbers(FIRST_CODEC):
        return None
    return (
        f"{CODEC} is {installed}, and before {FIRST_CODEC}, 10-bit frames are wrong; "
        f"{install_extra('gpu')}"
    )


def _numbers(dotted: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", dotted)[:3])


def torch_cuda_build(version_file: str) -> str | None:
    """Returns the CUDA version that torch was built for, such as `13.2`; None for CPU-only.

    Args:
        version_file: Text of torch's `version.py`; importing torch would take seconds.
    """
    build = re.search(r"^cuda\b[^=]*= *['\"]([^'\"]+)", version_file, re.M)
    return build[1] if build is not None else None


def installed_cuda_build() -> str | None:
    """Returns the CUDA version of the installed torch; None for a CPU-only build or no torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return torch_cuda_build(Path(spec.origin).with_name("version.py").read_text())


def driver_fault(build: str, driver_cuda: int) -> str | None:
    """Returns why a build of torch cannot use a driver; None if it can.

    Args:
        build: CUDA version of the build, such as `13.2`.
        driver_cuda: Newest CUDA version that the driver supports, such as 13020 for 13.2.
    """
    wanted, newest = int(build.partition(".")[0]), driver_cuda // 1000
    if newest >= wanted:
        return None
    other = f"install a torch for CUDA {newest}"
    if newest in _LAST_TORCH:
        other += f": {pip_command('install', _LAST_TORCH[newest])}"
    return (
        f"the driver is too old, and supports CUDA up to {cuda_words(driver_cuda)}; "
        f"update the driver to {_FIRST_DRIVER.get(wanted, 'a newer version')} or newer, or {other}"
    )


def cuda_words(number: int) -> str:
    """Formats CUDA's version number 13020 as `13.2`."""
    return f"{number // 1000}.{number % 1000 // 10}"


def torch_fault() -> str | None:
    """Returns why the installed torch cannot use this machine's driver; None if it can."""
    driver_cuda, build = _driver_cuda(), installed_cuda_build()
    if build is None:
        again = pip_command("install", "torch", "torchvision", again=True)
        return f"torch is a CPU-only build; {again}"
    # Without a driver, PyNvVideoCodec does not load, and its error says so.
    fault = driver_fault(build, driver_cuda) if driver_cuda is not None else None
    return f"torch is built for CUDA {build}, and {fault}" if fault is not None else None


def _driver_cuda() -> int | None:
    """Returns the newest CUDA version of the driver, such as 13020; None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int(0)
    library.cuDriverGetVersion(ctypes.byref(number))
    return number.value


def _main() -> int:
    try:
        refusal = (
            codec_fault(installed_version(CODEC)) or torch_fault() or Nvdec().decodes_nothing()
        )
    except CuratorError as error:
        refusal = str(error)
    if refusal is not None:
        print(refusal)
    return int(refusal is not None)


if __name__ == "__main__":
    sys.exit(_main())
