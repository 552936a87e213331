"""Captions without a vision-language model: from measurements, or from a column of metadata."""

import math

from curator.errors import UsageError, unknown_key
from curator.records.clips import MEASURED_MODEL, Clip
from curator.records.sources import Medium
from curator.stages.caption.caption_records import Unanswered
from curator.stages.caption.config import CaptionConfig
from curator.tables.clip_rows import ClipRows
from curator.tables.schemas import metadata_fields


def measured_captions(clips: ClipRows, config: CaptionConfig) -> int:
    """Writes captions into kept clips, if `caption.captioner` is measured or column.

    Returns the number of kept clips whose column has no text.

    Raises:
        UsageError: The clips lack the column.
    """
    if not config.enabled or config.annotates:
        return 0
    column = config.column
    names = [field.name for field in metadata_fields(clips.schema)]
    if column is not None and column not in names:
        raise UsageError(
            f"caption.column is {column}, which the clips lack; "
            f"{unknown_key(column, names or ['none'], 'column of metadata')}"
        )
    n_empty = 0
    for clip in clips.kept():
        text = measured_caption(clip) if column is None else _text(clip.value(column))
        clip.caption, clip.caption_model = text or None, column or MEASURED_MODEL
        clip.caption_failure = None if text else Unanswered.EMPTY
        n_empty += not text
    return n_empty


def _text(value: object) -> str:
    if isinstance(value, list):
        return " ".join(filter(None, map(_text, value)))
    is_missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if is_missing else str(value).strip()


def measured_caption(clip: Clip) -> str:
    """Describes a clip by its measurements, in one or two English sentences."""
    scores, width, height = clip.scores, clip.width, clip.height
    shape = "portrait" if height > width else "landscape" if width > height else "square"
    tones = [
        _word(scores["luma"], ((0.2, "dark"), (0.4, "dim"), (0.65, "evenly lit"), (9, "bright"))),
        _word(scores["contrast"], ((0.1, "low in contrast"), (0.22, ""), (9, "high in contrast"))),
        _word(scores["sharpness"], ((0.3, "soft"), (0.6, ""), (9, "sharp in detail"))),
    ]
    motion = _word(
        scores["motion"],
        (
            (0.02, "almost nothing moves"),
            (0.1, "the picture moves slowly"),
            (0.5, "the picture moves steadily"),
            (99, "the picture moves fast"),
        ),
    )
    look = ", ".join(tone for tone in tones if tone)
    seconds = clip.end_s - clip.start_s
    rate = f"{clip.written_fps:.4g} frames/s"
    first = f"A {shape} shot of {seconds:.1f} seconds, {width}x{height} at {rate}"
    if clip.medium == Medium.IMAGE:
        first = f"A {shape} picture of {width}x{height} pixels"
    sentences = [first, f"The picture is {look}" if look else "", motion.capitalize()]
    return "".join(f"{sentence}. " for sentence in sentences if sentence).strip()


def _word(score: float | None, steps: tuple[tuple[float, str], ...]) -> str:
    if score is None:
        return ""
    return next((word for limit, word in steps if score < limit), steps[-1][1])
