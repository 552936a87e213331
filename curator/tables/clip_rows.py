"""Clips in Arrow columns, which code reads and changes as typed rows.

The 90 values of a clip take 5 KB as Python objects, and about 1 KB in Arrow, so few blocks of rows
are Python objects at a time. A loop in order loads each block once, and only the columns in use.
"""

from collections import OrderedDict, defaultdict
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.records.clips import Candidate, Clip
from curator.records.columns import columns_of
from curator.storage.metadata_columns import PREFIX
from curator.tables.disk_table import BLOCK_ROWS, DiskTable, widened
from curator.tables.long_columns import joined_chunks, joined_column, take_rows, take_values
from curator.tables.parts import rows_to_table
from curator.tables.schemas import (
    candidates_schema,
    clips_schema,
    declared_columns,
    further_fields,
    metadata_fields,
    scores_in,
)

BLOCK = 512
"""Number of rows per block; the values of a block become Python objects together."""
LOADED_BLOCKS = 16
"""Maximum number of blocks that are Python objects at a time."""
_ROWS_PER_CHUNK = 128 * BLOCK
"""Rows per chunk of a changed column."""


class ClipRow(Clip):
    """A clip with its values in a table; setting a field changes the table.

    The loop below makes a property over its column for each field of `Clip`.
    """

    __slots__ = ("number", "rows")

    def __init__(self, rows: "ClipRows | _Changed", number: int) -> None:
        self.rows, self.number = rows, number

    def value(self, column: str) -> Any:  # noqa: ANN401
        """Returns the value of a column with a name from a recipe or a measure."""
        return self.rows.value_at(self.number, column)

    def declared(self) -> dict[str, Any]:
        """Returns the values in columns that families declare.

        Values of single precision have the fewest digits that identify them.
        """
        return self.rows.declared_at(self.number)

    def changed(self, values: Mapping[str, Any]) -> "ClipRow":
        """Returns a copy of this clip with other values; the table does not change."""
        return ClipRow(_Changed(self, dict(values)), 0)


class _Changed:
    def __init__(self, row: ClipRow, values: dict[str, Any]) -> None:
        self._row, self._values = row, values
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
        score: float | None = self._row.value(name)
        return score

    def __iter__(self) -> Iterator[str]:
        return iter(self._row.rows.scores)

    def __len__(self) -> int:
        return len(self._row.rows.scores)

    def items(self) -> ItemsView[str, float | None]:
        """Returns all scores, several times as fast as one by one."""
        rows, number = self._row.rows, self._row.number
        return {name: rows.value_at(number, name) for name in rows.scores}.items()


def _property(name: str) -> property:
    def get(row: ClipRow) -> object:
        return row.rows.value_at(row.number, name)

    def change(row: ClipRow, value: object) -> None:
        row.rows.change(row.number, name, value)

    return property(get, change)


for _name in columns_of(Clip):
    setattr(ClipRow, _name, property(_Scores) if _name == "scores" else _property(_name))


class _Block:
    """Rows with their values as Python objects, from number `first` on."""

    def __init__(self, number: int, n_rows: int) -> None:
        self.number, self.first = number, number * BLOCK
        self.end = min(self.first + BLOCK, n_rows)
        self.values: dict[str, list[Any]] = {}
        """Values by column."""
        self.changed: set[str] = set()
        """Columns with changes that the table lacks."""


