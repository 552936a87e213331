"""The caption stage: annotates windows of clips, by a service or by models in the worker."""

import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from curator.errors import CuratorError, DamagedError, ErrorCode, UnreachableError, UsageError
from curator.executor.fleet import TransientRefusal
from curator.executor.worker import Batch
from curator.models.text_encoder import torch_refusal
from curator.records.cuts import StoredFrames
from curator.records.sources import Failure
from curator.stage import BY_ORDER, Phase, Resources, Scope, Stage, Wait
from curator.stages.caption.annotation_memo import answers_fingerprint, remember
from curator.stages.caption.caption_records import Annotation, Frames, Reply, Role, Task, Unanswered
from curator.stages.caption.captioners.captioner_contract import Place
from curator.stages.caption.captioners.captioner_list import captioner_class, captioners_of
from curator.stages.caption.captioners.dialog_batches import BatchModel, annotate
from curator.stages.caption.captioners.dialog_runner import POLL_S, DialogRunner
from curator.stages.caption.config import ANNOTATE_VERSION, CaptionConfig, ModelConfig
from curator.stages.caption.dialogs.prompt_files import Prompt, give_prompts
from curator.stages.caption.dialogs.window_dialog import make_dialogs
from curator.stages.caption.frame_store import FRAMES, FrameParts
from curator.stages.caption.reply_store import REPLIES, Replies, replies_fingerprint
from curator.storage import Store

PROCESS_BYTES = 512 << 20
REQUEST_BYTES = 4 << 20
"""Memory of a worker that asks a service, and of each request under way: pictures, in JSON too."""
_READERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWindow:
    """A window without an annotation.

    Attributes:
        task: The window.
        where: Frames of its clip.
        replies: Stored replies about it, by request key.
    """

    task: Task
    where: StoredFrames
    replies: Mapping[str, Reply]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowUnit:
    """Windows that are annotated together.

    Attributes:
        windows: Each with the place of its clip's frames.
        frames: Loads the frames of a window; raises a `CuratorError` where they are not there.
        replies: Those that are known; takes new ones.
    """

    windows: Sequence[tuple[Task, StoredFrames]]
    frames: Callable[[StoredFrames, Task], Frames]
    replies: Replies

    @property
    def uri(self) -> str:
        """Id of the first clip."""
        return self.windows[0][0].clip_id


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitAnnotations:
    """The annotations of a unit, and the parts of its replies with their keys."""

    annotations: list[Annotation]
    parts: Mapping[str, Sequence[str]]


class WindowLoader:
    """Gives units their frames and replies, in a worker."""

    def __init__(self, store: Store, config: CaptionConfig) -> None:
        self._store, self._config = store, config
        self._frames: FrameParts | None = None

    def __call__(self, unit: Sequence[Batch[OpenWindow]]) -> list[WindowUnit]:
        """Returns the windows of a unit."""
        self._frames = self._frames or FrameParts(self._store, self._config)
        return [
            WindowUnit(
                windows=[(item.task, item.where) for item in batch.items],
                frames=self._frames.frames,
                # A worker that read all replies would grow with the corpus.
                replies=Replies(
                    self._store,
                    replies_fingerprint(self._config),
                    batch.name,
                    {key: reply for item in batch.items for key, reply in item.replies.items()},
                ).load(),
            )
            for batch in unit
        ]


def with_parts(units: Sequence[WindowUnit], results: Sequence[list[Annotation]]) -> UnitAnnotations:
    """Returns what the run needs of a unit."""
    (unit,), (annotations,) = units, results
    return UnitAnnotations(annotations=annotations, parts=unit.replies.parts)


