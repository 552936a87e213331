"""The caption stage: annotates windows of clips, with a service or with models in the worker."""

import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Self, TypeVar

from curator.errors import CuratorError, ErrorCode, UnreachableError, UsageError, raised_as
from curator.executor.fleet import TransientRefusal
from curator.executor.host_resources import available_cpus
from curator.executor.worker import Batch
from curator.models.text_encoder import torch_refusal
from curator.records.clips import Reason
from curator.records.cuts import StoredFrames
from curator.records.sources import Failure
from curator.stage import BY_ORDER, Phase, Resources, Scope, Stage, StageReason, Wait
from curator.stages.caption.annotations import answers_fingerprint, remember
from curator.stages.caption.caption_records import Annotation, Frames, Reply, Task, Unanswered
from curator.stages.caption.captioners.captioner_contract import (
    Captioner,
    Place,
    captioner_class,
    captioners_of,
)
from curator.stages.caption.captioners.dialog_runner import DialogRunner
from curator.stages.caption.config import ANNOTATE_VERSION, CaptionConfig, ModelConfig
from curator.stages.caption.dialogs.prompt_files import Prompt, give_prompts
from curator.stages.caption.dialogs.window_dialog import make_dialogs
from curator.stages.caption.frame_store import FrameParts
from curator.stages.caption.reply_store import Replies
from curator.storage import Store
from curator.tables.out_layout import FRAME_PARTS, REPLIES