class ClipRows(Sequence[ClipRow]):
    """The rows of a table, with the columns of a schema, metadata, and columns of families.

    Columns that the table lacks are null. `scores` names the scores in `schema`.
    """

    def __init__(self, table: pa.Table, schema: pa.Schema) -> None:
        self._n: int = table.num_rows
        names = set(schema.names)
        own = (field for field in further_fields(table.schema) if field.name not in names)
        self.schema = pa.schema([*schema, *own])
        self.scores = scores_in(schema)
        self._metadata = [field.name for field in metadata_fields(self.schema)]
        self._declared = list(declared_columns(self.schema))
        self._base = dict(zip(table.column_names, table.columns, strict=True))
        self._own: defaultdict[str, dict[int, pa.Array]] = defaultdict(dict)
        """Changed blocks of columns, by column and number."""
        self._loaded: OrderedDict[int, _Block] = OrderedDict()
        """The last blocks in use, by number."""
        self._block = _Block(0, 0)

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[ClipRow]:
        return (ClipRow(self, number) for number in range(self._n))

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
        """Returns the value of a row in a column; raises `KeyError` for an unknown column."""
        block = self._block
        if not block.first <= number < block.end:
            block = self._open(number // BLOCK)
        values = block.values.get(name)
        if values is None:
            values = self._load(block, name)
        return values[number - block.first]

    def change(self, number: int, name: str, value: object) -> None:
        """Sets a value of a row; raises `KeyError` for an unknown column."""
        self.value_at(number, name)
        self._block.changed.add(name)
        self._block.values[name][number - self._block.first] = value

    def metadata_at(self, number: int) -> dict[str, Any]:
        """Returns the metadata of a row's source, by names without `meta.`."""
        return {name.removeprefix(PREFIX): self.value_at(number, name) for name in self._metadata}

    def declared_at(self, number: int) -> dict[str, Any]:
        """Returns values of a row as `ClipRow.declared` does."""
        row = {}
        for name in self._declared:
            value = self.value_at(number, name)
            is_single = value is not None and pa.types.is_float32(self.schema.field(name).type)
            row[name] = float(str(np.float32(value))) if is_single else value
        return row

    def values(self, name: str) -> list[Any]:
        """Returns a column of all rows as Python values."""
        return list(self.column(name).to_pylist())

    def floats(self, name: str) -> NDArray[np.float64]:
        """Returns a column as float64 [N]; NaN for null."""
        values = self.column(name).cast(pa.float64(), safe=False)
        return np.asarray(values.to_numpy(), np.float64)

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
        columns = {name: take_values(self.column(name), taken) for name in self.schema.names}
        return ClipRows(pa.table(columns, schema=self.schema), self.schema)

    def column(self, name: str) -> pa.ChunkedArray:
        """Returns a column of all rows."""
        self._settle()
        base, own = self._base.get(name), self._own.pop(name, {})
        if base is not None and not own:
            return base
        kind = self.schema.field(name).type
        if base is None:
            base = pa.chunked_array([pa.nulls(self._n, kind)])
        if own:
            parts: list[pa.Array] = []
            for block, start in enumerate(range(0, self._n, BLOCK)):
                parts += [own[block]] if block in own else base.slice(start, BLOCK).chunks
            # Joins many small chunks into few.
            changed, chunks = pa.chunked_array(parts, kind), []
            for start in range(0, self._n, _ROWS_PER_CHUNK):
                chunks += joined_column(changed.slice(start, _ROWS_PER_CHUNK)).chunks
            base = self._base[name] = pa.chunked_array(chunks, kind)
        return base

    def set_column(self, name: str, column: pa.ChunkedArray) -> None:
        """Sets a column of all rows."""
        self._settle()
        self._own.pop(name, None)
        self._base[name] = column
        for block in self._loaded.values():
            block.values.pop(name, None)

    def append(self, table: pa.Table) -> None:
        """Adds rows at the end; columns that the table lacks are null."""
        self._settle()
        stored = {*self._base, *table.column_names, *self._own}
        schema = fields_of(self.schema, [name for name in self.schema.names if name in stored])
        both = pa.concat_tables([self.table(schema), widened(table, schema)])
        self._base = dict(zip(both.column_names, both.columns, strict=True))
        self._n = both.num_rows
        self._loaded.clear()
        self._block = _Block(0, 0)

    def scatter(self, numbers: NDArray[np.int64], table: pa.Table) -> None:
        """Sets columns of some rows from a table in the order of `numbers`, which are distinct."""
        index = np.arange(self._n, dtype=np.int64)
        index[numbers] = self._n + np.arange(len(numbers))
        taken = pa.array(index)
        for name in table.column_names:
            kind = self.schema.field(name).type
            chunks = [*self.column(name).chunks, *table[name].cast(kind).chunks]
            self.set_column(name, take_values(joined_column(pa.chunked_array(chunks, kind)), taken))

    def slice(self, start: int, n_rows: int, schema: pa.Schema | None = None) -> pa.Table:
        """Returns rows from number `start` on, with columns as in `table`."""
        schema = schema or self.schema
        n_rows = min(n_rows, self._n - start)
        self._settle()
        columns = [
            self.column(field.name).slice(start, n_rows)
            if field.name in self._base or field.name in self._own
            else pa.nulls(n_rows, field.type)
            for field in schema
        ]
        return pa.table(columns, schema=schema)

    def blocks(self, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yields some columns of all rows, or all columns, at most `BLOCK_ROWS` at a time."""
        schema = None if names is None else fields_of(self.schema, names)
        for start in range(0, self._n, BLOCK_ROWS):
            yield self.slice(start, BLOCK_ROWS, schema)

    def table(self, schema: pa.Schema | None = None) -> pa.Table:
        """Returns all rows with the columns of a schema, in its order; None for all columns."""
        return self.slice(0, self._n, schema)

    def _open(self, number: int) -> _Block:
        if number not in self._loaded:
            if len(self._loaded) >= LOADED_BLOCKS:
                self._store(self._loaded.popitem(last=False)[1])
            self._loaded[number] = _Block(number, self._n)
        self._loaded.move_to_end(number)
        self._block = self._loaded[number]
        return self._block

    def _load(self, block: _Block, name: str) -> list[Any]:
        """Loads the values of a block in a column."""
        own = self._own.get(name, {}).get(block.number)
        n = block.end - block.first
        if own is not None:
            values = own.to_pylist()
        elif name in self._base:
            values = self._base[name].slice(block.first, n).to_pylist()
        elif name in self.schema.names:
            values = [None] * n
        else:
            raise KeyError(f"unknown column {name!r}; expected one of {self.schema.names}")
        return block.values.setdefault(name, values)

    def _store(self, block: _Block) -> None:
        for name in block.changed:
            kind = self.schema.field(name).type
            self._own[name][block.number] = pa.array(block.values[name], kind)
        block.changed.clear()

    def _settle(self) -> None:
        for block in self._loaded.values():
            self._store(block)


class DiskClipTable:
    """All clips of a run, in order: `rows` has clips that pass the rules, a disk table the others.

    Later stages read only clips that pass. The others are final, and wait in a temporary file
    for tables and report. Each kind takes at most `memory_budget_bytes` of memory.
    """

    def __init__(self, schema: pa.Schema, memory_budget_bytes: int) -> None:
        self._of_clips = clips_schema(scores_in(schema))
        self.schema = pa.schema([*self._of_clips, *further_fields(schema)])
        self._out = DiskTable(schema, memory_budget_bytes)
        self._passed = DiskTable(schema, memory_budget_bytes)
        self._masks: list[NDArray[np.bool_]] = []

    def add(self, decided: pa.Table) -> None:
        """Adds the next clips, with decisions; call it before any use of `rows`."""
        is_kept = pc.equal(decided["decision"], "kept")
        self._passed.add(decided.filter(is_kept))
        self._out.add(decided.filter(pc.invert(is_kept)))
        self._masks.append(is_kept.to_numpy())

    def append(self, decided: pa.Table) -> None:
        """Adds clips after all others; `rows` gets them with any decision."""
        self.rows.append(decided)
        self._masks.append(np.ones(len(decided), np.bool_))
        self.__dict__.pop("_is_passed", None)

    @cached_property
    def rows(self) -> ClipRows:
        """Rows of the clips that passed the rules, and of appended clips."""
        return ClipRows(self._passed.whole(), self._of_clips)

    @cached_property
    def _is_passed(self) -> NDArray[np.bool_]:
        return np.concatenate([np.zeros(0, np.bool_), *self._masks])

    def __len__(self) -> int:
        return len(self._is_passed)

    def blocks(self, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yields some columns of all clips, or all columns, at most `BLOCK_ROWS` at a time."""
        schema = self.schema if names is None else fields_of(self.schema, names)
        n_passed = 0
        for start in range(0, len(self), BLOCK_ROWS):
            is_passed = self._is_passed[start : start + BLOCK_ROWS]
            n_here = int(is_passed.sum())
            out = self._out.slice(start - n_passed, len(is_passed) - n_here)
            passed = self.rows.slice(n_passed, n_here, schema)
            n_passed += n_here
            yield _in_order(widened(out, schema), passed, is_passed)
            self._out.forget()
        self._passed.forget()

    def floats(self, name: str) -> NDArray[np.float64]:
        """Returns a column as float64 [N]; NaN for null."""
        values = np.full(len(self), np.nan)
        values[self._is_passed] = self.rows.floats(name)
        if name in self._out.schema.names:
            column = self._out.whole()[name]
            values[~self._is_passed] = column.cast(pa.float64()).to_numpy()
        return values

    def take(self, numbers: Sequence[int]) -> ClipRows:
        """Returns a copy of some rows by their numbers."""
        wanted = np.asarray(numbers, np.int64)
        is_passed = self._is_passed[wanted]
        passed = self.rows.take((np.cumsum(self._is_passed) - 1)[wanted[is_passed]])
        places = (np.cumsum(~self._is_passed) - 1)[wanted[~is_passed]]
        out = widened(self._out.take(places.tolist()), self.schema)
        return ClipRows(_in_order(out, passed.table(self.schema), is_passed), self._of_clips)


ClipColumns = ClipRows | DiskClipTable
"""Clips to read column by column, in memory or on the disk."""


def _in_order(out: pa.Table, passed: pa.Table, is_passed: NDArray[np.bool_]) -> pa.Table:
    """Returns the rows of two tables in order, with few chunks per column.

    `is_passed` is bool [N]: whether the next row comes from `passed`.
    """
    # Number of each row in the concatenation of `out` and `passed`.
    order = pa.array(np.argsort(np.argsort(is_passed, kind="stable")))
    # One chunk per column, because Arrow takes slowly from many chunks.
    both = pa.concat_tables([out, passed])
    return take_rows(joined_chunks(both), order)


def fields_of(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Returns some fields of a schema."""
    return pa.schema([schema.field(name) for name in names])


def candidates_table(candidates: Iterable[Candidate], measured: Iterable[str]) -> pa.Table:
    """Returns candidates as rows of `candidates_schema`, with the measured scores."""
    names = [name for name in columns_of(Candidate) if name != "scores"]
    rows = (
        {**candidate.scores} | {name: getattr(candidate, name) for name in names}
        for candidate in candidates
    )
    return rows_to_table(rows, candidates_schema(measured))


def reject(clip: Clip, reason: str, *, detail: str | None = None) -> None:
    """Marks a kept clip as rejected."""
    clip.decision = "rejected"
    clip.reason = str(reason)
    clip.reasons = [*clip.reasons, str(reason)]
    clip.reason_detail = detail
