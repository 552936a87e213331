"""The stage that judges candidate clips by the rules of the recipe."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from curator.buckets import class_settings
from curator.stage import BY_ORDER, Scope, Stage, Wait
from curator.stages.filter.config import FilterConfig
from curator.stages.filter.judging import (
    Columns,
    Decided,
    FilterNeeds,
    corpus_of,
    judge_table,
)
from curator.stages.filter.rules import Bounds, Sides, resolve

MAX_NAMED = 4
"""Most rules that a wait names."""


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

    def wait(self, before: Sequence[Wait], *, is_growing: bool) -> Wait:
        """Bounds by quantile need all clips."""
        on, rules = "every source to be analyzed", self.config.by_quantile()
        if not rules:
            why = f"{BY_ORDER}; no bound depends on other clips"
            return self.waits_for(on, why, is_needed=False)
        more = f" and {len(rules) - MAX_NAMED} more" if len(rules) > MAX_NAMED else ""
        why = f"bounds by quantile ({', '.join(rules[:MAX_NAMED])}{more}) are of all clips"
        if is_growing:
            why += f" of the first generation, then frozen: later ones wait {BY_ORDER}"
        return self.waits_for(on, why)

    def process(self, unit: pa.Table) -> Decided:
        """Judges candidates: rows of `candidates`, of all sources."""
        return self.judge(unit, self.bounds(unit))

    def bounds(self, clips: Columns, frozen: Mapping[str, Sides] | None = None) -> list[Bounds]:
        """Returns the rules as numbers.

        Args:
            clips: All candidates, in any order.
            frozen: Numbers of rules by quantile that earlier clips were held to; other rules have
                those of `clips`.
        """
        return resolve(self.config.root, corpus_of(clips, min_s=self._needs.min_s), frozen)

    def by_quantile(self, bounds: Sequence[Bounds]) -> dict[str, Sides]:
        """Returns lower and upper bound of each rule that drops a share, by its name.

        A rule whose score no clip has is left out: it has no numbers yet.
        """
        return {
            bound.rule: (bound.min, bound.max)
            for bound in bounds
            if self.config.root[bound.rule].is_by_quantile and bound.n_measured != 0
        }

    def judge(self, clips: pa.Table, bounds: Sequence[Bounds]) -> Decided:
        """Judges some of the candidates that the bounds are of."""
        return judge_table(clips, bounds, self._needs)

    def n_passing(self, clips: pa.Table) -> int:
        """Counts candidates that pass all rules that need no other clip."""
        return judge_table(clips, resolve(self.config.root), self._needs).n_kept
