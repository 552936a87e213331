"""The stage that applies the rules of the recipe to candidate clips."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from curator.buckets import class_settings
from curator.measures.filtering import (
    DECIDED,
    FilterNeeds,
    RuleCount,
    corpus_of,
    filter_table,
    total_counts,
)
from curator.measures.rules import Bounds, Sides, reasons_of, resolve
from curator.measures.score_list import BUILT_IN, Measures
from curator.number_text import amount, score
from curator.records.clips import OF_FORM, Reason
from curator.stage import (
    BY_ORDER,
    CarriedState,
    Corpus,
    CorpusStage,
    Decisions,
    StageReason,
    Wait,
    Work,
)
from curator.stages.filter.config import FilterConfig
from curator.tables.mark_table import VERDICTS

BOUNDS, RULES = "bounds", "rules"  # families: bounds by quantile; applied rules
MAX_NAMED = 4  # largest number of rules that the text of a wait names


class FilterStage(CorpusStage[FilterConfig]):
    """Decides about all candidates of a run at once, because a bound by quantile needs all."""

    name = "filter"
    version = 3
    reads = ("candidates",)
    config_type = FilterConfig
    sections = ("filters", "scores", "suitability", "semantic")
    time_share = 0.2

    def __init__(
        self, config: FilterConfig, needs: FilterNeeds, measures: Measures = BUILT_IN
    ) -> None:
        super().__init__(config)
        self._needs, self._measures = needs, measures

    def settings(self) -> dict[str, object]:
        """Returns the rules, and the settings of other sections."""
        needs = self._needs
        return {
            "rules": self.config.model_dump(mode="json"),
            "lengths": (needs.min_s, needs.max_s, needs.min_frames),
            "kept_ends": sorted(needs.kept_ends, key=str),
            "form": (needs.most_enlarged, needs.most_cropped, needs.most_repeated),
            "classes": class_settings(needs.classes),
            "semantic": needs.semantic.model_dump(mode="json"),
        }

    @property
    def needs_all(self) -> str | None:
        """Names the rules that depend on all clips by a bound by quantile; None without them."""
        rules = self.config.by_quantile()
        more = f" and {len(rules) - MAX_NAMED} more" if len(rules) > MAX_NAMED else ""
        named = f"bounds by quantile ({', '.join(rules[:MAX_NAMED])}{more})"
        return f"{named} are of all clips" if rules else None

    def wait(self, before: Sequence[Wait], *, is_growing: bool) -> Wait:
        """Waits for all sources, as the first stage of the corpus."""
        on, why = "every source to be analyzed", self.needs_all
        if why is None:
            why = f"{BY_ORDER}; no bound depends on other clips"
            return self.waits_for(on, why, is_needed=False)
        frozen = f" of the first generation, then frozen: later ones wait {BY_ORDER}"
        return self.waits_for(on, why + (frozen if is_growing else ""))

    def reasons(self) -> Iterator[StageReason]:
        """Yields the reasons of marks, lengths, rules, contents and forms."""
        needs, rare = self._needs, partial(StageReason, is_listed=False)
        yield rare(name=Reason.MARKED_DROP)
        yield StageReason(name=Reason.TOO_SHORT, words=f"shorter than {score(needs.min_s)} s")
        yield from (rare(name=name) for name in (Reason.TOO_LONG, Reason.SHORTER_THAN_WINDOW))
        for reason in reasons_of(self.config.root, self._measures):
            yield StageReason(name=reason)
        yield rare(name=Reason.NOT_MEASURED)
        if unwanted := needs.semantic.reject:
            least = score(needs.semantic.reject_from)
            words = f"{', '.join(unwanted)}, from a probability of {least}"
            yield StageReason(name=Reason.CONTENT_TYPE_UNWANTED, words=words)
        for reason in (*OF_FORM, Reason.NO_BUCKET, Reason.NO_ASPECT_CLASS):
            yield rare(name=reason)

    def decide(self, corpus: Corpus, work: Work, /) -> Iterator[Decisions | CarriedState | str]:
        """Decides about candidates; bounds by quantile of earlier generations stay in force."""
        frozen = {rule: (low, high) for rule, (low, high) in (corpus.carried(BOUNDS) or {}).items()}
        values = corpus_of(corpus, self._needs)
        bounds = resolve(self.config.root, values, frozen, measures=self._measures)
        cpu_only = {bound.rule: bound.score for bound in bounds if bound.spec.cpu_only}
        absent: Counter[str] = Counter()
        counts: list[Sequence[RuleCount]] = []
        start = 0
        for block in corpus.blocks():
            keep, drop = (corpus.marked(verdict, block["clip_id"]) for verdict in VERDICTS)
            decided = filter_table(block, bounds, self._needs, keep=keep, drop=drop)
            rows = np.arange(start, start + block.num_rows)
            yield Decisions(rows, decided.clips.select(DECIDED))
            start += block.num_rows
            counts.append(decided.rules)
            for rule, name in cpu_only.items():
                absent[rule] += block[name].null_count
        yield CarriedState(BOUNDS, self.by_quantile(bounds))
        facts = [rule.facts(self.config.root) for rule in total_counts(counts, bounds)]
        yield CarriedState(RULES, facts)
        for rule, n in (+absent).items():
            yield (
                f"filters.{rule}: {amount(n, 'clip')} without {cpu_only[rule]}, because a GPU "
                "decoded them or the decoder of their codec does not report this score; for clips "
                "that a GPU decoded, analyze their sources into another OUT on CPUs"
            )

    def by_quantile(self, bounds: Sequence[Bounds]) -> dict[str, Sides]:
        """Returns the bounds of rules with a quantile, by name; of scores that a clip has."""
        return {
            bound.rule: (bound.min, bound.max)
            for bound in bounds
            if self.config.root[bound.rule].is_by_quantile and bound.n_measured != 0
        }
