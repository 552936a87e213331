"""The stored probes of a run: a part per unit."""

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from curator.errors import RETRIED, ErrorCode
from curator.records.sources import Failure, SourceRef
from curator.stages.scan.probe import failure_columns, identity_columns
from curator.storage import Store
from curator.storage.source_reader import is_racy
from curator.tables.parts import Parts, rows_to_table
from curator.tables.removal_records import Removals
from curator.tables.schemas import SOURCES_SCHEMA

_NAMES = (
    "uri", "bytes", "version", "source_id", "container", "codec", "pixel_format", "width", "height",
    "rotation_deg", "pixel_aspect", "time_base", "fps", "is_vfr", "header_duration_s",
    "header_n_frames", "has_audio", "is_hdr", "error_stage", "error_code", "error_message",
)  # fmt: skip
_EXACT = dict.fromkeys(("time_base", "fps"), pa.string())
SCAN_SCHEMA = pa.schema([(n, _EXACT.get(n) or SOURCES_SCHEMA.field(n).type) for n in _NAMES])
"""Row of `scan`: the result of a probe, or its error, in columns of `sources`; rates are exact."""


def scan_key(uri: str, version: str) -> str:
    """Returns the key of a finished probe: another version is another key."""
    return f"{version}\t{uri}"


class ProbeParts:
    """Stores the probes of a unit as one part.

    The next run probes again what failed for the moment, and files that were being written.
    Sources that were removed fail here, so that their ids are not stored again.
    """

    def __init__(self, store: Store, stamp: str, removals: Removals | None = None) -> None:
        self._parts = Parts(store, "scan", stamp)
        self._removals = removals or Removals()
        self._since_ns = time.time_ns()

    def __call__(self, unit: Sequence[SourceRef], rows: Sequence[dict[str, Any]]) -> pa.Table:
        """Stores rows of `SCAN_SCHEMA`; returns them as a table.

        What names a source is that of the unit: a decoder must not make this process open another.
        """
        pairs = zip(unit, rows, strict=True)
        named = [self._withheld(source, row | identity_columns(source)) for source, row in pairs]
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

    def _withheld(self, source: SourceRef, row: dict[str, Any]) -> dict[str, Any]:
        date = self._removals.date_of(row.get("source_id"))
        if date is None:
            return row
        message = removed_message(source.uri, date)
        failure = Failure(uri=source.uri, stage="scan", code=ErrorCode.REMOVED, message=message)
        return identity_columns(source) | failure_columns(failure)


def removed_message(uri: str, date: str) -> str:
    """Returns why a source that was removed is not used."""
    return (
        f"{uri}: `curate remove` took it out of this OUT at {date}; it stays out: leave it out of "
        "the sources, or use another OUT"
    )
