"""Who is asked about clips: a server by the driver, or a model in workers."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from curator.errors import CuratorError, ModelError, UsageError
from curator.executor.actor_pool import Pool
from curator.executor.attempts import MAX_ATTEMPTS, CpuClock
from curator.executor.engine import Engine
from curator.executor.ledger import AttemptLedger
from curator.executor.worker import Step
from curator.media.frame_tap import StoredFrames
from curator.stage import Resources
from curator.stages.caption.caption_records import (
    Annotation,
    Frames,
    Reply,
    Request,
    Role,
    Task,
    Unanswered,
)
from curator.stages.caption.captioners.dialog_batches import Keep, annotate
from curator.stages.caption.config import CaptionConfig, ModelConfig
from curator.stages.caption.dialogs.dialog import Dialogs, told_first
from curator.stages.caption.dialogs.prompt_files import Prompt, give_prompts, load_prompt
from curator.stages.caption.dialogs.window_dialog import make_dialogs
from curator.stages.caption.frame_store import FrameParts
from curator.stages.caption.reply_store import Replies, UnitReplies, replies_stamp
from curator.storage import Store

if TYPE_CHECKING:
    from curator.stages.caption.captioners.local_model import LocalModel

UNIT_WINDOWS = 64
"""Windows of a unit for a model in a worker: several batches, so that it rarely waits for one."""
POLL_S = 1.0
_LOADERS = 8
MODEL_BYTES = 8 << 30
"""Memory of a worker with a model on CPUs: a small one of 2 billion parameters."""


class Asking(Protocol):
    """Takes windows to ask about, and gives their annotations in any order."""

    def submit(self, task: Task, where: StoredFrames) -> None:
        """Asks about a window; does not wait.

        Args:
            task: The window.
            where: Pictures of its clip.
        """
        ...

    def poll(self) -> list[Annotation]:
        """Annotations that are there, each once; does not wait.

        Raises:
            CuratorError: Nobody can be asked: the run cannot go on.
        """
        ...

    def finish(self) -> Iterator[Iterable[Annotation]]:
        """Waits for all others, and gives them as they come.

        Raises:
            CuratorError: Nobody can be asked: the run cannot go on.
        """
        ...

    def close(self) -> None:
        """Ends what is under way."""
        ...

    @property
    def cpu_s(self) -> Counter[str]:
        """CPU-seconds of workers, by what they did."""
        ...


def asking_of(
    config: CaptionConfig, *, dialogs: Dialogs, replies: Replies, parts: FrameParts, engine: Engine
) -> Asking:
    """Whom a recipe asks.

    Args:
        config: Settings.
        dialogs: What is asked.
        replies: What was answered, and where answers are kept.
        parts: Has the pictures.
        engine: Runs models in workers.
    """
    if config.captioner == "openai":
        return ServerAsking(config, dialogs, replies, parts)
    return LocalAsking(config, replies, engine, dialogs)


class ServerAsking:
    """Asks servers, from a thread of the driver.

    Args:
        config: Servers and budgets.
        dialogs: What is asked.
        replies: What was answered, and where answers are kept.
        parts: Has the pictures.
    """

    def __init__(
        self, config: CaptionConfig, dialogs: Dialogs, replies: Replies, parts: FrameParts
    ) -> None:
        from curator.stages.caption.captioners.chat_server import ServerClient
        from curator.stages.caption.captioners.dialog_pump import Client, Pump

        clients: dict[Role, Client] = {"captioner": ServerClient(config)}
        if config.judge is not None:
            clients["judge"] = ServerClient(config.judge, section="caption.judge")
        self._parts = parts
        self.cpu_s: Counter[str] = Counter()

        def keep(request: Request, reply: Reply) -> None:
            replies.keep(request.key, reply)

        self._pump = Pump(dialogs, clients, replies=replies, keep=keep, budget_s=config.budget_s)

    def submit(self, task: Task, where: StoredFrames) -> None:
        """As `Asking.submit`."""
        self._pump.submit(task, partial(self._parts.frames, where, task))

    def poll(self) -> list[Annotation]:
        """As `Asking.poll`."""
        return self._pump.poll(timeout=0)

    def finish(self) -> Iterator[Iterable[Annotation]]:
        """As `Asking.finish`."""
        while self._pump.n_open:
            yield self._pump.poll(timeout=POLL_S)

    def close(self) -> None:
        """As `Asking.close`."""
        self._pump.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotated:
    """What a worker made of a unit."""

    annotations: list[Annotation]
    replies: list[tuple[str, Reply]]
    """Those that it stored, by the key of their request."""
    cpu_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotateUnit:
    """Windows that a worker asks about."""

    windows: Sequence[tuple[Task, StoredFrames]]
    told: Mapping[str, Reply] = field(default_factory=dict)
    """Replies that are stored already of what is asked about them, by the key of their request."""


class AnnotateStep:
    """Asks models in this process about windows; made once per worker.

    Args:
        store: Output root.
        config: Models, prompts, batches.
        prompts: Those of `config` by name, for a machine that has no such file; None for files.
        log: Counts attempts, so that no window kills workers without end; None for not counting.
        most_loads: Beginnings of loading models, without an end of any, that are too many.

    Raises:
        ModelError: A model cannot be loaded, or workers die of it.
    """

    def __init__(
        self,
        *,
        store: Store,
        config: CaptionConfig,
        prompts: Mapping[str, Prompt] | None = None,
        log: AttemptLedger | None = None,
        most_loads: int = 3,
    ) -> None:
        if log is not None and log.begin("load") > most_loads:
            raise ModelError(
                f"workers die while they load {config.name}; is there enough memory? take a "
                "smaller model, or fewer --workers"
            )
        self._models = _loaded(config)
        if log is not None:
            log.end("load", 0.0)
        self._log = log
        self._config = config
        give_prompts(prompts or {})
        self._dialogs = make_dialogs(config)
        self._parts = FrameParts(store, config)
        self._store, self._stamp = store, replies_stamp(config)
        self._clock = CpuClock()

    def __call__(self, unit: AnnotateUnit) -> Annotated:
        """Asks about the windows of a unit."""
        spent = self._clock.begin()
        windows, kept = unit.windows, list[tuple[str, Reply]]()
        first = windows[0][0]
        name = f"unit of {first.clip_id} {first.window.index}, {len(windows)} windows"
        is_first = self._log is None or self._log.begin(name) == 1
        replies = UnitReplies(self._store, self._stamp, unit.told, looks=not is_first)

        def keep(request: Request, reply: Reply) -> None:
            replies.keep(request.key, reply)
            kept.append((request.key, reply))

        if is_first:
            annotations = self._annotations(windows, replies, keep)
        else:
            # A worker died over it. Whichever window it was, the others get their answers.
            annotations = [one for window in windows for one in self._alone(window, replies, keep)]
        if self._log is not None:
            self._log.end(name, 0.0)
        cpu_s = self._clock.end(spent, rest="caption")
        return Annotated(annotations=annotations, replies=kept, cpu_s=cpu_s)

    def _annotations(
        self, windows: Sequence[tuple[Task, StoredFrames]], replies: UnitReplies, keep: Keep
    ) -> list[Annotation]:
        with ThreadPoolExecutor(_LOADERS) as pool:
            frames = list(pool.map(self._frames, *zip(*windows, strict=True)))
        return annotate(
            [(task, its) for (task, _), its in zip(windows, frames, strict=True)],
            self._dialogs,
            self._models,
            known=replies,
            keep=keep,
            budget_s=self._config.budget_s,
        )

    def _alone(
        self, window: tuple[Task, StoredFrames], replies: UnitReplies, keep: Keep
    ) -> list[Annotation]:
        """Asks about a window, unless a worker died over it alone."""
        assert self._log is not None
        task = window[0]
        name = f"{task.clip_id} {task.window.index}"
        # The first attempt was in its unit.
        if 1 + self._log.begin(name) > MAX_ATTEMPTS:
            detail = f"the worker died {MAX_ATTEMPTS} times while working on it"
            made = [Annotation(task=task, failure=Unanswered.OUT_OF_MEMORY, detail=detail)]
        else:
            made = self._annotations([window], replies, keep)
            self._log.end(name, 0.0)
        return made

    def _frames(self, task: Task, where: StoredFrames) -> Frames | None:
        try:
            return self._parts.frames(where, task)
        except CuratorError:
            return None


def _loaded(config: CaptionConfig) -> "dict[Role, LocalModel]":
    from curator.stages.caption.captioners.local_model import LocalModel

    models: dict[Role, LocalModel] = {"captioner": LocalModel(config)}
    if config.judge is not None:
        own = _what_loads(config.judge) != _what_loads(config)
        models["judge"] = LocalModel(config.judge) if own else models["captioner"]
    return models


def _what_loads(model: ModelConfig) -> tuple[object, ...]:
    """What two roles must have in common to share a model with its processor."""
    return model.model, model.revision, model.frames_as


class LocalAsking:
    """Asks models in workers: beside the cutting on GPUs, after it on CPUs, which are busy.

    Args:
        config: Models, prompts, batches.
        replies: What was answered.
        engine: Runs the workers.
        dialogs: What is asked; None for what `config` says.
    """

    def __init__(
        self,
        config: CaptionConfig,
        replies: Replies,
        engine: Engine,
        dialogs: Dialogs | None = None,
    ) -> None:
        self._dialogs = make_dialogs(config) if dialogs is None else dialogs
        self._replies = replies
        self._engine = engine
        self._waiting: list[tuple[Task, StoredFrames]] = []
        self._pool: Pool | None = None
        self.cpu_s: Counter[str] = Counter()
        self._gpus = 1.0 if engine.n_gpus() >= 1 else 0.0
        self._config = config
        # Cutting has all cores meanwhile, and a GPU must not wait for one of them.
        cpus = 0 if self._gpus else 1
        self._resources = Resources(cpus=cpus, gpus=self._gpus, memory_bytes=MODEL_BYTES)

    def submit(self, task: Task, where: StoredFrames) -> None:
        """As `Asking.submit`."""
        self._waiting.append((task, where))
        if self._gpus and self._engine.is_started and len(self._waiting) >= UNIT_WINDOWS:
            if self._pool is None:
                self._pool = self._engine.pool([self._step(1 << 20, small=False)])
            self._pool.submit(self._unit(self._waiting))
            self._waiting = []

    def poll(self) -> list[Annotation]:
        """As `Asking.poll`."""
        if self._pool is None:
            return []
        return [one for result in self._pool.poll() for one in self._noted(result)]

    def finish(self) -> Iterator[Iterable[Annotation]]:
        """As `Asking.finish`."""
        waiting, self._waiting = self._waiting, []
        if self._pool is not None:
            if waiting:
                self._pool.submit(self._unit(waiting))
            while self._pool.n_open:
                for result in self._pool.poll(timeout=POLL_S):
                    yield self._noted(result)
            # Models in GPUs would stand in the way of what comes next.
            self.close()
        elif waiting:
            starts = range(0, len(waiting), UNIT_WINDOWS)
            units = [self._unit(waiting[start : start + UNIT_WINDOWS]) for start in starts]
            small = not self._gpus and self._engine.is_small(1, 0.0)
            step = self._step(len(units), small=small)
            for result in self._engine.run([step], units, small=small):
                yield self._noted(result)

    def close(self) -> None:
        """As `Asking.close`."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _step(self, n_units: int, *, small: bool) -> Step:
        engine = self._engine
        workers = 1 if small else engine.n_workers(n_units, self._resources)
        return Step(
            make=AnnotateStep,
            settings={
                "store": self._replies.store,
                "config": self._config,
                "prompts": {one.prompt: load_prompt(one.prompt) for one in _models(self._config)},
                "log": engine.own_ledger(small=small),
                # Some load at the same time, and a cluster may grow.
                "most_loads": 4 * workers + 16,
            },
            resources=self._resources,
            keeps_state=True,
        )

    def _unit(self, windows: Sequence[tuple[Task, StoredFrames]]) -> AnnotateUnit:
        # A worker that read all replies would grow with the corpus.
        told: dict[str, Reply] = {}
        if len(self._replies):
            for task, _ in windows:
                told |= told_first(self._dialogs(task), self._replies)
        return AnnotateUnit(windows=windows, told=told)

    def _noted(self, result: Annotated) -> list[Annotation]:
        for key, reply in result.replies:
            self._replies.added_elsewhere(key, reply)
        self.cpu_s.update(result.cpu_s)
        return result.annotations


def check_asking(config: CaptionConfig, *, asks_server: bool = True) -> None:
    """Checks that those whom a recipe asks can be asked.

    Args:
        config: Settings.
        asks_server: Whether servers are asked a first question, with grey frames.

    Raises:
        UsageError: A server does not answer or has no such model, files or a package are not
            there, or a prompt cannot be read; says what to do.
    """
    try:
        make_dialogs(config)
        for model in _models(config) if config.asks else ():
            if config.captioner == "transformers":
                from curator.stages.caption.captioners.model_loading import check_model

                check_model(model)
            elif asks_server:
                from curator.stages.caption.captioners.chat_server import check_server
                from curator.stages.caption.captioners.chat_wire import trial_frames

                section = "caption" if model is config else "caption.judge"
                check_server(model, trial_frames(config), section=section)
            else:
                import aiohttp  # noqa: F401 - is it there?
    except CuratorError as error:
        raise UsageError(str(error)) from error
    except ImportError as error:
        raise UsageError(
            f"caption.captioner is openai, which needs the package {error.name}; "
            "`pip install 'curate-video[captions]'`"
        ) from error


def _models(config: CaptionConfig) -> tuple[ModelConfig, ...]:
    return (config, *filter(None, [config.judge]))
