"""The templates of the pages. All values are escaped; HTML comes from templates alone."""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Any

from curator import number_text
from curator.report.clip_cards import (
    clip_s,
    declared_values,
    format_words,
    measured_scores,
    reason_words_of,
    short,
)

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
"""Plays previews; the page's policy names its hash, and no other script runs."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def render(template: str, /, **values: Any) -> str:  # noqa: ANN401
    """Renders a page; fails where a template names a missing value."""
    return _environment().get_template(template).render(values)


def clean(value: object) -> object:
    """Cleans text for a page; passes HTML and values that are no text.

    Names are untrusted: characters that a file name can hold and UTF-8 cannot, control characters,
    and those that change the text direction are replaced.
    """
    if type(value) is not str or value.isprintable():
        return value
    text = value.encode("utf-8", "replace").decode("utf-8")
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def anchor(reason: str) -> str:
    """Returns the anchor of a reason's sheet within the page."""
    return "rejected-" + "".join(c if c.isalnum() else "-" for c in reason)


def embedded(jpeg: bytes) -> str:
    """Returns a thumbnail in base64, as `card_picture` makes it."""
    return b64encode(card_picture(jpeg)).decode()


def card_picture(jpeg: bytes) -> bytes:
    """Returns a thumbnail shrunk to `CARD_PX`: a page holds hundreds of them."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(BytesIO(jpeg), formats=["JPEG"])
        if max(image.size) > CARD_PX:
            image.thumbnail((CARD_PX, CARD_PX))
            shrunk = BytesIO()
            image.save(shrunk, "JPEG", quality=_CARD_QUALITY)
            jpeg = shrunk.getvalue()
    except (UnidentifiedImageError, OSError):
        # A page with a picture that cannot be shown is better than none.
        pass
    return jpeg


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("curator.report"),
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
