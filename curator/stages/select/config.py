"""Settings of the selection of clips from each group."""

from collections.abc import Collection

from pydantic import ValidationInfo, field_validator, model_validator

from curator.errors import unknown_key
from curator.measures.score_list import measures_in
from curator.records.clips import Candidate, Clip
from curator.records.columns import columns_of
from curator.stage import StageConfig, setting
from curator.storage.metadata_columns import is_metadata


def columns(scores: Collection[str]) -> list[str]:
    """Returns the columns of `clips` that can make groups: those known before a clip is cut."""
    early = {*columns_of(Candidate), "bucket", "cluster"}
    named = (name for name in columns_of(Clip) if name in early)
    return [column for name in named for column in (scores if name == "scores" else (name,))]


class SelectConfig(StageConfig):
    """Number or share of the remaining clips to keep, per group."""

    by: tuple[str, ...] = setting((), unit="columns")
    """columns of `clips`, also meta.*; clips with equal values are one group, and so are clips with
    the same tags in any order; without columns, all remaining clips are one group"""
    max_per_group: int | None = setting(None, ge=1, unit="clips")
    """largest number of clips of a group; null for no limit"""
    keep_fraction: float | None = setting(None, ge=0, le=1, unit="share of clips")
    """share of each group to keep, rounded up to whole clips; null for all"""
    keep_fractions: dict[str, float] = setting({}, unit="share of clips")
    """shares of single groups, by their values joined with ' | '; 0 keeps no clip"""
    seed: int = setting(0, unit="whole number")
    """seed of the hash that chooses clips"""

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
            raise ValueError("keep_fractions names groups, but `by` names no column of groups")
        return self

    @property
    def enabled(self) -> bool:
        """Whether the settings can reject a clip."""
        limits = self.max_per_group, self.keep_fraction
        return limits != (None, None) or bool(self.keep_fractions)
