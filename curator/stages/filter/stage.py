"""The stage that judges candidate clips by the rules of the recipe."""

import pyarrow as pa

from curator.buckets import class_settings
from curator.stage import Scope, Stage
from curator.stages.filter.config import FilterConfig
from curator.stages.filter.judging import Decided, FilterNeeds, corpus_of, judge_table
from curator.stages.filter.rules import resolve


class FilterStage(Stage[FilterConfig, pa.Table, Decided]):
    """Judges all candidates of a run at once, because a bound by quantile needs every one."""

    name = "filter"
    version = 1
    scope = Scope.CORPUS
    reads = ("candidates",)
    writes = ("clips",)
    config_type = FilterConfig

    def __init__(self, config: FilterConfig, needs: FilterNeeds) -> None:
        super().__init__(config)
        self._needs = needs

    def settings(self) -> dict[str, object]:
        """Rules, and the settings of other sections."""
        needs = self._needs
        return {
            "rules": self.config.model_dump(mode="json"),
            "lengths": (needs.min_s, needs.max_s, needs.min_frames),
            "classes": class_settings(needs.classes),
            "semantic": needs.semantic.model_dump(mode="json"),
        }

    def process(self, unit: pa.Table) -> Decided:
        """Judges candidates: rows of `candidates`, of all sources."""
        corpus = corpus_of(unit, min_s=self._needs.min_s)
        return judge_table(unit, resolve(self.config.root, corpus), self._needs)

    def n_passing(self, clips: pa.Table) -> int:
        """Counts candidates that pass all rules that need no other clip."""
        return judge_table(clips, resolve(self.config.root), self._needs).n_kept
