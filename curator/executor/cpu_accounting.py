"""Accounts for a run's CPU-seconds, so that they add up to those of the machine."""

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

MARK = "CURATE_RUN"
"""Environment variable that the processes of a run have in common."""

ACTOR = "curate_"
"""Beginning of the names of Ray actors that run steps; the name of their stage follows."""

_WORKER = f"ray::{ACTOR}".encode()
"""Beginning of the titles of their processes: their steps count what they spend."""

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
    profile = dict(workers)
    profile |= {"driver": time.process_time(), "engine": sum(_serving_cpu_s())}
    profile["total"] = sum(profile.values())
    return {name: round(seconds, 3) for name, seconds in profile.items()}


def mark_processes() -> None:
    """Marks the processes that this one will start: Ray's daemons leave the tree of processes."""
    os.environ[MARK] = f"{os.getpid()}-{secrets.token_hex(8)}"


def is_driver() -> bool:
    """Returns whether this process is the one that called `mark_processes`."""
    return os.environ.get(MARK, "").startswith(f"{os.getpid()}-")


def _serving_cpu_s() -> Iterator[float]:
    mark = f"{MARK}={os.environ.get(MARK, '')}".encode()
    parents: dict[int, int] = {}
    cpu_s: dict[int, float] = {}
    marked = set()
    for folder in Path("/proc").glob("[0-9]*"):
        number = int(folder.name)
        try:
            if (folder / "cmdline").read_bytes().startswith(_WORKER):
                # A killed process may not be gone yet.
                continue
            if mark in (folder / "environ").read_bytes():
                marked.add(number)
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[number] = int(fields[1])
        # User and system time of the process itself: ended workers are counted separately.
        cpu_s[number] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    for number, seconds in cpu_s.items():
        # By its parent too: Ray's agents overwrite their environment.
        if number != os.getpid() and (number in marked or parents[number] in marked):
            yield seconds
