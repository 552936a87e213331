"""Gives units to workers, which may start, die and leave at any time.

The loop here does not know Ray: a backend starts workers, calls workers, and puts their answers
into a queue. `docs/design/cluster.md` has the rules.
"""

import logging
import pickle
import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from curator.errors import CuratorError, UsageError
from curator.executor.sandboxed_process import NOT_BEGUN, Reached
from curator.executor.unit_times import UnitTimes
from curator.executor.unit_worker import UnitResult
from curator.executor.worker import MAX_DEATHS, Death, UnitAttempts, is_crash_looping
from curator.stage import Resources

if TYPE_CHECKING:
    from curator.executor.ray_backend import RayBackend

logger = logging.getLogger(__name__)

LOOK_S = 10.0
"""Time between checks of the cluster for drained nodes and for new workers."""

PLACE_S = 20.0
"""Wait for a first worker, after which a run asks whether any node can hold one. With `LOOK_S`, the
run has the answer within 30 s."""

FIRST_WARNING_S = 60.0
"""Wait for a first worker, after which a run warns; each later warning doubles the wait."""

PATIENCE_S = 30.0
"""Wait for workers of a pool, after which the next pool gets workers for the same units."""

MAX_UNPLACED = 1000
"""Most requested workers without a node: enough demand for any autoscaler."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerPool:
    """A pool of workers of one kind.

    Attributes:
        stage: Name of the stage.
        chain: The packed chain.
        resources: Resources of one worker.
        most: Returns the largest number of workers.
        check: Packed function that a worker calls once: it returns why its node cannot do this
            work, or None. None for no check.
        place: Custom resource of the nodes to use; None for any node.
        is_expected: Whether nodes can hold its workers, now or soon. The next pool then waits for
            a while before it takes units that this pool has requested workers for.
    """

    stage: str
    chain: bytes
    resources: Resources
    most: Callable[[], int]
    check: bytes | None = None
    place: str | None = None
    is_expected: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """Why no node can hold a worker, for people; `is_final` if no such node will ever join."""

    why: str
    is_final: bool


class TransientRefusal(str):
    """A refusal that is not the node's fault: the check runs again after `LOOK_S`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReady:
    """Sent by a worker that has started.

    Attributes:
        node: Id of its node.
        name: Name of its node for people.
        refusal: Why the node cannot do the pool's work; None if it can.
    """

    node: str | None = None
    name: str = "this machine"
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitDone:
    """The pickled result of a unit, its times since the epoch, and the traffic of its worker."""

    result: bytes
    begun_s: float
    ended_s: float
    traffic: Mapping[str, int] = field(default_factory=dict)


class WorkerLost(Exception):  # noqa: N818 - an event, as WorkerReady and UnitDone
    """A worker ended.

    Attributes:
        is_node: Whether its node is known to be gone; the death then does not count against units.
        error: The error that ends the run; None if another worker may start.
        is_loading: Whether the worker ended while it loaded its chain, before any unit.
    """

    def __init__(
        self, message: str, *, is_node: bool = False, error: CuratorError | None = None
    ) -> None:
        super().__init__(message)
        self.is_node, self.error = is_node, error
        self.is_loading = False


Event = tuple["Worker", WorkerReady | UnitDone | WorkerLost]


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """A process that was requested, and the units it has.

    Attributes:
        pool: Its pool.
        events: Queue into which the backend puts events of this worker.
        number: Its number in the run.
        asked_s: Time of the request, by the monotonic clock.
        handle: The backend's handle.
        may_serve_again: Whether its process holds one core, whatever its pool requests, and no GPU,
            whose memory is freed only with the process. Other chains can use such a process.
        ready: None until the worker has started.
        given: Its units; it works on the first one.
    """

    pool: WorkerPool
    events: "queue.SimpleQueue[Event]"
    number: int
    asked_s: float
    handle: Any = None
    may_serve_again: bool = False
    ready: WorkerReady | None = None
    given: deque[UnitAttempts] = field(default_factory=deque)


