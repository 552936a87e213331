"""Histograms of scores as inline SVG, kept against rejected clips, with the bounds of the rule."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curator.stages.filters import SCORES
from curator.stages.report.markup import Markup, esc, joined
from curator.stages.report.words import count, score

BINS = 40
WIDTH, HEIGHT, TOP, BOTTOM = 320, 112, 14, 16
LOG_FROM = 30.0
"""Ratio of the 95th to the 5th percentile from which the axis is logarithmic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    low: float
    high: float
    is_log: bool

    def place(self, value: float) -> float:
        """Where a value lies on the axis: 0 to 1, and at its ends when beyond."""
        if self.is_log:
            value = math.log(max(value, self.low))
            low, high = math.log(self.low), math.log(self.high)
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def at(self, place: float) -> float:
        """The value at a place."""
        if self.is_log:
            return float(self.low * (self.high / self.low) ** place)
        return self.low + (self.high - self.low) * place


def histograms(summary: Mapping[str, Any], clips: Sequence[Mapping[str, Any]]) -> Markup:
    """A histogram for each score that any clip has, and for the length of clips.

    Args:
        summary: What `summary.json` holds; reads the bounds in `recipe`.
        clips: All rows of `clips`.
    """
    recipe = summary.get("recipe") or {}
    rules = recipe.get("filters") or {}
    shortest = {"min": (recipe.get("propose") or {}).get("min_s")}
    lengths = [_clip_s(clip) for clip in clips]
    parts = [_figure("duration", "s", "length of the clip", shortest, lengths, clips)]
    for name, spec in SCORES.items():
        values = [clip.get(name) for clip in clips]
        rule = rules.get(name) or {}
        parts.append(_figure(name, spec.unit, spec.meaning, rule, values, clips))
    return joined(parts)


def _clip_s(clip: Mapping[str, Any]) -> float | None:
    start_s, end_s = clip.get("start_s"), clip.get("end_s")
    return end_s - start_s if start_s is not None and end_s is not None else None


def _figure(
    name: str,
    unit: str,
    meaning: str,
    rule: Mapping[str, Any],
    values: Sequence[float | None],
    clips: Sequence[Mapping[str, Any]],
) -> Markup:
    kept: list[float] = []
    rejected: list[float] = []
    for value, clip in zip(values, clips, strict=True):
        if value is not None and math.isfinite(value):
            (kept if clip.get("decision") == "kept" else rejected).append(value)
    n_measured = len(kept) + len(rejected)
    if n_measured == 0:
        return Markup("")
    bounds = {key: rule[key] for key in ("min", "max") if rule.get(key) is not None}
    said = [f"{key} {score(value)}" for key, value in bounds.items()] or ["no bound"]
    if n_measured < len(clips):
        said.append(f"{count(len(clips) - n_measured)} not measured")
    distinct = {*kept, *rejected}
    if len(distinct) == 1:
        picture = Markup(f'<p class="same">all clips: {score(distinct.pop())}</p>')
    else:
        picture = _svg(name, kept, rejected, bounds)
    return Markup(
        f'<figure class="histogram"><figcaption><b>{esc(name)}</b> <span>{esc(unit)}</span>'
        f"<small>{esc(meaning)}; {esc(', '.join(said))}</small></figcaption>{picture}</figure>"
    )


def _axis(values: list[float], bounds: Mapping[str, float]) -> _Axis:
    values = sorted(values)
    low, high = values[0], values[-1]
    p5, p95 = (values[round(q * (len(values) - 1))] for q in (0.05, 0.95))
    positive = [value for value in values if value > 0]
    least = max(p5, positive[0]) if positive else 0.0
    is_log = low >= 0 and least > 0 and p95 > LOG_FROM * least
    is_log = is_log and all(bound > 0 for bound in bounds.values())
    if is_log:
        low = positive[0]
        span = math.sqrt(high / low)
        near = [b for b in bounds.values() if low / span <= b <= high * span]
    else:
        span = 0.5 * (high - low)
        near = [b for b in bounds.values() if low - span <= b <= high + span]
    return _Axis(low=min([low, *near]), high=max([high, *near]), is_log=is_log)


def _binned(values: Sequence[float], axis: _Axis) -> list[int]:
    counts = [0] * BINS
    for value in values:
        counts[min(BINS - 1, int(axis.place(value) * BINS))] += 1
    return counts


def _svg(
    name: str, kept: list[float], rejected: list[float], bounds: Mapping[str, float]
) -> Markup:
    axis = _axis(kept + rejected, bounds)
    kept_bins, rejected_bins = _binned(kept, axis), _binned(rejected, axis)
    highest = max(k + r for k, r in zip(kept_bins, rejected_bins, strict=True))
    scale = (HEIGHT - TOP - BOTTOM) / highest
    base, step = HEIGHT - BOTTOM, WIDTH / BINS
    marks = []
    for number, (k, r) in enumerate(zip(kept_bins, rejected_bins, strict=True)):
        if k + r == 0:
            continue
        ends = score(axis.at(number / BINS)), score(axis.at((number + 1) / BINS))
        x, height_k, height_r = number * step, k * scale, r * scale
        rects = [
            f'<rect class="{css}" x="{x + 0.4:.2f}" y="{y:.2f}" width="{step - 0.8:.2f}" '
            f'height="{max(height, 0.75):.2f}"/>'
            for css, y, height, n in (
                ("kept", base - height_k, height_k, k),
                ("rejected", base - height_k - height_r, height_r, r),
            )
            if n
        ]
        title = f"{ends[0]} to {ends[1]}: {k:,} kept, {r:,} rejected"
        marks.append(Markup(f"<g><title>{esc(title)}</title>{''.join(rects)}</g>"))
    for key, bound in bounds.items():
        place = axis.place(bound)
        if axis.low <= bound <= axis.high:
            x = min(WIDTH - 0.5, max(0.5, place * WIDTH))
            anchor = "end" if place > 0.8 else "start"
            shift = -3 if anchor == "end" else 3
            marks.append(
                Markup(
                    f'<line class="bound" x1="{x:.2f}" x2="{x:.2f}" y1="2" y2="{base}"/>'
                    f'<text x="{x + shift:.2f}" y="9" text-anchor="{anchor}">'
                    f"{esc(key)} {score(bound)}</text>"
                )
            )
    label = f"Histogram of {name}: {len(kept):,} kept and {len(rejected):,} rejected clips"
    middle = f"{score(axis.at(0.5))}{' (log)' if axis.is_log else ''}"
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{esc(label)}">{joined(marks)}'
        f'<line class="axis" x1="0" x2="{WIDTH}" y1="{base}" y2="{base}"/>'
        f'<text x="0" y="{HEIGHT - 4}">{score(axis.low)}</text>'
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" text-anchor="middle">{middle}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 4}" text-anchor="end">{score(axis.high)}</text></svg>'
    )
