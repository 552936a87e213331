"""Runs a stage over the items of one unit, in a worker.

What every stage would repeat is here once: attempts, the time limit, the failure that nothing
foresaw, and the worker's CPU-seconds. A unit holds several small items or one large one; an item
that fails ends in its own result, and the others of the unit go on.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from threading import Lock
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from curator.errors import (
    CuratorError,
    DamagedError,
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    ErrorCode,
    FullDiskError,
    SourceError,
)
from curator.executor.cpu_accounting import CpuClock, thread_cpu_s
from curator.executor.failures import SourcePart, failure, internal_failure
from curator.executor.sandboxed_process import SandboxDiedError, SetUpError, process_sandbox
from curator.executor.worker import MAX_ATTEMPTS, Divisible, Step
from curator.records.sources import Failure, Note
from curator.stage import Resources, Stage

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitResult(Generic[ResultT]):
    """The results of one unit.

    Attributes:
        results: One per item, or what was stored in their place.
        cpu_s: CPU-seconds of the worker since its last unit, by what they went into.
        counts: What the stage counted.
        n_items: Items of the unit that were done.
        video_s: Their seconds of video.
        work_s: The same, weighted by what they cost.
        left: Items of the unit that were not begun, for another unit.
        notes: Warnings for the user.
    """

    results: ResultT
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    n_items: int = 0
    video_s: float = 0.0
    work_s: float = 0.0
    left: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()

    def divided(self) -> "list[UnitResult[Any]]":
        """As the unit of another chain: one for each part of what was stored, if it has parts."""
        if not isinstance(self.results, Divisible):
            return [self]
        return [UnitResult(results=part) for part in self.results.divided()]


class UnitWorker:
    """The step of a chain that runs a stage.

    Args:
        stage: The stage; set up before the first item.
        load: Makes the items of what is sent, such as by reading parts, or None to pass it on as it
            is; None where the items themselves are sent.
        keep: Turns items and their results into what leaves the worker, such as the name of the
            part that holds them; None for the results themselves.
        store_s: Seconds of a unit after which what is done of it is stored, and the rest given back
            in `UnitResult.left`; None for never. Not with `load`.
        rest: Name of the CPU-seconds that the stage does not measure itself; None for its name.
    """

    def __init__(
        self,
        *,
        stage: Stage[Any, Any, Any],
        load: Callable[[Any], Sequence[Any] | None] | None = None,
        keep: Callable[[Sequence[Any], Sequence[Any]], Any] | None = None,
        store_s: float | None = None,
        rest: str | None = None,
    ) -> None:
        self._stage = stage
        self._store_s = store_s
        self._load, self._keep = load, keep
        self._video_s = self._work_s = 0.0
        self._rest = rest or stage.name
        self._clock = CpuClock()
        self._is_ready = False
        self._has_worked = False
        """Whether the stage was set up once in a sandbox: if it cannot be later, its GPU failed."""
        self._sandbox = process_sandbox() if stage.sandboxed else None

    def __call__(self, unit: Any) -> UnitResult[Any]:  # noqa: ANN401
        """Runs the items of a unit.

        `unit` may be the result of the worker before this one in a chain, whose CPU-seconds and
        counts are passed on.
        """
        return self.repeat(unit, 0)

    def prepare(self) -> None:
        """Sets the stage up, unless its sandbox does that."""
        if not self._is_ready and self._sandbox is None:
            self._stage.setup()
        self._is_ready = True

    def repeat(self, unit: Any, n_deaths: int) -> UnitResult[Any]:  # noqa: ANN401
        """Runs the items of a unit over which workers died; fails them after `MAX_ATTEMPTS`."""
        before = unit if isinstance(unit, UnitResult) else UnitResult(results=unit)
        items = before.results if self._load is None else self._load(before.results)
        if items is None:
            return before
        self.prepare()
        self._video_s, self._work_s = before.video_s, before.work_s
        spent = self._clock.begin()
        results: Any = self._results(items, n_deaths)
        items, left = items[: len(results)], tuple(items[len(results) :])
        spent.update(self._stage.cpu_s)
        if self._keep is not None:
            begun_s = thread_cpu_s()
            results = self._keep(items, results)
            spent["store"] = spent.get("store", 0.0) + thread_cpu_s() - begun_s
        counts, in_sandbox_s = Counter(before.counts), 0.0
        counts.update(self._stage.counts)
        if self._sandbox is not None:
            start_up_s, in_sandbox_s = self._sandbox.take_cpu_s()
            spent["start_up"] = spent.get("start_up", 0.0) + start_up_s
            counts.update(self._sandbox.counts)
            self._sandbox.counts.clear()
        notes, self._stage.notes = (*before.notes, *self._stage.notes), []
        self._stage.cpu_s.clear()
        self._stage.counts.clear()
        cpu_s = Counter(before.cpu_s)
        cpu_s.update(self._clock.end(spent, rest=self._rest, more_s=in_sandbox_s))
        return UnitResult(
            results=results,
            cpu_s=dict(cpu_s),
            counts=counts,
            # The next step of a chain has the same items.
            n_items=before.n_items or len(items),
            video_s=self._video_s,
            work_s=self._work_s,
            left=before.left or left,
            notes=notes,
        )

    def _results(self, items: Sequence[Any], n_deaths: int) -> list[Any]:
        """Returns results of the first items: of all, or of those that `store_s` is enough for."""
        begun_s = time.monotonic()
        results: list[Any] = []
        try:
            for item in items:
                is_long = self._store_s is not None and time.monotonic() - begun_s >= self._store_s
                if results and is_long:
                    break
                results.append(self._result(item, n_deaths))
        finally:
            (self._sandbox or self._stage).release()
        return results

    def _result(self, item: SourcePart, n_deaths: int) -> Any:  # noqa: ANN401 - of any stage
        stage, n_tries = self._stage, 0
        if n_deaths >= MAX_ATTEMPTS:
            return stage.failed(item, _given_up(item, stage, SandboxDiedError(_DIED)))
        while True:
            try:
                result = self._processed(stage, item)
                self._has_worked = True
                self._video_s += stage.video_s(result)
                self._work_s += stage.work_s(result)
                return result
            except (SandboxDiedError, SetUpError) as error:
                died = self._death(stage, error)
                logger.warning("%s: %s", item.uri, error)
                n_tries += 1
                # The source is not to blame for a GPU.
                n_deaths += died.code == ErrorCode.WORKER_DIED
                is_last = died.code == ErrorCode.TOO_SLOW or max(n_tries, n_deaths) >= MAX_ATTEMPTS
                if is_last or isinstance(error, SetUpError):
                    if (on_cpu := stage.on_cpu(_note(died.lost))) is not None:
                        stage, n_tries = on_cpu, 0
                    elif is_last:
                        return stage.failed(item, _given_up(item, stage, died))
            except (DamagedError, FullDiskError, DeviceError):
                # No fault of the item: the run makes the object again, or ends. A GPU that fails in
                # this process, and not in a sandbox, fails all that comes after.
                raise
            except CuratorError as error:
                if not stage.fails_alone:
                    raise
                code = error.code if isinstance(error, SourceError) else ErrorCode.INTERNAL
                return stage.failed(item, failure(item, stage, code, str(error)))
            except Exception as error:  # noqa: BLE001 - becomes the item's failed outcome
                return stage.failed(item, internal_failure(item, stage, error))

    def _death(
        self, stage: Stage[Any, Any, Any], error: SandboxDiedError | SetUpError
    ) -> SandboxDiedError:
        """Returns how a sandbox ended; one that could be set up before has lost its GPU."""
        if isinstance(error, SandboxDiedError):
            self._has_worked |= error.lost is not None
            return error
        cause = error.cause
        if not self._has_worked or not stage.resources.gpus:
            raise cause from error
        lost = cause if isinstance(cause, DeviceError) else DeviceLostError(str(cause))
        return SandboxDiedError(str(error), lost=lost)

    def _processed(self, stage: Stage[Any, Any, Any], item: SourcePart) -> Any:  # noqa: ANN401 - of any stage
        if self._sandbox is None:
            return stage.process(item)
        result = self._sandbox.process(stage, item)
        if not isinstance(result, Failure):
            return result
        # What names the item comes from here.
        return stage.failed(item, replace(result, uri=item.uri, stage=stage.name))


_alone = Lock()


def process_alone(stage: type[Stage[Any, Any, Any]], config: BaseModel, item: SourcePart) -> Any:  # noqa: ANN401 - of any stage
    """Returns the result of an item in the sandbox of this process, which later items use again.

    A process has one sandbox, so other threads wait.
    """
    with _alone:
        (result,) = _kept_worker(stage, config)([item]).results
    return result


@cache
def _kept_worker(stage: type[Stage[Any, Any, Any]], config: BaseModel) -> UnitWorker:
    return UnitWorker(stage=stage(config))


_DIED = f"the worker died {MAX_ATTEMPTS} times while working on it"
_SLOW = (
    "reading or decoding it took longer than its bytes, frames and pixels allow; it may be damaged "
    "or made to be slow: remux it with ffmpeg, or leave it out"
)


def _given_up(item: SourcePart, stage: Stage[Any, Any, Any], died: SandboxDiedError) -> Failure:
    if died.lost is not None:
        why = f"the GPU failed under it {MAX_ATTEMPTS} times: {died.lost}"
    else:
        why = _SLOW if died.code == ErrorCode.TOO_SLOW else _DIED
    return failure(item, stage, died.code, f"{item.uri}: {why}")


def _note(error: CuratorError | None) -> Note:
    is_memory = isinstance(error, DeviceMemoryError)
    return Note.NOT_ON_GPU_OUT_OF_MEMORY if is_memory else Note.NOT_ON_GPU_DEVICE_LOST


class PlainWorker:
    """The step of a chain that runs a stage whose units do not fail singly: errors end the run."""

    def __init__(self, *, stage: Stage[Any, Any, Any]) -> None:
        stage.setup()
        self._stage = stage

    def __call__(self, unit: Any) -> Any:  # noqa: ANN401
        """Runs one unit."""
        try:
            return self._stage.process(unit)
        finally:
            self._stage.release()


def stage_step(
    stage: Stage[Any, Any, Any],
    *,
    resources: Resources | None = None,
    keeps_state: bool = False,
    **settings: Any,  # noqa: ANN401
) -> Step:
    """The step that runs a stage; `settings` are those of `UnitWorker`."""
    settings["stage"] = stage
    resources = resources or stage.resources
    return Step(make=UnitWorker, settings=settings, resources=resources, keeps_state=keeps_state)
