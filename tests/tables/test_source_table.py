"""The table of a run's sources: rows in any order, facts later, duplicates by content."""

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from curator.tables import source_table
from curator.tables.schemas import SCAN_SCHEMA, SOURCES_SCHEMA
from curator.tables.source_table import SourceTable, SourceTotals


def probe(uri: str, source_id: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    header = {"width": 320, "height": 180, "header_n_frames": 75, "codec": "h264", "fps": "25"}
    header["medium"] = "video"
    return {"uri": uri, "bytes": 10, "version": "1", "source_id": source_id} | header | more


def failed(uri: str, code: str = "not_a_video") -> dict[str, Any]:
    error = {"error_stage": "scan", "error_code": code, "error_message": f"{uri} is none"}
    return {"uri": uri, "bytes": 1, "version": "1"} | error


def probes(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCAN_SCHEMA)


def done(uri: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    facts = {"sha256": "s", "width": 180, "n_shots": 2, "n_clips": 3, "notes": ["truncated"]}
    return {"uri": uri, "outcome": "done", "duration_s": 3.0} | facts | more


def rows(table: SourceTable, **n_kept: int) -> list[dict[str, Any]]:
    parts = list(table.rows(n_kept))
    assert all(part.schema == SOURCES_SCHEMA for part in parts)
    return [row for part in parts for row in part.to_pylist()]


def test_rows_are_sorted_by_what_was_measured_and_sums_follow() -> None:
    table = SourceTable()
    table.add_probes(probes(probe("/b", "2"), failed("/c")))
    table.add_failed([{"uri": "/d", "error_stage": "list", "error_code": "vanished"}])
    table.add_probes(probes(probe("/a", "1")))
    assert len(table) == 4
    assert [(ref.uri, ref.source_id, ref.n_pixels) for ref in table.to_analyze()] == [
        ("/a", "1", 57600), ("/b", "2", 57600),
    ]  # fmt: skip
    table.measured([done("/b", width=1)])
    table.measured([failed("/a", "no_frames") | {"outcome": "failed"}])
    table.measured([done("/b")])
    a, b, c, d = rows(table, **{"2": 1})
    assert (a["outcome"], a["error_code"], a["width"], a["n_kept"]) == (
        "failed", "no_frames", 320, None,
    )  # fmt: skip
    assert (b["outcome"], b["width"], b["height"], b["n_kept"], b["fps"]) == (
        "done", 180, 180, 1, None,
    )  # fmt: skip
    assert (c["outcome"], c["error_code"]) == ("failed", "not_a_video")
    assert (d["outcome"], d["error_stage"], d["bytes"]) == ("failed", "list", None)
    # Sums follow a run and a pass that takes results again.
    table = SourceTable()
    table.add_probes(probes(probe("/a", "1"), probe("/b", "2"), failed("/c")))
    for _ in range(2):
        table.count_anew()
        some = table.up_to(1)
        some.measured([done("/a"), failed("/b", "no_frames") | {"outcome": "failed"}])
        assert some.sums is table.sums
        assert table.sums == {"done": 1, "failed": 2, "video_s": 3.0}


def test_sources_with_the_same_bytes_are_one_to_analyze_and_a_row_each() -> None:
    table = SourceTable()
    table.add_probes(probes(probe("/c", "1"), probe("/b", "1"), probe("/x", "2")))
    table.add_probes(probes(failed("/a") | {"source_id": "1"}, probe("/y", "2")))
    assert [ref.uri for ref in table.to_analyze()] == ["/b", "/x"]
    assert {key: ref.uri for key, ref in table.find(["2", "3"]).items()} == {"2": "/x"}
    table.measured([done("/b"), failed("/x", "no_frames") | {"outcome": "failed"}])
    a, b, c, x, y = rows(table, **{"1": 2})
    assert (b["n_clips"], b["n_kept"], b["notes"]) == (3, 2, ["truncated"])
    for copy in (a, c):
        assert copy["outcome"] == "done"
        assert copy["error_code"] is None
        assert (copy["n_shots"], copy["n_clips"], copy["n_kept"]) == (0, 0, 0)
        assert copy["notes"] == ["truncated", "same_bytes"]
    assert (x["error_code"], y["error_code"]) == ("no_frames", "no_frames")
    assert y["notes"] is None


def test_a_refused_source_is_no_copy_of_an_allowed_one() -> None:
    """Pins that a source which rights refuse keeps its code beside a copy that is done."""
    table = SourceTable()
    refused = failed("/a", "license_not_allowed") | {"source_id": "1"}
    table.add_probes(probes(refused, probe("/b", "1")))
    assert [ref.uri for ref in table.to_analyze()] == ["/b"]
    table.measured([done("/b")])
    a, b = rows(table, **{"1": 2})
    assert (a["outcome"], a["error_code"], a["notes"]) == ("failed", "license_not_allowed", None)
    assert (b["outcome"], b["n_kept"], b["notes"]) == ("done", 2, ["truncated"])
    assert table.refused() == {"/a"}


def test_the_order_in_which_rows_come_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_table, "ROWS_PER_TABLE_PART", 64)
    monkeypatch.setattr(source_table._BufferedColumns, "PACK_ROWS", 50)
    given = [probe(f"/{n:03}", f"id {n % 150}", codec=f"codec {n % 9}") for n in range(200)]
    tables = []
    for seed in (1, 2):
        table = SourceTable()
        random.Random(seed).shuffle(given)
        for start in range(0, len(given), 7 * seed):
            table.add_probes(probes(*given[start : start + 7 * seed]))
        firsts = [ref.uri for ref in table.to_analyze()]
        assert firsts == [f"/{n:03}" for n in range(150)]
        random.Random(seed).shuffle(firsts)
        for uri in firsts:
            table.measured([done(uri)])
        tables.append(list(table.rows({})))
    assert [part.num_rows for part in tables[0]] == [64, 64, 64, 8]
    assert tables[0] == tables[1]


def test_totals_count_all_and_a_generation_of_failures_is_none() -> None:
    table = SourceTable()
    assert ([part.num_rows for part in table.rows({})], table.last_generation()) == ([0], 0)
    assert (list(table.to_analyze()), table.find([])) == ([], {})
    table.add_probes(probes(probe("a", "1"), probe("b", "2")))
    numbers = pa.table({"source_id": ["1", "2"], "generation": pa.array([1, 2], pa.int32())})
    table.set_generations(numbers)
    table.measured([done("a"), failed("b", "no_frames") | {"outcome": "failed"}])
    assert table.last_generation() == 1
    # Totals count all and keep some failed rows of each code.
    table = SourceTable()
    table.add_probes(probes(*(failed(f"/{n:02}") for n in range(50)), failed("/x", "no_frames")))
    table.add_probes(probes(probe("/ok", "1")))
    table.measured([done("/ok")])
    totals = SourceTotals()
    for part in table.rows({}):
        for start in range(0, part.num_rows, 20):
            totals.add(part.slice(start, 20))
    assert (totals.n_sources, totals.n_failed) == (52, 51)
    assert totals.by_error == {"not_a_video": 50, "no_frames": 1}
    assert totals.by_note == {"truncated": 1}
    assert (totals.n_bytes, totals.video_s) == (61, 3.0)
    shown = [row.uri for row in totals.failed]
    assert shown == [f"/{n:02}" for n in range(24)] + ["/x"]


def test_copies_with_other_spans_are_told() -> None:
    """Pins times alone, a copy of the whole file, and other sources with other spans."""
    table = SourceTable()
    table.add_probes(
        probes(*(probe(uri, uri[1:2]) for uri in ("/a", "/a1", "/a2", "/a3", "/b", "/b1", "/c")))
    )
    at = [{"start_s": 0.0, "end_s": 2.0, "meta": {}}]
    other = [{"start_s": 2.0, "end_s": None, "meta": {}}]
    named = [at | {"meta": {"meta.task": "b"}} for at in at]
    spans = {"/a": at, "/a1": at, "/a2": other, "/c": other, "/a3": named, "/b1": at}
    assert table.copies_with_other_spans() == []
    table.revise([{"uri": uri, "spans": json.dumps(of)} for uri, of in spans.items()])
    assert table.copies_with_other_spans() == [("/a2", "/a"), ("/b1", "/b")]


def test_clocks_stay_with_the_runs_that_found_them() -> None:
    """Pins a later generation, a later run that grows, and one that finds clocks anew or none."""
    table = SourceTable()
    table.add_probes(probes(probe("/a", "1"), probe("/b", "2")))
    table.measured([done("/a") | {"clock": "{}"}, done("/b")])
    first = rows(table.up_to(2))
    assert [row["clock"] for row in first] == ["{}", None]
    earlier = pa.Table.from_pylist(first, schema=SOURCES_SCHEMA)
    grown = SourceTable()
    grown.carry(earlier)
    assert [row["clock"] for row in rows(grown)] == [None, None]
    grown.settle(earlier)
    assert [row["clock"] for row in rows(grown)] == ["{}", None]
