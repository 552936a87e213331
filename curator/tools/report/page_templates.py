"""The templates of the pages, and the texts and numbers on the card of a clip.

All values are escaped; HTML comes from templates alone.
"""

import re
from base64 import b64encode
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Any

from curator import number_text
from curator.measures.score_list import Measures
from curator.number_text import compared
from curator.records.clips import CLAIMS_COLUMN, OF_FORM, Reason
from curator.storage.metadata_columns import PREFIX
from curator.tables.clip_rows import ClipRow

if TYPE_CHECKING:
    from jinja2 import Environment

CARD_PX = 160
"""Longer side of a picture on a page."""
_CARD_QUALITY = 70
PLAY_SCRIPT = """
const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
for (const video of isStill ? [] : document.querySelectorAll("video")) {
  video.onpointerenter = video.onfocus = () => video.play().catch(() => {});
  video.onpointerleave = video.onblur = () => video.pause();
}
"""
"""Plays previews. The page's policy has the script's hash, and allows no other script."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def render(template: str, /, **values: Any) -> str:  # noqa: ANN401
    """Renders a page; raises an error if the template uses a missing value."""
    return _environment().get_template(template).render(values)


def clean(value: object) -> object:
    """Cleans text for a page; leaves HTML, and values other than text, unchanged.

    Names are untrusted. Characters that UTF-8 cannot encode, control characters, and characters
    that change the text direction are replaced.
    """
    if type(value) is not str or value.isprintable():
        return value
    text = value.encode("utf-8", "replace").decode("utf-8")
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def anchor(reason: str) -> str:
    """Returns the anchor of a reason's sheet within the page."""
    return "rejected-" + "".join(c if c.isalnum() else "-" for c in reason)


def embedded(jpeg: bytes) -> str:
    """Returns the thumbnail of `card_picture` in base64."""
    return b64encode(card_picture(jpeg)).decode()


def card_picture(jpeg: bytes) -> bytes:
    """Shrinks a thumbnail to `CARD_PX`, because a page has hundreds of thumbnails."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(BytesIO(jpeg), formats=["JPEG"])
        if max(image.size) > CARD_PX:
            image.thumbnail((CARD_PX, CARD_PX))
            shrunk = BytesIO()
            image.save(shrunk, "JPEG", quality=_CARD_QUALITY)
            jpeg = shrunk.getvalue()
    except (UnidentifiedImageError, OSError):
        # A page with a broken picture is better than no page.
        pass
    return jpeg


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("curator.tools.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=clean,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "anchor": anchor,
        "clip_s": clip_s,
        "clock": number_text.clock,
        "digits": "{:.2f}".format,
        "duration": number_text.length,
        "embedded": embedded,
        "format_words": format_words,
        "number": number_text.count,
        "score": number_text.score,
        "short": short,
        "size": number_text.size,
    }
    environment.globals |= {
        "amount": number_text.amount,
        "play_script": Markup(PLAY_SCRIPT),
        "play_script_hash": b64encode(sha256(PLAY_SCRIPT.encode()).digest()).decode(),
        "declared_values": declared_values,
        "measured_scores": measured_scores,
        "reason_words_of": reason_words_of,
        "share": number_text.share,
    }
    return environment


MAX_TEXT = 1200
"""Most characters of a caption or detail on a page; the table has the full text."""

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
    """Formats picture size and frame rate of the MP4."""
    width, height, fps = clip.width, clip.height, clip.written_fps
    size = f"{width}\N{MULTIPLICATION SIGN}{height}" if width and height else "size unknown"
    rate = f"{fps:.4g} frames/s" if fps is not None else "rate unknown"
    return f"{size} \N{MIDDLE DOT} {rate}"


def measured_scores(
    clip: ClipRow, measures: Measures
) -> tuple[int, list[tuple[str, Scores]], list[str]]:
    """Returns the number of a clip's scores, the scores by family, and names of missing scores."""
    values = {name: value for name in measures.specs if (value := clip.value(name)) is not None}
    families = [
        (title, [(name, values[name]) for name in names if name in values])
        for title, names in measures.headings.items()
    ]
    missing = [name for name in measures.specs if name not in values]
    return len(values), [family for family in families if family[1]], missing


def declared_values(clip: ClipRow) -> list[tuple[str, str]]:
    """Returns the annotators' values of a clip, as texts, without the list of claims."""
    return [
        (name, f"{value:.4g}" if isinstance(value, float) else short(value))
        for name, value in clip.declared().items()
        if value is not None and name != CLAIMS_COLUMN
    ]


def reason_words_of(clip: ClipRow, required: Iterable[str], measures: Measures) -> str:
    """Describes a clip's first reason: the score and the bound that the score misses.

    For `NOT_MEASURED`, names the `required` scores that the clip lacks. Empty for a reason without
    a score and a bound.
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
    if reason == Reason.CONTENT_TYPE_UNWANTED:
        return "content_probability"
    if reason == Reason.NO_ASPECT_CLASS:
        return "share of the picture"
    if reason in OF_FORM:
        return OF_FORM[Reason(reason)][1]
    if reason.startswith(PREFIX):
        return reason.rpartition("_too_")[0]
    names = (name for name, spec in measures.specs.items() if reason in (spec.low, spec.high))
    return next(names, "size or frames" if reason == Reason.NO_BUCKET else "score")
