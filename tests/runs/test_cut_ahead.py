"""Clips are cut while others are analyzed, where no stage needs all of them.

So it is on a cluster, and on a machine whose GPU analyzes.
"""

import io
import json
import pickle
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from film_makers import write_video
from film_shots import moving_texture
from simulated_workers import Simulated

from curator.executor.engine import Engine
from curator.executor.fleet import Worker
from curator.executor.progress import Progress
from curator.executor.ray_watch import ClusterState
from curator.executor.worker import call_chain
from curator.recipe import load_recipe
from curator.runs import one_pass
from curator.runs.curation import Run
from curator.stages.cut import cut_driver
from curator.storage import open_store

SETTINGS = (
    "dedup.enabled=false", "filters.short_side_px.min=100", "shard.resolutions=[120]",
    "analyze.text=false", "propose.min_s=1",
)  # fmt: skip
N_FILMS = 4


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("films")
    for number in range(N_FILMS):
        path = folder / f"{number}.mp4"
        write_video(path, moving_texture(60, seed=number), fps=Fraction(25))
    return folder


class Cluster(Engine):
    """A joined cluster of two nodes, one for the analysis and one for the cut, in this process."""

    def __init__(self) -> None:
        super().__init__(address="simulated", workers=None, place={"analyze": "one", "cut": "two"})
        self.begun: list[str] = []
        self.backend = Simulated(self._does, nodes=["one", "two"], room=1)

    def _does(self, worker: Worker, unit: object, n_deaths: int) -> object:
        assert not n_deaths
        self.begun.append(worker.pool.stage)
        return pickle.loads(call_chain(worker.pool.chain, pickle.dumps((unit, 0))))

    def _start(self) -> Any:  # noqa: ANN401
        state = ClusterState(nodes={"one": {"CPU": 2.0}})
        return SimpleNamespace(backend=self.backend, watch=SimpleNamespace(state=state))

    def stop(self) -> None:
        """Nothing runs."""


class Machine(Cluster):
    """The same as one machine."""

    joins = False  # type: ignore[assignment]

    def __init__(self, workers: int | None) -> None:
        super().__init__()
        self._workers = workers


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the clips of each film be a unit."""
    monkeypatch.setattr(cut_driver, "CUT_UNIT_S", 1.0)


def run(films: Path, out: Path, engine: Engine, *settings: str) -> dict[str, Any]:
    recipe = load_recipe("quickstart", (*SETTINGS, *settings))
    progress = Progress(io.StringIO(), live=False)
    with engine:
        return Run(open_store(str(out)), recipe, engine, progress).execute(
            [str(films)], limit=None, replace=False
        )


def tars(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "shards").rglob("*.tar"))}


@pytest.mark.long
def test_clips_are_cut_while_others_are_analyzed_and_come_out_the_same(
    films: Path, tmp_path: Path
) -> None:
    alone = run(films, tmp_path / "alone", Engine(address=None, workers=None))
    cluster = Cluster()
    summary = run(films, tmp_path / "cluster", cluster)
    stages = [name for name in cluster.begun if name in ("analyze", "cut")]
    assert stages.count("analyze") == N_FILMS
    last = len(stages) - 1 - stages[::-1].index("analyze")
    assert stages.index("cut") < last
    assert stages[last:].count("cut") <= 2
    assert tars(tmp_path / "cluster") == tars(tmp_path / "alone") != {}
    assert summary["work"]["clips_cut"] == alone["work"]["clips_cut"] == alone["counts"]["kept"]
    for name in ("copied", "encoded", "not_copied", "audio"):
        assert summary["cut"][name] == alone["cut"][name]
    assert json.dumps(summary["counts"]) == json.dumps(alone["counts"])


@pytest.mark.parametrize(
    ("device", "workers", "is_ahead"), [("gpu", 2, True), ("cpu", 2, False), ("gpu", None, False)]
)
def test_one_machine_cuts_meanwhile_where_its_gpu_analyzes_and_there_is_much_to_do(
    device: str,
    workers: int | None,
    is_ahead: bool,
    films: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(one_pass, "device_of", lambda asked, n_gpus: device)
    machine = Machine(workers)
    run(films, tmp_path, machine)
    begun = machine.begun
    assert ("cut" in begun and "analyze" in begun[begun.index("cut") :]) == is_ahead


@pytest.mark.parametrize("setting", ["dedup.enabled=true", "filters.motion.drop_lowest=0.3"])
def test_nothing_is_cut_before_all_is_analyzed_where_decisions_need_all(
    setting: str, films: Path, tmp_path: Path
) -> None:
    cluster = Cluster()
    run(films, tmp_path, cluster, setting)
    stages = [name for name in cluster.begun if name in ("analyze", "cut")]
    assert stages[:N_FILMS] == ["analyze"] * N_FILMS
    assert "cut" in stages
