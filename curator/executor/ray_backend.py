"""Runs the workers of a fleet as Ray actors.

Ray restarts no actor, because the fleet decides which units to repeat. An actor gets its chain
before its first unit, so that it can serve the next chain too.
"""

import fcntl
import hashlib
import json
import logging
import os
import pickle
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import curator
from curator.errors import CuratorError, FullDiskError
from curator.executor.cpu_accounting import ACTOR, BUSY_SHARE, tree_cpu_s
from curator.executor.fleet import (
    PLACE_S,
    TransientRefusal,
    UnitDone,
    Unmet,
    Worker,
    WorkerLost,
    WorkerPool,
    WorkerReady,
)
from curator.executor.ray_watch import MEMORY, RayWatch, amounts, pulse_key
from curator.executor.sandboxed_process import NOT_BEGUN, process_sandbox
from curator.executor.worker import call_chain, load_chain
from curator.number_text import amount
from curator.storage.base import TRAFFIC
from curator.storage.object_service import READ_SETTINGS

logger = logging.getLogger(__name__)

SETTLE_S = 30.0
"""Time after which Ray has noticed a lost node: five health checks, 3 s apart, and a margin."""

REPORT_S = 1.0
"""Time between a worker's reports of how far its unit is; see `RayWatch` for the driver's."""

PULSE_S = 30.0
"""Time between a worker's checks of its own CPU use."""

PLACE_SHARE = 0.001
"""Share of a custom resource that a worker takes, so small that any number of workers fit."""

_WITH_NODE = ("never ran", "node was terminated", "node has died", "node is dead")
"""Words in Ray's errors about actors that ended with their node or waited for it; the errors have
no attribute for this case."""


