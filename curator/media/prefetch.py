"""Makes values ahead of their use, in a thread."""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(make: Callable[[], T | None], *, n: int, name: str) -> Generator[T]:
    """Values of `make`, of which a named thread makes `n` ahead, until it returns None.

    An exception is raised in place of its value. Closing the iterator waits for the current call:
    close it before using anything that the function uses.
    """
    pool = ThreadPoolExecutor(1, name)
    waiting: deque[Future[T | None]] = deque()
    try:
        waiting.extend(pool.submit(make) for _ in range(n))
        while (value := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(make))
            yield value
    finally:
        pool.shutdown(cancel_futures=True)
