"""Tables that grow on the local disk, so that memory does not grow with them.

What is read comes as views of the file: the system loads a page when it is used, and takes its
memory back when it needs it.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.tables.spill_file import Spill

BLOCK_ROWS = 65_536
"""Rows that are worked on at a time: about 50 MB of `clips`."""
N_RANGES = 64
"""Ranges of keys that are sorted one after the other."""
_ALIGNED = 64


class DiskTable:
    """A table that only grows: `memory_budget_bytes` in memory, beyond in a file without a name."""

    def __init__(self, schema: pa.Schema, memory_budget_bytes: int) -> None:
        self.schema = schema
        self._memory_budget_bytes = memory_budget_bytes
        self._held = TableBuffer(schema)
        self._batches = _Batches(schema)
        self._ends: list[int] = []
        """Number of rows up to the end of each batch."""

    def __len__(self) -> int:
        return self._n_written + self._held.n_rows

    def add(self, table: pa.Table) -> None:
        """Adds rows."""
        self._held.add(like(table, self.schema))
        if self._held.n_bytes < self._memory_budget_bytes:
            return
        if self._held.n_rows >= BLOCK_ROWS or not self._ends:
            for batch in self._held.take().to_batches(BLOCK_ROWS):
                self._ends.append(self._n_written + batch.num_rows)
                self._batches.add(batch)
            # With a file, nothing is won by holding more than a block.
            self._memory_budget_bytes = 0

    def whole(self) -> pa.Table:
        """Returns all rows; those in the file are read when they are used."""
        return pa.concat_tables([self._batches.table(range(len(self._ends))), self._held.whole()])

    def slice(self, start: int, n_rows: int) -> pa.Table:
        """Returns rows from number `start`."""
        end = start + n_rows
        first, last = bisect_right(self._ends, start), bisect_right(self._ends, end - 1)
        if first >= len(self._ends):
            return self._held.whole().slice(start - self._n_written, n_rows)
        begin = self._ends[first - 1] if first else 0
        table = self._batches.table(range(first, min(last + 1, len(self._ends))))
        if last >= len(self._ends):
            table = pa.concat_tables([table, self._held.whole()])
        return table.slice(start - begin, n_rows)

    def take(self, numbers: Sequence[int]) -> pa.Table:
        """Returns a few rows by their numbers."""
        return taken(self.whole(), numbers)

    def forget(self) -> None:
        """Gives back the memory of what was read of the file."""
        self._batches.forget()

    @property
    def _n_written(self) -> int:
        return self._ends[-1] if self._ends else 0


class SortedRows:
    """Rows that are added in any order, and come out sorted by some columns, the first text.

    Where they exceed `memory_budget_bytes`, they are written by ranges of the first column, and
    sorted a range at a time. The ranges are those of two hexadecimal digits, so that ids, which are
    hashes, fill them evenly: each has a 64th of the rows.
    """

    def __init__(self, schema: pa.Schema, by: Sequence[str], memory_budget_bytes: int) -> None:
        self.schema = schema
        self._by = tuple(by)
        self._memory_budget_bytes = memory_budget_bytes
        self._held = TableBuffer(schema)
        self._is_sorted = True
        self._batches = _Batches(schema)
        self._of_range: list[list[int]] = [[] for _ in range(N_RANGES)]
        """Numbers of the batches of each range."""
        self._n_written = 0

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._n_written + self._held.n_rows

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        names: list[str] = self.schema.names
        return names

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        """Returns a column of all rows, in no order."""
        return pa.chunked_array(
            [*self._batches.table()[name].chunks, *self._held.whole()[name].chunks],
            self.schema.field(name).type,
        )

    def add(self, table: pa.Table) -> None:
        """Adds rows."""
        self._held.add(like(table, self.schema))
        self._is_sorted = False
        if self._held.n_bytes >= self._memory_budget_bytes:
            self._write()

    def blocks(self) -> Iterator[pa.Table]:
        """Yields all rows in order, some at a time; can be called again."""
        if not self._n_written:
            if not self._is_sorted:
                self._held.add(sorted_columns([self._held.take()], self._by))
                self._is_sorted = True
            yield from in_blocks(self._held.whole())
            return
        self._write()
        for numbers in self._of_range:
            if numbers:
                yield from in_blocks(sorted_columns([self._batches.table(numbers)], self._by))
                self._batches.forget()

    def find(
        self, keys: pa.Array
    ) -> Iterator[tuple[NDArray[np.int64], pa.Table, NDArray[np.int64]]]:
        """Finds the rows of keys of the first column.

        Yields:
            Positions in `keys`, int64 [N]; a table; and the numbers of their rows in it, int64 [N].
        """
        if not self._n_written:
            groups = [(np.arange(len(keys)), self._held.whole())]
        else:
            self._write()
            codes = _ranges_of(pa.chunked_array([keys]))
            groups = [
                (np.flatnonzero(codes == code), self._batches.table(numbers))
                for code, numbers in enumerate(self._of_range)
            ]
        for positions, table in groups:
            own = table[self._by[0]].combine_chunks()
            rows = pc.index_in(keys.take(pa.array(positions)), value_set=own)
            is_found = rows.is_valid().to_numpy(zero_copy_only=False)
            yield positions[is_found], table, rows.drop_null().to_numpy().astype(np.int64)
            self._batches.forget()

    def _write(self) -> None:
        """Writes what is held, a batch for each range."""
        if not self._held.n_rows:
            return
        held = self._held.take().combine_chunks()
        codes = _ranges_of(held[self._by[0]])
        held = held.take(pa.array(np.argsort(codes, kind="stable")))
        begin = 0
        for numbers, count in zip(
            self._of_range, np.bincount(codes, minlength=N_RANGES).tolist(), strict=True
        ):
            for batch in held.slice(begin, count).to_batches() if count else ():
                numbers.append(self._batches.add(batch))
            begin += count
        self._n_written += held.num_rows


class _Batches:
    """Batches of one schema in a temporary file, by number."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._spill = Spill()
        self._places: list[tuple[int, int]] = []

    def add(self, batch: pa.RecordBatch) -> int:
        """Writes a batch; returns its number."""
        data = batch.serialize()
        self._places.append((self._spill.add(data), data.size))
        # Arrow reads in place what begins at such an offset.
        self._spill.add(bytes(-data.size % _ALIGNED))
        return len(self._places) - 1

    def forget(self) -> None:
        """Gives back the memory of what was read."""
        self._spill.forget()

    def table(self, numbers: Sequence[int] | None = None) -> pa.Table:
        """Returns some batches, or all; nothing is read until it is used."""
        places = self._places if numbers is None else [self._places[k] for k in numbers]
        views = [pa.py_buffer(self._spill.view(begin, n_bytes)) for begin, n_bytes in places]
        batches = [pa.ipc.read_record_batch(view, self._schema) for view in views]
        return pa.Table.from_batches(batches, self._schema)


