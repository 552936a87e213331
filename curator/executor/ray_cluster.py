"""Runs chains of steps on Ray, on this machine or on a cluster.

Chains that keep a model run on actors, one unit each at a time; light chains are Ray tasks. Actors
get their chain with each unit, so that they can serve the next chain too.
"""

import logging
import math
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from curator.errors import CuratorError, UsageError
from curator.executor.host_resources import (
    available_cpus,
    available_gpus,
    memory_bytes,
    object_store_bytes,
)
from curator.executor.ledger import ActorLedger, LedgerActor
from curator.executor.ray_start import (
    LOOPBACK,
    few_daemons,
    loopback_kept,
    native_stderr_aside,
    private_folder,
    use_own_token,
)
from curator.executor.signal_mask import signals_held
from curator.executor.worker import SERVED_BYTES, Chain, call_chain, pack_chain
from curator.stage import Resources
from curator.storage.scratch import hold, remove_dead

logger = logging.getLogger(__name__)

_Unit = TypeVar("_Unit")

LIGHT_CPUS = 1
"""Cores that a local Ray counts beyond those of the machine, or of `--workers` if that is more:
light steps wait and add up, and must find a place while every core has a decoder."""

UNITS_PER_CPU = 2
"""Units of a stream that are under way for each core: one is worked on, one waits."""

GROWTH_CHECK_S = 10.0
"""Time between looks at the size of the cluster while workers are busy."""


class Worker:
    """A Ray process that keeps the chain of its last unit."""

    def ready(self) -> None:
        """Returns when the process is up."""

    def run(self, packed: bytes, unit: bytes) -> bytes:
        """Runs one unit through a chain."""
        return call_chain(packed, unit)


