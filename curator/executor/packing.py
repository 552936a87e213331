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
    """Groups neighbours: at most so many, and at most so heavy unless one alone is heavier.

    Args:
        items: In the order in which they stay.
        max_items: Most items of a group, at least 1.
        weight: Weight of an item.
        max_weight: Most weight of a group.
    """
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
