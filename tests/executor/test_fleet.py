"""Who gets which unit, and what becomes of it when workers and nodes die: without processes."""

import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from simulated_workers import Simulated, pool

from curator.errors import CuratorError, UsageError
from curator.executor import fleet as fleet_module
from curator.executor.fleet import (
    Fleet,
    FleetCounts,
    TransientRefusal,
    Unmet,
    Worker,
    WorkerLost,
    WorkerPool,
)
from curator.executor.unit_times import UnitTimes
from curator.executor.unit_worker import UnitResult
from curator.executor.worker import MAX_ATTEMPTS, Step, call_chain, pack_chain, split
from curator.packing import pack
from curator.records.sources import SourceRef
from curator.stage import Resources
from curator.tables.track_parts import AnalyzedUnit, StoredTrack


def fleet_of(backend: Simulated, *pools: WorkerPool, **options: Any) -> Fleet:  # noqa: ANN401
    made = {"counts": FleetCounts(), "unit_times": UnitTimes()} | options
    return Fleet(backend, pools or [pool()], **made)  # type: ignore[arg-type]


def echo(worker: Worker, unit: object, n_deaths: int) -> object:
    del worker
    return ("given up", unit) if n_deaths >= MAX_ATTEMPTS else unit


def test_demand_is_visible_and_goes_with_the_work() -> None:
    """An autoscaler sees a worker for each unit that is left, and none for those that are done."""
    backend = Simulated(echo, nodes=[])
    fleet = fleet_of(backend)
    for unit in range(5):
        fleet.submit([unit])
    assert len(backend.requested) == 5
    assert fleet.loads() == {("work", "waiting"): 5, ("work", "starting"): 5}
    backend.nodes, backend.room = ["one"], 1
    backend.place()
    assert fleet.poll() == []
    assert (fleet.loads()["work", "busy"], fleet.loads()["work", "waiting"]) == (1, 4)
    results = []
    while fleet.n_open:
        results += fleet.poll()
        assert len(backend.requested) <= max(0, fleet.n_open - fleet.n_workers)
    assert sorted(results) == [[unit] for unit in range(5)]
    assert not backend.requested
    assert not backend.placed, "a worker without a unit holds its node"
    fleet.close()
    assert not fleet._counts.fleets


def test_no_more_workers_are_requested_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the pool, and where there is no place for them."""
    backend = Simulated(echo, nodes=[])
    fleet = fleet_of(backend, pool(most=3))
    for unit in range(5):
        fleet.submit([unit])
    assert len(backend.requested) == 3
    monkeypatch.setattr(fleet_module, "MAX_UNPLACED", 10)
    backend = Simulated(echo, nodes=[])
    fleet = fleet_of(backend)
    for unit in range(50):
        fleet.submit([unit])
    assert len(backend.requested) == 10
    backend.nodes = ["one"]
    backend.place()
    results = []
    while fleet.n_open:
        results += fleet.poll()
    assert len(results) == 50


def test_a_stream_is_taken_as_there_is_room() -> None:
    taken = 0

    def units() -> Sequence[list[int]]:  # type: ignore[misc]
        nonlocal taken
        for number in range(1000):
            taken = number
            yield [number]

    backend = Simulated(echo)
    done = 0
    for _ in fleet_of(backend, pool(most=4)).run(units()):
        done += 1
        assert taken <= done + 8
    assert done == 1000


def test_an_item_that_kills_twice_is_given_up_and_takes_no_others_down() -> None:
    def does(worker: Worker, unit: list[str], n_deaths: int) -> object:
        del worker
        if n_deaths >= MAX_ATTEMPTS:
            return f"gave up {unit}"
        return WorkerLost("the process died") if "deadly" in unit else " ".join(unit)

    backend = Simulated(does)  # type: ignore[arg-type]
    results = list(fleet_of(backend).run([["a", "deadly", "b"], ["c", "d"]]))
    assert sorted(results) == ["a", "b", "c d", "gave up ['deadly']"]
    assert Counter(str(unit) for _, unit in backend.sent)["['deadly']"] == 2


def test_deaths_with_a_node_are_not_held_against_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is not known to be gone when its workers' connections end."""
    monkeypatch.setattr(fleet_module, "LOOK_S", 0.05)
    n_lost = 0

    def does(worker: Worker, unit: object, n_deaths: int) -> object:
        nonlocal n_lost
        if n_deaths >= MAX_ATTEMPTS:
            return "gave up"
        node = backend.placed[worker]
        if node.startswith("spot"):
            n_lost += 1
            backend.lose_node(node)
            return None
        return unit

    backend = Simulated(does, nodes=[f"spot {n}" for n in range(5)] + ["stays"])
    backend.settle_s = 0.01
    fleet = fleet_of(backend, pool(most=1))
    assert list(fleet.run([["film"]])) == [["film"]]
    assert n_lost == 5
    assert len(backend.sent) == 6


