"""Finds pairs of near vectors with different owners, in units that workers process.

A unit is a range of rows of a segment, in the order of cells. A large cell becomes several units. A
unit finds all neighbours of its vectors, so units are independent, and any division gives the same
pairs. Workers get units by predicted cost, the largest first.

Shape letters: P pairs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from curator.stage import Work
from curator.vectors.cells import CellReader, CellSearch, CellSegment, CellVectors, is_first
from curator.vectors.k_means import FLAT_CENTROIDS, CentroidIndex
from curator.vectors.vector_index import VectorIndex

PROBES = 8  # cells that a vector visits; source: `benchmarks/results/vector_index.md`
PAIR_S = 7e-9  # CPU-seconds to compare a pair of codes of 256 dimensions
_ROW_PAIRS = 3000  # cost of sorting the hits of a vector, as a number of pairs
_UNIT_PAIRS = 1 << 31  # largest limit for the pairs of a unit
_FEW_PAIRS = 1 << 25  # smallest limit for the pairs of a unit
_PARTS = 256  # number of units, within these limits: sixteen workers get even loads
_MOST_ROWS = 1 << 16
_MANY_KEYS = 1 << 20

ResultT = TypeVar("ResultT")
Find = Callable[[NDArray[np.float32], "PairUnit"], ResultT]


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorPairs:
    """Pairs of vectors with different owners, each once, sorted by `numbers`."""

    numbers: NDArray[np.int64]  # int64 [P, 2], the lower number of a pair first
    owners: NDArray[np.int64]  # int64 [P, 2]
    cosines: NDArray[np.float64]  # float64 [P], rounded to six digits

    @classmethod
    def joined(cls, parts: "list[VectorPairs]") -> "VectorPairs":
        """Returns all pairs of several parts, each once."""
        none = np.zeros((0, 2), np.int64)
        numbers = np.concatenate([none, *(part.numbers for part in parts)])
        owners = np.concatenate([none, *(part.owners for part in parts)])
        cosines = np.concatenate([np.zeros(0), *(part.cosines for part in parts)])
        order = np.lexsort((numbers[:, 1], numbers[:, 0]))
        order = order[is_first(numbers[order, 0], numbers[order, 1])]
        return cls(numbers=numbers[order], owners=owners[order], cosines=cosines[order])


class PairUnit(NamedTuple):
    """A range of rows of a segment."""

    segment: int  # position in `VectorIndex.segments`
    begin: int  # first row
    end: int  # row after the last row
    cost: float  # predicted number of pairs of codes to compare


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourSearch:
    """Finds for each vector the `k` nearest other owners, and the nearest vector of each.

    The pairs are the same for any number of workers, which read stored segments themselves.
    """

    index: VectorIndex
    least: float  # least cosine of neighbours; above 0
    k: int
    since: int = 0  # only vectors with at least this number look for neighbours
    asking: NDArray[np.bool_] | None = None  # owners that look for neighbours; None for all
    allowed: NDArray[np.bool_] | None = None  # owners that may be neighbours; None for all
    # int64 [O], the owner that stands for each owner and its group, which count as one; None for
    # no groups. `asking` and `allowed` have one value for all owners of a group.
    group_of: NDArray[np.int64] | None = None
    probes: int = PROBES  # cells that a vector visits

    def owners(self, work: Work) -> NDArray[np.int64]:
        """Returns the pairs of owners of near vectors, each once and sorted, int64 [P, 2].

        Owners must be below 2**32: until the result, a pair is a key of eight bytes.
        """
        keys = np.zeros(0, np.uint64)
        waiting: list[NDArray[np.uint64]] = []
        for some in self._done(work, partial(_owner_keys, self._find())):
            waiting.append(some)
            if sum(map(len, waiting)) > max(len(keys), _MANY_KEYS):
                keys, waiting = np.unique(np.concatenate([keys, *waiting])), []
        keys = np.unique(np.concatenate([keys, *waiting]))
        both = [keys >> np.uint64(32), keys & np.uint64(0xFFFFFFFF)]
        return np.stack(both, axis=1).astype(np.int64)

    def pairs(self, work: Work) -> VectorPairs:
        """Returns the pairs of vectors."""
        return VectorPairs.joined(list(self._done(work, self._find())))

    def _find(self) -> Find[VectorPairs]:
        """Returns a function that finds the pairs of a unit and can be pickled."""
        return partial(
            _neighbours,
            CellReader(self.index.segments),
            len(self.index.groups_GE),
            least=self.least,
            k=self.k,
            since=self.since,
            asking=self.asking,
            allowed=self.allowed,
            group_of=self.group_of,
            probes=self.probes,
        )

    def _done(self, work: Work, find: Find[ResultT]) -> Iterator[ResultT]:
        units = pair_units(self.index, since=self.since, probes=self.probes)
        n_pairs = sum(unit.cost for unit in units) * self.index.settings.dim / 256
        return work(find, self.index.centroid_rows, units, cpu_s=PAIR_S * n_pairs)


def _neighbours(
    reader: CellReader,
    n_groups: int,
    centroids: NDArray[np.float32],
    unit: PairUnit,
    *,
    least: float,
    k: int,
    since: int,
    asking: NDArray[np.bool_] | None,
    allowed: NDArray[np.bool_] | None,
    group_of: NDArray[np.int64] | None,
    probes: int,
) -> VectorPairs:
    """Returns the pairs of a unit; `centroids` has `n_groups` groups, then the cells."""

    def grouped(vectors: CellVectors) -> CellVectors:
        return vectors if group_of is None else vectors._replace(owners=group_of[vectors.owners])

    def read(cells: Sequence[int]) -> Iterator[CellVectors]:
        return map(grouped, reader(cells))

    vectors = grouped(reader.segments[unit.segment].rows(unit.begin, unit.end))
    if since:
        vectors = vectors.at(vectors.numbers >= since)
    if asking is not None:
        vectors = vectors.at(asking[vectors.owners])
    index = CentroidIndex.of(centroids[n_groups:], centroids[:n_groups])
    search = CellSearch(vectors.codes, k=k, least=least, own_Q=vectors.owners, allowed=allowed)
    cells = index.nearest(vectors.codes, probes)
    # Hits in the nearest cell raise the bar for the other cells, so these have fewer hits.
    for some in (cells[:, :1], cells[:, 1:]):
        search.visit(some, read)
        hits = search.best()
    numbers = np.stack([vectors.numbers[hits.queries], hits.numbers], axis=1)
    owners = np.stack([vectors.owners[hits.queries], hits.owners], axis=1)
    order = np.argsort(numbers, axis=1)
    numbers, owners = (np.take_along_axis(both, order, 1) for both in (numbers, owners))
    pairs = VectorPairs(numbers=numbers, owners=owners, cosines=search.cosines(hits))
    return VectorPairs.joined([pairs])


def _owner_keys(
    find: Find[VectorPairs], centroids: NDArray[np.float32], unit: PairUnit
) -> NDArray[np.uint64]:
    """Returns the pairs of owners of a unit as keys, each once: 32 bits for each owner."""
    owners = np.sort(find(centroids, unit).owners, axis=1).astype(np.uint64)
    return np.unique(owners[:, 0] << np.uint64(32) | owners[:, 1])


def pair_units(index: VectorIndex, *, since: int, probes: int) -> list[PairUnit]:
    """Returns units of the segments with vectors from number `since` on, by falling cost."""
    n_cells = len(index.centroids_CE)
    sizes = index.cell_sizes()
    visited = index.centroid_index.nearest(index.centroids_CE, probes)
    # A vector is also compared with centroids.
    besides = min(n_cells, FLAT_CENTROIDS) + _ROW_PAIRS
    row_costs = np.where(visited >= 0, sizes[visited], 0).sum(axis=1) + float(besides)
    new = [at for at, segment in enumerate(index.segments) if segment.facts.end_number > since]
    total = 0.0
    for at in new:
        counts, first = np.diff(index.segments[at].starts), index.segments[at].facts.first_cell
        total += float(counts @ row_costs[first : first + len(counts)])
    most = min(max(total / _PARTS, _FEW_PAIRS), _UNIT_PAIRS)
    units = [unit for at in new for unit in _divided(index.segments[at], at, row_costs, most)]
    return sorted(units, key=lambda unit: (-unit.cost, unit.segment, unit.begin))


def _divided(
    segment: CellSegment, number: int, row_costs: NDArray[np.float64], most: float
) -> Iterator[PairUnit]:
    """Yields units of a segment with a cost up to `most`: several cells, or a part of a cell."""
    starts = segment.starts
    begin = end = 0
    cost = 0.0
    for cell in np.flatnonzero(np.diff(starts)).tolist():
        first, last = int(starts[cell]), int(starts[cell + 1])
        row_cost = float(row_costs[segment.facts.first_cell + cell])
        n_parts = max((last - first) * row_cost / most, (last - first) / _MOST_ROWS)
        bounds = np.linspace(first, last, ceil(n_parts) + 1).astype(int).tolist()
        for part_end in bounds[1:]:
            more = (part_end - end) * row_cost
            if begin < end and (cost + more > most or part_end - begin > _MOST_ROWS):
                yield PairUnit(number, begin, end, cost)
                begin, cost = end, 0.0
            end, cost = part_end, cost + more
    if begin < end:
        yield PairUnit(number, begin, end, cost)
