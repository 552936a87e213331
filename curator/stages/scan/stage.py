"""The stage that probes sources. It imports little, so that its process starts soon."""

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from curator.errors import RETRIED, ErrorCode
from curator.records.sources import Failure, SourceRef
from curator.stage import Resources, Scope, Stage
from curator.stages.scan.config import ScanConfig
from curator.stages.scan.probe import SCAN_SCHEMA, failure_columns, scan_key, scan_source
from curator.storage import Store
from curator.storage.source_reader import is_racy
from curator.tables.parts import Parts, rows_to_table

MAX_PROBE_S = 30.0
"""CPU-seconds for one header: the longest index, of a day at 120 frames/s, takes 5."""
MAX_PROBE_BYTES = 768 << 20
"""Memory for one header, of which an index of a day at 120 frames/s takes 500 MB."""


class ScanStage(Stage[ScanConfig, SourceRef, dict[str, Any]]):
    """Probes sources without decoding them."""

    name = "scan"
    version = 1
    scope = Scope.SOURCE
    writes = ("scan",)
    config_type = ScanConfig
    results_ignore = frozenset({"sidecar_meta"})
    boxed = True
    memory_code = ErrorCode.TOO_LARGE_TO_PROBE

    @property
    def limit_bytes(self) -> int:
        """Memory for a header."""
        return MAX_PROBE_BYTES

    def limit_s(self, unit: SourceRef) -> float:
        """Seconds for a header."""
        return MAX_PROBE_S

    @property
    def resources(self) -> Resources:
        """Half a core: reading headers is mostly waiting."""
        return Resources(cpus=0.5)

    def process(self, unit: SourceRef) -> dict[str, Any]:
        """Probes a source; returns a row of `SCAN_SCHEMA`."""
        return scan_source(unit.uri, unit.n_bytes, unit.version)

    def failed(self, unit: SourceRef, failure: Failure) -> dict[str, Any]:
        """Returns the row of a source that cannot be probed."""
        return _identity(unit) | failure_columns(failure)


def _identity(source: SourceRef) -> dict[str, Any]:
    return {"uri": source.uri, "bytes": source.n_bytes, "version": source.version}


class ProbeParts:
    """Stores the probes of a unit as one part.

    The next run probes again what failed for the moment, and files that were being written.
    """

    def __init__(self, store: Store, stamp: str) -> None:
        self._parts = Parts(store, "scan", stamp)
        self._since_ns = time.time_ns()

    def __call__(self, unit: Sequence[SourceRef], rows: Sequence[dict[str, Any]]) -> pa.Table:
        """Stores rows of `SCAN_SCHEMA`; returns them as a table.

        What names a source is that of the unit: a decoder must not make this process open another.
        """
        named = [row | _identity(source) for source, row in zip(unit, rows, strict=True)]
        table = rows_to_table(named, SCAN_SCHEMA)
        done = [
            scan_key(source.uri, source.version)
            for source, row in zip(unit, rows, strict=True)
            if row.get("error_code") not in RETRIED
            and not is_racy(source.uri, source.version, self._since_ns)
        ]
        if done:
            self._parts.write(table, done)
        return table
