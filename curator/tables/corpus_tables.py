"""Tables of families of scope corpus under the output root, one object each."""

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa

from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.parts import parquet_by_content


@dataclass(frozen=True, slots=True)
class StoredTables:
    """Objects under an output root, which can be read on workers too.

    Attributes:
        store: Output root.
        names: Of the objects, in any order.
        n_rows: Of all of them, about.
    """

    store: Store
    names: tuple[str, ...]
    n_rows: int

    def table(self, name: str) -> pa.Table:
        """Reads one of them."""
        return read_parquet(self.store, name)


class CorpusTables:
    """The table of each family that runs leave for later ones.

    Args:
        store: Output root.
        fingerprint: Fingerprint of the candidates.
        earlier: Objects that only earlier snapshots name.
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
        name = self._newest(family)
        if name is None:
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
        stored = [
            (info.bytes, info.key)
            for info in self._store.list(f"{family}/{self._fingerprint}-")
            if info.key not in self._earlier
        ]
        return max(stored)[1] if stored else None