@dataclass(slots=True, kw_only=True)
class FleetCounts:
    """Counts of the workers of a run, their failures and their traffic."""

    workers: int = 0
    deaths: int = 0
    died_on: set[str] = field(default_factory=set)
    """Nodes on which workers died. A node of these that is gone at the end counts as lost."""
    lost_nodes: set[str] = field(default_factory=set)
    repeated_units: int = 0
    refusals: dict[str, str] = field(default_factory=dict)
    """Name of a node -> why the node could not do the work of a pool."""
    cpu_instead: Counter[str] = field(default_factory=Counter)
    """Items that CPUs processed although GPUs should have, by kind of work and reason."""
    sandboxes: Counter[str] = field(default_factory=Counter)
    """Failures of sandboxes: see `sandboxed_process.SANDBOX_COUNTS`."""
    pools: dict[str, dict[str, float]] = field(default_factory=dict)
    """Resources of a worker of each pool."""
    gpu: dict[str, Any] = field(default_factory=dict)
    """Answer of a GPU to the query of the run, and the number of workers per GPU."""
    traffic: Counter[str] = field(default_factory=Counter)
    """`TRAFFIC` of workers, and the bytes of sources that they read."""
    fleets: list["Fleet"] = field(default_factory=list)
    """Fleets that are open."""


