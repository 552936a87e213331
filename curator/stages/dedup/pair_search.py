"""Finds pairs of alike vectors: in this process, or in workers where there is much to compare.

That goes with the square of the clips, and is most of what a large corpus asks of a driver. It is
divided into units; the vectors are in an object under the output root meanwhile, so that a unit is
a few words. Pairs are the same wherever they are found.

Shape letters: N new vectors, M others, D dimensions, P pairs.
"""
# ruff: noqa: N803, N806 - shape letters

import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.executor.engine import Engine
from curator.executor.unit_worker import UnitResult
from curator.executor.worker import Step
from curator.stage import WORKER_BYTES, Resources
from curator.stages.dedup.retention import SLACK, check_vectors, normalised, rounded_cosines
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.clip_vectors import as_matrix
from curator.tables.kept_vectors import write_vectors

FEW_PAIRS = 1 << 29
"""Pairs that this process compares by itself, in about three seconds of a core."""
MANY_PAIRS = 1 << 33
"""Pairs for which Ray is started where it does not run yet: a minute of a core."""
_UNIT_PAIRS = 1 << 30
_ROWS, _OTHERS = 1024, 4096
"""Vectors of either side that are multiplied at a time: 16 MB of cosines."""

Pairs = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""Rows, the other rows, and their cosines, rounded to six digits: each [P]."""


@dataclass(frozen=True, slots=True)
class SearchUnit:
    """Some of the new vectors, and what they are compared with.

    Attributes:
        begin: Number of the first one.
        end: Behind the last one.
        earlier: Object with vectors of clips that stay; None for the new ones before each.
    """

    begin: int
    end: int
    earlier: str | None = None


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


class PairWorker:
    """The step that compares vectors.

    Args:
        store: Output root.
        new: Object with the new vectors, or these, float32 [N, D] of unit length.
        least: Cosine similarity from which pairs count.
        most: Pairs of a unit beyond which it is given up.
    """

    def __init__(
        self, *, store: Store | None, new: str | NDArray[np.float32], least: float, most: int
    ) -> None:
        self._begun_s = time.process_time()
        self._store, self._least, self._most = store, least, most
        self._new_ND = self._read(new)[0] if isinstance(new, str) else new

    def __call__(self, unit: SearchUnit) -> UnitResult[tuple[SearchUnit, Any]]:
        """Returns the unit, and its `Pairs`, None if they are too many; or `Nearest`."""
        found = self._among(unit) if unit.earlier is None else self._earlier(unit, unit.earlier)
        ended_s = time.process_time()
        spent_s, self._begun_s = ended_s - self._begun_s, ended_s
        return UnitResult(results=(unit, found), cpu_s={"dedup": spent_s})

    def _read(self, name: str) -> tuple[NDArray[np.float32], pa.Table]:
        assert self._store is not None, "objects are under an output root"
        table = read_parquet(self._store, name)
        return normalised(as_matrix(table["vector"].combine_chunks())), table

    def _among(self, unit: SearchUnit) -> Pairs | None:
        found: list[Pairs] = []
        n_pairs = 0
        for start in range(unit.begin, unit.end, _ROWS):
            end = min(start + _ROWS, unit.end)
            for rows, others, cosines in self._near(start, end, self._new_ND[:end]):
                is_before = others < rows
                found.append((rows[is_before], others[is_before], cosines[is_before]))
                n_pairs += len(found[-1][0])
                if n_pairs > self._most:
                    return None
        return _joined(found)

    def _earlier(self, unit: SearchUnit, name: str) -> Nearest:
        old_MD, table = self._read(name)
        nearest = Nearest.none(unit.end - unit.begin)
        for rows, others, cosines in self._near(unit.begin, unit.end, old_MD):
            names = table["clip_id"].take(pa.array(others)).to_pylist()
            for row, cosine, name in zip(rows.tolist(), cosines.tolist(), names, strict=True):
                nearest.offer(row - unit.begin, cosine, name)
        return nearest

    def _near(self, begin: int, end: int, others_MD: NDArray[np.float32]) -> Iterator[Pairs]:
        for start in range(begin, end, _ROWS):
            some = self._new_ND[start : min(start + _ROWS, end)]
            for first in range(0, len(others_MD), _OTHERS):
                other = others_MD[first : first + _OTHERS]
                near = np.flatnonzero(some @ other.T >= self._least - SLACK)
                rows, others = near // len(other), near % len(other)
                cosines = rounded_cosines(some, rows, other, others)
                held = cosines >= self._least
                yield rows[held] + start, others[held] + first, cosines[held]


@dataclass(slots=True)
class PairSearch:
    """Searches for alike vectors.

    Attributes:
        store: Output root, for workers; None to search in this process.
        engine: Where they are; None to search in this process.
        cpu_s: What workers spent, in seconds.
    """

    store: Store | None = None
    engine: Engine | None = None
    cpu_s: Counter[str] = field(default_factory=Counter)

    def among(
        self, vectors_ND: NDArray[Any], *, since: int, least: float, most: int
    ) -> Pairs | None:
        """Finds the pairs of vectors from number `since` on with all before them.

        Args:
            vectors_ND: float32 or float16 [N, D], L2-normalised.
            since: Number of the first new one.
            least: Cosine similarity from which pairs count.
            most: Most pairs.

        Returns:
            The pairs, in no order; None if they are more.

        Raises:
            ValueError: The vectors are not finite or not normalised.
        """
        n = len(vectors_ND)
        step = _unit_rows(n)
        units = [SearchUnit(at, min(at + step, n)) for at in range(since, n, step)]
        found: list[Pairs] = []
        n_pairs = 0
        results = self._run(units, vectors_ND, n * (n - since), least=least, most=most)
        for _, pairs in results:
            n_pairs += len(pairs[0]) if pairs is not None else most + 1
            if n_pairs > most:
                results.close()
                return None
            found.append(pairs)
        return _joined(found)

    def nearest(
        self, vectors_ND: NDArray[Any], earlier: Sequence[str], n_earlier: int, *, least: float
    ) -> Nearest:
        """Finds the most similar earlier clip of each new one.

        Args:
            vectors_ND: float32 or float16 [N, D], L2-normalised, of the new clips.
            earlier: Objects of `kept_vectors`.
            n_earlier: Number of clips in them.
            least: Cosine similarity from which pairs count.

        Raises:
            ValueError: The vectors are not finite or not normalised.
        """
        n = len(vectors_ND)
        step = _unit_rows(max(1, n_earlier // max(1, len(earlier))))
        units = [
            SearchUnit(at, min(at + step, n), name) for name in earlier for at in range(0, n, step)
        ]
        nearest = Nearest.none(n)
        for unit, found in self._run(units, vectors_ND, n * n_earlier, least=least, most=0):
            for row in np.flatnonzero(found.cosine >= least).tolist():
                nearest.offer(unit.begin + row, float(found.cosine[row]), found.clip_id[row])
        return nearest

    def _run(
        self,
        units: Sequence[SearchUnit],
        vectors_ND: NDArray[Any],
        n_compared: int,
        *,
        least: float,
        most: int,
    ) -> Generator[tuple[SearchUnit, Any], None, None]:
        check_vectors(vectors_ND)
        settings: dict[str, Any] = {"store": self.store, "least": least, "most": most}
        if self.store is None or self.engine is None or n_compared <= FEW_PAIRS:
            worker = PairWorker(new=normalised(vectors_ND), **settings)
            for unit in units:
                yield worker(unit).results
            return
        name = write_vectors(self.store, vectors_ND)
        memory_bytes = WORKER_BYTES + 3 * vectors_ND.nbytes
        step = Step(
            make=PairWorker,
            settings=settings | {"new": name},
            resources=Resources(memory_bytes=memory_bytes),
            name="dedup",
        )
        engine = self.engine
        is_small = not engine.joins and not engine.is_started and n_compared < MANY_PAIRS
        try:
            for result in engine.run([step], units, small=is_small, is_shown=False):
                self.cpu_s.update(result.cpu_s)
                yield result.results
        finally:
            self.store.delete([name])


def _unit_rows(n_others: int) -> int:
    return max(_ROWS, _UNIT_PAIRS // max(1, n_others))


def _joined(found: Sequence[Pairs]) -> Pairs:
    none = np.zeros(0, np.int64)
    rows, others, cosines = zip((none, none, np.zeros(0)), *found, strict=True)
    return np.concatenate(rows), np.concatenate(others), np.concatenate(cosines)
