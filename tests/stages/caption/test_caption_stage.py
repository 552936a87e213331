"""The caption stage in a stream: windows that kill workers, models that do not load, services."""

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from curator.errors import CuratorError, ModelError
from curator.executor import worker
from curator.executor.engine import Engine
from curator.executor.fleet import TransientRefusal
from curator.records.cuts import StoredFrames
from curator.scheduler import UnitStream
from curator.stages.caption import stage as caption_stage
from curator.stages.caption.caption_records import (
    Annotation,
    Answer,
    Reply,
    Task,
    Unanswered,
    Window,
)
from curator.stages.caption.captioners.dialog_runner import DialogRunner
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.frame_store import FrameParts
from curator.stages.caption.reply_store import Replies
from curator.stages.caption.stage import CaptionStage, OpenWindow, UnitAnnotations, load_windows
from curator.storage import open_store

CONFIG = CaptionConfig(captioner="local", model="tiny")
SERVER = CaptionConfig(captioner="openai", model="m", url="http://127.0.0.1:9/v1")
WINDOW = Window(index=0, start_frame=0, end_frame=1, shown=(0,))


class FakeRunner(DialogRunner):
    """Aborts the process on one window, as a lack of memory does, and warns twice of another."""

    def __init__(self) -> None: ...

    def annotate(self, windows: Any, replies: Any, keep: Any) -> list[Annotation]:  # noqa: ANN401
        tasks: list[Task] = [task for task, _ in windows]
        for task in tasks:
            if task.clip_id == "deadly":
                os.abort()
            if task.clip_id == "failing":
                keep("key", Reply(text="said"))
                raise ModelError("the server is gone")
            for _ in range(2):
                logging.getLogger(caption_stage.__package__).warning("trouble: %s", task.clip_id)
        return [Annotation(task=task, answer=Answer(medium=task.clip_id)) for task in tasks]


class FakeStage(CaptionStage):
    """Has a `FakeRunner`."""

    def setup(self) -> None:
        self._fingerprint, self._runner = "made", FakeRunner()


