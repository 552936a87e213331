"""The stage that takes a share or a number of clips per group."""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from curator.records.clips import Reason
from curator.stage import Corpus, CorpusStage, Decisions, Left, Work
from curator.stages.select.config import SelectConfig
from curator.stages.select.selection import Selected, select

TAKEN = "taken"  # family: clips taken of each group, with those of earlier generations


class SelectStage(CorpusStage[SelectConfig]):
    """Rejects clips beyond the share or the cap of their group."""

    name = "select"
    version = 1
    config_type = SelectConfig

    @property
    def is_on(self) -> bool:
        """Whether any clip could be left out."""
        return self.config.enabled

    @property
    def needs_all(self) -> str:
        """The size of each group must be known."""
        config = self.config
        has_share = config.keep_fraction is not None or bool(config.keep_fractions)
        taken = ["a share"] if has_share else []
        if config.max_per_group is not None:
            taken.append(f"at most {config.max_per_group:,}")
        of = f"of each group by {', '.join(config.by)}" if config.by else "of all clips"
        return f"{' and '.join(taken)} {of}, chosen by a hash"

    @property
    def needs_earlier(self) -> str:
        """A cap is of all generations."""
        has_cap = self.config.max_per_group is not None
        return "; those of earlier generations count" if has_cap else ""

    def decide(self, corpus: Corpus, work: Work, /) -> Iterator[Decisions | Left]:
        """Rejects clips that are not selected."""
        config, taken = self.config, dict(corpus.earlier(TAKEN) or {})
        if config.enabled:
            before = dict(taken) if config.max_per_group is not None else {}
            ids = corpus["clip_id"].combine_chunks()
            chosen = select(ids, [corpus[name] for name in config.by], config, before)
            for name, n_taken in zip(chosen.names, chosen.n_taken.tolist(), strict=True):
                taken[name] = taken.get(name, 0) + n_taken
            yield self._rejected(chosen, before)
        yield Left(TAKEN, taken)

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
        # Counted with earlier clips, as `max_per_group` is.
        columns = {
            "reason": [str(Reason.NOT_SELECTED)] * len(rows),
            "reason_detail": details,
            "reason_score": (rank + n_before[group]).astype(np.float64),
            "reason_threshold": (chosen.quota + n_before)[group].astype(np.float64),
        }
        return Decisions(rows, pa.table(columns))
