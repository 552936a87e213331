"""Indexes a thousand to many millions of vectors in cells.

Each centroid has a cell, with the vectors nearest to it. A query visits the cells of its nearest
centroids. An index of few vectors has one cell. Centroids never change, so an addition writes only
the new vectors.

`VectorIndex.add` holds vectors in memory. With `add_parts` and `merge`, workers write segments, so
the driver holds no vectors. A new segment has vectors of any cells. After many additions, `merge`
writes segments of whole cells, so a query reads each cell from one segment.

Shape letters: N vectors, S vectors of a sample, Q queries, K owners, C cells, G groups of cells, P
cells per query, D dimensions of vectors, E dimensions of codes.
"""

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator.stage import Work
from curator.storage import Store
from curator.vectors.cells import (
    CellReader,
    CellSearch,
    CellSegment,
    CellVectors,
    Hits,
    SegmentFacts,
)
from curator.vectors.k_means import CentroidIndex, grouped, k_means
from curator.vectors.vector_codes import Codes, Projection, Vectors

SEARCH_PROBES = 32  # cells that a query of `VectorIndex.search` visits
_MOST_PROBES = 1024  # from this number on, all cells are visited: FAISS on a GPU sorts up to 2,048
VECTOR_S = 1e-4  # CPU-seconds to code 1,280 dimensions and find the cell among some thousand
MERGED_BYTES = 256 << 20  # approximate size of a merged segment; its worker needs three times this

ReadCodes = Callable[[Projection], Iterable[tuple[Codes, NDArray[np.int64]]]]
"""Reads codes, int8 [N, E], and owners, int64 [N], of some vectors at a time, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The nearest vector of each of the K nearest owners of each query, nearest first.

    If a query found fewer owners, the remaining entries are -1.
    """

    cosines: NDArray[np.float64]  # float64 [Q, K], rounded to six digits
    numbers: NDArray[np.int64]  # int64 [Q, K], numbers of the vectors
    owners: NDArray[np.int64]  # int64 [Q, K]

    @classmethod
    def none(cls, n: int, k: int) -> "Nearest":
        """Returns the result of `n` queries that found nothing."""
        none = np.full((n, k), -1, np.int64)
        return cls(cosines=np.full((n, k), -1.0), numbers=none, owners=none.copy())

    def put(self, rows: NDArray[np.int64], hits: Hits, cosines: NDArray[np.float64]) -> None:
        """Stores hits; `rows`, int64 [Q], has the row of each of their queries in this result."""
        at = rows[hits.queries], hits.ranks()
        self.cosines[at], self.numbers[at] = cosines, hits.numbers
        self.owners[at] = hits.owners


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """Settings of an index, which never change."""

    dim: int = 256  # dimensions of codes, a byte each
    cell_vectors: int = 1000  # approximate number of vectors per cell
    flat_below: int = 100_000  # an index trained for fewer vectors has one cell
    sample_per_cell: int = 40  # most vectors per cell that train the centroids
    seed: int = 0  # of the projection, the choice of training vectors, and k-means


