"""Values come in order from another thread, errors where they belong, and closing waits."""

import threading
import time
from collections.abc import Callable
from itertools import count

import pytest

from curator.media.prefetch import ahead


def test_values_come_in_order_from_one_other_thread() -> None:
    threads = set()
    numbers = iter(range(50))

    def make() -> int | None:
        threads.add(threading.get_ident())
        return next(numbers, None)

    assert list(ahead(make, n=3, name="x")) == list(range(50))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_so_many_are_made_before_they_are_asked_for() -> None:
    made: list[int] = []
    numbers = count()

    def make() -> int:
        made.append(next(numbers))
        return made[-1]

    values = ahead(make, n=2, name="x")
    assert next(values) == 0
    wait_for(lambda: len(made) == 3)
    time.sleep(0.05)
    assert made == [0, 1, 2]
    values.close()


def test_an_error_is_raised_where_its_value_would_have_come() -> None:
    numbers = count()

    def make() -> int:
        number = next(numbers)
        if number == 2:
            raise ValueError("two")
        return number

    values = ahead(make, n=4, name="x")
    assert [next(values), next(values)] == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(values)


def test_closing_waits_for_the_call_that_is_under_way() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    numbers = count()

    def make() -> int:
        number = next(numbers)
        if number:
            begun.set()
            go_on.wait(10)
            ended.set()
        return number

    values = ahead(make, n=1, name="x")
    next(values)
    assert begun.wait(10)
    threading.Timer(0.1, go_on.set).start()
    values.close()
    assert ended.is_set()
    assert next(numbers) == 2


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
