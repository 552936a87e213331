"""Scans and analyzes damaged videos in a decoder box, a batch for each stage, as a run does.

It has no shots, whose network takes a second of each file alike, and cuts nothing: `fuzz.py` does.

    python benchmarks/fuzz_box.py --n 20000                    # footage made by code
    python benchmarks/fuzz_box.py --n 20000 --videos FOLDER    # short pieces of these films
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tests_path  # noqa: F401

from curator.errors import ErrorCode
from curator.executor.decoder_box import process_box
from curator.executor.unit_worker import UnitWorker
from curator.recipe import load_recipe
from curator.records.sources import Failure, SourceRef
from curator.records.tracks import Track
from curator.stages.analyze.families import families_of
from curator.stages.analyze.stage import AnalyzeStage
from curator.stages.scan.config import ScanConfig
from curator.stages.scan.stage import ScanStage
from curator.storage import stat_source
from curator.tables.parts import rows_to_table
from curator.tables.schemas import SCAN_SCHEMA
from curator.tables.source_table import SourceTable
from curator.tables.track_items import SourceItem

MOST_S, MOST_BYTES = 60.0, 1 << 30
BATCH = 500
DEFECTS = {ErrorCode.INTERNAL, ErrorCode.WORKER_DIED}


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of a file."""

    code: str
    cpu_s: float = 0.0
    peak_bytes: int = 0
    problems: list[str] = field(default_factory=list)


class BoxedFuzz:
    """Scans and analyzes files in the box of this process."""

    def __init__(self) -> None:
        config = load_recipe("quickstart", []).analyze
        self._families = frozenset(one.name for one in families_of(config)) - {"shots"}
        self._scan = UnitWorker(stage=ScanStage(ScanConfig()))
        self._analyze = UnitWorker(stage=AnalyzeStage(config, families=self._families))

    def __call__(self, paths: Sequence[Path]) -> Iterator[tuple[Path, Outcome]]:
        """Yields each file with its outcome."""
        outcomes: dict[str, Outcome] = {}
        refs = []
        for path in paths:
            n_bytes, version = stat_source(str(path))
            source = SourceRef(uri=str(path), n_bytes=n_bytes, version=version)
            row, outcome = _one(self._scan, source)
            code = ErrorCode(row["error_code"]) if row.get("error_code") else None
            outcome.code = str(code or "done")
            if code in DEFECTS:
                outcome.problems.append(str(row["error_message"]))
            outcomes[source.uri] = outcome
            if code is None:
                table = SourceTable()
                table.add_probes(rows_to_table([row], SCAN_SCHEMA))
                refs += list(table.to_analyze())
        for ref in refs:
            result, outcome = _one(self._analyze, SourceItem(source=ref, families=self._families))
            if isinstance(result, Failure):
                outcome.code = str(result.code)
                if result.code in DEFECTS:
                    outcome.problems.append(result.message)
            elif not isinstance(result, Track):
                outcome.problems.append(f"an answer of {type(result).__name__}")
            else:
                outcome.code = "done"
            outcome.cpu_s += outcomes[ref.uri].cpu_s
            outcomes[ref.uri] = outcome
        yield from ((path, outcomes[str(path)]) for path in paths)


def _one(worker: UnitWorker, item: Any) -> tuple[Any, Outcome]:  # noqa: ANN401
    unit = worker([item])
    spent = sum(s for name, s in unit.cpu_s.items() if name not in ("start_up", "between_units"))
    peak = 0
    process = process_box()._process
    if process is not None:
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            peak = next(int(line.split()[1]) << 10 for line in lines if "VmHWM" in line)
    outcome = Outcome(code="", cpu_s=spent, peak_bytes=peak)
    if spent > MOST_S:
        outcome.problems.append(f"{spent:.0f} CPU-seconds")
    if peak > MOST_BYTES:
        outcome.problems.append(f"{peak >> 20} MiB in the box")
        process_box().stop()
    return unit.results[0], outcome


def main() -> None:
    """Fuzzes, and prints what was found."""
    from fuzz import cases, made_videos, short_pieces
    from measure import machine

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=20_000, help="mutants (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=600.0, help="most time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--videos", type=Path, help="folder of films (default: made by code)")
    parser.add_argument("--found", type=Path, default=Path("found"), help="where finds are kept")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    found: list[str] = []
    slowest, peak, cpu_s, begun = 0.0, 0, 0.0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        work = Path(name)
        (work / "pool").mkdir()
        pool = (
            made_videos(work / "pool")
            if options.videos is None
            else short_pieces(options.videos, work / "pool", seconds=1.5, most_bytes=1_000_000)
        )
        print(len(pool), "films", flush=True)
        given, tried = cases(pool, options.seed, 0), BoxedFuzz()
        (work / "mutants").mkdir()
        begun = time.monotonic()
        while counts.total() < options.n and time.monotonic() < begun + 60 * options.minutes:
            whats = {}
            for _ in range(min(BATCH, options.n - counts.total())):
                file, what, data, _recipe = next(given)
                path = work / "mutants" / file
                path.write_bytes(data)
                whats[path] = what
            for path, outcome in tried(list(whats)):
                counts[outcome.code] += 1
                cpu_s += outcome.cpu_s
                slowest, peak = max(slowest, outcome.cpu_s), max(peak, outcome.peak_bytes)
                for problem in outcome.problems:
                    options.found.mkdir(parents=True, exist_ok=True)
                    (options.found / f"{options.seed}-{path.name}").write_bytes(path.read_bytes())
                    found.append(f"{path.name} ({whats[path]}): {problem}")
                    print("FOUND", found[-1], flush=True)
                path.unlink()
            wall_s = time.monotonic() - begun
            print(
                f"{counts.total()} mutants, {wall_s:.0f} s, {cpu_s:.0f} CPU-s, {peak >> 20} MiB, "
                f"slowest {slowest:.1f} CPU-s, {dict(counts)}", flush=True,
            )  # fmt: skip
    print(json.dumps({"counts": dict(counts), "found": found} | machine()))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
