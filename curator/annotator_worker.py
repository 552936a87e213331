"""The worker of annotators: decodes clips once, for all stages, and stores values.

A stage with windows gets windows in place of clips. Its windows of a clip are decoded together if
memory holds their frames and audio; each further decode begins at the key frame before its first
window.

If a request is wrong, or a value does not fit its declaration, one clip fails for one stage. Other
clips and other stages continue. If the GPU is lost, or a call of `process` exceeds its time limit,
the process ends. Other processes then repeat each clip and stage of the unit alone.
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
from fractions import Fraction
from itertools import zip_longest
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
from curator.records.audio_requests import AudioSpan
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
from curator.value_header import ValueHeader, column_digest

logger = logging.getLogger(__name__)

_DIED = "its worker died"
MAX_BATCH_BYTES = 1 << 30
"""Most bytes of frames and audio that a worker holds at a time."""
STORE_S = 15.0
"""Seconds after which a worker stores the values that it has computed, and ends the unit if the
next batch begins with another clip. Progress counts the clips of ended units. If a worker is
killed, little more than the work of these seconds is lost."""
_STDERR = 2  # file descriptor
Answers = Mapping[str, Value]
"""The values that a stage returned for a clip or a window, by family."""
Made = dict[tuple[int, str], list[StoredMember]]
"""Members by the number of the stage and the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipWork:
    """A written clip, its number among all clips, the SHA-256 of its MP4, and its missing values.

    `keys` has the key of each missing value, by the number of the stage in the chain. `parts` has
    the track of the clip's source, if a stage reads tracks.
    """

    number: int
    facts: ClipFacts
    mp4_sha256: str
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
class _Requested:
    """The frames and audio that a stage requests of a clip, or of a window of it."""

    frames: tuple[Wanted, ...]
    audio: tuple[AudioSpan, ...]

    @property
    def n_bytes(self) -> int:
        return sum(w.n_bytes for w in self.frames) + sum(span.n_bytes for span in self.audio)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToDecode:
    """A clip to decode, or some windows of it.

    Attributes:
        wanted: The requests of each stage, by its number: of its windows one after the other, or
            of the whole clip.
        errors: Errors of the stages, by number.
        starts: First frames of the windows of a stage that has windows.
        answers: Answers of such a stage, by first frame; shared by all parts of a clip.
    """

    clip: ClipWork
    wanted: Mapping[int, tuple[_Requested, ...]]
    errors: dict[int, str]
    starts: tuple[int, ...] = ()
    answers: dict[int, Answers] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        return sum(each.n_bytes for each in self.requests)

    @property
    def requests(self) -> list[_Requested]:
        """The requests of all stages, in the order of `wanted`."""
        return [each for wanted in self.wanted.values() for each in wanted]


