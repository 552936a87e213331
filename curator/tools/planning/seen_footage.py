"""The footage that trainers see of clips: each second of the source once.

Footage is seen *well* if it is shown at its speed (within `RETIMED`), and the trainer repeats at
most as large a share of frames to reach its rate. Shape letters: C clips, S spans.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from curator.tools.planning.usable_takes import Clips, Floats, Ints
from curator.trainers.clip_fit import RETIMED, OutputSpec, fit_form
from curator.trainers.frame_rules import Reading
from curator.trainers.trainer_files import Trainer

Mask = NDArray[np.bool_]
_USED_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a trainer sees of clips, in seconds of footage.

    Attributes:
        seen_s: Footage that is seen, at any speed; `well_s` is the part that is seen well, and
            `full_s` the part of it in samples of the trainer's longest length.
        clip_s: Seconds of the clips that the trainer should read.
        windows: Numbers of the windows of which the trainer should read the clips.
    """

    seen_s: float
    well_s: float
    full_s: float
    clip_s: float
    windows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Form:
    spans: list[tuple[float, float]]
    is_well: bool
    is_full: bool


class Watcher:
    """A trainer, with what it does with each form of clips."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._forms: dict[tuple[int, float, tuple[int, int, int]], _Form] = {}
        rules = trainer.rules
        self._by_size = rules.size.policy == "buckets" or rules.frames.min_side_px > 0
        self.lengths = sample_lengths(trainer)
        self._longest = max(self.lengths, default=1)

    def form(self, n_frames: int, fps: float, kind: tuple[int, int, int]) -> _Form:
        """Returns what the trainer sees of a form: spans in shares of the clip."""
        key = n_frames, fps, kind
        form = self._forms.get(key)
        if form is None:
            width, height, sound = kind
            fit = fit_form(
                self.trainer,
                OutputSpec(
                    n_frames=n_frames, fps=Fraction(fps).limit_denominator(1001 * 1000),
                    width=width, height=height, has_sound=bool(sound),
                ),
            )  # fmt: skip
            rate = fit.reading.source_rate(fps)
            is_well = not fit.is_retimed and (rate is None or rate <= fps * (1 + RETIMED))
            spans = [] if fit.reason else [*_merged(fit.reading)]
            count = max((each.count for each in fit.reading.samples), default=0)
            form = self._forms[key] = _Form(
                [(begin / n_frames, end / n_frames) for begin, end in spans],
                is_well,
                is_well and count >= self._longest,
            )
        return form

    def kinds(self, kinds: Ints) -> list[tuple[int, int, int]]:
        """Returns the kinds of clips, equal where the trainer does not tell them apart.

        No trainer drops a clip for its sound.
        """
        return [
            (width if self._by_size else 1024, height if self._by_size else 576, 1)
            for width, height, _sound in kinds.tolist()
        ]


def sample_lengths(trainer: Trainer) -> list[int]:
    """Returns the numbers of frames that the settings of a trainer name."""
    rules = trainer.rules
    lengths = [*(rules.frames.lengths or ()), *(bucket.frames for bucket in rules.size.buckets)]
    return [frames for frames in lengths if frames > 1]


def seen(watcher: Watcher, clips: Clips, weight: Floats) -> Seen:
    """Returns what a trainer sees of clips.

    A trainer reads clips of all windows except those of which it sees less than half well, if it
    sees more of others.

    Args:
        watcher: The trainer.
        clips: Clips of takes or of sources.
        weight: Number of takes that each place stands for, float64 [N].
    """
    clip, begin, end, is_well, is_full = seen_spans(watcher, clips)
    window = clips.window[clip]
    place = clips.place[clip]
    windows = np.unique(clips.window)
    clip_s = (clips.end_s - clips.start_s) * weight[clips.place]
    if len(windows) > 1:
        span_s = (end - begin) * is_well * weight[place]
        of = {int(w): span_s[window == w].sum() / clip_s[clips.window == w].sum() for w in windows}
        used = [w for w, share in of.items() if share >= _USED_SHARE] or [
            max(of, key=lambda w: of[w])
        ]
        rows = np.isin(window, used)
        begin, end, place = begin[rows], end[rows], place[rows]
        is_well, is_full = is_well[rows], is_full[rows]
        windows = np.array(used)
    order = np.lexsort((begin, place))
    seen_s, well_s, full_s = (
        _union_s(place[rows], begin[rows], end[rows], weight)
        for rows in (order, order[is_well[order]], order[is_full[order]])
    )
    return Seen(
        seen_s=seen_s,
        well_s=well_s,
        full_s=full_s,
        clip_s=float(clip_s[np.isin(clips.window, windows)].sum()),
        windows=tuple(int(w) for w in windows),
    )


def _union_s(place: Ints, begin: Floats, end: Floats, weight: Floats) -> float:
    """Returns the weighted seconds of the union of spans within each place, in order of both."""
    if not len(place):
        return 0.0
    step = float(end.max() + 1)
    begin, end = begin + place * step, end + place * step
    reached = np.r_[-np.inf, np.maximum.accumulate(end)[:-1]]
    new = np.maximum(0.0, end - np.maximum(begin, reached))
    return float(np.dot(new, weight[place]))


def seen_spans(watcher: Watcher, clips: Clips) -> tuple[Ints, Floats, Floats, Mask, Mask]:
    """Returns the spans seen: clip, begin and end in seconds, whether well, whether full, [S]."""
    rates, rate = np.unique(clips.fps, return_inverse=True)
    names = watcher.kinds(clips.kinds)
    distinct = list(dict.fromkeys(names))
    of_kind = np.array([distinct.index(name) for name in names], np.int64)[clips.kind]
    most = int(clips.n_frames.max(initial=1)) + 1
    key = (rate.reshape(-1) * len(distinct) + of_kind) * most + clips.n_frames
    keys, form = np.unique(key, return_inverse=True)
    forms = [
        watcher.form(int(k % most), float(rates[k // most // len(distinct)]),
                     distinct[k // most % len(distinct)])
        for k in keys.tolist()
    ]  # fmt: skip
    form = form.reshape(-1)
    count = np.array([len(one.spans) for one in forms], np.int64)
    offset = np.cumsum(count) - count
    flat = np.array([span for one in forms for span in one.spans], np.float64).reshape(-1, 2)
    flags = np.array([(one.is_well, one.is_full) for one in forms], np.bool_).reshape(-1, 2)
    clip = np.repeat(np.arange(len(form)), count[form])
    first = np.repeat(np.cumsum(count[form]) - count[form], count[form])
    at = np.repeat(offset[form], count[form]) + np.arange(len(clip)) - first
    begin_s, length_s = clips.start_s[clip], (clips.end_s - clips.start_s)[clip]
    well, full = flags[form[clip]].T
    return clip, begin_s + flat[at, 0] * length_s, begin_s + flat[at, 1] * length_s, well, full


def _merged(reading: Reading) -> Sequence[tuple[float, float]]:
    """Returns the frames that an epoch covers; of a sample that is drawn, its middle place."""
    drawn = next((each for each in reading.samples if each.is_drawn), None)
    if drawn is not None:
        return [reading.span(drawn, drawn.starts[len(drawn.starts) // 2])]
    spans: list[tuple[float, float]] = []
    every = (reading.span(each, start) for each in reading.samples for start in each.starts)
    for begin, end in sorted(every):
        if spans and begin <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], end)
        else:
            spans.append((begin, end))
    return spans
