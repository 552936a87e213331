"""What waits on the disk comes back as it was added, sorted or by its key."""

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from curator.errors import StorageError
from curator.measures.score_list import SCORES
from curator.tables import clip_locations, disk_table
from curator.tables.clip_locations import LOCATION_SCHEMA, KeyIndex, Location, Locations
from curator.tables.clip_rows import ClipRows, DiskClipTable
from curator.tables.clip_vectors import StoredVectors, vectors_table
from curator.tables.disk_table import DiskTable, SortedRows
from curator.tables.parts import rows_to_table
from curator.tables.schemas import clips_schema
from curator.tables.spill_file import SpilledRecords

N = 3000
BY = ("id", "n")
ROOMS = pytest.mark.parametrize(
    "memory_budget_bytes", [0, 20_000, 1 << 30], ids=["none", "some", "all"]
)
"""Bytes of memory: for nothing, for a part of the rows, for all."""


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_table, "BLOCK_ROWS", 256)
    for name, value in (("PACK_TABLES", 8), ("PACK_ROWS", 100)):
        monkeypatch.setattr(disk_table.TableBuffer, name, value)


def made() -> pa.Table:
    """Rows with gaps, NaN, lists and vectors; ids come several times, and some are no hashes."""
    rng = np.random.default_rng(0)
    names = [hashlib.sha256(str(k % 900).encode()).hexdigest()[:8] for k in range(N - 3)]
    score = rng.random(N)
    score[::7] = np.nan
    return pa.table(
        {
            "id": [*names, "", "zz", "\N{GREEK SMALL LETTER ALPHA}"],
            "n": rng.permutation(N),
            "score": pa.array(score, mask=rng.random(N) < 0.1),
            "tags": pa.array([["a"] * (k % 3) if k % 5 else None for k in range(N)]),
            "flag": pa.array([None if k % 11 == 0 else k % 2 == 0 for k in range(N)]),
        }
    )


def pieces(table: pa.Table) -> Iterator[pa.Table]:
    """A table in pieces of uneven length, empty ones among them."""
    start, k = 0, 0
    while start < table.num_rows:
        yield table.slice(start, k % 97)
        start += k % 97
        k += 13


def same(found: pa.Table, wanted: pa.Table) -> bool:
    """Whether tables are equal, NaN included."""
    return repr(found.to_pydict()) == repr(wanted.to_pydict()) and found.schema == wanted.schema


@ROOMS
def test_rows_come_back_in_the_order_in_which_they_were_added(memory_budget_bytes: int) -> None:
    table = made()
    stored = DiskTable(table.schema, memory_budget_bytes)
    assert stored.whole().num_rows == stored.slice(0, 0).num_rows == 0
    for piece in pieces(table):
        stored.add(piece)
    assert len(stored) == N
    assert same(stored.whole(), table)
    for start, n_rows in ((0, N), (0, 0), (N, 0), (255, 2), (250, 900), (N - 1, 1), (N - 300, 300)):
        assert same(stored.slice(start, n_rows), table.slice(start, n_rows))
    assert same(stored.take([N - 1, 0, 700]), table.take([N - 1, 0, 700]))
    stored.forget()
    assert same(stored.whole(), table)


@ROOMS
def test_rows_come_out_sorted_again_and_again(memory_budget_bytes: int) -> None:
    table = made()
    stored = SortedRows(table.schema, BY, memory_budget_bytes)
    for piece in pieces(table):
        stored.add(piece)
    wanted = table.sort_by([(name, "ascending") for name in BY])
    for _ in range(2):
        blocks = list(stored.blocks())
        assert max(block.num_rows for block in blocks) <= 256
        assert same(pa.concat_tables(blocks), wanted)
    assert list(SortedRows(table.schema, BY, memory_budget_bytes).blocks()) == []
    assert sorted(stored["n"].to_pylist()) == list(range(N))
    assert (stored.num_rows, stored.column_names) == (N, table.column_names)


@ROOMS
def test_rows_are_found_by_key(memory_budget_bytes: int) -> None:
    table = made().slice(0, 900)
    stored = SortedRows(table.schema, BY, memory_budget_bytes)
    for piece in pieces(table):
        stored.add(piece)
    keys = pa.array(["not there", *table["id"].to_pylist()[::-1], "00"])
    found = {}
    for positions, own, rows in stored.find(keys):
        numbers = own["n"].take(pa.array(rows)).to_pylist()
        found |= dict(zip(positions.tolist(), numbers, strict=True))
    assert found == dict(enumerate(table["n"].to_pylist()[::-1], start=1))


@ROOMS
def test_vectors_are_found_by_the_ids_of_clips(memory_budget_bytes: int) -> None:
    rng = np.random.default_rng(1)
    ids = [hashlib.sha256(str(k).encode()).hexdigest()[:8] for k in range(500)]
    matrix = rng.random((500, 24), dtype=np.float32)
    stored = StoredVectors(vectors_table([]), memory_budget_bytes)
    for start in range(0, 500, 60):
        some = slice(start, start + 60)
        stored.add(vectors_table(list(zip(ids[some], matrix[some], strict=True))))
        stored.add(vectors_table([], least_dim=1))
    wanted = [ids[k] for k in (499, 3, 77, 78)]
    assert stored.known(pa.array(["x", *wanted])).tolist() == [False, True, True, True, True]
    assert np.array_equal(stored.matrix(pa.array(wanted)), matrix[[499, 3, 77, 78]])
    some = stored.some(pa.array(wanted))
    assert np.array_equal(some.get(ids[77]), matrix[77])
    assert some.get(ids[4]) is None
    found = pa.concat_tables(stored.blocks())
    assert found["clip_id"].to_pylist() == sorted(ids)
    assert stored.schema.field("vector").type.list_size == 24


