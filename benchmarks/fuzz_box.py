"""Scans and analyzes damaged videos in a sandbox, one file at a time.

By default shots are not detected, because the network takes a second per file. Nothing is cut.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure import peak_bytes

from curator.errors import ErrorCode
from curator.executor.sandboxed_process import process_sandbox
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
DEFECTS = {ErrorCode.INTERNAL, ErrorCode.WORKER_DIED}


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The outcome of a file."""

    code: str
    problems: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    peak_bytes: int = 0


class BoxedFuzz:
    """Scans and analyzes files in this process's sandbox."""

    def __init__(self, *, shots: bool = False, threads: int = 1) -> None:
        config = load_recipe("quickstart", []).analyze
        self._families = frozenset(one.name for one in families_of(config))
        self._families -= frozenset() if shots else {"shots"}
        self._scan = UnitWorker(stage=ScanStage(ScanConfig()))
        stage = AnalyzeStage(config, families=self._families).with_threads(threads)
        self._analyze = UnitWorker(stage=stage)

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
                outcome.problems.append(f"unexpected result of type {type(result).__name__}")
            else:
                outcome.code = "done"
            outcome.cpu_s += outcomes[ref.uri].cpu_s
            outcomes[ref.uri] = outcome
        yield from ((path, outcomes[str(path)]) for path in paths)


def _one(worker: UnitWorker, item: Any) -> tuple[Any, Outcome]:  # noqa: ANN401
    unit = worker([item])
    spent = sum(s for name, s in unit.cpu_s.items() if name not in ("start_up", "between_units"))
    process = process_sandbox()._process
    peak = peak_bytes(process.pid) if process is not None else 0
    outcome = Outcome(code="", cpu_s=spent, peak_bytes=peak)
    if spent > MOST_S:
        outcome.problems.append(f"{spent:.0f} CPU-seconds")
    if peak > MOST_BYTES:
        outcome.problems.append(f"{peak >> 20} MiB in the sandbox")
        process_sandbox().stop()
    return unit.results[0], outcome
