"""The stage that takes a share or a number of clips per group."""

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

    def process(self, unit: ClipRows) -> None:
        """Marks kept clips that are not selected."""
        config = self.config
        if not config.enabled:
            return
        kept = unit.kept()
        for clip, chosen in zip(kept, select(kept, config), strict=True):
            if chosen.is_taken:
                continue
            group = f"group {chosen.group}: " if config.by else ""
            detail = f"{group}{chosen.quota} of {chosen.n_group} taken, this is no. {chosen.rank}"
            reject(clip, Reason.NOT_SELECTED, detail=detail)
            clip.reason_score, clip.reason_threshold = float(chosen.rank), float(chosen.quota)
