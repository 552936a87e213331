"""Tries other bounds on a finished run, and returns the decisions of a rerun without the rerun."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import UsageError, unknown_key
from curator.measures.clip_semantics import check_content
from curator.measures.filtering import corpus_of, score_values
from curator.measures.rule_config import CAPTION_CLIP_SCORE, Rule
from curator.measures.rules import Bounds, resolve, unwanted_reason
from curator.measures.score_list import SUITABILITY
from curator.number_text import amount, compared, score
from curator.pipeline import filter_needs, graph_of
from curator.recipe import Recipe, column_rules, with_changes
from curator.storage import Store
from curator.tables.clip_rows import ClipRows
from curator.tables.disk_table import taken
from curator.tables.long_columns import take_values
from curator.tables.schemas import further_fields
from curator.tools.report.histogram import histogram
from curator.tools.report.page_templates import render
from curator.tools.review.changed_decisions import (
    ChangedDecisions,
    decide_again,
    first_reasons,
    is_annotated,
)
from curator.tools.review.finished_run import Finished

SECTIONS = ("filters", "dedup", "select")
SINGLE_KEYS = (
    "semantic.reject", "semantic.reject_from", "propose.min_s", "cut.size", "cut.enlarge",
    "cut.hdr", "cut.most_cropped", "cut.fps", "cut.most_repeated", "cut.length_frames",
)  # fmt: skip
"""Keys of other sections that can be tried, since they change no score."""
_BOUNDS_OF_LEARNED = [f"{SUITABILITY}.{name}" for name in Rule.model_fields]
EXAMPLES = 8
"""Most clips shown on each side of a bound; twice as many are shown of the clips that move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Present and changed decisions about all clips, in the order of `clips`."""

    finished: Finished
    changes: tuple[str, ...]
    is_exact: bool
    """Whether deduplication and selection ran again."""
    candidates: pa.Table
    """The clips with their scores."""
    decided: pa.Table
    """Decisions of the changed rules: `decision`, `reason` and `reasons`."""
    bounds: list[tuple[Bounds | None, Bounds]]
    """Rules with changed bounds: the present bounds, None for a new rule, and the new bounds."""
    now: list[str | None]
    """Present first reason against each clip; None for a kept clip."""
    then: list[str | None]
    """First reason against each clip after the changes; None for a kept clip."""
    unknown: tuple[str, ...]
    """What only a run can tell, a line each."""

    def moved(self, *, was_kept: bool) -> NDArray[np.int64]:
        """Returns the numbers of the clips that move from kept to rejected, or back."""
        pairs = zip(self.now, self.then, strict=True)
        return np.flatnonzero(
            [(now is None) == was_kept and (then is None) != was_kept for now, then in pairs]
        )


def tune(finished: Finished, changes: Sequence[str], *, rules_only: bool = False) -> Tuned:
    """Decides about all clips again with a changed recipe.

    A change is `score.bound=value`, or a full key of `filters`, `dedup`, `select` or `SINGLE_KEYS`.
    `rules_only` skips deduplication and selection, which is faster. Every clip that newly passes
    the rules then counts as kept, and all duplicates stay rejected.

    Raises:
        RecipeError: A change is not valid.
        UsageError: A change needs a run, or there are no clips.
    """
    keys = [full_key(change) for change in changes]
    finished.require_clips()
    recipe = with_changes(finished.recipe, keys)
    check_measured(finished, recipe)
    if recipe.cut.sizes != finished.recipe.cut.sizes:
        raise UsageError(
            "a list of sizes in cut.size makes other clips, which only a run can; use `curate run "
            "--set cut.size=...`"
        )
    candidates = finished.candidates()
    decisions = decide_again(finished, recipe, candidates, rules_only=rules_only)
    return Tuned(
        finished=finished,
        changes=tuple(keys),
        is_exact=not rules_only,
        candidates=candidates,
        decided=decisions.rules,
        bounds=_changed_bounds(finished, recipe, candidates),
        now=first_reasons(finished.clips),
        then=decisions.then,
        unknown=tuple(_unknown(finished, recipe, decisions)),
    )


def _unknown(finished: Finished, recipe: Recipe, decisions: ChangedDecisions) -> Iterator[str]:
    """Yields what only a run can tell, a line each."""
    gained = [
        then is None and now is not None
        for now, then in zip(first_reasons(finished.clips), decisions.then, strict=True)
    ]
    cut = graph_of(recipe)["cut"].fingerprint({})
    is_cut = pc.fill_null(pc.equal(finished.clips["cut_fingerprint"], cut), False).to_numpy()
    # Captions and annotators come after the cut.
    has_values = is_cut & is_annotated(finished.clips, finished.recipe)
    is_new = np.array(gained, np.bool_) & ~has_values
    if is_new.any():
        later = "cut or captioned" if recipe.caption.decides else "cut"
        yield (
            f"{amount(int(is_new.sum()), 'clip')} would newly be kept and were not written yet; a "
            f"run rejects those that cannot be {later}"
        )
    if (rules := column_rules(recipe).root) and is_new.any():
        yield (
            f"{amount(int(is_new.sum()), 'clip')} of them have no values of annotators; a run "
            f"computes these and applies filters.{', filters.'.join(rules)}"
        )
    if decisions.n_new_parts:
        yield (
            f"{amount(decisions.n_new_parts, 'part')} of newly divided clips would become clips, "
            "which are not counted: only a run measures them"
        )
    if recipe.propose != finished.recipe.propose:
        yield (
            "with another propose.min_s, a run drops more or fewer guard frames: clips near that "
            "length begin or end some frames elsewhere, and are other clips"
        )
    if recipe.run.mode == "growing":
        yield (
            "run.mode is growing: a run decides about one generation after the other, and these "
            "counts are of all clips together"
        )


def full_key(change: str) -> str:
    """Returns a change with its full key; raises `UsageError` if the change needs a run."""
    key, equals, value = change.partition("=")
    section = key.strip().split(".")[0]
    if not equals or "." not in key:
        raise UsageError(f"{change!r}: expected score.bound=value, such as motion.min=0.02")
    if section in SECTIONS or key.strip() in SINGLE_KEYS:
        return change
    # A score and a section share the name `suitability`; bounds belong to the score.
    if section in Recipe.model_fields and key.strip() not in _BOUNDS_OF_LEARNED:
        raise UsageError(
            f"{change!r}: only keys of {', '.join(SECTIONS)}, and {', '.join(SINGLE_KEYS)}, can "
            "be tried on what is stored; use `curate run --set`"
        )
    return f"filters.{key.strip()}={value}"


def _changed_bounds(
    finished: Finished, recipe: Recipe, candidates: pa.Table
) -> list[tuple[Bounds | None, Bounds]]:
    # Remainders follow the bounds of the other clips, which come first.
    whole = candidates.slice(0, finished.without_remainders().clips.num_rows)

    def resolved(recipe: Recipe) -> dict[str, Bounds]:
        corpus = corpus_of(whole, filter_needs(recipe))
        bounds = resolve(recipe.filters.root, corpus, measures=finished.measures)
        return {bound.rule: bound for bound in bounds}

    def numbers(bounds: Bounds) -> tuple[object, ...]:
        return bounds.min, bounds.max, bounds.one_of, bounds.none_of, bounds.severity

    before, after = resolved(finished.recipe), resolved(recipe)
    gone = {
        name: replace(bounds, min=None, max=None, one_of=None, none_of=None)
        for name, bounds in before.items()
        if name not in after
    }
    return [
        (before.get(name), bounds)
        for name, bounds in (after | gone).items()
        if name not in before or numbers(before[name]) != numbers(bounds)
    ]


def marks_of(bounds: Bounds | None) -> dict[str, float]:
    """Returns the numeric bounds by side, `min` or `max`."""
    sides = {} if bounds is None else {"min": bounds.min, "max": bounds.max}
    return {side: value for side, value in sides.items() if value is not None}


def summary_lines(tuned: Tuned) -> list[str]:
    """Describes the changes in a few lines for the terminal."""
    now, then = Counter(tuned.now), Counter(tuned.then)
    lines = [
        f"{after.rule}: {_shown(before) if before is not None else 'no rule'} -> {_shown(after)}"
        for before, after in tuned.bounds
    ]
    if not lines and all(change.startswith("filters.") for change in tuned.changes):
        lines.append("no bound differs from what the run used")
    names = dict.fromkeys([None, *(name for name, _ in now.most_common()), *then])
    width = max(24, *(len(str(name)) + 2 for name in names))
    lines.append(f"{'':<{width}}{'now':>11}{'then':>11}")
    for name in names:
        title, difference = "kept" if name is None else f"  {name}", then[name] - now[name]
        change = f"{difference:+,}" if difference else ""
        lines.append(f"{title:<{width}}{now[name]:>11,}{then[name]:>11,}{change:>11}".rstrip())
    lost, gained = tuned.moved(was_kept=True), tuned.moved(was_kept=False)
    became, were = (Counter(tuned.then[n] for n in lost), Counter(tuned.now[n] for n in gained))
    lines.append(f"kept -> rejected  {len(lost):,}{_reasons(became, 'as ')}")
    lines.append(f"rejected -> kept  {len(gained):,}{_reasons(were, 'were ')}")
    if not tuned.is_exact:
        lines.append("duplicates and selection are left as they are (--rules-only)")
    return [*lines, *tuned.unknown]


def tuned_facts(tuned: Tuned) -> dict[str, Any]:
    """Returns what `summary_lines` says, for `--json`; kept clips count as the reason `kept`."""
    counts = [
        {reason or "kept": n for reason, n in Counter(reasons).most_common()}
        for reasons in (tuned.now, tuned.then)
    ]
    return {
        "changes": list(tuned.changes),
        "is_exact": tuned.is_exact,
        "bounds": [
            {"rule": after.rule, "now": before and _shown(before), "then": _shown(after)}
            for before, after in tuned.bounds
        ],
        "now": counts[0],
        "then": counts[1],
        "kept_to_rejected": len(tuned.moved(was_kept=True)),
        "rejected_to_kept": len(tuned.moved(was_kept=False)),
    }


def _shown(bounds: Bounds) -> str:
    marks = [f"{side} {value:.6g}" for side, value in marks_of(bounds).items()]
    marks += [
        f"{name} of {', '.join(map(str, values))}"
        for name, values in (("one", bounds.one_of), ("none", bounds.none_of))
        if values is not None
    ]
    severity = "" if bounds.severity == "reject" else f" ({bounds.severity})"
    return (", ".join(marks) or "no bound") + severity


def _reasons(counts: Counter[str | None], word: str) -> str:
    reasons = ", ".join(f"{n:,} {reason}" for reason, n in counts.most_common())
    return f"  {word}{reasons}" if reasons else ""


def check_measured(finished: Finished, recipe: Recipe) -> None:
    """Raises `UsageError` for bounds of scores or content types that the run did not measure."""
    used, clips = finished.recipe, finished.clips
    if (recipe.semantic, recipe.select) != (used.semantic, used.select):
        check_content(recipe.semantic, recipe.analyze.clip, recipe.select.by)
    names = [*finished.measures.specs, *(field.name for field in further_fields(clips.schema))]
    names.append(CAPTION_CLIP_SCORE)
    measured = [n for n in names if clips.num_rows > pc.sum(pc.is_null(clips[n])).as_py()]
    for name, rule in recipe.filters.root.items():
        score, is_new = rule.score or name, rule != used.filters.root.get(name)
        if is_new and (rule.bounds or rule.values) and clips.num_rows and score not in measured:
            raise UsageError(
                f"no clip of {finished.store.uri} has the score {score!r}; "
                f"{unknown_key(score, measured, 'measured score')}, or run again to measure it"
            )


def put_page(store: Store, page: str, path: str | None, name: str) -> Path:
    """Writes a page to a path, by default into the report of a local output; returns the path."""
    if path is None and store.is_local:
        store.write(f"report/{name}", page.encode())
        return Path(store.uri) / "report" / name
    return write_page(path or name, page)


def write_page(path: str, page: str) -> Path:
    """Writes a page; returns the absolute path. Raises `UsageError` if writing fails."""
    where = Path(path).absolute()
    try:
        where.write_bytes(page.encode())
    except OSError as error:
        raise UsageError(f"{str(where)!r} cannot be written: {error.strerror}") from error
    return where


def render_tune(tuned: Tuned, about: Sequence[str] = ()) -> str:
    """Renders one self-contained HTML document, which begins with the lines `about`."""
    finished, now, then = tuned.finished, Counter(tuned.now), Counter(tuned.then)
    names = [name for name in dict.fromkeys([*now, *then]) if name is not None]
    names.sort(key=lambda name: -max(now[name], then[name]))
    changes = [_change(tuned, before, after) for before, after in tuned.bounds]
    lost, gained = (_by_id(finished.clips, tuned.moved(was_kept=was)) for was in (True, False))
    moves = [
        ("Kept now, and then rejected", lost[: 2 * EXAMPLES], len(lost)),
        ("Rejected now, and then kept", gained[: 2 * EXAMPLES], len(gained)),
    ]
    rows = [*moves, *(row for change in changes for row in change["rows"])]
    shown = sorted({number for _, numbers, _ in rows for number in numbers})
    clips = list(ClipRows(taken(finished.clips, shown), finished.clips.schema))
    return render(
        "tune.html.j2",
        tuned=tuned,
        about=about,
        n_clips=len(tuned.now),
        n_lost=len(lost),
        n_gained=len(gained),
        reasons=[(name or "kept", now[name], then[name]) for name in [None, *names]],
        changes=changes,
        moves=moves,
        clips=dict(zip(shown, clips, strict=True)),
        thumbnails=finished.pictures(clip.clip_id for clip in clips),
        compared=_compared,
    )


def _change(tuned: Tuned, before: Bounds | None, after: Bounds) -> dict[str, Any]:
    """Returns a changed rule, its histogram, and rows of title, numbers of clips and bound."""
    finished = tuned.finished
    old, new = marks_of(before), marks_of(after)
    same = {side: value for side, value in new.items() if old.get(side) == value}
    marks = {f"now {side}": value for side, value in old.items() if side not in same}
    marks |= {f"then {side}": value for side, value in new.items() if side not in same} | same
    is_score = after.score in tuned.candidates.column_names
    values = score_values(tuned.candidates if is_score else finished.clips, after.score)
    kept_then = np.array([reason is None for reason in tuned.then], dtype=np.bool_)
    shown = np.where(_up_to(tuned.decided, after), values, np.nan)
    has_new_severity = before is not None and before.severity != after.severity
    rows = []
    for side, words in (("min", ("below", "from")), ("max", ("above", "up to"))):
        bound = new.get(side, old.get(side))
        if bound is None or (new.get(side) == old.get(side) and not has_new_severity):
            continue
        went = "" if side in new else "the bound that goes, "
        for word, numbers in zip(words, _nearest(shown, bound, side), strict=True):
            rows.append((f"{went}{word} {score(bound)}", numbers, bound))
    chart = histogram(after.score, after.spec, marks, values, kept_then)
    return {"rule": after, "histogram": chart, "rows": rows}


def _up_to(decided: pa.Table, bounds: Bounds) -> NDArray[np.bool_]:
    """Returns the clips against which no other rule has a reason, bool [N]."""
    own = pa.array([bounds.spec.low, bounds.spec.high, unwanted_reason(bounds.score)])
    up_to = np.ones(decided.num_rows, dtype=np.bool_)
    start = 0
    for reasons in decided["reasons"].chunks:
        others = pc.invert(pc.is_in(reasons.flatten(), value_set=own))
        rows = pc.list_parent_indices(reasons).filter(others).to_numpy(zero_copy_only=False)
        up_to[start + rows] = False
        start += len(reasons)
    return up_to


def _nearest(values: NDArray[np.float64], bound: float, side: str) -> tuple[list[int], list[int]]:
    """Returns the clips nearest to a bound, outside and inside, ordered from outside to inside."""
    order = np.argsort(values, kind="stable")
    order = order[np.isfinite(values[order])]
    if side == "max":
        order = order[::-1]
    is_outside = values[order] > bound if side == "max" else values[order] < bound
    n = int(np.sum(is_outside))
    return order[max(0, n - EXAMPLES) : n].tolist(), order[n : n + EXAMPLES].tolist()


def _by_id(clips: pa.Table, numbers: NDArray[np.int64]) -> list[int]:
    """Sorts numbers of clips by id; ids are hashes, so the first clips are a random sample."""
    ids = take_values(clips["clip_id"], pa.array(numbers)).to_pylist()
    return [number for _, number in sorted(zip(ids, numbers.tolist(), strict=True))]


def _compared(value: float | None, bound: float) -> str:
    if value is None:
        return "not measured"
    return f"{score(value)} = bound" if value == bound else compared(value, bound)
