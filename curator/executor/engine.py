"""Runs chains of steps over units of work on Ray. The one module that imports it.

A unit passes all steps of a chain in one process, and its result streams back while others are
worked on. Units and results are small records and references; frames never cross processes.

Ray is started only when there is work for it. Steps that merely read parts and add up run in the
driver when there are few units: starting Ray costs seconds of every core.
"""

import logging
import math
import os
import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TypeVar

from curator.errors import CuratorError, UsageError
from curator.executor.actor_pool import Pool
from curator.executor.child_process import Child, FileLedger
from curator.executor.host_resources import (
    available_cpus,
    available_gpus,
    memory_bytes,
    object_store_bytes,
)
from curator.executor.ray_start import few_daemons, native_stderr_aside, use_own_token
from curator.executor.signal_mask import signals_held
from curator.executor.worker import (
    ONE_CORE,
    SERVED_BYTES,
    Chain,
    Resources,
    Step,
    Worker,
    call_chain,
    pack_chain,
)
from curator.storage.scratch import hold, remove_dead

logger = logging.getLogger(__name__)

_Unit = TypeVar("_Unit")

LIGHT_CPUS = 1
"""Cores that a local Ray counts beyond those of the machine, or of `--workers` if that is more:
light steps wait and add up, and must find a place while every core has a decoder."""

UNITS_PER_CPU = 2
"""Units of a stream that are under way for each core: one is worked on, one waits."""

TASK_RETRIES = 3
"""How often Ray repeats a unit of light work whose process died."""

GROWTH_CHECK_S = 10.0
"""Time between looks at the size of the cluster while workers are busy."""

SMALL_FRAMES = 1800.0
"""Work, in frames of 1080p, that one process does while a cluster would still be starting."""
SMALL_SOURCES = 32


class _LedgerActor:
    """Counts attempts outside the workers, so that a worker's death is not forgotten with it."""

    def __init__(self) -> None:
        self._begun: dict[str, int] = {}
        self._n_done = 0
        self._seconds = 0.0

    def reset(self) -> None:
        self._begun, self._n_done, self._seconds = {}, 0, 0.0

    def begin(self, key: str) -> int:
        self._begun[key] = self._begun.get(key, 0) + 1
        return self._begun[key]

    def end(self, key: str, seconds: float) -> None:
        self._begun.pop(key, None)
        self._n_done += 1
        self._seconds += seconds

    def progress(self) -> tuple[int, float]:
        return self._n_done, self._seconds


class Ledger:
    """A worker's side of the ledger."""

    def __init__(self, actor: Any) -> None:  # noqa: ANN401
        self._actor = actor

    def reset(self) -> None:
        """Forgets everything: another chain begins."""
        self._actor.reset.remote()

    def begin(self, key: str) -> int:
        """Notes that work on a key begins; returns the number of this attempt, from 1."""
        import ray

        number: int = ray.get(self._actor.begin.remote(key))
        return number

    def end(self, key: str, seconds: float) -> None:
        """Notes that work on a key ended, with the seconds of video in it.

        It does not wait: an actor takes the calls of one worker in their order, so that it is
        noted before the next beginning is.
        """
        self._actor.end.remote(key, seconds)

    def progress(self) -> tuple[int, float]:
        """Keys that ended, and their seconds of video."""
        import ray

        done: tuple[int, float] = ray.get(self._actor.progress.remote())
        return done


