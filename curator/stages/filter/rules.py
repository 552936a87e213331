"""Rules: bounds of scores, and what becomes of a clip outside them.

A rule has a score, a lower and an upper bound, and a severity: `reject` takes the clip out, `flag`
keeps it and puts a tag into its metadata. A bound is absolute, or a share of the corpus to drop.

The recipe's order of rules decides which reason is named first, and nothing else: all rules are
judged for all clips. Scores that come with the one decode cost nothing more to judge, so that
"cheap to dear" matters for the scores of later stages alone, and their rules belong at the end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isnan
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    ConfigDict,
    Field,
    RootModel,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)

from curator.errors import unknown_key
from curator.measures.score_list import SCORES, spec_of
from curator.records import Reason
from curator.stage import StageConfig
from curator.storage.metadata_columns import is_metadata

Severity = Literal["reject", "flag"]
Unmeasured = Literal["reject", "keep"]
Values = NDArray[np.float64]


Value = StrictBool | StrictInt | StrictFloat | StrictStr
"""A value of metadata that a rule names."""


class Rule(StageConfig):
    """Bounds of one score; a clip at a bound is kept."""

    score: str | None = Field(
        None, description="the score that is judged; null for the one that the rule is named after"
    )
    min: float | None = Field(None, description="lowest score that is kept; null for no bound")
    max: float | None = Field(None, description="highest score that is kept; null for no bound")
    drop_lowest: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="share of the corpus below the bound, at most; null for no such bound",
    )
    drop_highest: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="share of the corpus above the bound, at most; null for no such bound",
    )
    one_of: tuple[Value, ...] | None = Field(
        None,
        description="values of metadata that are kept; of a list, one of its values; null for all",
    )
    none_of: tuple[Value, ...] | None = Field(
        None,
        description="values of metadata that are not kept; of a list, any; null for none",
    )
    severity: Severity = Field(
        "reject", description="reject, or flag: the clip is kept and has a tag"
    )
    unmeasured: Unmeasured = Field(
        "reject",
        description="what becomes of a clip that has no such score: reject (as not_measured), keep",
    )
    why: str = Field("", description="what the rule is for, and where its bounds come from")

    @model_validator(mode="after")
    def _ordered(self) -> "Rule":
        for side, bound in (("min", self.min), ("max", self.max)):
            if bound is not None and isnan(bound):
                raise ValueError(f"{side} is not a number (nan), and would keep every clip")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}; no clip could be kept")
        if (self.drop_lowest or 0.0) + (self.drop_highest or 0.0) >= 1:
            raise ValueError(
                f"drop_lowest {self.drop_lowest} and drop_highest {self.drop_highest} leave nothing"
            )
        return self

    @property
    def values(self) -> dict[str, tuple[Value, ...]]:
        """The values that are named, by key."""
        keys = ("one_of", "none_of")
        return {key: value for key in keys if (value := getattr(self, key)) is not None}

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds that are set, by key."""
        keys = ("min", "max", "drop_lowest", "drop_highest")
        return {key: value for key in keys if (value := getattr(self, key)) is not None}


