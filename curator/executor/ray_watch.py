"""Watches Ray: the nodes of the cluster, the nodes that may join, and whether Ray still works.

A call to a head that is gone blocks for a minute, and then Ray ends the calling process. Therefore
one thread makes these calls, and all others read the last answer.
"""

import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from curator.errors import CuratorError
from curator.executor.sandboxed_process import Reached

logger = logging.getLogger(__name__)

ASK_S = 5.0
"""Time between requests to the head, in seconds."""
REPORT_S = 1.0
"""Time between the driver's looks at how far units are. On a cluster, where workers are many, it
looks every `ASK_S`."""
MEMORY = "memory"

_RECONNECT_S = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Ray's setting for the time after which Ray ends a driver without a head, without a message."""
_RESUME = "the same command resumes from the stored results"
_NAMES = {"CPU": "CPUs", "GPU": "GPUs", MEMORY: "memory"}

Amounts = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The head's last answer about the cluster.

    Attributes:
        nodes: Id of each live node -> its resources; memory in bytes.
        draining: Ids of the nodes that will leave soon.
        may_come: Resources of each node type that the autoscaler may add; None if unknown.
        at_most: Largest total of each resource by the autoscaler's limits; empty if unknown.
        has_autoscaler: Whether an autoscaler adds nodes on demand.
        is_adding: Whether the autoscaler is adding nodes, or tried to.
    """

    nodes: Mapping[str, Amounts]
    draining: frozenset[str] = frozenset()
    may_come: Sequence[Amounts] | None = None
    at_most: Amounts = field(default_factory=dict)
    has_autoscaler: bool = False
    is_adding: bool = False

    def total(self, resource: str) -> float:
        """Returns the amount of a resource that the live nodes have."""
        return sum(node.get(resource, 0.0) for node in self.nodes.values())

    def most(self, resource: str) -> float:
        """Returns the largest amount of a resource that the cluster has or may get."""
        return max(self.total(resource), self.at_most.get(resource, 0.0))

    def likely_gpus(self) -> float:
        """Returns the number of GPUs that is worth requesting.

        Only the autoscaler of Kubernetes reports which nodes may come. From other autoscalers, the
        run first requests one GPU, and then twice the present number.
        """
        n_gpus, is_silent = self.most("GPU"), self.has_autoscaler and not self.at_most
        return max(n_gpus, max(1.0, 2 * n_gpus) if is_silent else 0.0)

    def kinds(self) -> list[dict[str, float]]:
        """Returns the kinds of live nodes: the number of nodes, and the resources of one."""
        hidden = ("node:", "object_store", MEMORY)
        kinds = Counter(
            tuple(sorted((name, n) for name, n in node.items() if not name.startswith(hidden)))
            for node in self.nodes.values()
        )
        return [{"nodes": n, **dict(kind)} for kind, n in sorted(kinds.items())]

    def lacks_only_memory(self, demand: Amounts) -> bool:
        """Returns whether a node may come if a worker requests no memory.

        If a node type does not declare its memory, the autoscaler assumes that it has none. An
        autoscaler that does not report its node types may have such types.
        """
        may_come = self.may_come or ()
        fits = any(not _lacking(demand, node) for node in (*self.nodes.values(), *may_come))
        if fits or MEMORY not in demand or not self.has_autoscaler or self.is_adding:
            return False
        return self.may_come is None or any(
            MEMORY not in kind and _lacking(demand, kind) == [MEMORY] for kind in may_come
        )

    def unmet(self, demand: Amounts) -> str | None:
        """Returns why no live or possible node can hold a worker; None if a node can."""
        there, may_come = list(self.nodes.values()), self.may_come or ()
        if not all(_lacking(demand, node) for node in (*there, *may_come)):
            return None
        why = [f"no node can hold it: {_shortfalls(demand, there)}"]
        if self.may_come is not None:
            why.append(f"nor can a node type of the autoscaler: {_shortfalls(demand, may_come)}")
        elif self.has_autoscaler:
            why.append("the autoscaler does not report which nodes it may add")
        return ", ".join(why)


def amounts(of: Amounts) -> str:
    """Describes resources in words, such as `1 CPUs, 2.0 GiB of memory`."""
    return ", ".join(_amount(name, n) for name, n in of.items() if n) or "nothing"


def _amount(name: str, n: float) -> str:
    if name == MEMORY:
        return f"{n / (1 << 30):.1f} GiB of memory"
    return f"{n:g} {_NAMES.get(name, name)}"


def _lacking(demand: Amounts, node: Amounts) -> list[str]:
    return [name for name, amount in demand.items() if amount > node.get(name, 0.0) + 1e-9]


def _shortfalls(demand: Amounts, nodes: Sequence[Amounts]) -> str:
    kinds: Counter[str] = Counter()
    for node in nodes:
        lacks = " and ".join(_NAMES.get(name, name) for name in _lacking(demand, node))
        has = ", ".join(_amount(name, node.get(name, 0.0)) for name in demand)
        kinds[f"{has} (too little {lacks})"] += 1
    return "; ".join(f"{n} with {kind}" for kind, n in kinds.most_common(4)) or "there are no nodes"


class RayWatch:
    """Queries the head in a thread.

    Args:
        ray: The module, connected.
        is_joined: Whether somebody else started the cluster.
        beat: Called when a worker reports that it has used CPU time.
    """

    def __init__(self, ray: Any, *, is_joined: bool, beat: Callable[[], None]) -> None:  # noqa: ANN401
        self._beat = beat
        self._pulse_key = pulse_key(ray.get_runtime_context().get_job_id())
        self._pulse: bytes | None = None
        """The last report of a worker that used CPU time."""
        self.reached: Mapping[int, Reached] = {}
        """Number of a unit -> how far it is, as its worker last reported."""
        self._ray, self._is_joined = ray, is_joined
        self._node = ray.get_runtime_context().get_node_id()
        self._silent_s = float(os.environ.get(_RECONNECT_S, 60)) / 3
        self._asked_s: float | None = None
        """Time of the request that has no answer yet; None if there is no such request."""
        self._doubted_s: float | None = None
        self.state = self._ask()
        self.changed_s = time.monotonic()
        """Time of the last change of the set of nodes."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ray-watch", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Checks that Ray can still run work.

        Raises:
            CuratorError: A process of Ray that this run needs is gone for good.
        """
        if self._is_joined:
            if self._node not in self.state.nodes:
                raise CuratorError(
                    "the Ray node of this run's driver is gone (its raylet died, or the head lost "
                    f"its connection): restart it with `ray start`; {_RESUME}"
                )
            self._check_answers()
            return
        node = self._ray._private.worker._global_node
        dead = [kind for kind, _ in node.dead_processes() if kind in ("raylet", "gcs_server")]
        if dead:
            raise CuratorError(
                f"Ray's process {' and '.join(dead)} on this machine died: it was killed, perhaps "
                f"for lack of memory (see `dmesg`), or it crashed (see {node.get_logs_dir_path()})"
                f"; {_RESUME}"
            )

    def stop(self) -> None:
        """Ends the thread, or leaves it to a request that has no answer."""
        self._ending.set()
        self._thread.join(1.0)
        if self._is_joined and self._asked_s is None:
            self._head.internal_kv_del(self._pulse_key, True, None)

    def _check_answers(self) -> None:
        """Raises an error if the head is silent at two checks, at least `ASK_S` apart.

        One check is not enough: a driver that was stopped (SIGSTOP) also finds an old request.
        """
        asked_s, now_s = self._asked_s, time.monotonic()
        if asked_s is None or now_s - asked_s < self._silent_s:
            self._doubted_s = None
        elif self._doubted_s is None:
            self._doubted_s = now_s
        elif now_s - self._doubted_s >= ASK_S:
            raise CuratorError(
                f"the head of the Ray cluster has not answered for {now_s - asked_s:.0f} s: the "
                f"head, or the network to the head, is gone; start the head again; {_RESUME}"
            )

    def _run(self) -> None:
        while not self._ending.wait(ASK_S if self._is_joined else REPORT_S):
            try:
                self._asked_s = time.monotonic()
                state = self._ask() if self._is_joined else self.state
                pulse = self._head.internal_kv_get(self._pulse_key, None)
                self.reached = self._reports()
            except Exception:
                # An error counts as no answer: `_asked_s` stays.
                logger.debug("a request to the head of Ray failed", exc_info=True)
                continue
            self._asked_s = None
            if pulse != self._pulse:
                self._pulse = pulse
                self._beat()
            if state.nodes.keys() != self.state.nodes.keys():
                self.changed_s = time.monotonic()
            self.state = state

    def _reports(self) -> dict[int, Reached]:
        names = self._head.internal_kv_keys(self._pulse_key + b"-", None)
        texts = self._head.internal_kv_multi_get(names, None).values() if names else ()
        reports = (json.loads(text) for text in texts)
        return {number: (n_items, video_s, work_s) for number, n_items, video_s, work_s in reports}

    @property
    def _head(self) -> Any:  # noqa: ANN401
        return self._ray._private.worker.global_worker.gcs_client

    def _ask(self) -> ClusterState:
        nodes = {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}
        if not self._is_joined:
            return ClusterState(nodes=nodes)
        state = self._ray._private.state.state
        config = state.get_cluster_config()
        groups = list(config.node_group_configs) if config is not None else []
        at_most = state.get_max_resources_from_cluster_config() or {}
        status = self._head.internal_kv_get(b"__autoscaling_status", None)
        return ClusterState(
            nodes=nodes,
            draining=frozenset(state.get_draining_nodes()),
            may_come=[dict(group.resources) for group in groups] if groups else None,
            at_most={name: float(amount) for name, amount in at_most.items()},
            has_autoscaler=bool(groups) or adds_nodes(status),
            is_adding=is_adding(status),
        )


def pulse_key(job: str) -> bytes:
    """Returns the key under which the head keeps the last report of a job's workers."""
    return f"curate-pulse-{job}".encode()


def adds_nodes(status: bytes | None) -> bool:
    """Returns whether the autoscaler with this status adds nodes.

    Ray runs an autoscaler on each head. If it has no configured node types, it cannot add nodes,
    and names a type after each node in its status.
    """
    types: Mapping[str, str] = _report(status).get("node_type_mapping") or {}
    return status is not None and (
        not types or any(kind != f"node_{node}" for node, kind in types.items())
    )


def is_adding(status: bytes | None) -> bool:
    """Returns whether the autoscaler with this status launches nodes, or tried to."""
    report = _report(status)
    return any(report.get(name) for name in ("pending_nodes", "pending_launches", "failed_nodes"))


def _report(status: bytes | None) -> Mapping[str, Any]:
    report: Mapping[str, Any] = json.loads(status or b"{}").get("autoscaler_report") or {}
    return report