class AnnotatorWorker:
    """Decodes clips once, and gives the frames to each annotator of a chain."""

    def __init__(
        self, *, stages: Sequence[AnyAnnotator], decode: AnyStage, store: FamilyStore, has_gpu: bool
    ) -> None:
        self._stages = stages
        self._store = store
        self._has_gpu = has_gpu
        self._versions = [stage.versions() for stage in stages]
        decodes = any(stage.decodes for stage in stages)
        self._decode = UnitWorker(stage=decode) if decodes else None
        self._signals = SignalReader(store.store)
        self._cpu_s: dict[str, float] = {}
        """CPU-seconds by purpose since the last unit. Each stage has those of its own methods."""
        self._rest = decode.name if decodes else stages[0].name
        self._is_ready = False

    def prepare(self) -> None:
        """Sets the stages up, once."""
        if self._is_ready:
            return
        CpuClock.lap(self._cpu_s, "start_up")
        for stage in self._stages:
            stage.setup()
            CpuClock.lap(self._cpu_s, stage.name)
        self._is_ready = True

    def __call__(self, unit: Sequence[ClipWork]) -> UnitResult[list[ClipResult]]:
        """Computes and stores the missing values of some clips; slow clips are left `not_begun`."""
        return self.repeat(unit, 0)

    def repeat(self, unit: Sequence[ClipWork], n_deaths: int) -> UnitResult[list[ClipResult]]:
        """Repeats a unit. After `MAX_ATTEMPTS` deaths of workers, all clips of the unit fail."""
        errors: list[dict[int, str]] = [{} for _ in unit]
        made: Made = defaultdict(list)
        if n_deaths >= MAX_ATTEMPTS:
            errors = [{number: _why_died(self._stages[number]) for number in c.keys} for c in unit]
            return UnitResult(results=_results(unit, errors, made), n_items=len(unit))
        CpuClock.lap(self._cpu_s, "between_units")
        self.prepare()
        cpu_s, counts = Counter[str](), Counter[str]()
        values: dict[str, list[NewValue]] = defaultdict(list)
        batches = list(
            pack(
                self._to_decode(unit, errors),
                max_items=max(stage.batch for stage in self._stages),
                weight=lambda item: item.n_bytes,
                max_weight=MAX_BATCH_BYTES,
            )
        )
        n_begun = len(unit)
        stored_s = time.monotonic()
        for batch, following in zip_longest(batches, batches[1:]):
            decoded = self._decoded(batch)
            cpu_s.update(decoded.cpu_s)
            counts.update(decoded.counts)
            for number, stage in enumerate(self._stages):
                self._annotate(number, batch, decoded.results, values)
                CpuClock.lap(self._cpu_s, stage.name)
            if following is not None and time.monotonic() > stored_s + STORE_S:
                # Batches stay as they are: a value may depend on its batch in the last bits.
                if (first := following[0].clip) is not batch[-1].clip:
                    n_begun = next(n for n, clip in enumerate(unit) if clip is first)
                    break
                self._store_values(values, made)
                stored_s = time.monotonic()
        self._store_values(values, made)
        cpu_s.update(self._cpu_s)
        self._cpu_s = {}
        done = unit[:n_begun]
        return UnitResult(
            results=_results(done, errors[:n_begun], made),
            cpu_s=dict(cpu_s),
            counts=counts,
            n_items=len(done),
            video_s=sum(float(clip.facts.n_frames / clip.facts.fps) for clip in done),
            not_begun=tuple(unit[n_begun:]),
        )

    def _to_decode(
        self, unit: Sequence[ClipWork], errors: Sequence[dict[int, str]]
    ) -> Iterator[_ToDecode]:
        """Yields clips with what to decode of them, and adds the errors of requests."""
        for clip, wrong in zip(unit, errors, strict=True):
            wanted: dict[int, tuple[_Requested, ...]] = {}
            for number in sorted(clip.keys):
                stage = self._stages[number]
                try:
                    windows = _wanted(stage, clip.facts)
                except Exception as error:  # noqa: BLE001 - a user's function; fails its own stage
                    wrong[number] = in_one_line(error)
                    continue
                most = max(own.n_bytes for own in windows.values())
                if most > MAX_BATCH_BYTES:
                    wrong[number] = (
                        f"the requested frames and audio take {most / 2**30:.1f} GiB; expected at "
                        f"most {MAX_BATCH_BYTES / 2**30:g} GiB: request fewer frames (`at`), "
                        "smaller frames (`size`), or windows (`windows`)"
                    )
                elif stage.windows is None:
                    wanted[number] = tuple(windows.values())
                else:
                    yield from _of_windows(clip, number, windows, wrong)
            together = _ToDecode(clip=clip, wanted=wanted, errors=wrong)
            if not wanted:
                continue
            if together.n_bytes <= MAX_BATCH_BYTES:
                yield together
                continue
            # Stages share a decode only if memory holds what all stages request.
            for number, own in wanted.items():
                yield _ToDecode(clip=clip, wanted={number: own}, errors=wrong)

    def _decoded(self, batch: Sequence[_ToDecode]) -> UnitResult[list[SampledFrames]]:
        """Returns, for each clip, what all stages requested of it, or an error."""
        asked = [item for item in batch if item.wanted]
        if self._decode is None or not asked:
            return UnitResult(results=[SampledFrames() for _ in batch])
        items = [
            ClipToSample(
                uri=item.clip.where.name,
                mp4=located_bytes(self._store.store, item.clip.where),
                n_frames=item.clip.facts.n_frames,
                wanted=tuple(wanted for each in item.requests for wanted in each.frames),
                audio=tuple(span for each in item.requests for span in each.audio),
                rate=item.clip.facts.fps,
            )
            for item in asked
        ]
        CpuClock.lap(self._cpu_s, self._rest)
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
        clips: list[tuple[_ToDecode, SampledClip]] = []
        for item, pixels in zip(batch, decoded, strict=True):
            if number not in item.wanted:
                continue
            if pixels.error is not None:
                item.errors[number] = pixels.error
            else:
                clips += ((item, each) for each in self._sampled(number, item, pixels))
        for start in range(0, len(clips), stage.batch):
            some = clips[start : start + stage.batch]
            answers = self._processed(stage, [sampled for _, sampled in some])
            for (item, sampled), answer in zip(some, answers, strict=True):
                if isinstance(answer, Exception):
                    item.errors[number] = in_one_line(answer)
                    continue
                try:
                    encoded = self._answered(number, item, sampled, answer)
                except Exception as error:  # noqa: BLE001 - a user's value; fails the clip alone
                    item.errors[number] = f"{type(stage).__qualname__}: {in_one_line(error)}"
                    continue
                key, facts = item.clip.keys[number], item.clip.facts
                ids = {"clip_id": facts.clip_id, "source_id": facts.source_id}
                for name, data in encoded.items():
                    values[name].append(NewValue(key=key, **ids, data=data))

    def _answered(
        self,
        number: int,
        item: _ToDecode,
        sampled: SampledClip,
        answer: Value | Mapping[str, Value],
    ) -> Mapping[str, bytes | Row]:
        """Returns the values of a clip as they are stored; none until all windows have answers."""
        stage, clip = self._stages[number], item.clip
        by_name = self._by_name(number, answer)
        if stage.windows is not None and sampled.start is not None:
            item.answers[sampled.start] = by_name
            starts = stage.windows.starts(clip.facts.n_frames)
            if len(item.answers) < len(starts) or number in item.errors:
                return {}
            windows = {name: [item.answers[at][name] for at in starts] for name in by_name}
            return self._encoded(number, windows, clip, starts)
        frames = sampled.requested[0].numbers if sampled.requested else ()
        return self._encoded(number, by_name, clip, frames)

    def _sampled(
        self, number: int, item: _ToDecode, pixels: SampledFrames
    ) -> Iterator[SampledClip]:
        """Yields a clip, or its windows, with what one stage requested."""
        stage, clip = self._stages[number], item.clip
        before = [r for other, own in item.wanted.items() if other < number for r in own]
        arrays = iter(pixels.pixels[sum(len(each.frames) for each in before) :])
        waves = iter(pixels.audio[sum(len(each.audio) for each in before) :])
        signals = self._signals(clip.facts, clip.parts, stage.signals) if stage.signals else {}
        thumbnails = self._signals.thumbnails(clip.facts, clip.parts) if stage.thumbnails else ()
        for start, wanted in zip(item.starts or [None], item.wanted[number], strict=True):
            requested = tuple(
                RequestedFrames(numbers=each.numbers, pixels=self._placed(next(arrays), request))
                for request, each in zip(stage.frames, wanted.frames, strict=True)
            )
            audio = next(waves) if wanted.audio else None
            own = signals
            if start is not None and stage.windows is not None:
                numbers = np.array(stage.windows.numbers(start))
                own = {name: values[numbers] for name, values in signals.items()}
            yield SampledClip(
                facts=clip.facts,
                requested=requested,
                start=start,
                audio=audio,
                signals=own,
                thumbnails=thumbnails,
            )

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

    def _by_name(self, number: int, answer: Value | Answers) -> Answers:
        """Returns an answer by family, checked for its names."""
        families = self._stages[number].families
        is_row = len(families) == 1 and bool(families[0].columns)
        is_by_name = isinstance(answer, Mapping) and not is_row
        by_name = cast(Answers, answer if is_by_name else {families[0].name: answer})
        names = [family.name for family in families]
        if set(by_name) != set(names):
            given = sorted(by_name)
            raise UsageError(f"process returned values of {given}; expected values of {names}")
        return by_name

    def _encoded(
        self,
        number: int,
        by_name: Mapping[str, Value | Sequence[Value]],
        clip: ClipWork,
        frames: tuple[int, ...],
    ) -> dict[str, bytes | Row]:
        """Returns the values of a clip as they are stored, by family.

        `frames` are the starts of windows, or the frames of the first request.
        """
        stage, facts = self._stages[number], clip.facts
        encoded = {}
        for name, version in self._versions[number].items():
            family, value = version.family, by_name[name]
            axis = family.time_axis
            has_frames = family.windows is not None or (axis is not None and axis.is_requested)
            header = ValueHeader(
                fingerprint=version.fingerprint,
                mp4_sha256=clip.mp4_sha256 if stage.decodes or stage.track_columns else "",
                frames=frames if has_frames else None,
                fps=facts.fps,
                columns={name: column_digest(facts.columns[name]) for name in stage.columns},
            )
            encoded[name] = family.encode(value, header)
            if axis is not None:
                shape = cast(NDArray[np.generic], value).shape
                family.check_length(shape, header, facts.n_frames, facts.fps)
        return encoded

    def _store_values(self, values: dict[str, list[NewValue]], made: Made) -> None:
        """Stores values in one part per family, and adds their places to `made`."""
        CpuClock.lap(self._cpu_s, self._rest)
        for number, versions in enumerate(self._versions):
            for name, version in versions.items():
                for member in self._store.put(version, values.pop(name, ())):
                    made[number, member.key].append(member)
        CpuClock.lap(self._cpu_s, "store")


