"""RequestLimit: how many requests run, how long others wait, and how it recovers."""

import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from curator.stages.caption.captioners.captioner_contract import RequestLimit, backoff_s


def test_one_burst_of_refusals_finds_how_many_the_server_takes() -> None:
    """Pins that slots come back with answers, and not above the most."""
    limit = RequestLimit(32)
    assert all(limit.acquire() for _ in range(32))
    for _ in range(24):
        limit.was_refused(1.0)
        limit.release()
    assert limit.limit == 8
    assert not limit.acquire(time.monotonic())
    limits = []
    for _ in range(1000):
        limit.went_well()
        limits.append(int(limit.limit))
    assert (limits[6], limits[9], limits[-1]) == (8, 9, 32)


def test_each_freed_slot_wakes_one_that_waits() -> None:
    limit = RequestLimit(2)

    def request(_: int) -> None:
        assert limit.acquire()
        time.sleep(0.001)
        limit.release()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(request, range(200), timeout=30))


def test_nobody_begins_while_a_server_takes_nothing() -> None:
    limit = RequestLimit(4)
    limit.acquire()
    limit.was_refused(0.2)
    limit.release()
    assert not limit.acquire(time.monotonic() + 0.05)
    began = time.monotonic()
    assert limit.acquire()
    assert time.monotonic() - began >= 0.1


@pytest.mark.parametrize("wait", ["acquire", "sleep"])
def test_closing_ends_all_waits(wait: str) -> None:
    limit = RequestLimit(1)
    limit.acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(limit.acquire) if wait == "acquire" else pool.submit(limit.sleep, 60)
        threading.Timer(0.05, limit.close).start()
        with pytest.raises(CancelledError):
            waiting.result(10)


@pytest.mark.parametrize(
    ("n_tries", "asked_s", "least", "most"),
    [(1, None, 0.5, 1), (4, None, 4, 8), (40, None, 30, 60), (1, 7.0, 7, 7.7), (1, 30.0, 30, 31)],
)
def test_waits_grow_and_are_never_less_than_the_server_asks(
    n_tries: int, asked_s: float | None, least: float, most: float
) -> None:
    waits = [backoff_s(n_tries, asked_s) for _ in range(200)]
    assert least <= min(waits) < max(waits) <= most
