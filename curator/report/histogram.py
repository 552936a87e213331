"""Histograms of scores as inline SVG, kept against rejected clips, with the bounds of the rule."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.measures.families import FAMILIES
from curator.measures.scores import SCORES
from curator.report.markup import Markup, esc, joined
from curator.report.number_text import count, score
from curator.report.rule_text import applied_rules, reasons_of
from curator.tables.clip_rows import floats, numbers_where

LENGTH = "duration"
"""Stands among the scores for the length of a clip as it is kept."""
BINS = 40
WIDTH, HEIGHT, TOP, BOTTOM = 320, 112, 14, 16
LETTER = 5.5
"""About how wide a letter of a label is."""
LOG_FROM = 30.0
"""Ratio of the 95th to the 5th percentile from which the axis is logarithmic."""

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    low: float
    high: float
    is_log: bool

    def place(self, values: Values | float) -> Values:
        """Where values lie on the axis: 0 to 1, and at its ends when beyond."""
        low, high, at = self.low, self.high, np.clip(values, self.low, self.high)
        if self.is_log:
            low, high, at = math.log(low), math.log(high), np.log(at)
        placed: Values = (at - low) / (high - low)
        return placed

    def at(self, place: float) -> float:
        """The value at a place."""
        if self.is_log:
            return float(self.low * (self.high / self.low) ** place)
        return self.low + (self.high - self.low) * place

    def bins(self, values: Values) -> list[int]:
        """How many of the values lie in each of the bins."""
        numbers = np.minimum(BINS - 1, (self.place(values) * BINS).astype(np.int64))
        return [int(n) for n in np.bincount(numbers, minlength=BINS)]


def histograms(
    summary: Mapping[str, Any], clips: Sequence[Mapping[str, Any]]
) -> tuple[Markup, dict[str, Markup]]:
    """A histogram for each score that any clip has, and for the length of clips.

    Args:
        summary: What `summary.json` holds; reads the bounds in `recipe`.
        clips: All rows of `clips`.

    Returns:
        Those with a bound, in the recipe's order, and the others by family.
    """
    bounds = _bounds_by_score(summary)
    is_kept = np.zeros(len(clips), np.bool_)
    is_kept[numbers_where(clips, "decision", "kept")] = True

    def drawn(name: str) -> Markup:
        values = _seconds(clips) if name == LENGTH else floats(clips, name)
        unit, meaning = ("s", "length of the clip") if name == LENGTH else _told(name)
        return figure(name, unit, meaning, bounds.get(name, {}), values, is_kept)

    ruled = joined(drawn(name) for name in bounds)
    others = {
        family: joined(drawn(name) for name in names if name not in bounds)
        for family, names in FAMILIES.items()
    }
    if LENGTH not in bounds:
        others = {LENGTH: drawn(LENGTH), **others}
    return ruled, {family: figures for family, figures in others.items() if figures}


def _seconds(clips: Sequence[Mapping[str, Any]]) -> Values:
    return floats(clips, "end_s") - floats(clips, "start_s")


def _told(name: str) -> tuple[str, str]:
    return SCORES[name].unit, SCORES[name].meaning


def _bounds_by_score(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Bounds by score and label, in the order in which they are judged."""
    min_s = ((summary.get("recipe") or {}).get("propose") or {}).get("min_s")
    found: dict[str, dict[str, float]] = {} if min_s is None else {LENGTH: {"min": float(min_s)}}
    for rule in applied_rules(summary):
        said = "" if rule["severity"] == "reject" else f"{rule['severity']} "
        for _, side, bound in reasons_of(rule):
            found.setdefault(rule["score"], {})[f"{said}{side}"] = bound
    return found


def figure(
    name: str,
    unit: str,
    meaning: str,
    bounds: Mapping[str, float],
    scores: Sequence[float | None] | Values,
    is_kept: NDArray[np.bool_],
) -> Markup:
    """The histogram of one score; empty where no clip has it.

    Args:
        name: The score's name.
        unit: Its unit.
        meaning: What it says.
        bounds: Values to mark, by label.
        scores: Of all clips; None or NaN where one has none.
        is_kept: Which clips are kept.
    """
    values = np.array(scores, dtype=np.float64)
    measured = np.isfinite(values)
    if not measured.any():
        return Markup("")
    said = [f"{key} {score(value)}" for key, value in bounds.items()] or ["no bound"]
    if n_missing := int(np.sum(~measured)):
        said.append(f"{count(n_missing)} not measured")
    values, is_kept = values[measured], is_kept[measured]
    if values.min() == values.max():
        picture = Markup(f'<p class="same">all clips: {score(float(values[0]))}</p>')
    else:
        axis = _axis(values, list(bounds.values()), may_be_log=not unit.startswith("0 "))
        picture = _svg(name, axis, values[is_kept], values[~is_kept], bounds)
    return Markup(
        f'<figure class="histogram"><figcaption><b>{esc(name)}</b> <span>{esc(unit)}</span>'
        f"<small>{esc(meaning)}; {esc(', '.join(said))}</small></figcaption>{picture}</figure>"
    )


