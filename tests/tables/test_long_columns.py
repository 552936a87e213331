"""Columns above 2 GiB, most of which share one chunk, so that the tests take little memory."""

import numpy as np
import pyarrow as pa
import pytest

from curator.tables import long_columns
from curator.tables.clip_locations import KeyIndex
from curator.tables.clip_rows import ClipRows
from curator.tables.disk_table import SortedRows
from curator.tables.long_columns import joined_chunks, sorted_rows, take_rows, take_values

LONG = 1 << 14
N_CHUNKS = 2200
"""Of 64 texts of 16 KiB each."""


@pytest.fixture(scope="module")
def texts() -> pa.ChunkedArray:
    """2.3 GB of text in 1 MiB of memory."""
    chunk = pa.array([chr(65 + number % 26) * LONG for number in range(64)])
    column = pa.chunked_array([chunk] * N_CHUNKS)
    assert column.nbytes > 1 << 31
    return column


def test_rows_of_a_column_above_2_gib_are_taken(texts: pa.ChunkedArray) -> None:
    numbers = pa.array([1 << 17, None, 3, 3, len(texts) - 1])
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        texts.take(numbers)
    taken = take_values(texts, numbers).to_pylist()
    assert [text and (text[0], len(text)) for text in taken] == [
        ("A", LONG), None, ("D", LONG), ("D", LONG), ("L", LONG)
    ]  # fmt: skip
    clips = ClipRows(pa.table({"caption": texts}), pa.schema([("caption", pa.string())]))
    assert [clip.value("caption")[0] for clip in clips.take([len(texts) - 1, 2])] == ["L", "C"]


def test_lists_above_2_gib_of_elements_are_taken() -> None:
    values = pa.array(np.arange(1 << 24) % 128, pa.int8())
    chunk = pa.ListArray.from_arrays(pa.array(np.arange(5) << 22, pa.int32()), values)
    column = pa.chunked_array([chunk] * 129)
    (taken, null) = take_values(column, pa.array([len(column) - 1, None]))
    assert len(taken) == 1 << 22
    assert not null.is_valid


@pytest.mark.parametrize("chunk_bytes", [1, 60, 1 << 30])
@pytest.mark.parametrize("long_bytes", [0, 1024])
def test_values_are_those_of_arrow(
    monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, long_bytes: int
) -> None:
    monkeypatch.setattr(long_columns, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(long_columns, "_LONG_BYTES", long_bytes)
    rows = pa.table(
        {
            "text": ["b", None, "a"],
            "number": [1, 2, None],
            "code": pa.array(["x", "y", None]).dictionary_encode(),
            "jpeg": pa.array([[b"ab", None], None, [b"c"]], pa.list_(pa.binary())),
            "luma": pa.array([[1.0], [], None], pa.list_(pa.float16())),
            "vector": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
            "struct": pa.array([{"text": "a"}, None, {"text": None}]),
        }
    )
    table = pa.concat_tables([rows, rows.slice(1), rows.slice(0, 0), rows])
    for numbers in ([7, 0, 3], [0, None, 2], [], [4] * 9, [None, None]):
        at = pa.array(numbers, pa.int64())
        assert take_rows(table, at).equals(table.take(at))
        assert take_rows(table, pa.chunked_array([at])).equals(table.take(at))
    assert joined_chunks(table).equals(table)
    assert sorted_rows(table, "text").equals(table.sort_by("text"))


def test_all_tables_use_chunks_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a run come out sorted, and keys are found, whatever fits into an array."""
    monkeypatch.setattr(long_columns, "CHUNK_BYTES", 1000)
    monkeypatch.setattr("curator.tables.clip_locations.CHUNK_BYTES", 1000)
    ids = [f"{number * 77 % 256:02x}{'0' * 22}" for number in range(256)]
    rows = SortedRows(pa.schema([("clip_id", pa.string())]), ["clip_id"], 1 << 20)
    rows.add(pa.table({"clip_id": ids}))
    (block,) = rows.blocks()
    assert block["clip_id"].num_chunks > 1
    assert block["clip_id"].to_pylist() == sorted(ids)
    keys = KeyIndex(block["clip_id"])
    assert [keys.find(name) for name in ids] == [sorted(ids).index(name) for name in ids]
