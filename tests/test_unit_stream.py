"""A stream of units: who works on items that come, when, and in what units."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pytest

from curator import scheduler
from curator.errors import CuratorError, UsageError
from curator.executor.engine import Engine
from curator.executor.fleet import Fleet
from curator.executor.unit_worker import UnitResult, UnitWorker
from curator.executor.worker import Batch, Step
from curator.scheduler import FEW_ROUNDS, MANY_ITEMS, UnitStream
from curator.stage import Resources, Scope, Stage, StageConfig

Item = tuple[str, int]


def one_each(unit: Sequence[Batch[Item]], results: Sequence[list[Item]]) -> list[Item]:
    (items,) = results
    return items


class Service(Stage[StageConfig, Any, list[Item]]):
    """Gives items back, once it may."""

    name, version, scope, fails_alone = "service", 1, Scope.CLIP, False
    unit_items = 8

    def __init__(self, in_flight: int | None = 4) -> None:
        super().__init__(StageConfig())
        self._in_flight, self.may, self.n_shares = in_flight, threading.Event(), 1
        self.is_closed = False
        self.may.set()

    @property
    def in_flight(self) -> int | None:
        return self._in_flight

    @property
    def resources(self) -> Resources:
        return Resources(cpus=0 if self._in_flight else 1)

    def share(self, n_workers: int) -> Self:
        self.n_shares = n_workers
        return self

    def preflight(self) -> None:
        raise UsageError("it is down")

    def process(self, unit: Batch[Item]) -> list[Item]:
        while not self.may.wait(0.01):
            if self.is_closed:
                raise CuratorError("the run has ended")
        self.notes.append("mind the gap")
        return list(unit.items)

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Pool(Fleet):
    """Takes units and answers when it is asked."""

    steps: Sequence[Step]
    most: int | None
    units: list[list[Batch[Item]]] = field(default_factory=list)
    has_closed: bool = False

    @property
    def n_open(self) -> int:
        return len(self.units)

    def submit(self, unit: Any) -> None:  # noqa: ANN401
        self.units.append(unit)

    def poll(self, timeout: float = 0.0) -> list[Any]:
        units, self.units = self.units, []
        return [
            UnitResult(results=list(batch.items), cpu_s={"service": 1.0}, notes=("a", "b", "a"))
            for (batch,) in units
        ]

    def close(self, *, may_serve_again: bool = False) -> None:
        self.has_closed = True


class Streaming:
    """A stream on an engine that starts no process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stage: Service, n_workers: int = 2) -> None:
        self.engine, self.stage = Engine(address=None, workers=n_workers), stage
        self.is_started, self.pools, self.at_end = False, list[Pool](), list[list[Batch[Item]]]()
        monkeypatch.setattr(Engine, "is_started", property(lambda _: self.is_started))
        monkeypatch.setattr(self.engine, "pool", self._pool)
        monkeypatch.setattr(self.engine, "run", self._run)
        self.stream = UnitStream[Item, list[Item]](
            self.engine, stage, key=lambda item: item[0], keep=one_each
        )

    def _pool(
        self, steps: Sequence[Step], *, most: int | None, check: Callable[[], str | None] | None
    ) -> Pool:
        self.pools.append(Pool(steps, most))
        return self.pools[-1]

    def _run(self, steps: Any, units: Any, *, placement: str) -> Any:  # noqa: ANN401
        self.at_end += units
        worker = UnitWorker(**steps[0].settings)
        return map(worker, units)

    def submit(self, n: int, key: str = "") -> list[list[Item]]:
        """Submits items, and returns what `poll` gives then."""
        for number in range(n):
            self.stream.submit((key or str(number), number))
        return self.stream.poll()

    def rest(self) -> list[Item]:
        return [item for units in self.stream.finish() for unit in units for item in unit]


def test_few_items_go_to_a_thread_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins one unit at a time, what came meanwhile in the next one, and no second warning."""
    stage = Service()
    stage.may.clear()
    streaming = Streaming(monkeypatch, stage)
    assert streaming.submit(1) == streaming.submit(5) == []
    assert (stage.n_shares, streaming.stream._workers.n_open) == (1, 1)  # type: ignore[union-attr]
    stage.may.set()
    assert sorted(streaming.rest()) == sorted([("0", 0), *((str(n), n) for n in range(5))])
    assert stage.is_closed
    assert streaming.pools == []


def test_a_thread_that_waits_ends_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Service()
    stage.may.clear()
    streaming = Streaming(monkeypatch, stage)
    streaming.submit(3)
    threads = threading.active_count()
    streaming.stream.close()
    assert threading.active_count() < threads


def test_many_items_go_to_workers_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins that Ray is not started before, that results are complete, and each warning is once."""
    stage = Service(in_flight=64)
    stage.may.clear()
    streaming = Streaming(monkeypatch, stage)
    streaming.submit(1)
    streaming.submit(MANY_ITEMS)
    assert streaming.pools == []
    stage.may.set()
    items = streaming.rest()
    (pool,) = streaming.pools
    assert (pool.most, stage.n_shares, pool.has_closed) == (2, 2, True)
    assert len(items) == MANY_ITEMS + 1
    assert Counter(record.getMessage() for record in caplog.records) == {"a": 1, "b": 1}
    assert streaming.stream.cpu_s["service"] >= 2.0


def test_workers_get_full_units_as_items_come_and_keep_what_belongs_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streaming = Streaming(monkeypatch, Service())
    streaming.is_started = True
    streaming.submit(3)
    assert streaming.pools == [], "fewer than are asked at a time"
    for number in range(4 * FEW_ROUNDS):
        streaming.stream.submit((str(number), number))
    streaming.submit(30, key="same")
    (pool,) = streaming.pools
    sizes = [len(batch.items) for (batch,) in pool.units]
    assert sum(sizes) == 3 + 4 * FEW_ROUNDS + 30
    for (batch,) in pool.units:
        assert {key for key, _ in batch.items} & {"same"} in (set(), {"same"})
    assert sum("same" in {key for key, _ in batch.items} for (batch,) in pool.units) == 1
    assert len({batch.name for (batch,) in pool.units}) == len(pool.units)


def test_a_stage_that_needs_cores_works_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    streaming = Streaming(monkeypatch, Service(in_flight=None))
    streaming.is_started = True
    assert streaming.submit(19) == []
    assert streaming.at_end == []
    assert len(streaming.rest()) == 19
    assert [len(batch.items) for (batch,) in streaming.at_end] == [8, 8, 3]


def test_a_service_that_answers_nobody_ends_the_run_at_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    streaming = Streaming(monkeypatch, Service())
    streaming.is_started = True
    streaming.submit(19)
    stream = streaming.stream
    stream._heard_s -= scheduler.GIVE_UP_S - 10
    stream._mind_silence(is_silent=True)
    assert "service: no answer for 890 s: it is down" in caplog.text
    stream._heard_s -= 1000
    with pytest.raises(CuratorError, match=r"service: no answer for 900 s: it is down"):
        stream._mind_silence(is_silent=True)
    stream._mind_silence(is_silent=False)
    stream._mind_silence(is_silent=True)


def test_a_batch_whose_worker_died_becomes_smaller_ones_of_its_name() -> None:
    batch = Batch(items=tuple(range(20)), name="0badcafe")
    parts = batch.divided()
    assert [item for part in parts for item in part.items] == list(range(20))
    assert {part.name for part in parts} == {"0badcafe"}
    assert max(len(part.items) for part in parts) == 3
    (alone,) = Batch(items=(1,), name="0badcafe").divided()
    assert alone.items == (1,)
