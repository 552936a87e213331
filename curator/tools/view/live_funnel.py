"""Shows at once which clips other bounds keep: `curate tune --rules-only`, held in memory.

Shape letters: N clips in the order of `clips`, without remainders of divided clips.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.dataset.output_form import as_written
from curator.measures.filtering import (
    CONTENT_RULE,
    FilterNeeds,
    Mask,
    checks_around,
    corpus_of,
    rule_checks,
    score_values,
)
from curator.measures.rule_config import Rule
from curator.measures.rules import Bounds, resolve
from curator.pipeline import filter_needs
from curator.recipe import Recipe, column_rules, with_changes
from curator.records.clips import OVERRIDDEN, Reason
from curator.storage.metadata_columns import is_metadata
from curator.tools.report.histogram import BINS, Axis, axis_of
from curator.tools.review.bound_tuning import check_measured, full_key
from curator.tools.review.changed_decisions import (
    after_selection,
    is_annotated,
    is_refused_hdr,
    reasons_after_rules,
)
from curator.tools.review.finished_run import Finished, is_of_stage

KEPT = 0
"""Code of clips without a reason for rejection."""
MAX_CACHED = 64
"""Most scores whose values stay in memory; each takes 9 MB for a million clips."""


class Outcomes(NamedTuple):
    """The outcomes of all clips under a changed recipe."""

    codes: NDArray[np.uint16]
    """Index in `LiveFunnel.reasons` of the first reason against each clip, uint16 [N]."""
    bounds: tuple[Bounds, ...]
    """The rules with numeric bounds, in the recipe's order."""


class ScoreBins(NamedTuple):
    """The values of a score, float64 [N], and their histogram bins, uint8 [N].

    A clip without a value has the bin BINS. `axis` is None if all values are equal.
    """

    values: NDArray[np.float64]
    n_measured: int
    bins: NDArray[np.uint8]
    axis: Axis | None


_Hit = tuple[int, Mask, bool]
"""Code of a reason, the clips with it, bool [N], and whether a `keep` mark overrides it."""


