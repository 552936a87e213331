"""Runs chains of steps over units of work on Ray Data. The one module that imports Ray.

A chain streams: a unit leaves one step and enters the next without waiting for the others. Units
and results are small records and references; frames never cross processes.

Ray is started only when there is work for it. Steps that merely read parts and add up run in the
driver when there are few units: starting Ray costs seconds of every core.
"""

import contextlib
import logging
import os
import pickle
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from curator.errors import CuratorError, UsageError

logger = logging.getLogger(__name__)

LIGHT_CPUS = 1
"""Cores that a local Ray counts beyond those of the machine, or of `--workers` if that is more:
light steps wait and add up, and must find a place while every core has a decoder."""

WORKER_BYTES = 2 << 30
"""Memory that a worker may need: torch and the network 1.0 GB, with 1080p 1.4, with 8K 1.7."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one worker of a step takes."""

    cpus: float
    memory_bytes: int = 0
    gpus: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a chain.

    Args:
        make: Class whose instances take a unit and give a result; made once per worker.
        settings: Keyword arguments of `make`.
        resources: What a worker takes.
        keeps_state: Whether workers hold a model and are worth keeping; else any process serves.
    """

    make: type
    settings: dict[str, Any] = field(default_factory=dict)
    resources: Resources
    keeps_state: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What the ledger knows of a key when work on it begins."""

    number: int


class _LedgerActor:
    """Counts attempts outside the workers, so that a worker's death is not forgotten with it."""

    def __init__(self) -> None:
        self._begun: dict[str, int] = {}
        self._n_done = 0
        self._seconds = 0.0

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

    def begin(self, key: str) -> int:
        """Notes that work on a key begins; returns the number of this attempt, from 1."""
        import ray

        number: int = ray.get(self._actor.begin.remote(key))
        return number

    def end(self, key: str, seconds: float) -> None:
        """Notes that work on a key ended, with the seconds of video in it."""
        import ray

        ray.get(self._actor.end.remote(key, seconds))

    def progress(self) -> tuple[int, float]:
        """Keys that ended, and their seconds of video."""
        import ray

        done: tuple[int, float] = ray.get(self._actor.progress.remote())
        return done


class _InRay:
    """Calls a step inside a Ray worker: rows of pickled bytes in and out."""

    def __init__(self, make: type, settings: dict[str, Any]) -> None:
        self._step = make(**settings)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        unit = pickle.loads(row["data"])
        if isinstance(unit, CuratorError):
            return row
        try:
            result = self._step(unit)
        except CuratorError as error:
            # Ray would raise an error of its own with this one's text in a page of traceback.
            result = error
        return {"data": pickle.dumps(result)}


_instances: dict[bytes, _InRay] = {}


