"""Groups items into units of work by number and weight."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

ItemT = TypeVar("ItemT")


def pack(
    items: Iterable[ItemT],
    *,
    max_items: int,
    weight: Callable[[ItemT], float] = lambda _: 0.0,
    max_weight: float = 0.0,
) -> Iterator[list[ItemT]]:
    """Groups neighbours into units of at most `max_items` and `max_weight`, or one heavier item."""
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
