"""Runs a stage over the items of one unit, in a worker.

This module does for all stages the work that each would repeat: attempts, unforeseen errors, and
the accounting of CPU-seconds. A unit holds several small items or one large item. An item that
fails becomes a failed result, and the unit continues with the next item.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
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
from curator.executor.sandboxed_process import (
    NOT_BEGUN,
    SandboxDiedError,
    SandboxedProcess,
    SetUpError,
    process_sandbox,
)
from curator.executor.worker import MAX_ATTEMPTS, Divisible, Step
from curator.records.sources import Failure, Note
from curator.stage import Resources, Stage

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitResult(Generic[ResultT]):
    """The results of one unit.

    Attributes:
        results: One per item, or the return value of the worker's `keep`.
        cpu_s: CPU-seconds of the worker since its last unit, by purpose.
        counts: The stage's counters.
        n_items: Number of finished items.
        video_s: Seconds of video in the finished items, by their headers.
        work_s: `video_s`, weighted by the cost of each second.
        not_begun: Items for which no time was left. They become another unit.
        notes: Warnings for the user.
    """

    results: ResultT
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    n_items: int = 0
    video_s: float = 0.0
    work_s: float = 0.0
    not_begun: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()

    def divided(self) -> "list[UnitResult[Any]]":
        """Returns one unit result per part of `results`, or this one if it has no parts."""
        if not isinstance(self.results, Divisible):
            return [self]
        return [UnitResult(results=part) for part in self.results.divided()]


class UnitWorker:
    """The step of a chain that runs a stage.

    Args:
        stage: The stage; set up before the first item.
        load: Returns the items of a unit, for example by reading parts; or None, and the worker
            passes the unit on. Without `load`, the unit is the list of items.
        keep: Called with items and results. Its return value leaves the worker instead of the
            results, for example as the name of the part that holds them.
        store_s: Seconds after which a unit ends early: finished items are stored, and the others
            are returned in `UnitResult.not_begun`. None for no such limit. Not with `load`.
        rest: Purpose of the CPU-seconds that the stage does not measure; None for its name.
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
        self._n_done, self._video_s, self._work_s = 0, 0.0, 0.0
        self._rest = rest or stage.name
        self._clock = CpuClock()
        self._is_ready = False
        self._has_worked = False
        """Whether the stage has worked in a sandbox: if set-up fails later, the GPU is to blame."""
        self._sandbox = process_sandbox() if stage.sandboxed else None

    def __call__(self, unit: Any) -> UnitResult[Any]:  # noqa: ANN401
        """Runs the items of a unit.

        `unit` may be the result of the step before this one in a chain. The result of this step
        then includes the CPU-seconds and counts of that step.
        """
        return self.repeat(unit, 0)

    def prepare(self) -> None:
        """Sets the stage up, unless its sandbox does so."""
        if not self._is_ready and self._sandbox is None:
            self._stage.setup()
        self._is_ready = True

    def repeat(self, unit: Any, n_deaths: int) -> UnitResult[Any]:  # noqa: ANN401
        """Runs the items of a unit on which `n_deaths` workers died; `MAX_ATTEMPTS` fail them."""
        before = unit if isinstance(unit, UnitResult) else UnitResult(results=unit)
        items = before.results if self._load is None else self._load(before.results)
        if items is None:
            return before
        self.prepare()
        self._n_done, self._video_s, self._work_s = 0, before.video_s, before.work_s
        spent = self._clock.begin()
        results: Any = self._results(items, n_deaths)
        items, not_begun = items[: len(results)], tuple(items[len(results) :])
        spent.update(self._stage.cpu_s)
        if self._keep is not None:
            begun_s = thread_cpu_s()
            results = self._keep(items, results)
            spent["store"] = spent.get("store", 0.0) + thread_cpu_s() - begun_s
        counts, elsewhere_s = Counter(before.counts), self._stage.child_cpu_s
        counts.update(self._stage.counts)
        if self._sandbox is not None:
            start_up_s, elsewhere_s = self._sandbox.take_cpu_s()
            spent["start_up"] = spent.get("start_up", 0.0) + start_up_s
            counts.update(self._sandbox.counts)
            self._sandbox.counts.clear()
        notes, self._stage.notes = (*before.notes, *self._stage.notes), []
        self._stage.child_cpu_s = 0.0
        self._stage.cpu_s.clear()
        self._stage.counts.clear()
        cpu_s = Counter(before.cpu_s)
        cpu_s.update(self._clock.end(spent, rest=self._rest, more_s=elsewhere_s))
        return UnitResult(
            results=results,
            cpu_s=dict(cpu_s),
            counts=counts,
            # The next step of a chain has the same items, which count once.
            n_items=before.n_items or len(items),
            video_s=self._video_s,
            work_s=self._work_s,
            not_begun=before.not_begun or not_begun,
            notes=notes,
        )

    def _results(self, items: Sequence[Any], n_deaths: int) -> list[Any]:
        """Returns results of the first items: all, or as many as begin within `store_s`."""
        begun_s = time.monotonic()
        results: list[Any] = []
        try:
            for item in items:
                is_long = self._store_s is not None and time.monotonic() - begun_s >= self._store_s
                if results and is_long:
                    break
                results.append(self._result(item, n_deaths))
                self._video_s += self._stage.video_s(item)
                self._work_s += self._stage.work_s(item)
                self._n_done = len(results)
        finally:
            (self._sandbox or self._stage).release()
            if self._sandbox is not None:
                self._sandbox.reached = NOT_BEGUN
        return results

    def _result(self, item: SourcePart, n_deaths: int) -> Any:  # noqa: ANN401 - of any stage
        stage, n_tries = self._stage, 0
        if n_deaths >= MAX_ATTEMPTS:
            return stage.failed(item, _given_up(item, stage, SandboxDiedError(_DIED)))
        while True:
            try:
                result = self._processed(stage, item)
                self._has_worked = True
                return result
            except (SandboxDiedError, SetUpError) as error:
                died = self._death(stage, error)
                logger.warning("%s: %s", item.uri, error)
                n_tries += 1
                # A failure of the GPU is not the source's fault.
                n_deaths += died.code == ErrorCode.WORKER_DIED
                is_last = died.code == ErrorCode.TOO_SLOW or max(n_tries, n_deaths) >= MAX_ATTEMPTS
                if is_last or isinstance(error, SetUpError):
                    if (on_cpu := stage.on_cpu(_note(died.lost))) is not None:
                        stage, n_tries = on_cpu, 0
                    elif is_last:
                        return stage.failed(item, _given_up(item, stage, died))
                item = stage.retried(item)
            except (DamagedError, FullDiskError, DeviceError):
                # Not the item's fault: the run makes the object again, or ends. If a GPU fails in
                # this process instead of a sandbox, all later items fail too.
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
        """Returns how a sandbox ended; raises a set-up error for which no GPU is to blame."""
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
        result = self._sandbox.process(stage, item, partial(self._reached, self._sandbox, item))
        if not isinstance(result, Failure):
            return result
        # The sandbox is not trusted to name the item.
        return stage.failed(item, replace(result, uri=item.uri, stage=stage.name))

    def _reached(self, sandbox: SandboxedProcess, item: SourcePart, claimed_s: float) -> None:
        """Notes how far the unit is; an item counts at most as its header says."""
        video_s = self._stage.video_s(item)
        share = max(0.0, min(1.0, claimed_s / video_s)) if video_s > 0 else 0.0
        work_s = share * self._stage.work_s(item)
        sandbox.reached = self._n_done, self._video_s + share * video_s, self._work_s + work_s


