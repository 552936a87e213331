"""Limits how many requests run at a server, and how long the others wait.

Additive increase, multiplicative decrease, with a known cut: a server that refuses a request can
take as many as are still running. So one burst of 429 finds its capacity, where halving would need
several, and each later one costs a single refused request.
"""

import asyncio
import random
import time
from collections import deque

_LONGEST_BACKOFF_S = 60.0
# Not from the recipe's seed: two runs must not retry in step.
_DRAW = random.Random()


class RequestSlots:
    """Running requests at one server, for one event loop."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.limit = float(most)
        self.n_taken = 0
        self._again: deque[asyncio.Future[None]] = deque()
        self._first: deque[asyncio.Future[None]] = deque()
        self._closed_until = 0.0
        self._opening: asyncio.TimerHandle | None = None

    async def take(self, *, is_again: bool) -> None:
        """Waits for a slot; a request that was tried before (`is_again`) goes first."""
        slot = asyncio.get_running_loop().create_future()
        queue = self._again if is_again else self._first
        queue.append(slot)
        self._pass_on()
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():
                self.give_back()
            elif slot in queue:
                queue.remove(slot)
            raise

    def give_back(self) -> None:
        """Frees the slot for the next request."""
        self.n_taken -= 1
        self._pass_on()

    def went_well(self) -> None:
        """Adds one slot after as many answers as there are slots."""
        self.limit = min(float(self.most), self.limit + 1 / self.limit)

    def was_turned_away(self, wait_s: float) -> None:
        """Cuts the slots: the server refused a request, which keeps its slot, or is unreachable.

        If no other request is running, the server takes none at all, so the next one waits
        `wait_s`.
        """
        others = self.n_taken - 1
        self.limit = max(1.0, min(self.limit, float(others)))
        if others == 0:
            self._closed_until = max(self._closed_until, time.monotonic() + wait_s)

    def _pass_on(self) -> None:
        wait_s = self._closed_until - time.monotonic()
        if wait_s > 0:
            if self._opening is None:
                loop = asyncio.get_running_loop()
                self._opening = loop.call_later(wait_s, self._open)
            return
        while (queue := self._again or self._first) and self.n_taken < int(self.limit):
            slot = queue.popleft()
            if not slot.done():
                slot.set_result(None)
                self.n_taken += 1

    def _open(self) -> None:
        self._opening = None
        self._pass_on()


def backoff_s(n_tries: int, asked_s: float | None, *, first_s: float = 1.0) -> float:
    """Returns the wait after `n_tries` tries, at least the server's request `asked_s`.

    It doubles with each try, and is random, so that clients do not come together.
    """
    if asked_s is not None:
        return asked_s + _DRAW.uniform(0, min(1.0, 0.1 * asked_s))
    longest = min(_LONGEST_BACKOFF_S, first_s * 2.0 ** min(n_tries - 1, 30))
    return _DRAW.uniform(longest / 2, longest)
