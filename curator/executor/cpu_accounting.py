"""Accounts for all CPU-seconds of a run, by purpose, and tells whether the run makes progress.

A run renews its lease only while it makes progress: results arrive, the driver passes from one step
to the next, or the driver or a worker uses CPU time, as during a long unit.
"""

import gc
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "CURATE_RUN"
"""Environment variable with the same value in all processes of a run."""

ACTOR = "curate_"
"""Prefix of the names of Ray actors that run steps; the stage's name follows."""

BUSY_SHARE = 0.05
"""Share of a core above which a process counts as busy. A process that waits uses 0.01 of a core,
with Ray's threads."""

_POLL_S = 10.0
"""Shortest time over which a heartbeat measures CPU use, in seconds."""
_WORKER = f"ray::{ACTOR}".encode()
"""Prefix of the titles of worker processes, where the steps count CPU-seconds themselves."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_profile(workers: Mapping[str, float]) -> dict[str, float]:
    """Returns the CPU-seconds of a run by purpose.

    Args:
        workers: CPU-seconds that the workers' steps counted, by purpose. The workers have ended.

    Returns:
        The workers' numbers, `driver` for this process, `engine` for the processes that serve the
        workers (such as Ray's daemons), and `total`. On a cluster that this process did not start,
        `engine` is unknown and set to 0.
    """
    profile = {**workers, "driver": time.process_time(), "engine": _serving_cpu_s()}
    profile["total"] = sum(profile.values())
    return {name: round(seconds, 3) for name, seconds in profile.items()}


def mark_processes() -> None:
    """Marks this process and its later children, because Ray's daemons leave the process tree."""
    os.environ[MARK] = f"{os.getpid()}-{secrets.token_hex(8)}"


def is_driver() -> bool:
    """Returns whether this process is the one that called `mark_processes`."""
    return os.environ.get(MARK, "").startswith(f"{os.getpid()}-")


def stat_of(process: object) -> list[str]:
    """Returns the fields of `/proc/PROCESS/stat` after the name, for a process or thread.

    Raises:
        OSError: The process is gone.
    """
    stat = Path(f"/proc/{process}/stat").read_text("ascii", "replace")
    return stat.rpartition(")")[2].split()


def cpu_s_of(process: object) -> float:
    """Returns user and system time of a process, in seconds; 0 if the process is gone."""
    try:
        user, system = stat_of(process)[11:13]
    except OSError:
        return 0.0
    return (int(user) + int(system)) / _TICKS_PER_S


def process_tree(process: object = "self") -> Iterator[str]:
    """Yields a process and its descendants, such as a sandbox or a server."""
    yield str(process)
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            for child in listed.read_text().split():
                yield from process_tree(child)


def tree_cpu_s(process: object = "self") -> float:
    """Returns the CPU-seconds of a process and its descendants."""
    return sum(map(cpu_s_of, process_tree(process)))


def _serving_cpu_s() -> float:
    return sum(cpu_s_of(number) for number, works in processes_of_run().items() if not works)


def processes_of_run() -> dict[int, bool]:
    """Returns the other processes of this run, and whether each is a worker of Ray or its sandbox.

    Empty in a process that did not call `mark_processes`.
    """
    if not is_driver():
        return {}
    mark = f"{MARK}={os.environ[MARK]}".encode()
    parents: dict[int, int] = {}
    is_worker: dict[int, bool] = {}
    marked = set()
    for folder in Path("/proc").glob("[0-9]*"):
        number = int(folder.name)
        # A process may end while it is read.
        with suppress(OSError):
            is_worker[number] = (folder / "cmdline").read_bytes().startswith(_WORKER)
            if mark in (folder / "environ").read_bytes():
                marked.add(number)
            parents[number] = int(stat_of(number)[1])
    # The parent counts too, because Ray's agents and workers overwrite their environment.
    return {
        # The sandbox of a worker is a child of it; the steps count its CPU-seconds.
        number: is_worker[number] or is_worker.get(parent, False)
        for number, parent in parents.items()
        if number != os.getpid() and (number in marked or parent in marked)
    }


class CpuClock:
    """Divides the CPU-seconds of a worker's process by purpose.

    Time before the first call of a step is `start_up`, which includes the loading of models. Time
    between two calls is `between_units`. The driver's time is counted as a whole, so in the driver
    the clock divides only the time of the sandbox.
    """

    _of_process: float | None = None
    """CPU-seconds of this process that any clock has assigned already."""

    def __init__(self) -> None:
        self._between = "start_up"
        self._last = 0.0

    def begin(self) -> dict[str, float]:
        """Begins a call; returns the CPU-seconds since the last one, by name."""
        now = _own_cpu_s()
        passed = {self._between: now - (CpuClock._of_process or 0.0)}
        self._last, self._between = now, "between_units"
        return passed

    @staticmethod
    def lap(seconds: dict[str, float], name: str) -> None:
        """Adds the CPU-seconds of this process that no clock has assigned yet, to a purpose."""
        now = _own_cpu_s()
        passed = now - (CpuClock._of_process or 0.0)
        seconds[name] = seconds.get(name, 0.0) + max(0.0, passed)
        CpuClock._of_process = now

    def end(self, seconds: dict[str, float], *, rest: str, more_s: float = 0.0) -> dict[str, float]:
        """Ends a call; returns all CPU-seconds since the previous call, by purpose.

        Args:
            seconds: Returned by `begin`; the caller has added its measurements of this call.
            rest: Purpose of the call's other CPU-seconds.
            more_s: CPU-seconds that another process spent on the call.
        """
        now = _own_cpu_s()
        inside = sum(s for name, s in seconds.items() if name not in ("start_up", "between_units"))
        seconds[rest] = seconds.get(rest, 0.0) + max(0.0, now - self._last + more_s - inside)
        self._last = CpuClock._of_process = now
        return seconds


def _own_cpu_s() -> float:
    return 0.0 if is_driver() else time.process_time()


def thread_cpu_s() -> float:
    """Returns the CPU-seconds of this thread; 0 in the driver, which counts its whole process."""
    return 0.0 if is_driver() else time.thread_time()


class Heartbeat:
    """Notes signs of progress; any thread may call `beat`."""

    def __init__(self) -> None:
        self._beat_s = time.monotonic()
        self._polled_s, self._polled_cpu_s = self._beat_s, time.process_time()
        self._lock = threading.Lock()

    def beat(self) -> None:
        """Notes progress."""
        self._beat_s = time.monotonic()

    def idle_s(self) -> float:
        """Returns the seconds since the last progress; CPU use of the driver is progress too."""
        with self._lock:
            now_s, cpu_s = time.monotonic(), time.process_time()
            passed_s = now_s - self._polled_s
            if passed_s >= _POLL_S:
                if cpu_s - self._polled_cpu_s >= BUSY_SHARE * passed_s:
                    self._beat_s = now_s
                self._polled_s, self._polled_cpu_s = now_s, cpu_s
            return now_s - self._beat_s


@contextmanager
def no_collection() -> Iterator[None]:
    """Disables garbage collection in the block, and exempts the block's objects from it for good.

    Imports make objects that stay. Torch makes a million of them, and collection would take a fifth
    of its import time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