def _wanted(stage: AnyAnnotator, clip: ClipFacts) -> dict[int | None, _Requested]:
    """Returns what a stage requests, by first frame of each window; None: the clip."""

    def requests(of: ClipFacts, frames: Sequence[int] | None) -> _Requested:
        found = []
        for request in stage.frames:
            numbers = request.numbers(of)
            own = numbers if frames is None else [frames[number] for number in numbers]
            found.append(Wanted(numbers=tuple(own), size=request.size_of(clip)))
        if stage.audio is None:
            return _Requested(frames=tuple(found), audio=())
        start = Fraction(0) if frames is None else frames[0] / clip.fps
        span = AudioSpan(request=stage.audio, start=start, seconds=of.n_frames / of.fps)
        return _Requested(frames=tuple(found), audio=(span,))

    windows = stage.windows
    if windows is None:
        return {None: requests(clip, None)}
    window = replace(clip, n_frames=windows.frames, fps=clip.fps / windows.stride)
    return {
        start: requests(window, windows.numbers(start)) for start in windows.starts(clip.n_frames)
    }


def _of_windows(
    clip: ClipWork,
    number: int,
    windows: Mapping[int | None, _Requested],
    errors: dict[int, str],
) -> Iterator[_ToDecode]:
    """Yields windows of a clip in groups whose frames and audio fit in memory."""
    answers: dict[int, Answers] = {}
    for group in pack(
        windows.items(),
        max_items=len(windows),
        weight=lambda window: window[1].n_bytes,
        max_weight=MAX_BATCH_BYTES,
    ):
        yield _ToDecode(
            clip=clip,
            wanted={number: tuple(own for _, own in group)},
            errors=errors,
            starts=tuple(start for start, _ in group if start is not None),
            answers=answers,
        )


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
