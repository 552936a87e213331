"""Rows of a table in Arrow columns, read and changed as dictionaries a few blocks at a time.

A dictionary of a clip's 90 values takes 5 KB, its row in Arrow about 1. Whoever goes through the
rows in order meets each block of them once, and only the columns that are asked for become Python
values; whoever needs one column of all rows takes the column.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Self, TypeVar, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.records import Reason
from curator.tables.parts import column_values, columns_to_rows, rows_to_table

BLOCK = 512
"""Rows whose values become Python objects together."""
HELD = 16
"""Blocks that are held as such at a time."""
_ROWS_PER_CHUNK = 128 * BLOCK
"""Of a column that was changed: an Arrow array of texts ends at 2 GiB."""

Row = MutableMapping[str, Any]
"""A row of `clips`: a dictionary, or one of `ClipRows`."""
AnyRow = TypeVar("AnyRow", bound=Mapping[str, Any])


class ClipRow(MutableMapping[str, Any]):
    """One row; what is set in it is set in its table."""

    __slots__ = ("number", "rows")

    def __init__(self, rows: "ClipRows", number: int) -> None:
        self.rows = rows
        self.number = number

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401
        """The value of a column."""
        return self.rows.value_at(self.number, name)

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401
        """The value of a column, or the default where there is no such column."""
        return self.rows.value_at(self.number, name) if name in self.rows.names else default

    def __contains__(self, name: object) -> bool:
        """Whether there is a column."""
        return name in self.rows.names

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401
        """Sets the value of a column."""
        self.rows.change(self.number, {name: value})

    def update(self, *others: Any, **named: Any) -> None:  # noqa: ANN401
        """Sets values of some columns, as `dict.update`."""
        self.rows.change(self.number, dict(*others, **named))

    def __ior__(self, other: Mapping[str, Any]) -> Self:
        """Sets values of some columns."""
        self.rows.change(self.number, other)
        return self

    def __delitem__(self, name: str) -> None:
        """Refused: all rows have the same columns."""
        raise TypeError(f"{name!r} cannot be taken from one row; set it to None")

    def __iter__(self) -> Iterator[str]:
        """Names of the columns."""
        return iter(self.rows.names)

    def __len__(self) -> int:
        """Number of columns."""
        return len(self.rows.names)


class ClipRows(Sequence[ClipRow]):
    """The rows of a table.

    Args:
        table: Rows.
        schema: Types of the columns that rows may be given.
    """

    def __init__(self, table: pa.Table, schema: pa.Schema) -> None:
        self._n: int = table.num_rows
        self._schema = schema
        self._base = dict(zip(table.column_names, table.columns, strict=True))
        self.names = dict.fromkeys(table.column_names)
        """Columns, in the order in which they came."""
        self._own: dict[int, dict[str, pa.Array]] = {}
        """Columns of single blocks that have changed since."""
        self._held: OrderedDict[int, dict[str, list[Any]]] = OrderedDict()
        """Values by column of the blocks that were read last."""
        self._dirty: dict[int, set[str]] = {}
        self._block = self._first = self._end = 0
        self._values: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        """Number of rows."""
        return self._n

    def __iter__(self) -> Iterator[ClipRow]:
        """The rows in their order."""
        return (ClipRow(self, number) for number in range(self._n))

    @overload
    def __getitem__(self, number: int) -> ClipRow: ...
    @overload
    def __getitem__(self, number: slice) -> list[ClipRow]: ...
    def __getitem__(self, number: int | slice) -> ClipRow | list[ClipRow]:
        """A row, or some."""
        found = range(self._n)[number]
        if isinstance(found, range):
            return [ClipRow(self, one) for one in found]
        return ClipRow(self, found)

    def value_at(self, number: int, name: str) -> Any:  # noqa: ANN401
        """The value of a row in a column.

        Raises:
            KeyError: There is no such column.
        """
        if not self._first <= number < self._end:
            self._open(number // BLOCK)
        found = self._values.get(name)
        if found is None:
            found = self._load(name)
        return found[number - self._first]

    def values_at(self, number: int) -> dict[str, Any]:
        """The values of a row, as they are now."""
        if not self._first <= number < self._end:
            self._open(number // BLOCK)
        held, at = self._values, number - self._first
        if len(held) < len(self.names):
            for name in self.names.keys() - held.keys():
                self._load(name)
        return {name: held[name][at] for name in self.names}

    def change(self, number: int, values: Mapping[str, Any]) -> None:
        """Sets values of a row.

        Raises:
            KeyError: The schema has no such column.
        """
        if not self._first <= number < self._end:
            self._open(number // BLOCK)
        dirty = self._dirty.setdefault(self._block, set())
        if not values.keys() <= dirty:
            for name in values:
                if name not in self._schema.names:
                    raise KeyError(f"{name!r} is no column of {self._schema.names}")
            self.names |= dict.fromkeys(values)
            dirty.update(values)
        for name, value in values.items():
            held = self._values.get(name)
            if held is None:
                held = self._load(name)
            held[number - self._first] = value

    def column(self, name: str) -> pa.ChunkedArray:
        """A column of all rows; null where no row was given it."""
        self._settle()
        found = {block: own.pop(name) for block, own in self._own.items() if name in own}
        if found:
            kind = self._schema.field(name).type
            base = self._base.get(name)
            parts = []
            for start in range(0, self._n, BLOCK):
                n = min(BLOCK, self._n - start)
                own = found.get(start // BLOCK)
                if own is not None:
                    parts.append(own)
                elif base is None:
                    parts.append(pa.nulls(n, kind))
                else:
                    parts += base.slice(start, n).chunks
            self._base[name] = _in_chunks(pa.chunked_array(parts, kind))
        if name not in self._base:
            return pa.chunked_array([pa.nulls(self._n, self._schema.field(name).type)])
        return self._base[name]

    def set_column(self, name: str, column: pa.ChunkedArray) -> None:
        """Sets a column of all rows."""
        self._settle()
        for own in self._own.values():
            own.pop(name, None)
        self._base[name] = column
        self.names[name] = None
        for held in self._held.values():
            held.pop(name, None)

    def scatter(self, numbers: NDArray[np.int64], table: pa.Table) -> None:
        """Sets columns of some rows.

        Args:
            numbers: Which rows, each once.
            table: Their values, in the same order.
        """
        index = np.arange(self._n, dtype=np.int64)
        index[numbers] = self._n + np.arange(len(numbers))
        taken = pa.array(index)
        for name in table.column_names:
            kind = self._schema.field(name).type
            chunks = [*self.column(name).chunks, *table[name].cast(kind).chunks]
            both = pa.table({name: pa.chunked_array(chunks, kind)}).combine_chunks()
            self.set_column(name, both.take(taken)[name])

    def table(self, schema: pa.Schema) -> pa.Table:
        """All rows with the columns of a schema, in its order."""
        return pa.table([self.column(name) for name in schema.names], schema=schema)

    def _open(self, block: int) -> None:
        held = self._held.get(block)
        if held is None:
            if len(self._held) >= HELD:
                oldest, values = self._held.popitem(last=False)
                self._store(oldest, values)
            held = self._held[block] = {}
        else:
            self._held.move_to_end(block)
        self._values, self._block, self._first = held, block, block * BLOCK
        self._end = min(self._first + BLOCK, self._n)

    def _load(self, name: str) -> list[Any]:
        """The values of a column in the block that is open."""
        n = self._end - self._first
        own = self._own.get(self._block, {}).get(name)
        if own is not None:
            found = column_values(pa.chunked_array([own]))
        elif name in self._base:
            found = column_values(self._base[name].slice(self._first, n))
        elif name in self.names:
            found = [None] * n
        else:
            raise KeyError(name)
        self._values[name] = found
        return found

    def _store(self, block: int, values: Mapping[str, list[Any]]) -> None:
        names = self._dirty.pop(block, None)
        if names:
            own = self._own.setdefault(block, {})
            for name in names:
                own[name] = pa.array(values[name], self._schema.field(name).type)

    def _settle(self) -> None:
        for block in list(self._dirty):
            self._store(block, self._held[block])


def _in_chunks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of many small pieces in few."""
    chunks: list[pa.Array] = []
    for start in range(0, len(column), _ROWS_PER_CHUNK):
        some = column.slice(start, _ROWS_PER_CHUNK)
        chunks += pa.table([some], ["values"]).combine_chunks()["values"].chunks
    return pa.chunked_array(chunks, column.type)


