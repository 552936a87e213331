"""Settings of the rules: bounds of scores, in the order of precedence of reasons."""

from math import isnan
from typing import Literal

from pydantic import (
    ConfigDict,
    Field,
    RootModel,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from curator.errors import unknown_key
from curator.measures.score_list import measures_in
from curator.stage import StageConfig
from curator.storage.metadata_columns import is_metadata

Severity = Literal["reject", "flag"]
Unmeasured = Literal["reject", "keep"]
Value = StrictBool | StrictInt | StrictFloat | StrictStr  # of metadata, named by a rule


class Rule(StageConfig):
    """Bounds of one score; a clip at a bound is kept."""

    score: str | None = None
    """the score that is judged; null for the one that the rule is named after"""
    min: float | None = None
    """lowest score that is kept; null for no bound"""
    max: float | None = None
    """highest score that is kept; null for no bound"""
    drop_lowest: float | None = Field(None, ge=0, lt=1)
    """share of the corpus below the bound, at most; null for no such bound"""
    drop_highest: float | None = Field(None, ge=0, lt=1)
    """share of the corpus above the bound, at most; null for no such bound"""
    one_of: tuple[Value, ...] | None = None
    """values of metadata that are kept; of a list, one of its values; null for all"""
    none_of: tuple[Value, ...] | None = None
    """values of metadata that are not kept; of a list, any; null for none"""
    severity: Severity = "reject"
    """reject, or flag: the clip is kept and has a tag"""
    unmeasured: Unmeasured = "reject"
    """what becomes of a clip that has no such score: reject (as not_measured), keep"""
    why: str = ""
    """what the rule is for, and where its bounds come from"""

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
    def is_by_quantile(self) -> bool:
        """Whether a bound is a share of the corpus."""
        return self.drop_lowest is not None or self.drop_highest is not None

    @property
    def values(self) -> dict[str, tuple[Value, ...]]:
        """Returns the named values, by key."""
        return self.model_dump(include={"one_of", "none_of"}, exclude_none=True)

    @property
    def bounds(self) -> dict[str, float]:
        """Returns the bounds that are set, by key."""
        keys = {"min", "max", "drop_lowest", "drop_highest"}
        return self.model_dump(include=keys, exclude_none=True)


class FilterConfig(RootModel[dict[str, Rule]]):
    """Rule -> bounds, in the order of precedence of reasons.

    A rule is named after its score, or has any other name and gives its score.
    """

    model_config = ConfigDict(frozen=True)

    @field_validator("root")
    @classmethod
    def _check_names(cls, rules: dict[str, Rule], info: ValidationInfo) -> dict[str, Rule]:
        scores = measures_in(info).specs
        for name, rule in rules.items():
            score = rule.score or name
            if not name.isidentifier() and not is_metadata(name):
                raise ValueError(
                    f"rule {name!r}; expected a name of letters, digits and _, or a column such as "
                    "meta.rating"
                )
            if score not in scores and not is_metadata(score):
                raise ValueError(unknown_key(score, scores, "score"))
            if rule.values and not is_metadata(score):
                raise ValueError(
                    f"rule {name!r}: one_of and none_of are for metadata, such as meta.license; "
                    f"{score} is a number and has bounds"
                )
            if (name in scores or is_metadata(name)) and rule.score not in (None, name):
                raise ValueError(
                    f"rule {name!r} is named after a score and is about {rule.score!r}; give it "
                    "another name"
                )
        return rules

    def metadata(self) -> tuple[list[str], list[str]]:
        """Returns the metadata columns with bounds, and those with named values."""
        rules = {rule.score or name: rule for name, rule in self.root.items()}
        own = {score: rule for score, rule in rules.items() if is_metadata(score)}
        bounded = [score for score, rule in own.items() if rule.bounds]
        return bounded, [score for score in own if score not in bounded]

    def by_quantile(self) -> list[str]:
        """Returns the rules with a bound that is a share of the corpus."""
        return [name for name, rule in self.root.items() if rule.is_by_quantile]

    def rejecting(self) -> dict[str, str]:
        """Returns rules with bounds that reject clips -> the score of each.

        A flag on a score that is switched off says nothing, and rejects nothing.
        """
        return {
            name: rule.score or name
            for name, rule in self.root.items()
            if rule.bounds and rule.severity == "reject"
        }
