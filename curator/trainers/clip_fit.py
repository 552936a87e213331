"""What a trainer does with clips, each and in sum."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import pyarrow as pa

from curator.errors import RecipeError
from curator.records.clips import SIZED, WINDOWED, WITH_SOUND
from curator.trainers.caption_rules import CaptionFit, fit_caption
from curator.trainers.frame_rules import Drop, Reading
from curator.trainers.size_rules import PictureFit
from curator.trainers.trainer_files import Trainer, load_trainer

logger = logging.getLogger(__name__)

RETIMED = 0.05
"""Difference from speed 1 that counts as retimed. 25 frames/s shown at 24, as in cinemas, is 4%."""
COLUMNS = (
    "n_frames", "fps_fraction", "width", "height", "audio", "start_s", "end_s", "caption",
)  # fmt: skip
"""Columns of `clips` that the engine reads."""
Facts = dict[str, Any]
"""What a trainer does with clips in sum: its name, label and parameters, and numbers that add up
over parts of the clips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """The numbers of a written clip that decide what a trainer does with it.

    Its rate is constant: `cut` writes no other clips.
    """

    n_frames: int
    fps: Fraction
    width: int
    height: int
    has_sound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipFit:
    """What a trainer does with a clip.

    Attributes:
        reason: Why the clip is dropped; None if it is read.
        has: What the clip has, in frames or seconds, where `needs` is what the trainer needs.
        reading: The frames that are read.
        picture: Size, scale and crop; None if they are unknown.
        speed: Speed at which the model sees the clip; 1 if the trainer tells it the clip's rate,
            None if the model's rate is unknown or a sample has one frame.
        shown_fps: Frames per second of the clip that a sample has.
        sample_s: Seconds of the longest sample, at that rate.
        sound: Whether sound is used, missing where it is trained, or ignored.
    """

    reason: Drop | None
    has: float | None
    needs: float | None
    reading: Reading
    picture: PictureFit | None
    speed: float | None
    shown_fps: float
    sample_s: float
    sound: Literal["used", "missing", "ignored"]

    @property
    def is_retimed(self) -> bool:
        """Whether the model sees the clip at another speed."""
        return self.speed is not None and abs(self.speed - 1) > RETIMED

    @property
    def seen_share(self) -> float:
        """Share of the clip's time that a visit covers."""
        return 0.0 if self.reason else self.reading.frames_seen[0] / self.reading.n_frames

    @property
    def readable_share(self) -> float:
        """Share of the clip's time that visits can cover."""
        return 0.0 if self.reason else self.reading.frames_seen[1] / self.reading.n_frames

    @property
    def is_cut_at_tail(self) -> bool:
        """Whether the last frame of the clip is never covered."""
        return self.reason is None and self.reading.end < self.reading.n_frames


def fit_form(trainer: Trainer, form: OutputSpec) -> ClipFit:
    """Returns what a trainer does with clips of a form."""
    rules, fps = trainer.rules, float(form.fps)
    reading = trainer.read(form.n_frames, fps, form.width, form.height)
    reason, has, needs = reading.reason, reading.has, reading.needs
    side = min(form.width, form.height)
    if reason is None and side < rules.frames.min_side_px:
        reason, has, needs = Drop.TOO_SMALL, side, rules.frames.min_side_px
    wants_sound = rules.sound.use == "trained"
    rate = reading.source_rate(fps)
    return ClipFit(
        reason=reason,
        has=has,
        needs=needs,
        reading=reading,
        picture=rules.size.fitted(form.n_frames, form.width, form.height),
        speed=speed_of(trainer, reading, fps),
        shown_fps=rate or fps,
        sample_s=max((each.count for each in reading.samples), default=0) / (rate or fps),
        sound="ignored" if rules.sound.use == "ignored" else _sound(wants_sound, form.has_sound),
    )


def speed_of(trainer: Trainer, reading: Reading, fps: float) -> float | None:
    """Returns the speed at which the model sees a clip, as `ClipFit.speed`."""
    rule, rate = trainer.rules.rate, reading.source_rate(fps)
    if rule.conditioned and rule.told_fps is None:
        return 1.0
    model_fps = rule.told_fps or rule.model_fps
    return None if rate is None or model_fps is None else model_fps / rate


def _sound(is_trained: bool, has_sound: bool) -> Literal["used", "missing", "ignored"]:
    if not is_trained:
        return "ignored"
    return "used" if has_sound else "missing"


def caption_of(trainer: Trainer, fit: ClipFit, form: OutputSpec, caption: str | None) -> CaptionFit:
    """Returns a clip's caption as a trainer uses it."""
    shown = form if fit.picture is None else fit.picture
    fps = trainer.rules.rate.told_fps or fit.shown_fps
    longest = max((each.count for each in fit.reading.samples), default=0)
    return fit_caption(
        trainer.rules.caption, caption or "", seconds=longest / fps, fps=fps,
        width=shown.width, height=shown.height,
    )  # fmt: skip


def forms_of(clips: pa.Table) -> Iterable[tuple[OutputSpec, float, str | None]]:
    """Yields the form of each clip of a table, its seconds in the source, and its caption."""
    forms: dict[tuple[Any, ...], OutputSpec] = {}
    for batch in clips.select(list(COLUMNS)).to_batches():
        for row in zip(*(batch[name].to_pylist() for name in COLUMNS), strict=True):
            *key, start_s, end_s, caption = row
            numbers = tuple(key)
            form = forms.get(numbers)
            if form is None:
                n_frames, fps, width, height, audio = numbers
                form = forms[numbers] = OutputSpec(
                    n_frames=n_frames, fps=Fraction(fps), width=width, height=height,
                    has_sound=audio in WITH_SOUND,
                )  # fmt: skip
            yield form, end_s - start_s, caption