class TableBuffer:
    """Tables of one schema in memory; many small ones become one.

    Each takes some KB itself, so that `PACK_TABLES`, or `PACK_ROWS` of them, are put together.
    """

    PACK_TABLES = 256
    PACK_ROWS = 16_384

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        # Made once: Arrow takes 10 µs a column.
        self._empty = schema.empty_table()
        self._tables: list[pa.Table] = []
        self._loose: list[pa.Table] = []
        self._n_loose = self.n_rows = 0
        self.n_bytes = 0
        """Of what is packed; to count it takes as long as to add a small table."""

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
        """Returns all rows, and forgets them."""
        whole = self.whole()
        self._tables, self._loose = [], []
        self._n_loose = self.n_rows = self.n_bytes = 0
        return whole


def widened(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns the columns of a schema; those that the table lacks are null."""
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def like(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns the columns of a schema; Parquet may call the elements of their lists otherwise."""
    if table.schema.equals(schema, check_metadata=True):
        return table
    return table.select(schema.names).cast(schema)


def taken(table: pa.Table, numbers: Sequence[int]) -> pa.Table:
    """Returns a few rows of a table that may be in a file; Arrow's own `take` reads all of it."""
    return pa.concat_tables(
        [table.slice(0, 0), *(table.slice(number, 1) for number in numbers)]
    ).combine_chunks()


def in_blocks(table: pa.Table) -> Iterator[pa.Table]:
    """Yields the rows of a table, at most `BLOCK_ROWS` at a time."""
    for start in range(0, table.num_rows, BLOCK_ROWS):
        yield table.slice(start, BLOCK_ROWS)


def sorted_columns(tables: list[pa.Table], by: Sequence[str]) -> pa.Table:
    """Returns rows of tables sorted by some columns, ascending, in one chunk per column.

    The list of at least one table is emptied, so that all is not held twice.
    """
    whole = pa.concat_tables(tables)
    tables.clear()
    order = pc.sort_indices(whole.select(list(by)), [(name, "ascending") for name in by])
    schema, columns = whole.schema, whole.columns
    del whole
    for index in range(len(columns)):
        # Sorts the table, because a column may be too long for one array.
        columns[index] = pa.table([columns[index]], ["it"]).combine_chunks().take(order)["it"]
    return pa.table(columns, schema=schema)


def joined(tables: list[pa.Table]) -> pa.Table:
    """Joins tables into one chunk per column; empties the list.

    The chunks of a column go before the next column is joined, so that all is not held twice.
    """
    whole = pa.concat_tables(tables).unify_dictionaries()
    tables.clear()
    schema, columns = whole.schema, whole.columns
    del whole
    for index in range(len(columns)):
        columns[index] = pa.chunked_array([columns[index].combine_chunks()])
    return pa.table(columns, schema=schema)


def _ranges_of(keys: pa.ChunkedArray) -> NDArray[np.int64]:
    """Returns the range of each key, int64 [N]; ranges are in the order of keys."""
    begins = pc.utf8_slice_codeunits(keys, 0, 2).combine_chunks().dictionary_encode()
    step = 256 // N_RANGES
    firsts = [f"{number * step:02x}" for number in range(1, N_RANGES)]
    positions = [bisect_right(firsts, begin) for begin in begins.dictionary.to_pylist()]
    ranges: NDArray[np.int64] = np.array(positions, np.int64)[begins.indices.to_numpy()]
    return ranges
