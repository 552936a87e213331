"""Units of work hold no more than they may, and lose nothing."""

from curator.executor.worker import pack


def test_groups_hold_neighbours_in_order_up_to_their_number() -> None:
    assert list(pack(range(7), max_items=3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(pack([], max_items=3)) == []


def test_groups_hold_no_more_than_their_weight_unless_one_item_does() -> None:
    weights = [5, 5, 1, 20, 1, 9, 1]
    groups = list(pack(weights, max_items=10, weight=float, max_weight=10))
    assert groups == [[5, 5], [1], [20], [1, 9], [1]]
