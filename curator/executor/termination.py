"""Ends a long command on Ctrl-C or on a scheduler's request, at a moment when it may end."""

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
"""The SIGTERM that ended the last `ends_when_asked`, if one did."""


@contextmanager
def ends_when_asked() -> Iterator[None]:
    """Lets SIGTERM interrupt like Ctrl-C; outermost, because it restores the signal handlers."""
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
    """Shields the end of workers after an interrupt from further interrupts; innermost.

    A second Ctrl-C in the middle would leave processes behind, and a traceback of Ray's.
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

    A class of exception of its own could not tell: Ray's native code, interrupted while it waits,
    raises a new `KeyboardInterrupt` in place of what the handler raised.
    """
    return bool(_arrived)


def _terminate(number: int, frame: object) -> None:
    _arrived.append(signal.Signals(number))
    raise KeyboardInterrupt


def end_process(code: int) -> NoReturn:
    """Ends the process with a code after running the registered exit functions.

    `sys.exit` would then tear down the interpreter and all libraries. On a busy machine 2 of 40
    commands aborted there, after all output; the cause is unknown, perhaps remaining threads of
    libraries. An interrupt in the middle prints a traceback of some library.
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
