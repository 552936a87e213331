"""Tables that grow on the local disk, so that memory does not grow with them.

Readers get views of the file. The operating system loads a page of the file when a view is used,
and frees the page when memory is short.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.tables.long_columns import joined_chunks, joined_column, take_rows, take_values
from curator.tables.spill_file import Spill

BLOCK_ROWS = 65_536
"""Maximum number of rows per block: about 50 MB of `clips`."""
N_RANGES = 64
"""Ranges of keys that are sorted one after the other."""
_ALIGNED = 64


class TableBuffer:
    """Tables of one schema in memory; many small tables become one.

    Each table takes some KB of its own. So tables are joined as soon as there are `PACK_TABLES` of
    them, or `PACK_ROWS` rows in them.
    """

    PACK_TABLES = 256
    PACK_ROWS = 16_384

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        # Stored, because Arrow takes 10 µs per column to make an empty table.
        self._empty = schema.empty_table()
        self._tables: list[pa.Table] = []
        self._loose: list[pa.Table] = []
        self._n_loose = self.n_rows = self.n_bytes = 0
        """`n_bytes` counts packed tables only, because counting takes as long as adding a small
        table."""

    def add(self, table: pa.Table) -> None:
        """Adds rows."""
        self._loose.append(table)
        self._n_loose += table.num_rows
        self.n_rows += table.num_rows
        if len(self._loose) >= self.PACK_TABLES or self._n_loose >= self.PACK_ROWS:
            self.pack()

    def pack(self) -> None:
        """Puts small tables together."""
        if self._loose:
            packed = self._loose.pop() if len(self._loose) == 1 else joined(self._loose)
            self._tables.append(packed)
            self._n_loose = 0
            self.n_bytes += packed.nbytes

    def whole(self) -> pa.Table:
        """Returns all rows."""
        return pa.concat_tables([self._empty, *self._tables, *self._loose])

    def take(self) -> pa.Table:
        """Returns all rows, and empties the buffer."""
        whole = self.whole()
        self._tables, self._loose = [], []
        self._n_loose = self.n_rows = self.n_bytes = 0
        return whole


class _GrowingTable:
    """Rows of one schema: the newest are in memory, the others in batches of a temporary file."""

    def __init__(self, schema: pa.Schema, memory_budget_bytes: int) -> None:
        self.schema = schema
        self._memory_budget_bytes = memory_budget_bytes
        self._buffer = TableBuffer(schema)
        self._spill = Spill()
        self._places: list[tuple[int, int]] = []
        """Offset and length of each batch in the file."""
        self._n_written = 0

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._n_written + self._buffer.n_rows

    def whole(self) -> pa.Table:
        """Returns all rows; rows in the file are read on use."""
        return pa.concat_tables([self._batches(self._places), self._buffer.whole()])

    def forget(self) -> None:
        """Frees the memory of the file's pages that were read."""
        self._spill.forget()

    def _write(self, batch: pa.RecordBatch) -> tuple[int, int]:
        """Writes a batch; returns its place."""
        data = batch.serialize()
        place = (self._spill.add(data), data.size)
        # Arrow reads a batch in place only if its offset is aligned.
        self._spill.add(bytes(-data.size % _ALIGNED))
        self._places.append(place)
        self._n_written += batch.num_rows
        return place

    def _batches(self, places: Sequence[tuple[int, int]]) -> pa.Table:
        views = [pa.py_buffer(self._spill.view(begin, n_bytes)) for begin, n_bytes in places]
        batches = [pa.ipc.read_record_batch(view, self.schema) for view in views]
        return pa.Table.from_batches(batches, self.schema)


class DiskTable(_GrowingTable):
    """A table that only grows; beyond `memory_budget_bytes` it grows in a file without a name."""

    _whole: pa.Table | None = None
    """All rows, kept for `slice`; None after rows were added."""

    def __len__(self) -> int:
        return self.num_rows

    def add(self, table: pa.Table) -> None:
        """Adds rows."""
        self._whole = None
        self._buffer.add(like(table, self.schema))
        if self._buffer.n_bytes < self._memory_budget_bytes:
            return
        if self._buffer.n_rows >= BLOCK_ROWS or not self._places:
            for batch in self._buffer.take().to_batches(BLOCK_ROWS):
                self._write(batch)
            # After the file exists, each block goes to the file as soon as the block is full.
            self._memory_budget_bytes = 0

    def slice(self, start: int, n_rows: int) -> pa.Table:
        """Returns rows from number `start`."""
        self._whole = self.whole() if self._whole is None else self._whole
        return self._whole.slice(start, n_rows)

    def take(self, numbers: Sequence[int]) -> pa.Table:
        """Returns a few rows by their numbers."""
        return taken(self.whole(), numbers)


