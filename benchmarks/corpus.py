"""What the driver takes for a large corpus whose candidates are stored: memory and CPU by stage.

Probes and candidates are made as workers would have left them (`tests/made_corpus.py`). Then each
case is a run in a process of its own, with real decisions: rules with bounds by quantile,
duplicates, and a selection if asked for. Listing and cutting are pretended, so that what remains is
the driver's arithmetic: reading, judging, deciding, planning shards, tables, report.

Memory is sampled each 10 ms: all that is resident, and the part that no file backs (`anon`). The
pages of a temporary file count to the first alone, and the system takes them back when it needs to.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import tests_path  # noqa: F401

os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from measure import machine

MIB = 1 << 20
FEW = ("filters.motion.min=0.4",)
"""Rejects more, as recipes for a large corpus do: about one clip of twenty is kept."""


class Watch:
    """Peak memory, CPU-seconds and wall time by stage; called as each stage begins."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {}
        self._now, self._peaks = "start", [0, 0]
        self._begun = time.monotonic(), time.process_time()
        self._lock, self._done = threading.Lock(), threading.Event()
        threading.Thread(target=self._sample, daemon=True).start()

    def stage(self, name: str) -> None:
        """Ends a stage, and begins another."""
        with self._lock:
            now = time.monotonic(), time.process_time()
            spent = [b - a for a, b in zip(self._begun, now, strict=True)]
            peaks = [max(pair) for pair in zip(self._peaks, _memory(), strict=True)]
            old = self.found.get(self._now, [0, 0, 0, 0])
            self.found[self._now] = [
                *map(max, peaks, old[:2]), *(a + b for a, b in zip(spent, old[2:], strict=True))
            ]  # fmt: skip
            self._now, self._begun, self._peaks = name, now, [0, 0]

    def result(self) -> dict[str, dict[str, float]]:
        """The stages, in MiB and seconds."""
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

    def _sample(self) -> None:
        while not self._done.wait(0.01):
            with self._lock:
                self._peaks = [max(pair) for pair in zip(self._peaks, _memory(), strict=True)]


def _memory() -> list[int]:
    """Bytes that are resident, and those of them that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines if line.startswith(("VmRSS", "RssAnon")))
    return [int(found[name].split()[0]) << 10 for name in ("VmRSS", "RssAnon")]


def main() -> None:
    """Runs the measurement; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where output roots are made, or are already")
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--memory", help="budget of the run, such as 1GiB")
    parser.add_argument(
        "--unit-clips", type=int, help="as a first run, whose workers propose so many at a time"
    )
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--case", choices=("make", "run"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    root: Path = options.folder / f"out-{options.clips}"
    if options.case:
        print(json.dumps(_case(options, root)))
        return
    if not root.exists():
        _child("make")
    found = _child("run")
    for stage, values in found["stages"].items():
        print(
            f"{stage:<10}{values['rss_mib']:>9,.0f} MiB {values['anon_mib']:>9,.0f} MiB anon"
            f"{values['cpu_s'] * 1e6 / options.clips:>9.2f} CPU-us/clip{values['wall_s']:>9.2f} s"
        )
    print(json.dumps({"clips": options.clips, **found, **machine()}))


def _case(options: argparse.Namespace, root: Path) -> dict[str, Any]:
    import made_corpus as made

    recipe = made.recipe_of([*made.SETTINGS, *FEW, *options.overrides])
    if options.case == "make":
        made.make(root, options.clips, recipe)
        return {}
    out = root.with_name("run")
    shutil.rmtree(out, ignore_errors=True)
    subprocess.run(["cp", "-al", str(root), str(out)], check=True)
    own: dict[str, Any] = {}
    if options.memory:
        from curator.commands.arguments import memory_size

        own["memory_bytes"] = memory_size(options.memory)
    watch = Watch()
    n_sources = -(-options.clips // made.PER_SOURCE)
    own |= {"unit_clips": options.unit_clips} if options.unit_clips else {}
    summary = made.execute(out, recipe, n_sources, stage=watch.stage, **own)
    stages = watch.result()
    shutil.rmtree(out)
    return {"kept": summary["counts"]["kept"], "stages": stages, "memory": options.memory}


def _child(case: str) -> dict[str, Any]:
    words = [sys.executable, *sys.argv, "--case", case]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
