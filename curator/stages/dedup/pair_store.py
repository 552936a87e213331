"""The pairs of similar clips under the output root, in one object."""

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curator.stages.dedup.pair_search import PairSearch
from curator.stages.dedup.similar_pairs import AlikePairs, no_pairs
from curator.stages.dedup.stage import DedupStage, DedupUnit
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.clip_rows import ClipRows
from curator.tables.clip_vectors import StoredVectors
from curator.tables.parts import parquet_by_content

FOLDER = "alike"
_LISTS = [("near", pa.list_(pa.int32())), ("cosine", pa.list_(pa.float64()))]
ALIKE_SCHEMA = pa.schema([("clip_id", pa.string()), *_LISTS])
"""A row per clip that was compared with all rows before it; `near` are the numbers of those of them
that are alike."""
_LEAST = b"curate.least_cosine"


class StoredPairs:
    """The pairs of similar clips under the output root, in one object.

    Args:
        store: Output root.
        stamp: Fingerprint of the candidates.
        earlier: Objects that only earlier snapshots name.
    """

    def __init__(self, store: Store, stamp: str, *, earlier: Collection[str] = ()) -> None:
        self._store = store
        self._stamp = stamp
        self._earlier = earlier
        self._name: str | None = None

    def names(self) -> set[str]:
        """Returns the valid object, if any; it stays through a run that finds no pairs."""
        name = self._name or self._newest()
        return {name} if name else set()

    def read(self, least: float) -> AlikePairs:
        """Reads the pairs of at least a cosine; none if the stored ones begin above it."""
        name = self._newest()
        if name is None:
            return no_pairs(least)
        table = read_parquet(self._store, name)
        floor = float((table.schema.metadata or {})[_LEAST])
        if floor > least:
            return no_pairs(least)
        self._name = name
        near, cosine = (table[column].combine_chunks() for column in ("near", "cosine"))
        return AlikePairs(
            ids=table["clip_id"].combine_chunks(),
            least=floor,
            first=pc.list_parent_indices(near).to_numpy().astype(np.int64),
            second=near.flatten().to_numpy().astype(np.int64),
            cosine=cosine.flatten().to_numpy(),
        )

    def _newest(self) -> str | None:
        # Two only after a run that was killed before it removed the older one.
        stored = [
            (info.bytes, info.key)
            for info in self._store.list(f"{FOLDER}/{self._stamp}-")
            if info.key not in self._earlier
        ]
        return max(stored)[1] if stored else None

    def write(self, pairs: AlikePairs) -> None:
        """Replaces the stored pairs."""
        order = np.lexsort((pairs.second, pairs.first))
        counts = np.bincount(pairs.first, minlength=len(pairs.ids))
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        values = pa.array(pairs.second[order], pa.int32()), pa.array(pairs.cosine[order])
        lists = [pa.ListArray.from_arrays(offsets, held) for held in values]
        schema = ALIKE_SCHEMA.with_metadata({_LEAST: repr(pairs.least)})
        table = pa.table([pairs.ids, *lists], schema=schema)
        name = f"{FOLDER}/{self._stamp}-{'~' * 16}.parquet"
        self._name, data = parquet_by_content([table], schema, name)
        self._store.write(self._name, data)


def remove_duplicates(
    stage: DedupStage,
    clips: ClipRows,
    vectors: StoredVectors,
    stored: StoredPairs | None = None,
    *,
    writes: bool = True,
    search: PairSearch | None = None,
) -> None:
    """Runs the stage with the pairs of earlier runs, and stores new ones if `writes`.

    None for `stored` compares all clips anew, None for `search` in this process.
    """
    if not stage.config.enabled:
        return
    least = stage.config.similarity
    known = stored.read(least) if stored else no_pairs(least)
    unit = DedupUnit(clips=clips, vectors=vectors, known=known, search=search or PairSearch())
    pairs = stage.process(unit)
    if stored and writes and pairs is not None and pairs is not known:
        stored.write(pairs)
