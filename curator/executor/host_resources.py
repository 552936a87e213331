"""Finds the cores, GPUs and memory of this machine."""

import contextlib
import importlib.util
import os
import sys
from itertools import takewhile
from pathlib import Path

from curator.errors import UsageError

_DEVICES = Path("/dev")


def available_cpus() -> int:
    """Returns the number of cores that this process may use."""
    if sys.platform == "linux":
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def available_gpus() -> int:
    """Counts the NVIDIA GPUs that a CUDA process would find, without using the GPUs.

    It counts the device files that open. Other sources are wrong in a container: the driver's list
    in /proc is the list of the whole machine, and NVIDIA_VISIBLE_DEVICES is `void` if CDI provides
    the devices. A GPU in MIG mode counts as one, unless CUDA_VISIBLE_DEVICES names its instances.
    """
    files = [path for path in _DEVICES.glob("nvidia*") if path.name[6:].isdigit()]
    n_gpus = sum(open_error(path) is None for path in files)
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None or not n_gpus:
        return n_gpus
    names = [name.strip() for name in shown.split(",")]
    # CUDA ignores all names from the first unknown one on.
    visible = list(takewhile(lambda name: _is_known(name, n_gpus), names))
    n_instances = sum(name.startswith("MIG-") for name in visible)
    return n_instances + min(n_gpus, len(visible) - n_instances)


def _is_known(name: str, n_gpus: int) -> bool:
    return name.startswith(("GPU-", "MIG-")) or (name.isdigit() and int(name) < n_gpus)


def open_error(path: str | Path) -> str | None:
    """Returns why a device file does not open, such as a container's rules; None if it does."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror
    return None


def device_of(asked: str, n_gpus: float) -> str:
    """Returns the device of analysis, `cpu` or `gpu`, by the recipe and the available GPUs.

    Args:
        asked: Value of `analyze.device`.
        n_gpus: GPUs of the machine or cluster. All nodes must have the same packages as this one.

    Raises:
        UsageError: The recipe requires a GPU, and the machine has none.
    """
    if asked == "auto":
        has_package = importlib.util.find_spec("PyNvVideoCodec") is not None
        return "gpu" if has_package and n_gpus >= 1 else "cpu"
    if asked == "gpu" and n_gpus < 1:
        raise UsageError(
            "analyze.device is gpu, but neither the driver nor Ray finds a GPU; `curate doctor` "
            "says why, and --set analyze.device=cpu runs without a GPU"
        )
    return asked


def memory_bytes() -> int:
    """Returns the memory of this machine, or the limit of this process's container if lower."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def default_memory_bytes() -> int:
    """Returns the default memory for columns of clips: a quarter of `memory_bytes`."""
    return memory_bytes() // 4


def object_store_bytes() -> int:
    """Returns the size of Ray's object store, which holds only references and small records."""
    return min(2 << 30, max(256 << 20, memory_bytes() // 16))
