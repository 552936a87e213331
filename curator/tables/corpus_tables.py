"""Tables of families of scope corpus under the output root, one object each."""
# ruff: noqa: N803 - shape letters

from collections.abc import Collection

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.fingerprints import fingerprint
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.parts import parquet_by_content

FOLDER = "alike"
"""Folder of pairs, and of vectors on their way to workers."""


def write_vectors(store: Store, vectors_ND: NDArray[np.float32]) -> str:
    """Writes vectors alone for workers; returns the object's name.

    Whoever writes them removes them; else the next commit does.
    """
    flat = pa.array(vectors_ND.astype(np.float32, copy=False).ravel())
    table = pa.table({"vector": pa.FixedSizeListArray.from_arrays(flat, vectors_ND.shape[1])})
    name = f"{FOLDER}/{fingerprint('vectors', 1)}-{'~' * 16}.parquet"
    name, data = parquet_by_content([table], table.schema, name)
    store.write(name, data)
    return name


class CorpusTables:
    """The table of each family that runs leave for later ones.

    `fingerprint` is that of the candidates; `earlier` are objects that only earlier snapshots name.
    """

    def __init__(self, store: Store, fingerprint: str, *, earlier: Collection[str] = ()) -> None:
        self._store, self._fingerprint, self._earlier = store, fingerprint, earlier
        self._names: dict[str, str] = {}

    def names(self, family: str) -> set[str]:
        """Returns the valid object, if any; it stays through a run that does not need it."""
        name = self._names.get(family) or self._newest(family)
        return {name} if name else set()

    def read(self, family: str) -> pa.Table | None:
        """Reads the table of a family; None for none."""
        if (name := self._newest(family)) is None:
            return None
        self._names[family] = name
        return read_parquet(self._store, name)

    def write(self, family: str, table: pa.Table) -> None:
        """Replaces the table of a family, whose name is that of a folder of the output root."""
        name = f"{family}/{self._fingerprint}-{'~' * 16}.parquet"
        self._names[family], data = parquet_by_content([table], table.schema, name)
        self._store.write(self._names[family], data)

    def _newest(self, family: str) -> str | None:
        # Two only after a run that was killed before it removed the older one.
        listed = self._store.list(f"{family}/{self._fingerprint}-")
        stored = [(info.bytes, info.key) for info in listed if info.key not in self._earlier]
        return max(stored)[1] if stored else None
