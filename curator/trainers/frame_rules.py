"""Which frames of a clip a trainer reads: the rules `rate` and `frames` of a trainer's file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from curator.trainers.timelines import (
    Method,
    SpreadRounding,
    Timeline,
    own,
    resampled,
    skipped,
    spread,
)


class Drop(StrEnum):
    """Why a trainer does not read a clip."""

    TOO_SHORT = "too_short"
    TOO_LONG = "too_long"
    OFF_GRID = "off_grid"
    NO_FRAME_TO_SPARE = "no_frame_to_spare"
    NO_CAPTION = "no_caption"
    TOO_SMALL = "too_small"


MAX_FRAMES = 100_000
"""Most frames of a sample: an hour at 24 frames/s, and seconds of work for some rules."""
Number = Annotated[int, Field(strict=True, ge=1, le=MAX_FRAMES)]
Side = Annotated[int, Field(strict=True, ge=1, le=16384)]
"""Side of a picture in pixels."""
Fps = Annotated[float, Field(ge=0.01, le=1000, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Rule(BaseModel):
    """A rule of a trainer's file."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class RateRule(Rule):
    """How a trainer turns the frames of a clip into frames at its rate."""

    policy: Literal["own", "resample", "spread"]
    """`own`: frames as they are; `resample`: at `fps`; `spread`: from the first to the last."""
    fps: Fps | None = None
    """Rate to which the trainer resamples."""
    method: Method | None = None
    source_fps: Fps | None = None
    """Of `skip`: the rate that the user states for all clips; null reads frames as they are."""
    rounding: SpreadRounding = "floor"
    """Of `spread`."""
    stretch: bool = False
    """Of `spread`: whether frames of shorter clips repeat; else all frames are read."""
    model_fps: Fps | None = None
    """Rate at which the model shows its frames; null if none is known."""
    conditioned: bool = False
    """Whether the trainer tells the model the rate of each clip."""
    told_fps: float | None = Field(None, gt=0)
    """Of `conditioned`: the rate that the trainer tells for all clips, instead of their own."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Refuses a rule that would read frames as they are without saying so."""
        if self.policy == "resample" and (self.method is None or self.fps is None):
            raise ValueError("policy is resample; expected fps and method, too")
        return self


def _list(value: object) -> object:
    return value if isinstance(value, list | tuple) else (value,)


