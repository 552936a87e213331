"""Holds back termination signals until uninterruptible work is done."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

HELD = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Gives SIGINT and SIGTERM to their handlers after the block, whatever the block does to them.

    During its start Ray sets its own SIGTERM handler, which exits with 15, and some of its native
    code drops exceptions of handlers. Signals are therefore read from the descriptor that Python
    writes each of them to. Handlers are restored; a `SystemExit` that the block raised because of a
    signal is dropped in favour of the handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in HELD}
    taken, given = os.pipe()
    os.set_blocking(taken, False)
    os.set_blocking(given, False)
    before = signal.set_wakeup_fd(given, warn_on_full_buffer=False)
    leaves: SystemExit | None = None
    try:
        for number, handler in handlers.items():
            # Signals that are ignored, or not handled by Python, stay so.
            if callable(handler):
                signal.signal(number, lambda _number, _frame: None)
        yield
    except SystemExit as error:
        leaves = error
    finally:
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        arrived = _arrived(taken)
        os.close(taken)
        os.close(given)
    for number in arrived:
        handler = handlers.get(number)
        if callable(handler):
            handler(number, None)
    if leaves is not None:
        raise leaves


def _arrived(descriptor: int) -> list[signal.Signals]:
    """Returns the signals of interest that arrived, in order."""
    try:
        numbers = os.read(descriptor, 4096)
    except BlockingIOError:
        return []
    return [signal.Signals(number) for number in numbers if number in HELD]
