"""Sends windows to the captioner, in the driver or in workers."""

import io
from collections import Counter
from collections.abc import Iterator, Sequence

from curator.errors import CuratorError, UsageError
from curator.executor.engine import Engine
from curator.executor.fleet import Fleet
from curator.executor.unit_worker import UnitResult, UnitWorker
from curator.executor.worker import Step
from curator.media.frame_tap import StoredFrames
from curator.stage import Resources
from curator.stages.caption.caption_records import Annotation, Frames, Reply, Task
from curator.stages.caption.captioners.captioner_contract import Place
from curator.stages.caption.captioners.captioner_list import captioner_class, captioners_of
from curator.stages.caption.captioners.dialog_pump import POLL_S, Pump
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.dialog import Dialogs, replayed
from curator.stages.caption.dialogs.prompt_files import load_prompt
from curator.stages.caption.dialogs.window_dialog import make_dialogs
from curator.stages.caption.frame_store import FrameParts
from curator.stages.caption.reply_store import Replies
from curator.stages.caption.stage import CaptionStage, UnitAnnotations, WindowUnit

UNIT_WINDOWS = 64
"""Windows per unit for a model in a worker: several batches, so that it rarely waits."""


class WorkerDispatch:
    """Runs a captioner in workers: on GPUs during the cut, on CPUs after it frees them."""

    def __init__(
        self, config: CaptionConfig, dialogs: Dialogs, replies: Replies, engine: Engine
    ) -> None:
        self._config = config
        self._dialogs = dialogs
        self._replies = replies
        self._engine = engine
        self._waiting: list[tuple[Task, StoredFrames]] = []
        self._pool: Fleet | None = None
        self.cpu_s: Counter[str] = Counter()
        """CPU seconds of workers, by kind of work."""
        wanted = captioner_class(config.captioner)
        gpus = wanted.gpus if engine.n_gpus() >= 1 else 0.0
        # Cutting uses all cores meanwhile, and a GPU must not wait for one of them.
        cpus = 0 if gpus else 1
        self._resources = Resources(cpus=cpus, gpus=gpus, memory_bytes=wanted.memory_bytes)

    def submit(self, task: Task, where: StoredFrames) -> None:
        """Takes a window and the location of its clip's frames; does not wait."""
        self._waiting.append((task, where))
        if self._resources.gpus and self._engine.is_started and len(self._waiting) >= UNIT_WINDOWS:
            if self._pool is None:
                self._pool = self._engine.pool([self._step()])
            self._pool.submit([self._unit(self._waiting)])
            self._waiting = []

    def poll(self) -> list[Annotation]:
        """Returns new annotations; does not wait.

        Raises:
            CuratorError: The captioner is unusable, and the run must end.
        """
        if self._pool is None:
            return []
        return [one for result in self._pool.poll() for one in self._taken(result)]

    def finish(self) -> Iterator[list[Annotation]]:
        """Yields all remaining annotations as they arrive.

        Raises:
            CuratorError: As `poll`.
        """
        waiting, self._waiting = self._waiting, []
        if self._pool is not None:
            if waiting:
                self._pool.submit([self._unit(waiting)])
            while self._pool.n_open:
                for result in self._pool.poll(timeout=POLL_S):
                    yield self._taken(result)
            # Frees the GPUs for the next stages.
            self.close()
        elif waiting:
            starts = range(0, len(waiting), UNIT_WINDOWS)
            units = [[self._unit(waiting[start : start + UNIT_WINDOWS])] for start in starts]
            small = not self._resources.gpus and self._engine.is_small(1, 0.0)
            for result in self._engine.run([self._step()], units, small=small):
                yield self._taken(result)

    def close(self) -> None:
        """Cancels running requests."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _step(self) -> Step:
        stage = CaptionStage(
            self._config,
            store=self._replies.store,
            prompts={one.prompt: load_prompt(one.prompt) for one in self._config.models},
        )
        settings = {"stage": stage}
        return Step(make=UnitWorker, settings=settings, resources=self._resources, keeps_state=True)

    def _unit(self, windows: Sequence[tuple[Task, StoredFrames]]) -> WindowUnit:
        # A worker that read all replies would grow with the corpus.
        known: dict[str, Reply] = {}
        if len(self._replies):
            for task, _ in windows:
                known |= replayed(self._dialogs(task), self._replies)[1]
        return WindowUnit(windows=windows, known=known)

    def _taken(self, result: UnitResult[list[UnitAnnotations]]) -> list[Annotation]:
        self.cpu_s.update(result.cpu_s)
        for unit in result.results:
            for key, reply in unit.replies:
                self._replies.added_elsewhere(key, reply)
        return [one for unit in result.results for one in unit.annotations]


Dispatch = Pump | WorkerDispatch
"""Takes windows, and returns their annotations in any order."""


def make_dispatch(
    config: CaptionConfig, *, dialogs: Dialogs, replies: Replies, parts: FrameParts, engine: Engine
) -> Dispatch:
    """Makes the dispatch to the captioner of a recipe."""
    if captioner_class(config.captioner).place is not Place.DRIVER:
        return WorkerDispatch(config, dialogs, replies, engine)
    return Pump(
        dialogs,
        {role: one.client() for role, one in captioners_of(config).items()},
        replies=replies,
        keep=replies.keep,
        load=parts.frames,
        budget_s=config.budget_s,
    )


def check_captioner(config: CaptionConfig, *, asks_server: bool = True) -> None:
    """Checks that the captioner of a recipe can be used.

    With `asks_server`, a service gets a first question, with grey frames.

    Raises:
        UsageError: A server does not answer or lacks the model, files or a package are missing, or
            a prompt cannot be read; the message gives the remedy.
    """
    try:
        make_dialogs(config)
        for captioner in captioners_of(config).values() if config.asks else ():
            captioner.check(trial_frames(config) if asks_server else None)
    except CuratorError as error:
        raise UsageError(str(error)) from error


def trial_frames(config: CaptionConfig) -> Frames:
    """Makes grey frames, as many and as large as those of the largest window."""
    from PIL import Image

    n_frames = config.max_frames
    if config.frames_per_s is None:
        n_frames = min(config.frames, config.max_frames)
    file = io.BytesIO()
    size = (config.frame_px, config.frame_px * 9 // 16)
    Image.new("RGB", size, (128, 128, 128)).save(file, "JPEG")
    return Frames(jpegs=(file.getvalue(),) * n_frames, times_s=tuple(map(float, range(n_frames))))
