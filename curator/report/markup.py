"""HTML out of untrusted text: what is not marked as HTML is escaped."""

import html
import re
from collections.abc import Iterable, Sequence

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Markup(str):
    """A string that is HTML already."""

    __slots__ = ()


def esc(text: object) -> Markup:
    """Escapes for element content and quoted attributes; `Markup` passes as it is.

    Names come from anywhere: characters that a file name can hold and UTF-8 cannot, control
    characters, and those that turn the direction of what follows are replaced.
    """
    if isinstance(text, Markup):
        return text
    clean = str(text).encode("utf-8", "replace").decode("utf-8")
    return Markup(html.escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", clean), quote=True))


def joined(parts: Iterable[object], between: str = "") -> Markup:
    """Escapes and joins; `between` is HTML."""
    return Markup(between.join(esc(part) for part in parts))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, kind: str = "") -> Markup:
    """A table that scrolls sideways where the page is narrow.

    Args:
        headings: One per column; one that begins with `#` heads numbers, set to the right.
        rows: Cells.
        kind: CSS class.
    """
    classes = ["n" if heading.startswith("#") else "" for heading in headings]
    head = joined(
        Markup(f'<th class="{css}">{esc(heading.removeprefix("#"))}</th>')
        for css, heading in zip(classes, headings, strict=True)
    )
    body = joined(_row(classes, cells) for cells in rows)
    return Markup(
        f'<div class="scroll"><table class="{esc(kind)}"><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}</tbody></table></div>"
    )


def _row(classes: Sequence[str], cells: Sequence[object]) -> Markup:
    tds = joined(
        Markup(f'<td class="{css}">{esc(cell)}</td>')
        for css, cell in zip(classes, cells, strict=True)
    )
    return Markup(f"<tr>{tds}</tr>\n")


def bar(*parts: tuple[str, float]) -> Markup:
    """A bar of parts: a CSS class and a share of the full width, 0 to 1, for each."""
    spans = joined(
        Markup(f'<i class="{esc(css)}" style="width:{100 * min(1.0, max(0.0, part)):.2f}%"></i>')
        for css, part in parts
        if part > 0
    )
    return Markup(f'<span class="bar">{spans}</span>')
