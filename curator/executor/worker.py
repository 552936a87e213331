"""Chains of steps, their units, and the loop that runs a chain in every kind of process.

A unit passes through all steps of a chain in one process. Units and results cross between processes
as pickled bytes of a few KB; frames never do.
"""

import logging
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from curator.errors import CuratorError
from curator.executor.cpu_accounting import no_collection
from curator.stage import Resources, Stage
from curator.tables.parts import leave_pandas_out

ItemT = TypeVar("ItemT")

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
"""A source fails after its worker has died this often."""
MAX_DEATHS = 8
"""Deaths over one unit that end the run. `UnitWorker` fails the items of a unit earlier."""
MAX_DEATHS_IN_A_ROW = 16
"""Deaths without a result in between that end the run; 4 more are allowed for each worker."""
BATCH_PARTS = 8
"""Most parts of a batch after its worker died. Batches of one item would wait for each other."""
SERVED_BYTES = 3 << 30
"""Memory of a worker that serves several chains in turn. A worker that analyzed 1080p and then
copied clips used 2.5 GB, because analysis does not release all of its memory."""


def is_crash_looping(n_deaths: int, n_workers: int) -> bool:
    """Returns whether `n_deaths` without a result in between are enough to end a run."""
    return n_deaths > MAX_DEATHS_IN_A_ROW + 4 * max(1, n_workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The end of a worker that had a unit.

    Attributes:
        node: Id of the worker's node; None if unknown.
        at_s: When the driver noticed the death, by the monotonic clock.
    """

    node: str | None = None
    at_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class UnitAttempts:
    """A unit, and the deaths of workers that worked on it; `number` tells units apart."""

    unit: Any
    number: int = field(default_factory=count(1).__next__)
    deaths: list[Death] = field(default_factory=list)

    def after_death(self, death: Death) -> "list[UnitAttempts]":
        """Returns the units to do instead: parts of this unit, or this unit once more."""
        parts = split(self.unit)
        deaths = [death] if len(parts) > 1 else [*self.deaths, death]
        return [UnitAttempts(unit=part, deaths=list(deaths)) for part in parts]

    @property
    def is_given_up(self) -> bool:
        """Whether the next worker fails the unit without processing it."""
        return len(self.deaths) >= MAX_ATTEMPTS

    def packed(self) -> bytes:
        """Returns the unit and the number of deaths, for `call_chain`."""
        return pickle.dumps((self.unit, len(self.deaths)))


@runtime_checkable
class Divisible(Protocol):
    """An item that holds several items, any of which may have killed a worker."""

    def divided(self) -> Sequence[Any]:
        """Returns smaller items with the same content."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Generic[ItemT]):
    """Items that a stage processes together.

    Attributes:
        items: At least one.
        name: Eight random hexadecimal digits. Parts of a divided batch keep its name.
    """

    items: tuple[ItemT, ...]
    name: str

    def divided(self) -> "list[Batch[ItemT]]":
        """Returns smaller batches, after a worker died on one of the items."""
        n_each = -(-len(self.items) // BATCH_PARTS)
        starts = range(0, len(self.items), n_each)
        return [replace(self, items=self.items[start : start + n_each]) for start in starts]


def split(unit: Any) -> list[Any]:  # noqa: ANN401
    """Divides a unit, so that an item that kills its worker affects no other item.

    Returns:
        Units of one item each; for a single item, units of one part of the item; the unit itself
        if it has no parts.
    """
    if isinstance(unit, Divisible):
        return list(unit.divided())
    if isinstance(unit, list | tuple) and unit:
        if len(unit) > 1:
            return [[item] for item in unit]
        if isinstance(unit[0], Divisible):
            return [[item] for item in unit[0].divided()]
    return [unit]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a chain.

    A step may have two methods. `prepare()` loads models before the first unit.
    `repeat(unit, n_deaths)` runs a unit on which workers died, or fails the unit.

    Args:
        make: Makes the step once per worker: a function from a unit to a result.
        keeps_state: Whether a worker holds state that is worth keeping, such as a model.
        names: Names of the stages that work in the step, or a name for people; empty for the name
            of `stage` or of `make`.
    """

    make: Callable[..., Callable[[Any], Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    resources: Resources
    keeps_state: bool = False
    names: tuple[str, ...] = ()

    @property
    def stage(self) -> Stage[Any, Any, Any] | None:
        """The stage that the step runs; None if the step runs no stage."""
        stage = self.settings.get("stage")
        return stage if isinstance(stage, Stage) else None


Chain = Sequence[Step]


def largest(steps: Chain) -> Resources:
    """Returns the resources of a chain's worker: the maximum over its steps."""
    return Resources(
        cpus=max(step.resources.cpus for step in steps),
        memory_bytes=max(step.resources.memory_bytes for step in steps),
        gpus=max(step.resources.gpus for step in steps),
    )


def stage_names(steps: Chain) -> tuple[str, ...]:
    """Returns the names of the stages of a chain's first step, after which the chain is named."""
    first = steps[0]
    own = first.stage.name if first.stage is not None else first.make.__name__
    return first.names or (own,)


def chain_name(steps: Chain) -> str:
    """Returns the name of a chain: `cut`, or `edges+latents` for stages that share a decode."""
    return "+".join(stage_names(steps))


def pack_chain(steps: Chain) -> bytes:
    """Returns a chain as bytes, for `load_chain` and `call_chain`."""
    return pickle.dumps([(step.make, step.settings) for step in steps])


_kept: dict[bytes, list[Any]] = {}
"""The steps of the last chain, by its packed form."""


def load_chain(packed: bytes) -> bytes:
    """Makes the steps of a chain and loads their models; returns None or an error, pickled.

    The driver calls it before the first unit, so that a death here is not blamed on a unit.
    """

    def load() -> None:
        _loaded(packed)

    return _answered(load)


def call_chain(packed: bytes, unit: bytes) -> bytes:
    """Runs `UnitAttempts.packed` through a chain, which the process keeps until the next chain.

    Returns the result or the error, pickled. An exception would reach the driver as one of Ray's.
    """
    return _answered(lambda: _called(_loaded(packed), *pickle.loads(unit)))


def _loaded(packed: bytes) -> list[Any]:
    if packed not in _kept:
        _kept.clear()
        leave_pandas_out()
        with no_collection():
            made = [make(**settings) for make, settings in pickle.loads(packed)]
            for step in made:
                if hasattr(step, "prepare"):
                    step.prepare()
        _kept[packed] = made
    return _kept[packed]


def _called(chain: Sequence[Any], result: Any, n_deaths: int = 0) -> Any:  # noqa: ANN401
    first, *others = chain
    repeats = n_deaths and hasattr(first, "repeat")
    result = first.repeat(result, n_deaths) if repeats else first(result)
    for step in others:
        result = step(result)
    return result


def _answered(work: Callable[[], Any]) -> bytes:
    result: Any
    try:
        result = work()
    except CuratorError as error:
        result = error
    except Exception as error:
        logger.exception("a worker failed")
        result = CuratorError(
            f"{type(error).__name__} in a worker: {error}; the traceback is in the worker's log"
        )
    return pickle.dumps(result)


class UnitThread:
    """Runs a chain in one thread of this process, for work that mostly waits.

    It has the methods of a `Fleet`, and processes units one after the other.
    """

    def __init__(self, steps: Chain) -> None:
        self._steps = steps
        self._thread = ThreadPoolExecutor(1, "units")
        self._open: set[Future[Any]] = set()

    @property
    def n_open(self) -> int:
        """The number of submitted units without a returned result."""
        return len(self._open)

    def submit(self, unit: Any) -> None:  # noqa: ANN401
        """Takes a unit; does not wait."""
        self._open.add(self._thread.submit(lambda: _called(self._made, unit)))

    def poll(self, timeout: float = 0.0) -> list[Any]:
        """Returns available results; waits `timeout` seconds for the first.

        Raises:
            CuratorError: The first error of a step, unchanged.
        """
        done, self._open = wait(self._open, timeout, FIRST_COMPLETED)
        return [job.result() for job in done]

    def close(self) -> None:
        """Closes the stages, and ends the thread; waiting units are dropped."""
        for step in self._steps:
            if step.stage is not None:
                step.stage.close()
        self._thread.shutdown(cancel_futures=True)

    @cached_property
    def _made(self) -> list[Callable[[Any], Any]]:
        return [step.make(**step.settings) for step in self._steps]