def test_a_known_loss_of_a_node_counts_nothing_at_all() -> None:
    def does(worker: Worker, unit: object, n_deaths: int) -> object:
        assert n_deaths == 0
        node = backend.placed[worker]
        if node != "stays":
            backend.dead.add(node)
            return WorkerLost("preempted", is_node=True)
        return unit

    backend = Simulated(does, nodes=["a", "b", "c", "stays"])
    counts = FleetCounts()
    fleet = fleet_of(backend, pool(most=1), counts=counts)
    assert list(fleet.run([["x", "y"]])) == [["x", "y"]]
    assert counts.lost_nodes == {"a", "b", "c"}
    assert counts.repeated_units == 3
    assert counts.deaths == 0


def test_a_worker_that_dies_loses_its_unit_alone_and_many_deaths_end_the_run() -> None:
    """With units ahead, those behind it were not begun, and no death is theirs."""
    seen: list[tuple[object, int]] = []

    def does(worker: Worker, unit: object, n_deaths: int) -> object:
        del worker
        seen.append((unit, n_deaths))
        if len(seen) == 1:
            return None
        if len(seen) == 2:
            return WorkerLost("the process died")
        return unit

    backend = Simulated(does)
    results = list(fleet_of(backend, pool(most=1), ahead=2).run([["a"], ["b"]]))
    assert sorted(results) == [["a"], ["b"]]
    assert (["a"], 1) in seen
    assert (["b"], 1) not in seen
    # Workers that die again and again end the run.
    backend = Simulated(lambda worker, unit, n_deaths: WorkerLost("no memory"))
    with pytest.raises(CuratorError, match="is there enough memory"):
        list(fleet_of(backend, pool(most=2)).run([[number] for number in range(100)]))


def test_nodes_that_refuse_are_left_to_other_lanes(caplog: pytest.LogCaptureFixture) -> None:
    """GPUs without a decoder: the run goes on with CPUs, and says so once for each node."""
    backend = Simulated(lambda worker, unit, n_deaths: (worker.pool.stage, unit))
    backend.nodes = ["bad gpu", "good gpu", "cpus"]
    backend.refusals = {"bad gpu": "PyNvVideoCodec is missing"}
    gpu, cpu = pool("gpu", most=2, gpus=0.5), pool("cpu", most=1, place="cpus")
    results = list(fleet_of(backend, gpu, cpu).run([[n] for n in range(20)]))
    assert len(results) == 20
    places = Counter(node for node, _ in backend.sent)
    assert places.keys() == {"good gpu", "cpus"}
    assert caplog.text.count("PyNvVideoCodec is missing") == 1


def test_a_node_is_asked_again_where_the_fault_is_not_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet_module, "LOOK_S", 0.01)
    backend = Simulated(echo, nodes=["one"])
    backend.refusals = {"one": TransientRefusal("the server is down")}
    fleet = fleet_of(backend)
    fleet.submit(1)
    assert fleet.poll(timeout=0.1) == []
    assert fleet.refusal in (None, "the server is down")
    backend.refusals = {}
    assert fleet.poll(timeout=5) == [1]
    assert fleet._counts.refusals == {}


def test_the_last_lane_takes_from_the_end() -> None:
    backend = Simulated(lambda worker, unit, n_deaths: (worker.pool.stage, unit))
    gpu, cpu = pool("gpu", most=1, gpus=1), pool("cpu", most=1)
    results = list(fleet_of(backend, gpu, cpu).run([[n] for n in range(10)]))
    by_lane = {
        name: [unit[0] for stage, unit in results if stage == name] for name in ("gpu", "cpu")
    }
    assert min(by_lane["gpu"]) == 0
    assert max(by_lane["cpu"]) == 9
    assert max(by_lane["gpu"]) < min(by_lane["cpu"])


@pytest.mark.parametrize("is_expected", [True, False])
def test_a_lane_without_places_leaves_its_units_to_the_next(
    monkeypatch: pytest.MonkeyPatch, is_expected: bool
) -> None:
    """GPUs that a captioner holds, or an autoscaler that does not say whether it has any."""
    # For those that may not come no CPU waits at all.
    if is_expected:
        monkeypatch.setattr(fleet_module, "PATIENCE_S", 0.0)
    backend = Simulated(echo, nodes=["cpus"])
    gpu = pool("gpu", gpus=1, place="gpus", is_expected=is_expected)
    fleet = fleet_of(backend, gpu, pool("cpu", most=2))
    assert len(list(fleet.run([[n] for n in range(10)]))) == 10


def test_a_drained_node_gets_no_more_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "LOOK_S", 0.0)

    def does(worker: Worker, unit: object, n_deaths: int) -> object:
        if backend.placed[worker] == "spot":
            backend.drained = {"spot"}
            backend.nodes = ["stays"]
        return unit

    backend = Simulated(does, nodes=["spot"])
    assert len(list(fleet_of(backend, pool(most=1)).run([[n] for n in range(5)]))) == 5
    assert [node for node, _ in backend.sent] == ["spot", *["stays"] * 4]


