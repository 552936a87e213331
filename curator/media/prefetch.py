"""Makes values in a thread of its own, while those before them are used."""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(make: Callable[[], T | None], *, n: int, name: str) -> Generator[T]:
    """Values of a function, called in one thread beside the caller's, until it gives None.

    What it raises is raised where its value would have come. Closing the iterator waits for the
    call that is under way: whoever uses what the function uses must close it first.

    Args:
        make: Gives the next value; called by one thread only.
        n: Values that are made before they are asked for.
        name: Of the thread.
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
