"""Stores tables of families with the scope corpus, one object per family."""
# ruff: noqa: N803 - shape letters

from collections.abc import Collection

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.fingerprints import fingerprint
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.parts import parquet_by_content

FOLDER = "duplicate_pairs"
"""Folder of pairs of similar clips, and of vectors for workers."""


def write_vectors(store: Store, vectors_ND: NDArray[np.float32]) -> str:
    """Writes vectors for workers; returns the object's name.

    The caller removes the object. If it does not, the next commit does.
    """
    flat = pa.array(vectors_ND.astype(np.float32, copy=False).ravel())
    table = pa.table({"vector": pa.FixedSizeListArray.from_arrays(flat, vectors_ND.shape[1])})
    name = f"{FOLDER}/{fingerprint('vectors', 1)}-{'~' * 16}.parquet"
    name, data = parquet_by_content([table], table.schema, name)
    store.write(name, data)
    return name


class CorpusTables:
    """The tables of families that a run leaves for later runs.

    `fingerprint` is the fingerprint of candidates; only earlier snapshots name `earlier` objects.
    """

    def __init__(self, store: Store, fingerprint: str, *, earlier: Collection[str] = ()) -> None:
        self._store, self._fingerprint, self._earlier = store, fingerprint, earlier
        self._names: dict[str, str] = {}

    def names(self, family: str) -> set[str]:
        """Returns the name of the valid object, if any, which a commit keeps even if unused."""
        name = self._names.get(family) or self._newest(family)
        return {name} if name else set()

    def read(self, family: str) -> pa.Table | None:
        """Reads the table of a family; None if there is no valid table."""
        if (name := self._newest(family)) is None:
            return None
        self._names[family] = name
        return read_parquet(self._store, name)

    def write(self, family: str, table: pa.Table) -> None:
        """Replaces the table of a family; its name is also a folder of the output root."""
        name = f"{family}/{self._fingerprint}-{'~' * 16}.parquet"
        self._names[family], data = parquet_by_content([table], table.schema, name)
        self._store.write(self._names[family], data)

    def _newest(self, family: str) -> str | None:
        # There are two objects if a run was killed before it removed the older object.
        listed = self._store.list(f"{family}/{self._fingerprint}-")
        stored = [(info.bytes, info.key) for info in listed if info.key not in self._earlier]
        return max(stored)[1] if stored else None
