"""Pairs of alike clips give the duplicates that a search gives, however they were found."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from judged import run_stage
from made_out import candidates_table
from numpy.typing import NDArray

import curator.stages.dedup.stage as graph
from curator.executor.corpus_work import CorpusWork
from curator.models.perceptual import CLIP_DIM
from curator.stage import Work
from curator.stages.dedup.config import DedupConfig
from curator.stages.dedup.retention import find_duplicates
from curator.stages.dedup.similar_pairs import (
    PAIRS_PER_CLIP,
    NearDuplicatePairs,
    compare,
    duplicates_of,
    no_pairs,
)
from curator.stages.dedup.stage import DedupStage
from curator.storage import Store, open_store
from curator.tables.clip_vectors import vectors_table
from curator.tables.corpus_tables import CorpusTables
from tests.made_clips import clip_rows

N = 1500


def families(n: int, dim: int = 24) -> NDArray[np.float32]:
    """Vectors in groups that are alike."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(n // 5, dim))
    vectors = centres[rng.integers(0, len(centres), n)] + 0.5 * rng.normal(size=(n, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


VECTORS = families(N)
IDS = pa.array([f"{number:04d}" for number in range(N)])
RANK = np.random.default_rng(1).permutation(N)
"""Of each clip; 0 is the best."""


def pairs_in_steps(*stops: int, least: float = 0.7) -> NearDuplicatePairs:
    pairs = no_pairs(least)
    for stop in stops:
        found = compare(pairs, IDS[:stop], VECTORS[:stop], CorpusWork("dedup"))
        assert found is not None
        pairs = found
    return pairs


@pytest.mark.parametrize("stops", [(N,), (1, 700, N)], ids=["at once", "in steps"])
@pytest.mark.parametrize("share", [1.0, 0.3])
def test_any_of_the_clips_give_what_a_search_gives(stops: tuple[int, ...], share: float) -> None:
    pairs = pairs_in_steps(*stops)
    rows = np.flatnonzero(np.random.default_rng(2).random(N) < share)[::-1]
    order = np.argsort(RANK[rows])
    for similarity in (0.7, 0.8):
        expected = find_duplicates(VECTORS[rows], order, similarity=similarity)
        assert expected.is_duplicate.sum() > 20
        found = duplicates_of(pairs.among(IDS.take(rows)), order, similarity=similarity)
        assert np.array_equal(found.is_duplicate, expected.is_duplicate)
        assert np.array_equal(found.duplicate_of, expected.duplicate_of)
        assert np.array_equal(found.similarity, expected.similarity)


def test_steps_find_the_same_pairs() -> None:
    def listed(pairs: NearDuplicatePairs) -> list[tuple[int, int, float]]:
        columns = (pairs.first.tolist(), pairs.second.tolist(), pairs.cosine.tolist())
        return sorted(zip(*columns, strict=True))

    assert listed(pairs_in_steps(N)) == listed(pairs_in_steps(1, 2, 1026, N))


def test_copies_of_one_clip_are_too_many_to_keep() -> None:
    n = 3 * PAIRS_PER_CLIP
    same = np.repeat(VECTORS[:1], n, axis=0)
    assert compare(no_pairs(0.9), IDS[:n], same, CorpusWork("dedup")) is None


def test_what_was_not_compared_or_not_held_is_refused() -> None:
    pairs = pairs_in_steps(100)
    with pytest.raises(ValueError, match="1 clips were not compared"):
        pairs.among(IDS[99:101])
    with pytest.raises(ValueError, match=r"held from 0.7, 0.6 was asked for"):
        duplicates_of(pairs, np.arange(100), similarity=0.6)


class Corpus:
    """Clips in families, some of which are kept before the search."""

    def __init__(self, folder: Path) -> None:
        table = candidates_table(200, bits_per_pixel=np.linspace(0.1, 0.2, 200))
        self.rows = table.to_pylist()
        ids = [row["clip_id"] for row in self.rows]
        self.vectors = vectors_table(list(zip(ids, families(200, CLIP_DIM), strict=True)))
        self.store: Store = open_store(str(folder))

    def rejected(
        self, *, kept: slice, stored: CorpusTables | None, similarity: float = 0.7
    ) -> dict[str, tuple[str, float]]:
        names = {row["clip_id"] for row in self.rows[kept]}
        rows = clip_rows(
            row | {"decision": "kept" if row["clip_id"] in names else "rejected", "reasons": []}
            for row in self.rows
        )
        stage = DedupStage(DedupConfig(similarity=similarity))
        run_stage(stage, rows, self.vectors, tables=stored)
        return {
            row.clip_id: (row.duplicate_of, row.duplicate_similarity) for row in rows if row.reason
        }


def test_rerun_compares_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that pairs survive in the output root, and that the answer is that of a fresh search."""
    corpus = Corpus(tmp_path)
    first = corpus.rejected(kept=slice(0, 150), stored=CorpusTables(corpus.store, "a" * 16))
    assert len(first) > 20
    assert first == corpus.rejected(kept=slice(0, 150), stored=None)
    compared: list[int] = []

    def counting(
        known: NearDuplicatePairs, ids: pa.Array, vectors: NDArray[np.float32], work: Work
    ) -> object:
        compared.append(len(ids) - len(known.ids))
        return compare(known, ids, vectors, work)

    monkeypatch.setattr(graph, "compare", counting)
    stored = CorpusTables(corpus.store, "a" * 16)
    assert corpus.rejected(kept=slice(20, 90), stored=stored) == corpus.rejected(
        kept=slice(20, 90), stored=None
    )
    assert compared == [70]
    assert corpus.rejected(kept=slice(100, 200), stored=stored) == corpus.rejected(
        kept=slice(100, 200), stored=None
    )
    assert compared == [70, 50, 100]
    assert len(stored.names("alike")) == 1


def test_lower_similarity_and_other_vectors_are_searched_anew(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.rejected(kept=slice(0, 150), stored=CorpusTables(corpus.store, "a" * 16))
    lower = corpus.rejected(
        kept=slice(0, 150), stored=CorpusTables(corpus.store, "a" * 16), similarity=0.5
    )
    assert lower == corpus.rejected(kept=slice(0, 150), stored=None, similarity=0.5)
    assert (
        len(NearDuplicatePairs.of(CorpusTables(corpus.store, "b" * 16).read("alike"), 0.7).ids) == 0
    )


def test_pairs_stay_through_a_run_that_looks_for_no_duplicates(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    stored = CorpusTables(corpus.store, "a" * 16)
    assert stored.names("alike") == set()
    corpus.rejected(kept=slice(0, 150), stored=stored)
    assert CorpusTables(corpus.store, "a" * 16).names("alike") == stored.names("alike") != set()
