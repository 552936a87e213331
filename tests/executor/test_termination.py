"""How commands end when they are asked to: handlers of signals, and closed output pipes.

A signal that comes while Ray starts ends the run as one before or after it does.
"""

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from curator.executor import termination
from curator.executor.progress import Progress
from curator.executor.termination import (
    HANDLED_SIGNALS,
    arrived_signal,
    ends_when_asked,
    ignore_further_interrupts,
    signals_held,
    uninterrupted,
)
from curator.runs.lease import acquire_lease
from curator.runs.progress_report import reported, run_status
from curator.storage import open_store
from curator.tables.out_layout import LEASE

PROGRAM = "from curator.cli import command; command()"


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Signals as in the foreground; a shell, or `nohup`, lets what it starts ignore some."""
    usual = {signal.SIGINT: signal.default_int_handler}
    before = {n: signal.signal(n, usual.get(n, signal.SIG_DFL)) for n in HANDLED_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_second_interrupt_does_not_break_the_end_of_workers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = [signal.getsignal(number) for number in HANDLED_SIGNALS]
    steps = []

    def work() -> None:
        with ends_when_asked():
            try:
                with ignore_further_interrupts():
                    os.kill(os.getpid(), signal.SIGINT)
            finally:
                steps.append("workers are ended")
                for number in HANDLED_SIGNALS:
                    os.kill(os.getpid(), number)
                steps.append("all of them")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert len(steps) == 2
    assert "stopping" in capsys.readouterr().err
    assert [signal.getsignal(number) for number in HANDLED_SIGNALS] == before


@pytest.mark.parametrize("number", HANDLED_SIGNALS)
def test_a_schedulers_signal_is_told_from_an_interrupt(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Also where native code, as Ray's does, raises its own exception in place of the handler's."""

    def native() -> None:
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None

    store, progress = open_store(str(tmp_path)), Progress(io.StringIO(), live=False)
    with (
        pytest.raises(KeyboardInterrupt),
        ends_when_asked(),
        reported(store, progress),
        ignore_further_interrupts(),
    ):
        native()
    assert arrived_signal() == number
    # `curate status` says so.
    words = {signal.SIGTERM: "terminated (143)", signal.SIGINT: "interrupted (130)"}
    assert run_status(store)["error"] == words.get(number, "hung up (129)")


def test_threads_leave_signals_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def inside() -> None:
        with ends_when_asked(), ignore_further_interrupts():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize("command", [["scores"], ["recipes", "quickstart"]])
def test_output_that_nobody_reads_ends_without_a_traceback(command: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command],
        stdout=write, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(write)
    assert (done.stderr, done.returncode) == ("", 141)


def test_a_process_ends_with_its_code_after_what_was_registered() -> None:
    """No interrupt, thread or late error changes the code any more, and what was printed is out."""
    program = (
        "import atexit, os, signal, threading, time\n"
        "from curator.executor.termination import end_process\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "class Late:\n"
        "    def __del__(self): os.abort()\n"
        "late = Late()\n"
        "atexit.register(print, 'registered')\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "print('said', end=' ')\n"
        "end_process(3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.stdout, done.stderr, done.returncode) == ("said registered\n", "", 3)


class Ended(KeyboardInterrupt):
    """What a handler of the command raises."""


def end(number: int, frame: object) -> None:
    raise Ended(number)


Handler = Callable[..., None]


@pytest.mark.parametrize(
    ("sent", "handler", "expected"),
    [
        ([signal.SIGINT], None, ["block", "ended"]),
        ([signal.SIGTERM], None, ["block", "ended"]),
        ([], None, ["block"]),
        # Of the block: one that leaves is not the last word, nor one that swallows the signal.
        ([signal.SIGTERM], lambda number, _: sys.exit(number), ["ended"]),
        ([signal.SIGTERM], lambda *_: None, ["block", "ended"]),
    ],
)
def test_a_signal_waits_for_the_end_of_the_block(
    sent: list[signal.Signals], handler: Handler | None, expected: list[str]
) -> None:
    before = {number: signal.signal(number, end) for number in HANDLED_SIGNALS}
    done = []
    try:
        with signals_held():
            if handler is not None:
                signal.signal(signal.SIGTERM, handler)
            for number in sent:
                os.kill(os.getpid(), number)
            done.append("block")
    except Ended:
        done.append("ended")
    finally:
        handlers = {number: signal.signal(number, before[number]) for number in HANDLED_SIGNALS}
    assert done == expected
    assert set(handlers.values()) == {end}


def test_a_block_that_leaves_by_itself_leaves() -> None:
    with pytest.raises(SystemExit), signals_held():
        sys.exit(3)


@pytest.mark.parametrize("step", ["write_new", "work", "join"])
@pytest.mark.parametrize("second", HANDLED_SIGNALS)
def test_a_second_signal_at_any_step_leaves_no_lease(
    step: str, second: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins signals when the lease is just written, while work runs, and during the release."""
    store, sent = open_store(str(tmp_path)), list[str]()

    def send() -> None:
        if not sent:
            sent.append(step)
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), second)

    def write_new(*arguments: Any) -> Any:  # noqa: ANN401
        written = whole_write(*arguments)
        send()
        return written

    def join(*arguments: Any) -> None:  # noqa: ANN401
        send()
        whole_join(*arguments)

    whole_write, whole_join = type(store).write_new, threading.Thread.join
    if step == "write_new":
        monkeypatch.setattr(type(store), "write_new", write_new)
    elif step == "join":
        monkeypatch.setattr(threading.Thread, "join", join)
    work = send if step == "work" else list
    with pytest.raises(KeyboardInterrupt), ends_when_asked(), acquire_lease(store, "run"):
        work()
    assert sent
    assert not store.exists(LEASE)


def test_a_block_that_must_end_is_not_interrupted_and_then_the_signal_counts() -> None:
    steps = []

    def block() -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGTERM)
            steps.append("block")

    with pytest.raises(KeyboardInterrupt), ends_when_asked():
        block()
    assert steps == ["block"]
    assert arrived_signal() == signal.SIGTERM


def test_a_signal_that_a_library_dropped_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termination, "AGAIN_S", 0.0)

    def dropped() -> None:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)

    def again() -> None:
        dropped()
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt), ends_when_asked():
        again()


def test_a_hang_up_that_is_ignored_stays_ignored() -> None:
    """Pins `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ends_when_asked():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert arrived_signal() is None
