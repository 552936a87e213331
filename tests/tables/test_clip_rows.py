"""Rows in columns behave as dictionaries, and come out as the same table."""

import errno
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from curator.errors import StorageError
from curator.tables.clip_rows import (
    BLOCK,
    HELD,
    ClipRows,
    floats,
    kept_rows,
    numbers_where,
    plain,
    some_rows,
    sorted_columns,
    table_of,
    values,
)
from curator.tables.parts import rows_to_table, tables_to_parquet, to_parquet
from curator.tables.spill_file import Spill

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("n", pa.int32()),
        ("score", pa.float64()),
        ("decision", pa.string()),
        ("reasons", pa.list_(pa.string())),
        ("later", pa.string()),
    ]
)
N = (HELD + 3) * BLOCK + 7
"""More than are dictionaries at a time, and no whole number of blocks."""


def made() -> tuple[ClipRows, list[dict[str, Any]]]:
    """The same rows twice."""
    rows = [
        {"id": f"c{k:06}", "n": k, "score": None if k % 5 == 0 else k / 7,
         "decision": "kept" if k % 3 else "rejected", "reasons": ["a"] * (k % 3)}
        for k in range(N)
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=pa.schema([f for f in SCHEMA if f.name != "later"]))
    return ClipRows(table, SCHEMA), rows


def test_rows_that_are_changed_anywhere_come_out_as_dictionaries_would() -> None:
    """Pins that no change is lost when rows are let go, in whatever order they are changed."""
    rows, wanted = made()
    order = list(range(N)) + random.Random(1).sample(range(N), 2000)
    for k in order[::3]:
        change = {"decision": "rejected", "reasons": [*wanted[k]["reasons"], "b"], "n": -k}
        for one in (rows[k], wanted[k]):
            one.update(change)
            one["later"] = f"{one['id']} {one['score']}"
    assert table_of(rows, SCHEMA).equals(rows_to_table(wanted, SCHEMA))
    assert [dict(row) for row in rows[5:9]] == [{"later": None} | row for row in wanted[5:9]]
    some = [k + 1 for k in order[:50]] + [0, N - 1, 0]
    assert some_rows(rows, some) == [{"later": None} | wanted[k] for k in some]
    assert values(rows, "reasons") == values(wanted, "reasons")
    assert [row["id"] for row in kept_rows(rows)] == [row["id"] for row in kept_rows(wanted)]
    np.testing.assert_array_equal(floats(rows, "score"), floats(wanted, "score"))


def test_columns_are_set_for_all_and_for_some_rows() -> None:
    rows, wanted = made()
    rows[3]["later"] = "before"
    picked = np.array([N - 1, 3, 700])
    rows.scatter(picked, pa.table({"later": ["z", "x", "y"], "n": pa.array([1, 2, 3], pa.int64())}))
    for k, text, n in ((N - 1, "z", 1), (3, "x", 2), (700, "y", 3)):
        wanted[k] |= {"later": text, "n": n}
        assert (rows[k]["later"], plain(rows[k])["n"]) == (text, n)
    rows.set_column("decision", pa.chunked_array([["kept"] * N]))
    for row in wanted:
        row["decision"] = "kept"
    assert rows.table(SCHEMA).equals(rows_to_table(wanted, SCHEMA))
    assert numbers_where(rows, "later", "y") == [700]


def test_a_row_takes_no_column_that_the_table_does_not_have() -> None:
    rows, _ = made()
    with pytest.raises(KeyError, match="'lost' is no column of"):
        rows[0]["lost"] = 1
    assert "later" not in rows[0]
    assert rows[0].get("later", 5) == 5


def test_tables_are_sorted_together_and_let_go() -> None:
    tables = [pa.table({"a": [3, 1], "b": ["x", "y"]}), pa.table({"a": [2, 1], "b": ["z", "w"]})]
    found = sorted_columns(tables, ["a", "b"])
    assert found.to_pydict() == {"a": [1, 1, 2, 3], "b": ["w", "y", "z", "x"]}
    assert tables == []


@pytest.mark.parametrize("n", [0, 5, 65_536, 140_000])
def test_parquet_of_pieces_is_that_of_the_whole(n: int) -> None:
    """Pins that how rows came together never shows in an object's bytes, and so in its name."""
    rng = np.random.default_rng(0)
    table = pa.table(
        {"id": [f"{k:x}" for k in rng.integers(0, 1 << 40, n)], "score": rng.random(n),
         "later": ["same"] * n},
        schema=pa.schema([SCHEMA.field(name) for name in ("id", "score", "later")]),
    )  # fmt: skip
    pieces = (table.slice(start, 777) for start in range(0, n, 777))
    assert tables_to_parquet(pieces, table.schema) == to_parquet(table)


def test_what_was_spilled_is_read_wherever_it_lies() -> None:
    spill, rng = Spill(), random.Random(2)
    held = []
    for _ in range(400):
        data = rng.randbytes(rng.randrange(20_000))
        held.append((spill.add(data), data))
        begin, wanted = rng.choice(held)
        assert spill.read(begin, len(wanted)) == wanted


def test_a_full_disk_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageError, match=r"No space left on device; .* set TMPDIR"):
        Spill().add(b"x" * (2 << 20))


def test_a_spill_leaves_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spill = Spill()
    begin = spill.add(b"y" * (2 << 20))
    assert spill.read(begin + 1, 3) == b"yyy"
    assert list(tmp_path.iterdir()) == []
