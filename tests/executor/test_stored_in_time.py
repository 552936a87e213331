"""A unit that takes long is stored in pieces, so that a run that is killed resumes."""

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import pytest
from film_makers import write_video
from film_shots import moving_texture
from simulated_workers import Simulated, pool

from curator.cli import main
from curator.executor.engine import Engine
from curator.executor.fleet import Fleet, FleetCounts
from curator.executor.unit_times import UnitTimes
from curator.executor.unit_worker import UnitResult, UnitWorker, stage_step
from curator.stage import Scope, Stage, StageConfig
from curator.tools.commands.arguments import EXIT_OK

N_SOURCES = 8
SETTINGS = ["--set", "shard.resolutions=[120]", "--set", "filters.short_side_px.min=100"]
KILLED = """
import os, signal, sys
from curator.cli import main
from curator.executor import engine
from curator.stages.analyze import analysis_driver
from curator.stages.analyze.stage import AnalyzeStage

seen = []
limit_s = AnalyzeStage.limit_s

def killed_at_the_last(stage, item):
    seen.append(item)
    if len(seen) == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return limit_s(stage, item)

# Two sources are a unit then.
engine.available_cpus = lambda: 1
analysis_driver.STORE_S = 0.0
AnalyzeStage.limit_s = killed_at_the_last
sys.exit(main(sys.argv[2:]))
"""


@dataclass(frozen=True)
class Item:
    """An item of a unit."""

    uri: str


class Doubling(Stage[StageConfig, Item, str]):
    """Names an item twice."""

    name: ClassVar[str] = "doubling"
    version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.SOURCE

    def process(self, unit: Item) -> str:
        return unit.uri * 2

    def video_s(self, unit: Item) -> float:
        return 1.5


UNIT = [Item("a"), Item("b"), Item("c")]


def test_a_unit_that_takes_long_gives_the_rest_back() -> None:
    worker = UnitWorker(stage=Doubling(StageConfig()), store_s=0.0)
    first = worker(UNIT)
    assert (first.results, first.not_begun) == (["aa"], (Item("b"), Item("c")))
    assert (first.n_items, first.video_s) == (1, 1.5)
    whole = UnitWorker(stage=Doubling(StageConfig()), store_s=60.0)(UNIT)
    assert (whole.results, whole.not_begun, whole.n_items) == (["aa", "bb", "cc"], (), 3)


class Passed:
    """The next step of a chain: takes what the one before made."""

    def __call__(self, results: list[str]) -> list[Item]:
        return [Item(result) for result in results]


def test_every_item_is_done_once_and_counted_once_where_units_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A chain has the same items in each of its steps."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    long = stage_step(Doubling(StageConfig()), store_s=0.0)
    then = stage_step(Doubling(StageConfig()), load=Passed())
    with Engine(address=None, workers=None) as engine:
        here = list(engine.run_in_driver([long, then], [UNIT, [Item("d")]]))
        assert [one.results for one in here] == [["aaaa"], ["bbbb"], ["cccc"], ["dddd"]]
        child = list(engine.run([long, then], [UNIT], placement="child"))
        assert [one.results for one in child] == [["aaaa"], ["bbbb"], ["cccc"]]
        assert engine.progress() == (3, 3 * 3.0, 3 * 3.0)


def test_a_fleet_gives_the_rest_of_a_unit_to_the_next_worker() -> None:
    worker = UnitWorker(stage=Doubling(StageConfig()), store_s=0.0)
    backend = Simulated(lambda _, unit, n_deaths: worker(unit))
    fleet = Fleet(backend, [pool(most=2)], counts=FleetCounts(), unit_times=UnitTimes())
    results: list[UnitResult[list[str]]] = list(fleet.run([UNIT, [Item("d")]]))
    assert sorted(result.results[0] for result in results) == ["aa", "bb", "cc", "dd"]


@pytest.mark.long
def test_a_run_that_is_killed_decodes_nothing_again_but_what_was_under_way(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(N_SOURCES):
        frames = moving_texture(50, seed=number)
        write_video(tmp_path / "in" / f"{number}.mp4", frames, fps=Fraction(25))
    command = ["run", str(tmp_path / "in"), str(tmp_path / "out"), *SETTINGS]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(N_SOURCES), *command],
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert main(command) == EXIT_OK
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["counts"]["done"] == N_SOURCES
    assert summary["work"]["sources_analyzed"] == 1
