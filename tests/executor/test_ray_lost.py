"""A run whose Ray is gone ends, and says what to do."""

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
from curator.executor.ray_watch import RayWatch, pulse_key
from curator.executor.worker import Step
from curator.stage import Resources


class Sleeps:
    """A unit is the seconds that it takes."""

    def __call__(self, unit: float) -> float:
        """Sleeps."""
        time.sleep(unit)
        return unit


def pid_of(kind: str) -> int:
    """The process of this process's own Ray."""
    import ray

    (process,) = ray._private.worker._global_node.all_processes[kind]
    return int(process.process.pid)


def test_a_run_ends_when_ray_dies_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that it does not wait for workers that Ray will never start."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(fleet, "LOOK_S", 1.0)
    step = Step(make=Sleeps, resources=Resources(), keeps_state=True, name="analyze")
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
            internal_kv_del=lambda name, by_prefix, namespace: self.kept.pop(name, None),
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
    ray.kept[pulse_key("01")] = b"a worker 1.5"
    time.sleep(0.1)
    assert len(beats) == 1
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
