"""The card of one clip, in words and numbers; `card.html.j2` draws it."""

from collections.abc import Iterable

from curator.measures.score_list import Measures
from curator.number_text import compared
from curator.records.clips import Reason
from curator.storage.metadata_columns import PREFIX
from curator.tables.clip_rows import ClipRow

MAX_TEXT = 1200
"""Most letters of a caption or a detail; the rest is in the table."""

Scores = list[tuple[str, float]]


def clip_s(clip: ClipRow) -> float | None:
    """Returns the length of a clip in seconds."""
    start_s, end_s = clip.start_s, clip.end_s
    return end_s - start_s if start_s is not None and end_s is not None else None


def short(text: object) -> str:
    """Shortens a text to `MAX_TEXT` characters."""
    shown = str(text)
    return shown if len(shown) <= MAX_TEXT else f"{shown[: MAX_TEXT - 1]}…"


def format_words(clip: ClipRow) -> str:
    """Picture size and frame rate."""
    width, height, fps = clip.width, clip.height, clip.fps
    size = f"{width}\N{MULTIPLICATION SIGN}{height}" if width and height else "size unknown"
    rate = f"{fps:.4g} fps" if fps is not None else "rate unknown"
    return f"{size} \N{MIDDLE DOT} {rate}"


def measured_scores(
    clip: ClipRow, measures: Measures
) -> tuple[int, list[tuple[str, Scores]], list[str]]:
    """Returns the number of a clip's scores, those by family, and the names of the others."""
    values = {name: value for name in measures.specs if (value := clip.value(name)) is not None}
    families = [
        (title, [(name, values[name]) for name in names if name in values])
        for title, names in measures.headings.items()
    ]
    missing = [name for name in measures.specs if name not in values]
    return len(values), [family for family in families if family[1]], missing


def declared_values(clip: ClipRow) -> list[tuple[str, str]]:
    """Returns what annotators wrote into columns of a clip, as texts."""
    return [
        (name, f"{value:.4g}" if isinstance(value, float) else short(value))
        for name, value in clip.declared().items()
        if value is not None
    ]


def reason_words_of(clip: ClipRow, required: Iterable[str], measures: Measures) -> str:
    """Returns the first reason against a clip: its score and the bound it misses.

    A clip is rejected without the scores `required`.
    """
    reason, value = str(clip.reason), clip.reason_score
    bound = clip.reason_threshold
    if reason == Reason.NOT_MEASURED:
        return ", ".join(name for name in required if clip.value(name) is None)
    if value is None or bound is None or reason == Reason.NOT_SELECTED:
        return ""
    return f"{_score_of(reason, measures)} {compared(value, bound)}"


def _score_of(reason: str, measures: Measures) -> str:
    """Returns the name of the score behind a reason."""
    if reason == Reason.TOO_SHORT:
        return "seconds"
    if reason == Reason.CONTENT_TYPE_UNWANTED:
        return "content_probability"
    if reason == Reason.NO_ASPECT_CLASS:
        return "share of the picture"
    if reason.startswith(PREFIX):
        return reason.rpartition("_too_")[0]
    names = (name for name, spec in measures.specs.items() if reason in (spec.low, spec.high))
    return next(names, "size or frames" if reason == Reason.NO_BUCKET else "score")
