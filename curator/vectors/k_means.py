"""K-means of codes, and clusters of vectors.

Centroids and codes are integers, so scalar products and sums have no rounding errors, and centroids
do not depend on the processor. FAISS finds the nearest centroids, on a GPU if it sees one.

Shape letters: N vectors, C centroids, D dimensions, P centroids per vector.
"""

from dataclasses import dataclass
from functools import cache
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.vectors.vector_codes import EXACT, Codes, Projection, Vectors, blocks, length_of

ROUNDS = 10
FLAT_CENTROIDS = 16_384  # up to this number, a vector is compared with all centroids
_SUPER_PROBES = 24  # groups of centroids that a vector visits above this number
_SPARE = 4  # extra neighbours, for the order of equal products at the end

Centroids = NDArray[np.float32]


def has_gpu() -> bool:
    """Whether FAISS sees a GPU."""
    import faiss

    return bool(getattr(faiss, "get_num_gpus", int)())


@cache
def gpu_resources() -> Any:  # noqa: ANN401 - FAISS has no types
    """Returns FAISS's memory and handles on the GPU; cached, because they take milliseconds."""
    import faiss

    return faiss.StandardGpuResources()


@dataclass(frozen=True, slots=True, kw_only=True)
class CentroidIndex:
    """Finds the nearest centroids; if there are many, only in the nearest groups of centroids."""

    index: Any  # FAISS's index; None for a single centroid
    n: int  # number of centroids

    @classmethod
    def of(cls, centroids_CD: Centroids, groups_GD: Centroids | None = None) -> "CentroidIndex":
        """Returns the index of centroids; `groups_GD` are the centroids of their groups."""
        n, dim = centroids_CD.shape
        if n == 1:
            # Small indexes need not import FAISS, which takes half a second.
            return cls(index=None, n=1)
        import faiss

        index: Any = faiss.IndexFlatIP(dim)
        if n > FLAT_CENTROIDS and groups_GD is not None:
            index.add(groups_GD)
            kind = faiss.METRIC_INNER_PRODUCT
            index = faiss.IndexIVFFlat(index, dim, len(groups_GD), kind)
            index.is_trained, index.nprobe = True, min(_SUPER_PROBES, len(groups_GD))
        index.add(centroids_CD)
        if has_gpu():
            index = faiss.index_cpu_to_gpu(gpu_resources(), 0, index)
        return cls(index=index, n=n)

    def nearest(self, codes_ND: NDArray[Any], p: int) -> NDArray[np.int64]:
        """Returns the numbers of the `p` nearest centroids of codes, nearest first, int64 [N, P].

        Among equal products, the lower number comes first. If the visited groups have fewer than
        `p` centroids, the others are -1.
        """
        p = min(p, self.n)
        if self.n == 1:
            return np.zeros((len(codes_ND), 1), np.int64)
        k = min(p + _SPARE, self.n) if p > 1 else 1
        nearest_NP = np.empty((len(codes_ND), p), np.int64)
        for at in blocks(len(codes_ND)):
            products, numbers = self.index.search(codes_ND[at].astype(np.float32), k)
            if k > 1:
                order = np.lexsort((numbers, -products), axis=1)[:, :p]
                numbers = np.take_along_axis(numbers, order, axis=1)
            nearest_NP[at] = numbers
        return nearest_NP


def k_means(codes_ND: Codes, n: int, *, seed: int) -> Centroids:
    """Returns at most `n` centroids of codes, float32 [C, D]; at least one code is needed.

    More than `FLAT_CENTROIDS` are found in about `sqrt(n)` groups of codes. Each group gets
    centroids in proportion to its codes.
    """
    n = max(1, min(n, len(codes_ND)))
    if n <= FLAT_CENTROIDS:
        return _lloyd(codes_ND, n, seed)
    n_groups = isqrt(n)
    some = np.random.default_rng(seed).permutation(len(codes_ND))[: 256 * n_groups]
    groups_GD = _lloyd(codes_ND[np.sort(some)], n_groups, seed)
    group = CentroidIndex.of(groups_GD).nearest(codes_ND, 1)[:, 0]
    order, counts = np.argsort(group, kind="stable"), np.bincount(group, minlength=n_groups)
    # The running total is rounded, so the shares add up to `n`.
    shares = np.diff(np.rint(np.cumsum(counts) * (n / len(codes_ND))), prepend=0).astype(np.int64)
    centroids, start = [], 0
    for share, count in zip(shares.tolist(), counts.tolist(), strict=True):
        if share:
            own = codes_ND[np.sort(order[start : start + count])]
            centroids.append(_lloyd(own, min(share, count), seed))
        start += count
    return np.concatenate(centroids)


