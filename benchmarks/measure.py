"""Whole-process measurements for the benchmarks: a command with all processes it starts."""

import contextlib
import os
import platform
import secrets
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

MARK = "CURATE_BENCH"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command took, with every process that it or its children started."""

    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    code: int
    output: str


def measured(command: list[str], *, interval_s: float = 0.25) -> Cost:
    """Runs a command and accounts for all processes that carry its mark in their environment.

    Ray's daemons leave the process tree, so that the usual accounting of children misses them. Each
    process's times are read a few times a second; what it uses after the last reading is missed.

    Args:
        command: Program and arguments.
        interval_s: Time between readings.
    """
    token = secrets.token_hex(8)
    environment = os.environ | {MARK: token}
    seen: dict[tuple[int, str], float] = {}
    peak = 0
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        while True:
            ended = process.poll() is not None
            resident = 0
            for key, cpu_s, rss in _marked(token):
                seen[key] = max(cpu_s, seen.get(key, 0.0))
                resident += rss
            peak = max(peak, resident)
            if ended:
                break
            time.sleep(interval_s)
        wall_s = time.monotonic() - start
        output.seek(0)
        return Cost(
            wall_s=wall_s,
            cpu_s=sum(seen.values()),
            peak_rss_bytes=peak,
            code=process.returncode,
            output=output.read().decode(errors="replace"),
        )


def _marked(token: str) -> list[tuple[tuple[int, str], float, int]]:
    wanted = f"{MARK}={token}".encode()
    known: dict[int, tuple[bool, list[str], int]] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            is_marked = wanted in (folder / "environ").read_bytes()
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            pages = int((folder / "statm").read_text().split()[1])
        except OSError:
            continue
        known[int(folder.name)] = is_marked, fields, pages
    found = []
    for number, (is_marked, fields, pages) in known.items():
        # Ray's agents write over their environment; their parent does not.
        parent = known.get(int(fields[1]))
        if is_marked or (parent is not None and parent[0]):
            cpu_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
            found.append(((number, fields[19]), cpu_s, pages * os.sysconf("SC_PAGE_SIZE")))
    return found


def machine() -> dict[str, object]:
    """Hardware, interpreter and commit of a measurement."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    commit = ""
    with contextlib.suppress(OSError):
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "python": platform.python_version(),
        "commit": commit,
    }
