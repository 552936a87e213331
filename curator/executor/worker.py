"""Chains of steps, and the one loop that runs them in every kind of process.

A unit passes all steps of a chain in one process. Units and results cross processes as pickled
bytes of a few KB; frames never do.
"""

import logging
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from curator.errors import CuratorError
from curator.executor.garbage import no_collection
from curator.executor.work import RepeatedUnit
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
        name: What people see as the name of the work; None for that of the stage or of `make`.
    """

    make: Callable[..., Callable[[Any], Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    resources: Resources
    keeps_state: bool = False
    name: str | None = None

    @property
    def is_sandboxed(self) -> bool:
        """Whether it runs a stage in a sandbox."""
        stage = self.settings.get("stage")
        return isinstance(stage, Stage) and stage.sandboxed


Chain = Sequence[Step]


def pack_chain(steps: Chain) -> bytes:
    """A chain as bytes, for `call_chain`."""
    return pickle.dumps([(step.make, step.settings) for step in steps])


def largest(steps: Chain) -> Resources:
    """Returns the resources of a chain's worker: the most of any step."""
    return Resources(
        cpus=max(step.resources.cpus for step in steps),
        memory_bytes=max(step.resources.memory_bytes for step in steps),
        gpus=max(step.resources.gpus for step in steps),
    )


def stage_name(steps: Chain) -> str:
    """Returns the name of the stage that a chain begins with."""
    first = steps[0]
    stage = first.settings.get("stage")
    return first.name or (stage.name if isinstance(stage, Stage) else first.make.__name__)


@runtime_checkable
class Prepares(Protocol):
    """A step that loads something before its first unit."""

    def prepare(self) -> None:
        """Loads it."""
        ...


@runtime_checkable
class Repeats(Protocol):
    """A step that minds how many workers died over a unit."""

    def repeat(self, unit: Any, n_deaths: int) -> Any:  # noqa: ANN401
        """Runs a unit once more, or fails it."""
        ...


_kept: dict[bytes, list[Callable[[Any], Any]]] = {}
"""The steps of the last chain."""


def load_chain(packed: bytes) -> bytes:
    """Makes the steps of a chain, and loads their models; returns None or an error, pickled.

    It comes before the first unit: a process that dies of it does not die of a unit.
    """

    def load() -> None:
        _loaded(packed)

    return _answered(load)


def call_chain(packed: bytes, unit: bytes) -> bytes:
    """Runs a unit through a chain; the process keeps the chain until it gets another one.

    An error is the result: Ray would raise its own, with a page of traceback.
    """
    return _answered(lambda: _called(_loaded(packed), unit))


def _loaded(packed: bytes) -> list[Callable[[Any], Any]]:
    if packed not in _kept:
        _kept.clear()
        leave_pandas_out()
        with no_collection():
            made = [make(**settings) for make, settings in pickle.loads(packed)]
            for step in made:
                if isinstance(step, Prepares):
                    step.prepare()
        _kept[packed] = made
    return _kept[packed]


def _called(chain: Sequence[Callable[[Any], Any]], unit: bytes) -> Any:  # noqa: ANN401
    result, n_deaths = pickle.loads(unit), 0
    if isinstance(result, RepeatedUnit):
        result, n_deaths = result.unit, result.n_deaths
    first, *others = chain
    if n_deaths and isinstance(first, Repeats):
        result = first.repeat(result, n_deaths)
    else:
        result = first(result)
    for step in others:
        result = step(result)
    return result


def _answered(work: Callable[[], Any]) -> bytes:
    """Does some work; its error is the result."""
    result: Any
    try:
        result = work()
    except CuratorError as error:
        result = error
    except Exception as error:
        logger.exception("a worker failed")
        result = CuratorError(
            f"{type(error).__name__} in a worker: {error}; its traceback is in the log of this "
            "process"
        )
    return pickle.dumps(result)
