"""The stage that puts clips into clusters of meaning, and rejects semantic duplicates."""
# ruff: noqa: N803, N806 - shape letters

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.records.clips import Reason
from curator.stage import Corpus, CorpusStage, Decisions, Left, Work
from curator.stages.cluster.config import ClusterConfig
from curator.tables.clip_rank import PREFERENCES, criterion, rank_order
from curator.vectors.k_means import clusters

CLUSTERS = "clusters"
"""Family: each cluster's number, clips, and the clip next to its centre."""
_BLOCK = 1024
_SLACK = 1e-6
"""By which a product of vectors in float32 may differ from one machine to another."""


class ClusterStage(CorpusStage[ClusterConfig]):
    """Puts clips into clusters of meaning, and rejects semantic duplicates.

    Args:
        config: Its section of the recipe.
        family: Table of the vectors that say what clips show.
    """

    name = "cluster"
    version = 1
    reads = ("clips", "embeddings")
    config_type = ClusterConfig
    needs_all = "clusters are made of all clips"

    def __init__(self, config: ClusterConfig, family: str = "embeddings") -> None:
        super().__init__(config)
        self._family = family

    @property
    def is_on(self) -> bool:
        """Whether clips are put into clusters."""
        return self.config.enabled

    def models(self) -> tuple[object, ...]:
        """Which vectors are compared."""
        return (self._family,)

    def decide(self, corpus: Corpus, work: Work, /) -> Iterator[Decisions | Left]:
        """Names the cluster of each clip that has a vector."""
        del work
        config = self.config
        if config.n is None or not corpus.num_rows:
            return
        vectors, ids = corpus.vectors(self._family), corpus["clip_id"].combine_chunks()
        rows = np.flatnonzero(vectors.known(ids))
        if not len(rows):
            return
        ids = ids.take(pa.array(rows))
        vectors_ND = vectors.matrix(ids)
        centroids_KD, cluster = clusters(vectors_ND, min(config.n, len(rows)), seed=config.seed)
        yield Left(CLUSTERS, _described(ids, vectors_ND, centroids_KD, cluster))
        of = np.arange(len(rows))
        if config.similarity is not None:
            order = rank_order([criterion(corpus, name)[rows] for name in PREFERENCES])
            of = semantic_duplicates(vectors_ND, cluster, order, config.similarity)
        yield self._decided(rows, ids, cluster, of, vectors_ND)

    def _decided(
        self,
        rows: NDArray[np.int64],
        ids: pa.Array,
        cluster: NDArray[np.int64],
        of: NDArray[np.int64],
        vectors_ND: NDArray[np.float32],
    ) -> Decisions:
        is_copy = of != np.arange(len(of))
        absent = pa.array(~is_copy)
        cosines = np.zeros(len(of))
        copies = np.flatnonzero(is_copy)
        pairs = (vectors_ND[copies].astype(np.float64), vectors_ND[of[copies]].astype(np.float64))
        cosines[copies] = np.round(np.einsum("nd,nd->n", *pairs), 6)
        similarity = pa.array(cosines, mask=~is_copy)
        reason = str(Reason.SEMANTIC_DUPLICATE)
        least = self.config.similarity or 0.0
        named = ids.take(pa.array(of))
        nothing = pa.nulls(len(of), pa.string())
        columns = {
            "reason": pa.array([reason] * len(of), pa.string(), mask=~is_copy),
            "reason_score": similarity,
            "reason_threshold": pa.array(np.full(len(of), least), mask=~is_copy),
            "duplicate_of": pc.if_else(absent, nothing, named),
            "duplicate_similarity": similarity,
            "cluster": pa.array(cluster.astype(np.int32)),
        }
        return Decisions(rows, pa.table(columns))


def semantic_duplicates(
    vectors_ND: NDArray[np.float32],
    cluster: NDArray[np.int64],
    order: NDArray[np.int64],
    similarity: float,
) -> NDArray[np.int64]:
    """Returns for each clip the clip that stays of those like it, int64 [N]; itself if it stays.

    Args:
        vectors_ND: float32 [N, D], L2-normalised.
        cluster: int64 [N]; clips of unlike clusters are not compared.
        order: int64 [N], clips from best to worst.
        similarity: Cosine from which the worse of two clips goes.
    """
    of = np.arange(len(order))
    rank = np.argsort(order)
    by_cluster = np.lexsort((rank, cluster))
    starts = np.flatnonzero(np.append(True, np.diff(cluster[by_cluster]) > 0))
    for members in np.split(by_cluster, starts[1:]):
        _within(vectors_ND, members, similarity - _SLACK, of)
    return of


def _within(
    vectors_ND: NDArray[np.float32],
    members: NDArray[np.int64],
    least: float,
    of: NDArray[np.int64],
) -> None:
    """Visits the clips of a cluster from best to worst: only clips that stay reject others."""
    retained = members[:0]
    for start in range(0, len(members), _BLOCK):
        block = members[start : start + _BLOCK]
        others = np.concatenate([retained, block])
        cosines = vectors_ND[block] @ vectors_ND[others].T
        is_retained = np.ones(len(others), np.bool_)
        for row, clip in enumerate(block.tolist()):
            at = len(retained) + row
            before = np.where(is_retained[:at], cosines[row, :at], -1.0)
            best = int(np.argmax(before)) if at else 0
            if at and before[best] >= least:
                of[clip], is_retained[at] = others[best], False
        retained = others[is_retained]


def _described(
    ids: pa.Array,
    vectors_ND: NDArray[np.float32],
    centroids_KD: NDArray[np.float32],
    cluster: NDArray[np.int64],
) -> list[dict[str, object]]:
    """Returns each cluster that has clips, with the clip next to its centre."""
    nearness = np.einsum("nd,nd->n", vectors_ND, centroids_KD[cluster])
    by_cluster = np.lexsort((-nearness, cluster))
    numbers, first, counts = np.unique(cluster[by_cluster], return_index=True, return_counts=True)
    medoids = ids.take(pa.array(by_cluster[first])).to_pylist()
    return [
        {"cluster": int(number), "n_clips": int(count), "medoid": medoid}
        for number, count, medoid in zip(numbers, counts, medoids, strict=True)
    ]
