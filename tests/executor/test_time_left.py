"""The time that is left: by a plan, by the last run, by the defaults."""

import pytest

from curator.executor.progress import Expected

HALVES = Expected(seconds={"analyze": 60.0, "cut": 40.0})
PLANNED = Expected(seconds={"list": 1.0, "analyze": 600.0, "cut": 400.0}, is_planned=True)


def test_without_a_plan_nothing_is_known_before_the_first_tenth() -> None:
    assert HALVES.left({}, "scan", 5.0, 0.9, 5.0) is None
    assert HALVES.left({}, "analyze", 5.0, None, 5.0) is None
    assert HALVES.left({}, "analyze", 5.0, 0.09, 5.0) is None


def test_stages_to_come_go_by_the_pace_of_those_that_worked() -> None:
    left = HALVES.left({"scan": 3.0}, "analyze", 30.0, 0.25, 30.0)
    assert left == {"analyze": 90.0, "cut": 80.0}
    assert HALVES.left({"analyze": 120.0}, "cut", 40.0, 0.5, 40.0) == {"cut": 40.0}
    assert HALVES.left({"analyze": 120.0}, "select", 1.0, None, 1.0) == {"cut": 80.0}


def test_a_unit_that_works_for_long_does_not_slow_the_rest() -> None:
    assert HALVES.left({}, "analyze", 45.0, 0.25, 30.0) == {"analyze": 75.0, "cut": 80.0}


def test_generations_to_come_take_as_long_as_this_one() -> None:
    left = Expected(seconds={"analyze": 120.0, "cut": 80.0}).left(
        {}, "analyze", 30.0, 0.5, 30.0, (1, 2)
    )
    assert left == {"analyze": 30.0 + 60.0, "cut": 40.0 + 40.0}


def test_a_plan_speaks_from_the_beginning_and_gives_way_to_the_run() -> None:
    assert PLANNED.left({}, "analyze", 0.0, None, 0.0) == {"analyze": 600.0, "cut": 400.0}
    left = PLANNED.left({}, "analyze", 600.0, 0.5, 600.0)
    assert left is not None
    assert left["analyze"] == pytest.approx(500, abs=1)
    assert left["cut"] == pytest.approx(400 * 1120 / 620)
