"""The stage that takes a share or a number of clips per group."""

import numpy as np
import pyarrow as pa

from curator.records.clips import Reason
from curator.stage import Scope, Stage
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

    def process(self, unit: ClipRows) -> None:
        """Marks kept clips that are not selected."""
        config = self.config
        if not config.enabled:
            return
        kept = unit.kept_numbers()
        columns = [unit.column(name).take(pa.array(kept)) for name in config.by]
        chosen = select(unit.kept_ids(), columns, config, self.taken)
        for name, n_taken in zip(chosen.names, chosen.n_taken.tolist(), strict=True):
            self.taken[name] = self.taken.get(name, 0) + n_taken
        for place in np.flatnonzero(~chosen.is_taken).tolist():
            clip, group, rank = unit[int(kept[place])], chosen.group[place], chosen.rank[place]
            named = f"group {chosen.names[group]}: " if config.by else ""
            quota, n_clips = chosen.quota[group], chosen.n_clips[group]
            detail = f"{named}{quota} of {n_clips} taken, this is no. {rank}"
            reject(clip, Reason.NOT_SELECTED, detail=detail)
            clip.reason_score, clip.reason_threshold = float(rank), float(quota)
