"""Runs a chain in a thread of this process, for work that mostly waits."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import cached_property
from typing import Any

from curator.executor.worker import Chain
from curator.stage import Stage


class UnitThread:
    """A thread that takes units one after the other, with the methods of a `Fleet`."""

    def __init__(self, steps: Chain) -> None:
        self._steps = steps
        self._thread = ThreadPoolExecutor(1, "units")
        self._open: set[Future[Any]] = set()

    @property
    def n_open(self) -> int:
        """Units that were submitted and whose result was not yet returned."""
        return len(self._open)

    def submit(self, unit: Any) -> None:  # noqa: ANN401
        """Takes a unit; does not wait."""
        self._open.add(self._thread.submit(self._called, unit))

    def poll(self, timeout: float = 0.0) -> list[Any]:
        """Returns available results; waits `timeout` seconds for the first.

        Raises:
            CuratorError: The first that a step raised, unchanged.
        """
        done, self._open = wait(self._open, timeout, FIRST_COMPLETED)
        return [job.result() for job in done]

    def close(self) -> None:
        """Ends the thread and its work."""
        for step in self._steps:
            stage = step.settings.get("stage")
            if isinstance(stage, Stage):
                stage.close()
        self._thread.shutdown(cancel_futures=True)

    @cached_property
    def _made(self) -> list[Callable[[Any], Any]]:
        return [step.make(**step.settings) for step in self._steps]

    def _called(self, unit: Any) -> Any:  # noqa: ANN401
        for step in self._made:
            unit = step(unit)
        return unit
