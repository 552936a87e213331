"""Shared parts of the benchmarks: arguments, commands and their cost, memory by stage, results."""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curator.storage import Store

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
MIB = 1 << 20
CURATE = (sys.executable, "-m", "curator.cli")
"""The command, from the checkout that is first on the path."""
MARK = "CURATE_BENCH"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def arguments(documentation: str | None) -> argparse.ArgumentParser:
    """Returns a parser whose description is the first line of a script's docstring."""
    return argparse.ArgumentParser(description=(documentation or "").partition("\n")[0])


def sets(*changes: str) -> list[str]:
    """Returns `--set` options for `curate`."""
    return [word for change in changes for word in ("--set", change)]


def last_json(*command: str | os.PathLike[str]) -> dict[str, Any]:
    """Runs a command in another process; returns the JSON of its last output line."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Returns median, minimum and maximum as text."""
    return "{:{f}} ({:{f}}-{:{f}})".format(
        statistics.median(values), min(values), max(values), f=form
    )


def tell(results: dict[str, Any]) -> None:
    """Prints results and the machine as JSON, as the last line of every benchmark."""
    print(json.dumps(results | {"machine": machine()}))


def peak_bytes(process: int | str = "self") -> int:
    """Returns the peak memory of a process; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) << 10
    return 0


def hashes(store: "Store", *folders: str) -> dict[str, str]:
    """Returns SHA-256 of the objects in folders of an output root, by key."""
    return {
        info.key: hashlib.sha256(store.read(info.key)).hexdigest()
        for folder in folders
        for info in store.list(f"{folder}/")
    }


@contextlib.contextmanager
def work_folder(keep: Path | None, prefix: str = "bench-") -> Iterator[Path]:
    """Yields a new or temporary folder; short, because Ray's socket paths begin with it."""
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a command, including all processes that it or its children started."""

    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    peak_pss_bytes: int
    """Peak of all processes together, with shared pages counted once; 0 without `with_pss`."""
    driver_peak_bytes: int
    """Peak resident memory of the command's own process."""
    code: int
    output: str


def measured(command: list[str], *, interval_s: float = 0.25, with_pss: bool = False) -> Cost:
    """Runs a command, and counts all processes that have its mark in their environment.

    Ray's daemons leave the process tree, so counting children would miss them. CPU time after the
    last reading of a process is not counted.

    Args:
        command: Program and arguments.
        interval_s: Seconds between readings.
        with_pss: Also measure shared pages: a reading then takes 80 ms instead of 2 ms.
    """
    token = secrets.token_hex(8)
    environment = os.environ | {MARK: token}
    seen: dict[tuple[int, str], float] = {}
    peak = peak_pss = driver_peak = 0
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        while True:
            ended = process.poll() is not None
            resident = proportional = 0
            for key, cpu_s, rss in _marked(token):
                seen[key] = max(cpu_s, seen.get(key, 0.0))
                resident += rss
                proportional += _proportional_bytes(key[0]) if with_pss else 0
            peak, peak_pss = max(peak, resident), max(peak_pss, proportional)
            driver_peak = max(driver_peak, peak_bytes(process.pid))
            if ended:
                break
            time.sleep(interval_s)
        wall_s = time.monotonic() - start
        output.seek(0)
        return Cost(
            wall_s=wall_s,
            cpu_s=sum(seen.values()),
            peak_rss_bytes=peak,
            peak_pss_bytes=peak_pss,
            driver_peak_bytes=driver_peak,
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
        # Ray's agents overwrite their environment; their parents keep it.
        parent = known.get(int(fields[1]))
        if is_marked or (parent is not None and parent[0]):
            cpu_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
            found.append(((number, fields[19]), cpu_s, pages * os.sysconf("SC_PAGE_SIZE")))
    return found


def _proportional_bytes(process: int) -> int:
    """Returns resident bytes, with each page divided by the number of processes that share it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


class Watch:
    """Records peak memory, CPU-seconds and wall time by stage. Call `stage` as each begins."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {}
        self._now, self._peaks = "start", [0, 0]
        self._own_s = 0.0
        self._begun = self._times()
        self._lock, self._done = threading.Lock(), threading.Event()
        threading.Thread(target=self._sample, daemon=True).start()

    def stage(self, name: str) -> None:
        """Ends the current stage, and begins another."""
        with self._lock:
            now = self._times()
            spent = [b - a for a, b in zip(self._begun, now, strict=True)]
            peaks = [max(pair) for pair in zip(self._peaks, _memory(), strict=True)]
            shown = f"{peaks[0] >> 20} MiB, {peaks[1] >> 20} anon, {spent[1]:.1f} CPU-s"
            print(f"{self._now}: {shown}", file=sys.stderr, flush=True)
            old = self.found.get(self._now, [0, 0, 0, 0])
            self.found[self._now] = [
                *map(max, peaks, old[:2]), *(a + b for a, b in zip(spent, old[2:], strict=True))
            ]  # fmt: skip
            self._now, self._begun, self._peaks = name, now, [0, 0]

    def result(self) -> dict[str, dict[str, float]]:
        """Returns the figures of each stage, in MiB and seconds."""
        self.stage("end")
        self._done.set()
        names = ("rss_mib", "anon_mib", "wall_s", "cpu_s")
        scales = (MIB, MIB, 1, 1)
        return {
            stage: {
                name: round(value / scale, 2)
                for name, value, scale in zip(names, values, scales, strict=True)
            }
            for stage, values in self.found.items()
        }

    def _times(self) -> tuple[float, float]:
        """Returns wall time, and CPU-seconds without those of the sampling thread."""
        return time.monotonic(), time.process_time() - self._own_s

    def _sample(self) -> None:
        while not self._done.wait(0.01):
            with self._lock:
                self._peaks = [max(pair) for pair in zip(self._peaks, _memory(), strict=True)]
            self._own_s = time.thread_time()


def _memory() -> list[int]:
    """Returns resident bytes, and the part that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines if line.startswith(("VmRSS", "RssAnon")))
    return [int(found[name].split()[0]) << 10 for name in ("VmRSS", "RssAnon")]


def in_checkout(
    checkout: Path, arguments: Sequence[str], *, interval_s: float = 0.25, with_pss: bool = False
) -> Cost:
    """Runs Python with the package of a checkout.

    Args:
        checkout: Folder of the checkout.
        arguments: Arguments of Python.
        interval_s: Seconds between readings of /proc; the precision of wall time.
        with_pss: As for `measured`.

    Returns:
        The cost. CPU time is the larger of two counts: `getrusage` of children misses Ray's
        daemons, and readings of /proc miss the ends of processes.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["env", "-C", "/", f"PYTHONPATH={checkout}", sys.executable, *arguments]
    cost = measured(command, interval_s=interval_s, with_pss=with_pss)
    if cost.code != 0:
        raise SystemExit(f"{checkout}: {' '.join(arguments)}: {cost.code}\n{cost.output}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    reaped_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return replace(cost, cpu_s=round(max(cost.cpu_s, reaped_s), 2), wall_s=round(cost.wall_s, 2))


def commit(checkout: Path) -> str:
    """Returns the commit of a checkout, with `+` if files have changed since."""
    git = ["git", "-C", str(checkout)]
    with contextlib.suppress(OSError):
        name = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        )
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], check=False).returncode
        return name.stdout.strip() + ("+" if changed else "")
    return ""


def machine() -> dict[str, object]:
    """Returns hardware, interpreter and commit of a measurement."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "python": platform.python_version(),
        "commit": commit(ROOT),
    }