def grouped(centroids_CD: Centroids, *, seed: int) -> tuple[Centroids, Centroids]:
    """Divides centroids into groups; returns them sorted by group, and the groups' centroids."""
    codes_CD = _rounded(centroids_CD, length_of(centroids_CD.shape[1])).clip(-127, 127)
    groups_GD = _lloyd(codes_CD.astype(np.int8), isqrt(len(centroids_CD)), seed)
    group = CentroidIndex.of(groups_GD).nearest(codes_CD, 1)[:, 0]
    return centroids_CD[np.argsort(group, kind="stable")], groups_GD


def clusters(
    vectors_ND: Vectors, n: int, *, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Divides L2-normalised vectors into at most `n` clusters of similar directions.

    Returns:
        Centroids of unit length, float32 [C, D], and the cluster of each vector, int64 [N]. No
        cluster is empty. Cluster 0 is the largest.
    """
    if not len(vectors_ND):
        return np.zeros((0, vectors_ND.shape[1]), np.float32), np.zeros(0, np.int64)
    dim = vectors_ND.shape[1]
    codes_ND = Projection.of(dim, dim, seed).codes(vectors_ND)
    centroids_CD = k_means(codes_ND, n, seed=seed)
    own = CentroidIndex.of(*grouped(centroids_CD, seed=seed)).nearest(codes_ND, 1)[:, 0]
    sizes = np.bincount(own, minlength=len(centroids_CD))
    order = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]
    place = np.empty(len(sizes), np.int64)
    place[order] = np.arange(len(order))
    own = place[own]
    means_CD = _sums(vectors_ND, own, len(order))
    means_CD /= np.linalg.norm(means_CD, axis=1, keepdims=True).clip(1e-12)
    return means_CD.astype(np.float32), own


def _lloyd(codes_ND: Codes, n: int, seed: int) -> Centroids:
    """Returns `n` centroids after at most `ROUNDS` rounds; empty ones restart at random codes."""
    rng = np.random.default_rng(seed)
    scale = EXACT // 2 // int(length_of(codes_ND.shape[1]))
    starts = np.sort(rng.permutation(len(codes_ND))[:n])
    centroids_CD = _rounded(codes_ND[starts], scale)
    for _ in range(ROUNDS):
        nearest = CentroidIndex.of(centroids_CD).nearest(codes_ND, 1)[:, 0]
        sums_CD = _sums(codes_ND, nearest, n)
        empty = np.flatnonzero(~sums_CD.any(axis=1))
        if len(empty):
            sums_CD[empty] = codes_ND[np.sort(rng.permutation(len(codes_ND))[: len(empty)])]
        moved_CD = _rounded(sums_CD, scale)
        if np.array_equal(moved_CD, centroids_CD):
            break
        centroids_CD = moved_CD
    return centroids_CD


def _sums(vectors_ND: NDArray[Any], own: NDArray[np.int64], n: int) -> NDArray[np.float64]:
    """Returns the sum of the vectors of each cluster, float64 [C, D]."""
    sums_CD = np.zeros((n, vectors_ND.shape[1]))
    for at in blocks(len(vectors_ND)):
        order = np.argsort(own[at], kind="stable")
        numbers, starts = np.unique(own[at][order], return_index=True)
        some = vectors_ND[at][order].astype(np.float64)
        sums_CD[numbers] += np.add.reduceat(some, starts)
    return sums_CD


def _rounded(vectors_ND: NDArray[Any], scale: float) -> Centroids:
    """Returns vectors of length `scale` and the same directions, rounded to integers."""
    some = vectors_ND.astype(np.float64)
    norms = np.sqrt(np.einsum("nd,nd->n", some, some)).clip(1e-12)
    rounded_ND: Centroids = np.rint(some * (scale / norms)[:, None]).astype(np.float32)
    return rounded_ND
