"""Runs pure functions over parts of one array, in this process or on workers.

Stages that decide about a whole corpus use it. Workers read the array from an object under the
output root, so each message to a worker only names a part.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from curator.executor.cpu_accounting import CpuClock
from curator.executor.engine import Engine, Placement
from curator.executor.unit_worker import UnitResult
from curator.executor.worker import Step
from curator.stage import WORKER_BYTES, Resources
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.clip_vectors import as_matrix
from curator.tables.corpus_tables import write_vectors

FEW_S = 3.0
"""Most CPU-seconds of work that this process does itself."""
MANY_S = 48.0
"""Least CPU-seconds of work for which it is worth starting Ray."""
_COPIES = 4
"""Copies of the array in a worker: the object, the table, and two in the function."""

PartT = TypeVar("PartT")
ResultT = TypeVar("ResultT")
Function = Callable[[NDArray[np.float32], PartT], ResultT]


class _ArrayStep:
    """The step of a worker: calls a function with the stored array and a part."""

    def __init__(
        self, *, store: Store, array: str, function: Function[Any, Any], work: str
    ) -> None:
        self._clock = CpuClock()
        self._function, self._work = function, work
        self._array = as_matrix(read_parquet(store, array)["vector"].combine_chunks())

    def __call__(self, part: Any) -> UnitResult[Any]:  # noqa: ANN401 - what the function takes
        spent = self._clock.begin()
        results = self._function(self._array, part)
        return UnitResult(results=results, cpu_s=self._clock.end(spent, rest=self._work))


class CorpusWork:
    """Runs the work of a stage that decides about a whole corpus.

    Args:
        name: Name of the stage.
        store: Output root, for workers; None to work in this process.
        engine: Engine with the workers; None to work in this process.

    Attributes:
        cpu_s: CPU-seconds of the workers, by purpose.
    """

    def __init__(self, name: str, store: Store | None = None, engine: Engine | None = None) -> None:
        self._name, self._store, self._engine = name, store, engine
        self.cpu_s: Counter[str] = Counter()

    def __call__(
        self,
        function: Function[PartT, ResultT],
        array: NDArray[np.float32],
        parts: Iterable[PartT],
        *,
        cpu_s: float,
    ) -> Generator[ResultT, None, None]:
        """Yields results: see `curator.stage.Work`."""
        store, engine = self._store, self._engine
        if store is None or engine is None or cpu_s <= FEW_S:
            for part in parts:
                yield function(array, part)
            return
        name = write_vectors(store, array)
        step = Step(
            make=_ArrayStep,
            settings={"store": store, "array": name, "function": function, "work": self._name},
            resources=Resources(memory_bytes=WORKER_BYTES + _COPIES * array.nbytes),
            names=(self._name,),
        )
        is_small = not engine.joins and not engine.is_started and cpu_s < MANY_S
        placement: Placement = "child" if is_small else "ray"
        try:
            for result in engine.run([step], parts, placement=placement, is_shown=False):
                self.cpu_s.update(result.cpu_s)
                engine.cpu_s.update(result.cpu_s)
                yield result.results
        finally:
            store.delete([name])