def waiting_fleet(monkeypatch: pytest.MonkeyPatch, backend: Simulated, clock: list[float]) -> Fleet:
    """A fleet with a unit and no worker, whose clock a test moves."""
    monkeypatch.setattr(fleet_module.time, "monotonic", lambda: clock[0])
    fleet = fleet_of(backend)
    fleet.submit([1])
    return fleet


def test_a_worker_that_no_node_can_hold_is_said_within_30_s_and_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend, clock = Simulated(echo, nodes=[]), [0.0]
    backend.unmet_by = {"work": Unmet(why="no node can hold it: 1 with 1 CPUs", is_final=False)}
    fleet = waiting_fleet(monkeypatch, backend, clock)
    for clock[0] in (10.0, 20.0, 30.0):
        assert fleet.poll() == []
    assert caplog.text.count("without a worker: work needs a node; no node can hold it") == 1
    backend.unmet_by = {"work": Unmet(why="no node can hold it: 1 with 1 CPUs", is_final=True)}
    clock[0] = 50.0
    with pytest.raises(UsageError, match=r"1 with 1 CPUs; there is no autoscaler"):
        fleet.poll()


def test_a_worker_that_waits_for_others_to_end_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend, clock = Simulated(echo, nodes=[]), [0.0]
    fleet = waiting_fleet(monkeypatch, backend, clock)
    for clock[0] in (20.0, 30.0, 50.0):
        assert fleet.poll() == []
    assert not caplog.text
    clock[0] = 60.0
    assert fleet.poll() == []
    assert caplog.text.count("60 s without a worker: work needs a node") == 1


def test_workers_are_requested_anew_where_less_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend, clock = Simulated(echo, nodes=[]), [0.0]
    monkeypatch.setattr(backend, "relax", lambda pool: True)
    fleet = waiting_fleet(monkeypatch, backend, clock)
    (first,) = backend.requested
    clock[0] = 20.0
    fleet.poll()
    assert first in backend.ended
    assert len(backend.requested) == 1


def test_a_fleet_whose_backend_is_gone_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that it asks, although no worker says anything any more."""
    backend, clock = Simulated(lambda worker, unit, n_deaths: None), [0.0]
    fleet = waiting_fleet(monkeypatch, backend, clock)
    fleet.poll()
    backend.is_gone = True
    clock[0] = 10.0
    with pytest.raises(CuratorError, match="the raylet died"):
        fleet.poll()


def test_workers_of_this_machine_stay_for_the_next_chain_unless_a_step_raises() -> None:
    backend, unit_times = Simulated(echo), UnitTimes()
    backend.is_elastic = False
    fleet = fleet_of(backend, pool(most=1), unit_times=unit_times)
    assert list(fleet.run([[1], [2]])) == [[1], [2]]
    assert len(backend.kept) == 1
    assert not backend.ended
    (stage,) = unit_times.facts()
    assert (stage["stage"], stage["units"], stage["workers"]) == ("work", 2, 1)
    # An error of a step ends the run as it was raised.
    backend = Simulated(lambda worker, unit, n_deaths: CuratorError("7 is odd"))
    with pytest.raises(CuratorError, match=r"^7 is odd$"):
        list(fleet_of(backend).run([[7]]))
    assert not backend.placed


def test_stored_tracks_are_divided_too() -> None:
    """One that kills the worker which proposes its clips does not fail those it is stored with."""
    tracks = tuple(
        StoredTrack(source=SourceRef(uri=u, n_bytes=1, version="1"), parts={}) for u in "ab"
    )
    unit: UnitResult[AnalyzedUnit] = UnitResult(results=AnalyzedUnit(tracks=tracks))
    parts = split(unit)
    assert [part.results.tracks for part in parts] == [(tracks[0],), (tracks[1],)]
    assert len(split(parts[0])) == 1
    assert split("words of a unit") == ["words of a unit"]


class Notes:
    """A step that says how many deaths it was told of."""

    def __call__(self, unit: list[int]) -> list[int]:
        return [*unit, 0]

    def repeat(self, unit: list[int], n_deaths: int) -> list[int]:
        return [*unit, n_deaths]


def test_units_hold_neighbours_and_the_first_step_of_a_chain_fails_what_is_given_up() -> None:
    """The others get what it made of it, as in any other run."""
    step = Step(make=Notes, resources=Resources())
    sent = pickle.dumps(([7], 2))
    assert pickle.loads(call_chain(pack_chain([step, step]), sent)) == [7, 2, 0]
    # Units hold neighbours up to their number and weight unless one item is heavier.
    assert list(pack(range(7), max_items=3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(pack([], max_items=3)) == []
    weights = [5, 5, 1, 20, 1, 9, 1]
    groups = list(pack(weights, max_items=10, weight=float, max_weight=10))
    assert groups == [[5, 5], [1], [20], [1, 9], [1]]
