"""The page of `curate tune`: what other bounds would keep and drop, with clips on either side."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.measures.scores import SCORES
from curator.report.clip_cards import card
from curator.report.histogram import figure
from curator.report.markup import Markup, esc, joined, table
from curator.report.number_text import beside, count, score, share
from curator.report.page import document, tiles_row

Clip = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundView:
    """One rule whose bounds change."""

    rule: str
    score: str
    severity: str
    before: Mapping[str, float]
    """Bounds now, by `min` and `max`."""
    after: Mapping[str, float]
    values: NDArray[np.float64]
    """The score of every clip, NaN where it has none."""
    examples: Mapping[str, tuple[Sequence[int], Sequence[int]]]
    """For a changed side, numbers of clips outside the bound and inside, along the score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneView:
    """What the page shows; clips go by their number in the table."""

    out: str
    changes: Sequence[str]
    is_exact: bool
    now: Counter[str | None]
    """Clips by first reason; None for those kept."""
    then: Counter[str | None]
    lost: Sequence[int]
    gained: Sequence[int]
    n_lost: int
    n_gained: int
    figures: Sequence[BoundView]
    kept_then: NDArray[np.bool_]
    clips: Mapping[int, Clip]
    reasons: Mapping[int, tuple[str | None, str | None]]
    """First reason now and then, for the clips that are shown."""
    thumbnails: Mapping[str, bytes]


def render_tune(view: TuneView) -> str:
    """One HTML document that refers to nothing outside itself."""
    sections = [
        ("First reasons", _reasons(view)),
        *_bound_sections(view),
        ("Kept now, and then rejected", _moved(view, view.lost, view.n_lost)),
        ("Rejected now, and then kept", _moved(view, view.gained, view.n_gained)),
    ]
    body = joined(
        Markup(f"<section><h2>{esc(title)}</h2>{content}</section>\n")
        for title, content in sections
    )
    return document("curate tune", _header(view), body)


def _header(view: TuneView) -> Markup:
    n_clips, now, then = sum(view.now.values()), view.now[None], view.then[None]
    changes = joined(Markup(f"<code>{esc(change)}</code>") for change in view.changes)
    tiles = [
        ("clips", count(n_clips), "candidates"),
        ("kept now", count(now), share(now, n_clips)),
        ("kept then", count(then), share(then, n_clips)),
        ("difference", f"{then - now:+,}", "clips kept"),
        ("kept, then rejected", count(view.n_lost), f"{share(view.n_lost, now)} of those kept"),
        ("rejected, then kept", count(view.n_gained), "come back"),
    ]
    said = "" if view.is_exact else "Duplicates and selection are left as they are."
    return Markup(
        f'<p class="made">{esc(view.out)}</p><h1>What other settings would do</h1>'
        f'<p class="changes">{changes}</p>'
        f'<p class="about">The run is as it was. {esc(said)}</p>{tiles_row(tiles)}'
    )


def _bound_sections(view: TuneView) -> Iterator[tuple[str, Markup]]:
    for bound in view.figures:
        spec = SCORES[bound.score]
        marks = {f"now {side}": value for side, value in bound.before.items()}
        marks |= {f"then {side}": value for side, value in bound.after.items()}
        for side, value in bound.after.items():
            if bound.before.get(side) == value:
                del marks[f"now {side}"], marks[f"then {side}"]
                marks[side] = value
        chart = figure(bound.score, spec.unit, spec.meaning, marks, bound.values, view.kept_then)
        legend = (
            '<p class="legend"><i class="kept"></i>then kept <i class="rejected"></i>then '
            'rejected, for any reason <i class="bound"></i>bound</p>'
        )
        sheets = joined(
            _either_side(view, bound, side, *numbers) for side, numbers in bound.examples.items()
        )
        flag = " (flag)" if bound.severity == "flag" else ""
        yield f"{bound.rule}{flag}", Markup(f'{legend}<div class="wide">{chart}</div>{sheets}')


def _either_side(
    view: TuneView, bound: BoundView, side: str, outside: Sequence[int], inside: Sequence[int]
) -> Markup:
    value = bound.after.get(side, bound.before.get(side))
    assert value is not None
    went = "" if side in bound.after else "the bound that goes, "
    word = ("below", "from") if side == "min" else ("above", "up to")
    parts = []
    for name, numbers in ((word[0], outside), (word[1], inside)):
        of = Markup(
            f'<span class="of">{count(len(numbers))} nearest to the bound, of those that '
            "no other rule rejects</span>"
        )
        cards = joined(_card(view, number, bound.score, value) for number in numbers)
        sheet = f'<div class="sheet row">{cards}</div>' if numbers else '<p class="none">None.</p>'
        parts.append(f"<h3>{esc(f'{went}{name} {score(value)}')} {of}</h3>{sheet}")
    return Markup("".join(parts))


def _card(view: TuneView, number: int, name: str | None, bound: float | None) -> Markup:
    clip = view.clips[number]
    parts = [_change(view, number)]
    if name is not None and bound is not None:
        value = clip.get(name)
        said = "not measured" if value is None else _beside(value, bound)
        parts.insert(0, Markup(f"<p><strong>{esc(said)}</strong></p>"))
    return card(clip, joined(parts), view.thumbnails.get(str(clip["clip_id"])))


def _beside(value: float, bound: float) -> str:
    return f"{score(value)} = bound" if value == bound else beside(value, bound)


def _change(view: TuneView, number: int) -> Markup:
    now, then = view.reasons[number]
    if now == then:
        css = "role kept" if now is None else "also"
        return Markup(f'<p class="{css}">stays {esc(now or "kept")}</p>')
    css = "role kept" if then is None else "why"
    arrow = f"{now or 'kept'} \N{RIGHTWARDS ARROW} {then or 'kept'}"
    return Markup(f'<p class="{css}">{esc(arrow)}</p>')


def _moved(view: TuneView, numbers: Sequence[int], n_all: int) -> Markup:
    if not numbers:
        return Markup('<p class="none">None.</p>')
    of = f"{count(len(numbers))} of {count(n_all)}" if len(numbers) < n_all else count(n_all)
    cards = joined(_card(view, number, None, None) for number in numbers)
    return Markup(f'<p class="hint">{of}</p><div class="sheet row">{cards}</div>')


def _reasons(view: TuneView) -> Markup:
    names = [name for name in dict.fromkeys([*view.now, *view.then]) if name is not None]
    names.sort(key=lambda name: -max(view.now[name], view.then[name]))
    rows = [
        (name or "kept", count(view.now[name]), count(view.then[name]),
         "" if view.now[name] == view.then[name] else f"{view.then[name] - view.now[name]:+,}")
        for name in [None, *names]
    ]  # fmt: skip
    return table(("first reason", "#now", "#then", "#difference"), rows, kind="tags")
