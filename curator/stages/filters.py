"""The rules that reject clips by their scores.

A rule is a score with a lower and an upper bound; the recipe's order of rules decides which reason
is named first.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator, model_validator

from curator.errors import unknown_key
from curator.records import Reason
from curator.stages.scores import SCORES


class Rule(BaseModel):
    """Bounds of one score; a clip at a bound is kept."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min: float | None = Field(None, description="lowest score that is kept; null for no bound")
    max: float | None = Field(None, description="highest score that is kept; null for no bound")
    why: str = Field("", description="what the rule is for, and where its bounds come from")

    @model_validator(mode="after")
    def _ordered(self) -> "Rule":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}; no clip could be kept")
        return self


class FilterConfig(RootModel[dict[str, Rule]]):
    """Score -> rule, in the order in which reasons count."""

    model_config = ConfigDict(frozen=True)

    @field_validator("root")
    @classmethod
    def _known(cls, rules: dict[str, Rule]) -> dict[str, Rule]:
        for name in rules:
            if name not in SCORES:
                raise ValueError(unknown_key(name, SCORES, "score"))
        return rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One reason against a clip."""

    reason: Reason
    score: float | None
    threshold: float


def judge(scores: Mapping[str, float | None], rules: Mapping[str, Rule]) -> list[Verdict]:
    """Reasons against a clip, in the order of the rules.

    Args:
        scores: From `score_clip`.
        rules: Bounds.

    Returns:
        Empty when the clip passes all rules.
    """
    verdicts = []
    for name, rule in rules.items():
        score, spec = scores[name], SCORES[name]
        if rule.min is None and rule.max is None:
            continue
        if score is None:
            bound = rule.min if rule.min is not None else rule.max
            assert bound is not None
            verdicts.append(Verdict(reason=Reason.NOT_MEASURED, score=None, threshold=bound))
        elif rule.min is not None and score < rule.min:
            verdicts.append(Verdict(reason=spec.low, score=score, threshold=rule.min))
        elif rule.max is not None and score > rule.max:
            verdicts.append(Verdict(reason=spec.high, score=score, threshold=rule.max))
    return verdicts
