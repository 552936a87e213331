"""RequestSlots: how many requests are under way, who is next, and how long others wait."""

import asyncio
import time

import pytest

from curator.stages.caption.captioners.request_slots import RequestSlots, backoff_s


async def taken(turns: RequestSlots, n: int) -> None:
    for _ in range(n):
        await turns.take(is_again=False)


def test_one_burst_of_refusals_finds_how_many_the_server_takes() -> None:
    async def burst() -> float:
        turns = RequestSlots(32)
        await taken(turns, 32)
        for _ in range(24):
            turns.was_turned_away(1.0)
            turns.give_back()
        return turns.limit

    assert asyncio.run(burst()) == 8


def test_turns_come_back_with_answers_and_not_above_the_most() -> None:
    async def answered() -> list[float]:
        turns = RequestSlots(10)
        turns.limit = 8.0
        limits = []
        for _ in range(60):
            turns.went_well()
            limits.append(turns.limit)
        return limits

    limits = asyncio.run(answered())
    assert int(limits[6]) == 8
    assert int(limits[9]) == 9
    assert limits[-1] == 10


def test_a_request_that_was_tried_goes_before_those_that_were_not() -> None:
    async def order() -> list[str]:
        turns, came = RequestSlots(1), []
        await turns.take(is_again=False)

        async def wait(name: str, is_again: bool) -> None:
            await turns.take(is_again=is_again)
            came.append(name)
            turns.give_back()

        waiting = [asyncio.create_task(wait(name, name == "again")) for name in ("a", "b", "again")]
        await asyncio.sleep(0)
        turns.give_back()
        await asyncio.gather(*waiting)
        return came

    assert asyncio.run(order()) == ["again", "a", "b"]


def test_nobody_begins_while_a_server_takes_nothing() -> None:
    async def waited_s() -> float:
        turns = RequestSlots(4)
        await turns.take(is_again=False)
        turns.was_turned_away(0.2)
        turns.give_back()
        began = time.monotonic()
        await turns.take(is_again=False)
        return time.monotonic() - began

    assert asyncio.run(waited_s()) >= 0.19


def test_a_turn_that_is_cancelled_is_not_lost() -> None:
    async def left() -> tuple[int, int]:
        turns = RequestSlots(1)
        await turns.take(is_again=False)
        # One that waits, and one whose turn has come when it is cancelled.
        waiting = [asyncio.create_task(turns.take(is_again=False)) for _ in range(2)]
        await asyncio.sleep(0)
        turns.give_back()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return turns.n_taken, len(turns._first)

    assert asyncio.run(left()) == (0, 0)


@pytest.mark.parametrize(
    ("n_tries", "asked_s", "least", "most"),
    [(1, None, 0.5, 1), (4, None, 4, 8), (40, None, 30, 60), (1, 7.0, 7, 7.7), (1, 30.0, 30, 31)],
)
def test_waits_grow_and_are_never_less_than_the_server_asks(
    n_tries: int, asked_s: float | None, least: float, most: float
) -> None:
    waits = [backoff_s(n_tries, asked_s) for _ in range(200)]
    assert least <= min(waits) < max(waits) <= most
