"""Sends windows to the captioner, in the driver or in workers."""

import io
import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from curator.errors import CuratorError, UnreachableError, UsageError
from curator.executor.engine import Engine
from curator.executor.fleet import Fleet, Passing
from curator.executor.unit_worker import UnitResult, stage_step
from curator.executor.worker import Step
from curator.media.frame_tap import StoredFrames
from curator.models.text_encoder import torch_refusal
from curator.stage import Resources
from curator.stages.caption.caption_records import Annotation, Frames, Reply, Task
from curator.stages.caption.captioners.captioner_contract import Place
from curator.stages.caption.captioners.captioner_list import captioner_class, captioners_of
from curator.stages.caption.captioners.dialog_runner import POLL_S, DialogRunner
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.prompt_files import load_prompt
from curator.stages.caption.dialogs.window_dialog import Dialogs, make_dialogs
from curator.stages.caption.frame_store import FrameParts
from curator.stages.caption.reply_store import Replies
from curator.stages.caption.stage import CaptionStage, UnitAnnotations, WindowUnit, make_pump

logger = logging.getLogger(__name__)

UNIT_WINDOWS = 64
"""Windows per unit: several batches for a model in a worker, so that it rarely waits."""

FEW_ROUNDS, MANY_ROUNDS = 4, 32
"""Windows per unit of a service, for each request that its worker has under way, if as many wait:
the last answers of a unit leave slots idle."""

IN_FLIGHT = 32
"""Requests under way for which a service gets one more worker: it takes 60 to 70 a second, so it
keeps up with answers of half a second."""

MANY_WINDOWS = 512
"""Windows that the driver asks about while Ray would still be starting."""

PROCESS_BYTES = 512 << 20
REQUEST_BYTES = 4 << 20
"""Memory of a worker that asks a service, and of each request under way: pictures, in JSON too."""

SILENCE_S = 60.0
"""Wait for a service's workers after which the driver asks it something itself, to say why."""

GIVE_UP_S = 900.0
"""Wait after which a service that does not answer the driver either ends the run."""

Waiting = tuple[Task, StoredFrames, Mapping[str, Reply]]
"""A window, the location of its clip's frames, and the stored replies about it."""