_alone = Lock()


def process_alone(stage: type[Stage[Any, Any, Any]], config: BaseModel, item: SourcePart) -> Any:  # noqa: ANN401 - of any stage
    """Processes one item in the sandbox of this process, which later calls reuse.

    A process has one sandbox, so threads take turns.
    """
    with _alone:
        (result,) = _kept_worker(stage, config)([item]).results
    return result


@cache
def _kept_worker(stage: type[Stage[Any, Any, Any]], config: BaseModel) -> UnitWorker:
    return UnitWorker(stage=stage(config))


_DIED = f"the worker died {MAX_ATTEMPTS} times while working on it"
_SLOW = (
    "reading or decoding took longer than the size of the source allows; the source may be damaged "
    "or made to be slow: remux it with ffmpeg, or leave it out"
)


def _given_up(item: SourcePart, stage: Stage[Any, Any, Any], died: SandboxDiedError) -> Failure:
    if died.lost is not None:
        why = f"the GPU failed {MAX_ATTEMPTS} times while working on it: {died.lost}"
    else:
        why = _SLOW if died.code == ErrorCode.TOO_SLOW else _DIED
    return failure(item, stage, died.code, f"{item.uri}: {why}")


def _note(error: CuratorError | None) -> Note:
    is_memory = isinstance(error, DeviceMemoryError)
    return Note.NOT_ON_GPU_OUT_OF_MEMORY if is_memory else Note.NOT_ON_GPU_DEVICE_LOST


class PlainWorker:
    """The step of a chain that runs a stage without failed outcomes: an error ends the run."""

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
    """Returns the step that runs a stage; `settings` are arguments of `UnitWorker`."""
    settings["stage"] = stage
    resources = resources or stage.resources
    return Step(make=UnitWorker, settings=settings, resources=resources, keeps_state=keeps_state)
