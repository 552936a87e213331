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
from curator.executor.garbage import no_collection
from curator.stage import Resources, Stage
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

    @property
    def is_boxed(self) -> bool:
        """Whether it runs a stage in a decoder box."""
        stage = self.settings.get("stage")
        return isinstance(stage, Stage) and stage.boxed


Chain = Sequence[Step]


def pack_chain(steps: Chain) -> bytes:
    """A chain as bytes, for `call_chain`."""
    return pickle.dumps([(step.make, step.settings) for step in steps])


_kept: dict[bytes, list[Callable[[Any], Any]]] = {}
"""The steps of the last chain."""


def call_chain(packed: bytes, unit: bytes) -> bytes:
    """Runs a unit through a chain; the process keeps the chain until it gets another one.

    An error is the result: Ray would raise its own, with a page of traceback, and a process that
    ended would be started again and meet it again.
    """
    result: Any
    try:
        if packed not in _kept:
            _kept.clear()
            leave_pandas_out()
            with no_collection():
                _kept[packed] = [make(**settings) for make, settings in pickle.loads(packed)]
        result = pickle.loads(unit)
        for step in _kept[packed]:
            result = step(result)
    except CuratorError as error:
        result = error
    except Exception as error:
        logger.exception("a worker failed")
        result = CuratorError(
            f"{type(error).__name__} in a worker: {error}; its traceback is in the log of this "
            "process"
        )
    return pickle.dumps(result)
