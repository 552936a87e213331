"""What custom stages leave in snapshots, after a removal."""

import pytest

from curator.tables.named_ids import value_without_ids
from curator.tables.removal_records import removal_hash

GONE, STAYS = "0123456789abcdef01234567", "76543210fedcba9876543210"


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        ({GONE: 3, STAYS: 2}, {STAYS: 2}),
        ({"best": [GONE, STAYS], "n": 2}, {"best": [STAYS], "n": 2}),
        (
            {"by_group": {"a": {"first": GONE, "score": 0.5}}},
            {"by_group": {"a": {"first": None, "score": 0.5}}},
        ),
        ([[GONE], [STAYS, 1, None, True]], [[], [STAYS, 1, None, True]]),
        ("a text", "a text"),
        (f"as {GONE.upper()}, not {STAYS}", f"as (removed), not {STAYS}"),
        ({f"of {GONE}": [f"{GONE}.mp4"]}, {"of (removed)": ["(removed).mp4"]}),
    ],
)
def test_ids_of_removed_footage_go_wherever_they_are(left: object, expected: object) -> None:
    assert value_without_ids(left, {removal_hash(GONE)}) == expected
