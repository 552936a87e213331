"""Vectors of clips in columns, and where vectors of captions are."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.tables.clip_locations import KeyRows


@dataclass(frozen=True, slots=True, kw_only=True)
class TextVector:
    """Where the embedding of a caption is under the output root."""

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
        """float32 [D], or None for a clip that could not be described."""
        row = self._rows.find(clip_id)
        vector: NDArray[np.float32] | None = None if row is None else self._vectors_ND[row]
        return vector