@cache
def _package_fingerprint() -> str:
    """Returns the version and a short hash of all modules, which must be equal on all nodes."""
    root = Path(curator.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"{curator.__version__} ({digest.hexdigest()[:12]})"


class WorkerProcess:
    """A Ray process that keeps a chain."""

    _pulse: threading.Thread | None = None
    _unit = 0
    """Number of the unit under way."""

    def begin(
        self,
        version: str,
        check: bytes | None,
        chain: bytes,
        *,
        stage: str,
        holds_gpu: bool,
        environment: Mapping[str, str],
    ) -> tuple[str, WorkerReady, bytes]:
        """Loads the chain for the next units.

        On a node with GPUs, a worker without a GPU runs at idle priority. Workers with a GPU
        request no core from Ray, so that they start even while other workers hold all cores.

        Returns:
            The package version on this node; `WorkerReady`; None or an error of loading, pickled.
        """
        import ray

        os.environ.update(environment)
        self._chain, self._stage = chain, stage
        if self._pulse is None:
            send = partial(_send_pulses, lambda: self._unit)
            self._pulse = threading.Thread(target=send, name="pulse", daemon=True)
            self._pulse.start()
        node = ray.get_runtime_context().get_node_id()
        # The autoscaler's name for the type of this node, if any.
        kind = os.environ.get("RAY_NODE_TYPE_NAME", "")
        name = f"{kind} {ray.util.get_node_ip_address()}".strip()  # type: ignore[no-untyped-call]
        if not holds_gpu and sys.platform == "linux" and _has_gpus(node):
            # Applies to this thread, and to threads and processes that it starts later.
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        here = _package_fingerprint()
        is_same = here == version
        refusal = _refusal(check) if check is not None and is_same else None
        error = load_chain(chain) if is_same and refusal is None else pickle.dumps(None)
        return here, WorkerReady(node=node, name=name, refusal=refusal), error

    def run(self, unit: bytes, number: int) -> tuple[bytes, float, float, dict[str, int]]:
        """Runs one unit through the chain; returns the result, the times and the traffic."""
        import ray

        begun_s, self._unit = time.time(), number
        # Ray would keep the name of the first chain that this process served.
        raylet: Any = ray._raylet
        raylet.setproctitle(f"ray::{_class_name(self._stage)}.run")
        result, moved = call_chain(self._chain, unit), dict(TRAFFIC)
        TRAFFIC.clear()
        return result, begun_s, time.time(), moved


def _send_pulses(unit: Callable[[], int]) -> None:
    """Tells the driver, through the head node, that this process has used CPU time.

    And how far its unit is: another key for each worker, so the driver can add them up.
    """
    import ray

    context = ray.get_runtime_context()
    worker: Any = ray._private.worker.global_worker
    key, me, cpu_s = pulse_key(context.get_job_id()), context.get_worker_id(), tree_cpu_s()
    begun_s, told = time.monotonic(), NOT_BEGUN
    while True:
        time.sleep(REPORT_S)
        news: dict[bytes, str] = {}
        # The number is read first: a report may name the unit before, and then says nothing.
        number, reached = unit(), process_sandbox().reached
        if reached not in (told, NOT_BEGUN):
            news[key + f"-{me}".encode()] = json.dumps([number, *reached])
            told = reached
        if time.monotonic() >= begun_s + PULSE_S:
            begun_s, before_s, cpu_s = time.monotonic(), cpu_s, tree_cpu_s()
            if cpu_s - before_s >= BUSY_SHARE * PULSE_S:
                news[key] = f"{me} {cpu_s:.2f}"
        try:
            for name, text in news.items():
                worker.gcs_client.internal_kv_put(name, text.encode(), True, None)
        except Exception:
            # The driver notices by itself that the head is gone.
            logger.debug("no pulse was sent", exc_info=True)


def _class_name(stage: str) -> str:
    """Returns the name of a stage's actors, such as `curate_analyze`."""
    return ACTOR + re.sub(r"\W", "_", stage)


def _has_gpus(node: str) -> bool:
    import ray

    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return any(entry["NodeID"] == node and entry["Resources"].get("GPU") for entry in nodes)


def _refusal(check: bytes) -> str | None:
    """Runs a check once per node and run; workers that start together wait for one answer."""
    import ray

    context, private = ray.get_runtime_context(), ray._private.worker._global_node  # type: Any, Any
    name = hashlib.sha256(check).hexdigest()[:16]
    name = f"curate-check-{context.get_job_id()}-{context.get_node_id()}-{name}"
    with (Path(private.get_session_dir_path()) / name).open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        stored = file.read()
        if stored:
            answer: str | None = pickle.loads(stored)
            return answer
        refusal: str | None = pickle.loads(check)()
        if not isinstance(refusal, TransientRefusal):
            file.write(pickle.dumps(refusal))
        return refusal


class RayBackend:
    """Starts and calls actors.

    Args:
        ray: The module.
        watch: Observes the cluster.
        is_elastic: Whether this is a cluster, which may grow and which others may use: workers may
            be requested before a node can hold them, and idle ones must end.
        may_serve_again: Whether this machine has the memory for workers of several chains.
    """

    def __init__(
        self,
        ray: Any,  # noqa: ANN401
        watch: RayWatch,
        *,
        is_elastic: bool,
        may_serve_again: bool,
    ) -> None:
        self._ray, self.watch = ray, watch
        self.is_elastic = is_elastic
        self.settle_s = SETTLE_S if is_elastic else 0.0
        """Time after which the watch knows that a lost node is gone, in seconds."""
        self._may_serve_again = may_serve_again
        self._asks_memory = True
        self._classes: dict[str, Any] = {}
        self._idle: list[Any] = []
        self._lock = threading.RLock()

    def start(self, pool: WorkerPool, refused: Sequence[str], worker: Worker) -> None:
        """Requests an actor, or takes an idle one."""
        with self._lock:
            cpus = pool.resources.cpus
            worker.may_serve_again = cpus == 1 and not pool.resources.gpus
            if self._idle and 0 < cpus <= 1 and not pool.resources.gpus:
                worker.handle, worker.may_serve_again = self._idle.pop(), True
            else:
                # Idle workers must hold no cores that others wait for.
                while self._idle and (cpus or pool.resources.gpus):
                    self._ray.kill(self._idle.pop())
                process = self._actor_class(pool.stage).options(**self._options(pool, refused))
                worker.handle = process.remote()
        holds_gpu = pool.resources.gpus > 0
        begun = worker.handle.begin.remote(
            _package_fingerprint(),
            pool.check,
            pool.chain,
            stage=pool.stage,
            holds_gpu=holds_gpu,
            environment={name: os.environ[name] for name in READ_SETTINGS if name in os.environ},
        )
        begun.future().add_done_callback(lambda done: self._put(worker, done, _greeting))

    def _actor_class(self, stage: str) -> Any:  # noqa: ANN401
        """Returns an actor class named after a stage, because Ray's lists show the class name."""
        name = _class_name(stage)
        if name not in self._classes:
            self._classes[name] = self._ray.remote(type(name, (WorkerProcess,), {}))
        return self._classes[name]

    def call(self, worker: Worker, unit: bytes) -> None:
        """Gives a worker a unit."""
        future = worker.handle.run.remote(unit, worker.given[-1].number).future()
        future.add_done_callback(lambda done: self._put(worker, done, _answer))

    def end(self, worker: Worker, *, may_serve_again: bool) -> None:
        """Ends a worker, or keeps it for the next chain."""
        actor, worker.handle = worker.handle, None
        with self._lock:
            may_serve_again = may_serve_again and self._may_serve_again and not self.is_elastic
            if may_serve_again and worker.may_serve_again:
                self._idle.append(actor)
                return
        self._ray.kill(actor)

    def wanting(self, pool: WorkerPool) -> str:
        """Describes the needs of a pool's worker, and the resources of the cluster."""
        state, demand = self.watch.state, self._demand(pool)
        total = {name: state.total(name) for name in {"CPU": 0, "GPU": 0, MEMORY: 0} | demand}
        return (
            f"a worker for {pool.stage} needs {amounts(demand)}, and the cluster of "
            f"{amount(len(state.nodes), 'node')} has {amounts(total)} in all"
        )

    def unmet(self, pool: WorkerPool) -> Unmet | None:
        """Returns why no node can hold a pool's worker; None if one can, or may come."""
        state = self.watch.state
        why = state.unmet(self._demand(pool))
        if why is None:
            return None
        # Nodes of a new cluster join one after the other.
        is_settled = time.monotonic() - self.watch.changed_s >= PLACE_S
        return Unmet(why=why, is_final=not state.has_autoscaler and is_settled)

    def relax(self, pool: WorkerPool) -> bool:
        """Stops requesting memory if only that may keep nodes away; returns whether it did."""
        if not self.watch.state.lacks_only_memory(self._demand(pool)):
            return False
        self._asks_memory = False
        logger.warning(
            "the autoscaler adds no node for a worker of %s, perhaps because its node types do not "
            "declare their memory; workers now request no memory, so a node may get more workers "
            "than fit into its memory: add `memory` to `resources` of the node types",
            pool.stage,
        )
        return True

    def _demand(self, pool: WorkerPool) -> dict[str, float]:
        """Resources that a pool's worker requests from a node; memory in bytes."""
        each = pool.resources
        demand = {"CPU": each.cpus, "GPU": each.gpus}
        if self.is_elastic and self._asks_memory:
            # On a single machine, the engine starts only as many workers as fit its memory.
            demand[MEMORY] = each.memory_bytes
        if pool.place is not None:
            demand[pool.place] = PLACE_SHARE
        return {name: amount for name, amount in demand.items() if amount}

    def _options(self, pool: WorkerPool, refused: Sequence[str]) -> dict[str, Any]:
        demand = self._demand(pool)
        options: dict[str, Any] = {
            "num_cpus": demand.pop("CPU", 0),
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        for name, option in (("GPU", "num_gpus"), (MEMORY, "memory")):
            if name in demand:
                options[option] = demand.pop(name)
        if demand:
            options["resources"] = demand
        if refused:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(refused)})"}
        return options

    def _put(
        self,
        worker: Worker,
        done: Any,  # noqa: ANN401
        read: Callable[[Any], WorkerReady | UnitDone],
    ) -> None:
        """Converts the outcome of a call to an event; runs in a thread of Ray."""
        event: WorkerReady | UnitDone | WorkerLost
        try:
            event = read(done.result())
        except BaseException as error:  # noqa: BLE001 - an event, too
            event = self._lost(error)
            event.is_loading = read is _greeting
        worker.events.put((worker, event))

    def _lost(self, error: BaseException) -> WorkerLost:
        if isinstance(error, WorkerLost):
            return error
        kinds = self._ray.exceptions
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        line = (lines[-1] if lines else type(error).__name__).partition(" Some common causes")[0]
        if isinstance(error, kinds.RayTaskError) or getattr(error, "actor_init_failed", False):
            return _final(f"a worker cannot start: {line}; are all nodes set up alike?")
        if isinstance(error, kinds.RuntimeEnvSetupError):
            return _final(f"a worker cannot start: {line}")
        # Imported here because it imports PyAV, which not every worker needs.
        from curator.storage.scratch import has_room

        if not self.is_elastic and not has_room():
            # Ray's processes die if they cannot write their logs.
            return WorkerLost(line, error=FullDiskError(tempfile.gettempdir()))
        is_node = isinstance(error, kinds.NodeDiedError) or getattr(error, "preempted", False)
        return WorkerLost(line, is_node=is_node or any(words in str(error) for words in _WITH_NODE))


def _greeting(begun: tuple[str, WorkerReady, bytes]) -> WorkerReady:
    version, ready, error = begun
    if version != _package_fingerprint():
        raise _final(
            f"node {ready.name} has curate {version}, and this run has {_package_fingerprint()}: "
            "results of different code must not be mixed; install the same version on all nodes"
        )
    raised = pickle.loads(error)
    if raised is not None:
        raise WorkerLost(str(raised), error=raised)
    return ready


def _answer(ran: tuple[bytes, float, float, dict[str, int]]) -> UnitDone:
    result, begun_s, ended_s, moved = ran
    return UnitDone(result=result, begun_s=begun_s, ended_s=ended_s, traffic=moved)


def _final(message: str) -> WorkerLost:
    return WorkerLost(message, error=CuratorError(message))
