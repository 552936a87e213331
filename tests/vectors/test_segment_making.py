"""Segments that workers write and merge are those of an index in memory."""

import pickle
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from made_vectors import CELLS, OWNERS, VECTORS, N, made_index
from test_neighbour_pairs import HERE, Shuffled, assert_same, found

from curator.storage import open_store
from curator.vectors import segment_making
from curator.vectors.segment_making import VectorPart, add_parts, merge
from curator.vectors.vector_codes import Codes, Projection
from curator.vectors.vector_index import VectorIndex


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
    monkeypatch.setattr(segment_making, "MERGED_BYTES", 20_000)
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
