"""Ray: a cluster of this process's own, or one that it joins, and what its nodes have."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from curator.errors import CuratorError, UsageError
from curator.executor.host_resources import (
    available_cpus,
    available_gpus,
    memory_bytes,
    object_store_bytes,
)
from curator.executor.ray_backend import RayBackend
from curator.executor.ray_start import (
    LOOPBACK,
    few_daemons,
    is_loopback,
    loopback_kept,
    native_stderr_aside,
    private_folder,
    use_own_token,
)
from curator.executor.ray_watch import RayWatch, kinds_of
from curator.executor.signal_mask import signals_held
from curator.executor.worker import SERVED_BYTES
from curator.storage.scratch import hold, remove_dead

logger = logging.getLogger(__name__)

Number = tuple[str, str, Sequence[str], Mapping[Any, float]]
"""Name, what it is, names of labels, and values by those of the labels, for monitoring."""

LIGHT_CPUS = 1
"""Cores that a local Ray counts beyond those of the machine, or of `--workers` if that is more:
light steps wait and add up, and must find a place while every core has a decoder."""


class RayCluster:
    """Ray: a cluster of this process's own, or one that it joins; arguments as for `Engine`.

    `beat` is called when a worker has worked for a while.
    """

    def __init__(
        self,
        address: str | None,
        workers: int | None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._address = address
        self._beat = beat
        self._workers = workers
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
            with native_stderr_aside(), signals_held():
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

    def most(self, resource: str) -> float:
        """Returns how much of a resource there is, or may be by what the autoscaler says."""
        state = self.watch.state
        return max(state.total(resource), state.most.get(resource, 0.0))

    def likely_gpus(self) -> float:
        """Returns the GPUs that are worth asking for.

        Only the autoscaler of Kubernetes says which nodes may come. From others one is asked for
        first, and then twice those that are there.
        """
        n_gpus, state = self.most("GPU"), self.watch.state
        is_silent = state.has_autoscaler and not state.most
        return max(n_gpus, max(1.0, 2 * n_gpus) if is_silent else 0.0)

    def nodes(self) -> list[dict[str, float]]:
        """Returns the kinds of nodes that are there: how many of each, and what one has."""
        return kinds_of(list(self.watch.state.nodes.values()))

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
            if is_loopback(self._address) and not is_loopback(address):
                logger.warning(
                    "Ray's cluster at %s is at %s: Ray puts the machine's address in the place of "
                    "loopback, and its servers and this run's listen on all addresses "
                    "(docs/cluster.md says how to protect them); leave --ray-address and "
                    "RAY_ADDRESS out for a Ray of this run's own, on loopback alone",
                    self._address,
                    address,
                )
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
