"""Arrow columns of any length, in place of operations of Arrow that fail above 2 GiB.

An array of texts, bytes or lists has 32-bit offsets: it holds at most 2 GiB of text, or 2^31
elements of lists. `take`, `sort_by` and `combine_chunks` of a longer column fail, even if `take`
returns few rows, because Arrow first makes one array of the column. Columns of numbers and of
vectors, dictionaries, `filter`, `slice`, casts, and functions of single values have no such limit.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

CHUNK_BYTES = 1 << 30
"""Maximum size of a chunk of several joined arrays; half of what an array can hold."""
_ROWS = 65_536
"""Rows that are taken from a long column at a time."""


def joined_chunks(table: pa.Table) -> pa.Table:
    """Returns a table with one chunk per column, or several chunks of `CHUNK_BYTES`."""
    columns = [joined_column(column) for column in table.columns]
    return pa.table(columns, schema=table.schema) if columns else table


def take_rows(table: pa.Table, rows: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Returns rows of a table by their numbers; a null number gives a row of nulls."""
    columns = [take_values(column, rows) for column in table.columns]
    return pa.table(columns, schema=table.schema) if columns else table.take(rows)


def take_values(column: pa.ChunkedArray, rows: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns values of a column by their numbers; a null number gives null."""
    kind = column.type
    wide = _wide(kind)
    if wide == kind:
        return column.take(rows)
    if not pa.types.is_nested(kind) and column.nbytes < CHUNK_BYTES and len(rows) <= len(column):
        try:
            return column.take(rows)
        except pa.ArrowInvalid:  # a few long values, each taken many times
            pass
    source = column.cast(wide).combine_chunks()
    rows = rows.combine_chunks() if isinstance(rows, pa.ChunkedArray) else rows
    parts = (rows.slice(start, _ROWS) for start in range(0, len(rows), _ROWS))
    return pa.chunked_array([p for part in parts for p in _narrow(source, part, kind)], kind)


def sorted_rows(table: pa.Table, by: str | Sequence[str]) -> pa.Table:
    """Returns a table sorted by one or several columns, ascending."""
    names = [by] if isinstance(by, str) else by
    order = [(name, "ascending") for name in names]
    return take_rows(table, pc.sort_indices(table.select(list(names)), order))


def joined_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column in one chunk, or in several chunks of `CHUNK_BYTES`."""
    if column.num_chunks < 2:
        return column
    chunks: list[pa.Array] = []
    group: list[pa.Array] = []
    n_bytes = 0
    for chunk in column.chunks:
        size = 0 if _wide(column.type) == column.type else chunk.nbytes
        if group and n_bytes + size > CHUNK_BYTES:
            chunks.append(pa.concat_arrays(group))
            group, n_bytes = [], 0
        group.append(chunk)
        n_bytes += size
    return pa.chunked_array([*chunks, pa.concat_arrays(group)], column.type)


def _narrow(source: pa.Array, rows: pa.Array, kind: pa.DataType) -> Iterator[pa.Array]:
    """Yields rows of an array with 64-bit offsets, in arrays of `kind`."""
    taken = source.take(rows)
    if taken.nbytes <= CHUNK_BYTES or len(rows) == 1:
        yield taken.cast(kind)
        return
    half = len(rows) // 2
    yield from _narrow(source, rows.slice(0, half), kind)
    yield from _narrow(source, rows.slice(half), kind)


def _wide(kind: pa.DataType) -> pa.DataType:
    """Returns the type with 64-bit offsets that holds the same values."""
    if pa.types.is_string(kind):
        return pa.large_string()
    if pa.types.is_binary(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.large_list(kind.value_field.with_type(_wide(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_wide(field.type)) for field in kind])
    return kind
