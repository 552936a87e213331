"""Clips in Arrow columns, read and changed as typed rows a few blocks at a time.

A clip's 90 values take 5 KB as Python objects, about 1 KB in Arrow. A loop over the rows in order
loads each block once, and only the columns that it reads; a single column of all rows is loaded
whole.
"""

import itertools
from collections import OrderedDict
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.records.clips import Candidate, Clip
from curator.records.columns import columns_of
from curator.storage.metadata_columns import PREFIX
from curator.tables.disk_table import BLOCK_ROWS, widened
from curator.tables.parts import column_values, rows_to_table
from curator.tables.schemas import (
    candidates_schema,
    declared_columns,
    further_fields,
    metadata_fields,
    score_column,
    scores_in,
)

BLOCK = 512
"""Rows whose values become Python objects together."""
HELD = 16
"""Blocks that are held as such at a time."""
_ROWS_PER_CHUNK = 128 * BLOCK
"""Of a column that was changed: an Arrow array of texts ends at 2 GiB."""


class ClipRow(Clip):
    """A clip whose values are in a table; setting a field changes the table.

    The fields that `Clip` declares are made below, each a property over its column.
    """

    __slots__ = ("number", "rows")

    def __init__(self, rows: "ClipRows | _Changed", number: int) -> None:
        self.rows = rows
        self.number = number

    def value(self, column: str) -> Any:  # noqa: ANN401
        """Returns the value of a column whose name comes from a recipe or a measure."""
        return self.rows.value_at(self.number, column)

    def declared(self) -> dict[str, Any]:
        """Returns the values in columns that families declare.

        Those of single precision have the fewest digits that mean them.
        """
        return self.rows.declared_at(self.number)

    def changed(self, values: Mapping[str, Any]) -> "ClipRow":
        """Returns this clip with other values in some columns; the table stays as it is."""
        return ClipRow(_Changed(self, dict(values)), 0)


class _Changed:
    def __init__(self, row: ClipRow, values: dict[str, Any]) -> None:
        self._row = row
        self._values = values
        self.scores: Sequence[str] = row.rows.scores

    def value_at(self, number: int, name: str) -> Any:  # noqa: ANN401
        return self._values[name] if name in self._values else self._row.value(name)

    def change(self, number: int, name: str, value: object) -> None:
        self._values[name] = value

    def declared_at(self, number: int) -> dict[str, Any]:
        return self._row.declared()


class _Scores(Mapping[str, float | None]):
    __slots__ = ("_row",)

    def __init__(self, row: ClipRow) -> None:
        self._row = row

    def __getitem__(self, name: str) -> float | None:
        score: float | None = self._row.value(score_column(name))
        return score

    def __iter__(self) -> Iterator[str]:
        return iter(self._row.rows.scores)

    def __len__(self) -> int:
        return len(self._row.rows.scores)

    def items(self) -> ItemsView[str, float | None]:
        """Returns all scores: several times as fast as one by one."""
        rows, number = self._row.rows, self._row.number
        names = rows.scores
        return {name: rows.value_at(number, score_column(name)) for name in names}.items()


def _property(name: str) -> property:
    def get(row: ClipRow) -> object:
        return row.rows.value_at(row.number, name)

    def change(row: ClipRow, value: object) -> None:
        row.rows.change(row.number, name, value)

    return property(get, change)


for _name in columns_of(Clip):
    setattr(ClipRow, _name, property(_Scores) if _name == "scores" else _property(_name))


