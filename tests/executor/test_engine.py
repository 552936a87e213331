"""The engine: errors as they were raised, workers as they were asked for, nothing left behind."""

import os
import pickle
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from curator.errors import CuratorError, ErrorCode, SourceError, StorageError
from curator.executor import engine as engine_module
from curator.executor import ray_cluster, worker
from curator.executor.engine import Engine, Placement, available_cpus
from curator.executor.unit_worker import UnitResult
from curator.executor.worker import SERVED_BYTES, Step, call_chain, pack_chain
from curator.stage import Resources


class Half:
    """Halves even numbers."""

    def __init__(self, *, wanted: str) -> None:
        self._wanted = wanted

    def __call__(self, unit: int) -> int:
        if unit % 2:
            raise StorageError(f"{unit} is odd; expected {self._wanted}")
        return unit // 2


HALF = Step(make=Half, settings={"wanted": "an even one"}, resources=Resources(cpus=0.5))
KEEPS = Step(make=Half, settings={"wanted": "2"}, resources=Resources(cpus=1), keeps_state=True)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets workers import this module."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture(scope="module")
def shared() -> Iterator[Engine]:
    """A Ray of one worker, which leaves no process; a second Ray cannot run at the same time."""
    before = children()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        with Engine(address=None, workers=1) as engine:
            yield engine
    assert children() <= before


def children() -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.add(int(stat.parent.name))
    return found


@pytest.mark.usefixtures("here")
def test_chains_run_on_ray_with_more_workers_than_cores_and_raise_what_a_step_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (engine_module, ray_cluster):
        monkeypatch.setattr(module, "available_cpus", lambda: 1)
    before = children()
    with Engine(address=None, workers=2) as engine:
        assert not engine.is_started
        assert list(engine.run([HALF], [])) == []
        assert not engine.is_started
        units = [0, 4, 8, 12]
        assert sorted(engine.run([KEEPS, HALF], units)) == [0, 1, 2, 3]
        with pytest.raises(StorageError, match=r"^7 is odd; expected 2$"):
            list(engine.run([KEEPS, HALF], [4, 7]))
        assert engine.is_started
        assert engine.n_workers(100) == 2
        assert children() - before
        # No daemons that no run needs.
        commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children()]
        assert any(b"raylet" in command for command in commands)
        for daemon in (b"monitor.py", b"log_monitor.py", b"dashboard.py"):
            assert not any(daemon in command for command in commands)
    assert children() <= before


class Where:
    """Says which process it runs in."""

    def __init__(self, *, name: str) -> None:
        self._name = name

    def __call__(self, unit: int) -> tuple[str, int]:
        return self._name, os.getpid()


class Titled:
    """Says what its process is called."""

    def __call__(self, unit: int) -> str:
        return Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode()


def titled(name: str) -> Step:
    return Step(make=Titled, resources=Resources(cpus=1), keeps_state=True, names=(name,))


def where(name: str, cpus: float = 1) -> Step:
    settings, resources = {"name": name}, Resources(cpus=cpus)
    return Step(make=Where, settings=settings, resources=resources, keeps_state=cpus == 1)


