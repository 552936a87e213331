"""Near-duplicate clips: of clips that show the same footage the best one is retained.

Clips are visited from best to worst. A clip is a duplicate when its embedding has at
least the configured cosine similarity to a clip *retained* before it, and it names the most similar
of those. So a chain A ~ B ~ C in which A and C differ loses B only: similarity to a rejected clip
rejects nothing. The result depends on the set of clips alone, not on their order.

Up to `exact_below` clips the search is exact. Above, retained clips are kept in k-means clusters
and a clip is compared with those in its nearest `probes` clusters, as SemDeDup (arXiv 2303.09540)
does with one. Measured on 200,000 vectors of evenly spread directions, the worst case, 64 probes of
894 clusters find 80% of duplicates with a cosine of 0.6 to 0.7, 92% from 0.7 to 0.8, 99% from 0.8
to 0.9, and all above. Either way the vectors are held twice, without a matrix of all pairs.

Shape letters: N clips, D embedding dimensions, B clips of a batch.
"""
# ruff: noqa: N803, N806 - shape letters

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BATCH = 1024
_CANDIDATES = 4
_NORM_TOLERANCE = 0.01
SLACK = 1e-4
"""By which a search in float32 looks lower than what the rounded cosine must reach."""
_TRAIN_PER_CLUSTER = 64
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """The retained clips, and the duplicates of each.

    Attributes:
        is_duplicate: bool[N], True for the clips to reject.
        duplicate_of: int64[N], index of the retained clip that a duplicate resembles most; a
            retained clip's own index.
        similarity: float32[N], cosine similarity to that clip; 1 for a retained clip.
    """

    is_duplicate: NDArray[np.bool_]
    duplicate_of: NDArray[np.int64]
    similarity: NDArray[np.float32]