def plain(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of a row, as a dictionary that is only read."""
    return row.rows.values_at(row.number) if isinstance(row, ClipRow) else row


def values(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """A column of all rows as Python values; None where a row does not have it."""
    if isinstance(rows, ClipRows):
        return column_values(rows.column(name))
    return [row.get(name) for row in rows]


def some_rows(rows: Sequence[Mapping[str, Any]], numbers: Sequence[int]) -> list[Mapping[str, Any]]:
    """Some rows by their numbers, as dictionaries that are only read."""
    if isinstance(rows, ClipRows):
        taken = pa.array(numbers, pa.int64())
        return [*columns_to_rows(pa.table({n: rows.column(n).take(taken) for n in rows.names}))]
    return [rows[number] for number in numbers]


def floats(rows: Sequence[Mapping[str, Any]], name: str) -> NDArray[np.float64]:
    """float64 [N] values of a column, NaN where a row has none."""
    if isinstance(rows, ClipRows):
        column = rows.column(name).cast(pa.float64()).to_numpy()
        return np.asarray(column, np.float64)
    return np.array([row.get(name) for row in rows], np.float64)


def numbers_where(rows: Sequence[Mapping[str, Any]], name: str, value: str) -> list[int]:
    """Numbers of the rows that have a value in a column."""
    if isinstance(rows, ClipRows):
        found: list[int] = pc.indices_nonzero(pc.equal(rows.column(name), value)).to_pylist()
        return found
    return [number for number, row in enumerate(rows) if row.get(name) == value]


def kept_rows(rows: Sequence[AnyRow]) -> list[AnyRow]:
    """The rows of clips that are kept."""
    return [rows[number] for number in numbers_where(rows, "decision", "kept")]


def table_of(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as a table: as they are where they are columns already."""
    if isinstance(rows, ClipRows):
        return rows.table(schema)
    return rows_to_table((dict(row) for row in rows), schema)


def sorted_columns(tables: list[pa.Table], by: Sequence[str]) -> pa.Table:
    """Rows of several tables sorted by some columns, in one chunk per column.

    Args:
        tables: At least one; the list is emptied, so that all is not held twice.
        by: Columns that say the order, ascending.
    """
    whole = pa.concat_tables(tables)
    tables.clear()
    order = pc.sort_indices(whole.select(list(by)), [(name, "ascending") for name in by])
    schema, columns = whole.schema, whole.columns
    del whole
    for index in range(len(columns)):
        # Of a table and not of the column, which may be too long for one array.
        columns[index] = pa.table([columns[index]], ["it"]).combine_chunks().take(order)["it"]
    return pa.table(columns, schema=schema)


def reject(clip: Row, reason: Reason, *, detail: str | None = None) -> None:
    """Turns a kept clip into a rejected one."""
    clip.update(
        {
            "decision": "rejected",
            "reason": str(reason),
            "reasons": [*clip["reasons"], str(reason)],
            "reason_detail": detail,
        }
    )
