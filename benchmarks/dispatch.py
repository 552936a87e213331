"""What it costs the driver to hand out units and to take their results.

    python benchmarks/dispatch.py --workers 32000 --rate 2000 --units 60000

Workers are simulated: a few Ray actors answer for all of them, each unit after a while, so that the
wanted number of results comes back each second. References, messages and callbacks are real ones.
"""

import argparse
import asyncio
import json
import pickle
import random
import time
from collections.abc import Sequence
from typing import Any

from measure import machine

from curator.executor.fleet import Fleet, FleetCounts, Greeting, Lane, Worker
from curator.executor.package_stamp import package_stamp
from curator.executor.ray_backend import RayBackend
from curator.executor.ray_cluster import RayCluster
from curator.executor.timeline import Timeline
from curator.executor.work import Work
from curator.executor.worker import Step, pack_chain
from curator.stage import Resources


class ManyWorkers:
    """Answers for many workers."""

    def __init__(self, mean_s: float) -> None:
        self._mean_s = mean_s

    async def begin(
        self, stamp: str, check: object, chain: bytes, *, stage: str, holds_gpu: bool
    ) -> tuple[str, Greeting, bytes]:
        """As a worker that is up."""
        del stamp, check, chain, stage, holds_gpu
        return package_stamp(), Greeting(node="node", name="node"), pickle.dumps(None)

    async def run(self, unit: bytes) -> tuple[bytes, float, float]:
        """A null unit that takes a while."""
        begun_s = time.time()
        await asyncio.sleep(random.uniform(0.5, 1.5) * self._mean_s)
        return unit, begun_s, time.time()


class SharedActors(RayBackend):
    """A backend whose workers share actors."""

    def share(self, n_actors: int, mean_s: float) -> None:
        """Starts the actors."""
        options: dict[str, Any] = {"num_cpus": 0.01, "max_concurrency": 40_000}
        actor = self._ray.remote(**options)(ManyWorkers)
        self._actors = [actor.remote(mean_s) for _ in range(n_actors)]
        self._n_started = 0

    def start(self, lane: Lane, refused: Sequence[str], worker: Worker) -> None:
        """Gives a worker its actor."""
        del refused
        worker.handle = self._actors[self._n_started % len(self._actors)]
        self._n_started += 1
        self._begin(lane, worker)

    def end(self, worker: Worker, *, may_serve_again: bool) -> None:
        """Ends nothing: others share the actor."""
        del may_serve_again
        worker.handle = None


def measured(n_workers: int, rate: float, n_units: int, n_actors: int) -> dict[str, Any]:
    """Hands out units at a rate that the workers give; returns what the driver spent."""
    cluster = RayCluster(None, n_actors)
    cluster.start()
    try:
        backend = SharedActors(cluster._ray, cluster.watch, is_elastic=True, may_serve_again=False)
        backend.share(n_actors, n_workers / rate)
        chain = pack_chain([Step(make=dict, resources=Resources())])
        lane = Lane(stage="null", chain=chain, resources=Resources(), most=lambda: n_workers)
        fleet = Fleet(backend, [lane], counts=FleetCounts(), timeline=Timeline(), keeps=True)
        for number in range(n_units):
            fleet._waiting.append(Work(unit=[number]))
        begun_s, begun_cpu_s, n_done = time.perf_counter(), time.process_time(), 0
        while fleet._n_given < n_workers and n_done < n_workers:
            n_done += len(fleet.poll(timeout=5))
        up_s, up_cpu_s, n_before = time.perf_counter(), time.process_time(), n_done
        n_given = fleet._n_given
        while n_done < n_units - n_workers:
            n_done += len(fleet.poll(timeout=5))
        took_s = time.perf_counter() - up_s
        cpu_s = time.process_time() - up_cpu_s
        fleet.close()
    finally:
        cluster.stop()
    n_results = n_done - n_before
    return {
        "workers": n_workers,
        "units given before the clock began": n_given,
        "rate that workers give": rate,
        "results": n_results,
        "results a second": round(n_results / took_s),
        "driver CPU us a unit": round(cpu_s / n_results * 1e6),
        "driver's share of a core": round(cpu_s / took_s, 2),
        "seconds until then": round(up_s - begun_s, 1),
        "driver CPU us a worker's start": round((up_cpu_s - begun_cpu_s) / n_workers * 1e6),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 32_000])
    parser.add_argument("--rate", type=float, default=1500.0)
    parser.add_argument("--units", type=int, default=60_000, help="beyond one for each worker")
    parser.add_argument("--actors", type=int, default=2)
    options = parser.parse_args()
    rows = [
        measured(n, options.rate, options.units + 2 * n, options.actors) for n in options.workers
    ]
    print(json.dumps({"machine": machine(), "rows": rows}, indent=1))