def rank_order(
    *, pixels: NDArray[np.int64], bits_per_pixel: NDArray[np.float64], n_frames: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Returns the numbers of clips from the one to retain to the worst, int64 [N].

    Larger, less compressed, longer ones come first; of equals, the first of the input.

    Raises:
        ValueError: `bits_per_pixel` is not finite and so has no order.
    """
    wrong = bits_per_pixel[~np.isfinite(bits_per_pixel)]
    if len(wrong):
        raise ValueError(f"bits_per_pixel is {wrong[0]}, expected a finite number")
    order: NDArray[np.int64] = np.lexsort((-n_frames, -bits_per_pixel, -pixels))
    return order


def find_duplicates(
    vectors_ND: NDArray[np.float32] | NDArray[np.float16],
    order: NDArray[np.int64],
    *,
    similarity: float,
    exact_below: int = 200_000,
    probes: int = 64,
    on_gpu: bool = False,
) -> Duplicates:
    """Finds clips whose footage a better clip shows.

    Args:
        vectors_ND: float32 or float16 [N, D], L2-normalised embeddings of one model.
        order: int64 [N], numbers of the clips from best to worst, see `rank_order`.
        similarity: Cosine similarity from which two clips are duplicates.
        exact_below: Number of clips up to which the search is exact.
        probes: Clusters searched for each clip where it is not.
        on_gpu: Whether the search in clusters runs on GPU 0; the CPU compares its results again.

    Returns:
        One entry per clip, in the order of the input.

    Raises:
        ValueError: The vectors are not finite or not normalised, or the order is not of theirs.
    """
    n = len(vectors_ND)
    check_vectors(vectors_ND)
    check_order(order, n)
    # Of what the caller gives away, no more than two copies are held at a time.
    vectors_ND = vectors_ND[order]
    sorted_ND = normalised(vectors_ND)
    del vectors_ND
    index = _index(sorted_ND, exact=n <= exact_below, probes=probes, on_gpu=on_gpu)
    return _greedy(sorted_ND, similarity, index).in_order(order)


class Retention:
    """Decides clip by clip, from best to worst, which are retained.

    Args:
        n: Number of clips; they are numbered by rank, 0 for the best.
        similarity: Cosine similarity from which two clips are duplicates.
    """

    def __init__(self, n: int, similarity: float) -> None:
        self._similarity = similarity
        self.is_duplicate = np.zeros(n, dtype=np.bool_)
        self._of, self._score = np.arange(n, dtype=np.int64), np.ones(n, dtype=np.float32)

    def decide(self, item: int, others: NDArray[np.int64], cosines: NDArray[np.float64]) -> None:
        """Decides about a clip: the most similar retained one counts, of equals the better.

        Args:
            item: Its rank; all better ones are decided.
            others: int64 [M], ranks of better clips.
            cosines: float64 [M], their rounded cosine similarities.
        """
        is_near = ~self.is_duplicate[others] & (cosines >= self._similarity)
        others, cosines = others[is_near], cosines[is_near]
        if len(others):
            best = np.lexsort((others, -cosines))[0]
            self.is_duplicate[item] = True
            self._of[item], self._score[item] = others[best], cosines[best]

    def in_order(self, order: NDArray[np.int64]) -> Duplicates:
        """Returns decisions by clip; `order` is int64 [N], the clip of each rank."""
        rank = np.argsort(order)
        return Duplicates(
            is_duplicate=self.is_duplicate[rank],
            duplicate_of=order[self._of[rank]],
            similarity=self._score[rank],
        )


def check_vectors(vectors_ND: NDArray[Any]) -> None:
    """Refuses embeddings that are no unit vectors.

    Raises:
        ValueError: Naming the first of them, or the shape.
    """
    if vectors_ND.ndim != 2 or vectors_ND.dtype not in (np.float32, np.float16):
        got = f"{vectors_ND.dtype}{list(vectors_ND.shape)}"
        raise ValueError(f"embeddings are {got}, expected float32 or float16 [N, D]")
    for start in range(0, len(vectors_ND), _BATCH):
        norms = np.linalg.norm(vectors_ND[start : start + _BATCH].astype(np.float32), axis=1)
        wrong = np.flatnonzero(~(np.abs(norms - 1) <= _NORM_TOLERANCE))
        if wrong.size:
            raise ValueError(
                f"embedding {start + wrong[0]} has norm {norms[wrong[0]]}, expected 1: leave out "
                "clips without an embedding, and normalise the others"
            )


def check_order(order: NDArray[np.int64], n: int) -> None:
    """Refuses an order that does not name each of `n` clips once.

    Raises:
        ValueError: With what it names.
    """
    if len(order) != n or not np.array_equal(np.sort(order), np.arange(n)):
        raise ValueError(f"the order has {len(order)} numbers, expected each below {n} once")


def normalised(vectors_ND: NDArray[Any]) -> NDArray[np.float32]:
    """Returns a copy of unit length, float32 [N, D]."""
    unit_ND: NDArray[np.float32] = vectors_ND.astype(np.float32)
    for start in range(0, len(unit_ND), _BATCH):
        some = unit_ND[start : start + _BATCH]
        some /= np.linalg.norm(some, axis=1, keepdims=True)
    return unit_ND


def rounded_cosines(
    some_ND: NDArray[np.float32],
    rows: NDArray[np.int64],
    others_MD: NDArray[np.float32],
    other_rows: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Returns the cosine similarity of pairs of vectors, which are given by their rows.

    Computed in float64 and rounded, so that neither the BLAS nor its number of threads decides at
    the threshold or between equals.
    """
    cosines = np.empty(len(rows))
    for start in range(0, len(rows), _BATCH):
        at = slice(start, start + _BATCH)
        a, b = some_ND[rows[at]].astype(np.float64), others_MD[other_rows[at]].astype(np.float64)
        cosines[at] = np.einsum("pd,pd->p", a, b)
    return np.round(cosines, 6)


def _greedy(ranked_ND: NDArray[np.float32], similarity: float, index: Any) -> Retention:  # noqa: ANN401
    """Decides about all clips; `index` searches among those retained so far."""
    n, least = len(ranked_ND), similarity - SLACK
    retention = Retention(n, similarity)
    retained = np.zeros(0, dtype=np.int64)
    for start in range(0, n, _BATCH):
        batch_BD = ranked_ND[start : start + _BATCH]
        found = np.full((len(batch_BD), 1), -1, dtype=np.int64)
        if retained.size:
            cosines, slots = index.search(batch_BD, _CANDIDATES)
            found = np.where((slots >= 0) & (cosines >= least), retained[slots], -1)
        near_BB = np.tril(batch_BD @ batch_BD.T, -1) >= least
        for row in np.flatnonzero(near_BB.any(axis=1) | (found >= 0).any(axis=1)).tolist():
            peers = start + np.flatnonzero(near_BB[row])
            others = np.concatenate([found[row][found[row] >= 0], peers])
            item = start + row
            same = np.full_like(others, item)
            cosines = rounded_cosines(ranked_ND, others, ranked_ND, same)
            retention.decide(item, others, cosines)
        new = start + np.flatnonzero(~retention.is_duplicate[start : start + len(batch_BD)])
        index.add(ranked_ND[new])
        retained = np.concatenate([retained, new])
    return retention


def _index(ranked_ND: NDArray[np.float32], *, exact: bool, probes: int, on_gpu: bool) -> Any:  # noqa: ANN401
    import faiss

    n, dim = ranked_ND.shape
    if exact or n == 0:
        return faiss.IndexFlatIP(dim)
    clusters = min(n, round(2 * sqrt(n)))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, clusters, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed, index.cp.spherical, index.cp.min_points_per_centroid = _SEED, True, 1
    sample = np.linspace(0, n - 1, min(n, _TRAIN_PER_CLUSTER * clusters)).astype(np.int64)
    index.train(ranked_ND[sample])
    index.nprobe = min(probes, clusters)
    # Trained on the CPU either way, so that clusters are the same.
    return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index) if on_gpu else index
