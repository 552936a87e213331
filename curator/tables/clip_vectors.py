"""Vectors of clips in columns, and locations of caption vectors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.models.perceptual import CLIP_DIM, PERCEPTUAL_MODEL
from curator.tables.clip_locations import KeyRows
from curator.tables.schemas import embeddings_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class TextVector:
    """The location of a caption's embedding under the output root."""

    name: str
    """Part of `text_embeddings`."""
    row: int
    n_bytes: int
    """As a NumPy file."""
    n_dims: int
    """1 for a sentence's vector, 2 for those of tokens."""
    digest: str
    """Names caption and model."""


class Vectors:
    """Vectors of clips by id.

    Args:
        table: Rows of `embeddings`, sorted by `clip_id`.
    """

    def __init__(self, table: pa.Table) -> None:
        self._rows = KeyRows(table["clip_id"])
        column = table["vector"].combine_chunks()
        flat = column.flatten().to_numpy().astype(np.float32, copy=False)
        n = len(self._rows)
        self._vectors_ND = flat.reshape(n, -1) if n else flat.reshape(0, 0)

    def get(self, clip_id: str) -> NDArray[np.float32] | None:
        """Returns a vector, float32 [D], or None for a clip that could not be described."""
        row = self._rows.find(clip_id)
        vector: NDArray[np.float32] | None = None if row is None else self._vectors_ND[row]
        return vector


def vectors_table(
    vectors: Sequence[tuple[str, NDArray[np.float32]]],
    *,
    model: str | None = PERCEPTUAL_MODEL,
    least_dim: int = CLIP_DIM,
) -> pa.Table:
    """Returns rows of `embeddings` for vectors, float32 [D], by clip id.

    A table without vectors gets vectors of length `least_dim`.
    """
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
    """Gives tables of `embeddings` one schema; empty ones may have another vector length."""
    filled = [table for table in tables if table.num_rows] or tables[:1]
    schema = embeddings_schema(filled[0]["vector"].type.list_size)
    # Parquet uses other names for the elements of lists.
    return [table.cast(schema) for table in filled]
