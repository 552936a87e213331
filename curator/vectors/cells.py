"""Stores the vectors of an index by cell, in segments, and compares queries with vectors.

An index grows by segments; old segments never change. A segment has its vectors in the order of
their cells, in memory or in one object of a store. The object has two parts: the first row of each
cell and the end of the last cell (`n_cells` + 1 int64), then a row for each vector (int64 number,
int64 owner, int8 code [E]). So neighbouring cells are one range of bytes.

The codes of all queries that visit a cell are multiplied with all its codes at once. Only products
that can be among the best of their query are kept. On a GPU, FAISS does both steps. Products of
codes are integers, so results do not depend on the processor or the size of blocks. Among equal
products, the smaller owner comes first.

Shape letters: N vectors, Q queries, E dimensions of codes, P cells per query, H hits.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator.storage import Store
from curator.vectors.k_means import gpu_resources, has_gpu
from curator.vectors.vector_codes import Codes, blocks, length_of

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]

_WORD = 8  # bytes of a number
_DIGITS = 16
_READERS = 16  # concurrent requests to a bucket
KEPT_BYTES = 512 << 20  # cells of a bucket in a worker; source: `benchmarks/results/skew.md`
_QUERIES, _OTHERS = 1024, 4096  # queries and vectors that are multiplied at a time
_MANY_HITS = 1 << 20
_MOST_ON_GPU = 1024  # most neighbours for a GPU; it sorts twice as many, at most 2,048
_FEW_PRODUCTS = 1 << 20  # for fewer products, a GPU is slower than the CPU


class CellVectors(NamedTuple):
    """Some vectors: their numbers int64 [N], owners int64 [N], codes int8 [N, E]."""

    numbers: Numbers
    owners: Numbers
    codes: Codes

    @classmethod
    def joined(cls, parts: Sequence["CellVectors"]) -> "CellVectors":
        """Returns the vectors of several parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        columns: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return cls(*columns)

    def at(self, rows: NDArray[Any] | slice) -> "CellVectors":
        """Returns the vectors of the given rows."""
        return CellVectors(self.numbers[rows], self.owners[rows], self.codes[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """Facts of a segment, known without reading its object."""

    n: int  # number of vectors
    dim: int  # dimensions of codes
    first_cell: int  # number of its first cell; its cells have consecutive numbers
    n_cells: int  # number of its cells
    end_number: int  # 1 + the largest number of its vectors
    key: str = ""  # object of the store; empty for a segment in memory

    @property
    def n_bytes(self) -> int:
        """Size of the segment's object."""
        return _WORD * (self.n_cells + 1) + self.n * (2 * _WORD + self.dim)


class CellSegment:
    """The vectors of consecutive cells, in memory or in an object of a store."""

    def __init__(
        self,
        facts: SegmentFacts,
        store: Store | None = None,
        starts: Numbers | None = None,
        vectors: CellVectors | None = None,
    ) -> None:
        self.facts, self._store = facts, store
        self._starts, self._vectors = starts, vectors

    @classmethod
    def of(
        cls, vectors: CellVectors, cells: Numbers, first_cell: int, n_cells: int
    ) -> "CellSegment":
        """Returns a segment in memory; `cells` has the cell of each vector, int64 [N]."""
        order = np.lexsort((vectors.numbers, cells))
        starts = np.searchsorted(cells[order], np.arange(n_cells + 1) + first_cell)
        facts = SegmentFacts(
            n=len(order),
            dim=vectors.codes.shape[1],
            first_cell=first_cell,
            n_cells=n_cells,
            end_number=int(vectors.numbers.max(initial=-1)) + 1,
        )
        return cls(facts, None, starts, vectors.at(order))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the address of a stored segment, and the vectors of a segment in memory."""
        if self.facts.key:
            return CellSegment, (self.facts, self._store)
        return CellSegment, (self.facts, None, self._starts, self._vectors)

    @property
    def starts(self) -> Numbers:
        """First row of each cell, then the end of the last cell: int64 [`n_cells` + 1]."""
        if self._starts is None:
            assert self._store is not None, "a segment without a store has its vectors in memory"
            words = self._store.read_range(self.facts.key, 0, _WORD * (self.facts.n_cells + 1))
            self._starts = np.frombuffer(words, np.int64)
        return self._starts

    @property
    def is_near(self) -> bool:
        """Whether a read sends no request to a bucket."""
        return self._vectors is not None or (self._store is not None and self._store.is_local)

    def is_whole(self) -> bool:
        """Whether a file matches the hash in its name; True in memory and for buckets."""
        if not self.facts.key or self._store is None or not self._store.is_local:
            return True
        with open(Path(self._store.uri) / self.facts.key, "rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()[:_DIGITS]
        return self.facts.key == f"{self.facts.key.rpartition('-')[0]}-{digest}.bin"

    def rows(self, begin: int, end: int) -> CellVectors:
        """Returns the vectors of the rows from `begin` to before `end`."""
        if self._vectors is not None:
            return self._vectors.at(slice(begin, end))
        assert self._store is not None, "a segment without a store has its vectors in memory"
        kind, start = _row_type(self.facts.dim), _WORD * (self.facts.n_cells + 1)
        if self._store.is_local:
            path, n = Path(self._store.uri) / self.facts.key, self.facts.n
            rows = np.memmap(path, kind, "r", start, n) if n else np.empty(0, kind)
            self._vectors = CellVectors(*(rows[name] for name in kind.names or ()))
            return self._vectors.at(slice(begin, end))
        first, last = (start + kind.itemsize * row for row in (begin, end))
        data = self._store.read_range(self.facts.key, first, last) if begin < end else b""
        rows = np.frombuffer(data, kind)
        return CellVectors(*(rows[name] for name in kind.names or ()))

    def cells(self, first: int, end: int) -> CellVectors:
        """Returns the vectors of the index's cells from `first` to before `end`."""
        starts, own = self.starts, self.facts.first_cell
        first, end = (min(max(cell - own, 0), self.facts.n_cells) for cell in (first, end))
        return self.rows(int(starts[first]), int(starts[end]))

    def cell_numbers(self, first: int, end: int) -> Numbers:
        """Returns the cell of each vector that `cells(first, end)` returns, int64 [N]."""
        own = np.arange(self.facts.n_cells) + self.facts.first_cell
        counts = np.where((own >= first) & (own < end), np.diff(self.starts), 0)
        return np.repeat(own, counts)

    def written(self, store: Store, folder: str) -> "CellSegment":
        """Writes the segment under a name with its hash, and returns it as a stored segment."""
        if self.facts.key:
            return self
        digest = hashlib.sha256()
        for data in self._bytes():
            digest.update(data)
        key = f"{folder}/segment-{digest.hexdigest()[:_DIGITS]}.bin"
        if not store.exists(key):
            with store.create(key) as stream:
                for data in self._bytes():
                    stream.write(data)
        return CellSegment(replace(self.facts, key=key), store)

    def _bytes(self) -> Iterator[bytes]:
        """Yields the contents of the segment's object, piece by piece."""
        yield self.starts.astype(np.int64).tobytes()
        for at in blocks(self.facts.n):
            some = self.rows(at.start, at.stop)
            rows = np.empty(len(some.numbers), _row_type(self.facts.dim))
            rows["number"], rows["owner"], rows["code"] = some
            yield rows.tobytes()


def _row_type(dim: int) -> np.dtype[np.void]:
    return np.dtype([("number", np.int64), ("owner", np.int64), ("code", np.int8, (dim,))])


class CellReader:
    """Reads cells from segments; of a bucket, it keeps the cells that were used last.

    A large cell is divided among many units, and each of them needs the whole cell. Such units have
    like costs, so they follow each other. Pickles the segments without kept cells.

    Args:
        segments: The segments of an index.
        kept_bytes: Most bytes of cells that stay in memory.
    """

    def __init__(self, segments: Sequence[CellSegment], kept_bytes: int = KEPT_BYTES) -> None:
        self.segments = tuple(segments)
        self._most_bytes, self._n_bytes = kept_bytes, 0
        self._kept: OrderedDict[int, CellVectors] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return CellReader, (self.segments, self._most_bytes)

    def __call__(self, cells: Sequence[int]) -> Iterator[CellVectors]:
        """Yields, for each of `cells`, its vectors in all segments together."""
        if all(segment.is_near for segment in self.segments):
            yield from map(self._read, cells)
            return
        with ThreadPoolExecutor(_READERS) as pool:
            for start in range(0, len(cells), 2 * _READERS):
                some = cells[start : start + 2 * _READERS]
                kept = {cell: self._kept[cell] for cell in some if cell in self._kept}
                read = {cell: pool.submit(self._read, cell) for cell in some if cell not in kept}
                for cell in some:
                    vectors = kept[cell] if cell in kept else read.pop(cell).result()
                    self._keep(cell, vectors)
                    yield vectors

    def _read(self, cell: int) -> CellVectors:
        having = (s for s in self.segments if 0 <= cell - s.facts.first_cell < s.facts.n_cells)
        return CellVectors.joined([segment.cells(cell, cell + 1) for segment in having])

    def _keep(self, cell: int, vectors: CellVectors) -> None:
        """Keeps a cell, and drops the least recently used cells that exceed the limit."""
        n_bytes = sum(column.nbytes for column in vectors)
        if cell not in self._kept and n_bytes <= self._most_bytes:
            self._kept[cell] = vectors
            self._n_bytes += n_bytes
        elif cell in self._kept:
            self._kept.move_to_end(cell)
        while self._n_bytes > self._most_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._n_bytes -= sum(column.nbytes for column in dropped)


ReadCells = Callable[[Sequence[int]], Iterable[CellVectors]]  # the vectors of each given cell


class Hits(NamedTuple):
    """Vectors near queries; each column is [H]."""

    queries: Numbers
    owners: Numbers
    numbers: Numbers
    products: Floats

    @classmethod
    def joined(cls, parts: "list[Hits]") -> "Hits":
        """Returns the hits of several parts, in their order."""
        none = np.zeros(0, np.int64)
        parts = [cls(none, none, none, none.astype(np.float32)), *parts]
        columns: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return cls(*columns)

    def at(self, rows: NDArray[Any]) -> "Hits":
        """Returns the hits of the given rows."""
        return Hits(self.queries[rows], self.owners[rows], self.numbers[rows], self.products[rows])

    def best(self, k: int) -> "Hits":
        """Returns the nearest vector of each query's `k` nearest owners, nearest first by query."""
        hits = self.at(np.lexsort((self.numbers, -self.products, self.owners, self.queries)))
        hits = hits.at(is_first(hits.queries, hits.owners))
        hits = hits.at(np.lexsort((hits.owners, -hits.products, hits.queries)))
        return hits.at(hits.ranks() < k)

    def ranks(self) -> Numbers:
        """Returns the rank of each hit among the hits of its query, from 0; hits are sorted."""
        starts = np.flatnonzero(is_first(self.queries))
        counts = np.diff(starts, append=len(self.queries))
        ranks: Numbers = np.arange(len(self.queries)) - np.repeat(starts, counts)
        return ranks


class CellSearch:
    """Compares queries with the vectors of cells, and keeps the `k` nearest owners of each query.

    Only vectors with a cosine of at least `least` count. A query finds no vectors of its own owner,
    `own_Q`. With `allowed` (bool by owner), queries find only allowed owners.
    """

    def __init__(
        self,
        queries_QE: Codes,
        *,
        k: int,
        least: float,
        own_Q: Numbers | None = None,
        allowed: NDArray[np.bool_] | None = None,
    ) -> None:
        self._queries_QE, self._own_Q, self._allowed, self._k = queries_QE, own_Q, allowed, k
        self._square = length_of(queries_QE.shape[1]) ** 2
        # `cosines` rounds to six digits, so a product counts if its rounded cosine reaches `least`.
        self._least_Q = np.full(len(queries_QE), np.ceil((least - 5e-7) * self._square), np.float32)
        self._last_Q = np.full(len(queries_QE), np.iinfo(np.int64).max)
        self._hits: list[Hits] = []
        self._n_hits = 0

    def visit(self, cells_QP: Numbers, read: ReadCells) -> None:
        """Compares queries with the vectors of their cells, int64 [Q, P]; -1 is no cell."""
        order = np.argsort(cells_QP, axis=None, kind="stable")
        cells, queries = cells_QP.ravel()[order], order // max(1, cells_QP.shape[1])
        starts = np.flatnonzero(is_first(cells) & (cells >= 0)).tolist()
        ends = [*starts[1:], len(cells)][: len(starts)]
        visited = read(cells[starts].tolist())
        for start, end, vectors in zip(starts, ends, visited, strict=True):
            self._compare(queries[start:end], vectors)

    def best(self) -> Hits:
        """Returns the best hits so far; later hits must be as near as a query's `k`-th owner."""
        hits = Hits.joined(self._hits).best(self._k)
        is_last = hits.ranks() == self._k - 1
        self._least_Q[hits.queries[is_last]] = hits.products[is_last]
        self._last_Q[hits.queries[is_last]] = hits.owners[is_last]
        self._hits, self._n_hits = [hits], len(hits.queries)
        return hits

    def cosines(self, hits: Hits) -> NDArray[np.float64]:
        """Returns the cosine similarities of hits, float64 [H], rounded to six digits."""
        cosines: NDArray[np.float64] = np.round(hits.products / self._square, 6)
        return cosines.clip(-1.0, 1.0)

    def _compare(self, queries: Numbers, others: CellVectors) -> None:
        if self._allowed is not None:
            others = others.at(self._allowed[others.owners])
        for at in blocks(len(others.numbers), _OTHERS):
            block = others.at(at)
            block_NE = block.codes.astype(np.float32)
            most = int(np.unique(block.owners, return_counts=True)[1].max())
            # Owners have at most `most` vectors here, so `enough` products include `k` others.
            enough = (self._k - 1) * most + 1 + (most if self._own_Q is not None else 0)
            for some in blocks(len(queries), _QUERIES):
                self._keep(queries[some], block, block_NE, enough)

    def _keep(self, queries: Numbers, block: CellVectors, block_NE: Floats, enough: int) -> None:
        # A product equal to the `k`-th best counts only with a smaller owner.
        least_Q = self._least_Q[queries] + (self._last_Q[queries] < block.owners.min())
        queries_QE = self._queries_QE[queries].astype(np.float32)
        rows, others, products = largest_products(queries_QE, block_NE, least_Q, enough)
        mine = queries[rows]
        hits = Hits(mine, block.owners[others], block.numbers[others], products)
        if self._own_Q is not None:
            hits = hits.at(self._own_Q[mine] != hits.owners)
        self._hits.append(hits)
        self._n_hits += len(hits.queries)
        if self._n_hits > max(_MANY_HITS, 4 * self._k * len(self._queries_QE)):
            self.best()


def largest_products(
    queries_QE: Floats, others_NE: Floats, least_Q: Floats, enough: int
) -> tuple[Numbers, Numbers, Floats]:
    """Returns rows of queries and others whose product is at least `least_Q`, and the products.

    If a query has more than `enough` such products, those below its `enough` largest may be left
    out.
    """
    n = len(others_NE)
    if len(queries_QE) * n >= _FEW_PRODUCTS and enough <= _MOST_ON_GPU and has_gpu():
        import faiss

        k, kind = min(2 * enough, n), faiss.METRIC_INNER_PRODUCT
        products, others = faiss.knn_gpu(gpu_resources(), queries_QE, others_NE, k, metric=kind)
        least_Q = np.maximum(least_Q, products[:, min(enough, k) - 1])
        if k == n or (products[:, -1] < least_Q).all():
            rows, places = np.nonzero(products >= least_Q[:, None])
            return rows, others[rows, places], products[rows, places]
    products = queries_QE @ others_NE.T
    is_large = products >= least_Q[:, None]
    crowded = np.flatnonzero(np.count_nonzero(is_large, axis=1) > enough)
    if len(crowded) and (width := min(8, n // (2 * enough))) > 1:
        # The bound is the `enough`-th largest maximum of parts: as many products reach it.
        n_parts = n // width
        parts = products[crowded, : width * n_parts].reshape(-1, width, n_parts).max(axis=1)
        bounds = np.partition(parts, n_parts - enough, axis=1)[:, n_parts - enough]
        is_large[crowded] &= products[crowded] >= bounds[:, None]
    at = np.flatnonzero(is_large)
    return at // n, at % n, products.ravel()[at]


def is_first(*columns: Numbers) -> NDArray[np.bool_]:
    """Returns where a value differs from the one before it, in any of the columns."""
    is_first = np.zeros(len(columns[0]), np.bool_)
    is_first[:1] = True
    for column in columns:
        is_first[1:] |= column[1:] != column[:-1]
    return is_first
