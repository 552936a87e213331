"""Ray: a cluster of this process's own, or one that it joins.

One of our own starts with a token, on loopback, quietly, and with few processes.
"""

import contextlib
import logging
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from curator.errors import CuratorError, UsageError
from curator.executor.host_resources import (
    available_cpus,
    available_gpus,
    memory_bytes,
    object_store_bytes,
)
from curator.executor.ray_backend import RayBackend
from curator.executor.ray_watch import RayWatch
from curator.executor.termination import signals_held
from curator.executor.worker import SERVED_BYTES
from curator.storage.scratch import hold, remove_dead

logger = logging.getLogger(__name__)

Number = tuple[str, str, Sequence[str], Mapping[Any, float]]
"""Name, what it is, names of labels, and values by those of the labels, for monitoring."""

LIGHT_CPUS = 1
"""Cores that a local Ray counts beyond those of the machine, or of `--workers` if that is more:
light steps wait and add up, and must find a place while every core has a decoder."""

LOOPBACK = "127.0.0.1"

NO_DAEMONS = dict.fromkeys(
    ("start_monitor", "start_log_monitor", "start_api_server"), lambda self, *args, **options: None
)
"""Replaces methods of Ray's `Node` that start processes which a run on one machine does not need.

The autoscaler's monitor, the reader of logs for the driver and the dashboard's server are Python
processes that cost a CPU-second each to start and more while they run. `ray.init` has no argument
for them; a Ray without these methods starts as usual."""
LOOPBACK_KEPT = {"resolve_ip_for_localhost": lambda host: host}
"""Replaces a function of `ray._private.services`, so that services listen on loopback alone.

Ray's servers listen on all addresses, except on a node whose address is 127.0.0.1; and `ray.init`
replaces this address by that of a network interface, so that other machines could join. It has no
argument against that. `tests/executor/test_ray_cluster.py` looks at the sockets."""

_LONGEST = 107 - len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
"""Most bytes of the path of Ray's folder."""


class RayCluster:
    """Ray: a cluster of this process's own, or one that it joins; arguments as for `Engine`.

    `beat` is called when a worker has worked for a while.
    """

    def __init__(
        self, address: str | None, workers: int | None, beat: Callable[[], None] = lambda: None
    ) -> None:
        self._address, self._workers, self._beat = address, workers, beat
        self._session: BinaryIO | None = None
        self._ray: Any = None
        self._gauges: dict[str, Any] = {}
        self.watch: RayWatch
        self.backend: RayBackend

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
            with _native_stderr_aside(), signals_held():
                self._init_twice(ray)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UsageError(
                f"Ray does not start on {where}: {error}; check --ray-address, the "
                "cluster's token (RAY_AUTH_TOKEN), and that it runs the same Ray and Python "
                "versions"
            ) from error
        except Exception as error:
            # If a node does not come up in time, Ray raises a plain `Exception`.
            if type(error) is not Exception:
                raise
            raise CuratorError(
                f"Ray does not start on {where}: {error}; the machine may have "
                "too much to do, or too little memory"
            ) from error
        self._ray = ray
        n_workers = self._workers or available_cpus()
        self.watch = RayWatch(ray, is_joined=self._address is not None, beat=self._beat)
        self.backend = RayBackend(
            ray,
            self.watch,
            is_elastic=self._address is not None,
            may_serve_again=memory_bytes() // SERVED_BYTES >= n_workers,
        )

    def publish(self, numbers: Iterable[Number]) -> None:
        """Gives numbers to the agent of this node, which serves them as gauges `ray_NAME`."""
        from ray.util.metrics import Gauge

        for name, about, labels, values in numbers:
            if name not in self._gauges:
                self._gauges[name] = Gauge(name, description=about, tag_keys=tuple(labels))
            for key, value in values.items():
                self._gauges[name].set(value, tags=dict(zip(labels, key, strict=True)))

    def stop(self) -> None:
        """Stops Ray, or leaves the cluster."""
        self.watch.stop()
        self._ray.shutdown()
        if self._session is not None:
            self._session.close()

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
            context = ray.init(address=self._address, **common)
            address = context.address_info["address"]
            if _is_loopback(self._address) and not _is_loopback(address):
                logger.warning(
                    "Ray's cluster at %s is at %s: Ray puts the machine's address in the place of "
                    "loopback, and its servers and this run's listen on all addresses "
                    "(docs/cluster.md says how to protect them); leave --ray-address and "
                    "RAY_ADDRESS out for a Ray of this run's own, on loopback alone",
                    self._address,
                    address,
                )
        else:
            node, services = ray._private.node.Node, ray._private.services
            unused = {name: method for name, method in NO_DAEMONS.items() if hasattr(node, name)}
            # A Ray without the function of `LOOPBACK_KEPT` would listen on all addresses.
            with replaced(node, unused), replaced(services, LOOPBACK_KEPT):
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
            # Ray leaves a log folder for each start: those of dead processes go, and the last one
            # stays for inspection.
            folder = Path(context.address_info["session_dir"])
            remove_dead(folder.parent, "session_")
            self._session = hold(folder)


def _is_loopback(address: str) -> bool:
    """Whether an address such as `127.0.0.1:6379` names this machine's loopback."""
    host = address.rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")


def use_own_token() -> None:
    """Gives clusters of this process a separate token, unless the user set one.

    Ray's default writes and reads one in the home folder, where a stale or foreign one makes the
    start fail. Ray's native code reads the token once per process, so it stays the same for every
    cluster that this process starts.
    """
    if "RAY_AUTH_MODE" in os.environ or "RAY_AUTH_TOKEN" in os.environ:
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def private_folder() -> Path:
    """Returns the folder for Ray's sockets and logs, which it makes writable for everybody.

    The folder above it is this user's alone: other users of the machine can neither read the logs
    nor put a socket of theirs into the place of one of Ray's.

    Raises:
        UsageError: The folder above it is someone else's, or open to others; or its path is too
            long for sockets.
    """
    parent = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    folder = Path(parent) / f"curate-{os.getuid()}"
    if len(os.fsencode(folder / "r")) > _LONGEST:
        raise UsageError(
            f"the temporary folder {parent} has too long a path for Ray's sockets, which may have "
            "107 bytes in all; set RAY_TMPDIR to a shorter one, such as /tmp"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise UsageError(
            f"{folder} must be a folder of this user with mode 0700, "
            f"because Ray's sockets go there; it has mode {stat.S_IMODE(info.st_mode):04o} and "
            f"owner {info.st_uid}. Remove it, or set RAY_TMPDIR to another folder"
        )
    return folder / "r"


@contextlib.contextmanager
def _native_stderr_aside() -> Iterator[None]:
    """Keeps what Ray's native code says during start (its log level) off the terminal."""
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
def replaced(
    owner: ModuleType | type, functions: Mapping[str, Callable[..., Any]]
) -> Iterator[None]:
    """Replaces functions of a module or a class meanwhile; each of them must be there."""
    kept = {name: getattr(owner, name) for name in functions}
    for name in kept:
        setattr(owner, name, functions[name])
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(owner, name, function)