def _stateless(packed: bytes) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def call(row: dict[str, Any]) -> dict[str, Any]:
        if packed not in _instances:
            _instances.clear()
            make, settings = pickle.loads(packed)
            _instances[packed] = _InRay(make, settings)
        return _instances[packed](row)

    return call


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
        self._ledger: Ledger | None = None

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

    def ledger(self) -> Ledger:
        """A fresh ledger for one chain; starts Ray."""
        ray = self._start()
        actor = ray.remote(num_cpus=0, max_restarts=3)(_LedgerActor).remote()
        self._ledger = Ledger(actor)
        return self._ledger

    def progress(self) -> tuple[int, float]:
        """Keys that ended in the current ledger, and their seconds of video."""
        return self._ledger.progress() if self._ledger is not None else (0, 0.0)

    def n_cpus(self) -> int:
        """Cores for work: the machine's without Ray, the cluster's with it."""
        if self._ray is not None and self._address is not None:
            return max(1, int(self._ray.cluster_resources().get("CPU", 1)) - LIGHT_CPUS)
        return available_cpus()

    def n_workers(self, n_units: int) -> int:
        """Workers for a step that keeps state: what was asked, or as cores and memory allow."""
        wanted = self._workers
        if wanted is None:
            wanted = self.n_cpus()
            if self._address is None:
                wanted = min(wanted, memory_bytes() // WORKER_BYTES)
        return max(1, min(wanted, n_units))

    def run(self, steps: Sequence[Step], units: Sequence[Any]) -> Iterator[Any]:
        """Streams units through a chain on Ray.

        Args:
            steps: Chain.
            units: Picklable inputs.

        Yields:
            Results, in any order.

        Raises:
            CuratorError: The first that a step raised, as it was.
        """
        if not units:
            return
        self._start()
        import ray.data

        rows = [{"data": pickle.dumps(unit)} for unit in units]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows))
        for step in steps:
            dataset = self._add(dataset, step, len(units))
        for row in dataset.iter_rows():
            result = pickle.loads(row["data"])
            if isinstance(result, CuratorError):
                raise result
            yield result

    def run_here(self, steps: Sequence[Step], units: Sequence[Any]) -> Iterator[Any]:
        """Runs a chain in this process, one unit at a time."""
        made = [step.make(**step.settings) for step in steps]
        for unit in units:
            result = unit
            for step in made:
                result = step(result)
            yield result

    def stop(self) -> None:
        """Stops Ray if it was started."""
        if self._ray is not None:
            self._ray.shutdown()
            self._ray, self._ledger = None, None

    def _add(self, dataset: Any, step: Step, n_units: int) -> Any:  # noqa: ANN401
        from ray.data import ActorPoolStrategy

        options: dict[str, Any] = {"num_cpus": step.resources.cpus}
        if step.resources.gpus:
            options["num_gpus"] = step.resources.gpus
        if not step.keeps_state:
            return dataset.map(_stateless(pickle.dumps((step.make, step.settings))), **options)
        return dataset.map(
            _InRay,
            fn_constructor_kwargs={"make": step.make, "settings": step.settings},
            compute=ActorPoolStrategy(
                size=self.n_workers(n_units), max_tasks_in_flight_per_actor=1
            ),
            **options,
        )

    def _start(self) -> Any:  # noqa: ANN401
        if self._ray is not None:
            return self._ray
        if self._address is None:
            _use_own_token()
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        logging.getLogger("ray").setLevel(logging.ERROR)
        import ray

        try:
            with _native_stderr_aside(), _own_sigterm():
                self._init(ray)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = self._address or "this machine"
            raise UsageError(
                f"Ray does not start on {where}: {error}; check --ray-address, and that the "
                "cluster runs the same Ray and Python versions"
            ) from error
        self._ray = ray
        _quiet_data()
        return ray

    def _init(self, ray: Any) -> None:  # noqa: ANN401
        common = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._address is not None:
            ray.init(address=self._address, **common)
        else:
            ray.init(
                address="local",
                num_cpus=max(available_cpus(), self._workers or 0) + LIGHT_CPUS,
                include_dashboard=False,
                _node_ip_address="127.0.0.1",
                object_store_memory=_object_store_bytes(),
                **common,
            )


def _use_own_token() -> None:
    """Gives clusters of this process a token of their own, unless the user named one.

    Ray's default writes and reads one in the home folder, where a stale or foreign one makes the
    start fail. Ray's native code reads the token once per process, so that it stays the same for
    every cluster that this process starts.
    """
    if "RAY_AUTH_MODE" in os.environ or "RAY_AUTH_TOKEN" in os.environ:
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


@contextlib.contextmanager
def _native_stderr_aside() -> Iterator[None]:
    """Keeps what Ray's native code says while it starts out of the user's terminal.

    It announces its own log level there. What goes wrong is raised, or in Ray's log files.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Puts back this process's handler of SIGTERM, where it has one.

    Ray's prints a native stack trace and leaves with 15; a handler that raises lets the run end
    like an interrupted one.
    """
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def available_cpus() -> int:
    """Cores that this process may use."""
    if sys.platform == "linux":
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """Memory of this machine, or of the container that this process runs in."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def _object_store_bytes() -> int:
    return min(2 << 30, max(256 << 20, memory_bytes() // 16))


def _quiet_data() -> None:
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # A unit may be hours of video; the watchdog of the step bounds it, not this.
    with contextlib.suppress(AttributeError):
        context.execution_no_progress_timeout_s = -1
    logging.getLogger("ray.data").setLevel(logging.ERROR)
