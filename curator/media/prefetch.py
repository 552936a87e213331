"""Computes values ahead of their use, in a thread."""

from collections.abc import Callable, Generator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Event, Semaphore, Thread
from typing import TypeVar

T = TypeVar("T")

CHECK_S = 1.0


def ahead(
    make: Callable[[], T | None],
    *,
    n: int,
    name: str,
    limit: Callable[[T], int] | None = None,
    check: Callable[[], None] | None = None,
) -> Generator[T]:
    """Yields the values of `make` until it returns None; a named thread computes `n` values ahead.

    `limit` returns a lower number of values ahead, by the last value; one is always made. If `make`
    raises an error, the error is raised in place of the value. Closing the iterator waits for the
    current call, so close it before using objects that `make` uses.

    `check` is called each second while the iterator waits. If it raises an error, the current call
    is abandoned in its daemon thread, which does not keep the process alive.
    """
    wanted = Semaphore(0)
    made: SimpleQueue[Future[T | None]] = SimpleQueue()
    closed = Event()
    n_ahead = 0

    def work() -> None:
        while wanted.acquire() and not closed.is_set():
            future: Future[T | None] = Future()
            try:
                future.set_result(make())
            except BaseException as error:  # noqa: BLE001 - raised in the other thread
                future.set_exception(error)
            made.put(future)
            del future

    def ask(n_wanted: int) -> None:
        nonlocal n_ahead
        for _ in range(n_wanted - n_ahead):
            wanted.release()
        n_ahead = max(n_ahead, n_wanted)

    def taken() -> T | None:
        nonlocal n_ahead
        while True:
            try:
                future = made.get(timeout=CHECK_S)
            except Empty:
                if check is not None:
                    check()
            else:
                n_ahead -= 1
                return future.result()

    thread = Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        ask(n if limit is None else 1)
        while (value := taken()) is not None:
            ask(n if limit is None else max(1, min(n, limit(value))))
            yield value
    finally:
        closed.set()
        wanted.release()
        while thread.is_alive():
            thread.join(CHECK_S)
            if thread.is_alive() and check is not None:
                check()