class ClipColumns(Protocol):
    """Clips that are read column by column: those of `ClipRows`, or more than memory holds."""

    def __len__(self) -> int: ...

    @property
    def schema(self) -> pa.Schema:
        """Columns of the clips."""

    def blocks(self, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yields some columns of all clips, or all columns, some rows at a time."""

    def floats(self, name: str) -> NDArray[np.float64]:
        """Returns a column as float64 [N], NaN where a clip has no value."""

    def take(self, numbers: Sequence[int]) -> "ClipRows":
        """Returns a copy of some rows by their numbers."""


class ClipRows(Sequence[ClipRow]):
    """The rows of a table in the columns of a schema, null where it lacks one, and further ones.

    Those are metadata, and columns that families declare.

    Attributes:
        scores: Names of the scores that the schema has columns for.
    """

    def __init__(self, table: pa.Table, schema: pa.Schema) -> None:
        self._n: int = table.num_rows
        names = set(schema.names)
        own = (field for field in further_fields(table.schema) if field.name not in names)
        self._schema = pa.schema([*schema, *own])
        self.scores = scores_in(schema)
        self._metadata = [field.name for field in metadata_fields(self._schema)]
        self._declared = list(declared_columns(self._schema))
        self._base = dict(zip(table.column_names, table.columns, strict=True))
        self._own: dict[int, dict[str, pa.Array]] = {}
        """Columns of single blocks that have changed since."""
        self._held: OrderedDict[int, dict[str, list[Any]]] = OrderedDict()
        """Values by column of the blocks that were read last."""
        self._dirty: dict[int, set[str]] = {}
        self._block = self._first = self._end = 0
        self._values: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[ClipRow]:
        return (ClipRow(self, number) for number in range(self._n))

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows."""
        return self._schema

    @overload
    def __getitem__(self, number: int) -> ClipRow: ...
    @overload
    def __getitem__(self, number: slice) -> list[ClipRow]: ...
    def __getitem__(self, number: int | slice) -> ClipRow | list[ClipRow]:
        """Returns a row, or several."""
        selected = range(self._n)[number]
        if isinstance(selected, range):
            return [ClipRow(self, row) for row in selected]
        return ClipRow(self, selected)

    def value_at(self, number: int, name: str) -> Any:  # noqa: ANN401
        """Returns the value of a row in a column; `KeyError` where there is no such column."""
        if not self._first <= number < self._end:
            self._open(number // BLOCK)
        values = self._values.get(name)
        if values is None:
            values = self._load(name)
        return values[number - self._first]

    def change(self, number: int, name: str, value: object) -> None:
        """Sets a value of a row; `KeyError` where there is no such column."""
        if not self._first <= number < self._end:
            self._open(number // BLOCK)
        held = self._values.get(name)
        if held is None:
            held = self._load(name)
        self._dirty.setdefault(self._block, set()).add(name)
        held[number - self._first] = value

    def metadata_at(self, number: int) -> dict[str, Any]:
        """Returns metadata of a row's source by its name without `meta.`."""
        return {name.removeprefix(PREFIX): self.value_at(number, name) for name in self._metadata}

    def declared_at(self, number: int) -> dict[str, Any]:
        """Returns values of a row as `ClipRow.declared` does."""
        row = {}
        for name in self._declared:
            value = self.value_at(number, name)
            is_single = value is not None and pa.types.is_float32(self._schema.field(name).type)
            row[name] = float(str(np.float32(value))) if is_single else value
        return row

    def values(self, name: str) -> list[Any]:
        """Returns a column of all rows as Python values."""
        return column_values(self.column(name))

    def floats(self, name: str) -> NDArray[np.float64]:
        """Returns a column as float64 [N], NaN where a row has no value."""
        return np.asarray(self.column(name).cast(pa.float64()).to_numpy(), np.float64)

    def kept(self) -> list[ClipRow]:
        """Returns the rows of kept clips."""
        return [ClipRow(self, number) for number in self.kept_numbers().tolist()]

    def kept_numbers(self) -> NDArray[np.int64]:
        """Returns the numbers of the rows of kept clips, int64 [N]."""
        is_kept = pc.equal(self.column("decision"), "kept")
        return np.asarray(pc.indices_nonzero(is_kept), np.int64)

    def kept_ids(self) -> pa.Array:
        """Returns the ids of kept clips."""
        is_kept = pc.equal(self.column("decision"), "kept")
        return self.column("clip_id").filter(is_kept).combine_chunks()

    def take(self, numbers: Sequence[int] | NDArray[np.int64]) -> "ClipRows":
        """Returns a copy of some rows by their numbers."""
        taken = pa.array(numbers, pa.int64())
        columns = {name: self.column(name).take(taken) for name in self._schema.names}
        return ClipRows(pa.table(columns, schema=self._schema), self._schema)

    def column(self, name: str) -> pa.ChunkedArray:
        """Returns a column of all rows; null where a row has no value."""
        self._settle()
        changed = {
            block: changed_block.pop(name)
            for block, changed_block in self._own.items()
            if name in changed_block
        }
        if changed:
            kind = self._schema.field(name).type
            base = self._base.get(name)
            parts = []
            for start in range(0, self._n, BLOCK):
                n = min(BLOCK, self._n - start)
                changed_block = changed.get(start // BLOCK)
                if changed_block is not None:
                    parts.append(changed_block)
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
        for held in self._held.values():
            held.pop(name, None)

    def append(self, table: pa.Table) -> None:
        """Adds rows at the end, null in columns that the table lacks."""
        self._settle()
        stored = {*self._base, *table.column_names, *itertools.chain(*self._own.values())}
        schema = fields_of(self._schema, [name for name in self._schema.names if name in stored])
        both = pa.concat_tables([self.table(schema), widened(table, schema)])
        self._base = dict(zip(both.column_names, both.columns, strict=True))
        self._n = both.num_rows
        self._held.clear()
        self._own.clear()
        self._values, self._first, self._end = {}, 0, 0

    def scatter(self, numbers: NDArray[np.int64], table: pa.Table) -> None:
        """Sets columns of some rows, numbered once each, from a table in the same order."""
        index = np.arange(self._n, dtype=np.int64)
        index[numbers] = self._n + np.arange(len(numbers))
        taken = pa.array(index)
        for name in table.column_names:
            kind = self._schema.field(name).type
            chunks = [*self.column(name).chunks, *table[name].cast(kind).chunks]
            both = pa.table({name: pa.chunked_array(chunks, kind)}).combine_chunks()
            self.set_column(name, both.take(taken)[name])

    def slice(self, start: int, n_rows: int, schema: pa.Schema | None = None) -> pa.Table:
        """Returns rows from number `start` as `table` does."""
        schema = schema or self._schema
        n_rows = min(n_rows, self._n - start)
        self._settle()
        changed = {name for own in self._own.values() for name in own}
        columns = [
            self.column(field.name).slice(start, n_rows)
            if field.name in self._base or field.name in changed
            else pa.nulls(n_rows, field.type)
            for field in schema
        ]
        return pa.table(columns, schema=schema)

    def blocks(self, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yields some columns of all rows, or all columns, at most `BLOCK_ROWS` at a time."""
        schema = self._schema if names is None else fields_of(self._schema, names)
        for start in range(0, self._n, BLOCK_ROWS):
            yield self.slice(start, BLOCK_ROWS, schema)

    def table(self, schema: pa.Schema | None = None) -> pa.Table:
        """Returns all rows with the columns of a schema, in its order; None for all columns."""
        schema = schema or self._schema
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
        """Loads a column's values of the current block."""
        n = self._end - self._first
        changed = self._own.get(self._block, {}).get(name)
        if changed is not None:
            values = column_values(pa.chunked_array([changed]))
        elif name in self._base:
            values = column_values(self._base[name].slice(self._first, n))
        elif name in self._schema.names:
            values = [None] * n
        else:
            raise KeyError(f"{name!r} is no column of {self._schema.names}")
        self._values[name] = values
        return values

    def _store(self, block: int, values: Mapping[str, list[Any]]) -> None:
        names = self._dirty.pop(block, None)
        if names:
            own = self._own.setdefault(block, {})
            for name in names:
                own[name] = pa.array(values[name], self._schema.field(name).type)

    def _settle(self) -> None:
        for block in list(self._dirty):
            self._store(block, self._held[block])


def fields_of(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Returns some fields of a schema."""
    return pa.schema([schema.field(name) for name in names])


def _in_chunks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Joins the many small chunks of a column into few."""
    chunks: list[pa.Array] = []
    for start in range(0, len(column), _ROWS_PER_CHUNK):
        some = column.slice(start, _ROWS_PER_CHUNK)
        chunks += pa.table([some], ["values"]).combine_chunks()["values"].chunks
    return pa.chunked_array(chunks, column.type)


def candidates_table(candidates: Iterable[Candidate], measured: Iterable[str]) -> pa.Table:
    """Returns candidates as rows of `candidates_schema`, with the scores that were measured."""
    names = [name for name in columns_of(Candidate) if name != "scores"]
    rows = (
        {score: value for score, value in candidate.scores.items() if score != "fps"}
        | {name: getattr(candidate, name) for name in names}
        for candidate in candidates
    )
    return rows_to_table(rows, candidates_schema(measured))


def reject(clip: Clip, reason: str, *, detail: str | None = None) -> None:
    """Turns a kept clip into a rejected one."""
    clip.decision = "rejected"
    clip.reason = str(reason)
    clip.reasons = [*clip.reasons, str(reason)]
    clip.reason_detail = detail