class VectorIndex:
    """Vectors in cells, numbered from 0 in the order of their addition.

    `centroids_CE` are the centroids of cells, `groups_GE` the centroids of groups of cells.
    """

    def __init__(
        self,
        settings: IndexSettings,
        projection: Projection,
        centroids_CE: NDArray[np.float32],
        groups_GE: NDArray[np.float32],
        segments: Sequence[CellSegment] = (),
    ) -> None:
        self.settings, self.projection = settings, projection
        self.centroids_CE, self.groups_GE = centroids_CE, groups_GE
        self._segments = list(segments)
        self._waiting: list[tuple[CellVectors, NDArray[np.int64]]] = []
        self.n_vectors = max((segment.facts.end_number for segment in segments), default=0)

    @classmethod
    def trained(
        cls, sample_SD: Vectors, n_vectors: int, settings: IndexSettings | None = None
    ) -> "VectorIndex":
        """Returns an index without vectors, with cells for about `n_vectors` vectors.

        `sample_SD` is an even sample of these vectors, L2-normalised, with at least one vector.
        """
        settings = settings or IndexSettings()
        projection = Projection.of(sample_SD.shape[1], settings.dim, settings.seed)
        n_cells = max(1, n_vectors // settings.cell_vectors)
        if n_vectors < settings.flat_below:
            n_cells = 1
        most = settings.sample_per_cell * n_cells
        chosen = np.random.default_rng(settings.seed).permutation(len(sample_SD))[:most]
        codes_SE = projection.codes(sample_SD[np.sort(chosen)])
        centroids_CE = k_means(codes_SE, n_cells, seed=settings.seed)
        return cls(settings, projection, *grouped(centroids_CE, seed=settings.seed))

    @classmethod
    def of_stored(cls, store: Store, listed: Mapping[str, Any]) -> "VectorIndex":
        """Opens the index that `stored` described; maps objects of a folder into memory."""
        trained = np.load(io.BytesIO(store.read(listed["trained"])), allow_pickle=False)
        return cls(
            IndexSettings(**listed["settings"]),
            Projection(matrix=trained["projection"]),
            trained["centroids"],
            trained["groups"],
            [CellSegment(SegmentFacts(**facts), store) for facts in listed["segments"]],
        )

    def stored(self, store: Store, folder: str) -> dict[str, Any]:
        """Writes missing objects; returns a description for `of_stored`, with values of JSON.

        The hash of its content names an object, so objects never change. Descriptions from before
        an addition stay valid.
        """
        self._segments = [segment.written(store, folder) for segment in self.segments]
        raw = io.BytesIO()
        own = self.projection.matrix
        np.savez(raw, projection=own, centroids=self.centroids_CE, groups=self.groups_GE)
        data = raw.getvalue()
        name = f"{folder}/cells-{hashlib.sha256(data).hexdigest()[:16]}.npz"
        if not store.exists(name):
            store.write(name, data)
        return {
            "settings": asdict(self.settings),
            "trained": name,
            "segments": [asdict(segment.facts) for segment in self._segments],
        }

    @property
    def segments(self) -> list[CellSegment]:
        """The segments; vectors added since the last access become a new segment."""
        if self._waiting:
            parts, cells = zip(*self._waiting, strict=True)
            self._waiting = []
            vectors, own = CellVectors.joined(parts), np.concatenate(cells)
            # The parts may be large.
            del parts, cells
            self._segments.append(CellSegment.of(vectors, own, 0, len(self.centroids_CE)))
        return self._segments

    @cached_property
    def centroid_index(self) -> CentroidIndex:
        """FAISS's index of the centroids."""
        return CentroidIndex.of(self.centroids_CE, self.groups_GE)

    def add(self, vectors_ND: Vectors, owners_N: NDArray[np.int64]) -> None:
        """Adds L2-normalised vectors and the owner of each, in memory until `stored`."""
        codes_NE = self.projection.codes(vectors_ND)
        numbers = np.arange(self.n_vectors, self.n_vectors + len(codes_NE))
        vectors = CellVectors(numbers, owners_N.astype(np.int64), codes_NE)
        self._waiting.append((vectors, self.centroid_index.nearest(codes_NE, 1)[:, 0]))
        self.n_vectors += len(codes_NE)

    def extend(self, segments: Iterable[CellSegment]) -> None:
        """Adds segments; the numbers of their vectors must begin at `n_vectors`."""
        self._segments = [*self.segments, *segments]
        self.n_vectors = max((segment.facts.end_number for segment in self._segments), default=0)

    def replace(self, segments: Iterable[CellSegment]) -> None:
        """Replaces all segments with segments of the same vectors."""
        self._segments = list(segments)

    @property
    def centroid_rows(self) -> NDArray[np.float32]:
        """The array that workers share: centroids of groups, then of cells, float32 [G + C, E]."""
        return np.concatenate([self.groups_GE, self.centroids_CE])

    def cell_sizes(self) -> NDArray[np.int64]:
        """Returns the number of vectors of each cell, int64 [C]."""
        sizes = np.zeros(len(self.centroids_CE), np.int64)
        for segment in self.segments:
            first = segment.facts.first_cell
            sizes[first : first + segment.facts.n_cells] += np.diff(segment.starts)
        return sizes

    def search(
        self,
        queries_QD: Vectors,
        k: int,
        allowed: NDArray[np.bool_] | None = None,
        *,
        probes: int = SEARCH_PROBES,
    ) -> Nearest:
        """Finds the nearest vector of each of the `k` nearest owners of each query.

        Queries are L2-normalised. `allowed`, bool by owner, limits the owners; None allows all. A
        query visits `probes` cells. While it has fewer than `k` owners, it visits eight times more.
        """
        queries_QE = self.projection.codes(queries_QD)
        nearest = Nearest.none(len(queries_QE), k)
        rows, done, reader = np.arange(len(queries_QE)), 0, CellReader(self.segments)
        while len(rows) and done < len(self.centroids_CE):
            search = CellSearch(queries_QE[rows], k=k, least=-1.0, allowed=allowed)
            cells = self.visited(queries_QE[rows], probes)
            search.visit(cells, reader)
            hits, done = search.best(), cells.shape[1]
            nearest.put(rows, hits, search.cosines(hits))
            rows, probes = rows[np.bincount(hits.queries, minlength=len(rows)) < k], 8 * probes
        return nearest

    def visited(self, codes_NE: Codes, probes: int) -> NDArray[np.int64]:
        """Returns the cells that codes visit, int64 [N, P], by distance unless all; -1 is none."""
        n_cells = len(self.centroids_CE)
        if probes >= min(n_cells, _MOST_PROBES):
            return np.tile(np.arange(n_cells), (len(codes_NE), 1))
        return self.centroid_index.nearest(codes_NE, probes)


class VectorPart(NamedTuple):
    """Vectors that a worker reads; can be pickled."""

    name: str  # name for messages
    n: int  # number of vectors
    first_number: int  # number of the first vector
    codes: ReadCodes  # reads the vectors


def add_parts(
    index: VectorIndex, work: Work, parts: Sequence[VectorPart], store: Store, folder: str
) -> None:
    """Adds parts that workers read; numbers of vectors continue those of the index.

    A worker writes each part as a segment to a folder of a store.
    """
    make = partial(_written_part, index.projection, len(index.groups_GE), store, folder)
    n = sum(part.n for part in parts)
    made = work(make, index.centroid_rows, [part for part in parts if part.n], cpu_s=VECTOR_S * n)
    by_number = sorted(made, key=lambda facts: facts.end_number)
    index.extend(CellSegment(facts, store) for facts in by_number)


def merge(index: VectorIndex, work: Work, store: Store, folder: str) -> None:
    """Merges the segments into segments of whole cells; does not delete the old objects."""
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
    """Writes a part as a segment; `centroids` has `n_groups` groups, then the cells."""
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
    """Writes the vectors of a half-open range of cells, from all segments, as one segment."""
    first, end = part
    vectors = CellVectors.joined([segment.cells(first, end) for segment in segments])
    cells = np.concatenate([segment.cell_numbers(first, end) for segment in segments])
    return CellSegment.of(vectors, cells, first, end - first).written(store, folder).facts
