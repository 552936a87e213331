"""The worker of annotators: decodes clips once, gives frames to each stage, and stores values.

If a request for frames is wrong, or a value does not fit its declaration, one clip fails for one
stage. Other clips and other stages continue. If the GPU is lost, or a call of `process` exceeds its
time limit, the process ends. Other processes then repeat each clip and stage of the unit alone.
"""

import contextlib
import faulthandler
import logging
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from curator.errors import CuratorError, DeviceLostError, UsageError, in_one_line
from curator.executor.cpu_accounting import CpuClock
from curator.executor.unit_worker import UnitResult, UnitWorker
from curator.executor.worker import MAX_ATTEMPTS
from curator.family import Row, Value
from curator.media.clip_frames import Wanted
from curator.media.device_errors import device_error
from curator.packing import pack
from curator.records.cuts import SampledFrames
from curator.sample_frames import ClipToSample
from curator.stage import (
    AnyAnnotator,
    AnyStage,
    ClipFacts,
    FrameRequest,
    Pixels,
    RequestedFrames,
    SampledClip,
)
from curator.tables.clip_locations import Location, located_bytes
from curator.tables.family_store import FamilyStore, NewValue
from curator.tables.sample_members import StoredMember
from curator.tables.track_signals import PartsByColumn, SignalReader

logger = logging.getLogger(__name__)

