"""The caption stage: annotates windows of clips in a worker, with models there or by services.

For services that the driver asks, see `captioner_dispatch.py`.
"""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from curator.errors import CuratorError, DamagedError, ErrorCode
from curator.media.frame_tap import StoredFrames
from curator.records.sources import Failure
from curator.stage import BY_ORDER, Phase, Resources, Scope, Stage, Wait
from curator.stages.caption.caption_records import Annotation, Frames, Reply, Role, Task, Unanswered
from curator.stages.caption.captioners.captioner_contract import Place
from curator.stages.caption.captioners.captioner_list import captioner_class, captioners_of
from curator.stages.caption.captioners.dialog_batches import BatchModel, annotate
from curator.stages.caption.captioners.dialog_runner import DialogRunner
from curator.stages.caption.config import ANNOTATE_VERSION, CaptionConfig, ModelConfig
from curator.stages.caption.dialogs.prompt_files import Prompt, give_prompts
from curator.stages.caption.dialogs.window_dialog import Dialogs, make_dialogs
from curator.stages.caption.frame_store import FRAMES, FrameParts
from curator.stages.caption.reply_store import (
    REPLIES,
    Replies,
    StoredReplies,
    WorkerReplies,
    replies_stamp,
)
from curator.storage import Store

_READERS = 8
_SPLIT = 8
"""Units that one becomes whose worker died, where a service is asked: single windows would be asked
about one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowUnit:
    """Windows that one worker annotates together."""

    windows: Sequence[tuple[Task, StoredFrames]]
    name: str
    """Unlike that of any other unit, and what it is divided into has this name and a number."""
    known: Mapping[str, Reply] = field(default_factory=dict)
    """Stored replies for the windows, by request key."""
    before: tuple[str, ...] = ()
    """Names of units with these windows whose workers died, which may have stored replies."""
    is_asked: bool = False
    """Whether a service is asked, so that the windows of a unit do not wait for each other."""

    def divided(self) -> list["WindowUnit"]:
        """Smaller units, because a worker died on one of the windows."""
        n_each = -(-len(self.windows) // _SPLIT) if self.is_asked else 1
        return [
            replace(
                self,
                windows=self.windows[start : start + n_each],
                name=f"{self.name}-{start}",
                before=(*self.before, self.name),
            )
            for start in range(0, len(self.windows), n_each)
        ]

    @property
    def uri(self) -> str:
        """URI of the first clip."""
        return self.windows[0][0].clip_id


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitAnnotations:
    """The annotations of a unit, its new replies, and warnings for the user."""

    annotations: list[Annotation]
    replies: StoredReplies | None = None
    notes: tuple[str, ...] = ()


class CaptionStage(Stage[CaptionConfig, WindowUnit, UnitAnnotations]):
    """Annotates windows.

    Args:
        store: Output root; None if the stage is only described.
        prompts: Prompts by name, for a machine without their files.
        workers: Workers that ask a service at the same time, which share `in_flight`.
    """

    name = "caption"
    version = ANNOTATE_VERSION
    phase = Phase.WRITE
    scope = Scope.CLIP
    reads = ("clips", FRAMES, "sidecars")
    writes = ("annotations", REPLIES)
    by_content = frozenset(reads)
    config_type = CaptionConfig

    def __init__(
        self,
        config: CaptionConfig,
        *,
        store: Store | None = None,
        prompts: Mapping[str, Prompt] | None = None,
        workers: int = 1,
    ) -> None:
        super().__init__(config)
        self._root = store
        self._prompts = prompts or {}
        self._workers = workers
        self._error: CuratorError | None = None
        self._pump: DialogRunner | None = None

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
        """Returns the captioner's resources; one core without a model."""
        if not self.config.annotates or not self.config.asks:
            return Resources()
        made = captioner_class(self.config.captioner)
        return Resources(cpus=1, gpus=made.gpus, memory_bytes=made.memory_bytes)

    def setup(self) -> None:
        """Loads the models."""
        assert self._root is not None, "a stage that is only described has no output root"
        give_prompts(self._prompts)
        self._replies = WorkerReplies(self._root, replies_stamp(self.config))
        self._parts = FrameParts(self._root, self.config)
        self._dialogs = make_dialogs(self.config)
        if captioner_class(self.config.captioner).place is Place.SERVICE:
            parts, replies = self._parts, self._replies
            self._pump = make_pump(self.config, self._dialogs, replies, parts, self._workers)
            logging.getLogger(__package__).addHandler(_NOTES)
        else:
            self._models = load_models(self.config)

    def process(self, unit: WindowUnit) -> UnitAnnotations:
        """Annotates the windows of a unit."""
        try:
            return self._annotated(unit)
        except CuratorError as error:
            self._error = error
            raise

    def failed(self, unit: WindowUnit, failure: Failure) -> UnitAnnotations:
        """Leaves a window that killed its workers without an answer; other failures end the run."""
        if failure.code is not ErrorCode.WORKER_DIED:
            raise self._error or CuratorError(failure.message)
        detail = failure.message.removeprefix(f"{unit.uri}: ")
        annotations = [
            Annotation(task=task, failure=Unanswered.OUT_OF_MEMORY, detail=detail)
            for task, _ in unit.windows
        ]
        return UnitAnnotations(annotations=annotations)

    def _annotated(self, unit: WindowUnit) -> UnitAnnotations:
        self._replies.begin(unit.name, unit.known, unit.before)
        try:
            annotations = self._annotations(unit.windows)
        finally:
            # Also when the run is about to end: what was answered is kept.
            stored = self._replies.end()
        return UnitAnnotations(annotations=annotations, replies=stored, notes=_NOTES.take())

    def _annotations(self, windows: Sequence[tuple[Task, StoredFrames]]) -> list[Annotation]:
        if self._pump is not None:
            for task, where in windows:
                self._pump.submit(task, where)
            return [one for some in self._pump.finish() for one in some]
        with ThreadPoolExecutor(_READERS) as pool:
            frames = list(pool.map(self._frames, *zip(*windows, strict=True)))
        return annotate(
            [(task, its) for (task, _), its in zip(windows, frames, strict=True)],
            self._dialogs,
            self._models,
            known=self._replies,
            keep=self._replies.keep,
            budget_s=self.config.budget_s,
        )

    def _frames(self, task: Task, where: StoredFrames) -> Frames | None:
        try:
            return self._parts.frames(where, task)
        except DamagedError:
            raise
        except CuratorError:
            return None


