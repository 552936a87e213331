"""Balanced selection: of each group of survivors so many, chosen by the hash of their ids.

What is chosen depends on the seed and the ids alone, never on order or workers. A clip that is
chosen for a share or a cap stays chosen when that grows, and another clip in the corpus can
displace it only by coming before it in the order of hashes.
"""

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from curator.errors import unknown_key
from curator.tables.schemas import CANDIDATES_SCHEMA, CLIPS_SCHEMA

COLUMNS = tuple(n for n in CLIPS_SCHEMA.names if n in CANDIDATES_SCHEMA.names or n == "bucket")
"""Columns of `clips` that groups can be made of: those that are known before a clip is written."""


class SelectConfig(BaseModel):
    """How many survivors of each group are taken."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    by: tuple[str, ...] = Field(
        (),
        description="columns of `clips` whose values make the groups; clips with the same list of "
        "tags, in any order, are a group; without columns all survivors are one group",
        json_schema_extra={"unit": "columns"},
    )
    max_per_group: int | None = Field(
        None,
        ge=1,
        description="most clips of a group; null for no limit",
        json_schema_extra={"unit": "clips"},
    )
    keep_fraction: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of each group that is taken, rounded up; null for all",
        json_schema_extra={"unit": "share of clips"},
    )
    keep_fractions: dict[str, float] = Field(
        {},
        description="share of single groups, by their values joined with ' | '; 0 takes none",
        json_schema_extra={"unit": "share of clips"},
    )
    seed: int = Field(
        0,
        description="another seed takes other clips",
        json_schema_extra={"unit": "whole number"},
    )

    @field_validator("by", mode="before")
    @classmethod
    def _listed(cls, by: object) -> object:
        return (by,) if isinstance(by, str) else by

    @field_validator("by")
    @classmethod
    def _known(cls, by: tuple[str, ...]) -> tuple[str, ...]:
        for name in by:
            if name not in COLUMNS:
                raise ValueError(unknown_key(name, COLUMNS, "column of clips"))
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
        return (
            self.max_per_group is not None
            or self.keep_fraction is not None
            or bool(self.keep_fractions)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """What became of one clip.

    Attributes:
        group: Name of its group; empty where all are one.
        rank: Place in the order of its group, from 1.
        quota: How many of the group are taken.
        n_group: How many there are.
    """

    group: str
    rank: int
    quota: int
    n_group: int

    @property
    def is_taken(self) -> bool:
        """Whether the clip is among those taken."""
        return self.rank <= self.quota


def select(clips: Sequence[Mapping[str, Any]], config: SelectConfig) -> list[Selected]:
    """Chooses among clips.

    Args:
        clips: Rows of `clips`, in any order, each id once.
        config: Groups, shares, caps and the seed.

    Returns:
        One entry per clip, in the order of the input.
    """
    groups: dict[str, list[int]] = {}
    ids: list[str] = []
    for number, clip in enumerate(clips):
        groups.setdefault(group_name(clip, config), []).append(number)
        ids.append(clip["clip_id"])
    chosen: dict[int, Selected] = {}
    for name, members in groups.items():
        members.sort(key=lambda number: _order(ids[number], config.seed))
        quota = _quota(name, len(members), config)
        for rank, number in enumerate(members, start=1):
            chosen[number] = Selected(group=name, rank=rank, quota=quota, n_group=len(members))
    return [chosen[number] for number in range(len(clips))]


def group_name(clip: Mapping[str, Any], config: SelectConfig) -> str:
    """Name of a clip's group: the values of its columns."""
    return " | ".join(_value(clip.get(name)) for name in config.by)


def _value(value: Hashable | Sequence[str] | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return "+".join(sorted(map(str, value))) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _order(clip_id: str, seed: int) -> tuple[bytes, str]:
    return hashlib.sha256(f"{seed}:{clip_id}".encode()).digest(), clip_id


def _quota(group: str, n_clips: int, config: SelectConfig) -> int:
    share = config.keep_fractions.get(group, config.keep_fraction)
    quota = n_clips if share is None else ceil(Fraction(repr(float(share))) * n_clips)
    return quota if config.max_per_group is None else min(quota, config.max_per_group)
