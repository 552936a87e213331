"""Balanced selection: takes a number of survivors of each group, by the hash of their ids.

The choice depends on the seed and the ids alone, never on order or workers. A clip that is chosen
for a share or a cap stays chosen when that grows, and another clip in the corpus can displace it
only by coming before it in the order of hashes.
"""

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from curator.stages.select.config import SelectConfig
from curator.tables.clip_rows import ClipRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The outcome of one clip."""

    group: str
    """Name of its group; empty where all are one."""
    rank: int
    """Place in the order of its group, from 1."""
    quota: int
    """Number of clips taken of the group."""
    n_group: int

    @property
    def is_taken(self) -> bool:
        """Whether the clip is among those taken."""
        return self.rank <= self.quota


def select(clips: Sequence[ClipRow], config: SelectConfig) -> list[Selected]:
    """Chooses among clips in any order.

    Returns:
        One entry per clip, in the order of the input.
    """
    groups: dict[str, list[int]] = {}
    ids = [clip.clip_id for clip in clips]
    # The hash of an id decides, so that nothing else does.
    order = [(hashlib.sha256(f"{config.seed}:{name}".encode()).digest(), name) for name in ids]
    for number, clip in enumerate(clips):
        groups.setdefault(group_name(clip, config), []).append(number)
    chosen: dict[int, Selected] = {}
    for name, members in groups.items():
        members.sort(key=order.__getitem__)
        quota = _quota(name, len(members), config)
        for rank, number in enumerate(members, start=1):
            chosen[number] = Selected(group=name, rank=rank, quota=quota, n_group=len(members))
    return [chosen[number] for number in range(len(clips))]


def group_name(clip: ClipRow, config: SelectConfig) -> str:
    """Returns the name of a clip's group: the values of its columns."""
    return " | ".join(_value(clip.value(name)) for name in config.by)


def _value(value: Hashable | Sequence[str] | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return "+".join(sorted(map(str, value))) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _quota(group: str, n_clips: int, config: SelectConfig) -> int:
    share = config.keep_fractions.get(group, config.keep_fraction)
    quota = n_clips if share is None else ceil(Fraction(repr(float(share))) * n_clips)
    return quota if config.max_per_group is None else min(quota, config.max_per_group)
