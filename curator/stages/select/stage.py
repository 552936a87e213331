"""The stage that keeps a share or a number of clips per group, chosen by the hash of their ids.

Only the seed and the ids determine the choice, not the order of clips or the workers. If the share
or the cap grows, chosen clips stay chosen. A new clip of the corpus can displace a chosen clip only
if the hash of the new clip is lower.
"""

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.records.clips import Reason
from curator.stage import CarriedState, Corpus, CorpusStage, Decisions, StageReason, Work
from curator.stages.select.config import SelectConfig

TAKEN = "taken"  # family: number of chosen clips per group, over all generations
_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The outcome of N clips in G groups."""

    names: Sequence[str]  # names of the groups; one empty name if all clips are one group
    group: NDArray[np.int64]  # int64 [N], the number of each clip's group
    rank: NDArray[np.int64]  # int64 [N], place of each clip in the order of its group, from 1
    quota: NDArray[np.int64]  # int64 [G], largest number of clips to choose from each group
    n_clips: NDArray[np.int64]  # int64 [G], number of clips in each group

    @property
    def n_taken(self) -> NDArray[np.int64]:
        """Number of clips chosen from each group, int64 [G]."""
        return np.minimum(self.quota, self.n_clips)

    @property
    def is_taken(self) -> NDArray[np.bool_]:
        """Whether each clip is chosen, bool [N]."""
        taken: NDArray[np.bool_] = self.rank <= self.quota[self.group]
        return taken


class SelectStage(CorpusStage[SelectConfig]):
    """Rejects clips beyond the share or the cap of their group."""

    name = "select"
    version = 1
    config_type = SelectConfig

    @property
    def needs_all(self) -> str:
        """Says that the choice needs the size of each group."""
        config = self.config
        has_share = config.keep_fraction is not None or bool(config.keep_fractions)
        taken = ["a share"] if has_share else []
        if config.max_per_group is not None:
            taken.append(f"at most {config.max_per_group:,} clips")
        of = f"of each group by {', '.join(config.by)}" if config.by else "of all clips"
        return f"{' and '.join(taken)} {of}, chosen by a hash"

    @property
    def needs_earlier(self) -> str:
        """Says that a cap counts clips of all generations."""
        has_cap = self.config.max_per_group is not None
        return "; those of earlier generations count" if has_cap else ""

    def reasons(self) -> Iterator[StageReason]:
        """Yields the reason of clips that are not selected, if the settings can reject a clip."""
        if self.is_on:
            by = ", ".join(self.config.by) or "all clips together"
            words = f"beyond the share or cap of its group, by {by}"
            yield StageReason(name=Reason.NOT_SELECTED, words=words)

    def decide(self, corpus: Corpus, work: Work, /) -> Iterator[Decisions | CarriedState]:
        """Rejects clips that are not selected."""
        config, taken = self.config, dict(corpus.carried(TAKEN) or {})
        if config.enabled:
            before = dict(taken) if config.max_per_group is not None else {}
            ids = corpus["clip_id"].combine_chunks()
            chosen = select(ids, [corpus[name] for name in config.by], config, before)
            for name, n_taken in zip(chosen.names, chosen.n_taken.tolist(), strict=True):
                taken[name] = taken.get(name, 0) + n_taken
            yield self._rejected(chosen, before)
        yield CarriedState(TAKEN, taken)

    def _rejected(self, chosen: Selected, before: Mapping[str, int]) -> Decisions:
        rows = np.flatnonzero(~chosen.is_taken)
        group, rank = chosen.group[rows], chosen.rank[rows]
        n_before = np.array([before.get(name, 0) for name in chosen.names], np.int64)
        details = []
        for number, place in zip(group.tolist(), rank.tolist(), strict=True):
            quota, n_clips, n_earlier = (
                int(values[number]) for values in (chosen.quota, chosen.n_clips, n_before)
            )
            named = f"group {chosen.names[number]}: " if self.config.by else ""
            more = f", after {n_earlier} of earlier generations" if n_earlier else ""
            details.append(f"{named}{quota} of {n_clips} taken, this is no. {place}{more}")
        # Score and bound count earlier clips, as `max_per_group` does.
        columns = {
            "reason": [str(Reason.NOT_SELECTED)] * len(rows),
            "reason_detail": details,
            "reason_score": (rank + n_before[group]).astype(np.float64),
            "reason_threshold": (chosen.quota + n_before)[group].astype(np.float64),
        }
        return Decisions(rows, pa.table(columns))


def select(
    ids: pa.Array,
    columns: Sequence[pa.ChunkedArray],
    config: SelectConfig,
    taken: Mapping[str, int] | None = None,
) -> Selected:
    """Chooses clips by their ids and their values in the columns `select.by`.

    `taken` has the number of clips that earlier generations chose from each group, by its name.
    """
    names, group = groups_of(columns, len(ids))
    # Clips of a group are ordered by the hashes of their ids.
    order = np.lexsort([*reversed(_hashes(ids, config.seed)), group])
    n_clips = np.bincount(group, minlength=len(names))
    first = np.cumsum(n_clips) - n_clips
    rank = np.empty(len(group), np.int64)
    rank[order] = np.arange(len(group)) - first[group[order]] + 1
    pairs = zip(names, n_clips.tolist(), strict=True)
    before = taken or {}
    quota = np.array([_quota(name, n, config, before.get(name, 0)) for name, n in pairs], np.int64)
    return Selected(names=names, group=group, rank=rank, quota=quota, n_clips=n_clips)


def groups_of(
    columns: Sequence[pa.ChunkedArray], n_rows: int
) -> tuple[list[str], NDArray[np.int64]]:
    """Returns the names of groups, made of the columns' values, and each row's group number."""
    group = np.zeros(n_rows, np.int64)
    parts: list[tuple[str, ...]] = [()]
    for column in columns:
        texts, codes = _coded(column)
        pairs, group = np.unique(group * max(1, len(texts)) + codes, return_inverse=True)
        parts = [(*parts[at // len(texts)], texts[at % len(texts)]) for at in pairs.tolist()]
    names: dict[str, int] = {}
    # Different values may give the same name, and are one group.
    of = [names.setdefault(" | ".join(part), len(names)) for part in parts]
    return list(names), np.array(of, np.int64)[group]


def _coded(column: pa.ChunkedArray) -> tuple[list[str], NDArray[np.int64]]:
    """Returns the texts of a column's distinct values, and the number of each row's text."""
    code_of: dict[str, int] = {}
    codes = [np.zeros(0, np.int64)]
    for start in range(0, len(column), _AT_ONCE):
        texts = map(_value, column.slice(start, _AT_ONCE).to_pylist())
        block = [code_of.setdefault(text, len(code_of)) for text in texts]
        codes.append(np.array(block, np.int64))
    return list(code_of), np.concatenate(codes)


def _hashes(ids: pa.Array, seed: int) -> NDArray[np.uint64]:
    """Returns the hashes of ids as numbers, uint64 [4, N], the most significant first."""
    digests = (
        hashlib.sha256(f"{seed}:{name}".encode()).digest()
        for start in range(0, len(ids), _AT_ONCE)
        for name in ids.slice(start, _AT_ONCE).to_pylist()
    )
    return np.frombuffer(b"".join(digests), ">u8").reshape(-1, 4).T.astype(np.uint64)


def _value(value: Hashable | Sequence[str] | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return "+".join(sorted(map(str, value))) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _quota(group: str, n_clips: int, config: SelectConfig, n_before: int) -> int:
    share = config.keep_fractions.get(group, config.keep_fraction)
    quota = n_clips if share is None else ceil(Fraction(repr(float(share))) * n_clips)
    if config.max_per_group is None:
        return quota
    return min(quota, max(0, config.max_per_group - n_before))
