"""What this machine offers to a cluster of our own."""

import contextlib
import os
import sys
from pathlib import Path


def available_cpus() -> int:
    """Cores that this process may use."""
    if sys.platform == "linux":
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """Memory of this machine, or of the container that this process runs in."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def object_store_bytes() -> int:
    """Memory for Ray's object store: it holds references and small records only."""
    return min(2 << 30, max(256 << 20, memory_bytes() // 16))
