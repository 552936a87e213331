"""Makes values ahead of their use, in a thread."""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(
    make: Callable[[], T | None], *, n: int, name: str, limit: Callable[[T], int] | None = None
) -> Generator[T]:
    """Values of `make`, of which a named thread makes `n` ahead, until it returns None.

    With `limit` at most as many as it says of the last value, but always one. An exception is
    raised in place of its value. Closing the iterator waits for the current call: close it before
    using anything that the function uses.
    """
    pool = ThreadPoolExecutor(1, name)
    waiting: deque[Future[T | None]] = deque()
    try:
        waiting.extend(pool.submit(make) for _ in range(n if limit is None else 1))
        while (value := waiting.popleft().result()) is not None:
            wanted = n if limit is None else max(1, min(n, limit(value)))
            waiting.extend(pool.submit(make) for _ in range(wanted - len(waiting)))
            yield value
    finally:
        pool.shutdown(cancel_futures=True)