ModelT = TypeVar("ModelT", bound=ModelConfig)
PROCESS_BYTES = 512 << 20
REQUEST_BYTES = 4 << 20
"""Memory of a worker for a service, and of each concurrent request: pictures, also as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWindow:
    """A window without annotation, the place of its frames, and stored replies by request key."""

    task: Task
    where: StoredFrames
    replies: Mapping[str, Reply]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowUnit:
    """Windows that are annotated together.

    `frames` loads a window's frames, or raises a `CuratorError`; `replies` stores new replies, too.
    """

    windows: Sequence[OpenWindow]
    frames: Callable[[StoredFrames, Task], Frames]
    replies: Replies

    @property
    def uri(self) -> str:
        """Id of the first clip."""
        return self.windows[0].task.clip_id


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitAnnotations:
    """The annotations of a unit, and the parts of its replies with their keys."""

    annotations: list[Annotation]
    parts: Mapping[str, Sequence[str]]


def load_windows(
    store: Store, frames: FrameParts, models: str, unit: Sequence[Batch[OpenWindow]]
) -> list[WindowUnit]:
    """Gives units in a worker access to frames and replies; `models`: `replies_fingerprint`."""
    return [
        WindowUnit(
            windows=batch.items,
            frames=frames.frames,
            # Only the unit's replies, because the cost of all replies grows with the corpus.
            replies=Replies(
                store,
                models,
                batch.name,
                {key: reply for item in batch.items for key, reply in item.replies.items()},
            ).load(),
        )
        for batch in unit
    ]


class CaptionStage(Stage[CaptionConfig, WindowUnit, UnitAnnotations]):
    """Annotates windows; `prompts` serve workers without the prompt files."""

    name = "caption"
    version = ANNOTATE_VERSION
    phase = Phase.WRITE
    scope = Scope.CLIP
    reads = ("clips", "cuts", FRAME_PARTS, "sidecars")
    writes = ("annotations", REPLIES)
    by_content = frozenset(reads)
    config_type = CaptionConfig
    change_effect = "captions are made again, and tars whose texts change are packed again"
    is_remade = True
    noun = "window"
    time_share = 0.5
    fails_alone = False

    def __init__(
        self, config: CaptionConfig, *, prompts: Mapping[str, Prompt] | None = None
    ) -> None:
        super().__init__(config)
        self._prompts = prompts or {}
        self._runner: DialogRunner | None = None
        self._captioners: set[Captioner] = set()
        self._child_cpu_s = 0.0
        self._is_closed = False

    def reasons(self) -> Iterator[StageReason]:
        """Yields the reasons of answers, and of windows without annotation."""
        yield StageReason(name=Reason.ANSWER_UNWANTED, is_listed=bool(self.config.reject))
        yield StageReason(name=Reason.NOT_ANNOTATED, is_listed=False, is_failure=True)
        yield StageReason(name=Reason.JUDGED_TOO_LOW, is_listed=False)

    def wait(self, before: Sequence[Wait], *, is_growing: bool) -> Wait:
        """Waits for no other clip if a model is used: requests follow each written clip."""
        if self.config.asks:
            return self.waits_for()
        return self.waits_for("every kept clip to be cut", BY_ORDER, is_needed=False)

    @property
    def resources(self) -> Resources:
        """The preferred kind of worker."""
        return self.kinds[0]

    @property
    def kinds(self) -> tuple[Resources, ...]:
        """Returns the captioner's kinds; a worker for a service reserves no core."""
        if not self.config.asks:
            return (Resources(),)
        if self.in_flight is not None:
            n_bytes = PROCESS_BYTES + self.in_flight * REQUEST_BYTES
            return (Resources(cpus=0, memory_bytes=n_bytes),)
        captioner = captioner_class(self.config.captioner)
        cpus = min(captioner.cpus, available_cpus())
        on_cpu = Resources(cpus=cpus, memory_bytes=captioner.memory_bytes)
        return (replace(on_cpu, gpus=captioner.gpus), on_cpu) if captioner.gpus else (on_cpu,)

    @property
    def in_flight(self) -> int | None:
        """Returns the most concurrent requests to a service; None for a model in the worker."""
        if captioner_class(self.config.captioner).place is not Place.SERVICE:
            return None
        return min(model.in_flight for model in self.config.models)

    def share(self, n_workers: int) -> Self:
        """As `Stage.share`, for captioner and judge."""

        def shared(model: ModelT) -> ModelT:
            return model.model_copy(update={"in_flight": max(1, model.in_flight // n_workers)})

        config, judge = shared(self.config), self.config.judge
        config = config.model_copy(update={"judge": judge and shared(judge)})
        return type(self)(config, prompts=self._prompts)

    def preflight(self) -> None:
        """Checks prompts, and a service by a trial request, or the packages and files of models.

        Raises a `UsageError` if the captioner cannot be used; the message gives the remedy.
        """
        check_captioner(self.config)

    def node_refusal(self) -> str | None:
        """Returns why torch cannot use this node's GPU, or why this node cannot use the service."""
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
        """Loads the models, or opens connections to the service."""
        give_prompts(self._prompts)
        self._fingerprint = answers_fingerprint(self.config)
        captioners = captioners_of(self.config)
        self._captioners = set(captioners.values())
        self._runner = DialogRunner(
            make_dialogs(self.config), captioners, budget_s=self.config.budget_s
        )
        self.notes += [captioner.about for captioner in self._captioners if captioner.about]

    def process(self, unit: WindowUnit) -> UnitAnnotations:
        """Annotates the windows of a unit; stores the replies even if the unit fails."""
        if self._is_closed or self._runner is None:
            raise CuratorError("the run has ended")
        windows = [
            (each.task, partial(unit.frames, each.where, each.task)) for each in unit.windows
        ]
        before_s = self._child_cpu_s
        with unit.replies, self._noted():
            annotations = self._runner.annotate(windows, unit.replies, unit.replies.keep)
            for annotation in annotations:
                remember(annotation, self._fingerprint, unit.replies)
        self._child_cpu_s = sum(captioner.child_cpu_s for captioner in self._captioners)
        self.child_cpu_s += self._child_cpu_s - before_s
        return UnitAnnotations(annotations=annotations, parts=unit.replies.parts)

    def failed(self, unit: WindowUnit, failure: Failure) -> UnitAnnotations:
        """Gives windows that killed their workers a failure; any other failure ends the run."""
        if failure.code is not ErrorCode.WORKER_DIED:
            raise CuratorError(failure.message)
        detail = failure.message.removeprefix(f"{unit.uri}: ")
        annotations = [
            Annotation(task=each.task, failure=Unanswered.OUT_OF_MEMORY, detail=detail)
            for each in unit.windows
        ]
        return UnitAnnotations(annotations=annotations, parts=unit.replies.parts)

    def close(self) -> None:
        """Cancels running requests; any thread may call it."""
        self._is_closed = True
        if self._runner is not None:
            self._runner.close()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Copies warnings that this package logs into `notes`."""
        handler, log = logging.Handler(logging.WARNING), logging.getLogger(__package__)
        handler.emit = lambda record: self.notes.append(record.getMessage())  # type: ignore[method-assign]
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)


def check_captioner(config: CaptionConfig, *, asks_service: bool = True) -> None:
    """As `CaptionStage.preflight`; `asks_service=False` sends no trial request."""
    with raised_as(UsageError, CuratorError):
        make_dialogs(config)
        for captioner in captioners_of(config).values() if config.asks else ():
            captioner.check(trial_frames(config) if asks_service else None)


def trial_frames(config: CaptionConfig) -> Frames:
    """Makes as many grey 16:9 frames, `frame_px` wide, as the largest window may show."""
    from PIL import Image

    n_frames, file = config.most_frames, io.BytesIO()
    size = (config.frame_px, config.frame_px * 9 // 16)
    Image.new("RGB", size, (128, 128, 128)).save(file, "JPEG")
    return Frames(jpegs=(file.getvalue(),) * n_frames, times_s=tuple(map(float, range(n_frames))))
