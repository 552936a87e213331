"""An index finds what a comparison with all vectors finds, and is the same when it is opened."""

import json
import pickle
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from made_vectors import CELLS, FLAT, OWNERS, PER_OWNER, VECTORS, N, made_index
from test_neighbour_pairs import HERE, Shuffled, assert_same, found

from curator.storage import open_store
from curator.storage.local_store import LocalStore
from curator.vectors import vector_index
from curator.vectors.vector_codes import Codes, Projection
from curator.vectors.vector_index import IndexSettings, VectorIndex, VectorPart, add_parts, merge


class Remote(LocalStore):
    """A folder that is read by ranges, as a bucket is."""

    is_local = False


def best_owners(codes: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    """The nearest owners by all products; of equals the first."""
    products = queries.astype(np.int64) @ codes.astype(np.int64).T
    best = np.full((len(queries), N // PER_OWNER), -(2**40))
    for owner in range(N // PER_OWNER):
        best[:, owner] = products[:, owner == OWNERS].max(axis=1)
    return np.argsort(-best, axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize("settings", [FLAT, CELLS])
def test_a_search_of_all_cells_is_exact(settings: IndexSettings) -> None:
    index = made_index(settings, parts=2)
    found = index.search(VECTORS[::50], 5, probes=10_000)
    codes = index.projection.codes(VECTORS)
    assert np.array_equal(found.owners, best_owners(codes, codes[::50], 5))
    assert (OWNERS[found.numbers] == found.owners).all()
    assert (np.diff(found.cosines, axis=1) <= 0).all()
    assert found.cosines[:, 0] == pytest.approx(1.0, abs=0.01)


def test_few_cells_find_nearly_all_and_whoever_is_allowed() -> None:
    index = made_index(CELLS)
    exact, some = (index.search(VECTORS[:100], 5, probes=p).owners for p in (10_000, 6))
    assert len(index.centroids_CE) == N // 60
    assert (exact == some).mean() > 0.9
    # Only allowed owners are found however far they are.
    index = made_index(CELLS)
    allowed = np.zeros(N // PER_OWNER, np.bool_)
    allowed[[7, 99, 400]] = True
    found = index.search(VECTORS[:5], 4, allowed, probes=1)
    assert (np.sort(found.owners, axis=1) == [-1, 7, 99, 400]).all()
    assert (found.cosines[:, 3] == -1).all()


@pytest.mark.parametrize("kind", [LocalStore, Remote])
def test_a_stored_index_finds_the_same(kind: type[LocalStore], tmp_path: Path) -> None:
    index = made_index(CELLS, parts=2)
    before = index.search(VECTORS[:20], 5)
    listed = index.stored(open_store(str(tmp_path)), "vectors")
    assert listed == index.stored(open_store(str(tmp_path)), "vectors")
    store = kind(str(tmp_path))
    opened = VectorIndex.of_stored(store, json.loads(json.dumps(listed)))
    sizes = {one.facts.key: one.facts.n_bytes for one in opened.segments}
    there = {info.key: info.bytes for info in store.list()}
    assert there == {listed["trained"]: there[listed["trained"]], **sizes}
    after = opened.search(VECTORS[:20], 5)
    assert opened.n_vectors == N
    assert np.array_equal(before.numbers, after.numbers)
    assert np.array_equal(before.cosines, after.cosines)


def test_an_addition_leaves_stored_segments_alone(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    index = VectorIndex.trained(VECTORS, N, CELLS)
    index.add(VECTORS[:1000], OWNERS[:1000])
    old = index.stored(store, "vectors")
    grown = VectorIndex.of_stored(store, old)
    grown.add(VECTORS[1000:], OWNERS[1000:])
    new = grown.stored(store, "vectors")
    assert new["segments"][:-1] == old["segments"]
    assert VectorIndex.of_stored(store, old).n_vectors == 1000
    assert np.array_equal(
        VectorIndex.of_stored(store, new).search(VECTORS[:9], 3).numbers,
        made_index(CELLS).search(VECTORS[:9], 3).numbers,
    )


def test_codes_keep_cosines_and_need_a_direction() -> None:
    codes = Projection.of(96, 96, 0).codes(VECTORS).astype(np.float64)
    norms = np.linalg.norm(codes, axis=1)
    assert norms.std() / norms.mean() < 0.002
    cosines = codes @ codes.T / np.outer(norms, norms)
    assert np.abs(cosines - VECTORS @ VECTORS.T).max() < 0.02
    # Vectors without direction are refused.
    vectors = VECTORS[:5].copy()
    vectors[3] = 0
    with pytest.raises(ValueError, match="vector 3 has norm 0"):
        made_index(FLAT).add(vectors, OWNERS[:5])
    with pytest.raises(ValueError, match=r"vectors are \[5, 8\], expected \[N, 96\]"):
        made_index(FLAT).search(vectors[:, :8], 1)


def codes_of(begin: int, end: int, projection: Projection) -> Iterator[tuple[Codes, np.ndarray]]:
    """Yields some of the vectors from `begin` to `end` at a time."""
    for start in range(begin, end, 150):
        rows = slice(start, min(start + 150, end))
        yield projection.codes(VECTORS[rows]), OWNERS[rows]


def part(begin: int, end: int, n: int) -> VectorPart:
    """Some rows of the vectors, of which it says that they are `n`."""
    return VectorPart(f"{begin}-{end}", n, begin, partial(codes_of, begin, end))


PARTS = [part(begin, end, end - begin) for begin, end in pairwise((0, 600, 600, 1000, N))]


def test_workers_write_what_the_driver_would(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    index = VectorIndex.trained(VECTORS, N, CELLS)
    add_parts(index, Shuffled(1), PARTS, store, "vectors")
    assert index.n_vectors == N
    assert len(pickle.dumps(index.segments)) < 2000
    assert_same(found(index, probes=5), found(made_index(CELLS), probes=5))


def test_merged_segments_have_the_same_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))
    index = VectorIndex.trained(VECTORS, N, CELLS)
    add_parts(index, HERE, PARTS, store, "vectors")
    before = found(index, probes=5, since=600)
    searched = index.search(VECTORS[:20], 5)
    monkeypatch.setattr(vector_index, "MERGED_BYTES", 20_000)
    merge(index, Shuffled(2), store, "vectors")
    assert len(index.segments) > 3
    assert sum(one.facts.n for one in index.segments) == N
    opened = VectorIndex.of_stored(store, index.stored(store, "vectors"))
    assert_same(found(opened, probes=5, since=600), before)
    assert np.array_equal(opened.search(VECTORS[:20], 5).numbers, searched.numbers)


def test_another_number_of_vectors_than_was_said_is_an_error(tmp_path: Path) -> None:
    index = VectorIndex.trained(VECTORS, N, CELLS)
    store = open_store(str(tmp_path))
    with pytest.raises(ValueError, match="0-600 has 600 vectors, expected 500"):
        add_parts(index, HERE, [part(0, 600, 500)], store, "vectors")
