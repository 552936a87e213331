"""Settings of the rules. The first rule in the recipe that rejects a clip gives its reason."""

from collections.abc import Collection
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
from curator.measures.score_list import RecipeContext, measures_in
from curator.stage import StageConfig
from curator.storage.metadata_columns import is_metadata

Severity = Literal["reject", "flag"]
Unmeasured = Literal["reject", "keep"]
Value = StrictBool | StrictInt | StrictFloat | StrictStr  # a value of metadata in a rule


SHORT_SIDE, TRAINED = "short_side_px", "trained"
"""Score whose `min` may be this word: the smallest side of written clips."""

CAPTION_CLIP_SCORE = "caption_clip_score"
"""Column of an annotator of this package, which a recipe may have without an entry in `stages`."""


class Rule(StageConfig):
    """Bounds of one score, or of one column of an annotator; a clip at a bound is kept."""

    score: str | None = None
    """the score or column that the rule bounds; null for the one with the rule's name"""
    min: float | None = None
    """lowest score that is kept; null for no bound; for short_side_px also `trained`: the smallest
    side of the clips that are written"""
    max: float | None = None
    """highest score that is kept; null for no bound"""
    drop_lowest: float | None = Field(None, ge=0, lt=1)
    """largest share of clips below the bound, the clips with the lowest scores; null for none"""
    drop_highest: float | None = Field(None, ge=0, lt=1)
    """largest share of clips above the bound, the clips with the highest scores; null for none"""
    one_of: tuple[Value, ...] | None = None
    """values of metadata or of a column that are kept; one of them in a list is enough; null for
    all"""
    none_of: tuple[Value, ...] | None = None
    """values of metadata or of a column that are not kept, also as one value of a list; null for
    none"""
    severity: Severity = "reject"
    """reject a clip outside the bounds, or flag: keep the clip with a tag"""
    unmeasured: Unmeasured = "reject"
    """reject a clip without this score (reason not_measured), or keep the clip"""
    why: str = ""
    """purpose of the rule, and the source of its bounds"""

    @model_validator(mode="after")
    def _ordered(self) -> "Rule":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}; no clip could be kept")
        if (self.drop_lowest or 0.0) + (self.drop_highest or 0.0) >= 1:
            raise ValueError(
                f"drop_lowest {self.drop_lowest} and drop_highest {self.drop_highest} leave nothing"
                "; expected a sum below 1"
            )
        return self

    @property
    def is_by_quantile(self) -> bool:
        """Whether a bound is a share of the corpus."""
        return self.drop_lowest is not None or self.drop_highest is not None

    @property
    def values(self) -> dict[str, tuple[Value, ...]]:
        """Returns `one_of` and `none_of`, by key, as far as they are set."""
        return self.model_dump(include={"one_of", "none_of"}, exclude_none=True)

    @property
    def bounds(self) -> dict[str, float]:
        """Returns the bounds that are set, by key."""
        keys = {"min", "max", "drop_lowest", "drop_highest"}
        return self.model_dump(include=keys, exclude_none=True)


class FilterConfig(RootModel[dict[str, Rule]]):
    """Rules by name; the first rule that rejects a clip gives its reason.

    A rule has the name of its score, or another name and the key `score`.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    @field_validator("root")
    @classmethod
    def _check_names(cls, rules: dict[str, Rule], info: ValidationInfo) -> dict[str, Rule]:
        scores = measures_in(info).specs
        has_annotators = isinstance(info.context, RecipeContext) and info.context.has_annotators
        for name, rule in rules.items():
            score = rule.score or name
            if not name.isidentifier() and not is_metadata(name):
                raise ValueError(
                    f"rule {name!r}; expected a name of letters, digits and _, or a column such as "
                    "meta.rating"
                )
            is_column = _is_column(score, scores)
            if is_column and not has_annotators and score != CAPTION_CLIP_SCORE:
                raise ValueError(
                    f"{unknown_key(score, scores, 'score')}; if it is a column of an annotator, "
                    "name the annotator in stages, such as stages=[caption_claims]"
                )
            if is_column and rule.is_by_quantile:
                raise ValueError(
                    f"rule {name!r}: drop_lowest and drop_highest are for scores and metadata, "
                    f"which are known before clips are cut; {score} is a column of an annotator: "
                    "set min or max"
                )
            if rule.values and score in scores:
                raise ValueError(
                    f"rule {name!r}: one_of and none_of are for metadata, such as meta.license; "
                    f"{score} is a number: set min or max"
                )
            if (name in scores or is_metadata(name)) and rule.score not in (None, name):
                raise ValueError(
                    f"rule {name!r} has the name of a score and bounds another score, "
                    f"{rule.score!r}; rename the rule"
                )
        return rules

    def of_scores(self, scores: Collection[str]) -> "FilterConfig":
        """Returns the rules on these scores and on metadata, which apply before clips are cut."""
        return self._some(scores, of_columns=False)

    def of_columns(self, scores: Collection[str]) -> "FilterConfig":
        """Returns the rules on columns of annotators: on neither these scores nor metadata."""
        return self._some(scores, of_columns=True)

    @property
    def columns(self) -> frozenset[str]:
        """The scores and columns that the rules name."""
        return frozenset(rule.score or name for name, rule in self.root.items())

    def rejecting_columns(self) -> dict[str, None]:
        """Returns the scores and columns of rules that reject clips, in the order of the rules."""
        rules = self.root.items()
        return dict.fromkeys(
            rule.score or name for name, rule in rules if rule.severity == "reject"
        )

    def _some(self, scores: Collection[str], *, of_columns: bool) -> "FilterConfig":
        # Without a check of names, which the measures of the recipe have passed.
        return FilterConfig.model_construct(
            {
                name: rule
                for name, rule in self.root.items()
                if _is_column(rule.score or name, scores) is of_columns
            }
        )

    def metadata(self) -> tuple[list[str], list[str]]:
        """Returns the metadata columns with bounds, and the metadata columns without bounds."""
        rules = {rule.score or name: rule for name, rule in self.root.items()}
        own = {score: rule for score, rule in rules.items() if is_metadata(score)}
        bounded = [score for score, rule in own.items() if rule.bounds]
        return bounded, [score for score in own if score not in bounded]

    def by_quantile(self) -> list[str]:
        """Returns the rules with a bound that is a share of the corpus."""
        return [name for name, rule in self.root.items() if rule.is_by_quantile]

    def rejecting(self) -> dict[str, str]:
        """Returns the score of each rule with bounds that rejects clips, by the rule's name."""
        return {
            name: rule.score or name
            for name, rule in self.root.items()
            if rule.bounds and rule.severity == "reject"
        }


def _is_column(name: str, scores: Collection[str]) -> bool:
    return name not in scores and not is_metadata(name)
