"""Tries other bounds on a finished run: the decisions of a rerun, without the rerun.

The functions of `curate run` decide over the stored candidates: rules with their quantiles,
duplicates, selection. Whether a clip that could not be written would pass is unknown; its outcome
stays.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import UsageError, unknown_key
from curator.measures.clip_semantics import check_content
from curator.measures.score_list import SCORES, spec_of
from curator.pipeline import graph_of
from curator.recipe import Recipe, with_changes
from curator.records.clips import Reason
from curator.report.tune_page import BoundView, TuneView
from curator.review.finished_run import Finished, is_of_stage
from curator.runs.corpus import decide
from curator.stages.filter.judging import Decided, score_values
from curator.stages.filter.rules import Bounds
from curator.stages.filter.stage import FilterStage
from curator.tables.clip_rows import ClipRows
from curator.tables.schemas import clips_schema, metadata_fields

SECTIONS = ("filters", "dedup", "select")
SINGLE_KEYS = ("semantic.reject", "semantic.reject_from", "propose.min_s")
"""Keys of other sections that change no score."""
EXAMPLES = 8
"""Clips on each side of a bound."""
NOW, THEN = "", "then_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Decisions now and then, by clip in the order of `clips`."""

    finished: Finished
    recipe: Recipe
    changes: tuple[str, ...]
    is_exact: bool
    """Whether duplicates and selection were decided anew."""
    decided: Decided
    now: list[str | None]
    """First reason against each clip as it is; None for one that is kept."""
    then: list[str | None]

    @property
    def lost(self) -> NDArray[np.int64]:
        """Clips that are kept now and would not be."""
        return self._moved(was_kept=True)

    @property
    def gained(self) -> NDArray[np.int64]:
        """Clips that are rejected now and would be kept."""
        return self._moved(was_kept=False)

    def _moved(self, *, was_kept: bool) -> NDArray[np.int64]:
        pairs = zip(self.now, self.then, strict=True)
        moved = [(a is None) == was_kept and (a is None) != (b is None) for a, b in pairs]
        return np.flatnonzero(moved)


def tune(finished: Finished, changes: Sequence[str], *, rules_only: bool = False) -> Tuned:
    """Decides anew with some keys of the recipe changed.

    A change is `score.bound=value`, or a whole key of `dedup`, `select` or `SINGLE_KEYS`.
    `rules_only` leaves duplicates and selection as they are, which is faster: a clip that comes
    back counts as kept, and no duplicate is freed.

    Raises:
        RecipeError: A change is not valid.
        UsageError: A change is not one that can be tried without a run.
    """
    keys = [_full_key(change) for change in changes]
    recipe = with_changes(finished.recipe, keys)
    check_measured(finished, recipe)
    candidates = finished.candidates()
    decided = _decide(candidates, recipe)
    now = _first_reasons(finished.clips)
    if rules_only:
        then = _as_before(decided.clips, now)
    else:
        then = _decided_anew(finished, recipe, decided.clips, now)
    return Tuned(
        finished=finished,
        recipe=recipe,
        changes=tuple(keys),
        is_exact=not rules_only,
        decided=decided,
        now=now,
        then=then,
    )


def _decide(candidates: pa.Table, recipe: Recipe) -> Decided:
    stage: FilterStage = graph_of(recipe)["filter"]
    return stage.process(candidates)


def _full_key(change: str) -> str:
    key, equals, value = change.partition("=")
    section = key.strip().split(".")[0]
    if not equals or "." not in key:
        raise UsageError(f"{change!r}: expected score.bound=value, such as motion.min=0.02")
    if section in SECTIONS or key.strip() in SINGLE_KEYS:
        return change
    if section in Recipe.model_fields:
        raise UsageError(
            f"{change!r}: only keys of {', '.join(SECTIONS)}, and {', '.join(SINGLE_KEYS)}, can "
            "be tried on what is stored; use `curate run --set`"
        )
    return f"filters.{key.strip()}={value}"


def _first_reasons(clips: pa.Table) -> list[str | None]:
    kept = pc.equal(clips["decision"], "kept")
    reasons: list[str | None] = pc.if_else(kept, None, clips["reason"]).to_pylist()
    return reasons


AFTER_SELECTION = (
    Reason.ANSWER_UNWANTED, Reason.NOT_ANNOTATED, Reason.JUDGED_TOO_LOW, Reason.CUT_FAILED,
)  # fmt: skip
LATE = (Reason.DUPLICATE, Reason.NOT_SELECTED, *AFTER_SELECTION)


def _as_before(decided: pa.Table, now: Sequence[str | None]) -> list[str | None]:
    return [
        old if new is None and (old in LATE or is_of_stage(old)) else new
        for new, old in zip(_first_reasons(decided), now, strict=True)
    ]