class Dispatch(ABC):
    """Takes windows, and returns their annotations in any order."""

    def __init__(self, config: CaptionConfig, replies: Replies, engine: Engine) -> None:
        self._config = config
        self._replies = replies
        self._engine = engine
        self._waiting: list[Waiting] = []
        self._pool: Fleet | None = None
        self._noted: set[str] = set()
        self.cpu_s: Counter[str] = Counter()
        """CPU seconds of workers, by kind of work."""

    def submit(self, task: Task, where: StoredFrames, known: Mapping[str, Reply]) -> None:
        """Takes a window, the location of its clip's frames, and stored replies; does not wait."""
        self._waiting.append((task, where, known))

    @abstractmethod
    def poll(self) -> list[Annotation]:
        """Returns new annotations; does not wait.

        Raises:
            CuratorError: The captioner is unusable, and the run must end.
        """

    @abstractmethod
    def finish(self) -> Iterator[list[Annotation]]:
        """Yields all remaining annotations as they arrive; raises errors as `poll` does."""

    def _step(self, resources: Resources, workers: int = 1) -> Step:
        stage = CaptionStage(
            self._config,
            store=self._replies.store,
            prompts={one.prompt: load_prompt(one.prompt) for one in self._config.models},
            workers=workers,
        )
        return stage_step(stage, resources=resources, keeps_state=True)

    def _unit(self, windows: Sequence[Waiting], *, is_asked: bool = False) -> list[WindowUnit]:
        # A worker that read all replies would grow with the corpus.
        known = {key: reply for _, _, its in windows for key, reply in its.items()}
        pairs = [(task, where) for task, where, _ in windows]
        name = secrets.token_hex(8)
        return [WindowUnit(windows=pairs, name=name, known=known, is_asked=is_asked)]

    def _taken(self, result: UnitResult[list[UnitAnnotations]]) -> list[Annotation]:
        self.cpu_s.update(result.cpu_s)
        for unit in result.results:
            if unit.replies is not None:
                self._replies.add_part(unit.replies)
            for note in unit.notes:
                if note not in self._noted:
                    self._noted.add(note)
                    logger.warning("%s", note)
        return [one for unit in result.results for one in unit.annotations]

    def close(self) -> None:
        """Cancels running requests."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class WorkerDispatch(Dispatch):
    """Runs a model in workers: on GPUs during the cut, on CPUs after it frees them."""

    def __init__(self, config: CaptionConfig, replies: Replies, engine: Engine) -> None:
        super().__init__(config, replies, engine)
        wanted = captioner_class(config.captioner)
        gpus = wanted.gpus if engine.n_gpus() >= 1 else 0.0
        # Cutting uses all cores meanwhile, and a GPU must not wait for one of them.
        cpus = 0 if gpus else 1
        self._resources = Resources(cpus=cpus, gpus=gpus, memory_bytes=wanted.memory_bytes)

    def submit(self, task: Task, where: StoredFrames, known: Mapping[str, Reply]) -> None:
        """As `Dispatch.submit`; begins with GPUs as soon as windows fill a unit."""
        super().submit(task, where, known)
        if self._resources.gpus and self._engine.is_started and len(self._waiting) >= UNIT_WINDOWS:
            if self._pool is None:
                self._pool = self._engine.pool([self._step(self._resources)], check=torch_refusal)
            self._pool.submit(self._unit(self._waiting))
            self._waiting = []

    def poll(self) -> list[Annotation]:
        """As `Dispatch.poll`."""
        if self._pool is None:
            return []
        return [one for result in self._pool.poll() for one in self._taken(result)]

    def finish(self) -> Iterator[list[Annotation]]:
        """As `Dispatch.finish`."""
        waiting, self._waiting = self._waiting, []
        if self._pool is not None:
            if waiting:
                self._pool.submit(self._unit(waiting))
            while self._pool.n_open:
                for result in self._pool.poll(timeout=POLL_S):
                    yield self._taken(result)
            # Frees the GPUs for the next stages.
            self.close()
        elif waiting:
            starts = range(0, len(waiting), UNIT_WINDOWS)
            units = [self._unit(waiting[start : start + UNIT_WINDOWS]) for start in starts]
            small = not self._resources.gpus and self._engine.is_small(1, 0.0)
            check = torch_refusal if self._resources.gpus else None
            step = self._step(self._resources)
            for result in self._engine.run([step], units, small=small, check=check):
                yield self._taken(result)


class ServiceDispatch(Dispatch):
    """Asks a service: from the driver in small runs, from a few workers where Ray runs.

    The workers share `in_flight`. They take no core, because they mostly wait, and work while clips
    are cut. `poll` hands windows out: all of a clip go to the same worker, as they have one budget.
    """

    def __init__(
        self,
        config: CaptionConfig,
        dialogs: Dialogs,
        replies: Replies,
        parts: FrameParts,
        engine: Engine,
    ) -> None:
        super().__init__(config, replies, engine)
        self._dialogs = dialogs
        self._parts = parts
        self._pump: DialogRunner | None = None
        self._in_flight = min(one.in_flight for one in config.models)
        self._most_workers = max(1, self._in_flight // IN_FLIGHT)
        self._n_workers = 1
        self._heard_s = time.monotonic()
        self._patience_s = SILENCE_S

    def poll(self, timeout: float = 0.0) -> list[Annotation]:
        """As `Dispatch.poll`; waits `timeout` seconds for the first."""
        found: list[Annotation] = []
        if self._pump is not None and self._pump.n_open:
            found = self._pump.poll(timeout)
        elif self._pool is not None:
            for result in self._pool.poll(timeout):
                found += self._taken(result)
        self._hand_out()
        return found

    def finish(self) -> Iterator[list[Annotation]]:
        """As `Dispatch.finish`."""
        while True:
            self._hand_out(is_end=True)
            in_pump = self._pump.n_open if self._pump is not None else 0
            if not in_pump and (self._pool is None or not self._pool.n_open):
                break
            found = self.poll(POLL_S)
            self._mind_silence(is_silent=not found)
            yield found
        self.close()

    def close(self) -> None:
        """Cancels running requests."""
        super().close()
        if self._pump is not None:
            self._pump.close()
            self._pump = None

    def _mind_silence(self, *, is_silent: bool) -> None:
        """Says what is wrong with a service where workers, which wait for it, cannot say it."""
        now_s = time.monotonic()
        if not is_silent or self._pool is None:
            self._heard_s, self._patience_s = now_s, SILENCE_S
        elif now_s > self._heard_s + self._patience_s:
            self._patience_s *= 2
            try:
                check_captioner(self._config)
            except UsageError as error:
                if now_s > self._heard_s + GIVE_UP_S:
                    raise CuratorError(f"no caption for {GIVE_UP_S:.0f} s: {error}") from error
                logger.warning("no caption for %.0f s: %s", now_s - self._heard_s, error)

    def _hand_out(self, *, is_end: bool = False) -> None:
        """Gives waiting windows to the driver's pump, or to workers once Ray runs."""
        n_waiting = len(self._waiting)
        if not n_waiting:
            return
        if self._pool is None:
            least = min(UNIT_WINDOWS, self._in_flight // self._most_workers)
            if self._engine.is_started:
                uses_workers = n_waiting >= least
            else:
                # Not before the end: Ray must not start under a chain that runs without it.
                uses_workers = is_end and n_waiting >= MANY_WINDOWS
            if not uses_workers:
                if is_end or not self._engine.is_started:
                    self._pump_some()
                return
            if self._pump is not None and self._pump.n_open:
                # It has all of `in_flight`.
                return
            self._start()
        assert self._pool is not None
        share = self._in_flight // self._n_workers
        least = 1 if is_end else min(UNIT_WINDOWS, share)
        # Units are large where many windows wait, then smaller, so that all workers end at once.
        shares = 2 * self._n_workers if self._n_workers > 1 else 1
        while len(self._waiting) >= least and self._pool.n_open < 2 * self._n_workers:
            n_each = max(FEW_ROUNDS * share, -(-len(self._waiting) // shares))
            windows = self._taken_off(min(n_each, max(UNIT_WINDOWS, MANY_ROUNDS * share)))
            self._pool.submit(self._unit(windows, is_asked=True))

    def _pump_some(self) -> None:
        if self._pump is None:
            self._pump = make_pump(self._config, self._dialogs, self._replies, self._parts)
        n = max(0, MANY_WINDOWS - self._pump.n_open)
        for task, where, _ in self._waiting[:n]:
            self._pump.submit(task, where)
        del self._waiting[:n]

    def _taken_off(self, n: int) -> list[Waiting]:
        """Takes off about `n` windows: those of a clip stay together, as they have one budget."""
        waiting = self._waiting
        while n < len(waiting) and waiting[n][0].clip_id == waiting[n - 1][0].clip_id:
            n += 1
        self._waiting = waiting[n:]
        return waiting[:n]

    def _start(self) -> None:
        engine, config = self._engine, self._config
        n = self._n_workers = engine.n_workers(self._most_workers)
        n_bytes = PROCESS_BYTES + self._in_flight // n * REQUEST_BYTES
        resources = Resources(cpus=0, memory_bytes=n_bytes)
        check = partial(node_problem, config, trial_frames(config)) if engine.joins else None
        self._pool = engine.pool([self._step(resources, workers=n)], most=n, check=check)


def make_dispatch(
    config: CaptionConfig, *, dialogs: Dialogs, replies: Replies, parts: FrameParts, engine: Engine
) -> Dispatch:
    """Makes the dispatch to the captioner of a recipe."""
    if captioner_class(config.captioner).place is Place.SERVICE:
        return ServiceDispatch(config, dialogs, replies, parts, engine)
    return WorkerDispatch(config, replies, engine)


def node_problem(config: CaptionConfig, trial: Frames) -> str | None:
    """Returns why a service cannot be asked from this node, or None."""
    try:
        for captioner in captioners_of(config).values():
            captioner.check(trial)
    except UnreachableError as error:
        return Passing(error)
    except CuratorError as error:
        return str(error)
    return None


def check_captioner(config: CaptionConfig, *, asks_server: bool = True) -> None:
    """Checks that the captioner of a recipe can be used.

    With `asks_server`, a service gets a first question, with grey frames.

    Raises:
        UsageError: It cannot; the message gives the remedy.
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
        n_frames = min(config.frames, n_frames)
    file = io.BytesIO()
    size = (config.frame_px, config.frame_px * 9 // 16)
    Image.new("RGB", size, (128, 128, 128)).save(file, "JPEG")
    return Frames(jpegs=(file.getvalue(),) * n_frames, times_s=tuple(map(float, range(n_frames))))
