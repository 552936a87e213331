"""Pairs of alike vectors are those of all comparisons, wherever they are found."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from curator.executor import corpus_work
from curator.executor.corpus_work import CorpusWork
from curator.executor.engine import Engine
from curator.stages.dedup import pair_search
from curator.stages.dedup.pair_search import nearest_earlier, pairs_among
from curator.storage import Store, open_store
from curator.tables.clip_vectors import vectors_table
from curator.tables.corpus_tables import StoredTables
from curator.tables.parts import to_parquet

N, N_EARLIER, LEAST = 300, 120, 0.7


def families(n: int, seed: int) -> NDArray[np.float32]:
    """Vectors in groups that are alike, the same for all seeds; some are there twice."""
    centres = np.random.default_rng(0).normal(size=(40, 24))
    rng = np.random.default_rng(seed)
    vectors = centres[rng.integers(0, len(centres), n)] + 0.5 * rng.normal(size=(n, 24))
    vectors[n // 2 : n // 2 + 20] = vectors[:20]
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


NEW = families(N, 1)
EARLIER = [families(N_EARLIER, 2), families(N_EARLIER, 3)]
IDS = [[f"{n:03}-{part}" for n in range(N_EARLIER)] for part in range(2)]


def cosines(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.round(a.astype(np.float64) @ b.astype(np.float64).T, 6)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = open_store(str(tmp_path))
    for number, (ids, vectors) in enumerate(zip(IDS, EARLIER, strict=True)):
        table = vectors_table(list(zip(ids, vectors, strict=True)))
        store.write(f"earlier-{number}", to_parquet(table, f"earlier-{number}"))
    return store


@pytest.fixture(params=["here", "in a worker"])
def work(
    request: pytest.FixtureRequest, store: Store, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CorpusWork]:
    monkeypatch.setattr(pair_search, "_ROWS", 16)
    monkeypatch.setattr(pair_search, "_OTHERS", 50)
    monkeypatch.setattr(pair_search, "_UNIT_PAIRS", 64 * N)
    if request.param == "in a worker":
        monkeypatch.setattr(corpus_work, "FEW_S", 0.0)
    with Engine(address=None, workers=None) as engine:
        found = CorpusWork("dedup", store, engine)
        yield found
        assert bool(found.cpu_s["dedup"]) == (request.param == "in a worker")
    assert not list(store.list("alike/"))


def test_all_pairs_with_new_vectors_are_found(work: CorpusWork) -> None:
    found = pairs_among(NEW, work, since=100, least=LEAST, most=N * N)
    assert found is not None
    expected = np.argwhere(np.tril(cosines(NEW, NEW), -1) >= LEAST)
    expected = expected[expected[:, 0] >= 100]
    assert len(expected) > 500
    pairs = np.stack(found[:2], axis=1)
    assert np.array_equal(pairs[np.lexsort(pairs.T[::-1])], expected)
    assert np.abs(found[2] - cosines(NEW, NEW)[found[0], found[1]]).max() < 2e-5


def test_more_pairs_than_wanted_are_none(work: CorpusWork) -> None:
    assert pairs_among(NEW, work, since=0, least=LEAST, most=20) is None


def test_the_nearest_earlier_clip_is_found_and_the_first_of_equals(
    work: CorpusWork, store: Store
) -> None:
    earlier = StoredTables(store, ("earlier-0", "earlier-1"), 2 * N_EARLIER)
    found = nearest_earlier(NEW, work, earlier, least=LEAST)
    all_ids = np.array([id_ for ids in IDS for id_ in ids])
    order = np.argsort(all_ids)
    near = cosines(NEW, np.concatenate(EARLIER))[:, order]
    best = near.argmax(axis=1)
    is_found = near.max(axis=1) >= LEAST
    assert 50 < is_found.sum() < N
    assert np.array_equal(found.cosine >= LEAST, is_found)
    ids = np.array(found.clip_id)
    assert np.array_equal(ids[is_found], all_ids[order][best][is_found])
    assert set(ids[~is_found]) == {""}


def test_unlike_clips_and_no_clips_give_no_pairs(store: Store) -> None:
    work, none = CorpusWork("dedup"), NEW[:0]
    assert pairs_among(none, work, since=0, least=LEAST, most=9) is not None
    earlier = StoredTables(store, ("earlier-0",), N_EARLIER)
    assert nearest_earlier(none, work, earlier, least=LEAST).clip_id == []
    nothing = StoredTables(store, (), 0)
    assert set(nearest_earlier(NEW, work, nothing, least=LEAST).clip_id) == {""}
    with pytest.raises(ValueError, match="expected 1"):
        pairs_among(2 * NEW, work, since=0, least=LEAST, most=9)
