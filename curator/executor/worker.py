"""Chains of steps, units that they get, and the one loop that runs them in every kind of process.

A unit passes all steps of a chain in one process. Units and results cross processes as pickled
bytes of a few KB; frames never do.
"""

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from curator.errors import CuratorError
from curator.executor.cpu_accounting import no_collection
from curator.stage import Resources, Stage
from curator.tables.parts import leave_pandas_out

ItemT = TypeVar("ItemT")

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
"""A source whose worker died this often is given up."""
MAX_DEATHS = 8
"""Deaths over one unit after which a run gives up: more than a worker that counts them allows."""
MAX_DEATHS_IN_A_ROW = 16
"""Deaths without a result between them after which a run gives up; and four for each worker."""
BATCH_PARTS = 8
"""Batches that one becomes whose worker died: single items would wait for each other."""
SERVED_BYTES = 3 << 30
"""Memory of a worker that serves one chain after another: one that analyzed 1080p and then copied
clips of it took 2.5 GB, because analysis does not give all of its memory back."""


def is_crash_looping(n_deaths: int, n_workers: int) -> bool:
    """Returns whether so many deaths without a result between them end a run."""
    return n_deaths > MAX_DEATHS_IN_A_ROW + 4 * max(1, n_workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The end of a worker that had a unit.

    Attributes:
        node: Its node; None where there is only one.
        at_s: When it was noticed, by the monotonic clock.
    """

    node: str | None = None
    at_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class UnitAttempts:
    """A unit, and the workers that died over it."""

    unit: Any
    deaths: list[Death] = field(default_factory=list)

    def after_death(self, death: Death) -> "list[UnitAttempts]":
        """What is to be done instead: smaller units, or the same one once more."""
        parts = split(self.unit)
        deaths = [death] if len(parts) > 1 else [*self.deaths, death]
        return [UnitAttempts(unit=part, deaths=list(deaths)) for part in parts]

    @property
    def is_given_up(self) -> bool:
        """Whether a worker will fail it without touching it."""
        return len(self.deaths) >= MAX_ATTEMPTS

    def packed(self) -> bytes:
        """Returns the unit and the number of deaths, for `call_chain`."""
        return pickle.dumps((self.unit, len(self.deaths)))


@runtime_checkable
class Divisible(Protocol):
    """An item that holds several, any of which may have killed a worker."""

    def divided(self) -> Sequence[Any]:
        """The same as smaller items."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Generic[ItemT]):
    """Items that a stage gets at once.

    Attributes:
        items: At least one.
        name: Eight hexadecimal digits by chance; what a batch is divided into has its name.
    """

    items: tuple[ItemT, ...]
    name: str

    def divided(self) -> "list[Batch[ItemT]]":
        """Smaller batches, because a worker died on one of the items."""
        n_each = -(-len(self.items) // BATCH_PARTS)
        starts = range(0, len(self.items), n_each)
        return [replace(self, items=self.items[start : start + n_each]) for start in starts]


def split(unit: Any) -> list[Any]:  # noqa: ANN401
    """Divides a unit, so that an item that kills its worker takes no others down.

    Returns:
        Units of one item each, or of one part of the only item; the unit alone if it has no parts.
    """
    if isinstance(unit, Divisible):
        return list(unit.divided())
    if isinstance(unit, list | tuple) and unit:
        if len(unit) > 1:
            return [[item] for item in unit]
        if isinstance(unit[0], Divisible):
            return [[item] for item in unit[0].divided()]
    return [unit]


def pack(
    items: Iterable[ItemT],
    *,
    max_items: int,
    weight: Callable[[ItemT], float] = lambda _: 0.0,
    max_weight: float = 0.0,
) -> Iterator[list[ItemT]]:
    """Groups neighbours into units up to `max_items` and `max_weight`; one item may be heavier."""
    group: list[ItemT] = []
    total = 0.0
    for item in items:
        heavy = weight(item)
        if group and (len(group) >= max_items or total + heavy > max_weight):
            yield group
            group, total = [], 0.0
        group.append(item)
        total += heavy
    if group:
        yield group


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a chain.

    A step may have `prepare()`, which loads something before the first unit, and
    `repeat(unit, n_deaths)`, which runs a unit over which workers died, or fails it.

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
    def stage(self) -> Stage[Any, Any, Any] | None:
        """The stage that it runs, if it runs one."""
        stage = self.settings.get("stage")
        return stage if isinstance(stage, Stage) else None


Chain = Sequence[Step]


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
    return first.name or (first.stage.name if first.stage is not None else first.make.__name__)


def pack_chain(steps: Chain) -> bytes:
    """A chain as bytes, for `call_chain`."""
    return pickle.dumps([(step.make, step.settings) for step in steps])


_kept: dict[bytes, list[Any]] = {}
"""The steps of the last chain."""


def load_chain(packed: bytes) -> bytes:
    """Makes the steps of a chain, and loads their models; returns None or an error, pickled.

    It comes before the first unit: a process that dies of it does not die of a unit.
    """

    def load() -> None:
        _loaded(packed)

    return _answered(load)


def call_chain(packed: bytes, unit: bytes) -> bytes:
    """Runs `UnitAttempts.packed` through a chain; the process keeps it until it gets another one.

    An error is the result: Ray would raise its own, with a page of traceback.
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
            f"{type(error).__name__} in a worker: {error}; its traceback is in the log of this "
            "process"
        )
    return pickle.dumps(result)


class UnitThread:
    """A thread of this process that runs a chain, for work that mostly waits.

    It takes units one after the other, with the methods of a `Fleet`.
    """

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
        self._open.add(self._thread.submit(lambda: _called(self._made, unit)))

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
            if step.stage is not None:
                step.stage.close()
        self._thread.shutdown(cancel_futures=True)

    @cached_property
    def _made(self) -> list[Callable[[Any], Any]]:
        return [step.make(**step.settings) for step in self._steps]