def _decided_anew(
    finished: Finished, recipe: Recipe, decided: pa.Table, now: Sequence[str | None]
) -> list[str | None]:
    then = _first_reasons(decided)
    passed = np.flatnonzero([reason is None for reason in then])
    rows = ClipRows(decided.take(pa.array(passed)).drop_columns(["seconds"]), clips_schema())
    for stage in graph_of(recipe).deciding():
        decide(stage, rows, finished.vectors, finished.pairs(), writes=False)
    for number, row in zip(passed.tolist(), rows, strict=True):
        before = now[number]
        then[number] = row.reason or (before if before in AFTER_SELECTION else None)
    return then


def changes_of(tuned: Tuned) -> list[tuple[Bounds | None, Bounds]]:
    """Returns rules with other bounds: the present ones, or None, and the new ones."""
    before = decide_bounds(tuned.finished)
    after = {rule.bounds.rule: rule.bounds for rule in tuned.decided.rules if rule.bounds}
    gone = {
        name: Bounds(rule=name, score=b.score, min=None, max=None, severity=b.severity)
        for name, b in before.items()
        if name not in after
    }
    return [
        (before.get(name), bounds)
        for name, bounds in (after | gone).items()
        if name not in before or _numbers(before[name]) != _numbers(bounds)
    ]


def _numbers(bounds: Bounds) -> tuple[object, ...]:
    return bounds.min, bounds.max, bounds.one_of, bounds.none_of, bounds.severity


def decide_bounds(finished: Finished) -> dict[str, Bounds]:
    """Returns the present bounds of the run, by rule."""
    decided = _decide(finished.candidates(), finished.recipe)
    return {rule.bounds.rule: rule.bounds for rule in decided.rules if rule.bounds}


def view(tuned: Tuned, *, n_examples: int = EXAMPLES) -> TuneView:
    """Returns the contents of the page, with at most `n_examples` clips in a row."""
    clips = tuned.finished.clips
    figures, shown = [], set()
    kept_then = np.array([reason is None for reason in tuned.then], dtype=np.bool_)
    for before, after in changes_of(tuned):
        values = score_values(tuned.decided.clips, after.score)
        sides = [
            (side, bound)
            for side in ("min", "max")
            if (bound := _changed(before, after, side)) is not None
        ]
        shown_values = np.where(_up_to(tuned.decided, after), values, np.nan)
        examples = {side: _beside(shown_values, bound, side, n_examples) for side, bound in sides}
        shown |= {number for pair in examples.values() for side in pair for number in side}
        figures.append(
            BoundView(
                rule=after.rule,
                score=after.score,
                severity=after.severity,
                before={} if before is None else _marks(before),
                after=_marks(after),
                values=values,
                examples=examples,
            )
        )
    lost, gained = (_by_id(clips, moved) for moved in (tuned.lost, tuned.gained))
    shown |= {*lost[: 2 * n_examples], *gained[: 2 * n_examples]}
    numbers = sorted(shown)
    rows = list(ClipRows(clips.take(pa.array(numbers, pa.int64())), clips_schema()))
    return TuneView(
        out=tuned.finished.store.uri,
        changes=tuned.changes,
        is_exact=tuned.is_exact,
        now=Counter(tuned.now),
        then=Counter(tuned.then),
        lost=lost[: 2 * n_examples],
        gained=gained[: 2 * n_examples],
        n_lost=len(lost),
        n_gained=len(gained),
        figures=figures,
        kept_then=kept_then,
        clips=dict(zip(numbers, rows, strict=True)),
        reasons={number: (tuned.now[number], tuned.then[number]) for number in numbers},
        thumbnails=tuned.finished.pictures(row.clip_id for row in rows),
    )


def _up_to(decided: Decided, bounds: Bounds) -> NDArray[np.bool_]:
    """Returns the clips that the rule alone decides."""
    spec = spec_of(bounds.score)
    own = pa.array([spec.low, spec.high, f"{bounds.score}_unwanted"])
    reasons = decided.clips["reasons"].combine_chunks()
    others = pc.invert(pc.is_in(reasons.flatten(), value_set=own))
    rows = pc.list_parent_indices(reasons).filter(others).to_numpy(zero_copy_only=False)
    up_to = np.ones(len(reasons), dtype=np.bool_)
    up_to[rows] = False
    return up_to


def _changed(before: Bounds | None, after: Bounds, side: str) -> float | None:
    """Returns the bound to show: the new one, else the one that was removed."""
    new: float | None = getattr(after, side)
    old: float | None = None if before is None else getattr(before, side)
    if new == old and (before is None or before.severity == after.severity):
        return None
    return new if new is not None else old


