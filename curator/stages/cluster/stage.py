"""The stage that puts clips into clusters of meaning, and rejects semantic duplicates."""
# ruff: noqa: N803, N806 - shape letters

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import ModelError
from curator.models.catalogue import ModelEntry
from curator.models.weight_store import ModelStore
from curator.records.clips import Reason
from curator.stage import Corpus, CorpusStage, Decisions, Left, Work
from curator.stages.cluster.cluster_words import cluster_words
from curator.stages.cluster.config import ClusterConfig
from curator.tables.clip_rank import PREFERENCES, criterion, rank_order
from curator.vectors.k_means import clusters

CLUSTERS = "clusters"
"""Family: each cluster's number, clips, words, and the clips next to its centre."""
N_GALLERIES, N_NEAREST = 20, 8
"""Clusters, the largest first, of which the nearest clips are listed, and how many of each."""
N_WORDED = 5_000  # clusters that get words: a snapshot holds 8 MiB of what a stage leaves
CENTROIDS = "centroids"  # family, of growing outputs: the centres of clusters, float16 in base64
_BLOCK = 1024
_SLACK = 1e-6  # by which a product of vectors in float32 may differ from one machine to another


class ClusterStage(CorpusStage[ClusterConfig]):
    """Puts clips into clusters of meaning, and rejects semantic duplicates.

    Args:
        config: Its section of the recipe.
        clip: CLIP model whose embeddings are compared; None for vectors of the scene network.
        models: Where its weights are.
        is_growing: Whether the clusters of the first generation stay for later ones.
    """

    name = "cluster"
    version = 2
    reads = ("clips", "embeddings")
    config_type = ClusterConfig
    needs_all = "clusters are made of all clips"
    needs_earlier = " of the first generation, and stay"

    def __init__(
        self,
        config: ClusterConfig,
        *,
        clip: ModelEntry | None = None,
        models: ModelStore | None = None,
        is_growing: bool = False,
    ) -> None:
        super().__init__(config)
        self._clip, self._models, self._is_growing = clip, models, is_growing
        self._family = "embeddings" if clip is None else "clip_embeddings"

    @property
    def is_on(self) -> bool:
        """Whether clips are put into clusters."""
        return self.config.enabled

    def models(self) -> tuple[object, ...]:
        """Which vectors are compared, and whether clusters stay."""
        return (self._family, self._is_growing and self.is_on)

    def decide(self, corpus: Corpus, work: Work, /) -> Iterator[Decisions | Left | str]:
        """Names the cluster of each clip that has a vector."""
        del work
        config = self.config
        if config.n is None:
            return
        before, packed = corpus.earlier(CLUSTERS) or [], corpus.earlier(CENTROIDS)
        vectors, ids = corpus.vectors(self._family), corpus["clip_id"].combine_chunks()
        rows = np.flatnonzero(vectors.known(ids))
        if not len(rows):
            if packed:
                yield from (Left(CLUSTERS, before), Left(CENTROIDS, packed))
            return
        ids = ids.take(pa.array(rows))
        vectors_ND = vectors.matrix(ids)
        if packed:
            flat = np.frombuffer(b64decode(packed), np.float16).astype(np.float32)
            centroids_KD = flat.reshape(-1, vectors_ND.shape[1])
            cluster = _nearest(vectors_ND, centroids_KD)
        else:
            centroids_KD, cluster = clusters(vectors_ND, min(config.n, len(rows)), seed=config.seed)
            try:
                before = self._words(vectors_ND, centroids_KD)
            except ModelError as error:
                yield f"clusters get no words: {error}"
        yield Left(CLUSTERS, _described(ids, vectors_ND, centroids_KD, cluster, before))
        if self._is_growing:
            packed = packed or b64encode(centroids_KD.astype(np.float16).tobytes()).decode()
            yield Left(CENTROIDS, packed)
        of = np.arange(len(rows))
        if config.similarity is not None:
            is_marked = corpus.marked("keep", corpus["clip_id"])[rows].astype(np.float64)
            order = rank_order([is_marked, *(criterion(corpus, n)[rows] for n in PREFERENCES)])
            of = semantic_duplicates(vectors_ND, cluster, order, config.similarity)
        yield self._decided(rows, ids, cluster, of, vectors_ND)

    def _words(
        self, vectors_ND: NDArray[np.float32], centroids_KD: NDArray[np.float32]
    ) -> list[dict[str, object]]:
        """Returns the words of the largest clusters; none without CLIP."""
        if self._clip is None or self._models is None:
            return []
        mean_D = vectors_ND.mean(0, dtype=np.float64)
        mean_D = (mean_D / np.linalg.norm(mean_D).clip(1e-12)).astype(np.float32)
        words = cluster_words(centroids_KD[:N_WORDED], mean_D, self._clip, self._models)
        return [{"words": own} for own in words]

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
    vectors_ND: NDArray[np.float32], members: NDArray[np.int64], least: float, of: NDArray[np.int64]
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


def _nearest(
    vectors_ND: NDArray[np.float32], centroids_KD: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Returns the cluster whose centre is nearest, int64 [N]."""
    blocks = (vectors_ND[at : at + _BLOCK] for at in range(0, len(vectors_ND), _BLOCK))
    return np.concatenate([(block @ centroids_KD.T).argmax(1) for block in blocks])


def _described(
    ids: pa.Array,
    vectors_ND: NDArray[np.float32],
    centroids_KD: NDArray[np.float32],
    cluster: NDArray[np.int64],
    before: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Returns each cluster with the clip next to its centre, and of the largest with more clips.

    `before` is what is known of the first clusters, such as words and clips of earlier generations.
    """
    nearness = np.einsum("nd,nd->n", vectors_ND, centroids_KD[cluster])
    by_cluster = np.lexsort((-nearness, cluster))
    ends = np.cumsum(np.bincount(cluster, minlength=len(centroids_KD)))
    described = []
    for number, members in enumerate(np.split(by_cluster, ends[:-1])):
        entry = dict(before[number]) if number < len(before) else {}
        names = ids.take(pa.array(members[:N_NEAREST], pa.int64())).to_pylist()
        medoid = entry.get("medoid") or next(iter(names), None)
        n_clips = entry.get("n_clips", 0) + len(members)
        entry |= {"cluster": number, "n_clips": n_clips, "medoid": medoid}
        if number < N_GALLERIES:
            entry["nearest"] = names or entry.get("nearest", [])
        described.append(entry)
    return described