_DIED = "its worker died"
MAX_BATCH_BYTES = 1 << 30
"""Most bytes of frames that a worker holds at a time."""
STORE_S = 15.0
"""Seconds after which a worker writes the values of a unit that it has computed. If a worker is
killed, little more than the work of these seconds is lost."""
_STDERR = 2  # file descriptor
Made = dict[tuple[int, str], list[StoredMember]]
"""Members by the number of the stage and the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipWork:
    """A written clip, its number among all clips, and its missing values.

    `keys` has the key of each missing value, by the number of the stage in the chain. `parts` has
    the track of the clip's source, if a stage reads tracks.
    """

    number: int
    facts: ClipFacts
    where: Location
    keys: Mapping[int, str]
    parts: PartsByColumn = field(default_factory=dict)

    def divided(self) -> "list[ClipWork]":
        """Returns the work of each stage, after a worker died on one of the stages."""
        return [replace(self, keys={number: key}) for number, key in self.keys.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipResult:
    """Results of one clip: members or the error of each stage, by the number of the stage."""

    number: int
    clip_id: str
    members: Mapping[int, tuple[StoredMember, ...]]
    errors: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToDecode:
    """A clip to decode.

    `wanted` has the frames that each stage requests, and `errors` the stages' errors. The keys are
    the numbers of the stages.
    """

    clip: ClipWork
    wanted: Mapping[int, tuple[Wanted, ...]]
    errors: dict[int, str]

    @property
    def n_bytes(self) -> int:
        return sum(request.n_bytes for wanted in self.wanted.values() for request in wanted)


class AnnotatorWorker:
    """Decodes clips once, and gives the frames to each annotator of a chain."""

    def __init__(
        self, *, stages: Sequence[AnyAnnotator], decode: AnyStage, store: FamilyStore, has_gpu: bool
    ) -> None:
        self._stages = stages
        self._store = store
        self._has_gpu = has_gpu
        self._versions = [stage.versions() for stage in stages]
        looks = any(stage.frames for stage in stages)
        self._decode = UnitWorker(stage=decode) if looks else None
        self._signals = SignalReader(store.store)
        self._clock = CpuClock()

    def prepare(self) -> None:
        """Loads the models."""
        for stage in self._stages:
            stage.setup()

    def __call__(self, unit: Sequence[ClipWork]) -> UnitResult[list[ClipResult]]:
        """Computes and stores the missing values of some clips."""
        return self.repeat(unit, 0)

    def repeat(self, unit: Sequence[ClipWork], n_deaths: int) -> UnitResult[list[ClipResult]]:
        """Repeats a unit. After `MAX_ATTEMPTS` deaths of workers, all clips of the unit fail."""
        errors: list[dict[int, str]] = [{} for _ in unit]
        made: Made = defaultdict(list)
        if n_deaths >= MAX_ATTEMPTS:
            errors = [{number: _why_died(self._stages[number]) for number in c.keys} for c in unit]
            return UnitResult(results=_results(unit, errors, made), n_items=len(unit))
        spent = self._clock.begin()
        cpu_s, counts = Counter[str](), Counter[str]()
        values: dict[str, list[NewValue]] = defaultdict(list)
        batches = pack(
            self._to_decode(unit, errors),
            max_items=max(stage.batch for stage in self._stages),
            weight=lambda item: item.n_bytes,
            max_weight=MAX_BATCH_BYTES,
        )
        stored_s = time.monotonic()
        for batch in batches:
            decoded = self._decoded(batch)
            cpu_s.update(decoded.cpu_s)
            counts.update(decoded.counts)
            for number in range(len(self._stages)):
                self._annotate(number, batch, decoded.results, values)
            if time.monotonic() > stored_s + STORE_S:
                self._store_values(values, made)
                stored_s = time.monotonic()
        self._store_values(values, made)
        cpu_s.update(self._clock.end(spent, rest=self._stages[0].name))
        return UnitResult(
            results=_results(unit, errors, made),
            cpu_s=dict(cpu_s),
            counts=counts,
            n_items=len(unit),
            video_s=sum(float(clip.facts.n_frames / clip.facts.fps) for clip in unit),
        )

    def _to_decode(
        self, unit: Sequence[ClipWork], errors: Sequence[dict[int, str]]
    ) -> Iterator[_ToDecode]:
        """Yields clips with the frames to decode, and adds the errors of requests."""
        for clip, wrong in zip(unit, errors, strict=True):
            wanted: dict[int, tuple[Wanted, ...]] = {}
            for number in sorted(clip.keys):
                facts = clip.facts
                try:
                    frames = tuple(
                        Wanted(numbers=tuple(request.numbers(facts)), size=request.size_of(facts))
                        for request in self._stages[number].frames
                    )
                except Exception as error:  # noqa: BLE001 - a user's function; fails its own stage
                    wrong[number] = in_one_line(error)
                    continue
                n_bytes = sum(frame.n_bytes for frame in frames)
                if n_bytes > MAX_BATCH_BYTES:
                    wrong[number] = (
                        f"the requested frames take {n_bytes / 2**30:.1f} GiB; expected at most "
                        f"{MAX_BATCH_BYTES / 2**30:g} GiB: request fewer frames (`at`) or smaller "
                        "frames (`size`)"
                    )
                    continue
                wanted[number] = frames
            together = _ToDecode(clip=clip, wanted=wanted, errors=wrong)
            if together.n_bytes <= MAX_BATCH_BYTES:
                yield together
                continue
            # Stages share a decode only if memory holds the frames of all stages.
            for number, frames in wanted.items():
                yield _ToDecode(clip=clip, wanted={number: frames}, errors=wrong)

    def _decoded(self, batch: Sequence[_ToDecode]) -> UnitResult[list[SampledFrames]]:
        """Returns, for each clip, the frames for all requests of all stages, or an error."""
        asked = [item for item in batch if item.wanted]
        if self._decode is None or not asked:
            return UnitResult(results=[SampledFrames() for _ in batch])
        items = [
            ClipToSample(
                uri=item.clip.where.name,
                mp4=located_bytes(self._store.store, item.clip.where),
                n_frames=item.clip.facts.n_frames,
                wanted=tuple(request for wanted in item.wanted.values() for request in wanted),
            )
            for item in asked
        ]
        decoded: UnitResult[list[SampledFrames]] = self._decode(items)
        frames = iter(decoded.results)
        results = [next(frames) if item.wanted else SampledFrames() for item in batch]
        return UnitResult(results=results, cpu_s=decoded.cpu_s, counts=decoded.counts)

    def _annotate(
        self,
        number: int,
        batch: Sequence[_ToDecode],
        decoded: Sequence[SampledFrames],
        values: dict[str, list[NewValue]],
    ) -> None:
        stage = self._stages[number]
        clips = []
        for item, pixels in zip(batch, decoded, strict=True):
            if number not in item.wanted:
                continue
            if pixels.error is not None:
                item.errors[number] = pixels.error
            else:
                clips.append((item, self._sampled(number, item, pixels)))
        for start in range(0, len(clips), stage.batch):
            some = clips[start : start + stage.batch]
            answers = self._processed(stage, [sampled for _, sampled in some])
            for (item, _), answer in zip(some, answers, strict=True):
                if isinstance(answer, Exception):
                    item.errors[number] = in_one_line(answer)
                    continue
                try:
                    encoded = self._encoded(number, answer, item.clip.facts.n_frames)
                except Exception as error:  # noqa: BLE001 - a user's value; fails the clip alone
                    item.errors[number] = f"{type(stage).__qualname__}: {in_one_line(error)}"
                    continue
                key, facts = item.clip.keys[number], item.clip.facts
                ids = {"clip_id": facts.clip_id, "source_id": facts.source_id}
                for name, data in encoded.items():
                    values[name].append(NewValue(key=key, **ids, data=data))

    def _sampled(self, number: int, item: _ToDecode, pixels: SampledFrames) -> SampledClip:
        """Returns a clip with the frames and the signals that one stage requested."""
        first = sum(len(wanted) for other, wanted in item.wanted.items() if other < number)
        wanted = item.wanted[number]
        arrays = pixels.pixels[first : first + len(wanted)]
        requested = tuple(
            RequestedFrames(numbers=each.numbers, pixels=self._placed(array, request))
            for request, each, array in zip(
                self._stages[number].frames, wanted, arrays, strict=True
            )
        )
        clip, names = item.clip, self._stages[number].signals
        signals = self._signals(clip.facts, clip.parts, names) if names else {}
        return SampledClip(facts=clip.facts, requested=requested, signals=signals)

    def _placed(
        self,
        pixels_THWC: NDArray[np.uint8],  # noqa: N803
        request: FrameRequest,
    ) -> Pixels:
        if request.device == "cpu":
            return pixels_THWC
        import torch

        tensor = torch.from_numpy(pixels_THWC)
        return tensor.to("cuda", non_blocking=True) if self._has_gpu else tensor

    def _processed(
        self, stage: AnyAnnotator, clips: Sequence[SampledClip]
    ) -> list[Value | Mapping[str, Value] | Exception]:
        """Runs a stage over a batch. After an error, runs it over each clip of the batch alone."""
        try:
            with _time_limit(stage.timeout_s * len(clips)):
                answers = list(stage.process(clips))
            if len(answers) != len(clips):
                raise ValueError(f"process returned {len(answers)} values for {len(clips)} clips")
            return list(answers)
        except CuratorError:
            # This package raises such errors on purpose, to end the run.
            raise
        except Exception as error:  # noqa: BLE001 - a user's code; becomes the clip's outcome
            if self._has_gpu:
                _end_if_lost(error)
            if len(clips) == 1:
                logger.warning(
                    "%s: clip %s: %s", stage.name, clips[0].facts.clip_id, in_one_line(error)
                )
                return [error]
            return [answer for clip in clips for answer in self._processed(stage, [clip])]

    def _encoded(
        self, number: int, answer: Value | Mapping[str, Value], n_frames: int
    ) -> dict[str, bytes | Row]:
        """Returns the values of a clip as they are stored, by family."""
        families = self._stages[number].families
        is_row = len(families) == 1 and bool(families[0].columns)
        is_by_name = isinstance(answer, Mapping) and not is_row
        by_name = cast(Mapping[str, Value], answer if is_by_name else {families[0].name: answer})
        names = [family.name for family in families]
        if set(by_name) != set(names):
            given = sorted(by_name)
            raise UsageError(f"process returned values of {given}; expected values of {names}")
        encoded = {family.name: family.encode(by_name[family.name]) for family in families}
        for family in families:
            if family.frames_axis is not None:
                array = cast(NDArray[np.generic], by_name[family.name])
                family.check_frames(array.shape, n_frames)
        return encoded

    def _store_values(self, values: dict[str, list[NewValue]], made: Made) -> None:
        """Stores values in one part per family, and adds their places to `made`."""
        for number, versions in enumerate(self._versions):
            for name, version in versions.items():
                for member in self._store.put(version, values.pop(name, ())):
                    made[number, member.key].append(member)


def _results(
    unit: Sequence[ClipWork], errors: Sequence[Mapping[int, str]], made: Made
) -> list[ClipResult]:
    return [
        ClipResult(
            number=clip.number,
            clip_id=clip.facts.clip_id,
            members={n: tuple(made[n, key]) for n, key in clip.keys.items() if n not in wrong},
            errors=wrong,
        )
        for clip, wrong in zip(unit, errors, strict=True)
    ]


def may_pass(error: str) -> bool:
    """Returns whether a later run may succeed where an annotator failed with this error."""
    return any(text in error for text in (_DIED, "MemoryError", "OutOfMemory", "out of memory"))


def _why_died(stage: AnyAnnotator) -> str:
    return (
        f"{type(stage).__qualname__}: {_DIED} {MAX_ATTEMPTS} times on this clip, through a "
        "crash, lack of memory, or a call of `process` that took longer than timeout_s = "
        f"{stage.timeout_s:g} s; the worker's log shows where such a call was"
    )


@contextlib.contextmanager
def _time_limit(limit_s: float) -> Iterator[None]:
    """Ends this process if the block takes longer, and writes the stacks of its threads to stderr.

    The watching thread needs no lock of the interpreter, so native code cannot hold it up.
    """
    faulthandler.dump_traceback_later(limit_s, exit=True, file=_STDERR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _end_if_lost(error: Exception) -> None:
    """Checks the GPU after an error. If the GPU is lost, ends the process.

    Another process then repeats the unit.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    lost = device_error(error, torch.cuda.synchronize)
    if isinstance(lost, DeviceLostError):
        logger.error("%s; the worker ends", lost)
        os._exit(1)