def _marks(bounds: Bounds) -> dict[str, float]:
    return {side: v for side in ("min", "max") if (v := getattr(bounds, side)) is not None}


def _beside(
    values: NDArray[np.float64], bound: float, side: str, n: int
) -> tuple[list[int], list[int]]:
    """Returns the clips nearest to a bound: outside, and inside; from far outside to far inside."""
    order = np.argsort(values, kind="stable")
    order = order[np.isfinite(values[order])]
    if side == "max":
        order = order[::-1]
        outside = int(np.sum(values[order] > bound))
    else:
        outside = int(np.sum(values[order] < bound))
    return order[max(0, outside - n) : outside].tolist(), order[outside : outside + n].tolist()


def summary_lines(tuned: Tuned) -> list[str]:
    """Describes the changes in a few lines for the terminal."""
    now, then = Counter(tuned.now), Counter(tuned.then)
    lines = []
    for before, after in changes_of(tuned):
        old = _said(before) if before is not None else "no rule"
        lines.append(f"{after.rule}: {old} -> {_said(after)}")
    if not lines and not any(not change.startswith("filters.") for change in tuned.changes):
        lines.append("no bound differs from what the run used")
    names = [None, *dict.fromkeys([*(r for r, _ in now.most_common() if r), *then])]
    width = max(24, *(len(str(name)) + 2 for name in names))
    lines.append(f"{'':<{width}}{'now':>11}{'then':>11}")
    for name in dict.fromkeys(names):
        if name is None:
            lines.append(_line("kept", now[None], then[None], width))
        elif now[name] or then[name]:
            lines.append(_line(f"  {name}", now[name], then[name], width))
    lost = Counter(tuned.then[number] for number in tuned.lost)
    gained = Counter(tuned.now[number] for number in tuned.gained)
    lines.append(f"kept -> rejected  {len(tuned.lost):,}{_reasons(lost, 'as ')}")
    lines.append(f"rejected -> kept  {len(tuned.gained):,}{_reasons(gained, 'were ')}")
    if not tuned.is_exact:
        lines.append("duplicates and selection are left as they are (--rules-only)")
    return lines


def _line(name: str, now: int, then: int, width: int) -> str:
    change = "" if now == then else f"{then - now:+,}"
    return f"{name:<{width}}{now:>11,}{then:>11,}{change:>11}".rstrip()


def _said(bounds: Bounds) -> str:
    marks = [f"{side} {value:.6g}" for side, value in _marks(bounds).items()]
    marks += [
        f"{name} of {', '.join(map(str, values))}"
        for name, values in (("one", bounds.one_of), ("none", bounds.none_of))
        if values is not None
    ]
    severity = "" if bounds.severity == "reject" else f" ({bounds.severity})"
    return (", ".join(marks) or "no bound") + severity


def _by_id(clips: pa.Table, numbers: NDArray[np.int64]) -> list[int]:
    """Sorts numbers of clips by id, which is a hash: the first are a fair sample."""
    ids = clips["clip_id"].take(pa.array(numbers)).to_pylist()
    return [number for _, number in sorted(zip(ids, numbers.tolist(), strict=True))]


def _reasons(counts: Counter[str | None], word: str) -> str:
    said = ", ".join(f"{n:,} {reason}" for reason, n in counts.most_common())
    return f"  {word}{said}" if said else ""


def known_scores(finished: Finished) -> list[str]:
    """Returns the scores that any clip of the run has."""
    clips = finished.clips
    names = [*SCORES, *(field.name for field in metadata_fields(clips.schema))]
    return [n for n in names if clips.num_rows > pc.sum(pc.is_null(clips[n])).as_py()]


def check_measured(finished: Finished, recipe: Recipe) -> None:
    """Refuses bounds of scores and content types that the run never measured.

    Raises:
        UsageError: Naming the score or the key, and the remedy.
        ModelError: The prompts of the run cannot be read.
    """
    used = finished.recipe
    if (recipe.semantic, recipe.select) != (used.semantic, used.select):
        check_content(recipe.semantic, recipe.analyze.clip, recipe.select.by)
    known = known_scores(finished)
    for name, rule in recipe.filters.root.items():
        score, is_new = rule.score or name, rule != used.filters.root.get(name)
        if (
            is_new
            and (rule.bounds or rule.values)
            and finished.clips.num_rows
            and score not in known
        ):
            raise UsageError(
                f"no clip of {finished.store.uri} has the score {score!r}; "
                f"{unknown_key(score, known, 'measured score')}, or run again to measure it"
            )
