"""Spans of sources in the table `sources`."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

from curator.records.time_spans import WHOLE, TimeSpan
from curator.tables.source_metadata import SourceMetadata
from curator.tables.source_spans import SourceSpans
from curator.tables.source_table import SourceTable


class Revised:
    """Takes the rows that a table of sources gets."""

    def revise(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.spans = {row["uri"]: json.loads(row["spans"]) for row in rows}


def test_spans_of_all_sources_are_joined_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins rows in any order, and that many sources cost no more than linear time."""
    metadata, revised, joins = SourceMetadata(), Revised(), []
    spans = SourceSpans(metadata)
    for number, at in enumerate([TimeSpan(2, math.inf), TimeSpan(0, 2)]):
        for name in ("/a.mp4", "/b.mp4"):
            spans.add(name, at, {"meta.task": f"{name}{number}"})
    spans.add("/c.mp4", WHOLE, {"meta.task": "c"})
    joined = SourceMetadata.joined

    def counted(self: SourceMetadata, table: pa.Table, key: str) -> pa.Table:
        joins.append(table.num_rows)
        return joined(self, table, key)

    monkeypatch.setattr(SourceMetadata, "joined", counted)
    spans.finish(cast(SourceTable, revised))
    assert joins == [4]
    assert revised.spans == {
        name: [
            {"start_s": 0, "end_s": 2, "meta": {"meta.task": f"{name}1"}},
            {"start_s": 2, "end_s": None, "meta": {"meta.task": f"{name}0"}},
        ]
        for name in ("/a.mp4", "/b.mp4")
    }
