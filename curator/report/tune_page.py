"""The page of `curate tune`: the effect of other bounds, with clips on either side."""

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from curator.number_text import compared, score
from curator.report.histogram import Histogram, histogram
from curator.report.page_templates import render
from curator.tables.clip_rows import ClipRow


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
    """The contents of the page; clips go by their number in the table."""

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
    clips: Mapping[int, ClipRow]
    reasons: Mapping[int, tuple[str | None, str | None]]
    """First reason now and then, for the clips that are shown."""
    thumbnails: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A rule whose bounds change: its histogram, and rows of clips around each bound."""

    rule: BoundView
    histogram: Histogram | None
    rows: Sequence[tuple[str, Sequence[int], float]]
    """Title, numbers of clips and the bound."""


def render_tune(view: TuneView) -> str:
    """Renders one HTML document that refers to nothing outside itself."""
    names = [name for name in dict.fromkeys([*view.now, *view.then]) if name is not None]
    names.sort(key=lambda name: -max(view.now[name], view.then[name]))
    return render(
        "tune.html.j2",
        view=view,
        n_clips=sum(view.now.values()),
        reasons=[(name or "kept", view.now[name], view.then[name]) for name in [None, *names]],
        changes=[_change(view, rule) for rule in view.figures],
        picture=lambda clip: _picture(view, clip),
        compared=_compared,
    )


def _change(view: TuneView, rule: BoundView) -> _Change:
    marks = {f"now {side}": value for side, value in rule.before.items()}
    marks |= {f"then {side}": value for side, value in rule.after.items()}
    for side, value in rule.after.items():
        if rule.before.get(side) == value:
            del marks[f"now {side}"], marks[f"then {side}"]
            marks[side] = value
    chart = histogram(rule.score, marks, rule.values, view.kept_then)
    return _Change(rule=rule, histogram=chart, rows=list(_rows(rule)))


def _rows(rule: BoundView) -> Iterator[tuple[str, Sequence[int], float]]:
    for side, numbers in rule.examples.items():
        bound = rule.after.get(side, rule.before.get(side))
        assert bound is not None
        went = "" if side in rule.after else "the bound that goes, "
        words = ("below", "from") if side == "min" else ("above", "up to")
        for word, clips in zip(words, numbers, strict=True):
            yield f"{went}{word} {score(bound)}", clips, bound


def _compared(value: float | None, bound: float) -> str:
    if value is None:
        return "not measured"
    return f"{score(value)} = bound" if value == bound else compared(value, bound)


def _picture(view: TuneView, clip: ClipRow) -> str:
    return base64.b64encode(view.thumbnails.get(clip.clip_id, b"")).decode()