class DyingLoad(CaptionStage):
    """Aborts its process while it loads its model, or raises an error."""

    def setup(self) -> None:
        if self.config.model == "broken":
            raise ModelError("model broken: its weights cannot be loaded; fetch it")
        os.abort()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:  # noqa: ANN401
    """An engine on Ray, or in the process for small work."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with Engine(address=None, workers=request.param) as engine:
        yield engine


def _load(folder: Path, config: CaptionConfig) -> Any:  # noqa: ANN401
    store = open_store(str(folder))
    return partial(load_windows, store, FrameParts(store, config), "0123456789abcdef")


def _window(name: str) -> OpenWindow:
    task = Task(clip_id=name, content=name, window=WINDOW, fps=30.0)
    return OpenWindow(task=task, where=StoredFrames(clip_id=name), replies={})


def _stream(
    engine: Engine, folder: Path, stage: CaptionStage
) -> UnitStream[OpenWindow, list[UnitAnnotations]]:
    load = _load(folder, stage.config)
    stream = UnitStream[OpenWindow, list[UnitAnnotations]](
        engine, stage, key=lambda window: window.task.clip_id, load=load
    )
    for name in ("first", "deadly", "last"):
        stream.submit(_window(name))
    return stream


@pytest.mark.parametrize(
    "engine", [pytest.param(1, marks=pytest.mark.long), None], ids=["ray", "child"], indirect=True
)
def test_a_window_that_kills_its_worker_twice_fails_and_the_others_are_answered(
    engine: Engine, tmp_path: Path
) -> None:
    stream = _stream(engine, tmp_path, FakeStage(CONFIG))
    annotations = {
        annotation.task.clip_id: annotation
        for results in stream.finish()
        for units in results
        for unit in units
        for annotation in unit.annotations
    }
    assert annotations.keys() == {"first", "deadly", "last"}
    dead = annotations.pop("deadly")
    assert dead.failure is Unanswered.OUT_OF_MEMORY
    assert dead.detail == "the worker died 2 times while working on it"
    for name, one in annotations.items():
        assert one.answer == Answer(medium=name)


@pytest.mark.parametrize(
    "engine", [pytest.param(1, marks=pytest.mark.long), None], ids=["ray", "child"], indirect=True
)
@pytest.mark.parametrize(
    ("model", "said"),
    [("broken", "^model broken: its weights cannot be loaded; fetch it$"),
     ("large", "while (they loaded|it loads) the models of caption.*is there enough memory")],
)  # fmt: skip
def test_models_that_cannot_be_loaded_end_the_run_with_the_reason(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, said: str
) -> None:
    monkeypatch.setattr(worker, "MAX_DEATHS_IN_A_ROW", -2)
    stage = DyingLoad(CONFIG.model_copy(update={"model": model}))
    with pytest.raises(CuratorError, match=said):
        list(_stream(engine, tmp_path, stage).finish())


def test_workers_that_hold_a_gpu_are_asked_whether_torch_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that no model runs on the CPU in a worker that reserves a GPU."""
    monkeypatch.setattr("curator.executor.engine.available_gpus", lambda: 1)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    engine, asked = Engine(address=None, workers=1), []

    class Pool:
        n_open = 0

        def submit(self, unit: object) -> None: ...

        def close(self) -> None: ...

    def pool(steps: Any, *, check: Callable[[], str | None], most: object) -> Pool:  # noqa: ANN401
        asked.append((steps[0].resources.gpus, check()))
        return Pool()

    monkeypatch.setattr(engine, "pool", pool)
    assert list(_stream(engine, tmp_path, CaptionStage(CONFIG)).finish()) == []
    ((gpus, refusal),) = asked
    assert gpus > 0
    assert refusal is not None
    assert "sees no GPU; `curate doctor` says why" in refusal


def test_a_server_that_is_down_is_no_fault_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = CaptionStage(SERVER).node_refusal()
    assert isinstance(refusal, TransientRefusal)
    assert "cannot be reached" in refusal

    class NoKey:
        def check(self, trial: object) -> None:
            raise ModelError("the key is not here")

    monkeypatch.setattr(caption_stage, "captioners_of", lambda config: {"captioner": NoKey()})
    refusal = CaptionStage(SERVER).node_refusal()
    assert refusal == "the key is not here"
    assert not isinstance(refusal, TransientRefusal)


def test_workers_share_the_requests_under_way() -> None:
    judge = {"model": "j", "url": "http://127.0.0.1:9/v1", "in_flight": 5}
    config = CaptionConfig.model_validate(SERVER.model_dump() | {"in_flight": 12, "judge": judge})
    stage = CaptionStage(config)
    assert stage.in_flight == 5
    shared = stage.share(4)
    assert [model.in_flight for model in shared.config.models] == [3, 1]
    assert shared.resources.cpus == 0
    assert shared.resources.memory_bytes < stage.resources.memory_bytes
    assert CaptionStage(CONFIG).in_flight is None


def test_replies_are_stored_where_a_unit_fails_and_its_warnings_are_noted(tmp_path: Path) -> None:
    """Pins that an error of the captioner ends the run as it is, and that no reply is lost."""
    stage, log = FakeStage(SERVER), logging.getLogger(caption_stage.__package__)
    stage.setup()
    before = list(log.handlers)
    batch = worker.Batch(items=(_window("a"), _window("failing")), name="0badcafe")
    (unit,) = _load(tmp_path, SERVER)([batch])
    with pytest.raises(ModelError, match="the server is gone"):
        stage.process(unit)
    stored = Replies(open_store(str(tmp_path)), "0123456789abcdef").load()
    assert dict(stored) == {"key": Reply(text="said")}
    assert stage.notes == ["trouble: a"] * 2
    assert log.handlers == before