class RayCluster:
    """Ray: a cluster of this process's own, or one that it joins; arguments as for `Engine`."""

    def __init__(self, address: str | None, workers: int | None) -> None:
        self._address = address
        self._workers = workers
        self._idle: list[Any] = []
        self._n_chains = 0
        """Chains whose workers run, or wait for room."""
        self._session: BinaryIO | None = None
        self.ray: Any = None

    def start(self) -> None:
        """Starts Ray or joins the cluster.

        Raises:
            UsageError: The cluster cannot be joined.
            CuratorError: Ray does not start.
        """
        if self._address is None:
            use_own_token()
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        logging.getLogger("ray").setLevel(logging.ERROR)
        import ray

        where = self._address or "this machine"
        try:
            with native_stderr_aside(), signals_held():
                self._init_twice(ray)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UsageError(
                f"Ray does not start on {where}: {error}; check --ray-address, and "
                "that the cluster runs the same Ray and Python versions"
            ) from error
        except Exception as error:
            # If a node does not come up in time, Ray raises a plain `Exception`.
            if type(error) is not Exception:
                raise
            raise CuratorError(
                f"Ray does not start on {where}: {error}; the machine may have "
                "too much to do, or too little memory"
            ) from error
        self.ray = ray

    def n_cpus(self) -> int:
        """Returns the cores of the cluster."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)) - LIGHT_CPUS)

    def n_gpus(self) -> float:
        """Returns the GPUs of the cluster."""
        return float(self.ray.cluster_resources().get("GPU", 0))

    def new_ledger(self) -> ActorLedger:
        """Returns a new ledger that all nodes can write to."""
        return ActorLedger(self.ray.remote(num_cpus=0, max_restarts=3)(LedgerActor).remote())

    def stop(self) -> None:
        """Stops Ray, or leaves the cluster."""
        self._idle.clear()
        self.ray.shutdown()
        if self._session is not None:
            self._session.close()

    def as_tasks(
        self, steps: Chain, units: Iterable[_Unit], *, retries: int, n_cpus: Callable[[], int]
    ) -> Iterator[tuple[_Unit, Any]]:
        """Streams units through any free processes; yields None where all tries died."""
        cpus = max(step.resources.cpus for step in steps)
        self._let_go()
        call = self.ray.remote(num_cpus=cpus, max_retries=retries)(call_chain)
        packed = pack_chain(steps)
        room = math.ceil(UNITS_PER_CPU * n_cpus() / cpus)
        under_way: dict[Any, _Unit] = {}
        remaining = iter(units)
        while True:
            for unit in islice(remaining, room - len(under_way)):
                under_way[call.remote(packed, pickle.dumps(unit))] = unit
            if not under_way:
                return
            (ready,), _ = self.ray.wait(list(under_way), num_returns=1)
            yield under_way.pop(ready), self.result(ready)

    def on_workers(
        self, steps: Chain, units: Sequence[Any], n_workers: Callable[[], int]
    ) -> Iterator[Any]:
        """Streams units through processes that keep the chain's state, one unit each.

        Ray restarts a process that died, and gives it the same unit: steps give up by the ledger.
        On a growing cluster, workers are added. Without a GPU they serve the next chain, where this
        machine has the memory for that.
        """
        self._n_chains += 1
        packed = pack_chain(steps)
        waiting = deque(units)
        under_way: dict[Any, tuple[Any, bool]] = {}
        workers: list[Any] = []
        each = largest(steps)
        is_done = False
        try:
            while waiting or any(has_unit for _, has_unit in under_way.values()):
                while waiting and len(workers) < n_workers():
                    workers.append(self.worker(each))
                    under_way[workers[-1].ready.remote()] = workers[-1], False
                ready, _ = self.ray.wait(list(under_way), num_returns=1, timeout=GROWTH_CHECK_S)
                for reference in ready:
                    worker, has_unit = under_way.pop(reference)
                    result = self.result(reference, or_raise=True)
                    if waiting:
                        unit = pickle.dumps(waiting.popleft())
                        under_way[worker.run.remote(packed, unit)] = worker, True
                    if has_unit:
                        yield result
            is_done = True
        finally:
            self._n_chains -= 1
            has_room = memory_bytes() // SERVED_BYTES >= len(workers)
            # An idle worker holds the core that another chain's workers may wait for.
            is_alone = not self._n_chains
            if is_done and is_alone and has_room and _may_serve_again(each):
                self._idle += workers
            else:
                for worker in workers:
                    self.ray.kill(worker)

    def worker(self, each: Resources) -> Any:  # noqa: ANN401
        """Returns a process that can keep such a chain: an idle one, or a new one."""
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
        return self.ray.remote(**options)(Worker).remote()

    def _let_go(self) -> None:
        """Ends idle workers, which would hold cores that others wait for."""
        for worker in self._idle:
            self.ray.kill(worker)
        self._idle.clear()

    def result(self, reference: Any, *, or_raise: bool = False) -> Any:  # noqa: ANN401
        """Returns a process's answer; None if it died, and Ray may not repeat it."""
        try:
            answer = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError:
            raise
        except self.ray.exceptions.RayError as error:
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
            private = ray._private
            with few_daemons(private.node.Node), loopback_kept(private.services):
                context = ray.init(
                    address="local",
                    num_cpus=max(available_cpus(), self._workers or 0) + LIGHT_CPUS,
                    # By its own count Ray may find none, and would wait for workers forever.
                    num_gpus=available_gpus(),
                    include_dashboard=False,
                    _node_ip_address=LOOPBACK,
                    _temp_dir=str(private_folder()),
                    object_store_memory=object_store_bytes(),
                    **common,
                )
            self._own_session(Path(context.address_info["session_dir"]))

    def _own_session(self, folder: Path) -> None:
        """Marks Ray's log folder as this process's, and removes those of dead processes.

        Ray leaves one for each start. The last one stays for inspection.
        """
        remove_dead(folder.parent, "session_")
        self._session = hold(folder)


def _may_serve_again(each: Resources) -> bool:
    """Returns whether workers can serve other chains: GPU memory is freed only with the process."""
    return each.cpus == 1 and not each.gpus


def largest(steps: Chain) -> Resources:
    """Returns the resources of a chain's worker: the most of any step."""
    return Resources(
        cpus=max(step.resources.cpus for step in steps),
        memory_bytes=max(step.resources.memory_bytes for step in steps),
        gpus=max(step.resources.gpus for step in steps),
    )
