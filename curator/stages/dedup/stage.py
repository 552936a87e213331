"""The stage that rejects clips that show the footage of a better clip."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.executor.host_resources import available_gpus
from curator.records.clips import Clip, Reason
from curator.stage import Scope, Stage
from curator.stages.dedup.config import DedupConfig
from curator.stages.dedup.retention import Duplicates, find_duplicates, rank_key
from curator.stages.dedup.similar_pairs import AlikePairs, compare, duplicates_of
from curator.tables.clip_rows import ClipRows, reject


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupUnit:
    """A corpus to search for duplicates.

    Attributes:
        clips: All clips; only kept ones are compared.
        vectors: Rows of `embeddings`, of each clip that could be described.
    """

    clips: ClipRows
    vectors: pa.Table
    known: AlikePairs


class DedupStage(Stage[DedupConfig, DedupUnit, AlikePairs | None]):
    """Rejects clips that show the footage of a better clip."""

    name = "dedup"
    version = 1
    scope = Scope.CORPUS
    reads = ("clips", "embeddings")
    writes = ("clips", "alike")
    config_type = DedupConfig

    def process(self, unit: DedupUnit) -> AlikePairs | None:
        """Marks duplicates in the rows of the clips.

        Returns:
            The pairs known now; None where keeping them is useless.
        """
        config = self.config
        if not config.enabled:
            return None
        kept = unit.clips.kept()
        ids = unit.vectors["clip_id"].combine_chunks()
        at = pc.index_in(pa.array([clip.clip_id for clip in kept], pa.string()), value_set=ids)
        kept = [kept[row] for row in pc.indices_nonzero(pc.is_valid(at)).to_pylist()]
        if not kept:
            return None
        duplicates, pairs = self._find(kept, unit, at.drop_null())
        for row in np.flatnonzero(duplicates.is_duplicate).tolist():
            clip, similarity = kept[row], float(duplicates.similarity[row])
            reject(clip, Reason.DUPLICATE)
            clip.reason_score = clip.duplicate_similarity = similarity
            clip.reason_threshold = config.similarity
            clip.duplicate_of = kept[int(duplicates.duplicate_of[row])].clip_id
        return pairs

    def _find(
        self, kept: Sequence[Clip], unit: DedupUnit, rows: pa.Array
    ) -> tuple[Duplicates, AlikePairs | None]:
        config = self.config
        keys = [
            rank_key(
                pixels=clip.width * clip.height,
                bits_per_pixel=clip.scores["bits_per_pixel"] or 0.0,
                n_frames=clip.n_frames,
                source_id=clip.source_id,
                start_pts=clip.start_pts,
            )
            for clip in kept
        ]
        ids = pa.array([clip.clip_id for clip in kept], pa.string())
        if len(kept) <= config.exact_below:
            pairs = _completed(unit.known, ids, unit.vectors, config)
            if pairs is not None:
                found = duplicates_of(pairs.among(ids), keys, similarity=config.similarity)
                return found, pairs
        found = find_duplicates(
            _matrix(unit.vectors, rows),
            keys,
            similarity=config.similarity,
            exact_below=config.exact_below,
            probes=config.probes,
            on_gpu=_can_search_on_gpu(),
        )
        return found, None


def _can_search_on_gpu() -> bool:
    """Returns whether this machine has a GPU and FAISS a build for it.

    Calling FAISS to find out could end the process: it does where the driver does not work.
    """
    import faiss

    return available_gpus() > 0 and hasattr(faiss, "StandardGpuResources")


def _completed(
    known: AlikePairs, ids: pa.Array, vectors: pa.Table, config: DedupConfig
) -> AlikePairs | None:
    """Adds the pairs of new clips to the known ones; None if there are too many."""
    new = ids.filter(pc.invert(pc.is_in(ids, value_set=known.ids)))
    if len(new) == 0:
        return known
    all_ids = vectors["clip_id"].combine_chunks()
    # Clips of removed sources, and clips in excess that are not needed now, are dropped.
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