class FrameRule(Rule):
    """How many frames a trainer reads, where, and which clips it does not read."""

    lengths: Annotated[tuple[Number, ...], Field(min_length=1), BeforeValidator(_list)] | None = (
        None
    )
    """Numbers of frames of a sample; null for all frames, or for those of the size's buckets."""
    choose: Literal["longest", "each"] = "longest"
    """Whether a clip gives a sample of the longest length that fits, or one of each length."""
    place: Literal[
        "first", "head", "middle", "center", "random", "chunk", "slide", "uniform", "full"
    ] = "first"
    """Place of samples: `middle` places the sample as read, `center` its length before the grid;
    `full` reads the whole clip, up to the largest length."""
    random_starts: Literal["all", "all_but_last", "all_but_last_unless_one"] = "all"
    """Of `random`: starts that the trainer can draw."""
    slide: Number = 1
    """Of `slide`: distance of two samples."""
    samples: Number = 1
    """Of `uniform`: number of samples."""
    stride: Number | Literal["force_one", "max_30fps", "entire_chunk", "at_rate"] = 1
    """A sample takes each `stride`-th frame. `max_30fps`: int(rate / 30); `entire_chunk`: frames
    of the clip // length; `at_rate`: round(rate / `fps` of the rule `rate`)."""
    counts_whole_strides: bool = False
    """Whether a clip has frames // stride samples, though one more may fit."""
    short: Literal["drop", "grid", "all", "repeat", "stretch"] = "drop"
    """Clips below all lengths: dropped, read to the last length on the grid, read whole, continued
    with their last frame, or spread over the longest length."""
    grid: tuple[Number, Annotated[int, Field(strict=True, ge=0)]] | None = None
    """(m, r): numbers of frames are m·n + r."""
    grid_of: Literal["short", "read", "lengths", "clip", "only"] = "read"
    """What is truncated to the grid: short clips, frames of a sample, lengths, or the clip before
    anything else. `only`: clips that are not on the grid are dropped."""
    min_frames: Number | None = None
    max_frames: Number | None = None
    max_seconds: Positive | None = None
    max_lengths: Positive | None = None
    """Most seconds of a clip, as a multiple of the sample's seconds at the model's rate."""
    min_side_px: int = Field(0, ge=0)
    never_one: bool = False
    """Whether a length of 1 is only for images."""
    dropped: str
    """What happens to dropped clips, in words."""

    def on_grid(self, n: int) -> int:
        """Returns the largest number on the grid up to `n`, and at least 1."""
        if self.grid is None:
            return n
        multiple, remainder = self.grid
        return max(1, (n - remainder) // multiple * multiple + remainder)


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of one length from a clip.

    Attributes:
        count: Frames of a sample, with repeated ones.
        starts: Entries of the timeline at which samples begin.
        stride: Distance of two frames of a sample on the timeline.
        is_drawn: Whether each visit of the clip draws one of `starts`, all equally likely.
    """

    count: int
    starts: Sequence[int]
    stride: int = 1
    is_drawn: bool = False


@dataclass(frozen=True)
class Reading:
    """The frames that a trainer reads of a clip, or why it reads none.

    Attributes:
        reason: None for a clip that is read.
        has: What the clip has, where `needs` is what the trainer needs: frames, or seconds.
    """

    n_frames: int
    timeline: Timeline
    samples: tuple[Samples, ...] = ()
    reason: Drop | None = None
    has: float | None = None
    needs: float | None = None

    @property
    def is_drawn(self) -> bool:
        """Whether frames are drawn at random."""
        return any(each.is_drawn for each in self.samples)

    def indices(self) -> Iterator[NDArray[np.int64]]:
        """Yields the indices of the frames of each possible sample."""
        for each in self.samples:
            for start in each.starts:
                yield self.sample(each, start)

    def sample(self, samples: Samples, start: int) -> NDArray[np.int64]:
        """Returns the indices of the frames of the sample that begins at an entry."""
        entries = range(start, start + samples.count * samples.stride, samples.stride)
        return np.array([self.at(entry) for entry in entries], np.int64)

    def at(self, entry: int) -> int:
        """Returns the index of an entry of the timeline; the last one beyond the end."""
        return self.timeline.at(max(0, min(entry, self.timeline.length - 1)))

    def span(self, samples: Samples, start: int) -> tuple[float, float]:
        """Returns the frames that a sample covers, half-open, with the interval of the last."""
        first = self.at(start)
        last = self.at(start + (samples.count - 1) * samples.stride)
        step = (last - first) / (samples.count - 1) if samples.count > 1 else 1.0
        return float(first), min(float(self.n_frames), last + max(step, 1.0))

    @cached_property
    def frames_seen(self) -> tuple[float, float]:
        """The number of frames covered in an epoch, and that can ever be covered.

        A sample that is drawn counts once in an epoch.
        """
        if self.reason is not None:
            return 0.0, 0.0
        seen = [span for each in self.samples for span in self._spans(each)]
        readable = _covered(seen)
        drawn = next((each for each in self.samples if each.is_drawn), None)
        if drawn is None:
            return readable, readable
        begin, end = self.span(drawn, drawn.starts[len(drawn.starts) // 2])
        return end - begin, readable

    def _spans(self, samples: Samples) -> Iterator[tuple[float, float]]:
        starts = samples.starts
        first, last = self.span(samples, starts[0]), self.span(samples, starts[-1])
        if isinstance(starts, range) and starts.step <= (samples.count - 1) * samples.stride + 1:
            yield first[0], last[1]
        else:
            yield from (self.span(samples, start) for start in starts)

    @cached_property
    def end(self) -> float:
        """The frame behind the last one that can be covered."""
        return max((self.span(each, each.starts[-1])[1] for each in self.samples), default=0.0)

    def source_rate(self, fps: float) -> float | None:
        """Returns frames per second of the clip that a sample has; None for a single frame."""
        each = max(self.samples, key=lambda one: one.count, default=None)
        if each is None or each.count < 2:
            return None
        first = self.at(each.starts[0])
        last = self.at(each.starts[0] + (each.count - 1) * each.stride)
        return (each.count - 1) * fps / (last - first) if last > first else None


def read_clip(
    rate: RateRule,
    rule: FrameRule,
    n_frames: int,
    fps: float,
    lengths: tuple[int, ...] | None = None,
) -> Reading:
    """Applies the rules of rate and frames to a clip.

    Args:
        rate: Rule of the rate.
        rule: Rule of the frames.
        n_frames: Frames of the written clip.
        fps: Its frame rate.
        lengths: Lengths of the buckets of a size rule, instead of the rule's own.
    """
    lengths = rule.lengths if lengths is None else lengths
    if rule.place == "full" and lengths is not None:
        lengths = (max(lengths),)
    if rule.grid_of in ("lengths", "clip") and lengths is not None:
        lengths = tuple(sorted({rule.on_grid(length) for length in lengths}))
    timeline = _timeline(rate, rule, n_frames, fps, lengths)
    stride = _stride(rate, rule, timeline.length, fps, lengths)
    available = _available(rule, timeline.length, stride)
    if rule.grid_of == "clip":
        available = rule.on_grid(available)
    refused = _refused(rate, rule, n_frames, fps, available, lengths)
    if refused is not None:
        return Reading(n_frames, timeline, (), *refused)
    chosen = _chosen(rule, available, lengths)
    if not chosen and rule.short == "stretch" and lengths is not None:
        length = max(lengths)
        return Reading(
            n_frames, spread(n_frames, length, rate.rounding), (Samples(length, range(1)),)
        )
    if not chosen:
        needs = min((n for n in lengths or () if n > rule.never_one), default=1)
        return Reading(n_frames, timeline, (), Drop.TOO_SHORT, available, needs)
    if rate.policy == "spread":
        (length,) = chosen
        if rate.stretch or length < n_frames:
            timeline = spread(n_frames, length, rate.rounding)
        return Reading(n_frames, timeline, (Samples(length, range(1)),))
    samples = []
    for length in chosen:
        placed = _placed(rule, max(1, timeline.length), length, stride)
        if placed is None:
            return Reading(n_frames, timeline, (), Drop.NO_FRAME_TO_SPARE, available, length + 1)
        samples.append(placed)
    return Reading(n_frames, timeline, tuple(samples))


def _timeline(
    rate: RateRule, rule: FrameRule, n_frames: int, fps: float, lengths: tuple[int, ...] | None
) -> Timeline:
    if rate.policy != "resample" or rate.method is None or rate.fps is None:
        return own(n_frames)
    if rate.method != "skip":
        return resampled(n_frames, fps, rate.fps, rate.method)
    if rate.source_fps is None:
        return own(n_frames)
    is_head = rule.place == "head" or (rule.place == "uniform" and rule.samples == 1)
    is_head = is_head and lengths is not None
    return skipped(n_frames, rate.source_fps, rate.fps, max(lengths or (1,)) if is_head else None)


def _stride(
    rate: RateRule, rule: FrameRule, n: int, fps: float, lengths: tuple[int, ...] | None
) -> int:
    if isinstance(rule.stride, int):
        return rule.stride
    if rule.stride == "at_rate":
        return max(1, round(fps / (rate.fps or fps)))
    if lengths is None or rule.stride == "force_one":
        return 1
    if rule.stride == "max_30fps":
        return max(1, int(fps / 30.0))
    return max(1, n // max(lengths))


def _available(rule: FrameRule, n: int, stride: int) -> int:
    if not isinstance(rule.stride, int) and not rule.counts_whole_strides:
        # Such readers compare a length with the frames, not with strides.
        return n
    return n // stride if rule.counts_whole_strides else (n + stride - 1) // stride


def _refused(
    rate: RateRule,
    rule: FrameRule,
    n_frames: int,
    fps: float,
    available: int,
    lengths: tuple[int, ...] | None,
) -> tuple[Drop, float, float] | None:
    """Returns why a limit of the rule excludes a clip, what the clip has, and the limit."""
    seconds = n_frames / fps
    if rule.max_seconds is not None and seconds > rule.max_seconds:
        return Drop.TOO_LONG, seconds, rule.max_seconds
    if rule.max_lengths is not None and lengths is not None and rate.fps is not None:
        limit = rule.max_lengths * (max(lengths) / rate.fps)
        if seconds > limit:
            return Drop.TOO_LONG, seconds, limit
    least = rule.min_frames
    if least is not None and rule.grid_of == "clip":
        least = rule.on_grid(least)
    if least is not None and available < least:
        return Drop.TOO_SHORT, available, least
    if rule.max_frames is not None and available > rule.max_frames:
        return Drop.TOO_LONG, available, rule.max_frames
    if rule.grid_of == "only" and rule.on_grid(available) != available:
        return Drop.OFF_GRID, available, rule.on_grid(available)
    return None


def _chosen(rule: FrameRule, available: int, lengths: tuple[int, ...] | None) -> list[int]:
    """Returns the lengths of the samples of a clip."""
    if available < 1:
        return []
    if lengths is None:
        return [available]
    fitting = sorted(length for length in lengths if length <= available)
    if rule.never_one:
        fitting = [1] if available == 1 else [length for length in fitting if length > 1]
    if fitting:
        return fitting if rule.choose == "each" else fitting[-1:]
    if rule.short == "grid" or rule.place == "full":
        return [rule.on_grid(available)]
    if rule.short == "all":
        return [available]
    return [max(lengths)] if rule.short == "repeat" else []


def _placed(rule: FrameRule, n: int, length: int, stride: int) -> Samples | None:
    """Returns the places of samples of a length; None if the trainer cannot draw any."""
    count = rule.on_grid(length) if rule.grid_of == "read" else length
    span = (length - 1) * stride + 1
    starts: Sequence[int] = range(1)
    if span > n and rule.short != "repeat":
        start = (n - span) // 2 if rule.place == "center" else 0
        return _within(rule, n, start, length, stride)
    if rule.place in ("middle", "center"):
        start = (n - (count if rule.place == "middle" else span)) // 2
        return Samples(count, (start,), stride)
    if rule.place == "chunk":
        starts = range(0, n - length + 1, length)
    elif rule.place == "slide":
        starts = range(0, n - length + 1, rule.slide)
    elif rule.place == "uniform":
        starts = tuple(int(s) for s in np.linspace(0, n - length, rule.samples, dtype=int))
    elif rule.place == "random":
        starts = range(n - span + 1)
        if rule.random_starts != "all":
            starts = range(len(starts) - 1) or range(rule.random_starts.endswith("one"))
        return Samples(count, starts, stride, is_drawn=True) if starts else None
    return Samples(count, starts, stride)


def _within(rule: FrameRule, n: int, start: int, length: int, stride: int) -> Samples:
    """Returns the part of a sample that lies within the clip, which is shorter than its span."""
    skipped_frames = max(0, -(start // stride)) if start < 0 else 0
    first = start + skipped_frames * stride
    count = min(length - skipped_frames, (n - 1 - first) // stride + 1)
    return Samples(rule.on_grid(count) if rule.grid_of == "read" else count, (first,), stride)


def _covered(spans: list[tuple[float, float]]) -> float:
    """Returns the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