def fit_clips(trainer: Trainer, tables: Iterable[pa.Table]) -> Facts:
    """Returns what a trainer does with clips, in tables that have `COLUMNS`."""
    return fit_counted(trainer, ((*clip, 1) for table in tables for clip in forms_of(table)))


def fit_windows(trainer: Trainer, tables: Iterable[pa.Table]) -> Facts:
    """Returns what a trainer does with clips; of windows of several sizes, only with its own.

    Such windows show the same footage, each size for another trainer. A trainer's own are those of
    which it sees at least half, at the right speed. If this is so for none or for all, all count.
    """
    by_size: dict[tuple[Any, ...], Facts] = {}
    for table in tables:
        for size, part in _by_window(table):
            facts = fit_clips(trainer, [part])
            before = by_size.get(size)
            by_size[size] = facts if before is None else added([before], [facts], is_first=False)[0]
    own = {
        size: facts
        for size, facts in by_size.items()
        if 2 * facts["seen_s"] >= facts["footage_s"] and 2 * facts["retimed"] <= facts["read"]
    }
    chosen = list((own or by_size).values()) or [fit_clips(trainer, [])]
    total = chosen[0]
    for facts in chosen[1:]:
        total = added([total], [facts], is_first=False)[0]
    n_clips = sum(facts["clips"] for facts in by_size.values())
    return {**total, "other_windows": n_clips - total["clips"]}


def _by_window(clips: pa.Table) -> Iterable[tuple[tuple[Any, ...], pa.Table]]:
    """Yields the clips of each size of windows, and those that are no windows."""
    if WINDOWED[0] not in clips.column_names:
        yield (None, None), clips
        return
    names = [name for name in (*WINDOWED, *SIZED) if name in clips.column_names]
    sizes = list(zip(*(clips[name].to_pylist() for name in names), strict=True))
    for size in dict.fromkeys(sizes):
        yield size, clips.filter(pa.array([one == size for one in sizes]))


def fit_counted(
    trainer: Trainer, clips: Iterable[tuple[OutputSpec, float, str | None, int]]
) -> Facts:
    """Returns what a trainer does with clips: form, seconds together, caption, and their number."""
    fits: dict[OutputSpec, ClipFit] = {}
    dropped: Counter[str] = Counter()
    sums = dict.fromkeys(_COUNTS, 0) | dict.fromkeys(_SECONDS, 0.0)
    for form, clip_s, caption, n in clips:
        fit = fits.get(form)
        if fit is None:
            fit = fits[form] = fit_form(trainer, form)
        sums["clips"] += n
        sums["footage_s"] += clip_s
        used = caption_of(trainer, fit, form, caption)
        reason = fit.reason or (Drop.NO_CAPTION if used.text is None else None)
        if reason is not None:
            dropped[reason.value] += n
            continue
        sums["read"] += n
        sums["read_s"] += clip_s
        sums["seen_s"] += clip_s * fit.seen_share
        sums["readable_s"] += clip_s * fit.readable_share
        if fit.is_cut_at_tail:
            sums["cut_at_tail"] += n
            sums["tail_s"] += clip_s * (1 - fit.reading.end / form.n_frames)
        if fit.picture is not None:
            sums["enlarged"] += n * fit.picture.is_enlarged
            sums["cropped_s"] += clip_s * fit.picture.cropped_share
        sums["drawn"] += n * fit.reading.is_drawn
        sums["retimed"] += n * fit.is_retimed
        sums["without_sound"] += n * (fit.sound == "missing")
        sums["without_caption"] += n * (not (caption or "").strip())
        sums["captions_cut"] += n * (used.cut == "yes")
        sums["captions_likely_cut"] += n * (used.cut == "likely")
    return {
        "trainer": trainer.name,
        "label": trainer.label,
        "settings": trainer.settings,
        "parameters": trainer.values,
        **{name: round(number, 3) for name, number in sums.items()},
        "dropped": dict(dropped.most_common()),
    }


def fit_of_each(
    named: Iterable[Mapping[str, Any]], tables: Callable[[], Iterable[pa.Table]]
) -> list[Facts]:
    """Returns what each trainer of `train_for`, in the form of the recipe, does with clips."""
    fits = []
    for entry in named:
        values = {name: value for name, value in entry.items() if name != "trainer"}
        try:
            trainer = load_trainer(entry["trainer"], values)
        except RecipeError as error:
            # A file of the user's own may be gone when an output is rewritten.
            logger.warning("train_for: %s; the summary omits this trainer", error)
            continue
        fits.append(fit_windows(trainer, tables()))
    return fits


_COUNTS = (
    "clips", "read", "drawn", "cut_at_tail", "retimed", "enlarged", "captions_cut",
    "captions_likely_cut", "without_caption", "without_sound", "other_windows",
)  # fmt: skip
_SECONDS = ("footage_s", "read_s", "seen_s", "readable_s", "tail_s", "cropped_s")


def added(before: Iterable[Facts], fits: Iterable[Facts], *, is_first: bool) -> list[Facts]:
    """Adds facts of further clips to those of earlier ones, trainer by trainer.

    A trainer without facts of the earlier clips is left out, unless there were none (`is_first`).
    """
    earlier = {facts["label"]: facts for facts in before}
    sums = []
    for facts in fits:
        old = earlier.get(facts["label"])
        if old is None:
            sums += [facts] if is_first else []
            continue
        dropped = Counter[str](old["dropped"]) + Counter[str](facts["dropped"])
        total = {name: round(old[name] + facts[name], 3) for name in (*_COUNTS, *_SECONDS)}
        sums.append({**facts, **total, "dropped": dict(dropped.most_common())})
    return sums
