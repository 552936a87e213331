"""Decides where work runs: in this process, in one child process, or on Ray.

Ray is started only when there is work for it, because that takes seconds of every core. Steps that
merely read parts and add up run in this process when there are few units; small work runs in one
child.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from curator.errors import CuratorError
from curator.executor.actor_pool import Pool
from curator.executor.child_process import Child
from curator.executor.decoder_box import process_box
from curator.executor.host_resources import available_cpus, available_gpus, memory_bytes
from curator.executor.ledger import ActorLedger, AttemptLedger
from curator.executor.ray_cluster import RayCluster, largest
from curator.executor.timeline import Timeline
from curator.executor.worker import Chain, Step
from curator.stage import Resources

_Unit = TypeVar("_Unit")

TASK_RETRIES = 3
"""How often Ray repeats a unit of light work whose process died."""

SMALL_FRAMES = 1800.0
"""Work, in frames of 1080p, that one process does while a cluster would still be starting."""
SMALL_SOURCES = 32


class Engine:
    """Runs chains of steps over units of work.

    Args:
        address: Ray cluster to join, or None for one of this process's own.
        workers: Workers of steps that keep state; None for one per core.
    """

    def __init__(self, *, address: str | None, workers: int | None) -> None:
        self._address = address
        self._workers = workers
        self._cluster: RayCluster | None = None
        self._child = Child()
        self._ledger: AttemptLedger | None = None
        self._is_ended = False
        self.timeline = Timeline()
        """The units that ended, of all chains."""

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *error: object) -> None:
        """Stops every process that was started here, for good."""
        self._is_ended = True
        self.stop()

    @property
    def is_started(self) -> bool:
        """Whether Ray runs."""
        return self._cluster is not None

    def is_small(self, n_items: int, frames: float) -> bool:
        """Returns whether one process finishes work sooner than a cluster that has to start first.

        `frames` are those of the sources or clips, weighted by size: 1 for 1080p.
        """
        may = self._address is None and self._workers is None and self._cluster is None
        return may and n_items <= SMALL_SOURCES and frames <= SMALL_FRAMES

    def preload(self, modules: Sequence[str]) -> None:
        """Lets the decoder box of this process import modules; starts it if necessary."""
        process_box().load(modules)

    def ledger(self, *, small: bool = False) -> AttemptLedger:
        """Returns a new ledger for one chain; starts Ray unless the work is small."""
        if isinstance(self._ledger, ActorLedger) and not small:
            self._ledger.reset()
        else:
            self._ledger = self.own_ledger(small=small)
        return self._ledger

    def own_ledger(self, *, small: bool = False) -> AttemptLedger:
        """Returns a ledger apart from the current chain's; starts Ray unless the work is small."""
        if small:
            return self._child.ledger()
        cluster = self._start()
        # Workers of our own cluster see this machine's files; an actor is one more process.
        return self._child.ledger() if self._address is None else cluster.new_ledger()

    def progress(self) -> tuple[int, float]:
        """Returns finished keys of the current ledger, and their seconds of video."""
        return self._ledger.progress() if self._ledger is not None else (0, 0.0)

    def n_cpus(self) -> int:
        """Returns the cores of this machine, or of the joined cluster."""
        if self._cluster is not None and self._address is not None:
            return self._cluster.n_cpus()
        return available_cpus()

    def n_gpus(self) -> float:
        """Returns the GPUs of this machine, or of the joined cluster."""
        if self._cluster is not None and self._address is not None:
            return self._cluster.n_gpus()
        return float(available_gpus())

    def n_workers(self, n_units: int, each: Resources = Resources()) -> int:  # noqa: B008 - frozen
        """Counts workers that keep state: as configured, or one per core with memory."""
        wanted = self._workers
        if wanted is None:
            wanted = self.n_cpus()
            if self._address is None:
                wanted = min(wanted, memory_bytes() // each.memory_bytes)
        if each.gpus:
            wanted = min(wanted, int(self.n_gpus() / each.gpus + 1e-6))
        return max(1, min(wanted, n_units))

    def run(self, steps: Chain, units: Sequence[Any], *, small: bool = False) -> Iterator[Any]:
        """Streams units through a chain on Ray, or through the child process.

        Yields:
            Results, in any order.

        Raises:
            CuratorError: The first that a step raised, unchanged.
        """
        if not units:
            return
        if small:
            # A box is a child already.
            run = self.run_here if any(step.is_boxed for step in steps) else self._child.run
            yield from run(steps, units)
            return
        cluster = self._start()
        if any(step.keeps_state for step in steps):
            each = largest(steps)
            yield from cluster.on_workers(steps, units, lambda: self.n_workers(len(units), each))
            return
        for unit, result in cluster.as_tasks(
            steps, units, retries=TASK_RETRIES, n_cpus=self.n_cpus
        ):
            if result is None:
                raise CuratorError(
                    f"the process of a unit died {TASK_RETRIES + 1} times: {unit!r:.200}; is there "
                    "enough memory? the same command goes on from what was done"
                )
            yield result

    def run_here(self, steps: Chain, units: Sequence[Any]) -> Iterator[Any]:
        """Runs a chain in this process, one unit at a time."""
        made = [step.make(**step.settings) for step in steps]
        for unit in units:
            result = unit
            for step in made:
                result = step(result)
            yield result

    def pool(self, steps: Chain) -> Pool:
        """Returns workers of a chain that take units during other work; starts Ray."""
        cluster = self._start()
        return Pool(cluster, steps, self.n_workers(1 << 20, largest(steps)))

    def attempts(
        self, step: Step, units: Iterable[_Unit], *, few: bool
    ) -> Iterator[tuple[_Unit, Any]]:
        """Streams units through one step without state, and reports those that ended their process.

        Units are taken as there is room for them: neither they nor their results pile up, and their
        number need not be known. `few` is whether this process finishes them sooner than a cluster
        starts.

        Yields:
            Each unit with its result, or with None where its process died; in any order.

        Raises:
            CuratorError: The first that the step raised, unchanged.
        """
        if few:
            for unit in units:
                yield unit, next(self.run_here([step], [unit]))
        else:
            cluster = self._start()
            yield from cluster.as_tasks([step], units, retries=0, n_cpus=self.n_cpus)

    def stop(self) -> None:
        """Stops Ray, the child process and this process's decoder box, if they were started."""
        self._child.stop()
        process_box().stop()
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster, self._ledger = None, None

    def _start(self) -> RayCluster:
        if self._is_ended:
            # A thread that works ahead must not start Ray again.
            raise CuratorError("the run has ended; nothing is started any more")
        if self._cluster is None:
            self._child.stop()
            process_box().stop()
            cluster = RayCluster(self._address, self._workers)
            cluster.start()
            self._cluster = cluster
        return self._cluster
