"""Ends a long command cleanly on Ctrl-C, on SIGTERM from a scheduler, or when its terminal closes.

The first signal raises `KeyboardInterrupt` in the main thread. Further signals are ignored, so that
nothing interrupts the release of the lease and the end of workers.
"""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NoReturn

HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

AGAIN_S = 5.0
"""Time after which another signal interrupts again, unless the command is ending already: native
code and callbacks of libraries may drop the exception of a handler."""


@dataclass(slots=True)
class _Interruption:
    """What signals did to the running command.

    Attributes:
        arrived: The first signal; empty if none arrived.
        raised_s: When the last signal interrupted, by a monotonic clock.
        is_active: Whether the handlers are set.
        is_ending: Whether the command ends, so that further signals are ignored.
        n_shields: Running blocks that no signal may interrupt.
        is_pending: Whether a signal arrived in such a block.
    """

    arrived: list[signal.Signals] = field(default_factory=list)
    raised_s: float = 0.0
    is_active: bool = False
    is_ending: bool = False
    n_shields: int = 0
    is_pending: bool = False


_now = _Interruption()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def ends_when_asked() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP interrupt like Ctrl-C, once; the outermost of such contexts counts.

    Signals that are ignored stay ignored, such as SIGHUP under `nohup`.
    """
    global _now
    if not _is_main() or _now.is_active:
        yield
        return
    _now = _Interruption(is_active=True)
    before = {number: signal.getsignal(number) for number in HANDLED_SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        _now.is_active = False


@contextmanager
def ignore_further_interrupts() -> Iterator[None]:
    """Says that the command stops, once it is interrupted; the innermost context."""
    try:
        yield
    except KeyboardInterrupt:
        if _is_main():
            begin_ending()
            print("curate: stopping ...", file=sys.stderr, flush=True)
        raise


def begin_ending() -> None:
    """Ignores signals from now on, while the command releases and ends what it holds."""
    if _is_main():
        _now.is_ending = True


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delays interrupts until the end of a short block, which releases or starts something."""
    if not _is_main() or not _now.is_active:
        yield
        return
    # While `n_shields` is not 0, the handler raises nothing.
    _now.n_shields += 1
    try:
        yield
    finally:
        _now.n_shields -= 1
        if _now.is_pending and not _now.n_shields and not _now.is_ending:
            _now.is_pending = False
            raise KeyboardInterrupt


def arrived_signal() -> signal.Signals | None:
    """Returns the signal that interrupted the last `ends_when_asked`; None if none did.

    A separate class of exception would not work: if a signal interrupts Ray's native code while it
    waits, the code replaces the handler's exception by a new `KeyboardInterrupt`.
    """
    return _now.arrived[0] if _now.arrived else None


def _interrupt(number: int, frame: object) -> None:
    is_again = bool(_now.arrived) and time.monotonic() - _now.raised_s < AGAIN_S
    if _now.is_ending or is_again:
        return
    if not _now.arrived:
        _now.arrived.append(signal.Signals(number))
    _now.raised_s = time.monotonic()
    if _now.n_shields:
        _now.is_pending = True
        return
    raise KeyboardInterrupt


def end_process(code: int) -> NoReturn:
    """Runs the registered exit functions, and ends the process with a code.

    It does not tear down the interpreter and libraries as `sys.exit` does. On a busy machine, 2 of
    40 commands aborted during teardown, after all output. The cause is unknown, perhaps threads of
    libraries. An interrupt during teardown also prints a traceback of some library.
    """
    for number in HANDLED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # `AttributeError` if the stream was closed before Python started.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


@contextmanager
def signals_held() -> Iterator[None]:
    """Delivers SIGINT, SIGTERM and SIGHUP to their handlers after the block instead of during it.

    When Ray starts, it sets its own SIGTERM handler, which exits with 15, and some of its native
    code drops exceptions of handlers. Therefore signals are read from the descriptor to which
    Python writes them. After the block, the handlers are restored and called. If a signal made the
    block raise `SystemExit`, the handler runs first and may raise its own exception.
    """
    if not _is_main():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in HANDLED_SIGNALS}
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
        handler = handlers[signal.Signals(received)] if received in HANDLED_SIGNALS else None
        if callable(handler):
            handler(received, None)
    if leaves is not None:
        raise leaves
