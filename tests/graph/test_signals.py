"""A signal that comes while Ray starts ends the run as one before or after it does."""

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from curator.graph.signals import HELD, signals_held


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


@pytest.mark.parametrize("number", HELD)
def test_a_signal_waits_for_the_end_of_the_block(number: signal.Signals) -> None:
    done = []
    with pytest.raises(Ended), signals_held():
        os.kill(os.getpid(), number)
        done.append(number)
    assert done == [number]
    assert signal.getsignal(number) is end


def test_a_handler_that_the_block_put_there_is_not_the_last_word() -> None:
    def leave(number: int, frame: object) -> None:
        sys.exit(number)

    with pytest.raises(Ended), signals_held():
        signal.signal(signal.SIGTERM, leave)
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is end


def test_a_signal_that_the_block_swallowed_is_raised_all_the_same() -> None:
    with pytest.raises(Ended), signals_held():
        signal.signal(signal.SIGTERM, lambda *_: None)
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_block_that_leaves_by_itself_leaves() -> None:
    with pytest.raises(SystemExit), signals_held():
        sys.exit(3)
