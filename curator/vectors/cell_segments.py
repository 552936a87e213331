"""Segments: codes in the order of their cells, in memory or in one object of a store.

An index grows by segments, and old ones stay as they are. An object holds int64 where each cell
begins and the last one ends, then a row per vector: int64 number, int64 owner, int8 code. So the
vectors of cells side by side are one range of bytes.

Shape letters: N vectors, E dimensions of codes.
"""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator.storage import Store
from curator.vectors.vector_codes import Codes, blocks

_WORD = 8  # bytes of a number
_DIGITS = 16
_READERS = 16  # requests at a time to a bucket


class CellVectors(NamedTuple):
    """Some vectors: their numbers int64 [N], owners int64 [N], codes int8 [N, E]."""

    numbers: NDArray[np.int64]
    owners: NDArray[np.int64]
    codes: Codes

    @classmethod
    def joined(cls, parts: Sequence["CellVectors"]) -> "CellVectors":
        """Returns the vectors of several parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        columns: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return cls(*columns)

    def at(self, rows: NDArray[Any] | slice) -> "CellVectors":
        """Returns some of them."""
        return CellVectors(self.numbers[rows], self.owners[rows], self.codes[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """What is known of a segment without reading it."""

    n: int  # number of vectors
    dim: int  # dimensions of codes
    first_cell: int  # the first of its cells, which follow each other
    n_cells: int  # number of its cells
    end_number: int  # behind the largest number of its vectors
    key: str = ""  # object of the store; empty for a segment in memory

    @property
    def n_bytes(self) -> int:
        """Size of its object."""
        return _WORD * (self.n_cells + 1) + self.n * (2 * _WORD + self.dim)


class CellSegment:
    """The vectors of some cells: in memory, or in a store and read where they are needed.

    `starts` has where cells begin, and the last one ends.
    """

    def __init__(
        self,
        facts: SegmentFacts,
        store: Store | None = None,
        starts: NDArray[np.int64] | None = None,
        vectors: CellVectors | None = None,
    ) -> None:
        self.facts, self._store = facts, store
        self._starts, self._vectors = starts, vectors

    @classmethod
    def of(
        cls, vectors: CellVectors, cells: NDArray[np.int64], first_cell: int, n_cells: int
    ) -> "CellSegment":
        """Returns the segment of vectors of which int64 [N] are the cells."""
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
        """Pickles the address of what is stored, and the vectors of what is not."""
        if self.facts.key:
            return CellSegment, (self.facts, self._store)
        return CellSegment, (self.facts, None, self._starts, self._vectors)

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where its cells begin, and the last one ends: int64 [`n_cells` + 1]."""
        if self._starts is None:
            assert self._store is not None, "else it is in memory"
            words = self._store.read_range(self.facts.key, 0, _WORD * (self.facts.n_cells + 1))
            self._starts = np.frombuffer(words, np.int64)
        return self._starts

    @property
    def is_near(self) -> bool:
        """Whether it is read without requests."""
        return self._vectors is not None or (self._store is not None and self._store.is_local)

    def is_whole(self) -> bool:
        """Whether a file has the content by which it is named; a bucket checks its objects."""
        if not self.facts.key or self._store is None or not self._store.is_local:
            return True
        with open(Path(self._store.uri) / self.facts.key, "rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()[:_DIGITS]
        return self.facts.key == f"{self.facts.key.rpartition('-')[0]}-{digest}.bin"

    def rows(self, begin: int, end: int) -> CellVectors:
        """Returns vectors by their rows in it."""
        if self._vectors is not None:
            return self._vectors.at(slice(begin, end))
        assert self._store is not None, "else it is in memory"
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
        """Returns the vectors of some of the index's cells, which follow each other."""
        starts, own = self.starts, self.facts.first_cell
        first, end = (min(max(cell - own, 0), self.facts.n_cells) for cell in (first, end))
        return self.rows(int(starts[first]), int(starts[end]))

    def cell_numbers(self, first: int, end: int) -> NDArray[np.int64]:
        """Returns the cell of each vector of `cells`."""
        own = np.arange(self.facts.n_cells) + self.facts.first_cell
        counts = np.where((own >= first) & (own < end), np.diff(self.starts), 0)
        return np.repeat(own, counts)

    def written(self, store: Store, folder: str) -> "CellSegment":
        """Writes it, and returns it as a stored one; its name follows from its content."""
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
        """Yields what its object holds, piece by piece."""
        yield self.starts.astype(np.int64).tobytes()
        for at in blocks(self.facts.n):
            some = self.rows(at.start, at.stop)
            rows = np.empty(len(some.numbers), _row_type(self.facts.dim))
            rows["number"], rows["owner"], rows["code"] = some
            yield rows.tobytes()


def _row_type(dim: int) -> np.dtype[np.void]:
    return np.dtype([("number", np.int64), ("owner", np.int64), ("code", np.int8, (dim,))])


def read_cells(segments: Sequence[CellSegment], cells: Sequence[int]) -> Iterator[CellVectors]:
    """Yields the vectors that segments have of each of some cells."""

    def read(cell: int) -> CellVectors:
        having = (s for s in segments if 0 <= cell - s.facts.first_cell < s.facts.n_cells)
        return CellVectors.joined([segment.cells(cell, cell + 1) for segment in having])

    if all(segment.is_near for segment in segments):
        yield from map(read, cells)
        return
    with ThreadPoolExecutor(_READERS) as pool:
        for start in range(0, len(cells), 2 * _READERS):
            yield from pool.map(read, cells[start : start + 2 * _READERS])
