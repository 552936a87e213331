"""Limits how many requests run at a service at a time, and how long retries wait.

Additive increase, multiplicative decrease, with a known cut: a server that refuses a request can
take as many as are still running. So one burst of 429 finds its capacity, where halving would need
several, and each later one costs a single refused request.
"""

import random
import threading
import time
from concurrent.futures import CancelledError
from math import inf

_LONGEST_BACKOFF_S = 60.0
# Not from the recipe's seed: two runs must not retry in step.
_RANDOM = random.Random()


class RequestLimit:
    """The requests that may run at one service; shared by threads."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.limit = float(most)
        self._n_running = 0
        self._opens_s = 0.0
        self._changed = threading.Condition()
        self._closed = threading.Event()

    def acquire(self, until: float = inf) -> bool:
        """Waits for a slot, at most until a time of `time.monotonic`; returns whether it has one.

        Raises:
            CancelledError: The limit is closed.
        """
        with self._changed:
            while True:
                self.check_open()
                now = time.monotonic()
                if now >= self._opens_s and self._n_running < int(self.limit):
                    self._n_running += 1
                    return True
                if now >= until:
                    return False
                waits_s = [end - now for end in (until, self._opens_s) if end > now]
                self._changed.wait(min(threading.TIMEOUT_MAX, *waits_s))

    def release(self) -> None:
        """Frees the slot for the next request."""
        with self._changed:
            self._n_running -= 1
            self._changed.notify()

    def went_well(self) -> None:
        """Adds one slot after as many answers as there are slots."""
        with self._changed:
            self.limit = min(float(self.most), self.limit + 1 / self.limit)
            self._changed.notify()

    def was_refused(self, wait_s: float) -> None:
        """Cuts the slots: the server refused a request, which keeps its slot, or is unreachable.

        If no other request is running, the server takes none at all, so the next one waits
        `wait_s`.
        """
        with self._changed:
            n_others = self._n_running - 1
            self.limit = max(1.0, min(self.limit, float(n_others)))
            if n_others == 0:
                self._opens_s = max(self._opens_s, time.monotonic() + wait_s)

    def sleep(self, wait_s: float) -> None:
        """Waits before a retry; raises errors as `acquire`."""
        self._closed.wait(wait_s)
        self.check_open()

    def check_open(self) -> None:
        """Raises errors as `acquire`."""
        if self._closed.is_set():
            raise CancelledError

    def close(self) -> None:
        """Ends all waits: they raise CancelledError."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()


def backoff_s(n_tries: int, asked_s: float | None, *, first_s: float = 1.0) -> float:
    """Returns the wait after `n_tries` tries, at least the server's request `asked_s`.

    It doubles with each try, and is random, so that clients do not come together.
    """
    if asked_s is not None:
        return asked_s + _RANDOM.uniform(0, min(1.0, 0.1 * asked_s))
    longest = min(_LONGEST_BACKOFF_S, first_s * 2.0 ** min(n_tries - 1, 30))
    return _RANDOM.uniform(longest / 2, longest)
