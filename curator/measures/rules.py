"""Rules: bounds of scores, and the outcome of clips outside them.

A rule has a score, a lower and an upper bound, and a severity: `reject` drops a clip outside the
bounds; `flag` keeps the clip and adds a tag to its metadata. A bound is a number, or a share of the
corpus to drop. All rules apply to all clips; their order decides only which reason is the first.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.measures.measure_contract import ScoreSpec
from curator.measures.rule_config import Rule, Severity, Unmeasured, Value
from curator.measures.score_list import BUILT_IN, Measures

Values = NDArray[np.float64]
Sides = tuple[float | None, float | None]  # lower and upper bound of a rule; None for no bound


def unwanted_reason(score: str) -> str:
    """Returns the reason for which a rule that names values of metadata rejects a clip."""
    return f"{score}_unwanted"


def reasons_of(rules: Mapping[str, Rule], measures: Measures = BUILT_IN) -> Iterator[str]:
    """Yields the reasons for which rules reject clips."""
    for name, rule in rules.items():
        about = rule.score or name
        spec = measures.spec_of(about)
        ends = {spec.low: {"min", "drop_lowest"}, spec.high: {"max", "drop_highest"}}
        names = [reason for reason, keys in ends.items() if keys & rule.bounds.keys()]
        names += [unwanted_reason(about)] if rule.values else []
        if rule.severity == "reject":
            yield from names


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A rule with bounds as numbers."""

    rule: str  # name in the recipe
    score: str
    spec: ScoreSpec  # definition of the score, with its reasons
    min: float | None
    max: float | None
    severity: Severity
    one_of: tuple[Value, ...] | None = None
    none_of: tuple[Value, ...] | None = None
    unmeasured: Unmeasured = "reject"
    n_measured: int | None = None  # number of clips behind the quantiles; None without quantiles

    @classmethod
    def of(cls, facts: Mapping[str, Any], measures: Measures) -> "Bounds | None":
        """Returns the bounds in `RuleCount.facts`; None for a check without a score."""
        if "score" not in facts:
            return None
        names = ("rule", "score", "min", "max", "severity", "one_of", "none_of")
        values: dict[str, Any] = {name: facts.get(name) for name in names}
        return cls(spec=measures.spec_of(facts["score"]), **values)

    @property
    def is_idle(self) -> bool:
        """Whether the rule bounds nothing, so that it applies to no clip."""
        return self.min is None and self.max is None and not self.names_values

    @property
    def names_values(self) -> bool:
        """Whether the rule names values of metadata."""
        return self.one_of is not None or self.none_of is not None

    def tag(self, reason: str) -> str:
        """Returns the tag of a flagged clip: the reason, or the name of a custom-named rule."""
        return reason if self.rule == self.score else self.rule


def resolve(
    rules: Mapping[str, Rule],
    corpus: Callable[[str], Values] | None = None,
    frozen: Mapping[str, Sides] | None = None,
    *,
    measures: Measures = BUILT_IN,
) -> list[Bounds]:
    """Turns the bounds of rules into numbers, in the same order.

    If a rule has both a number and a quantile on one side, the stricter bound applies.

    `corpus` returns the values of a score of all candidate clips that are long enough and have the
    score, also of clips that other rules reject; None ignores bounds by quantile. `frozen` has the
    bounds of rules by quantile that applied to earlier generations.
    """
    bounds = []
    for name, rule in rules.items():
        score = rule.score or name
        low, high, n_measured = rule.min, rule.max, None
        if frozen is not None and name in frozen:
            low, high = frozen[name]
        elif corpus is not None and rule.is_by_quantile:
            values = corpus(score)
            n_measured = len(values)
            lows = low, quantile_bound(values, lowest=rule.drop_lowest)
            highs = high, quantile_bound(values, highest=rule.drop_highest)
            low = max((bound for bound in lows if bound is not None), default=None)
            high = min((bound for bound in highs if bound is not None), default=None)
        bounds.append(
            Bounds(
                rule=name,
                score=score,
                spec=measures.spec_of(score),
                min=low,
                max=high,
                severity=rule.severity,
                one_of=rule.one_of,
                none_of=rule.none_of,
                unmeasured=rule.unmeasured,
                n_measured=n_measured,
            )
        )
    return bounds


def quantile_bound(
    values: Values, *, lowest: float | None = None, highest: float | None = None
) -> float | None:
    """Returns the bound that drops at most a share of some values.

    The bound is the value at place k = floor(share * n), counted from 0 at the end to drop. A clip
    at the bound is kept, so k values are dropped, or fewer if others equal the bound.

    Values are finite, in any order. `lowest` is a share of the low end, `highest` of the high end.
    The result is one of the values; None without a share or without values.
    """
    share = lowest if lowest is not None else highest
    if share is None or not len(values):
        return None
    # Exact, because a float such as 0.29 is below its decimal: 0.29 * 100 = 28.99...
    n_dropped = int(Fraction(repr(float(share))) * len(values))
    at = n_dropped if lowest is not None else len(values) - 1 - n_dropped
    return float(np.partition(values, at)[at])
