"""How far a unit is before it has a result: from the sandbox to the driver."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from simulated_workers import Simulated

from curator.errors import ErrorCode, SourceError
from curator.executor import unit_worker
from curator.executor.engine import Engine
from curator.executor.fleet import Fleet, FleetCounts, WorkerPool
from curator.executor.sandboxed_process import NOT_BEGUN, Reached, process_sandbox
from curator.executor.unit_times import UnitTimes
from curator.executor.unit_worker import UnitWorker
from curator.records.sources import Failure
from curator.stage import Resources, Scope, Stage, StageConfig

Told = Callable[[float], None]


@dataclass(frozen=True)
class Film:
    """Ten seconds of video."""

    uri: str


class Telling(Stage[StageConfig, Film, str | Failure]):
    """Tells how far it is, frame by frame."""

    name: ClassVar[str] = "telling"
    version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.SOURCE
    sandboxed = True

    def process(self, unit: Film) -> str:
        for number in range(1000):
            if self.on_reached is not None:
                self.on_reached(4.0 + number / 1000)
        return unit.uri

    def failed(self, unit: Film, failure: Failure) -> Failure:
        return failure

    def video_s(self, unit: Film) -> float:
        return 10.0

    def work_s(self, unit: Film) -> float:
        return 20.0


def test_a_sandbox_tells_the_first_of_many_calls_at_once() -> None:
    told: list[float] = []
    assert process_sandbox().process(Telling(StageConfig()), Film("a"), told.append) == "a"
    assert told[0] == 4.0
    assert len(told) <= 2


class Claiming:
    """A sandbox that claims to be somewhere, and fails at the second item."""

    def __init__(self, claims: list[float]) -> None:
        self.claims, self.seen = claims, list[Reached]()
        self.reached, self.counts = NOT_BEGUN, Counter[str]()

    def process(self, stage: Telling, item: Film, on_reached: Told) -> str:
        del stage
        for claim in self.claims:
            on_reached(claim)
            self.seen.append(self.reached)
        if item.uri == "b":
            raise SourceError(ErrorCode.NO_FRAMES, "no frame")
        return item.uri

    def release(self) -> None: ...

    def take_cpu_s(self) -> tuple[float, float]:
        return 0.0, 0.0


def test_an_item_counts_at_most_what_its_header_says_and_wholly_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sandbox: Any = Claiming([4.0, -5.0, 99.0, math.nan])
    monkeypatch.setattr(unit_worker, "process_sandbox", lambda: sandbox)
    result = UnitWorker(stage=Telling(StageConfig()))([Film("a"), Film("b"), Film("c")])
    assert sandbox.seen[:3] == [(0, 4.0, 8.0), (0, 0.0, 0.0), (0, 10.0, 20.0)]
    # The failed item counts as done: nothing of it is left to do.
    assert sandbox.seen[8] == (2, 24.0, 48.0)
    assert all(video_s <= 30.0 for _, video_s, _ in sandbox.seen)
    assert (result.n_items, result.video_s, result.work_s) == (3, 30.0, 60.0)
    assert sandbox.reached == NOT_BEGUN


def test_the_engine_adds_what_running_units_have_reached() -> None:
    backend = Simulated(lambda *_: None)
    pool = WorkerPool(stage="a", chain=b"", resources=Resources(), most=lambda: 2)
    fleet = Fleet(backend, [pool], counts=FleetCounts(), unit_times=UnitTimes(), ahead=2)  # type: ignore[arg-type]
    for name in "abc":
        fleet.submit([name])
    assert not fleet.poll()
    first, second = (worker.given[0].number for worker in backend.placed)
    backend.reached = {first: (1, 5.0, 2.5), 10**9: (9, 99.0, 99.0)}
    with Engine(address=None, workers=None) as engine:
        engine._done, engine._shown = (4, 40.0, 20.0), fleet
        assert engine.progress() == (5, 45.0, 22.5)
        backend.reached = {first: (1, 5.0, 2.5), second: (0, 3.0, 1.5)}
        assert engine.progress() == (5, 48.0, 24.0)
