"""Accounts for a run's CPU-seconds, so that they add up to those of the machine.

They also say whether a run makes progress, for which its lease is renewed. It does while results
come, while its driver goes on from one step to the next, and while the driver or a worker works:
then a unit is long, and nothing is wrong.
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
"""Environment variable that the processes of a run have in common."""

ACTOR = "curate_"
"""Beginning of the names of Ray actors that run steps; the name of their stage follows."""

BUSY_SHARE = 0.05
"""Share of a core above which a process works; one that waits, with Ray's threads, takes a
hundredth."""

_POLL_S = 10.0
"""Shortest time over which a heartbeat compares CPU-seconds."""
_WORKER = f"ray::{ACTOR}".encode()
"""Beginning of the titles of processes whose steps count what they spend."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_profile(workers: Mapping[str, float]) -> dict[str, float]:
    """Returns the CPU-seconds of a run by purpose.

    Args:
        workers: CPU-seconds that the workers' steps counted, by name. The workers have ended.

    Returns:
        The workers' numbers, `driver` for this process, `engine` for the processes that serve the
        workers (Ray's daemons, the ledger), and `total`. On a cluster that this process did not
        start, the engine's part is unknown and given as 0.
    """
    profile = {**workers, "driver": time.process_time(), "engine": sum(_serving_cpu_s())}
    profile["total"] = sum(profile.values())
    return {name: round(seconds, 3) for name, seconds in profile.items()}


def mark_processes() -> None:
    """Marks the processes that this one will start: Ray's daemons leave the tree of processes."""
    os.environ[MARK] = f"{os.getpid()}-{secrets.token_hex(8)}"


def is_driver() -> bool:
    """Returns whether this process is the one that called `mark_processes`."""
    return os.environ.get(MARK, "").startswith(f"{os.getpid()}-")


def stat_of(process: object) -> list[str]:
    """Returns the fields of a process's or thread's `/proc/PROCESS/stat` after its name.

    Raises:
        OSError: It is gone.
    """
    stat = Path(f"/proc/{process}/stat").read_text("ascii", "replace")
    return stat.rpartition(")")[2].split()


def cpu_s_of(process: object) -> float:
    """Returns user and system time of a process, in seconds; 0 where it is gone."""
    try:
        user, system = stat_of(process)[11:13]
    except OSError:
        return 0.0
    return (int(user) + int(system)) / _TICKS_PER_S


def tree_cpu_s() -> float:
    """Returns the CPU-seconds of this process and its children, the sandboxed one among them."""
    total_s = time.process_time()
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            total_s += sum(map(cpu_s_of, listed.read_text().split()))
    return total_s


def _serving_cpu_s() -> Iterator[float]:
    mark = f"{MARK}={os.environ.get(MARK, '')}".encode()
    parents: dict[int, int] = {}
    marked = set()
    for folder in Path("/proc").glob("[0-9]*"):
        number = int(folder.name)
        # A killed process may not be gone yet.
        with suppress(OSError):
            if not (folder / "cmdline").read_bytes().startswith(_WORKER):
                if mark in (folder / "environ").read_bytes():
                    marked.add(number)
                parents[number] = int(stat_of(number)[1])
    for number, parent in parents.items():
        # By its parent too: Ray's agents overwrite their environment.
        if number != os.getpid() and (number in marked or parent in marked):
            yield cpu_s_of(number)


class CpuClock:
    """Divides the CPU-seconds of a worker's process among its tasks.

    Time before the first call of a step is start-up, with the loading of models; time between two
    calls is the engine's own work. In the driver, whose time is counted as a whole, it divides
    nothing but the time of its sandbox.
    """

    _of_process: float | None = None
    """CPU-seconds of this process that are given out already, by whichever clock."""

    def __init__(self) -> None:
        self._between = "start_up"
        self._last = 0.0

    def begin(self) -> dict[str, float]:
        """Begins a call; returns the CPU-seconds since the last one, by name."""
        now = _own_cpu_s()
        passed = {self._between: now - (CpuClock._of_process or 0.0)}
        self._last, self._between = now, "between_units"
        return passed

    def end(self, seconds: dict[str, float], *, rest: str, more_s: float = 0.0) -> dict[str, float]:
        """Ends a call; returns all CPU-seconds of this process since the previous one.

        `seconds` are from `begin`, with measurements inside the call; the rest of it is for `rest`,
        with `more_s` of the call that another process took.
        """
        now = _own_cpu_s()
        inside = sum(s for name, s in seconds.items() if name not in ("start_up", "between_units"))
        seconds[rest] = seconds.get(rest, 0.0) + max(0.0, now - self._last + more_s - inside)
        self._last = CpuClock._of_process = now
        return seconds


def _own_cpu_s() -> float:
    return 0.0 if is_driver() else time.process_time()


def thread_cpu_s() -> float:
    """Returns CPU-seconds of this thread; 0 in the driver, whose time is counted as a whole."""
    return 0.0 if is_driver() else time.thread_time()


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


@contextmanager
def no_collection() -> Iterator[None]:
    """Looks for no garbage meanwhile, nor later among what is made here.

    Imports make objects that stay, torch's a million: looking takes a fifth of its time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
