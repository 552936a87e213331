"""Rejects clips that show the footage of a clip that an earlier generation keeps.

The new clips are indexed and the earlier ones pass by in blocks: memory goes with what is new, and
each earlier vector is read once.

Shape letters: N new clips, M clips of a block, D embedding dimensions, P pairs.
"""
# ruff: noqa: N803, N806 - shape letters

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.records.clips import Reason
from curator.stages.dedup.config import DedupConfig
from curator.stages.dedup.retention import (
    SLACK,
    check_vectors,
    normalised,
    range_index,
    rounded_cosines,
)
from curator.stages.dedup.stage import DedupStage
from curator.tables.clip_rows import ClipRows, reject
from curator.tables.clip_vectors import StoredVectors, as_matrix

_BLOCK = 8192


@dataclass(slots=True)
class _Nearest:
    """The most similar earlier clip of each new one.

    Attributes:
        cosine: float64[N], -1 for none; rounded to six digits.
        clip_id: Its id, of each new clip; empty for none.
    """

    cosine: NDArray[np.float64]
    clip_id: list[str]

    def offer(self, row: int, cosine: float, clip_id: str) -> None:
        """Takes an earlier clip if it is more similar; of equals the first by id stays."""
        best = self.cosine[row]
        if cosine > best or (cosine == best and clip_id < self.clip_id[row]):
            self.cosine[row], self.clip_id[row] = cosine, clip_id


def reject_copies(
    stage: DedupStage, clips: ClipRows, vectors: StoredVectors, earlier: Iterable[pa.Table]
) -> None:
    """Marks kept clips that are duplicates of clips of earlier generations, which all stay.

    Args:
        stage: The search for duplicates.
        clips: Clips of this generation.
        vectors: Their vectors.
        earlier: `clip_id` and `vector` of the kept clips of earlier generations, in any order.
    """
    kept, ids = clips.kept_numbers(), clips.kept_ids()
    is_known = vectors.known(ids)
    kept, ids = kept[is_known], ids.filter(pa.array(is_known))
    if not len(kept):
        return
    found = _nearest(vectors.matrix(ids), earlier, stage.config)
    for row in np.flatnonzero(found.cosine >= stage.config.similarity).tolist():
        clip = clips[int(kept[row])]
        reject(clip, Reason.DUPLICATE)
        clip.reason_score = clip.duplicate_similarity = float(found.cosine[row])
        clip.reason_threshold = stage.config.similarity
        clip.duplicate_of = found.clip_id[row]


def _nearest(
    new_ND: NDArray[np.float32], earlier: Iterable[pa.Table], config: DedupConfig
) -> _Nearest:
    check_vectors(new_ND)
    new_ND = normalised(new_ND)
    index = range_index(new_ND, exact=len(new_ND) <= config.exact_below, probes=config.probes)
    found = _Nearest(np.full(len(new_ND), -1.0), [""] * len(new_ND))
    for table in earlier:
        for start in range(0, table.num_rows, _BLOCK):
            some = table.slice(start, _BLOCK).combine_chunks()
            old_MD = normalised(as_matrix(some["vector"].chunk(0)))
            limits, _, near = index.range_search(old_MD, config.similarity - SLACK)
            counts = (limits[1:] - limits[:-1]).astype(np.int64)
            old_P = np.repeat(np.arange(len(old_MD)), counts)
            new_P = near.astype(np.int64)
            both = np.concatenate([new_ND[new_P], old_MD[old_P]])
            place = np.arange(len(new_P))
            cosines = rounded_cosines(both, place, place + len(new_P))
            names = some["clip_id"].take(pa.array(old_P)).to_pylist()
            for row, cosine, name in zip(new_P.tolist(), cosines.tolist(), names, strict=True):
                found.offer(row, cosine, name)
    return found
