"""Units that are given to workers, and what becomes of those whose worker died."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

ItemT = TypeVar("ItemT")

MAX_ATTEMPTS = 2
"""A source whose worker died this often is given up."""

MAX_DEATHS = 8
"""Deaths over one unit after which a run gives up: more than a worker that counts them allows."""


MAX_DEATHS_IN_A_ROW = 16
"""Deaths without a result between them after which a run gives up; and four for each worker."""


def is_crash_looping(n_deaths: int, n_workers: int) -> bool:
    """Returns whether so many deaths without a result between them end a run."""
    return n_deaths > MAX_DEATHS_IN_A_ROW + 4 * max(1, n_workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The end of a worker that had a unit.

    Attributes:
        node: Its node; None where there is only one.
        at_s: When it was noticed, by the monotonic clock.
        message: What is known of it.
    """

    node: str | None = None
    at_s: float = 0.0
    message: str = "the process died"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedUnit:
    """A unit over which workers died, as the next one gets it."""

    unit: Any
    n_deaths: int


@runtime_checkable
class Divisible(Protocol):
    """An item that holds several, any of which may have killed a worker."""

    def divided(self) -> Sequence[Any]:
        """The same as smaller items."""
        ...


BATCH_PARTS = 8
"""Batches that one becomes whose worker died: single items would wait for each other."""


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
    if not isinstance(unit, list | tuple):
        return [unit]
    if len(unit) > 1:
        return [[item] for item in unit]
    if unit and isinstance(unit[0], Divisible):
        return [[item] for item in unit[0].divided()]
    return [unit]
