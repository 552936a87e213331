"""The stage that rejects clips that show the footage of a better clip."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.records.clips import Reason
from curator.stage import JUDGED, Scope, Stage, Wait
from curator.stages.dedup.cluster_search import search_clusters
from curator.stages.dedup.config import DedupConfig
from curator.stages.dedup.pair_search import PairSearch
from curator.stages.dedup.retention import Duplicates, find_duplicates, rank_order
from curator.stages.dedup.similar_pairs import AlikePairs, compare, duplicates_of
from curator.tables.clip_rows import ClipRows, reject
from curator.tables.clip_vectors import StoredVectors


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupUnit:
    """A corpus to search for duplicates.

    Attributes:
        clips: Clips in the order of source and time; only kept ones are compared.
        vectors: Of each clip that could be described.
        known: Pairs of earlier runs.
        search: Finds new pairs.
    """

    clips: ClipRows
    vectors: StoredVectors
    known: AlikePairs
    search: PairSearch


class DedupStage(Stage[DedupConfig, DedupUnit, AlikePairs | None]):
    """Rejects clips that show the footage of a better clip."""

    name = "dedup"
    version = 1
    scope = Scope.CORPUS
    reads = ("clips", "embeddings")
    writes = ("clips", "alike")
    config_type = DedupConfig

    @property
    def is_on(self) -> bool:
        """Whether duplicates are searched."""
        return self.config.enabled

    def wait(self, before: Sequence[Wait], *, is_growing: bool) -> Wait:
        """The best one of all is not known before."""
        why = "of clips that show the same footage the best one stays"
        if is_growing:
            why += ", or the one that an earlier generation kept"
        return self.waits_for(JUDGED, why)

    def process(self, unit: DedupUnit) -> AlikePairs | None:
        """Marks duplicates in the rows of the clips.

        Returns:
            The pairs known now; None where keeping them is useless.
        """
        config, clips = self.config, unit.clips
        if not config.enabled:
            return None
        kept, ids = clips.kept_numbers(), clips.kept_ids()
        is_known = unit.vectors.known(ids)
        kept, ids = kept[is_known], ids.filter(pa.array(is_known))
        if not len(kept):
            return None
        duplicates, pairs = self._find(ids, _order(clips, kept), unit)
        for row in np.flatnonzero(duplicates.is_duplicate).tolist():
            clip, similarity = clips[int(kept[row])], float(duplicates.similarity[row])
            reject(clip, Reason.DUPLICATE)
            clip.reason_score = clip.duplicate_similarity = similarity
            clip.reason_threshold = config.similarity
            clip.duplicate_of = ids[int(duplicates.duplicate_of[row])].as_py()
        return pairs

    def _find(
        self, ids: pa.Array, order: NDArray[np.int64], unit: DedupUnit
    ) -> tuple[Duplicates, AlikePairs | None]:
        config = self.config
        if len(ids) <= config.exact_below:
            pairs = _completed(unit, ids, config)
            if pairs is not None:
                found = duplicates_of(pairs.among(ids), order, similarity=config.similarity)
                return found, pairs
        options = config.model_dump(include={"similarity", "exact_below", "probes"})
        vectors = unit.vectors.matrix(ids)
        if len(ids) > config.exact_below:
            return search_clusters(vectors, order, unit.search, options), None
        return find_duplicates(vectors, order, **options), None


def _order(clips: ClipRows, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the places in `rows` of the clips from best to worst, int64 [N]."""

    def values(name: str) -> NDArray[Any]:
        taken: NDArray[Any] = clips.column(name).fill_null(0).to_numpy()[rows]
        return taken

    return rank_order(
        pixels=values("width").astype(np.int64) * values("height"),
        bits_per_pixel=values("bits_per_pixel"),
        n_frames=values("n_frames"),
    )


def _completed(unit: DedupUnit, ids: pa.Array, config: DedupConfig) -> AlikePairs | None:
    """Adds the pairs of new clips to the known ones; None if there are too many."""
    known, vectors = unit.known, unit.vectors
    new = ids.filter(pc.invert(pc.is_in(ids, value_set=known.ids)))
    if len(new) == 0:
        return known
    # Clips of removed sources, and clips in excess that are not needed now, are dropped.
    if len(known.ids) + len(new) > config.exact_below:
        known = known.among(known.ids.filter(pc.is_in(known.ids, value_set=ids)))
    known = known.among(known.ids.filter(pa.array(vectors.known(known.ids))))
    joined = pa.concat_arrays([known.ids, new])
    return compare(known, joined, vectors.matrix(joined), unit.search)
