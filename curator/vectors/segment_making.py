"""Writes and merges segments on workers, so that the driver holds no vectors.

Each segment holds vectors of any cell, and a reader of a cell reads a little of each. Where there
are many, merging gives each cell one place.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator.stage import Work
from curator.storage import Store
from curator.vectors.cell_segments import CellSegment, CellVectors, SegmentFacts
from curator.vectors.k_means import CentroidIndex
from curator.vectors.vector_codes import Codes, Projection
from curator.vectors.vector_index import VectorIndex

VECTOR_S = 1e-4  # CPU-seconds to make a code of 1,280 values and find its cell among some thousand
MERGED_BYTES = 256 << 20  # of codes in a merged segment, about; a worker holds three times as much


ReadCodes = Callable[[Projection], Iterable[tuple[Codes, NDArray[np.int64]]]]
"""Gives codes int8 [N, E] and owners int64 [N] of some vectors at a time, in order."""


class VectorPart(NamedTuple):
    """Vectors that a worker reads; can be pickled."""

    name: str  # for people
    n: int  # number of its vectors
    first_number: int  # number of the first one
    codes: ReadCodes  # reads them


def add_parts(
    index: VectorIndex, work: Work, parts: Sequence[VectorPart], store: Store, folder: str
) -> None:
    """Adds vectors that workers read, whose numbers follow those of the index.

    Each part becomes a segment in a folder of a store.
    """
    make = partial(_written_part, index.projection, len(index.groups_GE), store, folder)
    n = sum(part.n for part in parts)
    made = work(make, index.centroid_rows, [part for part in parts if part.n], cpu_s=VECTOR_S * n)
    by_number = sorted(made, key=lambda facts: facts.end_number)
    index.extend(CellSegment(facts, store) for facts in by_number)


def merge(index: VectorIndex, work: Work, store: Store, folder: str) -> None:
    """Gives each cell one place; the objects of before are for whoever has their list."""
    counts = index.cell_sizes() * (index.settings.dim + 16)
    share = (np.cumsum(counts) - counts) // MERGED_BYTES
    bounds = [*np.flatnonzero(np.diff(share, prepend=-1)).tolist(), len(counts)]
    join = partial(_written_cells, tuple(index.segments), store, folder)
    nothing = np.zeros((1, 1), np.float32)
    made = work(join, nothing, list(pairwise(bounds)), cpu_s=1e-6 * index.n_vectors)
    by_cell = sorted(made, key=lambda facts: facts.first_cell)
    index.replace(CellSegment(facts, store) for facts in by_cell)


def _written_part(
    projection: Projection,
    n_groups: int,
    store: Store,
    folder: str,
    centroids: NDArray[np.float32],
    part: VectorPart,
) -> SegmentFacts:
    """Writes vectors as a segment, given the centroids of groups, then of cells."""
    blocks, owners = zip(*part.codes(projection), strict=True)
    codes = np.concatenate(blocks)
    if len(codes) != part.n:
        raise ValueError(f"{part.name} has {len(codes)} vectors, expected {part.n}")
    numbers = np.arange(part.first_number, part.first_number + part.n)
    index = CentroidIndex.of(centroids[n_groups:], centroids[:n_groups])
    columns = CellVectors(numbers, np.concatenate(owners).astype(np.int64), codes)
    cells = index.nearest(codes, 1)[:, 0]
    return CellSegment.of(columns, cells, 0, index.n).written(store, folder).facts


def _written_cells(
    segments: Sequence[CellSegment],
    store: Store,
    folder: str,
    _: NDArray[np.float32],
    part: tuple[int, int],
) -> SegmentFacts:
    """Writes what segments have of the cells from the first to behind the last as one segment."""
    first, end = part
    vectors = CellVectors.joined([segment.cells(first, end) for segment in segments])
    cells = np.concatenate([segment.cell_numbers(first, end) for segment in segments])
    return CellSegment.of(vectors, cells, first, end - first).written(store, folder).facts
