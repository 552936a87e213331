"""Writes and merges segments on workers, so that the driver holds no vectors.

Each segment holds vectors of any cell, and a reader of a cell reads a little of each. Where there
are many, merging gives each cell one place.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

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


@dataclass(frozen=True, slots=True)
class VectorPart:
    """Vectors that a worker reads; can be pickled."""

    name: str  # for people
    n: int  # number of its vectors
    first_number: int  # number of the first one
    codes: ReadCodes  # reads them


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSegment:
    """Writes vectors as a segment."""

    projection: Projection  # of the index
    n_groups: int  # rows of the array that are centroids of groups; the others are of cells
    store: Store  # where the segment goes
    folder: str  # likewise

    def __call__(self, centroids: NDArray[np.float32], part: VectorPart) -> SegmentFacts:
        """Returns what is known of the segment, given the centroids of groups, then of cells."""
        blocks, owners = zip(*part.codes(self.projection), strict=True)
        codes = np.concatenate(blocks)
        if len(codes) != part.n:
            raise ValueError(f"{part.name} has {len(codes)} vectors, expected {part.n}")
        numbers = np.arange(part.first_number, part.first_number + part.n)
        index = CentroidIndex.of(centroids[self.n_groups :], centroids[: self.n_groups])
        cells = index.nearest(codes, 1)[:, 0]
        columns = CellVectors(numbers, np.concatenate(owners).astype(np.int64), codes)
        segment = CellSegment.of(columns, cells, 0, len(centroids) - self.n_groups)
        return segment.written(self.store, self.folder).facts


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeCells:
    """Writes the vectors that segments have of some cells as one segment."""

    segments: tuple[CellSegment, ...]  # of the index
    store: Store  # where the segment goes
    folder: str  # likewise

    def __call__(self, array: NDArray[np.float32], part: tuple[int, int]) -> SegmentFacts:
        """Returns what is known of the segment of the cells from the first to behind the last."""
        del array
        first, end = part
        vectors = CellVectors.joined([segment.cells(first, end) for segment in self.segments])
        cells = np.concatenate([segment.cell_numbers(first, end) for segment in self.segments])
        segment = CellSegment.of(vectors, cells, first, end - first)
        return segment.written(self.store, self.folder).facts


def add_parts(
    index: VectorIndex, work: Work, parts: Sequence[VectorPart], store: Store, folder: str
) -> None:
    """Adds vectors that workers read; each part becomes a segment of a store.

    Args:
        index: Gets the segments.
        work: Where they are made.
        parts: Their numbers follow those of the index.
        store: Where segments go.
        folder: Likewise.
    """
    make = WriteSegment(
        projection=index.projection, n_groups=len(index.groups_GE), store=store, folder=folder
    )
    n = sum(part.n for part in parts)
    made = work(make, index.centroid_rows, [part for part in parts if part.n], cpu_s=VECTOR_S * n)
    by_number = sorted(made, key=lambda facts: facts.end_number)
    index.extend(CellSegment(facts, store) for facts in by_number)


def merge(index: VectorIndex, work: Work, store: Store, folder: str) -> None:
    """Gives each cell one place; the objects of before are for whoever has their list."""
    counts = index.cell_sizes() * (index.settings.dim + 16)
    share = (np.cumsum(counts) - counts) // MERGED_BYTES
    bounds = [*np.flatnonzero(np.diff(share, prepend=-1)).tolist(), len(counts)]
    parts = list(pairwise(bounds))
    join = MergeCells(segments=tuple(index.segments), store=store, folder=folder)
    made = work(join, np.zeros((1, 1), np.float32), parts, cpu_s=1e-6 * index.n_vectors)
    by_cell = sorted(made, key=lambda facts: facts.first_cell)
    index.replace(CellSegment(facts, store) for facts in by_cell)
