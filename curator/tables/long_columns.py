"""Arrow columns of any length, in place of operations of Arrow that fail above 2 GiB.

An array of texts, bytes or lists has 32-bit offsets: it holds at most 2 GiB of text, or 2^31
elements of lists. `take`, `sort_by` and `combine_chunks` of a longer column fail, even if `take`
returns few rows, because Arrow first makes one array of the column. Columns of numbers and of
vectors, dictionaries, `filter`, `slice`, casts, and functions of single values have no such limit.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

CHUNK_BYTES = 1 << 30
"""Maximum size of a chunk of several joined arrays; half of what an array can hold."""
_ROWS = 65_536
"""Rows that are taken at a time from a column above `CHUNK_BYTES`."""
_LONG_BYTES = 1024
"""Mean size of lists that are copied one by one: `take` takes 40 ns per element of a list."""


def joined_chunks(table: pa.Table) -> pa.Table:
    """Returns a table with one chunk per column, or several chunks of `CHUNK_BYTES`."""
    columns = [joined_column(column) for column in table.columns]
    return pa.table(columns, schema=table.schema) if columns else table


def joined_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column in one chunk, or in several chunks of `CHUNK_BYTES`."""
    if column.num_chunks < 2:
        return column
    if not _has_offsets(column.type) or column.nbytes <= CHUNK_BYTES:
        return pa.chunked_array([pa.concat_arrays(column.chunks)])
    chunks: list[pa.Array] = []
    group: list[pa.Array] = []
    n_bytes = 0
    for chunk in column.chunks:
        size = chunk.nbytes
        if group and n_bytes + size > CHUNK_BYTES:
            chunks.append(pa.concat_arrays(group))
            group, n_bytes = [], 0
        group.append(chunk)
        n_bytes += size
    return pa.chunked_array([*chunks, pa.concat_arrays(group)], column.type)


def take_rows(table: pa.Table, rows: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Returns rows of a table by their numbers; a null number gives a row of nulls."""
    columns = [take_values(column, rows) for column in table.columns]
    return pa.table(columns, schema=table.schema) if columns else table.take(rows)


def take_values(column: pa.ChunkedArray, rows: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns values of a column by their numbers; a null number gives null."""
    if not _has_offsets(column.type):
        return column.take(rows)
    n_bytes = column.nbytes
    is_long = pa.types.is_list(column.type) and n_bytes >= _LONG_BYTES * max(1, len(column))
    if not is_long and n_bytes * max(len(column), len(rows)) < CHUNK_BYTES * max(1, len(column)):
        return column.take(rows)
    rows = rows.combine_chunks() if isinstance(rows, pa.ChunkedArray) else rows
    numbers = rows.cast(pa.int64()).fill_null(-1).to_numpy()
    parts = (numbers[start : start + _ROWS] for start in range(0, len(numbers), _ROWS))
    take = _each if is_long else _block
    chunks = [chunk for part in parts for chunk in take(column, part)]
    return pa.chunked_array(chunks, column.type)


def sorted_rows(table: pa.Table, by: str) -> pa.Table:
    """Returns a table sorted by a column, ascending."""
    return take_rows(table, pc.sort_indices(table.select([by]), [(by, "ascending")]))


def _each(column: pa.ChunkedArray, numbers: NDArray[np.int64]) -> list[pa.Array]:
    """Returns values by their numbers, -1 for null; copies each once."""
    of, places = _located(column, numbers)
    null = pa.nulls(1, column.type)
    values = [
        null if chunk < 0 else column.chunk(chunk).slice(place, 1)
        for chunk, place in zip(of.tolist(), places.tolist(), strict=True)
    ]
    return list(joined_column(pa.chunked_array(values, column.type)).chunks)


def _block(column: pa.ChunkedArray, numbers: NDArray[np.int64]) -> Iterator[pa.Array]:
    """Yields values by their numbers, -1 for null; takes from each chunk, and then sorts."""
    of, places = _located(column, numbers)
    order = np.argsort(of, kind="stable")
    chunks, begins = np.unique(of[order], return_index=True)
    try:
        taken = [
            pa.nulls(len(own), column.type)
            if chunk < 0
            else column.chunk(chunk).take(pa.array(places[own]))
            for chunk, own in zip(chunks.tolist(), np.split(order, begins[1:]), strict=True)
        ]
        if sum(part.nbytes for part in taken) <= CHUNK_BYTES or len(numbers) == 1:
            yield pa.concat_arrays(taken).take(pa.array(np.argsort(order, kind="stable")))
            return
    except pa.ArrowInvalid:
        # Long values that are taken many times.
        if len(numbers) == 1:
            raise
    for half in np.array_split(numbers, 2):
        yield from _block(column, half)


def _located(
    column: pa.ChunkedArray, numbers: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the chunk of each row, -1 for -1, and the place in the chunk, int64 [N] each."""
    begins = np.cumsum([0, *map(len, column.chunks)])
    of = np.searchsorted(begins, numbers, "right") - 1
    return of, numbers - begins[of]


def _has_offsets(kind: pa.DataType) -> bool:
    """Returns whether arrays of a type have 32-bit offsets, at any depth."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_list(kind):
        return True
    return any(_has_offsets(kind.field(at).type) for at in range(kind.num_fields))
