"""Divides usable takes into the clips of a recipe, as arrays: no track is read.

At a constant rate, the numbers of frames are those of `stages.propose.clip_spans` and
`stages.cut.output_form`. Shape letters: N takes, C clips.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from curator.buckets import MAX_ENLARGED, aspect_loss, cover_factor, covered_size
from curator.recipe import Recipe, WindowConfig
from curator.tools.planning.usable_takes import Clips, Floats, Ints, Takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """Settings that decide how takes become clips: windows, or equal parts of at most `max_s`."""

    windows: tuple[WindowConfig, ...] = ()
    min_s: float
    max_s: float
    fps: Fraction | None = None


def divided(takes: Takes, division: Division, recipe: Recipe) -> Clips:
    """Returns the clips that pass the rules on length, rate and size of a recipe."""
    kinds, fits = _written_sizes(takes, recipe)
    rows = np.flatnonzero(fits[takes.kind])
    takes = takes.at(rows)
    parts = [_windows(takes, w, n + 1, division.min_s) for n, w in enumerate(division.windows)]
    if not division.windows:
        parts = [_parts(takes, division)]
    place, start, end, n_frames, rate, window = (
        np.concatenate(columns) for columns in zip(*parts, strict=True)
    )
    own = takes.fps[place]
    passes = n_frames >= min(recipe.shard.lengths)
    passes &= ~_repeats(end - start, n_frames, rate / own, recipe.cut.most_repeated)
    clips = Clips(
        place=rows[place], start_s=start / own, end_s=end / own, n_frames=n_frames, fps=rate,
        kind=takes.kind[place], kinds=kinds, window=window,
    )  # fmt: skip
    return clips.at(passes)


_Part = tuple[Ints, Floats, Floats, Ints, Floats, Ints]
"""Take, first source frame, end, written frames, rate, and number of the window, [C] each."""


def _windows(takes: Takes, window: WindowConfig, number: int, min_s: float) -> _Part:
    n_source, own, n = takes.n_frames, takes.fps, window.frames
    fps = window.rate
    rate = own if fps is None else np.full(len(own), float(fps))
    per_frame = own / rate
    # The slack of `clip_spans`: a quarter of the shorter interval, in source frames.
    slack = np.minimum(per_frame, 1.0) / 4
    is_own = np.abs(per_frame - 1) < 1e-6

    def after(frames: int) -> Floats:
        return np.where(is_own, frames, np.maximum(1, np.ceil(frames * per_frame - slack)))

    step, length = after(window.stride or n), after(n)
    needed = np.where(is_own, n, (n - 0.5) * per_frame)
    last = np.floor(n_source - needed + 1e-9)
    count = np.where(last >= 0, last // step + 1, 0).astype(np.int64)
    place = np.repeat(np.arange(len(own)), count)
    turn = np.arange(len(place)) - np.repeat(np.cumsum(count) - count, count)
    start = turn * step[place]
    end = np.minimum(start + length[place], n_source[place])
    written = np.full(len(place), n)
    last_start = (count - 1) * step
    covered = np.where(count > 0, np.minimum(last_start + length, n_source), 0.0)
    more = np.zeros(len(own), np.bool_)
    if window.remainder == "overlap":
        more = (covered < n_source) & (count > 0) & (last > last_start)
        begin, n_end = last, np.full(len(own), n)
    elif window.remainder == "keep":
        begin, rest = covered, n_source - covered
        exact = np.where(is_own, rest, np.maximum(1, np.rint(rest / per_frame)))
        n_end = np.minimum(n - 1, exact).astype(np.int64)
        more = (rest > 0) & (rest / own >= min_s - 1e-6)
    if more.any():
        ends = np.minimum(begin + length, n_source)[more]
        place, start = np.r_[place, np.flatnonzero(more)], np.r_[start, begin[more]]
        end, written = np.r_[end, ends], np.r_[written, n_end[more]]
    return place, start, end, written, rate[place], np.full(len(place), number)


def _parts(takes: Takes, division: Division) -> _Part:
    n_source, own = takes.n_frames, takes.fps
    count = np.maximum(1, np.ceil(takes.seconds / division.max_s - 1e-9)).astype(np.int64)
    place = np.repeat(np.arange(len(own)), count)
    turn = np.arange(len(place)) - np.repeat(np.cumsum(count) - count, count)
    edge = n_source[place] / count[place]
    start, end = np.ceil(turn * edge - 1e-6), np.ceil((turn + 1) * edge - 1e-6)
    long_enough = (end - start) / own[place] >= division.min_s - 1e-6
    place, start, end = place[long_enough], start[long_enough], end[long_enough]
    rate = own[place] if division.fps is None else np.full(len(place), float(division.fps))
    written = np.maximum(1, np.rint((end - start) / own[place] * rate)).astype(np.int64)
    return place, start, end, written, rate, np.zeros(len(place), np.int64)


def _repeats(source: Floats, n_frames: Ints, factor: Floats, most: float) -> NDArray[np.bool_]:
    """Returns the clips that are rejected because they repeat frames, bool [C]."""
    shown = np.minimum(source, np.floor((n_frames - 0.75) / factor + 1e-9) + 1)
    repeated = np.maximum(0, n_frames - shown) / n_frames
    bound = np.where(1 - 1 / factor <= most, np.maximum(most, 1 / n_frames), most)
    too_many: NDArray[np.bool_] = (np.abs(factor - 1) > 1e-6) & (repeated > bound)
    return too_many


def _written_sizes(takes: Takes, recipe: Recipe) -> tuple[Ints, NDArray[np.bool_]]:
    """Returns width, height and sound of the clips of each kind, and which kinds are kept."""
    rows = [*_sized(takes.kinds, recipe)]
    kinds = np.array([row[:3] for row in rows], np.int64).reshape(-1, 3)
    return kinds, np.array([row[3] for row in rows], np.bool_)


def _sized(kinds: Ints, recipe: Recipe) -> Iterator[tuple[int, int, int, bool]]:
    cut, shard = recipe.cut, recipe.shard
    for width, height, sound in kinds.tolist():
        to = (width, height)
        if (size := cut.one_size) is not None:
            to = (size if isinstance(size, tuple) else covered_size(width, height, shard)) or to
        factor = cover_factor((width, height), to) if min(width, height) > 0 else 0.0
        cropped = 1 - to[0] * to[1] / (factor**2 * width * height) if factor else 0.0
        is_kept = cropped <= cut.most_cropped and min(to) >= min(shard.resolutions)
        is_kept &= cut.enlarge == "always" or factor <= MAX_ENLARGED
        if shard.aspects_strict:
            is_kept &= aspect_loss(*to, shard) <= shard.aspects_tolerance
        yield *to, sound if cut.audio != "drop" else 0, bool(is_kept)
