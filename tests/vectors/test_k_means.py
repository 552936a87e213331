"""Clusters are the same for the same vectors, and none is empty."""

from math import isqrt

import numpy as np
import pytest
from made_vectors import VECTORS, N

from curator.vectors import k_means
from curator.vectors.k_means import CentroidIndex, clusters, grouped
from curator.vectors.vector_codes import Projection


def test_clusters_cover_vectors_from_the_largest_on() -> None:
    centroids, own = clusters(VECTORS, 20, seed=3)
    sizes = np.bincount(own)
    assert len(sizes) == len(centroids) <= 20
    assert (np.diff(sizes) <= 0).all()
    assert sizes.min() > 0
    assert np.linalg.norm(centroids, axis=1) == pytest.approx(1.0)
    assert (own == (VECTORS @ centroids.T).argmax(axis=1)).mean() > 0.95


def test_blocks_and_threads_change_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    import faiss

    before = clusters(VECTORS, 20)
    monkeypatch.setattr(k_means.blocks, "__defaults__", (37,))
    n_threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(2 if n_threads == 1 else 1)
    try:
        after = clusters(VECTORS, 20)
    finally:
        faiss.omp_set_num_threads(n_threads)
    assert np.array_equal(before[1], after[1])
    assert before[0] == pytest.approx(after[0], abs=1e-6)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_few_vectors_have_few_clusters(n: int) -> None:
    centroids, own = clusters(VECTORS[:n], 8)
    assert len(centroids) == n
    assert sorted(own.tolist()) == list(range(n))


def test_many_centroids_are_found_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = Projection.of(96, 64, 0).codes(VECTORS)
    monkeypatch.setattr(k_means, "FLAT_CENTROIDS", 50)
    monkeypatch.setattr(k_means, "_SUPER_PROBES", 5)
    centroids, groups = grouped(k_means.k_means(codes, 100, seed=0), seed=0)
    assert 90 < len(centroids) <= 100
    assert len(groups) == isqrt(len(centroids))
    among_all = codes.astype(np.float64) @ centroids.T.astype(np.float64)
    own = CentroidIndex.of(centroids, groups).nearest(codes, 3)
    assert own.shape == (N, 3)
    assert (own[:, 0] == among_all.argmax(axis=1)).mean() > 0.95
