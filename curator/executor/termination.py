"""Ends a long command cleanly on Ctrl-C, or on SIGTERM from a scheduler."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

HELD = (signal.SIGINT, signal.SIGTERM)

_arrived: list[signal.Signals] = []
"""The SIGTERM that interrupted the last `ends_when_asked`; empty if none did."""


@contextmanager
def ends_when_asked() -> Iterator[None]:
    """Makes SIGTERM interrupt like Ctrl-C; the outermost context, as it restores handlers."""
    _arrived.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in HELD}
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def ends_in_peace() -> Iterator[None]:
    """Ignores further interrupts after the first one, while workers end.

    Use it as the innermost context. A second Ctrl-C would leave processes behind, and print a
    traceback of Ray.
    """
    try:
        yield
    except KeyboardInterrupt:
        if threading.current_thread() is threading.main_thread():
            for number in HELD:
                signal.signal(number, signal.SIG_IGN)
            print("curate: stopping ...", file=sys.stderr, flush=True)
        raise


def was_terminated() -> bool:
    """Returns whether SIGTERM, not Ctrl-C, interrupted the last `ends_when_asked`.

    A separate class of exception would not work: if a signal interrupts Ray's native code while it
    waits, the code replaces the handler's exception by a new `KeyboardInterrupt`.
    """
    return bool(_arrived)


def _terminate(number: int, frame: object) -> None:
    _arrived.append(signal.Signals(number))
    raise KeyboardInterrupt


def end_process(code: int) -> NoReturn:
    """Runs the registered exit functions, and ends the process with a code.

    It does not tear down the interpreter and libraries as `sys.exit` does. On a busy machine, 2 of
    40 commands aborted during teardown, after all output. The cause is unknown, perhaps threads of
    libraries. An interrupt during teardown also prints a traceback of some library.
    """
    for number in HELD:
        signal.signal(number, signal.SIG_IGN)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


@contextmanager
def signals_held() -> Iterator[None]:
    """Delivers SIGINT and SIGTERM to their handlers after the block instead of during it.

    When Ray starts, it sets its own SIGTERM handler, which exits with 15, and some of its native
    code drops exceptions of handlers. Therefore signals are read from the descriptor to which
    Python writes them. After the block, the handlers are restored and called. If a signal made the
    block raise `SystemExit`, the handler runs first and may raise its own exception.
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
            # Signals that are ignored, or not handled by Python, stay unchanged.
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
        arrived = b""
        with suppress(BlockingIOError):
            arrived = os.read(taken, 4096)
        os.close(taken)
        os.close(given)
    for received in arrived:
        handler = handlers[signal.Signals(received)] if received in HELD else None
        if callable(handler):
            handler(received, None)
    if leaves is not None:
        raise leaves
