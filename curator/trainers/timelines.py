"""Timelines: which frame of a clip a trainer takes as its k-th.

Trainers that resample differ in rounding, so that two trainers at the same rate read different
frames. Each function here has the arithmetic of one kind of reader, in its own floating point.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor
from typing import Literal

import numpy as np

Method = Literal["by_time", "by_ratio", "by_fitting_ratio", "floor", "float32", "skip"]
"""How a reader resamples.

- `by_time`: frame round((k / target) * rate); the length is floor(seconds * target), with rate and
  seconds in hundredths, as FFmpeg prints them.
- `by_ratio`: frame round(k * (rate / target)); the length is int(seconds * target).
- `by_fitting_ratio`: the same frames; a length fits if length / target is at most the seconds.
- `floor`: frame int(k * (rate / target)), as by `numpy.arange`.
- `float32`: int(n * target / rate) frames from the first to the last, as by `torch.linspace`.
- `skip`: a frame is skipped where int(i * target / source) does not change; no frame is repeated.
"""
SpreadRounding = Literal["floor", "nearest", "float32"]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Frames of a clip as a reader numbers them.

    Attributes:
        length: Number of entries.
        at: Index in the clip of an entry, from 0 to `length` - 1.
    """

    length: int
    at: Callable[[int], int]


def own(n_frames: int) -> Timeline:
    """Returns the frames as they are."""
    return Timeline(n_frames, _same)


def resampled(n_frames: int, fps: float, target: float, method: Method) -> Timeline:
    """Returns the frames at another rate; `skip` needs `skipped`, which knows no rate of a clip."""
    last, ratio = n_frames - 1, fps / target
    if method == "by_time":
        rate, seconds = round(fps, 2), floor((n_frames / fps + 0.005) * 100) / 100
        return Timeline(floor(seconds * target), lambda k: min(round(k / target * rate), last))
    if method in ("by_ratio", "by_fitting_ratio"):
        length = int(n_frames / fps * target)
        if method == "by_fitting_ratio":
            # Product and quotient may round to different sides of a whole number.
            length += (length + 1) / target <= n_frames / fps
            length -= length / target > n_frames / fps
        return Timeline(length, lambda k: min(round(k * ratio), last))
    if method == "floor":
        return Timeline(ceil(n_frames / ratio), lambda k: int(k * ratio))
    return spread(n_frames, int(n_frames * target / fps), "float32")


def spread(n_frames: int, length: int, rounding: SpreadRounding) -> Timeline:
    """Returns `length` frames from the first to the last; frames repeat if there are fewer."""
    last = n_frames - 1
    if length <= 1:
        return Timeline(length, lambda k: 0)
    if rounding == "float32":
        return Timeline(length, _float32_linspace(last, length))
    step = last / (length - 1)
    if rounding == "nearest":
        return Timeline(length, lambda k: min(round(k * step), last))
    return Timeline(length, lambda k: last if k == length - 1 else int(k * step))


def skipped(n_frames: int, source_fps: float, target: float, end: int | None) -> Timeline:
    """Returns the frames that a reader keeps when it skips to a lower rate.

    Args:
        n_frames: Frames of the clip.
        source_fps: Rate that the trainer's user states, for all clips.
        target: Rate of the model.
        end: Entry before which the reader stops. At a source rate below the target, entries
            advance faster than frames, so that it stops too early.
    """
    kept = _kept_by_skipping(n_frames, target / source_fps, end)
    return Timeline(len(kept), kept.__getitem__)


@lru_cache(maxsize=4096)
def _kept_by_skipping(n_frames: int, delta: float, end: int | None) -> Sequence[int]:
    # The reader adds `delta` once per frame; rounding of the sum is part of its result.
    entries = np.concatenate(([0.0], np.cumsum(np.full(n_frames - 1, delta)))).astype(np.int64)
    kept = np.flatnonzero(np.diff(entries, prepend=-1))
    if end is not None:
        kept = kept[entries[kept] < end]
    return tuple(int(frame) for frame in kept)


def _same(k: int) -> int:
    return k


def _float32_linspace(last: int, length: int) -> Callable[[int], int]:
    """Returns the entries of `torch.linspace(0, last, length)`, truncated.

    Torch counts the second half from the end, with one rounding of product and difference.
    """
    end, half = np.float32(last), length // 2
    step = np.float32(end / np.float32(length - 1))

    def at(k: int) -> int:
        if k < half:
            return int(step * np.float32(k))
        return int(np.float32(last - float(step) * (length - 1 - k)))

    return at
