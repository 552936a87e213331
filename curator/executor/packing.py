"""Groups items into units of work."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")


def pack(
    items: Iterable[_Item],
    *,
    max_items: int,
    weight: Callable[[_Item], float] = lambda _: 0.0,
    max_weight: float = 0.0,
) -> Iterator[list[_Item]]:
    """Groups neighbours up to `max_items` and `max_weight`; a single item may be heavier."""
    group: list[_Item] = []
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
