"""What other bounds keep and drop, within a moment: `curate tune --rules-only`, kept in memory.

Shape letters: N clips without the parts of divided ones, in the order of `clips`.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.pipeline import filter_needs
from curator.recipe import with_changes
from curator.records.clips import OVERRIDDEN, Reason
from curator.report.histogram import BINS, Axis, axis_of
from curator.review.bound_tuning import LATE, check_measured, full_key
from curator.review.finished_run import Finished, is_of_stage
from curator.stages.filter.config import Rule
from curator.stages.filter.judging import (
    CONTENT_RULE,
    FilterNeeds,
    Mask,
    checks_around,
    corpus_of,
    rule_checks,
    score_values,
)
from curator.stages.filter.rules import Bounds, resolve
from curator.storage.metadata_columns import is_metadata

KEPT = 0
"""Code of the clips that nothing is against."""
MAX_CACHED = 64
"""Scores whose values are held: 12 MB each at a million clips."""


class Outcomes(NamedTuple):
    """What some changes of the recipe would do."""

    codes: NDArray[np.uint16]
    """Number of the first reason against each clip in `LiveFunnel.reasons`, uint16 [N]."""
    bounds: tuple[Bounds, ...]
    """The rules as numbers, in the recipe's order."""


class ScoreBins(NamedTuple):
    """The values of a score, and the bin of each clip in its histogram: uint8, BINS for no value.

    `axis` is None where all values are equal.
    """

    values: NDArray[np.float64]
    n_measured: int
    bins: NDArray[np.uint8]
    axis: Axis | None


_Hit = tuple[int, Mask, bool]
"""Code of a reason, the clips it is against, bool [N], and whether a mark `keep` takes it back."""


class LiveFunnel:
    """Judges all clips of a run again and again; only rules that differ are judged anew.

    Duplicates, selection and custom stages stay as they are, as with `--rules-only`.
    """

    def __init__(self, finished: Finished) -> None:
        self.finished = finished.without_remainders()
        self.candidates = self.finished.candidates()
        self.reasons: list[str | None] = [None]
        """The reason of each code; None for kept clips."""
        kept = pc.equal(self.finished.clips["decision"], "kept")
        reasons = pc.if_else(kept, None, self.finished.clips["reason"]).combine_chunks()
        coded = reasons.dictionary_encode()
        own = [self._code(name) for name in coded.dictionary.to_pylist()]
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        self.now = np.array([*own, KEPT], np.uint16)[codes]
        """Codes of the clips as they are, uint16 [N]."""
        measures = self.finished.measures
        stays = [name in LATE or is_of_stage(name, measures) for name in self.reasons]
        self._late = np.where(np.array(stays)[self.now], self.now, KEPT).astype(np.uint16)
        self.seconds = score_values(self.candidates, "seconds")
        self._recipe = self.finished.recipe
        self._needs = filter_needs(self._recipe)
        bounds = self._resolved(self._recipe.filters.root, self._needs)
        self._bounds = {bound.rule: bound for bound in bounds}
        self._hits: dict[str, tuple[Bounds, list[_Hit]]] = {}
        self._around = self._around_of(self._needs)
        self._keep = self._drop = np.zeros(len(self.now), np.bool_)
        self._is_overridden = np.array([name in OVERRIDDEN for name in self.reasons])[self._late]
        self.score = lru_cache(MAX_CACHED)(self._score)
        """Returns the values of a score, by name; raises `KeyError` where no clip has it."""
        self._last: tuple[tuple[str, ...], Outcomes] | None = None

    @property
    def rules(self) -> list[Bounds]:
        """The rules as the run applied them."""
        return list(self._bounds.values())

    def decide(self, changes: Sequence[str]) -> Outcomes:
        """Decides about all clips with changes as `curate tune` takes them.

        Raises:
            RecipeError: A change is not valid.
            UsageError: A change cannot be tried without a run, or asks for an unmeasured score.
        """
        keys = tuple(full_key(change) for change in changes)
        if self._last is not None and self._last[0] == keys:
            return self._last[1]
        recipe = with_changes(self._recipe, keys)
        check_measured(self.finished, recipe)
        rules, needs = recipe.filters.root, filter_needs(recipe)
        first, last = self._around if needs == self._needs else self._around_of(needs)
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
        outcomes = Outcomes(self._first([*hits, *last]), bounds)
        self._last = keys, outcomes
        return outcomes

    def mark(self, keep: Mask, drop: Mask) -> None:
        """Takes the clips that are marked, bool [N] each: the next run honours marks."""
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
        """Counts clips kept and rejected by bin of a score, from the lowest value."""
        bins = self.score(name).bins
        all_bins = np.bincount(bins, minlength=BINS + 1)[:BINS]
        kept = np.bincount(bins[codes == KEPT], minlength=BINS + 1)[:BINS]
        return list(zip(kept.tolist(), (all_bins - kept).tolist(), strict=True))

    def counts(self, codes: NDArray[np.uint16]) -> tuple[list[int], list[float]]:
        """Counts clips, and their seconds, by the code of their reason."""
        n = len(self.reasons)
        seconds = np.bincount(codes, weights=self.seconds, minlength=n)
        return np.bincount(codes, minlength=n).tolist(), seconds.tolist()

    def _resolved(self, rules: Mapping[str, Rule], needs: FilterNeeds) -> list[Bounds]:
        corpus = corpus_of(self.candidates, min_s=needs.min_s)
        return resolve(rules, corpus, self.finished.frozen(), measures=self.finished.measures)

    def _hits_of(self, bound: Bounds) -> list[_Hit]:
        is_by_score = not is_metadata(bound.score)
        checks = rule_checks(self.candidates, bound)
        return [(self._code(check.reason), check.hit, is_by_score) for check in checks]

    def _around_of(self, needs: FilterNeeds) -> tuple[list[_Hit], ...]:
        return tuple(
            [(self._code(c.reason), c.hit, c.rule == CONTENT_RULE) for c in checks]
            for checks in checks_around(self.candidates, needs)
        )

    def _first(self, hits: Sequence[_Hit]) -> NDArray[np.uint16]:
        """Returns the first reason against each clip: the last to be written."""
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