@pytest.mark.long
@pytest.mark.usefixtures("here")
def test_workers_serve_no_other_chain_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that analyzed and then cuts takes more than one that does either."""
    monkeypatch.setattr(ray_cluster, "memory_bytes", lambda: SERVED_BYTES - 1)
    with Engine(address=None, workers=1) as engine:
        ((_, first),) = engine.run([where("a")], [0])
        ((_, other),) = engine.run([where("b")], [0])
        assert other != first


def test_workers_serve_the_next_chain(shared: Engine) -> None:
    """A process of its own for each chain costs one or two CPU-seconds."""
    ((_, first),) = shared.run([where("a")], [0])
    assert list(shared.run([where("b")], [0, 0])) == [("b", first)] * 2
    assert ("light", first) in list(shared.run([where("light", 0.5)], [0]))
    # The process still holds a core, although the last chain requested half of one.
    assert list(shared.run([where("b")], [0])) == [("b", first)]
    titles = {title for name in ("cut", "shard") for title in shared.run([titled(name)], [0])}
    assert titles == {"ray::curate_cut.run", "ray::curate_shard.run"}
    import ray

    actors = ray._private.state.state.actor_table(None)
    assert [a["ActorClassName"] for a in actors.values()] == ["curate_Where"]
    # A process that was started for half a core holds no more, so it serves no other chain.
    list(shared.run([where("two", 2)], [0]))
    ((_, light),) = shared.run([where("light", 0.5)], [0])
    ((_, other),) = shared.run([where("b")], [0])
    assert len({first, light, other}) == 3
    # A chain that failed leaves no worker.
    with pytest.raises(StorageError):
        list(shared.run([KEEPS], [1, 2]))
    assert next(iter(shared.run([where("b")], [0])))[0] == "b"


def test_a_pool_takes_units_while_others_are_worked_on(shared: Engine) -> None:
    """Pins results of all units, an error as it was raised, and that other work goes on."""
    # A GPU must not stand idle until the driver, busy with cutting, takes its result: a worker gets
    # its next unit before that.
    pool = shared.pool([KEEPS])
    assert pool.poll() == []
    pool.submit(0)
    assert pool.poll(timeout=60) == [0]
    for unit in range(2, 10, 2):
        pool.submit(unit)
    time.sleep(2)
    assert sorted(pool.poll()) == [1, 2]
    results = []
    while pool.n_open:
        results += pool.poll(timeout=60)
    assert sorted(results) == [3, 4]
    results = []
    for unit in range(0, 20, 2):
        pool.submit(unit)
        results += pool.poll()
    assert sorted(shared.run([HALF], [2, 4])) == [1, 2]
    while pool.n_open:
        results += pool.poll(timeout=5)
    assert sorted(results) == list(range(10))
    pool.submit(7)
    with pytest.raises(StorageError, match=r"^7 is odd; expected 2$"):
        pool.poll(timeout=60)
    pool.close()
    assert pool.n_open == 0


class Fragile:
    """Dies of one item; says how many others did when it is given up."""

    def __call__(self, unit: list[str]) -> list[str]:
        if "deadly" in unit:
            os.abort()
        return unit

    def repeat(self, unit: list[str], n_deaths: int) -> list[str]:
        return [f"{unit[0]}: {n_deaths}"] if n_deaths > 1 else self(unit)


@pytest.mark.parametrize("placement", ["child", pytest.param("ray", marks=pytest.mark.long)])
@pytest.mark.usefixtures("here")
def test_an_item_that_kills_its_process_twice_is_given_up_and_its_neighbours_are_done(
    placement: Placement, shared: Engine
) -> None:
    before = children()
    with (
        Engine(address=None, workers=None)
        if placement == "child"
        else nullcontext(shared) as engine
    ):
        step = Step(make=Fragile, resources=Resources(cpus=1), keeps_state=True)
        results = list(
            engine.run([step], [["a"], ["b", "deadly", "c"], ["d"]], placement=placement)
        )
        assert sorted(results) == [["a"], ["b"], ["c"], ["d"], ["deadly: 2"]]
        with pytest.raises(StorageError, match="3 is odd"):
            list(engine.run([HALF], [2, 3], placement=placement))
        assert engine.is_started == (placement == "ray")
    assert placement == "ray" or children() <= before


class Unloadable:
    """Dies while it is made."""

    def __init__(self) -> None:
        os.abort()


def test_small_work_ends_with_an_error_where_no_process_can_load_its_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "MAX_DEATHS_IN_A_ROW", -3)
    step = Step(make=Unloadable, resources=Resources(cpus=1))
    said = "while it loads the models of Unloadable"
    with Engine(address=None, workers=None) as engine, pytest.raises(CuratorError, match=said):
        list(engine.run([step], [[1]], placement="child"))


def test_small_work_has_few_items_and_frames_and_no_named_workers_or_cluster() -> None:
    engine, eight = Engine(address=None, workers=None), Engine(address=None, workers=8)
    assert engine.is_small(3, 900.0)
    assert not engine.is_small(3, 1e6)
    assert not engine.is_small(1000, 900.0)
    assert not eight.is_small(1, 1.0)
    assert not Engine(address="auto", workers=None).is_small(1, 1.0)
    assert (eight.n_workers(3), eight.n_workers(0)) == (3, 1)
    assert 1 <= engine.n_workers(1000) <= available_cpus()
    # Ray would never start a worker whose cores are not there.
    wide = Resources(cpus=available_cpus())
    assert (eight.n_workers(3, wide), engine.n_workers(3, wide)) == (1, 1)


class Counted:
    """Says that it did some items."""

    def __call__(self, unit: list[int]) -> UnitResult[list[int]]:
        return UnitResult(results=unit, n_items=len(unit), video_s=1.5, work_s=1.5)


def test_progress_is_what_the_results_of_the_last_chain_say() -> None:
    with Engine(address=None, workers=None) as engine:
        step = Step(make=Counted, resources=Resources(cpus=1))
        list(engine.run([step], [[1, 2], [3]], placement="child"))
        assert engine.progress() == (3, 3.0, 3.0)
        list(engine.run([step], [[1]], placement="child", is_shown=False))
        assert engine.progress() == (3, 3.0, 3.0)
        list(engine.run([step], [[1]], placement="child"))
        assert engine.progress() == (1, 1.5, 1.5)
        # A small run tells where its time went, too.
        (times,) = engine.facts()["unit_times"]
        assert (times["units"], times["workers"], times["nodes"]) == (4, 1, 1)


class Missing:
    """Finds nothing."""

    def __call__(self, unit: int) -> int:
        raise SourceError(ErrorCode.VANISHED, "gone")


def test_an_error_passes_the_steps_behind_it() -> None:
    chain = pack_chain([Step(make=Missing, resources=HALF.resources), HALF])
    passed = pickle.loads(call_chain(chain, pickle.dumps((2, 0))))
    assert isinstance(passed, CuratorError)
    assert (passed.code, passed.message) == (ErrorCode.VANISHED, "gone")


class Broken:
    """Fails where nothing foresees it: when it is made, or at work."""

    def __init__(self, *, at_once: bool) -> None:
        if at_once:
            raise FileNotFoundError("no such weights")

    def __call__(self, unit: int) -> int:
        raise ValueError(f"cannot take {unit}")


@pytest.mark.parametrize(("at_once", "said"), [(True, "no such weights"), (False, "cannot take 7")])
def test_an_unforeseen_error_ends_the_run_with_its_words(at_once: bool, said: str) -> None:
    """Pins that no process is started again for an error that comes back each time."""
    step = Step(make=Broken, settings={"at_once": at_once}, resources=Resources())
    with Engine(address=None, workers=None) as engine, pytest.raises(CuratorError, match=said):
        list(engine.run([step], [7], placement="child"))
