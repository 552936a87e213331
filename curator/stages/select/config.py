"""Settings of the selection: the number of survivors taken of each group."""

from collections.abc import Collection

from pydantic import ValidationInfo, field_validator, model_validator

from curator.errors import unknown_key
from curator.measures.score_list import measures_in
from curator.stage import StageConfig, setting
from curator.storage.metadata_columns import is_metadata
from curator.tables.schemas import candidates_schema, clips_schema


def columns(scores: Collection[str]) -> list[str]:
    """Returns columns of `clips` for groups: those known before a clip is written."""
    early = {*candidates_schema(scores).names, "bucket", "cluster"}
    return [name for name in clips_schema(scores).names if name in early]


class SelectConfig(StageConfig):
    """The number of survivors taken of each group."""

    by: tuple[str, ...] = setting((), unit="columns")
    """columns of `clips`, meta.* too, whose values make the groups; clips with the same list of
    tags, in any order, are a group; without columns all survivors are one group"""
    max_per_group: int | None = setting(None, ge=1, unit="clips")
    """most clips of a group; null for no limit"""
    keep_fraction: float | None = setting(None, ge=0, le=1, unit="share of clips")
    """share of each group that is taken, rounded up; null for all"""
    keep_fractions: dict[str, float] = setting({}, unit="share of clips")
    """share of single groups, by their values joined with ' | '; 0 takes none"""
    seed: int = setting(0, unit="whole number")
    """another seed takes other clips"""

    @field_validator("by", mode="before")
    @classmethod
    def _listed(cls, by: object) -> object:
        return (by,) if isinstance(by, str) else by

    @field_validator("by")
    @classmethod
    def _check_names(cls, by: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        allowed = columns(measures_in(info).specs)
        for name in by:
            if name not in allowed and not is_metadata(name):
                raise ValueError(unknown_key(name, allowed, "column of clips"))
        return by

    @model_validator(mode="after")
    def _meant(self) -> "SelectConfig":
        for group, share in self.keep_fractions.items():
            if not 0 <= share <= 1:
                raise ValueError(f"keep_fractions of {group!r} is {share}; expected 0 to 1")
        if self.keep_fractions and not self.by:
            raise ValueError("keep_fractions names groups, and `by` names no column to make them")
        return self

    @property
    def enabled(self) -> bool:
        """Whether any clip could be left out."""
        limits = self.max_per_group, self.keep_fraction
        return limits != (None, None) or bool(self.keep_fractions)
