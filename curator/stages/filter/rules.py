"""Rules: bounds of scores, and the outcome of clips outside them.

A rule has a score, a lower and an upper bound, and a severity: `reject` takes the clip out, `flag`
keeps it and puts a tag into its metadata. A bound is absolute, or a share of the corpus to drop.

The recipe's order of rules decides only which reason is named first: all rules are judged for all
clips. Scores of the one decode cost nothing more to judge, so that "cheap to dear" matters for the
scores of later stages alone, and their rules belong at the end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.measures.measure_contract import ScoreSpec
from curator.measures.score_list import BUILT_IN, Measures
from curator.stages.filter.config import Rule, Severity, Unmeasured, Value

Values = NDArray[np.float64]
Sides = tuple[float | None, float | None]  # lower and upper bound of a rule; None for none


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A rule with bounds as numbers, ready to judge."""

    rule: str  # its name in the recipe
    score: str
    spec: ScoreSpec  # what the score is, and the reasons that it gives
    min: float | None
    max: float | None
    severity: Severity
    one_of: tuple[Value, ...] | None = None
    none_of: tuple[Value, ...] | None = None
    unmeasured: Unmeasured = "reject"
    n_measured: int | None = None  # clips that its quantiles were taken of, if any

    @classmethod
    def of(cls, facts: Mapping[str, Any], measures: Measures) -> "Bounds | None":
        """Returns the bounds in a rule as applied (`RuleCount.facts`); None where it has none."""
        if "score" not in facts:
            return None
        names = ("rule", "score", "min", "max", "severity", "one_of", "none_of")
        values: dict[str, Any] = {name: facts.get(name) for name in names}
        return cls(spec=measures.spec_of(facts["score"]), **values)

    @property
    def is_idle(self) -> bool:
        """Whether no clip can be outside it."""
        return self.min is None and self.max is None and not self.names_values

    @property
    def names_values(self) -> bool:
        """Whether it names values of metadata."""
        return self.one_of is not None or self.none_of is not None

    def tag(self, reason: str) -> str:
        """Returns the tag of a flagged clip: the rule's own name, or the reason."""
        return reason if self.rule == self.score else self.rule


def resolve(
    rules: Mapping[str, Rule],
    corpus: Callable[[str], Values] | None = None,
    frozen: Mapping[str, Sides] | None = None,
    *,
    measures: Measures = BUILT_IN,
) -> list[Bounds]:
    """Turns rules into numbers, in the same order.

    Where a rule has a bound of both kinds on one side, the stricter counts.

    `corpus` returns the values of a score over all candidate clips that are long enough and have
    it, whatever other rules decide; None leaves bounds by quantile out. `frozen` has the numbers of
    rules by quantile that earlier clips were held to.
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
    """Returns the bound that drops a share of some values, exactly.

    With k = floor(share * n) it is the value that has k others before it in order. As a clip at a
    bound is kept, exactly k are dropped, or fewer where the bound is a tie: equal values share
    their outcome, and never more than the share is dropped.

    Values are finite, in any order; `lowest` and `highest` are shares of an end. The result is one
    of the values, or None without a share or values.
    """
    share = lowest if lowest is not None else highest
    if share is None or not len(values):
        return None
    # A float such as 0.29 is below the intended decimal: 0.29 * 100 = 28.99...
    n_dropped = int(Fraction(repr(float(share))) * len(values))
    at = n_dropped if lowest is not None else len(values) - 1 - n_dropped
    return float(np.partition(values, at)[at])
