"""Whether a run makes progress: what its lease is renewed for.

A run makes progress while results come, while its driver goes on from one step to the next, and
while the driver or a worker works: then a unit is long, and nothing is wrong.
"""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

BUSY_SHARE = 0.05
"""Share of a core above which a process works; one that waits, with Ray's threads, takes a
hundredth."""

_POLL_S = 10.0
"""Shortest time over which CPU-seconds are compared."""


class Heartbeat:
    """Notes signs of progress; any thread may beat."""

    def __init__(self) -> None:
        self._beat_s = time.monotonic()
        self._polled_s, self._polled_cpu_s = self._beat_s, time.process_time()
        self._lock = threading.Lock()

    def beat(self) -> None:
        """Notes progress."""
        self._beat_s = time.monotonic()

    def idle_s(self) -> float:
        """Returns the seconds since the last progress; the driver's own work counts, too."""
        with self._lock:
            now_s, cpu_s = time.monotonic(), time.process_time()
            passed_s = now_s - self._polled_s
            if passed_s >= _POLL_S:
                if cpu_s - self._polled_cpu_s >= BUSY_SHARE * passed_s:
                    self._beat_s = now_s
                self._polled_s, self._polled_cpu_s = now_s, cpu_s
            return now_s - self._beat_s


def tree_cpu_s() -> float:
    """Returns the CPU-seconds of this process and its children, the sandboxed one among them."""
    total_s = time.process_time()
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            for pid in listed.read_text().split():
                stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
                user, system = stat.rpartition(")")[2].split()[11:13]
                total_s += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return total_s
