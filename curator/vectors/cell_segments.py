"""Segments: codes in the order of their cells, in memory or in one object of a store.

An index grows by segments, and old ones stay as they are. An object holds, one after the other:
int64 where each cell begins and the last one ends, int64 numbers, int64 owners, int8 codes.

Shape letters: N vectors, E dimensions of codes.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator.storage import Store
from curator.vectors.vector_codes import Codes

_WORD = 8
"""Bytes of a number."""


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
    """What is known of a segment without reading it.

    Attributes:
        n: Number of vectors.
        dim: Dimensions of codes.
        first_cell: The first of its cells, which follow each other.
        n_cells: Number of its cells.
        end_number: Behind the largest number of its vectors.
        key: Object of the store; empty for a segment in memory.
    """

    n: int
    dim: int
    first_cell: int
    n_cells: int
    end_number: int
    key: str = ""

    @property
    def n_bytes(self) -> int:
        """Size of its object."""
        return _WORD * (self.n_cells + 1) + self.n * (2 * _WORD + self.dim)


class Segment:
    """The vectors of some cells; those of a stored segment are read where they are needed.

    Args:
        facts: What is known of it.
        store: Where its object is; None for one in memory.
        starts: int64, where cells begin, and the last one ends; None to read it.
        vectors: All of them, by cell; None to read them.
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
    ) -> "Segment":
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
            return Segment, (self.facts, self._store)
        return Segment, (self.facts, None, self._starts, self._vectors)

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where its cells begin, and the last one ends: int64 [`n_cells` + 1]."""
        if self._starts is None:
            assert self._store is not None, "else it is in memory"
            words = self._store.read_range(self.facts.key, 0, _WORD * (self.facts.n_cells + 1))
            self._starts = np.frombuffer(words, np.int64)
        return self._starts

    def rows(self, begin: int, end: int) -> CellVectors:
        """Returns vectors by their rows in it."""
        if self._vectors is None and self._store is not None and self._store.is_local:
            raw = np.memmap(Path(self._store.uri) / self.facts.key, np.uint8, "r")
            self._vectors = self._columns(
                [raw[first:last] for first, last in self._spans(0, self.facts.n)]
            )
        if self._vectors is not None:
            return self._vectors.at(slice(begin, end))
        if begin == end:
            return self._columns([b"", b"", b""])
        assert self._store is not None, "else it is in memory"
        read = self._store.read_range
        return self._columns([read(self.facts.key, *span) for span in self._spans(begin, end)])

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

    def written(self, store: Store, folder: str) -> "Segment":
        """Writes it, and returns it as a stored one; its name follows from its content."""
        if self.facts.key:
            return self
        columns = [np.ascontiguousarray(c) for c in (self.starts, *self.rows(0, self.facts.n))]
        digest = hashlib.sha256()
        for column in columns:
            digest.update(column.data)
        key = f"{folder}/segment-{digest.hexdigest()[:16]}.bin"
        if not store.exists(key):
            with store.create(key) as stream:
                for column in columns:
                    stream.write(column.data)
        return Segment(SegmentFacts(**{**asdict(self.facts), "key": key}), store)

    def _spans(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Returns the bytes that hold each column of some rows."""
        spans, start = [], _WORD * (self.facts.n_cells + 1)
        for width in (_WORD, _WORD, self.facts.dim):
            spans.append((start + width * begin, start + width * end))
            start += width * self.facts.n
        return spans

    def _columns(self, raw: Sequence[Any]) -> CellVectors:
        kinds = np.int64, np.int64, np.int8
        columns = [np.frombuffer(some, kind) for some, kind in zip(raw, kinds, strict=True)]
        return CellVectors(columns[0], columns[1], columns[2].reshape(-1, self.facts.dim))


def read_cell(segments: Sequence[Segment], cell: int) -> CellVectors:
    """Returns the vectors that segments have of a cell."""
    return CellVectors.joined(
        [
            one.cells(cell, cell + 1)
            for one in segments
            if 0 <= cell - one.facts.first_cell < one.facts.n_cells
        ]
    )
