"""Compares queries with the vectors of cells: all queries that visit a cell with all its vectors.

That is one product of matrices, of which those values are taken that are as large as a query's
best so far; where there is a GPU, FAISS does both. Products of codes are whole numbers, so that
neither the processor nor the size of a block decides what is found; owners order equals.

Shape letters: N vectors, Q queries, E dimensions of codes, P cells a query, H hits.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator.vectors.cell_segments import CellVectors
from curator.vectors.k_means import has_gpu
from curator.vectors.vector_codes import Codes, blocks, length_of

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]
_QUERIES, _OTHERS = 1024, 4096  # queries and vectors that are multiplied at a time
_MANY_HITS = 1 << 20
_MOST_ON_GPU = 1024  # neighbours that a GPU is asked for; it orders 2,048 at most
_FEW_PRODUCTS = 1 << 20  # fewer are not worth the way to a GPU

ReadCells = Callable[[Sequence[int]], Iterable[CellVectors]]
"""Reads the vectors of each of some cells."""


class Hits(NamedTuple):
    """Vectors near queries: each [H], ordered by query, then from the nearest on."""

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
        """Returns some of them."""
        return Hits(self.queries[rows], self.owners[rows], self.numbers[rows], self.products[rows])

    def best(self, k: int) -> "Hits":
        """Returns for each query the nearest vector of each of its `k` nearest owners."""
        hits = self.at(np.lexsort((self.numbers, -self.products, self.owners, self.queries)))
        hits = hits.at(is_first(hits.queries, hits.owners))
        hits = hits.at(np.lexsort((hits.owners, -hits.products, hits.queries)))
        return hits.at(hits.ranks() < k)

    def ranks(self) -> Numbers:
        """Returns the place of each among those of its query, from 0."""
        starts = np.flatnonzero(is_first(self.queries))
        counts = np.diff(starts, append=len(self.queries))
        ranks: Numbers = np.arange(len(self.queries)) - np.repeat(starts, counts)
        return ranks


class CellSearch:
    """Keeps the best of what queries meet in the cells that they visit: of each, `k` owners.

    Vectors count from the cosine `least` on. A query does not find its own owner, `own_Q`; of all
    owners those may be found that are `allowed`.
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
        # Products are whole numbers: those of cosines that are rounded to `least` count.
        self._least_Q = np.full(len(queries_QE), np.ceil((least - 5e-7) * self._square), np.float32)
        self._last_Q = np.full(len(queries_QE), np.iinfo(np.int64).max)
        self._hits: list[Hits] = []
        self._n_hits = 0

    def visit(self, cells_QP: Numbers, read: ReadCells) -> None:
        """Compares queries with the vectors of their cells, int64 [Q, P], -1 for none."""
        order = np.argsort(cells_QP, axis=None, kind="stable")
        cells, queries = cells_QP.ravel()[order], order // max(1, cells_QP.shape[1])
        starts = np.flatnonzero(is_first(cells) & (cells >= 0)).tolist()
        ends = [*starts[1:], len(cells)][: len(starts)]
        visited = read(cells[starts].tolist())
        for start, end, vectors in zip(starts, ends, visited, strict=True):
            self._compare(queries[start:end], vectors)

    def best(self) -> Hits:
        """Returns what was found; what is visited later must be as near."""
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
            # The best of so many are of `k` owners, and perhaps of its own.
            enough = (self._k - 1) * most + 1 + (most if self._own_Q is not None else 0)
            for some in blocks(len(queries), _QUERIES):
                self._keep(queries[some], block, block_NE, enough)

    def _keep(self, queries: Numbers, block: CellVectors, block_NE: Floats, enough: int) -> None:
        # Of equals only a better owner counts.
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

    Of a query that has more than `enough`, smaller ones than its largest so many may be left out.
    """
    n = len(others_NE)
    if len(queries_QE) * n >= _FEW_PRODUCTS and enough <= _MOST_ON_GPU and has_gpu():
        import faiss

        k, kind = min(2 * enough, n), faiss.METRIC_INNER_PRODUCT
        resources = faiss.StandardGpuResources()
        products, others = faiss.knn_gpu(resources, queries_QE, others_NE, k, metric=kind)
        least_Q = np.maximum(least_Q, products[:, min(enough, k) - 1])
        if k == n or (products[:, -1] < least_Q).all():
            rows, places = np.nonzero(products >= least_Q[:, None])
            return rows, others[rows, places], products[rows, places]
    products = queries_QE @ others_NE.T
    is_large = products >= least_Q[:, None]
    crowded = np.flatnonzero(np.count_nonzero(is_large, axis=1) > enough)
    if len(crowded) and (width := min(8, n // (2 * enough))) > 1:
        # So many parts have a value at least as large as the last of their largest ones.
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
