"""Records by key on the local disk."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from curator.tables import clip_locations as locations
from curator.tables.clip_locations import LOCATION_SCHEMA, KeyRows, Location, Locations
from curator.tables.parts import rows_to_table
from curator.tables.spill_file import Keyed


def test_records_are_found_and_what_has_them_is_read_once() -> None:
    stored = {n: {f"k{n}{i}": f"v{n}{i}".encode() for i in range(5)} for n in range(4)}
    read: list[int] = []

    def fetch(number: int) -> Iterator[tuple[str, bytes]]:
        read.append(number)
        return iter(stored[number].items())

    found = Keyed(fetch)
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
    assert KeyRows(pa.chunked_array([[]], pa.string())).find("c1") is None


def test_keys_whose_hashes_are_the_same_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "hashes", lambda keys: np.array([len(k) for k in keys], "u8"))
    held = [f"c{k}" for k in range(120)]
    rows = KeyRows(pa.chunked_array([held[:50], held[50:]], pa.string()))
    wanted = {"c7": 7, "c119": 119, "d9": None, "c60": 60, "longer": None, "c5": 5, "": None}
    assert {key: rows.find(key) for key in wanted} == wanted
    found = rows.find_all(list(wanted)).tolist()
    assert found == [-1 if row is None else row for row in wanted.values()]
    assert rows.find_all([]).tolist() == []