@ROOMS
def test_clips_that_passed_and_others_are_one_table(memory_budget_bytes: int) -> None:
    """Pins the order of the clips, and that changes of those that passed are in it."""
    rows = [
        {"clip_id": f"c{k:04}", "decision": "kept" if k % 3 == 0 else "rejected", "shot": k,
         "reasons": ["a"] * (k % 3), "motion": None if k % 5 == 0 else k / 7}
        for k in range(1000)
    ]  # fmt: skip
    schema = pa.schema([clips_schema(SCORES).field(name) for name in rows[0]])
    table = pa.Table.from_pylist(rows, schema=schema)
    store = DiskClipTable(schema, memory_budget_bytes)
    for start in range(0, 1000, 130):
        store.add(table.slice(start, 130))
    assert [row.shot for row in store.rows] == list(range(0, 1000, 3))
    store.rows[5].caption, rows[15]["caption"] = "said", "said"
    wanted = ClipRows(pa.Table.from_pylist(rows, clips_schema(SCORES)), clips_schema(SCORES))
    assert len(store) == 1000
    assert same(pa.concat_tables(store.blocks()), wanted.table())
    names = ("caption", "clip_id")
    assert same(pa.concat_tables(store.blocks(names)), wanted.table().select(names))
    for name in ("motion", "luma"):
        np.testing.assert_array_equal(store.floats(name), wanted.floats(name))
    some = [999, 15, 14, 0, 500]
    assert same(store.take(some).table(), wanted.take(some).table())


def test_records_are_found_and_what_has_them_is_read_once() -> None:
    stored = {n: {f"k{n}{i}": f"v{n}{i}".encode() for i in range(5)} for n in range(4)}
    read: list[int] = []

    def fetch(number: int) -> Iterator[tuple[str, bytes]]:
        read.append(number)
        return iter(stored[number].items())

    found = SpilledRecords(fetch)
    found.expect_all([list(stored[n]) for n in range(3)])
    found.expect_all([list(stored[3])], 3)
    found.add("k12", b"newer")
    for i in range(10):
        found.add(f"own{i}", f"o{i}".encode())
    assert "k33" in found
    assert "k99" not in found
    assert read == []
    assert [found.get(key) for key in ("k12", "k13", "k14", "own7", "k99")] == [
        b"newer", b"v13", b"v14", b"o7", None
    ]  # fmt: skip
    assert read == [1]
    wanted = {value for part in stored.values() for value in part.values()} - {b"v12"}
    assert set(found.records()) == wanted | {b"newer"} | {f"o{i}".encode() for i in range(10)}
    assert sorted(read) == [0, 1, 2, 3]
    assert len(found) == 30


def test_places_of_clips_come_back() -> None:
    wanted = {
        f"c{k}": Location(name=f"t{k % 3}", row=k if k % 2 else None,
                          offset=None if k % 2 else k, n_bytes=k)
        for k in range(50)
    }  # fmt: skip
    rows = [
        {"clip_id": name, "name": at.name, "row": at.row, "offset": at.offset,
         "n_bytes": at.n_bytes}
        for name, at in wanted.items()
    ]  # fmt: skip
    found = Locations(rows_to_table(rows, LOCATION_SCHEMA))
    assert dict(found) == wanted
    assert "c99" not in found
    assert KeyIndex(pa.chunked_array([[]], pa.string())).find("c1") is None


def test_keys_whose_hashes_are_the_same_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_length(keys: list[str]) -> np.ndarray:
        return np.array([len(key) for key in keys], np.uint64)

    monkeypatch.setattr(clip_locations, "hashes", by_length)
    held = [f"c{k}" for k in range(120)]
    rows = KeyIndex(pa.chunked_array([held[:50], held[50:]], pa.string()))
    wanted = {"c7": 7, "c119": 119, "d9": None, "c60": 60, "longer": None, "c5": 5, "": None}
    assert {key: rows.find(key) for key in wanted} == wanted
    found = rows.find_all(list(wanted)).tolist()
    assert found == [-1 if row is None else row for row in wanted.values()]
    assert rows.find_all([]).tolist() == []


def test_no_file_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    table = made()
    stored = SortedRows(table.schema, BY, 0)
    for _ in range(20):
        stored.add(table)
    assert sum(block.num_rows for block in stored.blocks()) == 20 * N
    keyed = SpilledRecords(lambda _: iter(()))
    keyed.add("a", b"y" * (2 << 20))
    assert keyed.get("a") == b"y" * (2 << 20)
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_local_disk_are_explained_where_records_are_read() -> None:
    keyed = SpilledRecords(lambda _: iter(()))
    keyed._rows.execute("PRAGMA max_page_count = 100")
    with pytest.raises(StorageError, match="free some space"):
        keyed.add("1", b"y" * 1_000_000)
    keyed._rows.close()
    for read in (keyed.__len__, lambda: keyed.get("1"), lambda: list(keyed.records())):
        with pytest.raises(StorageError, match="free some space"):
            read()
