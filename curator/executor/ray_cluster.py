"""Starts Ray on this machine, or joins a cluster.

A Ray that this process starts has a token, listens on loopback only, prints nothing, and runs few
processes.
"""

import contextlib
import logging
import os
import secrets
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from curator.errors import CuratorError, UsageError
from curator.executor.cpu_accounting import processes_of_run, stat_of
from curator.executor.host_resources import (
    available_cpus,
    available_gpus,
    memory_bytes,
    object_store_bytes,
)
from curator.executor.ray_backend import RayBackend
from curator.executor.ray_reach import check_reachable
from curator.executor.ray_watch import RayWatch
from curator.executor.termination import signals_held
from curator.executor.worker import SERVED_BYTES
from curator.storage.scratch import hold, remove_dead

logger = logging.getLogger(__name__)

Number = tuple[str, str, Sequence[str], Mapping[Any, float]]
"""A metric: name, description, names of labels, and label values -> number."""

LIGHT_CPUS = 1
"""Cores that a local Ray has beyond those of the machine (or `--workers`, if larger), so that light
steps, which mostly wait, can run while every core has a decoder."""

LOOPBACK = "127.0.0.1"
_BEGUN = 19
"""Index of the start of a process among the fields of `stat_of`."""

NO_DAEMONS = dict.fromkeys(
    ("start_monitor", "start_log_monitor", "start_api_server"), lambda self, *args, **options: None
)
"""Replacements of the methods of Ray's `Node` that start processes without use on one machine.

The autoscaler's monitor, the driver's log reader and the dashboard's server are Python processes.
Each costs a CPU-second to start, and more while it runs. `ray.init` has no argument to disable
them. A version of Ray without these methods starts as usual."""
LOOPBACK_KEPT = {"resolve_ip_for_localhost": lambda host: host}
"""Replacement of a function of `ray._private.services`; it makes services listen on loopback only.

Ray's servers listen on all addresses, unless the node's address is 127.0.0.1. `ray.init` replaces
127.0.0.1 by the address of a network interface, so that other machines can join, and has no
argument to prevent this. `tests/executor/test_ray_cluster.py` checks the sockets."""

_LONGEST = 107 - len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
"""Longest path of Ray's folder, in bytes: the path of a socket has at most 107."""