class _Notes(logging.Handler):
    """Warnings of this process, which the driver repeats: the user does not see a worker's log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._found.append(record.getMessage())

    def take(self) -> tuple[str, ...]:
        found, self._found = self._found, []
        return tuple(found)


_NOTES = _Notes()
"""One for the process, which may serve several chains: a logger takes the same handler once."""


def make_pump(
    config: CaptionConfig,
    dialogs: Dialogs,
    replies: Replies | WorkerReplies,
    parts: FrameParts,
    workers: int = 1,
) -> DialogRunner:
    """Makes the runner that asks a service, with one of `workers` equal shares of `in_flight`."""
    judge = config.judge
    if judge is not None:
        judge = judge.model_copy(update={"in_flight": max(1, judge.in_flight // workers)})
    in_flight = max(1, config.in_flight // workers)
    shared = config.model_copy(update={"in_flight": in_flight, "judge": judge})
    return DialogRunner(
        dialogs,
        captioners_of(shared),
        replies=replies,
        keep=replies.keep,
        load=parts.frames,
        budget_s=config.budget_s,
    )


def load_models(config: CaptionConfig) -> dict[Role, BatchModel]:
    """Loads captioner and judge, which share a model if possible."""
    found = captioners_of(config)
    models: dict[Role, BatchModel] = {"captioner": found["captioner"].batches()}
    if config.judge is not None:
        is_shared = _identity(config.judge) == _identity(config)
        models["judge"] = models["captioner"] if is_shared else found["judge"].batches()
    return models


def _identity(model: ModelConfig) -> tuple[object, ...]:
    return model.model, model.revision, model.frames_as
