"""Values come in order from another thread, errors where they belong, and closing waits."""

import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from curator.media import prefetch
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


@pytest.mark.parametrize(
    ("limit", "n_made"), [(None, [4, 5, 6, 7, 8, 9]), (lambda size: 10 // size, [4, 5, 5, 5, 6, 9])]
)
def test_so_many_are_made_before_they_are_asked_for(
    limit: Callable[[int], int] | None, n_made: list[int]
) -> None:
    """Pins that `limit` counts from each value on, and that one is always made ahead."""
    made: list[int] = []
    sizes = iter([1, 1, 99, 99, 99, 1, 1, 1, 1, 1])

    def make() -> int:
        made.append(next(sizes))
        return made[-1]

    values = ahead(make, n=3, name="x", limit=limit)
    for n_wanted in n_made:
        next(values)
        wait_for(lambda n_wanted=n_wanted: len(made) == n_wanted)
        time.sleep(0.02)
        assert len(made) == n_wanted
    values.close()


def test_an_error_is_raised_where_its_value_would_have_come() -> None:
    numbers = iter([1, 1, 0])
    values = ahead(lambda: 1 // next(numbers), n=4, name="x")
    assert [next(values), next(values)] == [1, 1]
    with pytest.raises(ZeroDivisionError):
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


def test_a_call_that_does_not_return_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that neither a value nor closing waits for it, once the check says so."""
    monkeypatch.setattr(prefetch, "CHECK_S", 0.01)
    go_on = threading.Event()
    numbers = count()
    stuck: list[int] = []

    def make() -> int:
        number = next(numbers)
        if number == 2:
            stuck.append(number)
            go_on.wait(60)
        return number

    def check() -> None:
        if stuck:
            raise TimeoutError("stuck")

    for n_taken in (2, 1):
        numbers = count()
        stuck.clear()
        values = ahead(make, n=2, name="x", check=check)
        assert [next(values) for _ in range(n_taken)] == list(range(n_taken))
        wait_for(lambda: bool(stuck))
        end = partial(next, values) if n_taken == 2 else values.close
        begun = time.monotonic()
        with pytest.raises(TimeoutError, match="stuck"):
            end()
        assert time.monotonic() - begun < 20
    go_on.set()


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