class RayCluster:
    """A Ray on this machine, or a joined cluster; arguments as for `Engine` and `RayWatch`."""

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
        else:
            # A head that is gone since the checks before the run would block `ray.init`.
            check_reachable(self._address)
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        logging.getLogger("ray").setLevel(logging.ERROR)
        import ray

        where = self._address or "this machine"
        self._ray = ray
        try:
            with _native_stderr_aside(), signals_held():
                self._init_twice(ray)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UsageError(
                f"Ray does not start on {where}: {error}; check --ray-address, the "
                "cluster's token (RAY_AUTH_TOKEN), and that the cluster runs the same Ray and "
                "Python versions"
            ) from error
        except Exception as error:
            # If a node does not come up in time, Ray raises a plain `Exception`.
            if type(error) is not Exception:
                raise
            raise CuratorError(
                f"Ray does not start on {where}: {error}; the machine may be "
                "overloaded, or have too little memory"
            ) from error
        n_workers = self._workers or available_cpus()
        self.watch = RayWatch(ray, is_joined=self._address is not None, beat=self._beat)
        self.backend = RayBackend(
            ray,
            self.watch,
            is_elastic=self._address is not None,
            may_serve_again=memory_bytes() // SERVED_BYTES >= n_workers,
        )

    def publish(self, numbers: Iterable[Number]) -> None:
        """Passes metrics to this node's agent, which serves them as gauges named `ray_NAME`."""
        from ray.util.metrics import Gauge

        for name, about, labels, values in numbers:
            if name not in self._gauges:
                self._gauges[name] = Gauge(name, description=about, tag_keys=tuple(labels))
            for key, value in values.items():
                self._gauges[name].set(value, tags=dict(zip(labels, key, strict=True)))

    def stop(self) -> None:
        """Stops Ray, or leaves the cluster; also after a start that was interrupted."""
        if hasattr(self, "watch"):
            self.watch.stop()
        if self._ray is None:
            return
        # Ray's agents and workers otherwise live for up to a minute after their node.
        mine = _started_here() if self._address is None else {}
        self._ray.shutdown()
        for number, begun in mine.items():
            with contextlib.suppress(OSError, IndexError):
                if stat_of(number)[_BEGUN] == begun:
                    os.kill(number, signal.SIGKILL)
        if self._session is not None:
            self._session.close()

    def _init_twice(self, ray: Any) -> None:  # noqa: ANN401
        """Starts Ray; retries once if Ray's node did not start in the 30 s that Ray waits."""
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
                    "Ray replaced the loopback address %s by %s, so the servers of the cluster and "
                    "of this run listen on all addresses (docs/cluster.md says how to protect "
                    "them); without --ray-address and RAY_ADDRESS, a run starts a Ray that listens "
                    "on loopback only",
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
                    # Ray's count may be 0, and then workers would never start.
                    num_gpus=available_gpus(),
                    include_dashboard=False,
                    _node_ip_address=LOOPBACK,
                    _temp_dir=str(private_folder()),
                    object_store_memory=object_store_bytes(),
                    **common,
                )
            # Ray leaves a log folder for each start. The next start removes the folders of dead
            # processes; until then they stay for inspection.
            folder = Path(context.address_info["session_dir"])
            remove_dead(folder.parent, "session_")
            self._session = hold(folder)


def _started_here() -> dict[int, str]:
    """Returns the other processes of this run, and when each began, in the kernel's ticks."""
    found = {}
    for number in processes_of_run():
        with contextlib.suppress(OSError, IndexError):
            found[number] = stat_of(number)[_BEGUN]
    return found


def _is_loopback(address: str) -> bool:
    """Whether an address such as `127.0.0.1:6379` names this machine's loopback."""
    host = address.rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")


def use_own_token() -> None:
    """Sets a new token for the clusters of this process, unless the user has set one.

    By default, Ray stores its token in the home folder, where a stale or foreign token makes the
    start fail. Ray's native code reads the token once per process, so all clusters that this
    process starts have the same token.
    """
    if "RAY_AUTH_MODE" in os.environ or "RAY_AUTH_TOKEN" in os.environ:
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def private_folder() -> Path:
    """Returns the folder for Ray's sockets and logs.

    Ray makes this folder writable for all users. Its parent folder is accessible only to this user,
    so other users can neither read the logs nor replace one of Ray's sockets.

    Raises:
        UsageError: The parent folder belongs to another user or is accessible to others; or its
            path is too long for sockets.
    """
    parent = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    folder = Path(parent) / f"curate-{os.getuid()}"
    if len(os.fsencode(folder / "r")) > _LONGEST:
        raise UsageError(
            f"the temporary folder {parent} has too long a path for Ray's sockets: the path of a "
            "socket has at most 107 bytes; set RAY_TMPDIR to a shorter path, such as /tmp"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise UsageError(
            f"{folder} must be a folder of this user with mode 0700, "
            f"because it holds Ray's sockets; it has mode {stat.S_IMODE(info.st_mode):04o} and "
            f"owner {info.st_uid}. Remove the folder, or set RAY_TMPDIR to another one"
        )
    return folder / "r"


@contextlib.contextmanager
def _native_stderr_aside() -> Iterator[None]:
    """Hides the output of Ray's native code during its start, such as its log level."""
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
    """Replaces functions of a module or a class during the block; each of them must exist."""
    kept = {name: getattr(owner, name) for name in functions}
    for name in kept:
        setattr(owner, name, functions[name])
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(owner, name, function)
