"""Says when training can begin, and what generations cost: one against several, in both modes.

    python benchmarks/generations.py SOURCE... FOLDER [--hours 0.02]

Each case is a run into an output root of its own. During it a loader opens the first snapshot that
has clips, and reads it epoch by epoch until the run ends; all epochs must be the same. Then a
loader opens the snapshot before the newest, `curate clean --keep 2` removes all older ones, and it
reads on. What was found: benchmarks/results/corpus.md.
"""

import argparse
import hashlib
import json
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import tests_path  # noqa: F401
from measure import machine, measured

from curator.cli import main as curate
from curator.loading import ClipDataset
from curator.storage import open_store
from curator.tables.snapshot_store import read_snapshot, snapshot_numbers

CASES = (("one generation", "exact", None), ("exact", "exact", 1), ("growing", "growing", 1))


class Reader:
    """Reads the first snapshot with clips, from its commit until `end` is called."""

    def __init__(self, out: Path) -> None:
        self._out, self._ends = out, threading.Event()
        self.epochs: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stops after the epoch that it is in."""
        self._ends.set()
        self._thread.join()

    def _read(self) -> None:
        while not (number := first_with_clips(self._out)):
            if self._ends.wait(0.2):
                return
        dataset = opened(self._out, number)
        while not self._ends.is_set():
            self.epochs.append(epoch(dataset))
            # A pause, because it shares the processor with the run that is measured.
            self._ends.wait(5.0)


def first_with_clips(out: Path) -> int:
    """Returns the first snapshot that keeps clips; 0 for none yet."""
    store = open_store(str(out))
    for number in snapshot_numbers(store):
        if read_snapshot(store, number)["counts"]["kept"]:
            return number
    return 0


def opened(out: Path, snapshot: int) -> ClipDataset:
    """Opens a snapshot, in the order of the tars, so that epochs are alike."""
    return ClipDataset(
        str(out), snapshot=snapshot, batch_size=None, frames=8, window="first", shuffle=0
    )


def epoch(dataset: ClipDataset) -> str:
    """Reads all samples once; returns a hash of all frames and captions, in any order."""
    samples = (
        sample["video"].numpy().tobytes() + str(sample["caption"]).encode() for sample in dataset
    )
    found = sorted(hashlib.sha256(sample).hexdigest() for sample in samples)
    return hashlib.sha256("".join(found).encode()).hexdigest()


def case(sources: list[str], out: Path, mode: str, hours: float | None) -> dict[str, Any]:
    """Runs one case."""
    sets = [f"run.mode={mode}", *([f"run.generation_hours={hours}"] if hours else [])]
    command = [sys.executable, "-m", "curator.cli", "run", *sources, str(out)]
    command += [word for one in sets for word in ("--set", one)]
    reader, begun = Reader(out), time.time()
    cost = measured(command)
    reader.end()
    if cost.code:
        raise SystemExit(cost.output)
    store = open_store(str(out))
    found = [read_snapshot(store, number) for number in snapshot_numbers(store)]
    n_sources = found[-1]["counts"]["sources"]
    steps = [
        {
            "after_s": round(datetime.fromisoformat(one["made"]).timestamp() - begun, 1),
            "sources": round(one["counts"]["sources"] / n_sources, 3),
            "kept": one["counts"]["kept"],
            "tars": len(one["shards"]),
        }
        for one in found
    ]
    cleaned = None
    if len(found) > 1:
        dataset = opened(out, len(found) - 1)
        before = epoch(dataset)
        curate(["clean", str(out), "--keep", "2"])
        cleaned = epoch(dataset) == before
    return {
        "wall_s": round(cost.wall_s, 1),
        "cpu_s": round(cost.cpu_s, 1),
        "snapshots": steps,
        "epochs_read_during_the_run": len(reader.epochs),
        "different_epochs": len(set(reader.epochs)),
        "same_after_clean": cleaned,
    }


def main() -> None:
    """Prints a JSON object per case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="+")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hours", type=float, default=0.02)
    options = parser.parse_args()
    print(json.dumps(machine()), flush=True)
    for name, mode, times in CASES:
        out = options.folder / name.replace(" ", "-")
        hours = options.hours * times if times else None
        print(json.dumps({name: case(options.sources, out, mode, hours)}), flush=True)


if __name__ == "__main__":
    main()
