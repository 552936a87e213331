"""Models in workers: windows that kill them, and models that cannot be loaded."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from curator.errors import CuratorError, ModelError
from curator.executor import work
from curator.executor.engine import Engine
from curator.executor.fleet import Passing
from curator.media.frame_tap import StoredFrames
from curator.stages.caption import captioner_dispatch as dispatch
from curator.stages.caption import stage as caption_stage
from curator.stages.caption.caption_records import Annotation, Answer, Task, Unanswered, Window
from curator.stages.caption.captioner_dispatch import WorkerDispatch
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.reply_store import Replies, replies_stamp
from curator.stages.caption.stage import CaptionStage
from curator.storage import open_store

CONFIG = CaptionConfig(captioner="transformers", model="tiny")
WINDOW = Window(index=0, start_frame=0, end_frame=1, shown=(0,))


class DyingStage(CaptionStage):
    """Aborts its process on one window, as lost memory does; answers the others."""

    def _annotations(self, windows: Sequence[tuple[Task, StoredFrames]]) -> list[Annotation]:
        if any(task.clip_id == "deadly" for task, _ in windows):
            os.abort()
        return [Annotation(task=task, answer=Answer(medium=task.clip_id)) for task, _ in windows]


class DyingLoad(CaptionStage):
    """Aborts its process while it loads its model, or says that it cannot."""

    def setup(self) -> None:
        def load(config: CaptionConfig) -> dict[Any, Any]:
            if config.model == "broken":
                raise ModelError("model broken: its weights cannot be loaded; fetch it")
            os.abort()

        caption_stage.load_models = load
        super().setup()


class Loaded(DyingStage):
    """Loads nothing."""

    def setup(self) -> None:
        caption_stage.load_models = lambda config: {}
        super().setup()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:  # noqa: ANN401
    """By Ray, or by the process for small work."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with Engine(address=None, workers=request.param) as engine:
        yield engine


def _dispatch(engine: Engine, folder: Path, config: CaptionConfig) -> WorkerDispatch:
    replies = Replies(open_store(str(folder)), replies_stamp(config))
    found = WorkerDispatch(config, replies, engine)
    for name in ("first", "deadly", "last"):
        task = Task(clip_id=name, content=name, window=WINDOW, fps=30.0)
        found.submit(task, StoredFrames(clip_id=name), {})
    return found


@pytest.mark.parametrize("engine", [1, None], ids=["ray", "child"], indirect=True)
def test_a_window_that_kills_its_worker_twice_fails_and_the_others_are_answered(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "CaptionStage", Loaded)
    found = _dispatch(engine, tmp_path, CONFIG)
    annotations = {one.task.clip_id: one for some in found.finish() for one in some}
    assert annotations.keys() == {"first", "deadly", "last"}
    dead = annotations.pop("deadly")
    assert dead.failure is Unanswered.OUT_OF_MEMORY
    assert dead.detail == "the worker died 2 times while working on it"
    for name, one in annotations.items():
        assert one.answer == Answer(medium=name)


def test_workers_that_hold_a_gpu_are_asked_whether_torch_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that no model is computed by a CPU in a worker that holds a GPU."""
    monkeypatch.setattr("curator.executor.engine.available_gpus", lambda: 1)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    engine, asked = Engine(address=None, workers=1), []

    def run(*_: object, check: Callable[[], str | None], **more: object) -> Iterator[object]:
        asked.append(check())
        return iter(())

    monkeypatch.setattr(engine, "run", run)
    assert list(_dispatch(engine, tmp_path, CONFIG).finish()) == []
    assert "sees no GPU; `curate doctor` says why" in asked[0]


def test_a_server_that_is_down_is_no_fault_of_the_node() -> None:
    config = CaptionConfig(captioner="openai", model="m", url="http://127.0.0.1:9/v1")
    refusal = dispatch.node_problem(config, dispatch.trial_frames(config))
    assert isinstance(refusal, Passing)
    assert "cannot be reached" in refusal
    wrong = CaptionConfig(captioner="transformers", model="/no/such/folder")
    refusal = dispatch.node_problem(wrong, dispatch.trial_frames(wrong))
    assert refusal is not None
    assert not isinstance(refusal, Passing)


def test_a_service_that_answers_nobody_ends_the_run_at_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = CaptionConfig(captioner="openai", model="m", url="http://127.0.0.1:9/v1")
    replies = Replies(open_store(str(tmp_path)), replies_stamp(config))
    found: Any = dispatch.ServiceDispatch(
        config, None, replies, None, Engine(address=None, workers=1)  # type: ignore[arg-type]
    )  # fmt: skip
    found._pool = object()
    found._heard_s -= dispatch.GIVE_UP_S - 10
    found._mind_silence(is_silent=True)
    found._heard_s -= 1000
    with pytest.raises(CuratorError, match=r"no caption for 900 s: .* cannot be reached"):
        found._mind_silence(is_silent=True)


def test_a_process_that_serves_several_chains_notes_each_warning_once(tmp_path: Path) -> None:
    config = CaptionConfig(captioner="openai", model="m", url="http://127.0.0.1:9/v1")
    log = logging.getLogger(caption_stage.__package__)
    before = list(log.handlers)
    try:
        for _ in range(3):
            stage = CaptionStage(config, store=open_store(str(tmp_path)))
            stage.setup()
            stage._pump.close()  # type: ignore[union-attr]
        assert len(log.handlers) - len(before) <= 1
        log.warning("once")
        assert caption_stage._NOTES.take() == ("once",)
    finally:
        log.handlers[:] = before


@pytest.mark.parametrize(
    "engine",
    [pytest.param(1, marks=pytest.mark.long), None],
    ids=["ray", "child"],
    indirect=True,
)
@pytest.mark.parametrize(
    ("model", "said"),
    [("broken", "^model broken: its weights cannot be loaded; fetch it$"),
     ("large", "while (they loaded|it loads) the models of caption.*is there enough memory")],
)  # fmt: skip
def test_models_that_cannot_be_loaded_end_the_run_with_the_reason(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, said: str
) -> None:
    monkeypatch.setattr(dispatch, "CaptionStage", DyingLoad)
    monkeypatch.setattr(work, "MOST_IN_VAIN", -2)
    found = _dispatch(engine, tmp_path, CONFIG.model_copy(update={"model": model}))
    with pytest.raises(CuratorError, match=said):
        list(found.finish())
