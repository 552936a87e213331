"""A node with a GPU: what feeds it is never kept waiting, and CPUs do other work meanwhile.

The GPU is one that Ray is told of; nothing computes on it.
"""

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_workers import Simulated

from curator.executor import engine as engine_module
from curator.executor import ray_cluster
from curator.executor.engine import Engine
from curator.executor.fleet import Worker, WorkerPool
from curator.executor.worker import Step
from curator.stage import WORKER_BYTES, Resources

N_FEEDERS = 3


class Cuts:
    """Works on a clip for a while."""

    def __call__(self, unit: float) -> tuple[str, int]:
        time.sleep(unit)
        return "cut", os.sched_getscheduler(0)


class Feeds:
    """Waits until all feeders are up."""

    def __init__(self, *, folder: str) -> None:
        self._folder = Path(folder)

    def __call__(self, unit: int) -> tuple[str, int]:
        (self._folder / f"{os.getpid()}").touch()
        until_s = time.monotonic() + 30
        while len(list(self._folder.iterdir())) < N_FEEDERS:
            if time.monotonic() > until_s:
                raise TimeoutError(f"unit {unit} has {list(self._folder.iterdir())}")
            time.sleep(0.05)
        return "analyze", os.sched_getscheduler(0)


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray and the engine see a GPU; workers can import this module."""
    monkeypatch.setattr(ray_cluster, "available_gpus", lambda: 1)
    monkeypatch.setattr(engine_module, "available_gpus", lambda: 1)
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", f"{here}{os.pathsep}{here.parent}", prepend=os.pathsep)


@pytest.mark.long
@pytest.mark.usefixtures("one_gpu")
def test_all_feeders_of_a_gpu_begin_while_cuts_have_all_cores(tmp_path: Path) -> None:
    """Pins that a generation is analyzed on a GPU while the one before is cut."""
    cut = Step(make=Cuts, resources=Resources(), keeps_state=True, names=("cut",))
    feed = Step(
        make=Feeds, settings={"folder": str(tmp_path)}, resources=Resources(gpus=1 / N_FEEDERS),
        keeps_state=True, name="analyze",
    )  # fmt: skip
    results: list[Any] = []
    # More cuts than end before all feeders are up.
    units = iter(0.3 for _ in range(400))
    is_fed = threading.Event()

    def analyze(engine: Engine) -> None:
        results.extend(engine.run([feed], list(range(N_FEEDERS))))
        is_fed.set()

    spans: list[tuple[str, float, float]] = []
    with Engine(address=None, workers=N_FEEDERS) as engine:
        engine.unit_times.on_unit = lambda stage, _, *span: spans.append((stage, *span))
        thread: threading.Thread | None = None
        for result in engine.run([cut], (unit for unit in units if not is_fed.is_set())):
            results.append(result)
            if thread is None:
                thread = threading.Thread(target=analyze, args=[engine])
                thread.start()
        assert thread is not None
        thread.join()
    cuts, fed = ([span for stage, *span in spans if stage == name] for name in ("cut", "analyze"))
    assert len(fed) == N_FEEDERS
    # Any of them: on a busy machine there are moments in which idle processes get no core.
    assert any(begun < ends and begins < ended for begun, ended in fed for begins, ends in cuts)
    policies = dict(results)
    assert policies["cut"] == os.SCHED_IDLE
    # As the node started it, which need not be SCHED_OTHER.
    assert policies["analyze"] != os.SCHED_IDLE
    assert len(set(results)) == 2


class Machine(Engine):
    """One machine with a GPU, in this process."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(address=None, **({"workers": None} | options))
        self.pools: dict[str, WorkerPool] = {}
        self.backend = Simulated(self._does)

    def _does(self, worker: Worker, unit: object, n_deaths: int) -> object:
        self.pools[worker.pool.stage] = worker.pool
        return unit

    def _start(self) -> Any:  # noqa: ANN401
        return SimpleNamespace(backend=self.backend)

    def stop(self) -> None:
        """Nothing runs."""


@pytest.mark.parametrize(
    ("n_cpus", "n_bytes", "most"),
    [
        (16, 1 << 40, {"gpu": 8, "cpu": 12, "cut": 16}),
        (4, 1 << 40, {"gpu": 4, "cpu": 2, "cut": 4}),
        # The feeders' memory is theirs.
        (16, 12 * WORKER_BYTES, {"gpu": 8, "cpu": 12, "cut": 4}),
    ],
)
@pytest.mark.usefixtures("one_gpu")
def test_cpus_of_this_machine_take_what_feeders_leave(
    n_cpus: int, n_bytes: int, most: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "available_cpus", lambda: n_cpus)
    monkeypatch.setattr(engine_module, "memory_bytes", lambda: n_bytes)
    gpu = Step(make=Cuts, resources=Resources(gpus=1 / 8), keeps_state=True, names=("gpu",))
    cpu = Step(make=Cuts, resources=Resources(), keeps_state=True, names=("cpu",))
    cut = Step(make=Cuts, resources=Resources(), keeps_state=True, names=("cut",))
    engine = Machine()
    units = [[number] for number in range(100)]
    assert len(list(engine.run([gpu], units, without_gpu=[cpu]))) == len(units)
    assert len(list(engine.run([cut], units))) == len(units)
    assert {name: pool.most() for name, pool in engine.pools.items()} == most
    assert {name: pool.resources.cpus for name, pool in engine.pools.items()} == {
        "gpu": 0, "cpu": 1, "cut": 1,
    }  # fmt: skip


def test_the_cores_of_a_gpu_are_those_of_the_node_that_has_the_fewest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "available_cpus", lambda: 8)
    monkeypatch.setattr(engine_module, "available_gpus", lambda: 2)
    assert Engine(address=None, workers=None).cpus_per_gpu() == 4
    joined = Engine(address="head", workers=None)
    monkeypatch.setattr(joined, "_start", lambda: None)
    assert joined.cpus_per_gpu() is None
    joined._nodes = [{"nodes": 9, "CPU": 64.0}, {"nodes": 1, "CPU": 192.0, "GPU": 8.0},
                     {"nodes": 2, "CPU": 16.0, "GPU": 1.0}]  # fmt: skip
    assert joined.cpus_per_gpu() == 16