class CaptionStage(Stage[CaptionConfig, WindowUnit, list[Annotation]]):
    """Annotates windows.

    Args:
        prompts: Prompts by name, for a machine without their files.
    """

    name = "caption"
    version = ANNOTATE_VERSION
    phase = Phase.WRITE
    scope = Scope.CLIP
    reads = ("clips", FRAMES, "sidecars")
    writes = ("annotations", REPLIES)
    by_content = frozenset(reads)
    config_type = CaptionConfig
    fails_alone = False

    def __init__(
        self, config: CaptionConfig, *, prompts: Mapping[str, Prompt] | None = None
    ) -> None:
        super().__init__(config)
        self._prompts = prompts or {}
        self._runner: DialogRunner | None = None
        self._unit: WindowUnit | None = None
        self._is_closed = False

    @property
    def is_on(self) -> bool:
        """Whether clips get captions."""
        return self.config.enabled

    def wait(self, before: Sequence[Wait], *, is_growing: bool) -> Wait:
        """Answers that reject clips come before the cut; else frames are taken while it cuts."""
        if self.config.decides:
            return self.waits_for_decisions(before)
        if self.config.asks:
            return self.waits_for()
        return self.waits_for("every kept clip to be cut", BY_ORDER, is_needed=False)

    @property
    def resources(self) -> Resources:
        """The preferred kind of worker."""
        return self.kinds[0]

    @property
    def kinds(self) -> tuple[Resources, ...]:
        """Returns those of the captioner; a worker that asks a service mostly waits."""
        if not self.config.annotates or not self.config.asks:
            return (Resources(),)
        if self.in_flight is not None:
            n_bytes = PROCESS_BYTES + self.in_flight * REQUEST_BYTES
            return (Resources(cpus=0, memory_bytes=n_bytes),)
        made = captioner_class(self.config.captioner)
        on_cpu = Resources(memory_bytes=made.memory_bytes)
        on_gpu = Resources(gpus=made.gpus, memory_bytes=made.memory_bytes)
        return (on_gpu, on_cpu) if made.gpus else (on_cpu,)

    @property
    def in_flight(self) -> int | None:
        """Returns that of the captioner or the judge, whichever is less."""
        if captioner_class(self.config.captioner).place is not Place.SERVICE:
            return None
        return min(model.in_flight for model in self.config.models)

    def share(self, n_workers: int) -> Self:
        """As `Stage.share`."""

        def shared(in_flight: int) -> dict[str, int]:
            return {"in_flight": max(1, in_flight // n_workers)}

        config, judge = self.config, self.config.judge
        if judge is not None:
            judge = judge.model_copy(update=shared(judge.in_flight))
        config = config.model_copy(update={**shared(config.in_flight), "judge": judge})
        return type(self)(config, prompts=self._prompts)

    def preflight(self) -> None:
        """Asks a service a first question, with grey frames; checks files and packages of models.

        Raises:
            UsageError: The captioner cannot be used; the message gives the remedy.
        """
        check_captioner(self.config)

    def node_refusal(self) -> str | None:
        """Returns why torch sees no GPU, or why a service cannot be asked from here."""
        if self.in_flight is None:
            return torch_refusal()
        try:
            for captioner in captioners_of(self.config).values():
                captioner.check(trial_frames(self.config))
        except UnreachableError as error:
            return TransientRefusal(error)
        except CuratorError as error:
            return str(error)
        return None

    def setup(self) -> None:
        """Loads the models."""
        give_prompts(self._prompts)
        self._fingerprint = answers_fingerprint(self.config)
        self._dialogs = make_dialogs(self.config)
        if self.in_flight is None:
            self._models = load_models(self.config)
            return
        self._runner = DialogRunner(
            self._dialogs,
            captioners_of(self.config),
            find=lambda key: self._open.replies.get(key),
            keep=lambda key, reply: self._open.replies.keep(key, reply),
            load=lambda where, task: self._open.frames(where, task),
            budget_s=self.config.budget_s,
        )

    def process(self, unit: WindowUnit) -> list[Annotation]:
        """Annotates the windows of a unit; replies are stored also where it fails."""
        self._unit = unit
        with unit.replies, self._noted():
            annotations = self._annotations(unit)
            for annotation in annotations:
                remember(annotation, self._fingerprint, unit.replies)
        return annotations

    def failed(self, unit: WindowUnit, failure: Failure) -> list[Annotation]:
        """Leaves a window that killed its workers without an answer; other failures end the run."""
        if failure.code is not ErrorCode.WORKER_DIED:
            raise CuratorError(failure.message)
        detail = failure.message.removeprefix(f"{unit.uri}: ")
        return [
            Annotation(task=task, failure=Unanswered.OUT_OF_MEMORY, detail=detail)
            for task, _ in unit.windows
        ]

    def close(self) -> None:
        """Cancels running requests."""
        self._is_closed = True
        if self._runner is not None:
            self._runner.close()

    @property
    def _open(self) -> WindowUnit:
        assert self._unit is not None, "no unit is under way"
        return self._unit

    def _annotations(self, unit: WindowUnit) -> list[Annotation]:
        if self._runner is not None:
            for task, where in unit.windows:
                self._runner.submit(task, where)
            annotations: list[Annotation] = []
            while self._runner.n_open:
                if self._is_closed:
                    self._runner.close()
                    raise CuratorError("the run has ended")
                annotations += self._runner.poll(POLL_S)
            return annotations
        with ThreadPoolExecutor(_READERS) as pool:
            frames = list(pool.map(self._frames, unit.windows))
        return annotate(
            [(task, its) for (task, _), its in zip(unit.windows, frames, strict=True)],
            self._dialogs,
            self._models,
            replies=unit.replies,
            keep=unit.replies.keep,
            budget_s=self.config.budget_s,
        )

    def _frames(self, window: tuple[Task, StoredFrames]) -> Frames | None:
        task, where = window
        try:
            return self._open.frames(where, task)
        except DamagedError:
            raise
        except CuratorError:
            return None

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Adds the warnings of this package to `notes`."""
        handler, log = logging.Handler(logging.WARNING), logging.getLogger(__package__)
        handler.emit = lambda record: self.notes.append(record.getMessage())  # type: ignore[method-assign]
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)


def check_captioner(config: CaptionConfig, *, asks_service: bool = True) -> None:
    """As `CaptionStage.preflight`; asks no service a question if `asks_service` is false."""
    try:
        make_dialogs(config)
        for captioner in captioners_of(config).values() if config.asks else ():
            captioner.check(trial_frames(config) if asks_service else None)
    except CuratorError as error:
        raise UsageError(str(error)) from error


def trial_frames(config: CaptionConfig) -> Frames:
    """Makes grey frames, as many and as large as those of the largest window."""
    from PIL import Image

    n_frames = config.max_frames
    if config.frames_per_s is None:
        n_frames = min(config.frames, n_frames)
    file = io.BytesIO()
    size = (config.frame_px, config.frame_px * 9 // 16)
    Image.new("RGB", size, (128, 128, 128)).save(file, "JPEG")
    return Frames(jpegs=(file.getvalue(),) * n_frames, times_s=tuple(map(float, range(n_frames))))


def load_models(config: CaptionConfig) -> dict[Role, BatchModel]:
    """Loads captioner and judge, which share a model if possible."""
    captioners = captioners_of(config)
    models: dict[Role, BatchModel] = {"captioner": captioners["captioner"].batches()}
    if config.judge is not None:
        is_shared = _identity(config.judge) == _identity(config)
        models["judge"] = models["captioner"] if is_shared else captioners["judge"].batches()
    return models


def _identity(model: ModelConfig) -> tuple[object, ...]:
    return model.model, model.revision, model.frames_as
