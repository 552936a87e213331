"""A signal that comes while Ray starts ends the run as one before or after it does."""

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from curator.executor.termination import HELD, signals_held


class Ended(KeyboardInterrupt):
    """What a handler of the command raises."""


def end(number: int, frame: object) -> None:
    raise Ended(number)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.signal(number, end) for number in HELD}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def held(*numbers: signal.Signals, handler: object = None) -> list[str]:
    """Sends signals to this process inside the block; says whether it came to its end."""
    done = []
    try:
        with signals_held():
            if handler is not None:
                signal.signal(signal.SIGTERM, handler)
            for number in numbers:
                os.kill(os.getpid(), number)
            done.append("block")
    except Ended:
        done.append("ended")
    return done


def leave(number: int, frame: object) -> None:
    sys.exit(number)


@pytest.mark.parametrize("number", HELD)
def test_a_signal_waits_for_the_end_of_the_block(number: signal.Signals) -> None:
    assert held(number) == ["block", "ended"]
    assert signal.getsignal(number) is end


def test_a_handler_that_the_block_put_there_is_not_the_last_word() -> None:
    assert held(signal.SIGTERM, handler=leave) == ["ended"]
    assert signal.getsignal(signal.SIGTERM) is end


def test_a_signal_that_the_block_swallowed_is_raised_all_the_same() -> None:
    assert held(signal.SIGTERM, handler=lambda *_: None) == ["block", "ended"]


def test_without_a_signal_nothing_is_raised() -> None:
    assert held() == ["block"]


def test_a_block_that_leaves_by_itself_leaves() -> None:
    with pytest.raises(SystemExit), signals_held():
        sys.exit(3)
