"""What a worker needs, compared with the nodes that are there and those that may come.

And a run whose Ray is gone ends, and says what to do.
"""

import json
import os
import signal
import threading
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from curator.errors import CuratorError
from curator.executor import fleet, ray_watch
from curator.executor.engine import Engine
from curator.executor.ray_watch import (
    ClusterState,
    RayWatch,
    adds_nodes,
    amounts,
    is_adding,
    pulse_key,
)
from curator.executor.worker import Step
from curator.stage import Resources

GIB = 1 << 30
WORKER = {"CPU": 1.0, "memory": 2.0 * GIB}
SMALL = {"CPU": 1.0, "memory": 1.0 * GIB}
LARGE = {"CPU": 4.0, "memory": 16.0 * GIB}


def test_a_demand_needs_one_node_that_could_meet_it() -> None:
    assert ClusterState(nodes={"a": SMALL, "b": LARGE}).unmet(WORKER) is None
    assert ClusterState(nodes={"a": SMALL}, may_come=[LARGE]).unmet(WORKER) is None
    # Sums of a cluster say nothing: 2 GiB are there in all.
    why = ClusterState(nodes={"a": SMALL, "b": SMALL}).unmet(WORKER)
    assert why == "no node can hold it: 2 with 1 CPUs, 1.0 GiB of memory (too little memory)"


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        ({"CPU": 8.0}, "4 CPUs (too little CPUs)"),
        ({"GPU": 0.5, "memory": GIB}, "0 GPUs, 16.0 GiB of memory (too little GPUs)"),
        ({"CPU": 1.0, "cutters": 0.001}, "4 CPUs, 0 cutters (too little cutters)"),
    ],
)
def test_each_resource_that_is_missing_is_named(demand: dict[str, float], words: str) -> None:
    assert ClusterState(nodes={"a": LARGE}).unmet(demand) == f"no node can hold it: 1 with {words}"


def test_node_types_of_the_autoscaler_and_what_they_declare() -> None:
    why = ClusterState(nodes={}, may_come=[SMALL], has_autoscaler=True).unmet(WORKER)
    assert why is not None
    assert "no node can hold it: there are no nodes, nor can a node type of the autoscaler" in why
    unknown = ClusterState(nodes={"a": SMALL}, has_autoscaler=True).unmet(WORKER)
    assert unknown is not None
    assert "does not report which nodes it may add" in unknown
    # Node types that declare no memory get workers that ask for none.
    undeclared = {"CPU": 1.0}
    head = {"CPU": 0.0, "memory": 8.0 * GIB}

    def lacks(**more: object) -> bool:
        state = ClusterState(nodes={"head": head}, has_autoscaler=True, **more)  # type: ignore[arg-type]
        return state.lacks_only_memory(WORKER)

    assert lacks(may_come=[undeclared])
    assert lacks(may_come=None), "Ray's own launcher does not say what its types have"
    assert not lacks(may_come=None, is_adding=True), "nodes are on their way"
    assert not lacks(may_come=[SMALL]), "it said how much memory there is: too little"
    assert not lacks(may_come=[undeclared, LARGE])
    assert not ClusterState(nodes={"head": head}).lacks_only_memory(WORKER)
    assert not ClusterState(nodes={}, has_autoscaler=True).lacks_only_memory({"CPU": 1.0})

    # Ray runs one on each head; it names the type of each node after the node.
    def status(**report: object) -> bytes:
        return json.dumps({"autoscaler_report": report}).encode()

    assert not adds_nodes(None)
    assert not adds_nodes(status(node_type_mapping={"a09d": "node_a09d"}))
    assert adds_nodes(status(node_type_mapping={"ffff": "ray.head.default"}))
    assert not is_adding(status(pending_nodes=[], pending_launches={}, failed_nodes=[]))
    assert is_adding(status(pending_nodes=[["10.0.0.1", "cpu", "setting-up"]]))
    assert is_adding(status(failed_nodes=[["10.0.0.1", "cpu"]]))


def test_amounts_in_words() -> None:
    assert amounts({"CPU": 1.0, "GPU": 0.0, "memory": 2.0 * GIB}) == "1 CPUs, 2.0 GiB of memory"
    assert amounts({}) == "nothing"


