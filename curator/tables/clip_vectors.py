"""Vectors of clips in columns. Shape letters: N clips, D embedding dimensions."""
# ruff: noqa: N806 - shape letters

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.models.scene_network import SCENE_DIM, SCENE_MODEL
from curator.tables.clip_locations import KeyIndex
from curator.tables.disk_table import BLOCK_ROWS, DiskTable, SortedRows
from curator.tables.schemas import embeddings_schema


class Vectors:
    """Vectors of clips by id: views of rows of `embeddings`, which may be in a file."""

    def __init__(self, table: pa.Table) -> None:
        self._rows = KeyIndex(table["clip_id"])
        self._parts = [as_matrix(chunk) for chunk in table["vector"].chunks]
        self._ends = np.cumsum([len(part) for part in self._parts], dtype=np.int64)

    def get(self, clip_id: str) -> NDArray[np.float32] | None:
        """Returns the vector of a clip, float32 [D]; None for a clip without a vector."""
        if (row := self._rows.find(clip_id)) is None:
            return None
        at = int(np.searchsorted(self._ends, row, "right"))
        vector: NDArray[np.float32] = self._parts[at][row - int(self._ends[at])]
        return vector


class StoredVectors:
    """Vectors of all clips: at most `memory_budget_bytes` in memory, others on the local disk.

    Without any vectors, the schema is that of the table `empty`.
    """

    def __init__(self, empty: pa.Table, memory_budget_bytes: int) -> None:
        self._memory_budget_bytes = memory_budget_bytes
        self._rows = SortedRows(empty.schema, ("clip_id",), memory_budget_bytes)

    @classmethod
    def of(cls, table: pa.Table) -> "StoredVectors":
        """Returns the vectors of a table, in memory."""
        stored = cls(table.slice(0, 0), table.nbytes + 1)
        stored.add(table)
        return stored

    @property
    def schema(self) -> pa.Schema:
        """Columns of `embeddings`, with the length of the vectors."""
        return self._rows.schema

    def add(self, table: pa.Table) -> None:
        """Adds rows of `embeddings`; empty tables may have another length of vectors."""
        if not table.num_rows:
            return
        if not self._rows.num_rows:
            schema = embeddings_schema(table["vector"].type.list_size)
            self._rows = SortedRows(schema, ("clip_id",), self._memory_budget_bytes)
        self._rows.add(table)

    def blocks(self) -> Iterator[pa.Table]:
        """Yields all rows by id, some at a time."""
        return self._rows.blocks()

    def known(self, ids: pa.Array) -> NDArray[np.bool_]:
        """Returns which clips have a vector, bool [N]."""
        positions = [numbers for numbers, _, _ in self._rows.find(ids)]
        return np.isin(np.arange(len(ids)), np.concatenate(positions))

    def matrix(self, ids: pa.Array) -> NDArray[np.float32]:
        """Returns the vectors of clips, float32 [N, D]; each clip must have a vector."""
        matrix_ND = np.empty((len(ids), self.schema.field("vector").type.list_size), np.float32)
        for positions, table, rows in self._rows.find(ids):
            begin = 0
            for chunk in table["vector"].chunks:
                own = (rows >= begin) & (rows < begin + len(chunk))
                matrix_ND[positions[own]] = as_matrix(chunk)[rows[own] - begin]
                begin += len(chunk)
        return matrix_ND

    def some(self, ids: pa.Array) -> Vectors:
        """Returns the vectors of some clips, on the local disk if they exceed the budget."""
        chosen = DiskTable(self.schema, self._memory_budget_bytes)
        for _, table, rows in self._rows.find(ids):
            for start in range(0, len(rows), BLOCK_ROWS):
                chosen.add(table.take(pa.array(rows[start : start + BLOCK_ROWS])))
        return Vectors(chosen.whole())


def as_matrix(column: pa.FixedSizeListArray) -> NDArray[np.float32]:
    """Returns a view of a column of vectors, float32 [N, D]."""
    flat = column.flatten().to_numpy().astype(np.float32, copy=False)
    matrix_ND: NDArray[np.float32] = flat.reshape(len(column), column.type.list_size)
    return matrix_ND


def vectors_table(
    vectors: Sequence[tuple[str, NDArray[np.float32]]],
    *,
    model: str | None = SCENE_MODEL,
    least_dim: int = SCENE_DIM,
) -> pa.Table:
    """Returns rows of `embeddings` for vectors with clip ids; without any, D is `least_dim`."""
    dim = len(vectors[0][1]) if vectors else least_dim
    flat = np.concatenate([vector for _, vector in vectors]) if vectors else np.zeros(0, np.float32)
    return pa.table(
        [
            pa.array([name for name, _ in vectors], pa.string()),
            pa.array([model] * len(vectors), pa.string()),
            pa.FixedSizeListArray.from_arrays(pa.array(flat, pa.float32()), dim),
        ],
        schema=embeddings_schema(dim),
    )


def like_vectors(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Gives tables of `embeddings` one schema; drops empty tables, which may have another D."""
    filled = [table for table in tables if table.num_rows] or tables[:1]
    schema = embeddings_schema(filled[0]["vector"].type.list_size)
    # Parquet uses other names for the elements of lists.
    return [table.cast(schema) for table in filled]
