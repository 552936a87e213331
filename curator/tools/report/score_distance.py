"""Orders the scores of a clip that have a bound: missed bounds first, then the nearest bounds."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.number_text import compared, score
from curator.tables.clip_rows import ClipColumns, ClipRow
from curator.tools.report.funnel import applied_rules, measures_of, reasons_of

MOST, MOST_FAILED = 6, 8
"""Scores on a card: most for a clip within all bounds, and most for a clip that misses bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundCheck:
    """A bound of a score, and the value of one clip.

    Attributes:
        unit: Unit of the score.
        side: `min` or `max`.
        low: 5th percentile of the score over the run's clips, or the bound if that is lower.
        high: 95th percentile, or the bound if that is higher; never equal to `low`.
        value: The clip's score; NaN for a bound without a clip.
    """

    score: str
    unit: str
    side: str
    bound: float
    is_flag: bool
    low: float
    high: float
    value: float = math.nan

    @property
    def is_missed(self) -> bool:
        """Whether the value is outside the bound."""
        return self.value < self.bound if self.side == "min" else self.value > self.bound

    @property
    def nearness(self) -> float:
        """Distance to the bound, relative to the run's most distant clips on the same side.

        The distance is 0 at the bound, and about 1 for the most distant clips.
        """
        if not self.is_missed and self.unit == "0 or 1":
            # Scores of 0 or 1 have no distance: an SDR clip is not nearly HDR.
            return math.inf
        end = self.low if self.value < self.bound else self.high
        return abs(self.value - self.bound) / (abs(end - self.bound) or self.high - self.low)

    def place(self, value: float) -> float:
        """Returns the position of a value between `low` and `high`, 0 to 1."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    @property
    def words(self) -> Sequence[str]:
        """The comparison of the value with the bound, in words."""
        if self.is_missed:
            return compared(self.value, self.bound).split()
        sign = "\N{GREATER-THAN OR EQUAL TO}" if self.side == "min" else "\N{LESS-THAN OR EQUAL TO}"
        return score(self.value), sign, score(self.bound)


class Nearness:
    """Bounds of a run with the spread of each score over its clips."""

    def __init__(self, summary: Mapping[str, Any], clips: ClipColumns) -> None:
        self.measures = measures_of(summary)

        @cache
        def measured(name: str) -> NDArray[np.float64]:
            values = clips.floats(name)
            return values[np.isfinite(values)]

        self._bounds = [
            BoundCheck(
                score=rule["score"],
                unit=rule["spec"].unit,
                side=side,
                bound=bound,
                is_flag=rule["severity"] == "flag",
                **_spread(measured(rule["score"]), bound),
            )
            for rule in applied_rules(summary)
            for _, side, bound in reasons_of(rule)
        ]
        self.scores = list(dict.fromkeys(bound.score for bound in self._bounds))
        """Names of the scores that have a bound, in the recipe's order."""
        self.required = [
            rule["score"]
            for rule in applied_rules(summary)
            if rule["severity"] == "reject" and rule.get("unmeasured") != "keep"
        ]
        """Names of the scores without which a clip is rejected."""

    def of(self, clip: ClipRow) -> list[BoundCheck]:
        """Returns the relevant scores, one bound each: missed bounds first, then by nearness."""
        best: dict[str, BoundCheck] = {}
        for check in self._all(clip):
            other = best.get(check.score)
            if other is None or _rank(check) < _rank(other):
                best[check.score] = check
        # Flags that do not apply to the clip come last.
        ranked = sorted(best.values(), key=_rank)
        n_missed = sum(check.is_missed for check in ranked)
        return ranked[: min(MOST_FAILED, max(MOST, n_missed))]

    def margin(self, clip: ClipRow) -> float | None:
        """Returns the distance at which a clip's decision would change; None without a bound.

        If the clip is within all bounds, this is the distance to the nearest bound. If not, this is
        the distance to the bound that it misses by most. Flags do not count.
        """
        checks = [b for b in self._all(clip) if not b.is_flag and math.isfinite(b.nearness)]
        missed = [check.nearness for check in checks if check.is_missed]
        if missed:
            return max(missed)
        return min((check.nearness for check in checks), default=None)

    def _all(self, clip: ClipRow) -> Iterator[BoundCheck]:
        for bound in self._bounds:
            value = clip.value(bound.score)
            if value is not None and math.isfinite(value):
                yield replace(bound, value=float(value))


def _rank(check: BoundCheck) -> tuple[bool, bool, float]:
    return (not check.is_missed, check.is_flag, check.nearness)


def _spread(values: NDArray[np.float64], bound: float) -> dict[str, float]:
    """Returns `low` and `high`: 5th and 95th percentile, extended to the bound; never equal."""
    low, high = np.percentile(values, [5, 95]).tolist() if len(values) else (bound, bound)
    low, high = min(low, bound), max(high, bound)
    margin = 0.0 if high > low else abs(bound) or 1.0
    return {"low": low - margin, "high": high + margin}
