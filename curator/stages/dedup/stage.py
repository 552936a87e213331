"""Rejects duplicates, with the pairs that earlier runs found where the output root has them."""

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.executor.host_resources import available_gpus
from curator.records import Reason
from curator.stages.dedup.retention import (
    DedupConfig,
    Duplicates,
    RankKey,
    find_duplicates,
    rank_key,
)
from curator.stages.dedup.similar_pairs import AlikePairs, compare, duplicates_of, no_pairs
from curator.storage import Store
from curator.tables.clip_rows import Row, kept_rows, reject
from curator.tables.parts import read_parquet, to_parquet

FOLDER = "alike"
ALIKE_SCHEMA = pa.schema(
    [
        ("clip_id", pa.string()),
        ("near", pa.list_(pa.int32())),
        ("cosine", pa.list_(pa.float64())),
    ]
)
"""A row per clip that was compared with all rows before it; `near` are the numbers of those of them
that are alike."""
_LEAST = b"curate.least_cosine"


class StoredPairs:
    """The pairs of alike clips as they lie under the output root, in one object.

    Args:
        store: Output root.
        stamp: Fingerprint of the candidates, whose vectors were compared.
    """

    def __init__(self, store: Store, stamp: str) -> None:
        self._store = store
        self._stamp = stamp
        self._name: str | None = None

    def names(self) -> set[str]:
        """The object that counts, if there is one; it stays through a run that finds none."""
        name = self._name or self._newest()
        return {name} if name else set()

    def read(self, least: float) -> AlikePairs:
        """Reads the pairs of at least a cosine; none if those stored begin above it."""
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
        stored = [(info.bytes, info.key) for info in self._store.list(f"{FOLDER}/{self._stamp}-")]
        return max(stored)[1] if stored else None

    def write(self, pairs: AlikePairs) -> None:
        """Stores pairs in place of what was there."""
        order = np.lexsort((pairs.second, pairs.first))
        counts = np.bincount(pairs.first, minlength=len(pairs.ids))
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        values = pa.array(pairs.second[order], pa.int32()), pa.array(pairs.cosine[order])
        lists = [pa.ListArray.from_arrays(offsets, held) for held in values]
        schema = ALIKE_SCHEMA.with_metadata({_LEAST: repr(pairs.least)})
        data = to_parquet(pa.table([pairs.ids, *lists], schema=schema))
        self._name = f"{FOLDER}/{self._stamp}-{hashlib.sha256(data).hexdigest()[:16]}.parquet"
        self._store.write(self._name, data)


def mark_duplicates(
    clips: Sequence[Row],
    vectors: pa.Table,
    config: DedupConfig,
    stored: StoredPairs | None = None,
    *,
    writes: bool = True,
) -> None:
    """Rejects clips that show the footage of a better clip.

    Args:
        clips: All clips; those that are kept so far are compared.
        vectors: Rows of `embeddings`, of each clip that could be described.
        config: Settings.
        stored: Pairs that earlier runs found; None compares all anew.
        writes: Whether pairs that are new are stored.
    """
    if not config.enabled:
        return
    kept = kept_rows(clips)
    ids = vectors["clip_id"].combine_chunks()
    at = pc.index_in(pa.array([clip["clip_id"] for clip in kept], pa.string()), value_set=ids)
    kept = [kept[row] for row in pc.indices_nonzero(pc.is_valid(at)).to_pylist()]
    if not kept:
        return
    duplicates = _find(kept, vectors, at.drop_null(), config, stored, writes=writes)
    for row in np.flatnonzero(duplicates.is_duplicate).tolist():
        clip, similarity = kept[row], float(duplicates.similarity[row])
        reject(clip, Reason.DUPLICATE)
        clip.update(
            {
                "reason_score": similarity,
                "reason_threshold": config.similarity,
                "duplicate_of": kept[int(duplicates.duplicate_of[row])]["clip_id"],
                "duplicate_similarity": similarity,
            }
        )


def _find(
    kept: Sequence[Row],
    vectors: pa.Table,
    rows: pa.Array,
    config: DedupConfig,
    stored: StoredPairs | None,
    *,
    writes: bool,
) -> Duplicates:
    keys = [_rank_key(clip) for clip in kept]
    ids = pa.array([clip["clip_id"] for clip in kept], pa.string())
    if len(kept) <= config.exact_below:
        known = stored.read(config.similarity) if stored else no_pairs(config.similarity)
        pairs = _completed(known, ids, vectors, config)
        if pairs is not None:
            if stored and writes and pairs is not known:
                stored.write(pairs)
            return duplicates_of(pairs.among(ids), keys, similarity=config.similarity)
    return find_duplicates(
        _matrix(vectors, rows),
        keys,
        similarity=config.similarity,
        exact_below=config.exact_below,
        probes=config.probes,
        on_gpu=_can_search_on_gpu(),
    )


def _can_search_on_gpu() -> bool:
    """Whether this machine has a GPU and FAISS a build for it.

    FAISS itself is not asked: where the driver does not work, its answer ends the process.
    """
    import faiss

    return available_gpus() > 0 and hasattr(faiss, "StandardGpuResources")


def _completed(
    known: AlikePairs, ids: pa.Array, vectors: pa.Table, config: DedupConfig
) -> AlikePairs | None:
    """What is known, and the pairs of clips that are new; None if there are too many."""
    new = ids.filter(pc.invert(pc.is_in(ids, value_set=known.ids)))
    if len(new) == 0:
        return known
    all_ids = vectors["clip_id"].combine_chunks()
    # Clips of sources that are gone, or too many that are not asked for, are let go.
    if len(known.ids) + len(new) > config.exact_below:
        known = known.among(known.ids.filter(pc.is_in(known.ids, value_set=ids)))
    known = known.among(known.ids.filter(pc.is_in(known.ids, value_set=all_ids)))
    joined = pa.concat_arrays([known.ids, new])
    return compare(known, joined, _matrix(vectors, pc.index_in(joined, value_set=all_ids)))


def _matrix(vectors: pa.Table, rows: pa.Array) -> NDArray[np.float32]:
    column = vectors["vector"].combine_chunks()
    flat: NDArray[np.float32] = column.flatten().to_numpy(zero_copy_only=False)
    matrix: NDArray[np.float32] = flat.reshape(len(column), -1)[rows.to_numpy()]
    return matrix


def _rank_key(clip: Row) -> RankKey:
    return rank_key(
        pixels=clip["width"] * clip["height"],
        bits_per_pixel=clip["bits_per_pixel"] or 0.0,
        n_frames=clip["n_frames"],
        source_id=clip["source_id"],
        start_pts=clip["start_pts"],
    )
