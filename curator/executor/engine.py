"""Decides where work runs: in this process, in one child process, or on Ray.

Ray starts only when there is work for it, because its start takes seconds of every core. Small work
runs in one child process. Few units of steps that only read parts and add numbers run in this
process. A run joins its cluster before it decides about the cluster's devices or workers.
"""

import logging
import math
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from curator.errors import CuratorError
from curator.executor.child_process import Child
from curator.executor.cpu_accounting import Heartbeat
from curator.executor.fleet import Fleet, FleetCounts, WorkerPool
from curator.executor.host_resources import available_cpus, available_gpus, memory_bytes
from curator.executor.ray_cluster import Number, RayCluster
from curator.executor.sandboxed_process import NOT_BEGUN, SANDBOX_COUNTS, process_sandbox
from curator.executor.termination import uninterrupted
from curator.executor.unit_times import UnitTimes
from curator.executor.unit_worker import UnitResult
from curator.executor.worker import Chain, chain_name, largest, pack_chain, stage_names
from curator.stage import Resources

logger = logging.getLogger(__name__)

SMALL_FRAMES = 1800.0
"""Work that one process finishes while a cluster is still starting, in frames of 1080p."""
SMALL_SOURCES = 32

EXPECTED_WORKERS = 64
"""Least number of workers that sizes of units assume on a joined cluster without `--workers`."""

FEEDER_CPUS = 0.5
"""Cores that a worker with a GPU keeps busy. One of its threads reads and queues work for the GPU,
another one measures; both mostly wait for an engine of the GPU. On the host of an H200, 8 workers
used 0.67 cores each, and 16 workers 0.34 to 0.47."""

UNBOUNDED = 1 << 20
"""The most workers on a cluster without `--workers`."""

AHEAD = 2
"""Units that a worker holds at a time if its steps keep no state: it begins the next unit before
the driver takes the last result."""

FACTS = ("unit_times", "cluster", "cpu_instead_of_gpu", "sandboxes")
"""Keys of a summary that describe the execution of a run; the other keys describe its results."""

Placement = Literal["driver", "child", "ray"]
"""Where units run: one by one in the driver's process, in its child process, or on Ray."""

Check = Callable[[], str | None]
"""Runs once on a node. Returns None if the node can do the work, else the reason, which is a
`TransientRefusal` if the node may be able to later."""