class FilterConfig(RootModel[dict[str, Rule]]):
    """Rule -> bounds, in the order in which reasons count.

    A rule is named after its score, or has any other name and says its score.
    """

    model_config = ConfigDict(frozen=True)

    @field_validator("root")
    @classmethod
    def _known(cls, rules: dict[str, Rule]) -> dict[str, Rule]:
        for name, rule in rules.items():
            score = rule.score or name
            if not name.isidentifier() and not is_metadata(name):
                raise ValueError(
                    f"rule {name!r}; expected a name of letters, digits and _, or a column such as "
                    "meta.rating"
                )
            if score not in SCORES and not is_metadata(score):
                raise ValueError(unknown_key(score, SCORES, "score"))
            if rule.values and not is_metadata(score):
                raise ValueError(
                    f"rule {name!r}: one_of and none_of are for metadata, such as meta.license; "
                    f"{score} is a number and has bounds"
                )
            if (name in SCORES or is_metadata(name)) and rule.score not in (None, name):
                raise ValueError(
                    f"rule {name!r} is named after a score and is about {rule.score!r}; give it "
                    "another name"
                )
        return rules

    def metadata(self) -> tuple[list[str], list[str]]:
        """Columns of metadata that rules bound, and those whose values they name."""
        rules = {rule.score or name: rule for name, rule in self.root.items()}
        own = {score: rule for score, rule in rules.items() if is_metadata(score)}
        bounded = [score for score, rule in own.items() if rule.bounds]
        return bounded, [score for score in own if score not in bounded]

    def rejecting(self) -> dict[str, str]:
        """Rules with bounds that take clips out -> the score of each.

        A flag on a score that is switched off says nothing, and rejects nothing.
        """
        return {
            name: rule.score or name
            for name, rule in self.root.items()
            if rule.bounds and rule.severity == "reject"
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A rule with bounds as numbers, ready to judge."""

    rule: str
    """Its name in the recipe."""
    score: str
    min: float | None
    max: float | None
    severity: Severity
    one_of: tuple[Value, ...] | None = None
    none_of: tuple[Value, ...] | None = None
    unmeasured: Unmeasured = "reject"
    n_measured: int | None = None
    """Clips of the corpus that its quantiles were taken of; None where it has no quantile."""

    @property
    def is_idle(self) -> bool:
        """Whether no clip can be outside it."""
        return self.min is None and self.max is None and not self.names_values

    @property
    def names_values(self) -> bool:
        """Whether it names values of metadata."""
        return self.one_of is not None or self.none_of is not None

    def tag(self, reason: str) -> str:
        """The tag of a flagged clip: the rule's own name, or what it misses."""
        return reason if self.rule == self.score else self.rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One reason against a clip."""

    reason: str
    score: float | None
    threshold: float


def resolve(
    rules: Mapping[str, Rule], corpus: Callable[[str], Values] | None = None
) -> list[Bounds]:
    """Turns rules into numbers.

    Args:
        rules: From the recipe.
        corpus: Gives the values of a score over all candidate clips that are long enough and have
            it; whatever other rules say of them. None leaves bounds by quantile out.

    Returns:
        One entry per rule, in the same order. Where a rule has a bound of both kinds on one side,
        the stricter counts.
    """
    bounds = []
    for name, rule in rules.items():
        score = rule.score or name
        low, high, n_measured = rule.min, rule.max, None
        if corpus is not None and (rule.drop_lowest is not None or rule.drop_highest is not None):
            values = corpus(score)
            n_measured = len(values)
            low = _stricter(low, quantile_bound(values, lowest=rule.drop_lowest), max)
            high = _stricter(high, quantile_bound(values, highest=rule.drop_highest), min)
        bounds.append(
            Bounds(
                rule=name,
                score=score,
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


def _stricter(
    given: float | None, found: float | None, pick: Callable[[float, float], float]
) -> float | None:
    if given is None or found is None:
        return given if found is None else found
    return pick(given, found)


def quantile_bound(
    values: Values, *, lowest: float | None = None, highest: float | None = None
) -> float | None:
    """The bound that drops a share of some values, exactly.

    With k = floor(share * n) it is the value that has k others before it in order. As a clip at a
    bound is kept, exactly k are dropped, or fewer where the bound is a tie: equal values share
    their fate, and never more than the share is dropped.

    Args:
        values: [N] finite, in any order.
        lowest: Share to drop from the low end.
        highest: Share to drop from the high end.

    Returns:
        One of the values, or None where there is no share or nothing to take it of.
    """
    share = lowest if lowest is not None else highest
    if share is None or not len(values):
        return None
    # A float such as 0.29 lies below the decimal that was meant: 0.29 * 100 = 28.99...
    n_dropped = int(Fraction(repr(float(share))) * len(values))
    at = n_dropped if lowest is not None else len(values) - 1 - n_dropped
    return float(np.partition(values, at)[at])


def judge_rule(score: float | None, bound: Bounds) -> Verdict | None:
    """What one rule has against a score, whatever its severity."""
    spec = spec_of(bound.score)
    least = bound.min if bound.min is not None else bound.max
    if least is None or (score is None and bound.unmeasured == "keep"):
        return None
    if score is None:
        return Verdict(reason=Reason.NOT_MEASURED, score=None, threshold=least)
    if bound.min is not None and score < bound.min:
        return Verdict(reason=spec.low, score=score, threshold=bound.min)
    if bound.max is not None and score > bound.max:
        return Verdict(reason=spec.high, score=score, threshold=bound.max)
    return None
