"""The caption stage: annotates windows of clips with models in this worker.

For captioners in the driver, see `captioner_dispatch.py`.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from curator.errors import CuratorError, DamagedError, ErrorCode
from curator.media.frame_tap import StoredFrames
from curator.records.sources import Failure
from curator.stage import Resources, Scope, Stage
from curator.stages.caption.caption_records import Annotation, Frames, Reply, Role, Task, Unanswered
from curator.stages.caption.captioners.captioner_list import captioner_class, captioners_of
from curator.stages.caption.captioners.dialog_batches import BatchModel, Keep, annotate
from curator.stages.caption.config import ANNOTATE_VERSION, CaptionConfig, ModelConfig
from curator.stages.caption.dialogs.prompt_files import Prompt, give_prompts
from curator.stages.caption.dialogs.window_dialog import make_dialogs
from curator.stages.caption.frame_store import FRAMES, FrameParts
from curator.stages.caption.reply_store import REPLIES, UnitReplies, replies_stamp
from curator.storage import Store

_READERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowUnit:
    """Windows that one worker annotates together."""

    windows: Sequence[tuple[Task, StoredFrames]]
    known: Mapping[str, Reply] = field(default_factory=dict)
    """Stored replies for the windows, by request key."""
    is_repeated: bool = False
    """Whether a worker died over it, which may have stored replies."""

    def split(self) -> list["WindowUnit"]:
        """A unit for each window, because a worker died on one of them."""
        return [replace(self, windows=[window], is_repeated=True) for window in self.windows]

    @property
    def uri(self) -> str:
        """URI of the first clip."""
        return self.windows[0][0].clip_id


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitAnnotations:
    """The annotations of a unit, and its stored replies by key."""

    annotations: list[Annotation]
    replies: list[tuple[str, Reply]]


class CaptionStage(Stage[CaptionConfig, WindowUnit, UnitAnnotations]):
    """Annotates windows.

    Args:
        store: Output root; None if the stage is only described.
        prompts: Prompts by name, for a machine without their files.
    """

    name = "caption"
    version = ANNOTATE_VERSION
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
    ) -> None:
        super().__init__(config)
        self._root = store
        self._prompts = prompts or {}
        self._error: CuratorError | None = None

    @property
    def resources(self) -> Resources:
        """Returns the captioner's resources; one core without a model."""
        if not self.config.annotates or not self.config.asks:
            return Resources()
        made = captioner_class(self.config.captioner)
        return Resources(cpus=1, gpus=made.gpus, memory_bytes=made.memory_bytes)

    def setup(self) -> None:
        """Loads the models.

        Raises:
            ModelError: A model cannot be loaded.
        """
        assert self._root is not None, "a stage that is only described has no output root"
        self._store = self._root
        self._models = load_models(self.config)
        give_prompts(self._prompts)
        self._dialogs = make_dialogs(self.config)
        self._parts = FrameParts(self._store, self.config)
        self._stamp = replies_stamp(self.config)

    def process(self, unit: WindowUnit) -> UnitAnnotations:
        """Annotates the windows of a unit."""
        try:
            return self._annotated(unit)
        except CuratorError as error:
            self._error = error
            raise

    def failed(self, unit: WindowUnit, failure: Failure) -> UnitAnnotations:
        """Leaves a window that killed its workers without an answer; other failures end the run.

        Raises:
            CuratorError: The failure of the unit.
        """
        if failure.code is not ErrorCode.WORKER_DIED:
            raise self._error or CuratorError(failure.message)
        detail = failure.message.removeprefix(f"{unit.uri}: ")
        annotations = [
            Annotation(task=task, failure=Unanswered.OUT_OF_MEMORY, detail=detail)
            for task, _ in unit.windows
        ]
        return UnitAnnotations(annotations=annotations, replies=[])

    def _annotated(self, unit: WindowUnit) -> UnitAnnotations:
        kept: list[tuple[str, Reply]] = []
        replies = UnitReplies(self._store, self._stamp, unit.known, rereads=unit.is_repeated)

        def keep(key: str, reply: Reply) -> None:
            replies.keep(key, reply)
            kept.append((key, reply))

        annotations = self._annotations(unit.windows, replies, keep)
        return UnitAnnotations(annotations=annotations, replies=kept)

    def _annotations(
        self, windows: Sequence[tuple[Task, StoredFrames]], replies: UnitReplies, keep: Keep
    ) -> list[Annotation]:
        with ThreadPoolExecutor(_READERS) as pool:
            frames = list(pool.map(self._frames, *zip(*windows, strict=True)))
        return annotate(
            [(task, its) for (task, _), its in zip(windows, frames, strict=True)],
            self._dialogs,
            self._models,
            known=replies,
            keep=keep,
            budget_s=self.config.budget_s,
        )

    def _frames(self, task: Task, where: StoredFrames) -> Frames | None:
        try:
            return self._parts.frames(where, task)
        except DamagedError:
            raise
        except CuratorError:
            return None


def load_models(config: CaptionConfig) -> dict[Role, BatchModel]:
    """Loads captioner and judge, which share a model if possible.

    Raises:
        ModelError: A model cannot be loaded.
    """
    found = captioners_of(config)
    models: dict[Role, BatchModel] = {"captioner": found["captioner"].batches()}
    if config.judge is not None:
        is_shared = _identity(config.judge) == _identity(config)
        models["judge"] = models["captioner"] if is_shared else found["judge"].batches()
    return models


def _identity(model: ModelConfig) -> tuple[object, ...]:
    return model.model, model.revision, model.frames_as