class Engine:
    """Ray, started when first needed and stopped on exit.

    Args:
        address: Cluster to join, or None for one of this process's own.
        workers: Workers of steps that keep state; None for one per core.
    """

    def __init__(self, *, address: str | None, workers: int | None) -> None:
        self._address = address
        self._workers = workers
        self._ray: Any = None
        self._child = Child()
        self._ledger: Ledger | FileLedger | None = None
        self._idle: list[Any] = []
        self._session: BinaryIO | None = None

    def __enter__(self) -> "Engine":
        """Starts nothing yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops Ray, and with it every process it started here."""
        self.stop()

    @property
    def is_started(self) -> bool:
        """Whether Ray runs."""
        return self._ray is not None

    def is_small(self, n_items: int, frames: float) -> bool:
        """Whether work is done sooner by one process than by a cluster that has to start first.

        Args:
            n_items: Sources or clips.
            frames: Their frames, weighted by size: 1 for 1080p.
        """
        may = self._address is None and self._workers is None and self._ray is None
        return may and n_items <= SMALL_SOURCES and frames <= SMALL_FRAMES

    def prestart(self) -> None:
        """Starts the process for small work, which loads what probing needs."""
        self._child.load(("curator.stages.scan.stage",))

    def preload(self) -> None:
        """Lets the process for small work load what analysis needs."""
        self._child.load(("torch", "cv2", "curator.stages.analyze.stage"))

    def ledger(self, *, small: bool = False) -> "Ledger | FileLedger":
        """A fresh ledger for one chain; starts Ray unless the work is small."""
        if small or self._address is None:
            self._ledger = self.own_ledger(small=small)
            return self._ledger
        self._start()
        if isinstance(self._ledger, Ledger):
            self._ledger.reset()
        else:
            self._ledger = self.own_ledger()
        return self._ledger

    def own_ledger(self, *, small: bool = False) -> "Ledger | FileLedger":
        """A ledger beside that of the chain under way; starts Ray unless the work is small."""
        if small:
            return self._child.ledger()
        ray = self._start()
        if self._address is None:
            # All workers see this machine's files; an actor is a Python process of its own.
            return self._child.ledger()
        return Ledger(ray.remote(num_cpus=0, max_restarts=3)(_LedgerActor).remote())

    def progress(self) -> tuple[int, float]:
        """Keys that ended in the current ledger, and their seconds of video."""
        return self._ledger.progress() if self._ledger is not None else (0, 0.0)

    def n_cpus(self) -> int:
        """Cores for work: the machine's without Ray, the cluster's with it."""
        if self._ray is not None and self._address is not None:
            return max(1, int(self._ray.cluster_resources().get("CPU", 1)) - LIGHT_CPUS)
        return available_cpus()

    def n_workers(self, n_units: int, each: Resources = ONE_CORE) -> int:
        """Workers for a step that keeps state: what was asked, or as the machine allows."""
        wanted = self._workers
        if wanted is None:
            wanted = self.n_cpus()
            if self._address is None:
                wanted = min(wanted, memory_bytes() // each.memory_bytes)
        if each.gpus:
            wanted = min(wanted, int(self.n_gpus() / each.gpus + 1e-6))
        return max(1, min(wanted, n_units))

    def n_gpus(self) -> float:
        """GPUs for work: the machine's without Ray, the cluster's with it."""
        if self._ray is not None and self._address is not None:
            return float(self._ray.cluster_resources().get("GPU", 0))
        return float(available_gpus())

    def run(
        self, steps: Sequence[Step], units: Sequence[Any], *, small: bool = False
    ) -> Iterator[Any]:
        """Streams units through a chain on Ray, or in one process of its own if they are small.

        Args:
            steps: Chain.
            units: Picklable inputs.
            small: What `is_small` said.

        Yields:
            Results, in any order.

        Raises:
            CuratorError: The first that a step raised, as it was.
        """
        if not units:
            return
        if small:
            yield from self._child.run(steps, units)
            return
        self._start()
        if any(step.keeps_state for step in steps):
            yield from self._on_workers(steps, units)
            return
        for unit, result in self._as_tasks(steps, units, retries=TASK_RETRIES):
            if result is None:
                raise CuratorError(
                    f"the process of a unit died {TASK_RETRIES + 1} times: {unit!r:.200}; is there "
                    "enough memory? the same command goes on from what was done"
                )
            yield result

    def run_here(self, steps: Sequence[Step], units: Sequence[Any]) -> Iterator[Any]:
        """Runs a chain in this process, one unit at a time."""
        made = [step.make(**step.settings) for step in steps]
        for unit in units:
            result = unit
            for step in made:
                result = step(result)
            yield result

    def pool(self, steps: Sequence[Step]) -> Pool:
        """Workers of a chain that take units while other work goes on; Ray must be started.

        Args:
            steps: Chain.
        """
        self._start()
        each = _largest(steps)
        most = self.n_workers(1 << 20, each)
        return Pool(
            self._ray,
            lambda: self._worker(each),
            pack_chain(steps),
            lambda reference: self._result(reference, or_raise=True),
            most,
        )

    def attempts(
        self, step: Step, units: Iterable[_Unit], *, few: bool
    ) -> Iterator[tuple[_Unit, Any]]:
        """Streams units through one light step, and says which of them ended their process.

        Units are taken as there is room for them: neither they nor their results pile up, and
        their number need not be known.

        Args:
            step: One that keeps no state.
            units: Picklable inputs.
            few: Whether one process of its own does them sooner than a cluster starts.

        Yields:
            Each unit with its result, or with None where its process died; in any order.

        Raises:
            CuratorError: The first that the step raised, as it was.
        """
        if few:
            yield from self._child.attempts(step, units)
            return
        self._start()
        yield from self._as_tasks([step], units, retries=0)

    def _as_tasks(
        self, steps: Chain, units: Iterable[_Unit], *, retries: int
    ) -> Iterator[tuple[_Unit, Any]]:
        """Streams units through any processes that are free; None where all tries died."""
        cpus = max(step.resources.cpus for step in steps)
        self._let_go()
        call = self._ray.remote(num_cpus=cpus, max_retries=retries)(call_chain)
        packed = pack_chain(steps)
        room = math.ceil(UNITS_PER_CPU * self.n_cpus() / cpus)
        under_way: dict[Any, _Unit] = {}
        remaining = iter(units)
        while True:
            for unit in islice(remaining, room - len(under_way)):
                under_way[call.remote(packed, pickle.dumps(unit))] = unit
            if not under_way:
                return
            (ready,), _ = self._ray.wait(list(under_way), num_returns=1)
            yield under_way.pop(ready), self._result(ready)

    def _on_workers(self, steps: Chain, units: Sequence[Any]) -> Iterator[Any]:
        """Streams units through processes that keep what the chain loads, one unit each.

        Ray starts a process that died again, and gives it the same unit: steps give up by the
        ledger. On a cluster that grows, workers are added. Without a GPU they serve the next chain,
        where this machine has the memory for that.
        """
        packed = pack_chain(steps)
        waiting = deque(units)
        under_way: dict[Any, tuple[Any, bool]] = {}
        workers: list[Any] = []
        each = _largest(steps)
        is_done = False
        try:
            while waiting or any(has_unit for _, has_unit in under_way.values()):
                while waiting and len(workers) < self.n_workers(len(units), each):
                    workers.append(self._worker(each))
                    under_way[workers[-1].ready.remote()] = workers[-1], False
                ready, _ = self._ray.wait(list(under_way), num_returns=1, timeout=GROWTH_CHECK_S)
                for reference in ready:
                    worker, has_unit = under_way.pop(reference)
                    result = self._result(reference, or_raise=True)
                    if waiting:
                        unit = pickle.dumps(waiting.popleft())
                        under_way[worker.run.remote(packed, unit)] = worker, True
                    if has_unit:
                        yield result
            is_done = True
        finally:
            has_room = memory_bytes() // SERVED_BYTES >= len(workers)
            if is_done and has_room and _may_serve_again(each):
                self._idle += workers
            else:
                for worker in workers:
                    self._ray.kill(worker)

    def _worker(self, each: Resources) -> Any:  # noqa: ANN401
        if self._idle and _may_serve_again(each):
            return self._idle.pop()
        self._let_go()
        options: dict[str, Any] = {
            "num_cpus": each.cpus,
            "max_restarts": -1,
            "max_task_retries": -1,
        }
        if each.gpus:
            options["num_gpus"] = each.gpus
        return self._ray.remote(**options)(Worker).remote()

    def _let_go(self) -> None:
        """Ends workers that have nothing to do: they would hold cores that others wait for."""
        for worker in self._idle:
            self._ray.kill(worker)
        self._idle.clear()

    def _result(self, reference: Any, *, or_raise: bool = False) -> Any:  # noqa: ANN401
        """What a process answered; None if it died, and Ray may not repeat it."""
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError as error:
            line = str(error).splitlines()[0]
            if or_raise:
                raise CuratorError(
                    f"a worker cannot be started: {line}; are all nodes set up alike?"
                ) from error
            logger.warning("a worker process died: %s", line)
            return None
        result = pickle.loads(answer) if answer is not None else None
        if isinstance(result, CuratorError):
            raise result
        return result

    def stop(self) -> None:
        """Stops Ray and the process for small work, if they were started."""
        self._child.stop()
        if self._ray is not None:
            self._idle.clear()
            self._ray.shutdown()
            if self._session is not None:
                self._session.close()
            self._ray, self._ledger = None, None

    def _start(self) -> Any:  # noqa: ANN401
        if self._ray is not None:
            return self._ray
        self._child.stop()
        if self._address is None:
            use_own_token()
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        logging.getLogger("ray").setLevel(logging.ERROR)
        import ray

        try:
            with native_stderr_aside(), signals_held():
                self._init_twice(ray)
                self._ray = ray
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UsageError(
                f"Ray does not start on {_where(self._address)}: {error}; check --ray-address, and "
                "that the cluster runs the same Ray and Python versions"
            ) from error
        except Exception as error:
            # Of a node that does not come up in time Ray raises an `Exception`, and no more.
            if type(error) is not Exception:
                raise
            raise CuratorError(
                f"Ray does not start on {_where(self._address)}: {error}; the machine may have "
                "too much to do, or too little memory"
            ) from error
        return ray

    def _init_twice(self, ray: Any) -> None:  # noqa: ANN401
        """Starts Ray, once more where its node did not come up in the 30 s that Ray waits."""
        try:
            self._init(ray)
        except Exception as error:
            if type(error) is not Exception:
                raise
            logger.warning("Ray did not start in time (%s); starting it once more", error)
            ray.shutdown()
            self._init(ray)

    def _init(self, ray: Any) -> None:  # noqa: ANN401
        common = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._address is not None:
            ray.init(address=self._address, **common)
        else:
            with few_daemons(ray._private.node.Node):
                context = ray.init(
                    address="local",
                    num_cpus=max(available_cpus(), self._workers or 0) + LIGHT_CPUS,
                    # By its own count Ray may find none, and workers would be waited for.
                    num_gpus=available_gpus(),
                    include_dashboard=False,
                    _node_ip_address="127.0.0.1",
                    object_store_memory=object_store_bytes(),
                    **common,
                )
            self._own_session(Path(context.address_info["session_dir"]))

    def _own_session(self, folder: Path) -> None:
        """Marks Ray's folder of logs as this process's, and removes those of dead ones.

        Ray leaves one for each start. The last one stays, to look into.
        """
        remove_dead(folder.parent, "session_")
        self._session = hold(folder)


def _where(address: str | None) -> str:
    """A cluster in words."""
    return address or "this machine"


def _may_serve_again(each: Resources) -> bool:
    """Whether workers of a chain serve others: a GPU's memory comes back with the process only."""
    return each.cpus == 1 and not each.gpus


def _largest(steps: Chain) -> Resources:
    """What a worker of a chain takes: the most of any step."""
    return Resources(
        cpus=max(step.resources.cpus for step in steps),
        memory_bytes=max(step.resources.memory_bytes for step in steps),
        gpus=max(step.resources.gpus for step in steps),
    )
