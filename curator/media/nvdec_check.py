"""Whether this machine's GPU decodes: `python -m curator.media.nvdec_check` says why not."""

import ctypes
import importlib.util
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from curator.errors import CuratorError
from curator.media.gpu_versions import CODEC, codec_fault, driver_fault, torch_cuda_build
from curator.media.nvdec import Nvdec

TIMEOUT_S = 120


@cache
def nvdec_refusal() -> str | None:
    """Returns why sources cannot be decoded on the first GPU that this process sees, or None.

    It is asked in a process of its own: a CUDA context takes hundreds of MB of the GPU's memory,
    and a driver that does not work may end the process.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"NVDEC does not answer within {TIMEOUT_S} s"
    if done.returncode == 0:
        return None
    return done.stdout.strip() or f"the check of NVDEC ended with {done.returncode}"


def _versions_fault() -> str | None:
    """Returns which of the installed versions do not fit one another, or None."""
    return codec_fault(_codec_version()) or torch_fault()


def _codec_version() -> str | None:
    try:
        return version(CODEC)
    except PackageNotFoundError:
        return None


def _driver_cuda() -> int | None:
    """Returns the newest CUDA of the driver, such as 13020; None without one."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int(0)
    library.cuDriverGetVersion(ctypes.byref(number))
    return number.value


def torch_fault() -> str | None:
    """Returns why the installed torch does not fit this machine's driver, or None."""
    driver_cuda = _driver_cuda()
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    build = torch_cuda_build(Path(spec.origin).with_name("version.py").read_text())
    if build is None:
        return "torch is a CPU-only build; uv pip install --reinstall torch torchvision"
    # Without a driver PyNvVideoCodec does not load, and says why.
    fault = driver_fault(build, driver_cuda) if driver_cuda is not None else None
    return f"torch is built for CUDA {build}, and {fault}" if fault is not None else None


def _main() -> int:
    try:
        refusal = _versions_fault() or Nvdec().decodes_nothing()
    except CuratorError as error:
        refusal = str(error)
    if refusal is not None:
        print(refusal)
    return int(refusal is not None)


if __name__ == "__main__":
    sys.exit(_main())