class LiveFunnel:
    """Filters all clips of a run repeatedly, and evaluates only the rules that changed.

    Outcomes of deduplication, selection and custom stages stay, as with `--rules-only`.
    """

    def __init__(self, finished: Finished) -> None:
        self.finished = finished.without_remainders()
        self._recipe = self.finished.recipe
        self.stored = self._with_annotations(self.finished.candidates())
        """Scored clips, in the form of their sources, with the columns that rules bound."""
        self._is_annotated = is_annotated(self.finished.clips, self._recipe)
        self.candidates = self._as_written(self._recipe)
        """Scored clips, with the form in which this recipe writes them."""
        self.reasons: list[str | None] = [None]
        """The reason for each code; None for kept clips."""
        kept = pc.equal(self.finished.clips["decision"], "kept")
        reasons = pc.if_else(kept, None, self.finished.clips["reason"])
        coded = reasons.dictionary_encode().combine_chunks()
        own = [self._code(name) for name in coded.dictionary.to_pylist()]
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        self.now = np.array([*own, KEPT], np.uint16)[codes]
        """Codes of the clips' present outcomes, uint16 [N]."""
        others = reasons_after_rules(self.finished)
        stays = np.array(
            [name in others or is_of_stage(name, self.finished) for name in self.reasons]
        )
        is_late = stays[self.now] | after_selection(self.finished)
        self._late = np.where(is_late, self.now, KEPT).astype(np.uint16)
        self.seconds = score_values(self.candidates, "seconds")
        self._needs = filter_needs(self._recipe)
        bounds = self._resolved(self._recipe.filters.root, self._needs)
        self._bounds = {bound.rule: bound for bound in bounds}
        self._hits: dict[str, tuple[Bounds, list[_Hit]]] = {}
        self._around = self._around_of(self._needs, self.candidates)
        self._keep = self._drop = np.zeros(len(self.now), np.bool_)
        self._is_overridden = np.array([name in OVERRIDDEN for name in self.reasons])[self._late]
        self.score = lru_cache(MAX_CACHED)(self._score)
        """Returns the values of a score by name; raises `KeyError` for an unknown score."""
        self._last: tuple[tuple[str, ...], Outcomes] | None = None

    @property
    def rules(self) -> list[Bounds]:
        """The rules that the run applied."""
        return list(self._bounds.values())

    def decide(self, changes: Sequence[str]) -> Outcomes:
        """Filters all clips with changes of the recipe, in the syntax of `curate tune`.

        Raises:
            RecipeError: A change is not valid.
            UsageError: A change needs a run, or a score that the run did not measure.
        """
        keys = tuple(full_key(change) for change in changes)
        if self._last is not None and self._last[0] == keys:
            return self._last[1]
        recipe = with_changes(self._recipe, keys)
        check_measured(self.finished, recipe)
        rules, needs = recipe.filters.root, filter_needs(recipe)
        if (needs, recipe.cut) == (self._needs, self._recipe.cut):
            first, last = self._around
        else:
            first, last = self._around_of(needs, self._as_written(recipe))
        same = {
            name: self._bounds[name]
            for name, rule in rules.items()
            if needs == self._needs and rule == self._recipe.filters.root.get(name)
        }
        others = {name: rule for name, rule in rules.items() if name not in same}
        by_rule = same | {bound.rule: bound for bound in self._resolved(others, needs)}
        bounds = tuple(by_rule[name] for name in rules)
        hits: list[_Hit] = [(self._code(Reason.MARKED_DROP), self._drop, False), *first]
        for bound in bounds:
            cached = self._hits.get(bound.rule)
            if cached is None or cached[0] != bound:
                cached = self._hits[bound.rule] = (bound, self._hits_of(bound))
            if bound.severity == "reject":
                hits += cached[1]
        codes = self._first([*hits, *last])
        is_refused = (codes == KEPT) & is_refused_hdr(self.candidates, recipe)
        if is_refused.any():
            codes[is_refused] = self._code(Reason.HIGH_DYNAMIC_RANGE)
        outcomes = Outcomes(codes, bounds)
        self._last = keys, outcomes
        return outcomes

    def mark(self, keep: Mask, drop: Mask) -> None:
        """Sets the clips that are marked, bool [N] each; outcomes honour marks as runs do."""
        self._keep, self._drop, self._last = keep, drop, None

    def _score(self, name: str) -> ScoreBins:
        values = score_values(self.candidates, name)
        measured = np.isfinite(values)
        bins, axis = np.full(len(values), BINS, np.uint8), None
        if measured.any():
            sides = [side for b in self.rules if b.score == name for side in (b.min, b.max)]
            numbers = [side for side in sides if side is not None]
            unit = self.finished.measures.spec_of(name).unit
            axis = axis_of(values[measured], numbers, may_be_log=not unit.startswith("0 "))
            at = np.zeros(1) if axis is None else axis.place(values[measured]) * BINS
            bins[measured] = np.minimum(at, BINS - 1).astype(np.uint8)
        return ScoreBins(values, int(measured.sum()), bins, axis)

    def histogram(self, name: str, codes: NDArray[np.uint16]) -> list[tuple[int, int]]:
        """Returns the numbers of kept and rejected clips in each bin of a score, lowest first."""
        bins = self.score(name).bins
        all_bins = np.bincount(bins, minlength=BINS + 1)[:BINS]
        kept = np.bincount(bins[codes == KEPT], minlength=BINS + 1)[:BINS]
        return list(zip(kept.tolist(), (all_bins - kept).tolist(), strict=True))

    def counts(self, codes: NDArray[np.uint16]) -> tuple[list[int], list[float]]:
        """Returns the number of clips and their total seconds, by code."""
        n = len(self.reasons)
        seconds = np.bincount(codes, weights=self.seconds, minlength=n)
        return np.bincount(codes, minlength=n).tolist(), seconds.tolist()

    def _resolved(self, rules: Mapping[str, Rule], needs: FilterNeeds) -> list[Bounds]:
        corpus = corpus_of(self.candidates, needs)
        return resolve(rules, corpus, self.finished.frozen(), measures=self.finished.measures)

    def _hits_of(self, bound: Bounds) -> list[_Hit]:
        is_by_score = not is_metadata(bound.score)
        checks = list(rule_checks(self.candidates, bound))
        if bound.rule in column_rules(self._recipe).root:
            checks = [replace(check, hit=check.hit & self._is_annotated) for check in checks]
        return [(self._code(check.reason), check.hit, is_by_score) for check in checks]

    def _with_annotations(self, candidates: pa.Table) -> pa.Table:
        for name, rule in column_rules(self._recipe).root.items():
            column = rule.score or name
            if column not in candidates.column_names:
                candidates = candidates.append_column(column, self.finished.clips[column])
        return candidates

    def _as_written(self, recipe: Recipe) -> pa.Table:
        return as_written(self.stored, recipe.cut, recipe.shard)

    def _around_of(self, needs: FilterNeeds, clips: pa.Table) -> tuple[list[_Hit], ...]:
        return tuple(
            [(self._code(c.reason), c.hit, c.rule == CONTENT_RULE) for c in checks]
            for checks in checks_around(clips, needs)
        )

    def _first(self, hits: Sequence[_Hit]) -> NDArray[np.uint16]:
        """Returns the code of the first reason against each clip; later reasons are overwritten."""
        codes = np.where(self._keep & self._is_overridden, KEPT, self._late).astype(np.uint16)
        is_marked = bool(self._keep.any())
        for code, clips, can_be_kept in reversed(hits):
            against = clips & ~self._keep if can_be_kept and is_marked else clips
            np.copyto(codes, np.uint16(code), where=against)
        return codes

    def _code(self, reason: str) -> int:
        if str(reason) not in self.reasons:
            self.reasons.append(str(reason))
        return self.reasons.index(str(reason))