class Sleeps:
    """A unit is the seconds that it takes."""

    def __call__(self, unit: float) -> float:
        time.sleep(unit)
        return unit


def pid_of(kind: str) -> int:
    import ray

    (process,) = ray._private.worker._global_node.all_processes[kind]
    return int(process.process.pid)


def test_a_run_ends_when_ray_dies_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that it does not wait for workers that Ray will never start."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(fleet, "LOOK_S", 1.0)
    step = Step(make=Sleeps, resources=Resources(), keeps_state=True, names=("analyze",))
    with Engine(address=None, workers=1) as engine:
        results = engine.run([step], [0.1] * 10_000)
        next(results)
        assert engine.heartbeat.idle_s() < 5
        os.kill(pid_of("raylet"), signal.SIGKILL)
        killed_s = time.monotonic()
        with pytest.raises(CuratorError, match=r"Ray's process raylet .* same command resumes"):
            deque((result for result in results if time.monotonic() < killed_s + 60), maxlen=0)
    assert time.monotonic() < killed_s + 40


class FakeRay:
    """What the watch uses of Ray: a cluster of some nodes, whose head may stop answering."""

    def __init__(self) -> None:
        self.alive = {"driver's": True, "other": True}
        self.answers = threading.Event()
        self.answers.set()
        state = SimpleNamespace(
            get_cluster_config=lambda: None,
            get_max_resources_from_cluster_config=lambda: None,
            get_draining_nodes=lambda: {"other": 0},
        )
        self.kept: dict[bytes, bytes] = {}
        gcs = SimpleNamespace(
            internal_kv_get=lambda name, namespace: self.kept.get(name),
            internal_kv_del=lambda name, by_prefix, namespace: self.kept.clear(),
            internal_kv_keys=lambda prefix, namespace: [
                k for k in self.kept if k.startswith(prefix)
            ],
            internal_kv_multi_get=lambda names, namespace: {n: self.kept[n] for n in names},
        )
        worker = SimpleNamespace(global_worker=SimpleNamespace(gcs_client=gcs))
        self._private = SimpleNamespace(state=SimpleNamespace(state=state), worker=worker)

    def get_runtime_context(self) -> Any:  # noqa: ANN401
        return SimpleNamespace(get_node_id=lambda: "driver's", get_job_id=lambda: "01")

    def nodes(self) -> list[dict[str, Any]]:
        self.answers.wait()
        return [
            {"NodeID": name, "Alive": alive, "Resources": {"CPU": 2.0}}
            for name, alive in self.alive.items()
        ]


def test_the_watch_of_a_cluster_knows_nodes_and_notices_a_head_or_a_node_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_watch, "ASK_S", 0.01)
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "0.15")
    ray = FakeRay()
    beats: list[int] = []
    watch = RayWatch(ray, is_joined=True, beat=lambda: beats.append(1))
    watch.check()
    assert set(watch.state.nodes) == {"driver's", "other"}
    assert watch.state.draining == {"other"}
    assert watch.state.total("CPU") == 4
    time.sleep(0.1)
    assert not beats
    assert watch.reached == {}
    ray.kept[pulse_key("01")] = b"a worker 1.5"
    ray.kept[pulse_key("01") + b"-one"] = b"[7, 2, 41.5, 20.0]"
    time.sleep(0.1)
    assert len(beats) == 1
    assert watch.reached == {7: (2, 41.5, 20.0)}
    ray.answers.clear()
    time.sleep(0.1)
    # A process that was stopped for a while may find its own request old: that is no proof.
    watch.check()
    time.sleep(0.02)
    with pytest.raises(CuratorError, match=r"head of the Ray cluster has not answered .* resumes"):
        watch.check()
    ray.answers.set()
    time.sleep(0.1)
    watch.check()
    ray.alive["driver's"] = False
    time.sleep(0.1)
    with pytest.raises(CuratorError, match=r"node of this run's driver is gone .* resumes"):
        watch.check()
    watch.stop()
    assert not ray.kept
