"""The stage that judges candidate clips by the rules of the recipe."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from curator.buckets import BucketClasses, class_settings
from curator.measures.clip_semantics import SemanticConfig
from curator.stage import Scope, Stage
from curator.stages.filter.config import FilterConfig
from curator.stages.filter.judging import Decided, corpus_of, judge_table
from curator.stages.filter.rules import Bounds, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterNeeds:
    """Settings of other recipe sections that judging needs.

    Attributes:
        max_s: Longest clip; one of more than twice that is rejected. None where candidates have no
            stored length.
        min_frames: Frames that each clip must have; None for any number.
        classes: Buckets; a clip that fits none is rejected.
        semantic: Content types that are rejected.
    """

    min_s: float
    max_s: float | None
    min_frames: int | None
    classes: BucketClasses
    semantic: SemanticConfig


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
        return self._judged(unit, resolve(self.config.root, corpus))

    def n_passing(self, clips: pa.Table) -> int:
        """Counts candidates that pass all rules that need no other clip."""
        return self._judged(clips, resolve(self.config.root)).n_kept

    def _judged(self, clips: pa.Table, bounds: Sequence[Bounds]) -> Decided:
        needs = self._needs
        return judge_table(
            clips,
            bounds,
            min_s=needs.min_s,
            max_s=needs.max_s,
            min_frames=needs.min_frames,
            shard=needs.classes,
            semantic=needs.semantic,
        )
