"""The steps that probe sources. They import little: the process they run in has to start soon."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from curator.executor.attempts import RETRIED, internal_failure, watchdog
from curator.records import SourceRef
from curator.stages.scan.probe import SCAN_SCHEMA, failure_columns, scan_key, scan_source
from curator.storage import Store
from curator.tables.parts import Parts, rows_to_table

MAX_PROBE_S = 600.0
"""Wall time for one header after which its process is ended: it is a demuxer that hangs."""


class ProbeStep:
    """Probes a unit of sources, and leaves it to the caller to store what was found.

    Args:
        max_probe_s: Ends the process if a source takes longer; None never does.
    """

    def __init__(self, *, max_probe_s: float | None) -> None:
        self._max_probe_s = max_probe_s

    def __call__(self, unit: Sequence[SourceRef]) -> list[dict[str, Any]]:
        """Probes a unit; returns rows of `SCAN_SCHEMA`."""
        return [self._probe(source) for source in unit]

    def _probe(self, source: SourceRef) -> dict[str, Any]:
        try:
            with watchdog(self._max_probe_s or 0.0, armed=self._max_probe_s is not None):
                return scan_source(source.uri, source.n_bytes, source.version)
        except Exception as error:  # noqa: BLE001 - becomes the source's failed outcome
            failure = internal_failure(source.uri, "scan", error)
            own = {"uri": source.uri, "bytes": source.n_bytes, "version": source.version}
            return own | failure_columns(failure)


class ScanStep:
    """Probes a unit of sources, stores the probes, and returns their rows.

    Args:
        store: Output root.
        stamp: Fingerprint of the probes.
        max_probe_s: Ends the process if a source takes longer; None never does.
    """

    def __init__(self, *, store: Store, stamp: str, max_probe_s: float | None) -> None:
        self._parts = Parts(store, "scan", stamp)
        self._probe = ProbeStep(max_probe_s=max_probe_s)

    def __call__(self, unit: Sequence[SourceRef]) -> pa.Table:
        """Probes a unit; returns rows of `SCAN_SCHEMA`."""
        return store_probes(self._parts, unit, self._probe(unit))


def store_probes(
    parts: Parts, unit: Sequence[SourceRef], rows: Sequence[dict[str, Any]]
) -> pa.Table:
    """Stores the rows of a unit as one part; returns them as a table."""
    table = rows_to_table(rows, SCAN_SCHEMA)
    done = [
        scan_key(source.uri, source.version)
        for source, row in zip(unit, rows, strict=True)
        if row.get("error_code") not in RETRIED
    ]
    if done:
        parts.write(table, done)
    return table
