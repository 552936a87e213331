"""The stage that takes a share or a number of clips per group."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from curator.records.clips import Reason
from curator.stage import JUDGED, Scope, Stage, Wait
from curator.stages.select.config import SelectConfig
from curator.stages.select.selection import select
from curator.tables.clip_rows import ClipRows, reject


class SelectStage(Stage[SelectConfig, ClipRows, None]):
    """Rejects clips beyond the share or the cap of their group."""

    name = "select"
    version = 1
    scope = Scope.CORPUS
    reads = ("clips",)
    writes = ("clips",)
    config_type = SelectConfig

    def __init__(self, config: SelectConfig) -> None:
        super().__init__(config)
        self.taken: dict[str, int] = {}
        """Clips taken of each group, with those of earlier generations."""

    @property
    def is_on(self) -> bool:
        """Whether any clip could be left out."""
        return self.config.enabled

    def wait(self, before: Sequence[Wait], *, is_growing: bool) -> Wait:
        """The size of each group must be known."""
        config = self.config
        has_share = config.keep_fraction is not None or bool(config.keep_fractions)
        taken = ["a share"] if has_share else []
        if config.max_per_group is not None:
            taken.append(f"at most {config.max_per_group:,}")
        of = f"of each group by {', '.join(config.by)}" if config.by else "of all clips"
        why = f"{' and '.join(taken)} {of}, chosen by a hash"
        if is_growing and config.max_per_group is not None:
            why += "; those of earlier generations count"
        return self.waits_for(JUDGED, why)

    def process(self, unit: ClipRows) -> None:
        """Marks kept clips that are not selected."""
        config = self.config
        if not config.enabled:
            return
        kept = unit.kept_numbers()
        columns = [unit.column(name).take(pa.array(kept)) for name in config.by]
        before = dict(self.taken) if config.max_per_group is not None else {}
        chosen = select(unit.kept_ids(), columns, config, before)
        for name, n_taken in zip(chosen.names, chosen.n_taken.tolist(), strict=True):
            self.taken[name] = self.taken.get(name, 0) + n_taken
        for place in np.flatnonzero(~chosen.is_taken).tolist():
            clip, group, rank = unit[int(kept[place])], chosen.group[place], chosen.rank[place]
            name, quota, n_clips = chosen.names[group], chosen.quota[group], chosen.n_clips[group]
            named = f"group {name}: " if config.by else ""
            n_before = before.get(name, 0)
            more = f", after {n_before} of earlier generations" if n_before else ""
            detail = f"{named}{quota} of {n_clips} taken, this is no. {rank}{more}"
            reject(clip, Reason.NOT_SELECTED, detail=detail)
            # Counted with earlier clips, as `max_per_group` is.
            clip.reason_score = float(rank + n_before)
            clip.reason_threshold = float(quota + n_before)