class Fleet:
    """Workers of one chain.

    Args:
        backend: Starts and calls the workers.
        pools: Kinds of workers, the preferred kind first. If there are several, the last one takes
            units from the end, which leaves the longest units to the others.
        counts: Incremented by the fleet.
        unit_times: Gets time and node of each unit.
        beat: Called when a worker comes up, or ends a unit.
        ahead: Units that a worker has at a time.
        keeps: Whether idle workers stay, because more units are submitted later.
    """

    def __init__(
        self,
        backend: "RayBackend",
        pools: Sequence[WorkerPool],
        *,
        counts: FleetCounts,
        unit_times: UnitTimes,
        beat: Callable[[], None] = lambda: None,
        ahead: int = 1,
        keeps: bool = False,
    ) -> None:
        self._backend, self._pools = backend, list(pools)
        self._counts, self._unit_times = counts, unit_times
        self._ahead, self._keeps, self._beat = ahead, keeps, beat
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._waiting: deque[UnitAttempts] = deque()
        self._suspects: deque[UnitAttempts] = deque()
        """Units that will fail if the nodes of their deaths still exist after `settle_s`."""
        self._n_given = 0
        self._unplaced: dict[WorkerPool, dict[Worker, None]] = {pool: {} for pool in pools}
        self._n_up = dict.fromkeys(pools, 0)
        self._free: dict[Worker, None] = {}
        """Workers that can take a unit."""
        self._full: dict[Worker, None] = {}
        self._refused: dict[str, str] = {}
        self._leaving: Set[str] = frozenset()
        self._n_crashes = 0
        """Deaths since the last result."""
        self._looked_s = time.monotonic()
        self._idle_since_s, self._warn_after_s = self._looked_s, PLACE_S
        self._holds_cores = any(pool.resources.cpus for pool in pools)
        counts.fleets.append(self)

    @property
    def n_open(self) -> int:
        """The number of submitted units without a returned result."""
        return len(self._waiting) + self._n_given + len(self._suspects)

    @property
    def n_workers(self) -> int:
        """Workers that are up."""
        return sum(self._n_up.values())

    def loads(self) -> Counter[tuple[str, str]]:
        """Counts, by stage and state, units that wait and workers; any thread may call it."""
        loads = Counter({(self._pools[0].stage, "waiting"): len(self._waiting)})
        loads.update({(pool.stage, "starting"): len(self._unplaced[pool]) for pool in self._pools})
        for worker in (*self._free, *self._full):
            loads[worker.pool.stage, "busy" if worker.given else "idle"] += 1
        return loads

    def reached(self) -> Iterator[Reached]:
        """Yields how far units are that have no result yet; any thread may call it."""
        reports = self._backend.watch.reached
        for worker in (*self._free, *self._full):
            # The other thread may take the last unit away.
            for work in tuple(worker.given)[:1]:
                yield reports.get(work.number, NOT_BEGUN)

    @property
    def refusal(self) -> str | None:
        """Why a node could not do the work; None if all could."""
        return next(iter(self._refused.values()), None)

    def run(self, units: Iterable[Any]) -> Iterator[Any]:
        """Streams units through the workers, and ends them.

        Yields:
            Results, in any order.

        Raises:
            CuratorError: The first error of a step, unchanged; or workers keep dying.
        """
        is_sized, remaining = isinstance(units, Sequence), iter(units)
        is_done = False
        try:
            while True:
                room = None if is_sized else self._stream_room()
                self._waiting += (UnitAttempts(unit=unit) for unit in islice(remaining, room))
                if not self.n_open:
                    break
                yield from self.poll(timeout=LOOK_S)
            is_done = True
        finally:
            self.close(may_serve_again=is_done)

    def submit(self, unit: Any) -> None:  # noqa: ANN401
        """Takes a unit; does not wait."""
        self._waiting.append(UnitAttempts(unit=unit))
        self._begin()

    def poll(self, timeout: float = 0.0) -> list[Any]:
        """Returns available results in any order; waits `timeout` seconds for the first.

        Raises:
            CuratorError: As `run`.
        """
        ends_s = time.monotonic() + timeout
        while True:
            self._begin()
            results = self._taken(min(LOOK_S, ends_s - time.monotonic()))
            self._look()
            if results or not self.n_open or time.monotonic() >= ends_s:
                self._begin()
                return results

    def close(self, *, may_serve_again: bool = False) -> None:
        """Ends the workers and their work."""
        # An idle worker may hold a core that another fleet's worker waits for.
        is_alone = sum(fleet._holds_cores for fleet in self._counts.fleets) <= 1
        for worker in (*self._all_unplaced(), *self._free, *self._full):
            is_idle = worker in self._free and not worker.given
            self._end(worker, may_serve_again=may_serve_again and is_idle and is_alone)
        self._waiting.clear()
        self._suspects.clear()
        self._n_given = 0
        if self in self._counts.fleets:
            self._counts.fleets.remove(self)

    def _all_unplaced(self) -> list[Worker]:
        return [worker for pool in self._pools for worker in self._unplaced[pool]]

    def _is_last(self, pool: WorkerPool) -> bool:
        return len(self._pools) > 1 and pool is self._pools[-1]

    def _stream_room(self) -> int:
        """Returns how many units of a stream to take now: enough for the workers that may start."""
        expected = max(pool.most() for pool in self._pools)
        return max(0, 2 * min(expected, self.n_workers + MAX_UNPLACED) - self.n_open)

    def _begin(self) -> None:
        """Gives units to workers, requests workers for the other units, and ends idle workers."""
        while self._waiting and self._free:
            worker = next(iter(self._free))
            take = self._waiting.pop if self._is_last(worker.pool) else self._waiting.popleft
            worker.given.append(take())
            self._n_given += 1
            self._backend.call(worker, worker.given[-1].packed())
            self._place(worker)
        n_left = len(self._waiting)
        for pool in self._pools:
            unplaced = self._unplaced[pool]
            wanted = max(0, min(n_left, pool.most() - self._n_up[pool], MAX_UNPLACED))
            while len(unplaced) < wanted:
                self._request(pool)
            while len(unplaced) > wanted and not self._keeps:
                self._end(next(reversed(unplaced)))
            if pool.is_expected and unplaced:
                oldest_s = time.monotonic() - next(iter(unplaced)).asked_s
                n_left -= wanted if oldest_s < PATIENCE_S else 0
        if self._backend.is_elastic and not self._keeps and not self._waiting:
            for worker in [idle for idle in self._free if not idle.given]:
                self._end(worker)

    def _place(self, worker: Worker) -> None:
        """Lists a started worker as free or as full, behind the others."""
        self._free.pop(worker, None)
        self._full.pop(worker, None)
        is_leaving = worker.ready is not None and worker.ready.node in self._leaving
        has_room = len(worker.given) < self._ahead and not is_leaving
        (self._free if has_room else self._full)[worker] = None
        if is_leaving and not worker.given:
            self._end(worker)

    def _request(self, pool: WorkerPool) -> None:
        self._counts.workers += 1
        number, now_s = self._counts.workers, time.monotonic()
        worker = Worker(pool=pool, events=self._events, number=number, asked_s=now_s)
        self._unplaced[pool][worker] = None
        self._backend.start(pool, list(self._refused), worker)

    def _end(self, worker: Worker, *, may_serve_again: bool = False) -> None:
        if self._unplaced[worker.pool].pop(worker, self) is self:
            is_up = self._free.pop(worker, self) is None or self._full.pop(worker, self) is None
            self._n_up[worker.pool] -= is_up
        self._backend.end(worker, may_serve_again=may_serve_again)

    def _taken(self, timeout: float) -> list[Any]:
        """Handles all available events, and returns results; waits for the first event."""
        results: list[Any] = []
        try:
            worker, event = self._events.get(timeout > 0, max(0.0, timeout))
            while True:
                if worker in self._free or worker in self._full:
                    if isinstance(event, UnitDone):
                        results.append(self._result(worker, event))
                    elif isinstance(event, WorkerLost):
                        self._on_loss(worker, event)
                elif worker in self._unplaced[worker.pool]:
                    if isinstance(event, WorkerReady):
                        self._on_ready(worker, event)
                    elif isinstance(event, WorkerLost):
                        self._on_loss(worker, event)
                # Events of workers that this fleet has ended are ignored.
                worker, event = self._events.get_nowait()
        except queue.Empty:
            return results

    def _result(self, worker: Worker, answer: UnitDone) -> Any:  # noqa: ANN401 - of any step
        self._beat()
        work = worker.given.popleft()
        self._n_given -= 1
        if not work.is_given_up:
            self._n_crashes = 0
        name = worker.ready.name if worker.ready is not None else ""
        self._counts.traffic.update(answer.traffic)
        self._unit_times.add(
            worker.pool.stage, name, answer.begun_s, answer.ended_s, str(worker.number)
        )
        self._place(worker)
        result = pickle.loads(answer.result)
        if isinstance(result, CuratorError):
            raise result
        if isinstance(result, UnitResult) and result.not_begun:
            # A worker of the same pool takes these items, if the pool has a worker.
            is_last = self._is_last(worker.pool)
            put = self._waiting.append if is_last else self._waiting.appendleft
            put(UnitAttempts(unit=list(result.not_begun)))
        return result

    def _on_ready(self, worker: Worker, ready: WorkerReady) -> None:
        self._beat()
        del self._unplaced[worker.pool][worker]
        worker.ready = ready
        if ready.refusal is None:
            self._n_up[worker.pool] += 1
            self._place(worker)
            return
        self._backend.end(worker, may_serve_again=False)
        if ready.node is not None and ready.node not in self._refused:
            self._refused[ready.node] = ready.refusal
            if not isinstance(ready.refusal, TransientRefusal):
                logger.warning("%s cannot %s: %s", ready.name, worker.pool.stage, ready.refusal)
                self._counts.refusals[ready.name] = ready.refusal

    def _on_loss(self, worker: Worker, lost: WorkerLost) -> None:
        self._end(worker)
        if lost.error is not None:
            raise lost.error
        node = worker.ready.node if worker.ready is not None else None
        if node is not None:
            (self._counts.lost_nodes if lost.is_node else self._counts.died_on).add(node)
        again = list(worker.given)
        self._counts.repeated_units += len(again)
        self._n_given -= len(again)
        if again and not lost.is_node and not lost.is_loading:
            # The worker had not begun its other units.
            again[:1] = again[0].after_death(Death(node=node, at_s=time.monotonic()))
        if not lost.is_node:
            self._counts.deaths += 1
            self._n_crashes += 1
            logger.warning("a worker process died: %s", lost)
        if is_crash_looping(self._n_crashes, self.n_workers):
            doing = "loaded the models of" if lost.is_loading else "worked on"
            raise CuratorError(
                f"{self._n_crashes} workers died while they {doing} {worker.pool.stage}, and none "
                f"finished a unit: {lost}; is there enough memory? use fewer --workers or a "
                "smaller model; the same command resumes from the stored results"
            )
        for work in reversed(again):
            if len(work.deaths) > MAX_DEATHS:
                raise CuratorError(
                    f"the process of a unit died {len(work.deaths)} times: {work.unit!r:.200}; is "
                    "there enough memory? the same command resumes from the stored results"
                )
            if work.is_given_up and self._backend.settle_s > 0:
                self._suspects.append(work)
            else:
                self._waiting.appendleft(work)

    def _look(self) -> None:
        """Checks the cluster every `LOOK_S`, and resumes work that waited for the check."""
        now_s = time.monotonic()
        while self._suspects:
            work = self._suspects[0]
            if now_s < work.deaths[-1].at_s + self._backend.settle_s:
                break
            self._suspects.popleft()
            there = self._backend.watch.state.nodes
            gone = {death.node for death in work.deaths if death.node} - there.keys()
            self._counts.lost_nodes |= gone
            work.deaths = [death for death in work.deaths if death.node not in gone]
            self._waiting.appendleft(work)
        if now_s < self._looked_s + LOOK_S:
            return
        self._looked_s = now_s
        self._backend.watch.check()
        # Draining nodes, such as spot nodes before they end.
        leaving = self._backend.watch.state.draining
        if leaving != self._leaving:
            self._leaving = leaving
            for worker in (*self._free, *self._full):
                self._place(worker)
        unplaced = self._all_unplaced()
        if self.n_workers or not unplaced:
            self._idle_since_s, self._warn_after_s = now_s, PLACE_S
        elif now_s >= self._idle_since_s + self._warn_after_s:
            self._wait(now_s - self._idle_since_s, unplaced)
        passing = [node for node, why in self._refused.items() if isinstance(why, TransientRefusal)]
        for node in passing:
            del self._refused[node]
        for worker in unplaced if passing else ():
            # The next request may use these nodes again.
            self._end(worker)

    def _wait(self, waited_s: float, unplaced: Sequence[Worker]) -> None:
        """Warns why a run has no workers; ends the run if no worker can ever start."""
        pools = list(dict.fromkeys(worker.pool for worker in unplaced))
        if any([self._backend.relax(pool) for pool in pools]):
            for worker in unplaced:
                self._end(worker)
            return
        unmet = [self._backend.unmet(pool) for pool in pools]
        if None in unmet and waited_s < FIRST_WARNING_S:
            # A worker will start soon, or when others have ended.
            self._warn_after_s = FIRST_WARNING_S
            return
        self._warn_after_s *= 2
        wanting = self._backend.wanting(pools[0])
        lasting = [why for why in self._refused.values() if not isinstance(why, TransientRefusal)]
        if lasting and len(self._pools) == 1:
            raise CuratorError(f"no node can do {pools[0].stage}: {lasting[0]}; {wanting}")
        reasons = [reason for reason in unmet if reason is not None]
        text = "; ".join([wanting, *dict.fromkeys(reason.why for reason in reasons)])
        if len(reasons) == len(unmet) and all(reason.is_final for reason in reasons):
            raise UsageError(
                f"{text}; there is no autoscaler: add a node that is large enough, or let a worker "
                "request less (--place, analyze.device, a smaller model)"
            )
        logger.warning("%.0f s without a worker: %s", waited_s, text)
