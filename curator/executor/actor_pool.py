"""Worker processes that take units while others are still being made."""

import pickle
from collections import deque
from typing import Any

from curator.executor.ray_cluster import RayCluster, largest
from curator.executor.worker import Chain, pack_chain

UNITS_AHEAD = 2
"""Units of a worker: it works on one, and begins the next before the driver takes the result."""


class Pool:
    """Workers of one chain; each unit goes to the worker with the fewest.

    Args:
        n_workers: Most workers; they are started as units arrive.
    """

    def __init__(self, cluster: RayCluster, chain: Chain, n_workers: int) -> None:
        self._cluster = cluster
        self._chain = pack_chain(chain)
        self._each = largest(chain)
        self._most = n_workers
        self._workers: list[Any] = []
        self._n_given: list[int] = []
        self._waiting: deque[bytes] = deque()
        self._under_way: dict[Any, int] = {}

    @property
    def n_open(self) -> int:
        """Units that were submitted and whose result was not yet returned."""
        return len(self._waiting) + len(self._under_way)

    def submit(self, unit: Any) -> None:  # noqa: ANN401
        """Takes a unit; does not wait."""
        self._waiting.append(pickle.dumps(unit))
        self._begin()

    def poll(self, timeout: float = 0.0) -> list[Any]:
        """Returns available results in any order; waits `timeout` seconds for the first.

        Raises:
            CuratorError: The first that a step raised, unchanged.
        """
        if not self._under_way:
            return []
        wait, open_ones = self._cluster.ray.wait, list(self._under_way)
        ready, _ = wait(open_ones, num_returns=len(open_ones), timeout=0)
        if not ready and timeout > 0:
            ready, _ = wait(open_ones, num_returns=1, timeout=timeout)
        results = []
        for reference in ready:
            self._n_given[self._under_way.pop(reference)] -= 1
            results.append(self._cluster.result(reference, or_raise=True))
        self._begin()
        return results

    def close(self) -> None:
        """Ends the workers and their work."""
        for worker in self._workers:
            self._cluster.ray.kill(worker)
        self._workers, self._n_given, self._under_way = [], [], {}
        self._waiting.clear()

    def _begin(self) -> None:
        while self._waiting:
            # Starts another worker before giving a second unit to one.
            if len(self._workers) < self._most and 0 not in self._n_given:
                self._workers.append(self._cluster.worker(self._each))
                self._n_given.append(0)
            number = min(range(len(self._workers)), key=self._n_given.__getitem__)
            if self._n_given[number] >= UNITS_AHEAD:
                return
            self._n_given[number] += 1
            reference = self._workers[number].run.remote(self._chain, self._waiting.popleft())
            self._under_way[reference] = number
