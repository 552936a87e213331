"""Resources that this machine offers to a cluster of our own."""

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
    """Counts the NVIDIA GPUs that a process of CUDA would find here; computes nothing on them.

    The driver's list in /proc and NVIDIA_VISIBLE_DEVICES do not say: a container sees the list of
    its machine, and one whose devices come by CDI has the value `void`. Its device files do. A GPU
    in MIG mode counts as one, unless CUDA_VISIBLE_DEVICES names its instances.
    """
    files = [path for path in _DEVICES.glob("nvidia*") if path.name[6:].isdigit()]
    n_gpus = sum(open_error(path) is None for path in files)
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None or not n_gpus:
        return n_gpus
    names = [name.strip() for name in shown.split(",")]
    # CUDA stops at the first name that it does not know.
    visible = list(takewhile(lambda name: _is_known(name, n_gpus), names))
    n_instances = sum(name.startswith("MIG-") for name in visible)
    return n_instances + min(n_gpus, len(visible) - n_instances)


def _is_known(name: str, n_gpus: int) -> bool:
    return name.startswith(("GPU-", "MIG-")) or (name.isdigit() and int(name) < n_gpus)


def open_error(path: str | Path) -> str | None:
    """Returns why a device may not be opened, as a container's rules decide; it is not waited for.

    None if it may be.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror
    return None


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
