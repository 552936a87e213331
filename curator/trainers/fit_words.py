"""Words about what trainers do with clips, for people who train."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import floor
from typing import Any

from curator.number_text import amount, count, length, share
from curator.trainers.caption_rules import CaptionFit
from curator.trainers.clip_fit import ClipFit, Facts, OutputSpec
from curator.trainers.frame_rules import Drop, Reading, Samples
from curator.trainers.trainer_files import Trainer

LEAST_SEEN = 0.5
"""Share of the footage below which a run warns."""
REASONS: Mapping[Drop, str] = {
    Drop.TOO_SHORT: "too few frames",
    Drop.TOO_LONG: "too long",
    Drop.OFF_GRID: "frames off the grid",
    Drop.NO_FRAME_TO_SPARE: "no spare frame",
    Drop.NO_CAPTION: "no caption",
    Drop.TOO_SMALL: "too small",
}
_ROWS = (
    ("clips read", "read"),
    ("cut at the tail", "cut_at_tail"),
    ("at another speed", "retimed"),
    ("enlarged", "enlarged"),
    ("captions cut", "captions_cut"),
    ("probably cut", "captions_likely_cut"),
    ("without a caption", "without_caption"),
    ("without sound", "without_sound"),
    ("windows of other sizes", "other_windows"),
)


def table_lines(fits: Sequence[Facts]) -> Iterator[str]:
    """Yields the lines of a table with a column per trainer."""
    widths = [max(len(facts["label"]), 12) for facts in fits]

    def row(title: str, of: Callable[[Facts], str]) -> str:
        cells = (f"{of(facts):>{width}}" for facts, width in zip(fits, widths, strict=True))
        return f"{title:<24}{'  '.join(cells)}".rstrip()

    yield row("", lambda facts: facts["label"])
    yield row("footage seen", lambda facts: share(facts["seen_s"], facts["footage_s"]))
    if any(facts["drawn"] for facts in fits):
        yield row("  that can be drawn", lambda f: share(f["readable_s"], f["footage_s"]))
    yield row("clips seen", lambda facts: share(facts["read"], facts["clips"]))
    for title, name in _ROWS:
        if name == "read" or any(facts[name] for facts in fits):
            yield row(title, partial(_count_of, name))
    yield row("picture cropped", lambda facts: share(facts["cropped_s"], facts["read_s"]))
    for reason, words in REASONS.items():
        if any(reason in facts["dropped"] for facts in fits):
            yield row(f"dropped, {words}", partial(_dropped_count, reason))


def _count_of(name: str, facts: Facts) -> str:
    return count(facts[name] or None)


def _dropped_count(reason: Drop, facts: Facts) -> str:
    return count(facts["dropped"].get(reason) or None)


def fit_lines(summary: Mapping[str, Any], out: str) -> list[str]:
    """Returns a line per trainer of the recipe, and warnings; empty without `train_for`."""
    fits: Sequence[Facts] = summary.get("fit") or ()
    lines = [seen_line(facts) for facts in fits if facts["clips"]]
    return lines + [line for facts in fits for line in warning_lines(facts, out)]


def seen_line(facts: Facts) -> str:
    """Returns one line on what a trainer sees."""
    drawn = ""
    if facts["drawn"]:
        drawn = f" per epoch ({share(facts['readable_s'], facts['footage_s'])} can be drawn)"
    return (
        f"{facts['label']} sees {share(facts['seen_s'], facts['footage_s'])} of the footage{drawn} "
        f"and {share(facts['read'], facts['clips'])} of the clips{_others(facts)}"
    )


def _others(facts: Facts) -> str:
    """Returns words about windows of other sizes, which show the same footage."""
    n = facts["other_windows"]
    return f", without {amount(n, 'window')} of other sizes" if n else ""


def warning_lines(facts: Facts, out: str | None) -> Iterator[str]:
    """Yields what a person should know before training.

    `out` is the output's name in commands; None below the table of `curate fit`.
    """
    if not facts["clips"]:
        return
    label, settings = facts["label"], "".join(f" --set {shlex.quote(s)}" for s in facts["settings"])
    fit = f"`curate fit {out} --for {facts['trainer']}{settings}` "
    says_why, counts = f"{fit}says why", f"{fit}counts"
    if out is None:
        says_why = counts = "--explain CLIP says what would change it"
    if facts["readable_s"] < LEAST_SEEN * facts["footage_s"]:
        yield f"warning: {label} never sees more than half of the footage; {says_why}"
    if facts["without_sound"] and facts["without_sound"] == facts["read"]:
        yield f"warning: {label} trains on sound, and no clip has sound; --audio keep writes it"
    if facts["retimed"]:
        clips = amount(facts["retimed"], "clip")
        yield f"warning: {label} shows {clips} at another speed; {counts}"
    if facts["enlarged"]:
        yield f"warning: {label} enlarges {amount(facts['enlarged'], 'clip')}; {counts}"


def clip_lines(
    trainer: Trainer, form: OutputSpec, fit: ClipFit, caption: CaptionFit
) -> Iterator[str]:
    """Yields all that a trainer does with one clip, with remedies."""
    rules, reading = trainer.rules, fit.reading
    yield f"{trainer.label}: {rules.about} ({rules.project} {rules.version})"
    reason = fit.reason or (Drop.NO_CAPTION if caption.text is None else None)
    if reason is not None:
        yield f"  dropped: {_dropped_words(reason, fit)}; {rules.frames.dropped}"
        yield from (f"    {remedy}" for remedy in _remedies(trainer, reason, form, fit))
        return
    seconds = form.n_frames / float(form.fps)
    yield "  kept"
    for samples in reading.samples:
        yield f"  frames: {_samples_words(reading, samples, form)}"
    seen_s, readable_s = fit.seen_share * seconds, fit.readable_share * seconds
    more = f" per epoch, of {length(readable_s)} that can be drawn," if reading.is_drawn else ""
    yield f"  seen: {length(seen_s)}{more} of {length(seconds)}"
    if fit.is_cut_at_tail:
        lost_s = seconds * (1 - reading.end / form.n_frames)
        yield f"    the last {length(lost_s)} is never read: {_tail_remedy(trainer, form)}"
    yield from _speed_lines(trainer, form, fit)
    yield from _picture_lines(trainer, form, fit)
    yield from _caption_lines(trainer, caption)
    if rules.sound.use != "ignored":
        yield f"  sound: {_sound_words(trainer, form)}"


def _dropped_words(reason: Drop, fit: ClipFit) -> str:
    if fit.has is None or fit.needs is None:
        return REASONS[reason]
    has, needs = f"{fit.has:.6g}", f"{fit.needs:.6g}"
    if reason is Drop.TOO_SHORT:
        return f"{has} frames as the trainer counts them; it needs {needs}"
    if reason is Drop.NO_FRAME_TO_SPARE:
        return f"{has} frames; it needs {needs}, one more than a sample"
    if reason is Drop.OFF_GRID:
        return f"{has} frames; the nearest number that the model takes is {needs}"
    if reason is Drop.TOO_SMALL:
        return f"the shorter side has {has} px; it needs {needs}"
    unit = "s" if isinstance(fit.has, float) else "frames"
    return f"{has} {unit}; the most is {needs}"


def _remedies(trainer: Trainer, reason: Drop, form: OutputSpec, fit: ClipFit) -> Iterator[str]:
    options = {name: one.option for name, one in trainer.rules.parameters.items()}
    lengths = next((n for n in ("buckets", "frames") if trainer.values.get(n) is not None), None)
    if reason in (Drop.TOO_SHORT, Drop.NO_FRAME_TO_SPARE):
        if lengths is not None:
            yield f"in the trainer: lower {options[lengths]}; try it with --set {lengths}=..."
        yield (
            f"in the recipe: {_window(trainer)}; without windows, a higher propose.min_s leaves "
            "such clips out"
        )
    elif reason is Drop.TOO_LONG:
        if fit.has and fit.needs:
            # Both are frames as the trainer counts them, or seconds.
            most_s = floor(1000 * form.n_frames / float(form.fps) * fit.needs / fit.has) / 1000
            yield f"in the recipe: propose.max_s of at most {most_s:g}, or windows of at most that"
    elif reason is Drop.OFF_GRID:
        yield f"in the recipe: {_window(trainer)}; or truncate clips in your dataset"
    elif reason is Drop.NO_CAPTION:
        yield "`curate recaption OUT` has a model write captions"
    elif reason is Drop.TOO_SMALL:
        yield "in the recipe: a rule that keeps larger clips only, or cut.size"


def _window(trainer: Trainer) -> str:
    """Returns the window of a recipe whose clips the trainer reads whole."""
    rule, fps = trainer.rules.frames, trainer.rules.rate.model_fps
    lengths = tuple(b.frames for b in trainer.rules.size.buckets) or rule.lengths
    stride = rule.stride if isinstance(rule.stride, int) else 1
    spare = rule.random_starts == "all_but_last" and rule.place == "random"
    frames = rule.on_grid(max(lengths)) * stride + spare if lengths else "N"
    rate = f", fps: {fps * stride:g}" if fps is not None else ""
    return f"propose.windows with {{frames: {frames}{rate}}}"


def _tail_remedy(trainer: Trainer, form: OutputSpec) -> str:
    name = next((n for n in ("buckets", "frames") if trainer.values.get(n) is not None), None)
    if name is None:
        frames = trainer.rules.frames.on_grid(form.n_frames)
        return f"the model takes {frames} frames, not {form.n_frames}"
    return f"raise {trainer.rules.parameters[name].option}, or {_window(trainer)} in the recipe"


def _samples_words(reading: Reading, samples: Samples, form: OutputSpec) -> str:
    starts, fps = samples.starts, float(form.fps)
    first, end = reading.span(samples, starts[0])
    where = f"{amount(samples.count, 'frame')} of {form.n_frames}"
    if samples.is_drawn and len(starts) > 1:
        last = reading.at(starts[-1])
        seconds = (end - first) / fps
        return f"{where} from a random frame, {int(first)} to {last}, over {length(seconds)}"
    shown = reading.sample(samples, starts[0]).tolist()
    words = ", ".join(map(str, shown if len(shown) <= 6 else shown[:4]))
    if len(shown) > 6:
        words += f", ... {shown[-1]}"
    many = f", and {len(starts) - 1} more such samples" if len(starts) > 1 else ""
    return f"{where} ({words}), {first / fps:.2f} s to {end / fps:.2f} s{many}"


def _speed_lines(trainer: Trainer, form: OutputSpec, fit: ClipFit) -> Iterator[str]:
    if fit.speed is None:
        return
    rate, model = fit.reading.source_rate(float(form.fps)), trainer.rules.rate.model_fps
    if trainer.rules.rate.conditioned:
        yield f"  speed: 1; the trainer tells the model {rate or float(form.fps):.5g} frames/s"
        return
    yield f"  speed: {fit.speed:.2f}; {rate:.5g} frames/s are read as {model:.5g}"
    if fit.is_retimed:
        yield f"    the model learns a wrong speed: {_speed_remedy(trainer, form, fit.speed)}"


def _speed_remedy(trainer: Trainer, form: OutputSpec, speed: float) -> str:
    if trainer.rules.rate.policy == "spread":
        return f"{_window(trainer)} in the recipe, because the trainer reads the whole clip"
    fps = float(form.fps)
    words = f"cut.fps={fps * speed:.6g} in the recipe (with windows, their fps instead)"
    source = trainer.rules.parameters.get("source_fps")
    if source is None:
        return words
    return f"{words}, or {source.option} in the trainer (--set source_fps={fps:.6g})"


def _picture_lines(trainer: Trainer, form: OutputSpec, fit: ClipFit) -> Iterator[str]:
    picture = fit.picture
    if picture is None:
        yield "  size: not described in the trainer's file"
        return
    words = f"{form.width}x{form.height} becomes {picture.width}x{picture.height}"
    if abs(picture.stretch - 1) > 0.01:
        words += f", stretched by {picture.stretch:.3f}"
    elif picture.cropped_share > 0.0005:
        words += f", {share(picture.cropped_share, 1)} of the picture is cropped"
    yield f"  size: {words}; scale {picture.scale:.3f}"
    if picture.is_enlarged:
        names = ("width", "height", "side", "max_pixels", "resolution", "resolutions", "buckets")
        known = [n for n in names if n in trainer.rules.parameters]
        yield (
            "    enlarged: lower "
            + " and ".join(trainer.rules.parameters[n].option for n in known[:2])
            + " in the trainer, or keep only larger clips"
        )


def _caption_lines(trainer: Trainer, caption: CaptionFit) -> Iterator[str]:
    text = caption.text or ""
    shown = text if len(text) <= 160 else f"{text[:157]}..."
    yield f"  caption: {shown!r}"
    bounds = (
        f"about {amount(caption.tokens, 'token')} (between {caption.at_least} and "
        f"{caption.at_most}; counted without the tokenizer)"
    )
    if caption.limit is None:
        yield f"    {bounds}; no known limit"
        return
    words = {
        "no": "not cut",
        "unlikely": "probably not cut",
        "likely": "probably cut",
        "yes": "cut",
    }
    yield f"    {bounds}; the limit is {caption.limit}: {words[caption.cut]}"
    if caption.cut in ("likely", "yes"):
        yield "    in the recipe: a shorter caption.text, such as short or medium"


def _sound_words(trainer: Trainer, form: OutputSpec) -> str:
    sound = trainer.rules.sound
    if form.has_sound:
        return "used" if sound.use == "trained" else "there, if the trainer is told to use it"
    remedy = (
        "; cut.audio=copy in the recipe (--audio keep) keeps sound"
        if sound.use == "trained"
        else ""
    )
    return f"none: {sound.missing}{remedy}"