class SortedRows(_GrowingTable):
    """Rows that are added in any order, and come out sorted by the columns `by`.

    The first column of `by` holds text. If the rows exceed `memory_budget_bytes`, they are written
    by ranges of this column, and sorted one range at a time. The first two hexadecimal digits of
    the text decide the range. Ids are hashes, so each range gets a 64th of the rows.
    """

    def __init__(self, schema: pa.Schema, by: Sequence[str], memory_budget_bytes: int) -> None:
        super().__init__(schema, memory_budget_bytes)
        self._by = tuple(by)
        self._is_sorted = True
        self._ranges: list[list[tuple[int, int]]] = [[] for _ in range(N_RANGES)]
        """Places of the batches of each range."""

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        """Returns a column of all rows, in no order."""
        return self.whole()[name]

    def add(self, table: pa.Table) -> None:
        """Adds rows."""
        self._buffer.add(like(table, self.schema))
        self._is_sorted = False
        if self._buffer.n_bytes >= self._memory_budget_bytes:
            self._write_buffer()

    def blocks(self) -> Iterator[pa.Table]:
        """Yields all rows in order, some at a time; can be called again."""
        if not self._n_written:
            if not self._is_sorted:
                self._buffer.add(joined([self._buffer.take()], self._by))
                self._is_sorted = True
            yield from in_blocks(self._buffer.whole())
            return
        self._write_buffer()
        for places in filter(None, self._ranges):
            yield from in_blocks(joined([self._batches(places)], self._by))
            self.forget()

    def find(
        self, keys: pa.Array
    ) -> Iterator[tuple[NDArray[np.int64], pa.Table, NDArray[np.int64]]]:
        """Finds rows by their values in the first column of `by`.

        Yields:
            For each part of the rows: the positions in `keys` of the keys that the part contains,
            int64 [N]; the part as a table; and the row number of each such key in the part,
            int64 [N].
        """
        if not self._n_written:
            groups = iter([(np.arange(len(keys)), self._buffer.whole())])
        else:
            self._write_buffer()
            codes = _ranges_of(pa.chunked_array([keys]))
            groups = (
                (np.flatnonzero(codes == code), self._batches(places))
                for code, places in enumerate(self._ranges)
            )
        for positions, table in groups:
            rows = pc.index_in(keys.take(pa.array(positions)), value_set=table[self._by[0]])
            is_there = rows.is_valid().to_numpy(zero_copy_only=False)
            yield positions[is_there], table, rows.drop_null().to_numpy().astype(np.int64)
            self.forget()

    def _write_buffer(self) -> None:
        """Writes the rows in memory to the file, one batch for each range."""
        if not self._buffer.n_rows:
            return
        buffered = joined_chunks(self._buffer.take())
        codes = _ranges_of(buffered[self._by[0]])
        buffered = take_rows(buffered, pa.array(np.argsort(codes, kind="stable")))
        ends = np.cumsum(np.bincount(codes, minlength=N_RANGES)).tolist()
        for places, begin, end in zip(self._ranges, [0, *ends], ends, strict=False):
            if begin < end:
                places += map(self._write, buffered.slice(begin, end - begin).to_batches())


def widened(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns the columns of a schema; those that the table lacks are null."""
    there = dict(zip(table.column_names, table.columns, strict=True))
    columns = []
    for field in schema:
        column = there.get(field.name)
        if column is None:
            column = pa.nulls(len(table), field.type)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.table(columns, schema=schema)


def like(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns a table in the given schema.

    Parquet may name the elements of a list differently from Arrow; such columns are cast.
    """
    if table.schema.equals(schema, check_metadata=True):
        return table
    return table.select(schema.names).cast(schema)


def taken(table: pa.Table, numbers: Sequence[int]) -> pa.Table:
    """Returns a few rows of a table.

    If the table is in a file, only these rows are read. Arrow's own `take` reads all rows.
    """
    rows = [table.slice(0, 0), *(table.slice(number, 1) for number in numbers)]
    return joined_chunks(pa.concat_tables(rows))


def in_blocks(table: pa.Table) -> Iterator[pa.Table]:
    """Yields the rows of a table, at most `BLOCK_ROWS` at a time."""
    for start in range(0, table.num_rows, BLOCK_ROWS):
        yield table.slice(start, BLOCK_ROWS)


def joined(tables: list[pa.Table], by: Sequence[str] = ()) -> pa.Table:
    """Returns rows of tables in few chunks per column, sorted by some columns, ascending.

    `tables` has at least one table; this function empties it. The old chunks of each column are
    freed before the next column is joined, so memory never holds all rows twice.
    """
    whole = pa.concat_tables(tables).unify_dictionaries()
    tables.clear()
    order = [(name, "ascending") for name in by]
    rows = pc.sort_indices(whole.select(list(by)), order) if by else None
    schema, columns = whole.schema, whole.columns
    del whole
    for index in range(len(columns)):
        column = joined_column(columns[index])
        columns[index] = column if rows is None else take_values(column, rows)
    return pa.table(columns, schema=schema)


def _ranges_of(keys: pa.ChunkedArray) -> NDArray[np.int64]:
    """Returns the range of each key, int64 [N]; ranges are in the order of keys."""
    begins = pc.utf8_slice_codeunits(keys, 0, 2).combine_chunks().dictionary_encode()
    step = 256 // N_RANGES
    firsts = [f"{number * step:02x}" for number in range(1, N_RANGES)]
    positions = [bisect_right(firsts, begin) for begin in begins.dictionary.to_pylist()]
    ranges: NDArray[np.int64] = np.array(positions, np.int64)[begins.indices.to_numpy()]
    return ranges
