"""Rows in columns: typed, changed in place, and the same table again."""

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from curator.errors import StorageError
from curator.measures.score_list import SCORES
from curator.tables.clip_rows import BLOCK, LOADED_BLOCKS, ClipRows
from curator.tables.disk_table import joined
from curator.tables.parts import parquet_by_content, to_parquet
from curator.tables.schemas import clips_schema
from curator.tables.spill_file import Spill

N = (LOADED_BLOCKS + 3) * BLOCK + 7
"""More than are Python objects at a time, and no whole number of blocks."""
GIVEN = ("clip_id", "shot", "motion", "decision", "reasons")
"""Columns that the table has; the others of `clips_schema(SCORES)` are null."""


def made() -> tuple[ClipRows, list[dict[str, Any]]]:
    """The same rows twice."""
    rows = [
        {"clip_id": f"c{k:06}", "shot": k, "motion": None if k % 5 == 0 else k / 7,
         "decision": "kept" if k % 3 else "rejected", "reasons": ["a"] * (k % 3)}
        for k in range(N)
    ]  # fmt: skip
    schema = pa.schema([clips_schema(SCORES).field(name) for name in GIVEN])
    return ClipRows(pa.Table.from_pylist(rows, schema=schema), clips_schema(SCORES)), rows


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, clips_schema(SCORES))


def test_rows_that_are_changed_anywhere_come_out_as_they_were_set() -> None:
    """Pins that no change is lost when rows are let go, in whatever order they are changed."""
    rows, wanted = made()
    order = list(range(N)) + random.Random(1).sample(range(N), 2000)
    for k in order[::3]:
        row, want = rows[k], wanted[k]
        row.decision, row.reasons, row.shot = "rejected", [*row.reasons, "b"], -k
        row.caption = f"{row.clip_id} {row.scores['motion']}"
        want |= {"decision": "rejected", "reasons": [*want["reasons"], "b"], "shot": -k,
                 "caption": f"{want['clip_id']} {want['motion']}"}  # fmt: skip
    assert rows.table(clips_schema(SCORES)).equals(table_of(wanted))
    some = [k + 1 for k in order[:50]] + [0, N - 1, 0]
    assert rows.take(some).table(clips_schema(SCORES)).equals(table_of([wanted[k] for k in some]))
    assert rows.values("reasons") == [want["reasons"] for want in wanted]
    kept = [want["clip_id"] for want in wanted if want["decision"] == "kept"]
    assert [row.clip_id for row in rows.kept()] == kept
    motion = np.array([want["motion"] for want in wanted], np.float64)
    np.testing.assert_array_equal(rows.floats("motion"), motion)


def test_columns_of_the_schema_are_set_for_all_and_for_some_rows() -> None:
    rows, wanted = made()
    rows[3].caption = "before"
    picked = np.array([N - 1, 3, 700])
    given = {"caption": ["z", "x", "y"], "shot": pa.array([1, 2, 3], pa.int64())}
    rows.scatter(picked, pa.table(given))
    for k, text, n in ((N - 1, "z", 1), (3, "x", 2), (700, "y", 3)):
        wanted[k] |= {"caption": text, "shot": n}
        assert (rows[k].caption, rows[k].shot) == (text, n)
    rows.set_column("decision", pa.chunked_array([["kept"] * N]))
    for row in wanted:
        row["decision"] = "kept"
    assert rows.table(clips_schema(SCORES)).equals(table_of(wanted))
    # A row has the columns of the schema and no others.
    rows, _ = made()
    row = rows[1]
    assert (row.caption, row.value("caption"), row.scores["luma"]) == (None, None, None)
    with pytest.raises(KeyError, match="unknown column 'lost'"):
        row.value("lost")
    with pytest.raises(AttributeError, match="lost"):
        row.lost = 1  # type: ignore[attr-defined]


def test_a_changed_row_leaves_its_table_and_sorting_lets_go() -> None:
    rows, _ = made()
    changed = rows[1].changed({"shot": 7, "caption": "other"})
    changed.caption_model = "m"
    assert (changed.shot, changed.caption, changed.caption_model) == (7, "other", "m")
    assert (changed.clip_id, changed.scores["motion"]) == ("c000001", 1 / 7)
    assert (rows[1].shot, rows[1].caption, rows[1].caption_model) == (1, None, None)
    # Tables are sorted together and let go.
    tables = [pa.table({"a": [3, 1], "b": ["x", "y"]}), pa.table({"a": [2, 1], "b": ["z", "w"]})]
    found = joined(tables, ["a", "b"])
    assert found.to_pydict() == {"a": [1, 1, 2, 3], "b": ["w", "y", "z", "x"]}
    assert tables == []


@pytest.mark.parametrize("n", [0, 5, 65_536, 140_000])
def test_parquet_of_pieces_is_that_of_the_whole(n: int) -> None:
    """Pins that how rows came together never shows in an object's bytes, and so in its name."""
    rng = np.random.default_rng(0)
    table = pa.table(
        {"id": [f"{k:x}" for k in rng.integers(0, 1 << 40, n)], "score": rng.random(n),
         "later": ["same"] * n},
    )  # fmt: skip
    pieces = (table.slice(start, 777) for start in range(0, n, 777))
    assert parquet_by_content(pieces, table.schema, "a") == ("a", to_parquet(table, "a"))


def test_what_was_spilled_is_read_wherever_it_lies() -> None:
    spill, rng = Spill(), random.Random(2)
    held = []
    for _ in range(400):
        data = rng.randbytes(rng.randrange(20_000))
        held.append((spill.add(data), data))
        begin, wanted = rng.choice(held)
        assert spill.read(begin, len(wanted)) == wanted


def test_a_full_disk_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("wb", 0) as disk:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: disk)
        with pytest.raises(StorageError, match=r"No space left on device; .* set TMPDIR"):
            Spill().add(b"x" * (2 << 20))
