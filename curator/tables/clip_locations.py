"""Finds the row of a key, and the location of a written clip.

Both are kept in compact columns, for millions of clips.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curator.storage import Store
from curator.tables.checksums import read_rows
from curator.tables.key_index import equal_hashes, hashes
from curator.tables.long_columns import CHUNK_BYTES
from curator.tables.parts import columns_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The location of a member's bytes under the output root."""

    name: str
    """Name of a part or a tar."""
    row: int | None = None
    """Row in the part, whose row groups have equal sizes, except the last; None in a tar."""
    offset: int | None = None
    """First byte in a tar; None in a part."""
    n_bytes: int = 0
    column: str = "mp4"
    """Column of the part."""


def located_bytes(store: Store, where: Location) -> bytes:
    """Reads a member of a sample, such as its MP4, from a part or a tar."""
    if where.row is None:
        assert where.offset is not None
        with store.open(where.name) as reader:
            reader.seek(where.offset)
            return reader.read(where.n_bytes)
    row, column = where.row, where.column

    def read(file: pq.ParquetFile) -> bytes:
        group, number = divmod(row, file.metadata.row_group(0).num_rows)
        value: bytes = file.read_row_group(group, [column])[column][number].as_py()
        return value

    return read_rows(store, where.name, read)


class KeyIndex:
    """Finds the row of a key; takes 12 bytes per key in addition to the column."""

    def __init__(self, keys: pa.ChunkedArray) -> None:
        # An array of strings holds at most 2 GiB.
        kind = keys.type if keys.nbytes < CHUNK_BYTES else pa.large_string()
        self._keys: pa.Array = keys.cast(kind).combine_chunks()
        parts = (hashes(keys.to_pylist()) for keys in self._pieces())
        self._hashes = np.concatenate([np.zeros(0, np.uint64), *parts])
        self._order = np.argsort(self._hashes, kind="stable").astype(np.int32)
        self._hashes = self._hashes[self._order]
        self._last = 0

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, key: str) -> int | None:
        """Returns the row of a key; None for an unknown key."""
        # Most callers look for many keys in the order of the rows.
        for row in (self._last, self._last + 1):
            if row < len(self._keys) and self._keys[row].as_py() == key:
                self._last = row
                return row
        row = int(self.find_all([key])[0])
        if row < 0:
            return None
        self._last = row
        return row

    def find_all(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """Returns the rows of keys, int64 [N]; -1 for an unknown key."""
        places, at = equal_hashes(self._hashes, hashes(keys))
        stored = self._keys.take(pa.array(self._order[at])).to_pylist()
        rows = np.full(len(keys), -1, np.int64)
        pairs = zip(places.tolist(), self._order[at].tolist(), stored, strict=True)
        for place, row, key in pairs:
            if rows[place] < 0 and key == keys[place]:
                rows[place] = row
        return rows

    def keys(self) -> Iterator[str]:
        """Yields all keys in the order of their rows."""
        for keys in self._pieces():
            yield from keys.to_pylist()

    def _pieces(self) -> Iterator[pa.Array]:
        return (self._keys.slice(at, _AT_ONCE) for at in range(0, len(self._keys), _AT_ONCE))


class LocationArray:
    """N locations by number, 24 bytes each; a location is missing until it is set."""

    def __init__(self, n: int, column: str = "mp4") -> None:
        self._column = column
        self.names: list[str] = []
        self._codes: dict[str, int] = {}
        self.code = np.full(n, -1, np.int32)
        """Number of each name, int32 [N]; -1 for no location."""
        self.row = np.full(n, -1, np.int32)
        self._offset = np.full(n, -1, np.int64)
        self._n_bytes = np.zeros(n, np.int64)

    def __getitem__(self, number: int) -> Location | None:
        code, row, offset = (int(c[number]) for c in (self.code, self.row, self._offset))
        if code < 0:
            return None
        return Location(
            name=self.names[code],
            row=row if row >= 0 else None,
            offset=offset if row < 0 else None,
            n_bytes=int(self._n_bytes[number]),
            column=self._column,
        )

    def __setitem__(self, number: int, where: Location) -> None:
        self.code[number] = self._code(where.name)
        self.row[number] = -1 if where.row is None else where.row
        self._offset[number] = -1 if where.offset is None else where.offset
        self._n_bytes[number] = where.n_bytes

    def fill(self, numbers: NDArray[np.int64], table: pa.Table) -> None:
        """Sets the locations of some numbers from columns of `LOCATION_SCHEMA`."""
        coded = table["name"].dictionary_encode().combine_chunks()
        codes = np.array(list(map(self._code, coded.dictionary.to_pylist())), np.int32)
        self.code[numbers] = codes[coded.indices.to_numpy()]
        for name, column in (("row", self.row), ("offset", self._offset)):
            if name in table.column_names:
                column[numbers] = table[name].fill_null(-1).to_numpy()
        self._n_bytes[numbers] = table["n_bytes"].to_numpy()

    def _code(self, name: str) -> int:
        if name not in self._codes:
            self._codes[name] = len(self.names)
            self.names.append(name)
        return self._codes[name]


class Locations(Mapping[str, Location]):
    """Locations of written clips by id."""

    def __init__(self, table: pa.Table) -> None:
        self._rows = KeyIndex(table["clip_id"])
        self._places = LocationArray(table.num_rows)
        self._places.fill(np.arange(table.num_rows), table)

    def __getitem__(self, clip_id: str) -> Location:
        row = self._rows.find(clip_id)
        where = None if row is None else self._places[row]
        if where is None:
            raise KeyError(clip_id)
        return where

    def __iter__(self) -> Iterator[str]:
        return self._rows.keys()

    def __len__(self) -> int:
        return len(self._rows)


LOCATION_SCHEMA = columns_schema(("clip_id name", pa.string()), ("row offset n_bytes", pa.int64()))
"""A row per clip, with fields of its `Location`."""
_AT_ONCE = 16_384
