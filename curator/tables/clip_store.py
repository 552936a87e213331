"""All clips of a run: those that pass the rules as rows that change, the others on the disk.

Later stages look only at clips that passed. What the rules reject is final: it waits in a temporary
file until tables and report are written.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.tables.clip_rows import ClipRows, fields_of
from curator.tables.disk_table import BLOCK_ROWS, DiskTable, widened
from curator.tables.schemas import clips_schema, further_fields, scores_in


class ClipStore:
    """The clips of a run, in their order.

    `memory_budget_bytes` of either kind are held in memory.
    """

    def __init__(self, schema: pa.Schema, memory_budget_bytes: int) -> None:
        self._of_clips = clips_schema(scores_in(schema))
        self.schema = pa.schema([*self._of_clips, *further_fields(schema)])
        self._out = DiskTable(schema, memory_budget_bytes)
        self._passed = DiskTable(schema, memory_budget_bytes)
        self._masks: list[NDArray[np.bool_]] = []

    def add(self, decided: pa.Table) -> None:
        """Adds the next clips, with decisions; before any rows are asked for."""
        is_kept = pc.equal(decided["decision"], "kept")
        self._passed.add(decided.filter(is_kept))
        self._out.add(decided.filter(pc.invert(is_kept)))
        self._masks.append(is_kept.to_numpy())

    def append(self, decided: pa.Table) -> None:
        """Adds clips behind all others, among `rows` whatever was decided about them."""
        self.rows.append(decided)
        self._masks.append(np.ones(len(decided), np.bool_))
        self.__dict__.pop("_is_passed", None)

    @cached_property
    def rows(self) -> ClipRows:
        """The clips that passed the rules."""
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
            order = np.empty(len(is_passed), np.int64)
            order[~is_passed] = np.arange(len(is_passed) - n_here)
            order[is_passed] = np.arange(len(is_passed) - n_here, len(is_passed))
            yield _taken(pa.concat_tables([widened(out, schema), passed]), order)
            self._out.forget()
        self._passed.forget()

    def floats(self, name: str) -> NDArray[np.float64]:
        """Returns a column as float64 [N], NaN where a clip has no value."""
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
        table = pa.concat_tables([out, passed.table(self.schema)])
        # Where each of the wanted clips is now: first those that are out, then those that passed.
        order = np.argsort(np.argsort(is_passed, kind="stable"))
        return ClipRows(_taken(table, order), self._of_clips)


def _taken(table: pa.Table, order: NDArray[np.int64]) -> pa.Table:
    """Returns the rows of a block in another order, with one chunk per column."""
    at = pa.array(order)
    # Put together first: from a column in pieces, Arrow takes slowly.
    columns = [column.combine_chunks().take(at) for column in table.columns]
    return pa.table(columns, schema=table.schema)
