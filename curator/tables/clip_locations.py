"""Rows by key, and locations of written clips, in columns: some bytes for each of very many."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curator.storage import Store
from curator.tables.checksums import read_rows
from curator.tables.key_index import hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The location of a member's bytes under the output root."""

    name: str
    """Part, or tar."""
    row: int | None = None
    """Row of a part, whose row groups have the same size but for the last; None where `offset`
    counts."""
    offset: int | None = None
    """First byte within a tar."""
    n_bytes: int = 0
    column: str = "mp4"
    """Column of the part."""


def located_bytes(store: Store, where: Location) -> bytes:
    """Reads a member of a sample, such as its MP4, from a part or a tar."""
    if where.row is not None:
        row, column = where.row, where.column

        def read(file: pq.ParquetFile) -> bytes:
            n_each = file.metadata.row_group(0).num_rows
            value: bytes = file.read_row_group(row // n_each, [column])[column][
                row % n_each
            ].as_py()
            return value

        return read_rows(store, where.name, read)
    assert where.offset is not None
    with store.open(where.name) as reader:
        reader.seek(where.offset)
        return reader.read(where.n_bytes)


class KeyRows:
    """Finds the row of a key: 12 bytes per key in addition to the column."""

    def __init__(self, keys: pa.ChunkedArray) -> None:
        self._keys = keys.combine_chunks()
        if isinstance(self._keys, pa.ChunkedArray):
            self._keys = pa.concat_arrays(self._keys.chunks)
        self._hashes = np.concatenate(
            [
                np.zeros(0, np.uint64),
                *(
                    hashes(self._keys.slice(start, _AT_ONCE).to_pylist())
                    for start in range(0, len(self._keys), _AT_ONCE)
                ),
            ]
        )
        self._order = np.argsort(self._hashes, kind="stable").astype(np.int32)
        self._hashes = self._hashes[self._order]
        self._last = 0

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, key: str) -> int | None:
        """Returns the row of a key, or None."""
        # Most callers that look for many keys do so in the order of the rows.
        for row in (self._last, self._last + 1):
            if row < len(self._keys) and self._keys[row].as_py() == key:
                self._last = row
                return row
        (wanted,) = hashes([key])
        at = int(np.searchsorted(self._hashes, wanted))
        while at < len(self._hashes) and self._hashes[at] == wanted:
            row = int(self._order[at])
            if self._keys[row].as_py() == key:
                self._last = row
                return row
            at += 1
        return None

    def find_all(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """Returns the rows of keys, int64 [N], -1 for missing ones."""
        wanted = hashes(keys)
        at = np.searchsorted(self._hashes, wanted)
        numbers = np.flatnonzero(at < len(self._hashes))
        numbers = numbers[self._hashes[at[numbers]] == wanted[numbers]]
        rows = np.full(len(keys), -1, np.int64)
        rows[numbers] = self._order[at[numbers]]
        stored = self._keys.take(pa.array(rows[numbers])).to_pylist()
        for number, key in zip(numbers.tolist(), stored, strict=True):
            if key != keys[number]:
                row = self.find(keys[number])
                rows[number] = -1 if row is None else row
        return rows

    def keys(self) -> Iterator[str]:
        """Returns all keys, in the order of their rows."""
        for start in range(0, len(self._keys), _AT_ONCE):
            yield from self._keys.slice(start, _AT_ONCE).to_pylist()


class Locations(Mapping[str, Location]):
    """Locations of written clips by id."""

    def __init__(self, table: pa.Table) -> None:
        self._rows = KeyRows(table["clip_id"])
        names = table["name"].combine_chunks().dictionary_encode()
        self._names = names.dictionary.to_pylist()
        self._name = names.indices.to_numpy()
        self._at = {
            name: table[name].fill_null(-1).to_numpy() for name in ("row", "offset", "n_bytes")
        }

    def __getitem__(self, clip_id: str) -> Location:
        row = self._rows.find(clip_id)
        if row is None:
            raise KeyError(clip_id)
        at = {name: int(column[row]) for name, column in self._at.items()}
        return Location(
            name=self._names[self._name[row]],
            row=at["row"] if at["row"] >= 0 else None,
            offset=at["offset"] if at["offset"] >= 0 else None,
            n_bytes=at["n_bytes"],
        )

    def __iter__(self) -> Iterator[str]:
        return self._rows.keys()

    def __len__(self) -> int:
        return len(self._rows)


LOCATION_SCHEMA = pa.schema(
    [
        ("clip_id", pa.string()),
        ("name", pa.string()),
        ("row", pa.int64()),
        ("offset", pa.int64()),
        ("n_bytes", pa.int64()),
    ]
)
"""Fields of `Location`, for one clip each."""

_AT_ONCE = 16_384