def _axis(values: Values, bounds: Sequence[float], *, may_be_log: bool) -> _Axis:
    """An axis that shows all values, and those bounds that are not far from them."""
    low, high = float(values.min()), float(values.max())
    p5, p95 = (float(p) for p in np.percentile(values, [5, 95]))
    if may_be_log and low > 0 and p95 > LOG_FROM * p5 and all(bound > 0 for bound in bounds):
        span = math.sqrt(high / low)
        near = [bound for bound in bounds if low / span <= bound <= high * span]
        return _Axis(low=min([low, *near]), high=max([high, *near]), is_log=True)
    span = 0.5 * (high - low)
    near = [bound for bound in bounds if low - span <= bound <= high + span]
    return _Axis(low=min([low, *near]), high=max([high, *near]), is_log=False)


def _svg(
    name: str, axis: _Axis, kept: Values, rejected: Values, bounds: Mapping[str, float]
) -> Markup:
    base = HEIGHT - BOTTOM
    marks = [*_bounds(axis, bounds), *_columns(axis, axis.bins(kept), axis.bins(rejected))]
    label = f"Histogram of {name}: {len(kept):,} kept and {len(rejected):,} rejected clips"
    middle = f"{score(axis.at(0.5))}{' (log)' if axis.is_log else ''}"
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{esc(label)}">{joined(marks)}'
        f'<line class="axis" x1="0" x2="{WIDTH}" y1="{base}" y2="{base}"/>'
        f'<text x="0" y="{HEIGHT - 4}">{score(axis.low)}</text>'
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" text-anchor="middle">{middle}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 4}" text-anchor="end">{score(axis.high)}</text></svg>'
    )


def _columns(axis: _Axis, kept: Sequence[int], rejected: Sequence[int]) -> Iterator[Markup]:
    base, step = HEIGHT - BOTTOM, WIDTH / BINS
    scale = (base - TOP) / max(k + r for k, r in zip(kept, rejected, strict=True))
    for number, (k, r) in enumerate(zip(kept, rejected, strict=True)):
        if k + r == 0:
            continue
        top, rects = float(base), []
        for css, n in (("kept", k), ("rejected", r)):
            if n:
                # A single clip among thousands is seen too.
                height = max(1.2, n * scale)
                top -= height
                rects.append(
                    f'<rect class="{css}" x="{number * step + 0.4:.2f}" y="{top:.2f}" '
                    f'width="{step - 0.8:.2f}" height="{height:.2f}"/>'
                )
        ends = score(axis.at(number / BINS)), score(axis.at((number + 1) / BINS))
        title = f"{ends[0]} to {ends[1]}: {k:,} kept, {r:,} rejected"
        yield Markup(f"<g><title>{esc(title)}</title>{''.join(rects)}</g>")


def _bounds(axis: _Axis, bounds: Mapping[str, float]) -> Iterator[Markup]:
    free_from, y = 0.0, 9
    for bound, key in sorted((bound, key) for key, bound in bounds.items()):
        if not axis.low <= bound <= axis.high:
            continue
        x = min(WIDTH - 0.5, max(0.5, float(axis.place(bound)) * WIDTH))
        if not key.startswith("now "):
            left, right = (0.0, x) if key.endswith("min") else (x, float(WIDTH))
            yield Markup(
                f'<rect class="outside" x="{left:.2f}" y="2" width="{right - left:.2f}" '
                f'height="{HEIGHT - BOTTOM - 2}"/>'
            )
        label = f"{key} {score(bound)}"
        width = LETTER * len(label)
        anchor, begin = ("end", x - 3 - width) if x + width > WIDTH else ("start", x + 3)
        y = y + 10 if begin < free_from else 9
        free_from = begin + width
        yield Markup(
            f'<line class="bound" x1="{x:.2f}" x2="{x:.2f}" y1="2" y2="{HEIGHT - BOTTOM}"/>'
            f'<text x="{x - 3 if anchor == "end" else x + 3:.2f}" y="{y}" '
            f'text-anchor="{anchor}">{esc(label)}</text>'
        )
