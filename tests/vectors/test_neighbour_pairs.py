"""Pairs are those of all comparisons, whoever finds them, in whatever order."""

import pickle
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_vectors import CELLS, FLAT, N_COPIES, OWNERS, PER_OWNER, VECTORS, N, made_index

from curator.executor.corpus_work import CorpusWork
from curator.storage import open_store
from curator.storage.base import TRAFFIC
from curator.vectors import cells, neighbour_pairs
from curator.vectors.cells import CellReader, CellSegment, SegmentFacts
from curator.vectors.neighbour_pairs import NeighbourSearch, VectorPairs, pair_units
from curator.vectors.vector_index import IndexSettings, VectorIndex

LEAST = 0.7
HERE = CorpusWork("test")


class Shuffled:
    """Work in another order, by functions that were pickled."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.n_parts = 0

    def __call__(
        self, function: Callable[..., Any], array: np.ndarray, parts: Sequence[Any], *, cpu_s: float
    ) -> Generator[Any, None, None]:
        assert cpu_s > 0
        self.n_parts = len(parts)
        for at in self._rng.permutation(len(parts)):
            yield pickle.loads(pickle.dumps(function))(array, pickle.loads(pickle.dumps(parts[at])))

    on_gpu = None


def found(index: VectorIndex, work: Any = HERE, **options: Any) -> VectorPairs:  # noqa: ANN401
    options = {"least": LEAST, "k": 4, "probes": 1000, **options}
    return NeighbourSearch(index=index, **options).pairs(work)


def assert_same(one: VectorPairs, other: VectorPairs) -> None:
    assert np.array_equal(one.numbers, other.numbers)
    assert np.array_equal(one.owners, other.owners)
    assert np.array_equal(one.cosines, other.cosines)


def all_pairs(index: VectorIndex, k: int) -> set[tuple[int, int]]:
    """Pairs by a comparison of all codes."""
    codes = index.projection.codes(VECTORS).astype(np.int64)
    cosines = np.round(codes @ codes.T / index.projection.length**2, 6)
    pairs = set()
    for row in range(N):
        best: dict[int, tuple[float, int]] = {}
        for other in np.flatnonzero(cosines[row] >= LEAST).tolist():
            owner, one = int(OWNERS[other]), (-float(cosines[row, other]), other)
            if owner != OWNERS[row] and one < best.get(owner, (2.0, 0)):
                best[owner] = one
        nearest = sorted((cosine, owner, other) for owner, (cosine, other) in best.items())
        pairs |= {(min(row, other), max(row, other)) for _, _, other in nearest[:k]}
    return pairs


@pytest.mark.parametrize("settings", [FLAT, CELLS])
@pytest.mark.parametrize("k", [1, 4])
def test_all_cells_give_all_pairs(settings: IndexSettings, k: int) -> None:
    index = made_index(settings)
    pairs = found(index, k=k)
    assert set(map(tuple, pairs.numbers.tolist())) == all_pairs(index, k)
    assert (OWNERS[pairs.numbers] == pairs.owners).all()
    assert (pairs.numbers[:, 0] < pairs.numbers[:, 1]).all()


def test_few_cells_find_copies() -> None:
    pairs = found(made_index(CELLS), probes=4)
    copies = {(at, N - N_COPIES + at) for at in range(N_COPIES)}
    assert copies <= set(map(tuple, pairs.numbers.tolist()))


def test_pairs_are_the_same_in_any_order_and_by_units_of_any_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = made_index(CELLS, parts=3)
    whole = found(index, probes=5)
    for most_pairs, rows, block in ((20_000, 100, 64), (5_000, 7, 50)):
        monkeypatch.setattr(neighbour_pairs, "_FEW_PAIRS", most_pairs)
        monkeypatch.setattr(neighbour_pairs, "_UNIT_PAIRS", most_pairs)
        monkeypatch.setattr(neighbour_pairs, "_MOST_ROWS", rows)
        monkeypatch.setattr(cells, "_OTHERS", block)
        monkeypatch.setattr(cells, "_QUERIES", block)
        monkeypatch.setattr(cells, "_MANY_HITS", 100)
        work = Shuffled(rows)
        assert_same(found(index, work, probes=5), whole)
        assert work.n_parts > 20


def test_workers_read_a_stored_index(tmp_path: Path) -> None:
    index = made_index(CELLS)
    whole = found(index, probes=5)
    store = open_store(str(tmp_path))
    opened = VectorIndex.of_stored(store, index.stored(store, "vectors"))
    assert len(pickle.dumps(opened.segments)) < 1000
    assert_same(found(opened, Shuffled(0), probes=5), whole)


def bytes_of_cells(index: VectorIndex) -> list[int]:
    return [int(n) * (index.settings.dim + 16) for n in index.cell_sizes()]


def test_a_worker_receives_a_cell_of_a_bucket_once(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbour_pairs, "_FEW_PAIRS", 5_000)
    monkeypatch.setattr(neighbour_pairs, "_UNIT_PAIRS", 5_000)
    index = made_index(CELLS)
    whole, store = found(index, probes=5), open_store(f"s3://{s3_bucket}")
    listed = index.stored(store, "vectors")
    received = {}
    for kept_bytes in (cells.KEPT_BYTES, 0):
        opened = VectorIndex.of_stored(store, listed)
        units = pair_units(opened, since=0, probes=5)
        assert len(units) > 2 * len(opened.centroids_CE)
        monkeypatch.setattr(
            neighbour_pairs, "CellReader", partial(CellReader, kept_bytes=kept_bytes)
        )
        TRAFFIC.clear()
        assert_same(found(opened, probes=5), whole)
        received[kept_bytes] = TRAFFIC["received_bytes"]
    # Each unit reads its rows, and the worker each cell.
    assert received[cells.KEPT_BYTES] == 2 * sum(bytes_of_cells(index))
    assert received[0] > 5 * received[cells.KEPT_BYTES]


def test_cells_are_kept_up_to_a_size_the_last_used_longest(s3_bucket: str) -> None:
    index, store = made_index(CELLS, parts=2), open_store(f"s3://{s3_bucket}")
    everything = CellReader(index.segments)
    opened = VectorIndex.of_stored(store, index.stored(store, "vectors"))
    largest, *others = np.argsort(index.cell_sizes())[::-1].tolist()
    n_bytes = bytes_of_cells(index)
    # Now the starts of segments are read, which do not count below.
    assert opened.cell_sizes().sum() == N
    reader = CellReader(opened.segments, n_bytes[largest] + n_bytes[others[0]])

    def received(some: list[int]) -> int:
        TRAFFIC.clear()
        for vectors, expected in zip(reader(some), everything(some), strict=True):
            assert all(map(np.array_equal, vectors, expected))
        return TRAFFIC["received_bytes"]

    assert received([largest, others[0]]) == n_bytes[largest] + n_bytes[others[0]]
    assert received([others[0], largest]) == 0
    assert received([others[1]]) == n_bytes[others[1]]
    # The cell that was used longest ago gave way.
    assert received([largest, others[1]]) == 0
    assert received([others[0]]) == n_bytes[others[0]]
    # A cell that is larger than the limit displaces nothing.
    reader = CellReader(opened.segments, n_bytes[others[0]])
    received([others[0]])
    assert received([largest, others[0]]) == n_bytes[largest] > n_bytes[others[0]]
    everywhere = list(range(len(n_bytes)))
    assert received(everywhere) <= sum(n_bytes)
    assert len(pickle.dumps(reader)) < 1500


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.3])
def test_sixteen_workers_end_together_whatever_the_sizes_of_cells(exponent: float) -> None:
    n_cells, n = 1000, 1_000_000
    shares = np.arange(1, n_cells + 1) ** -exponent
    sizes = np.rint(np.random.default_rng(0).permutation(shares / shares.sum() * n)).astype(int)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    facts = SegmentFacts(n=n, dim=32, first_cell=0, n_cells=n_cells, end_number=n)
    centroids = np.random.default_rng(1).standard_normal((n_cells, 32)).astype(np.float32)
    segments = [CellSegment(facts, None, starts)]
    index = VectorIndex(CELLS, made_index(CELLS).projection, centroids, centroids[:1], segments)
    loads = np.zeros(16)
    for unit in pair_units(index, since=0, probes=8):
        # The prediction misses a fifth.
        loads[loads.argmin()] += unit.cost * np.exp(0.2 * np.sin(unit.begin))
    assert loads.max() <= 1.1 * loads.mean()


def test_only_new_vectors_and_owners_that_ask_look_for_others() -> None:
    index = made_index(CELLS, parts=3)
    pairs = found(index, since=1000)
    assert (pairs.numbers[:, 1] >= 1000).all()
    assert (pairs.numbers[:, 0] < 1000).any()
    everything = found(index, k=N)
    is_new = everything.numbers[:, 1] >= 1000
    # An old vector may have named another one of the same owner.
    new, expected = found(index, since=1000, k=N), everything.owners[is_new]
    assert set(map(tuple, new.owners.tolist())) == set(map(tuple, expected.tolist()))
    assert {*map(tuple, new.numbers.tolist())} < {*map(tuple, everything.numbers.tolist())}
    assert {unit.segment for unit in pair_units(index, since=1000, probes=4)} == {2}
    # Only owners that ask look for others and find those that are allowed.
    index = made_index(CELLS)
    asking = np.arange(N // PER_OWNER) % 2 == 0
    allowed = np.arange(N // PER_OWNER) % 3 > 0
    pairs = found(index, k=N, asking=asking, allowed=allowed).owners
    expected = found(index, k=N).owners
    is_so = (asking[expected] & allowed[expected[:, ::-1]]).any(axis=1)
    assert 0 < is_so.sum() < len(expected)
    assert set(map(tuple, pairs.tolist())) == set(map(tuple, expected[is_so].tolist()))


def test_near_owners_are_those_of_the_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbour_pairs, "_FEW_PAIRS", 20_000)
    monkeypatch.setattr(neighbour_pairs, "_MANY_KEYS", 50)
    index = made_index(CELLS)
    expected = np.unique(np.sort(found(index, probes=5).owners, axis=1), axis=0)
    search = NeighbourSearch(index=index, least=LEAST, k=4, probes=5)
    assert np.array_equal(search.owners(Shuffled(3)), expected)


def test_units_are_of_like_cost_and_cover_each_vector_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbour_pairs, "_FEW_PAIRS", 1)
    index = made_index(CELLS, parts=2)
    units = pair_units(index, since=0, probes=4)
    rows = sorted((unit.segment, at) for unit in units for at in range(unit.begin, unit.end))
    assert rows == [(part, at) for part in range(2) for at in range(N // 2)]
    costs = [unit.cost for unit in units]
    assert costs == sorted(costs, reverse=True)
    assert max(costs) < 1.5 * sum(costs) / neighbour_pairs._PARTS


def test_identical_vectors_are_found_by_the_order_of_owners() -> None:
    index = VectorIndex.trained(VECTORS, N, FLAT)
    index.add(np.repeat(VECTORS[:1], 300, axis=0), np.arange(300)[::-1].copy())
    pairs = found(index, k=3)
    # All name the first three owners, who name each other and the fourth.
    assert set(pairs.owners.min(axis=1).tolist()) == {0, 1, 2}
    assert len(pairs.cosines) == 3 * 297 + 3


def test_a_gpu_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    import faiss

    calls = []

    def knn_gpu(resources: object, queries: Any, others: Any, k: int, metric: int) -> Any:  # noqa: ANN401
        calls.append(k)
        return faiss.knn(queries, others, k, metric=metric)

    index = made_index(FLAT)
    whole = found(index)
    monkeypatch.setattr(cells, "has_gpu", lambda: True)
    monkeypatch.setattr(cells, "_FEW_PRODUCTS", 1)
    monkeypatch.setattr("faiss.StandardGpuResources", object, raising=False)
    monkeypatch.setattr("faiss.knn_gpu", knn_gpu, raising=False)
    assert_same(found(index), whole)
    assert calls
