"""Chains of steps, and the one loop that runs them in every kind of process.

A unit passes all steps of a chain in one process. Units and results cross processes as pickled
bytes of a few KB; frames never do.
"""

import logging
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from curator.errors import CuratorError
from curator.stage import Resources
from curator.tables.parts import leave_pandas_out

logger = logging.getLogger(__name__)

SERVED_BYTES = 3 << 30
"""Memory of a worker that serves one chain after another: one that analyzed 1080p and then copied
clips of it took 2.5 GB, because analysis does not give all of its memory back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a chain.

    Args:
        make: Makes the step, once per worker; the step is called with a unit and returns a result.
        keeps_state: Whether workers hold a model and are worth keeping; else any process serves.
    """

    make: Callable[..., Callable[[Any], Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    resources: Resources
    keeps_state: bool = False


Chain = Sequence[Step]


def pack_chain(steps: Chain) -> bytes:
    """A chain as bytes, for `ChainWorker`."""
    return pickle.dumps([(step.make, step.settings) for step in steps])


class ChainWorker:
    """The steps of one chain, in the process that runs them."""

    def __init__(self, packed: bytes) -> None:
        self._steps: list[Callable[[Any], Any]] = []
        self._error: CuratorError | None = None
        leave_pandas_out()
        try:
            self._steps = [make(**settings) for make, settings in pickle.loads(packed)]
        except CuratorError as error:
            # Ray reports that an actor could not be made, and not why.
            self._error = error
        except Exception as error:  # noqa: BLE001 - a process that ends here is started again
            self._error = _unforeseen(error)

    def run(self, unit: bytes) -> bytes:
        """Runs one unit; an error of this package is the result."""
        if self._error is not None:
            return pickle.dumps(self._error)
        result = pickle.loads(unit)
        try:
            for step in self._steps:
                result = step(result)
        except CuratorError as error:
            # Ray would raise its own error, with this text in a page of traceback.
            result = error
        except Exception as error:  # noqa: BLE001 - a process that ends here is started again
            result = _unforeseen(error)
        return pickle.dumps(result)


def _unforeseen(error: Exception) -> CuratorError:
    """Logs an error that nothing foresaw; trying again would meet it again."""
    logger.exception("a worker failed")
    return CuratorError(
        f"{type(error).__name__} in a worker: {error}; its traceback is in the log of this process"
    )


_kept: dict[bytes, ChainWorker] = {}


def call_chain(packed: bytes, unit: bytes) -> bytes:
    """Runs a unit through a chain; the process keeps the chain until it gets another one."""
    if packed not in _kept:
        _kept.clear()
        _kept[packed] = ChainWorker(packed)
    return _kept[packed].run(unit)