class Engine:
    """Runs chains of steps over units of work.

    Args:
        address: Ray cluster to join; None to start Ray on this machine.
        workers: Most workers. None allows one per core, and on a joined cluster any number.
        place: Name of the stage -> custom resource of Ray. The stage runs only on nodes that have
            the resource.
    """

    def __init__(
        self, *, address: str | None, workers: int | None, place: Mapping[str, str] | None = None
    ) -> None:
        self._address = address
        self._workers = workers
        self.place = dict(place or {})
        self._cluster: RayCluster | None = None
        self._child = Child()
        self._is_ended = False
        self._done = NOT_BEGUN
        self._shown: Fleet | None = None
        """The workers of the chain that `progress` counts."""
        self._nodes: list[dict[str, Any]] = []
        """Kinds of nodes in the cluster when Ray was started or joined."""
        self._gpu_bytes = 0
        """Memory of this machine that workers with a GPU take."""
        self.unit_times = UnitTimes()
        """When the workers of each node were busy, by stage."""
        self.counts = FleetCounts()
        self.cpu_s = Counter[str]()
        """CPU-seconds that workers counted so far, by purpose."""
        self.heartbeat = Heartbeat()
        """Notes signs of progress."""
        self.on_unit: Callable[[UnitResult[Any]], None] | None = None
        """Called with each unit's result and cost."""

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *error: object) -> None:
        """Stops every process that this engine started; it starts none afterwards."""
        self._is_ended = True
        self.stop()

    @property
    def is_started(self) -> bool:
        """Whether Ray runs."""
        return self._cluster is not None

    @property
    def joins(self) -> bool:
        """Whether the engine works on a cluster that somebody else started."""
        return self._address is not None

    def is_small(self, n_items: int, frames: float) -> bool:
        """Returns whether one process finishes the work before a cluster would have started.

        `frames` counts the frames of all items, weighted by size: a frame of 1080p has weight 1.
        """
        may = not self.joins and self._workers is None and self._cluster is None
        return may and n_items <= SMALL_SOURCES and frames <= SMALL_FRAMES

    def preload(self, modules: Sequence[str]) -> None:
        """Lets the sandbox of this process import modules; starts the sandbox if necessary."""
        process_sandbox().load(modules)

    def progress(self) -> tuple[int, float, float]:
        """Returns the chain's finished items, their seconds of video, and the seconds by cost.

        Includes what running units have reached. Between the report of a unit and its result, the
        numbers may go back for a moment; `Progress` shows the largest.
        """
        # In this order: a unit must not count twice when its result arrives in between.
        done = self._done
        running = self._shown.reached() if self._shown is not None else ()
        all_ = [done, process_sandbox().reached, *running]
        n_items, video_s, work_s = (sum(numbers) for numbers in zip(*all_, strict=True))
        return int(n_items), video_s, work_s

    def loads(self) -> Counter[tuple[str, str]]:
        """Returns the sum of `Fleet.loads` over all fleets."""
        loads = Counter[tuple[str, str]]()
        for fleet in list(self.counts.fleets):
            # The operator + would drop entries that are zero.
            loads.update(fleet.loads())
        return loads

    def publish(self, numbers: Iterable[Number]) -> None:
        """Calls `RayCluster.publish` if Ray runs."""
        if self._cluster is not None:
            self._cluster.publish(numbers)

    def nodes_lost(self) -> int:
        """Counts the nodes that were lost while workers ran on them."""
        gone = set(self.counts.died_on) if self._cluster is not None else set()
        if self._cluster is not None:
            gone -= self._cluster.watch.state.nodes.keys()
        return len(self.counts.lost_nodes | gone)

    def n_cpus(self) -> int:
        """Returns the cores of this machine, or the most that the joined cluster may have."""
        if self.joins:
            return max(1, int(self._start().watch.state.most("CPU")))
        return available_cpus()

    def n_gpus(self) -> float:
        """Returns the GPUs of this machine, or the most that the joined cluster may have."""
        if self.joins:
            return self._start().watch.state.most("GPU")
        return float(available_gpus())

    def cpus_per_gpu(self) -> float | None:
        """Returns the cores per GPU of the node with the fewest; None if no node has a GPU yet."""
        if not self.joins:
            return available_cpus() / max(1.0, self.n_gpus())
        self._start()
        return min((kind.get("CPU", 0.0) / kind["GPU"] for kind in self._nodes if kind.get("GPU")),
                   default=None)  # fmt: skip

    def may_have_gpus(self) -> bool:
        """Returns whether there is a GPU, or an autoscaler may add one."""
        return (self._start().watch.state.likely_gpus() if self.joins else self.n_gpus()) >= 1

    def threads(self, n_workers: int) -> int:
        """Returns the threads per worker: its share of this machine's cores, or 1 on a cluster."""
        return 1 if self.joins else max(1, available_cpus() // n_workers)

    def n_workers(self, n_units: int, each: Resources = Resources()) -> int:  # noqa: B008 - frozen
        """Estimates the workers of a chain: as configured, or one per core as memory allows."""
        wanted = self._workers
        if wanted is None:
            wanted = self.n_cpus()
            if self.joins:
                wanted = max(wanted, EXPECTED_WORKERS)
            else:
                room = memory_bytes() - (0 if each.gpus else self._gpu_bytes)
                wanted = min(wanted, room // each.memory_bytes)
        if each.cpus > 1 and not self.joins:
            wanted = min(wanted, int(available_cpus() / each.cpus))
        if each.gpus:
            wanted = min(wanted, int(self.n_gpus() / each.gpus + 1e-6))
        return max(1, min(wanted, n_units))

    def run(
        self,
        steps: Chain,
        units: Iterable[Any],
        *,
        placement: Placement = "ray",
        without_gpu: Chain | None = None,
        check: Check | None = None,
        is_shown: bool = True,
    ) -> Iterator[Any]:
        """Streams units through a chain on Ray, in the child process, or in this process.

        Args:
            steps: The chain.
            units: Lists of items. From a stream, only as many are taken as workers have room for.
            placement: Where the units run; `driver` neither counts nor shows them.
            without_gpu: The same work for workers without a GPU, which take units from the end;
                None for no such workers. On a single machine, these workers use the cores that
                workers with a GPU leave free.
            check: Tells on each node whether the node can run `steps`.
            is_shown: Whether `progress` counts these units.

        Yields:
            Results, in any order; in the order of units with `driver`.

        Raises:
            CuratorError: The first error of a step, unchanged.
        """
        if isinstance(units, Sequence) and not units:
            return
        if is_shown:
            # Reset before Ray's slow start: a display must not show the last chain's progress.
            self._done, self._shown = NOT_BEGUN, None
        if placement == "driver":
            yield from self.run_in_driver(steps, units)
            return
        if placement == "child":
            # A sandbox is a child process already.
            is_child = any(step.stage is not None and step.stage.sandboxed for step in steps)
            units = list(units)
            if is_child:
                results = self.run_in_driver(steps, units)
            else:
                results = self._timed(steps, self._child.run(steps, units))
        else:
            ahead = 1 if any(step.keeps_state for step in steps) else AHEAD
            fleet = self.pool(steps, without_gpu=without_gpu, check=check, keeps=False, ahead=ahead)
            results = fleet.run(units)
            if is_shown:
                self._shown = fleet
        for result in results:
            self.heartbeat.beat()
            if isinstance(result, UnitResult):
                if self.on_unit is not None:
                    self.on_unit(result)
                self.counts.sandboxes.update({name: result.counts[name] for name in SANDBOX_COUNTS})
                if is_shown:
                    n_items, video_s, work_s = self._done
                    self._done = (
                        n_items + result.n_items, video_s + result.video_s, work_s + result.work_s
                    )  # fmt: skip
            yield result

    def run_in_driver(self, steps: Chain, units: Iterable[Any]) -> Iterator[Any]:
        """Runs a chain in this process, one unit at a time."""
        yield from self._timed(steps, self._here(steps, units))

    def _here(self, steps: Chain, units: Iterable[Any]) -> Iterator[Any]:
        made = [step.make(**step.settings) for step in steps]
        for unit in units:
            waiting = [unit]
            while waiting:
                result = waiting.pop()
                for step in made:
                    result = step(result)
                if isinstance(result, UnitResult) and result.not_begun:
                    waiting.append(list(result.not_begun))
                self.heartbeat.beat()
                yield result

    def _timed(self, steps: Chain, results: Iterator[Any]) -> Iterator[Any]:
        """Notes the time of each unit of the only worker of this machine."""
        begun_s = time.time()
        for result in results:
            self.unit_times.add(chain_name(steps), "", begun_s, time.time(), "1")
            yield result
            begun_s = time.time()

    def pool(
        self,
        steps: Chain,
        *,
        without_gpu: Chain | None = None,
        check: Check | None = None,
        most: int | None = None,
        keeps: bool = True,
        ahead: int = AHEAD,
    ) -> Fleet:
        """Starts Ray, and returns workers of a chain that take units during other work.

        Args:
            steps: The chain.
            without_gpu: As for `run`.
            check: As for `run`.
            most: The most workers; None for as many as have room.
            keeps: Whether idle workers stay on a cluster.
            ahead: Units that a worker holds at a time.
        """
        backend = self._start().backend
        first = self._pool(steps, check, most)
        pools = [first]
        if first.resources.gpus and not self.joins:
            n_bytes = first.most() * first.resources.memory_bytes
            self._gpu_bytes = max(self._gpu_bytes, n_bytes)
        if without_gpu is not None:
            left = max(1, int(available_cpus() - FEEDER_CPUS * first.most()))
            pools.append(self._pool(without_gpu, None, None if self.joins else left))
        return Fleet(
            backend,
            pools,
            counts=self.counts,
            unit_times=self.unit_times,
            beat=self.heartbeat.beat,
            ahead=ahead,
            keeps=keeps,
        )

    def facts(self) -> dict[str, Any]:
        """Returns the `FACTS` of a summary: where work ran, and which workers failed."""
        facts: dict[str, Any] = {}
        counts = self.counts
        if counts.cpu_instead:
            facts["cpu_instead_of_gpu"] = dict(sorted(counts.cpu_instead.items()))
        if sandboxes := {name: n for name, n in counts.sandboxes.items() if n}:
            facts["sandboxes"] = sandboxes
        if unit_times := self.unit_times.facts():
            facts["unit_times"] = unit_times
        if counts.workers:
            facts["cluster"] = {
                "is_joined": self.joins,
                "nodes": self._nodes,
                "workers": dict(sorted(counts.pools.items())),
                "workers_requested": counts.workers,
                "workers_died": counts.deaths,
                "nodes_lost": self.nodes_lost(),
                "nodes_refused": dict(sorted(counts.refusals.items())),
                **({"gpu": dict(counts.gpu)} if counts.gpu else {}),
                "units_repeated": counts.repeated_units,
            }
        return facts

    def count_cpu_instead(self, work: str, why: str, n: int) -> None:
        """Counts items that a CPU processes although a GPU should; logs each reason once."""
        words = f"{work}: {why}"
        if not self.counts.cpu_instead[words]:
            logger.warning("a CPU does the work of a GPU; %s", words)
        self.counts.cpu_instead[words] += n

    def stop(self) -> None:
        """Stops Ray, the child process and this process's sandbox, if they were started."""
        with uninterrupted():
            self._child.stop()
            process_sandbox().stop()
            if self._cluster is not None:
                self._cluster.stop()
                self._cluster = None

    def _pool(self, steps: Chain, check: Check | None, most: int | None) -> WorkerPool:
        each, name = largest(steps), chain_name(steps)
        if each.gpus:
            # A worker with a GPU must not wait for a core: see `WorkerProcess.begin`.
            each = replace(each, cpus=0.0)
        self.counts.pools[f"{name} on a GPU" if each.gpus else name] = {
            "cpus": each.cpus, "gpus": each.gpus, "memory_bytes": each.memory_bytes,
        }  # fmt: skip
        return WorkerPool(
            stage=name,
            chain=pack_chain(steps),
            resources=each,
            most=partial(self._most, each) if most is None else lambda: most,
            check=pickle.dumps(check) if check is not None else None,
            place=self._place_of(steps),
            is_expected=not each.gpus or self.n_gpus() >= 1,
        )

    def _place_of(self, steps: Chain) -> str | None:
        """Returns the custom resource of a chain's nodes; None for any node."""
        return next((self.place[name] for name in stage_names(steps) if name in self.place), None)

    def _most(self, each: Resources) -> int:
        if self.joins:
            most = self._workers or UNBOUNDED
            if each.gpus:
                return min(most, int(self._start().watch.state.likely_gpus() / each.gpus + 1e-6))
            return most
        if each.cpus < 1 and not each.gpus:
            return math.ceil(max(available_cpus(), self._workers or 0) / (each.cpus or 1))
        return self.n_workers(UNBOUNDED, each)

    def _start(self) -> RayCluster:
        if self._is_ended:
            # A thread that still works must not start Ray again.
            raise CuratorError("the run has ended, so no worker can start")
        if self._cluster is None:
            self._child.stop()
            process_sandbox().stop()
            cluster = RayCluster(self._address, self._workers, self.heartbeat.beat)
            try:
                cluster.start()
            except BaseException:
                with uninterrupted():
                    cluster.stop()
                raise
            self._cluster = cluster
            self._nodes = cluster.watch.state.kinds()
        return self._cluster
