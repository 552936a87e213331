"""Histograms of the scores of kept and rejected clips, with the bounds of the rules."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.measures.measure_contract import ScoreSpec
from curator.number_text import count, score
from curator.tables.clip_rows import ClipColumns
from curator.tools.report.funnel import applied_rules, measures_of, reasons_of

_LENGTH = "duration_s"
"""The score that `propose.min_s` bounds."""
BINS = 40
WIDTH = 320
"""Width of a histogram in `histogram.html.j2`, in pixels."""
LETTER = 5.5
"""Approximate width of a letter of a label, in pixels."""
LOG_FROM = 30.0
"""Ratio of the 95th to the 5th percentile above which the axis is logarithmic."""

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The range of values that a histogram shows."""

    low: float
    high: float
    is_log: bool

    def place(self, values: Values | float) -> Values:
        """Maps values to places on the axis: 0 to 1, clipped."""
        low, high, at = self.low, self.high, np.clip(values, self.low, self.high)
        if self.is_log:
            low, high, at = math.log(low), math.log(high), np.log(at)
        placed: Values = (at - low) / (high - low)
        return placed

    def at(self, place: float) -> float:
        """Returns the value at a place."""
        if self.is_log:
            return float(self.low * (self.high / self.low) ** place)
        return self.low + (self.high - self.low) * place

    def bins(self, values: Values) -> list[int]:
        """Counts the values in each bin."""
        numbers = np.minimum(BINS - 1, (self.place(values) * BINS).astype(np.int64))
        return [int(n) for n in np.bincount(numbers, minlength=BINS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundMark:
    """A labelled line at a bound; `shade` is the span beyond the bound."""

    x: float
    shade: tuple[float, float] | None
    text_x: float
    text_y: int
    anchor: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """The histogram of one score, over all clips with the score; `histogram.html.j2` draws it."""

    name: str
    unit: str
    meaning: str
    bounds_text: str
    value: float
    """The value of the first clip."""
    axis: Axis | None
    """None if all clips have the same value."""
    n_kept: int
    n_rejected: int
    bins: Sequence[tuple[int, int]] = ()
    """Counts of kept and of rejected clips in each bin, from the lowest value."""
    marks: Sequence[BoundMark] = ()


def histograms(
    summary: Mapping[str, Any], clips: ClipColumns
) -> tuple[list[Histogram], dict[str, list[Histogram]]]:
    """Makes histograms of scores: a list of those with a bound, others by family."""
    bounds, measures = _bounds_by_score(summary), measures_of(summary)
    blocks = [pc.equal(block["decision"], "kept") for block in clips.blocks(("decision",))]
    is_kept = np.concatenate([np.zeros(0, np.bool_), *blocks])

    def drawn(names: Iterable[str]) -> Iterator[Histogram]:
        for name in names:
            spec, values = measures.spec_of(name), clips.floats(name)
            if chart := histogram(name, spec, bounds.get(name, {}), values, is_kept):
                yield chart

    others = {
        family: list(drawn(name for name in names if name not in bounds))
        for family, names in measures.headings.items()
    }
    return list(drawn(bounds)), {family: charts for family, charts in others.items() if charts}


def _bounds_by_score(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Returns bounds by score and label, in the order of the rules."""
    min_s = ((summary.get("recipe") or {}).get("propose") or {}).get("min_s")
    bounds: dict[str, dict[str, float]] = {} if min_s is None else {_LENGTH: {"min": float(min_s)}}
    for rule in applied_rules(summary):
        prefix = "" if rule["severity"] == "reject" else f"{rule['severity']} "
        for _, side, bound in reasons_of(rule):
            bounds.setdefault(rule["score"], {})[f"{prefix}{side}"] = bound
    return bounds


def histogram(
    name: str,
    spec: ScoreSpec,
    bounds: Mapping[str, float],
    values: Values,
    is_kept: NDArray[np.bool_],
) -> Histogram | None:
    """Makes the histogram of one score; None if no clip has the score.

    `values` are float64 [N], NaN for clips without the score. `bounds` are the bounds to mark, by
    label.
    """
    measured = np.isfinite(values)
    if not measured.any():
        return None
    parts = [f"{key} {score(value)}" for key, value in bounds.items()] or ["no bound"]
    if n_missing := int(np.sum(~measured)):
        parts.append(f"{count(n_missing)} not measured")
    values, is_kept = values[measured], is_kept[measured]
    kept, rejected = values[is_kept], values[~is_kept]
    bins, marks = [], []
    axis = axis_of(values, list(bounds.values()), may_be_log=not spec.unit.startswith("0 "))
    if axis is not None:
        bins = list(zip(axis.bins(kept), axis.bins(rejected), strict=True))
        marks = list(_marks(axis, bounds))
    return Histogram(
        name=name,
        unit=spec.unit,
        meaning=spec.meaning,
        bounds_text=", ".join(parts),
        value=float(values[0]),
        axis=axis,
        n_kept=len(kept),
        n_rejected=len(rejected),
        bins=bins,
        marks=marks,
    )


def axis_of(values: Values, bounds: Sequence[float], *, may_be_log: bool) -> Axis | None:
    """Returns an axis that shows all values and the bounds near them; None if all are equal.

    `values` are finite, float64 [N]. With `may_be_log`, the axis is logarithmic if positive values
    differ by orders of magnitude.
    """
    low, high = float(values.min()), float(values.max())
    if low == high:
        return None
    p5, p95 = (float(p) for p in np.percentile(values, [5, 95]))
    if may_be_log and low > 0 and p95 > LOG_FROM * p5 and all(bound > 0 for bound in bounds):
        span = math.sqrt(high / low)
        near = [bound for bound in bounds if low / span <= bound <= high * span]
        return Axis(low=min([low, *near]), high=max([high, *near]), is_log=True)
    span = 0.5 * (high - low)
    near = [bound for bound in bounds if low - span <= bound <= high + span]
    return Axis(low=min([low, *near]), high=max([high, *near]), is_log=False)


def _marks(axis: Axis, bounds: Mapping[str, float]) -> Iterator[BoundMark]:
    free_from, y = 0.0, 9
    for bound, key in sorted((bound, key) for key, bound in bounds.items()):
        if not axis.low <= bound <= axis.high:
            continue
        x = min(WIDTH - 0.5, max(0.5, float(axis.place(bound)) * WIDTH))
        shade = None
        if not key.startswith("now "):
            shade = (0.0, x) if key.endswith("min") else (x, float(WIDTH))
        label = f"{key} {score(bound)}"
        width = LETTER * len(label)
        anchor, begin = ("end", x - 3 - width) if x + width > WIDTH else ("start", x + 3)
        y = y + 10 if begin < free_from else 9
        free_from = begin + width
        text_x = x - 3 if anchor == "end" else x + 3
        yield BoundMark(x=x, shade=shade, text_x=text_x, text_y=y, anchor=anchor, label=label)
