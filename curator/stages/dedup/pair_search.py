"""Finds pairs of near duplicates: in this process, or in workers where there is much to compare.

That goes with the square of the clips, and is most of what a large corpus asks of a driver. It is
divided into units. Pairs are the same wherever they are found.

Shape letters: N new vectors, M others, D dimensions, P pairs.
"""
# ruff: noqa: N803, N806 - shape letters

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.stage import Work
from curator.stages.dedup.retention import SLACK, check_vectors, normalised, rounded_cosines
from curator.tables.clip_vectors import as_matrix
from curator.tables.corpus_tables import StoredTables

PAIR_S = 3.0 / (1 << 29)
"""CPU-seconds for a pair."""
_UNIT_PAIRS = 1 << 30
_ROWS, _OTHERS = 1024, 4096
"""Vectors of either side that are multiplied at a time: 16 MB of cosines."""

Vectors = NDArray[np.float32]
Pairs = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""Rows, the other rows, and their cosines, rounded to six digits: each [P]."""


@dataclass(frozen=True, slots=True)
class SearchUnit:
    """Some of the new vectors, and what they are compared with.

    Attributes:
        begin: Number of the first one.
        end: Behind the last one.
        earlier: Object with vectors of clips that stay; empty for the new ones before each.
    """

    begin: int
    end: int
    earlier: str = ""


@dataclass(slots=True)
class Nearest:
    """The most similar earlier clip of each new one.

    Attributes:
        cosine: float64[N], -1 for none; rounded to six digits.
        clip_id: Its id, of each new clip; empty for none.
    """

    cosine: NDArray[np.float64]
    clip_id: list[str]

    @classmethod
    def none(cls, n: int) -> "Nearest":
        """Returns the result of no comparison of `n` clips."""
        return cls(np.full(n, -1.0), [""] * n)

    def offer(self, row: int, cosine: float, clip_id: str) -> None:
        """Takes an earlier clip if it is more similar; of equals the first by id stays."""
        best = self.cosine[row]
        if cosine > best or (cosine == best and clip_id < self.clip_id[row]):
            self.cosine[row], self.clip_id[row] = cosine, clip_id


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsAmong:
    """Finds pairs of new vectors with those before each.

    Attributes:
        least: Cosine similarity from which pairs count.
        most: Pairs of a unit beyond which it is given up.
    """

    least: float
    most: int

    def __call__(self, new_ND: Vectors, unit: SearchUnit) -> Pairs | None:
        """Returns the pairs of a unit; None if they are too many."""
        found: list[Pairs] = []
        n_pairs = 0
        for start in range(unit.begin, unit.end, _ROWS):
            end = min(start + _ROWS, unit.end)
            for rows, others, cosines in _near(new_ND, start, end, new_ND[:end], self.least):
                is_before = others < rows
                found.append((rows[is_before], others[is_before], cosines[is_before]))
                n_pairs += len(found[-1][0])
                if n_pairs > self.most:
                    return None
        return _joined(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestEarlier:
    """Finds the most similar earlier clip of new vectors.

    Attributes:
        least: Cosine similarity from which pairs count.
        earlier: Vectors of clips that stay.
    """

    least: float
    earlier: StoredTables

    def __call__(self, new_ND: Vectors, unit: SearchUnit) -> tuple[SearchUnit, Nearest]:
        """Returns the unit, and what it found."""
        table = self.earlier.table(unit.earlier)
        old_MD = normalised(as_matrix(table["vector"].combine_chunks()))
        nearest = Nearest.none(unit.end - unit.begin)
        for rows, others, cosines in _near(new_ND, unit.begin, unit.end, old_MD, self.least):
            names = table["clip_id"].take(pa.array(others)).to_pylist()
            for row, cosine, name in zip(rows.tolist(), cosines.tolist(), names, strict=True):
                nearest.offer(row - unit.begin, cosine, name)
        return unit, nearest


def pairs_among(
    vectors_ND: NDArray[Any], work: Work, *, since: int, least: float, most: int
) -> Pairs | None:
    """Finds the pairs of vectors from number `since` on with all before them.

    Args:
        vectors_ND: float32 or float16 [N, D], L2-normalised.
        work: Where they are compared.
        since: Number of the first new one.
        least: Cosine similarity from which pairs count.
        most: Most pairs.

    Returns:
        The pairs, in no order; None if they are more.

    Raises:
        ValueError: The vectors are not finite or not normalised.
    """
    check_vectors(vectors_ND)
    n = len(vectors_ND)
    step = _unit_rows(n)
    units = [SearchUnit(at, min(at + step, n)) for at in range(since, n, step)]
    found: list[Pairs] = []
    n_pairs = 0
    search = PairsAmong(least=least, most=most)
    results = work(search, normalised(vectors_ND), units, cpu_s=PAIR_S * n * (n - since))
    for pairs in results:
        n_pairs += len(pairs[0]) if pairs is not None else most + 1
        if n_pairs > most:
            results.close()
            return None
        assert pairs is not None, "else they were more"
        found.append(pairs)
    return _joined(found)


def nearest_earlier(
    vectors_ND: NDArray[Any], work: Work, earlier: StoredTables, *, least: float
) -> Nearest:
    """Finds the most similar earlier clip of each new one.

    Args:
        vectors_ND: float32 or float16 [N, D], L2-normalised, of the new clips.
        work: Where they are compared.
        earlier: Objects with `clip_id` and `vector`, in any order.
        least: Cosine similarity from which pairs count.

    Raises:
        ValueError: The vectors are not finite or not normalised.
    """
    check_vectors(vectors_ND)
    n, names = len(vectors_ND), earlier.names
    step = _unit_rows(max(1, earlier.n_rows // max(1, len(names))))
    units = [SearchUnit(at, min(at + step, n), name) for name in names for at in range(0, n, step)]
    new_ND = normalised(vectors_ND)
    # There may be very many.
    del vectors_ND
    nearest = Nearest.none(n)
    search = NearestEarlier(least=least, earlier=earlier)
    cpu_s = PAIR_S * n * earlier.n_rows
    for unit, found in work(search, new_ND, units, cpu_s=cpu_s):
        for row in np.flatnonzero(found.cosine >= least).tolist():
            nearest.offer(unit.begin + row, float(found.cosine[row]), found.clip_id[row])
    return nearest


def _near(
    new_ND: Vectors, begin: int, end: int, others_MD: Vectors, least: float
) -> Iterator[Pairs]:
    for start in range(begin, end, _ROWS):
        some = new_ND[start : min(start + _ROWS, end)]
        for first in range(0, len(others_MD), _OTHERS):
            other = others_MD[first : first + _OTHERS]
            near = np.flatnonzero(some @ other.T >= least - SLACK)
            rows, others = near // len(other), near % len(other)
            cosines = rounded_cosines(some, rows, other, others)
            held = cosines >= least
            yield rows[held] + start, others[held] + first, cosines[held]


def _unit_rows(n_others: int) -> int:
    return max(_ROWS, _UNIT_PAIRS // max(1, n_others))


def _joined(found: Sequence[Pairs]) -> Pairs:
    none = np.zeros(0, np.int64)
    rows, others, cosines = zip((none, none, np.zeros(0)), *found, strict=True)
    return np.concatenate(rows), np.concatenate(others), np.concatenate(cosines)
