"""Resources that this machine offers to a cluster of our own."""

import contextlib
import importlib.util
import os
import sys
from pathlib import Path

from curator.errors import UsageError

_DRIVER, _DEVICES = Path("/proc/driver/nvidia/gpus"), Path("/dev")


def available_cpus() -> int:
    """Returns the number of cores that this process may use."""
    if sys.platform == "linux":
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def available_gpus() -> int:
    """Counts the NVIDIA GPUs that the driver lists for this process; starts nothing on them."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        n_gpus = len(list(_DRIVER.iterdir()))
    except OSError:
        # Some containers have the devices without the driver's part of /proc.
        names = [path.name.removeprefix("nvidia") for path in _DEVICES.glob("nvidia*")]
        n_gpus = sum(name.isdigit() for name in names)
    if shown is None:
        return n_gpus
    return min(n_gpus, sum(name.strip() not in ("", "-1") for name in shown.split(",")))


def device_of(asked: str, n_gpus: float) -> str:
    """Returns the device of analysis, `cpu` or `gpu`, by the recipe and this machine.

    Args:
        asked: Value of `analyze.device`.
        n_gpus: GPUs of the machine, or of the cluster, whose nodes must be set up like this one.

    Raises:
        UsageError: The recipe requires a GPU, and the machine has none.
    """
    if asked == "auto":
        has_package = importlib.util.find_spec("PyNvVideoCodec") is not None
        return "gpu" if has_package and n_gpus >= 1 else "cpu"
    if asked == "gpu" and n_gpus < 1:
        raise UsageError(
            "analyze.device is gpu, and neither driver nor Ray shows a GPU here; `curate doctor` "
            "says why, --set analyze.device=cpu does without"
        )
    return asked


def memory_bytes() -> int:
    """Returns the memory of this machine, or of this process's container."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def default_memory_bytes() -> int:
    """Returns the memory for columns of clips where no one says how much: a quarter of it."""
    return memory_bytes() // 4


def object_store_bytes() -> int:
    """Returns the memory for Ray's object store, which holds references and small records only."""
    return min(2 << 30, max(256 << 20, memory_bytes() // 16))
