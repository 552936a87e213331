"""Lists clips with their outcomes; explains why a clip was rejected and how to keep it."""

import shlex
from collections.abc import Iterator, Sequence
from math import floor, log10
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import UsageError, ambiguous_id
from curator.number_text import amount, moment, plain, score
from curator.pipeline import filter_needs
from curator.records.clips import COMPARED, OF_FORM, REMAINDER, Reason
from curator.report.funnel import quantile_words, value_words
from curator.report.page_templates import declared_values
from curator.review.bound_tuning import LATE
from curator.review.finished_run import Finished, is_of_stage
from curator.runs.marked_clips import has_effect
from curator.stages.cut.output_form import as_written
from curator.stages.filter.config import Rule
from curator.stages.filter.judging import checks_around, corpus_of, reason_of, score_values
from curator.stages.filter.rules import Bounds, resolve
from curator.tables.clip_rows import ClipRow, ClipRows
from curator.tables.disk_table import taken
from curator.tables.long_columns import take_values
from curator.tables.mark_table import MARK_COLUMNS

MAX_LISTED = 50
_NOT_BY_RULES = (
    Reason.MARKED_DROP, *OF_FORM, Reason.NO_BUCKET, Reason.NO_ASPECT_CLASS, *LATE,
)  # fmt: skip


class _Judged(NamedTuple):
    """A rule applied to the clip."""

    rule: Rule
    bounds: Bounds
    value: float | None
    text: str | None
    """The clip's metadata, for a rule with `one_of` or `none_of`."""
    reason: str | None
    """The rule's reason against the clip; None if the clip passes."""
    corpus: NDArray[np.float64]
    """Scores behind the rule's quantiles; empty for a rule without quantiles."""


def find_clip(finished: Finished, prefix: str) -> int:
    """Returns the row of the clip with an id prefix; `UsageError` if none or several match."""
    ids = finished.clips["clip_id"]
    clips = pc.indices_nonzero(pc.starts_with(ids, prefix)).to_pylist() if prefix else []
    if len(clips) == 1:
        return int(clips[0])
    n_clips = finished.clips.num_rows
    if not clips:
        raise UsageError(
            f"no clip of the {n_clips:,} in {finished.store.uri} has an id that begins with "
            f"{prefix!r}; `curate explain` without an id lists clips, and the table clips has all"
        )
    raise UsageError(ambiguous_id(prefix, take_values(ids, pa.array(clips)).to_pylist()))


def listed_clips(finished: Finished) -> dict[str, Any]:
    """Returns what `listing` shows, for `--json`."""
    names = ["clip_id", "decision", "reason", "source_uri", "start_s", "end_s"]
    clips = finished.clips.slice(0, MAX_LISTED).select(names).to_pylist()
    return {"clips": clips, "clips_in_all": finished.clips.num_rows}


def clip_facts(finished: Finished, prefix: str) -> dict[str, Any]:
    """Returns the row of the table `clips` of the clip whose id begins with a prefix."""
    row: dict[str, Any] = finished.clips.slice(find_clip(finished, prefix), 1).to_pylist()[0]
    return row


def listing(finished: Finished) -> str:
    """Returns the first clips with their outcomes, by source and time, as text."""
    clips = finished.clips
    rows = [("clip", "outcome", "span", "source")]
    for clip in ClipRows(clips.slice(0, MAX_LISTED), finished.clips.schema):
        span = f"{moment(clip.start_s)} to {moment(clip.end_s)}"
        rows.append((clip.clip_id, clip.reason or clip.decision, span, plain(clip.source_uri)))
    lines = list(_aligned(rows, "<<<<"))
    if clips.num_rows > MAX_LISTED:
        lines.append(f"and {clips.num_rows - MAX_LISTED:,} more, in the table clips")
    return "\n".join(lines)


def explain(finished: Finished, prefix: str, candidates: pa.Table | None = None) -> str:
    """Explains the outcome of the clip whose id begins with a prefix, as text.

    `candidates` are those of `finished` as written; None to read them.
    """
    number = find_clip(finished, prefix)
    (clip,) = ClipRows(finished.clips.slice(number, 1), finished.clips.schema)
    if candidates is None:
        candidates = as_written(finished.candidates(), finished.recipe.cut, finished.recipe.shard)
    judged = list(_judged(finished, number, candidates))
    ruled = {rule.bounds.score for rule in judged}
    others = [
        f"{name} {value:.4g}"
        for name in finished.measures.specs
        if name not in ruled and (value := clip.value(name)) is not None
    ]
    declared = [f"{name} {plain(value)}" for name, value in declared_values(clip)]
    span = f"{moment(clip.start_s)} to {moment(clip.end_s)}"
    size = (
        f"{clip.width}x{clip.height}, {amount(clip.n_frames, 'frame')} at {clip.written_fps:.4g}/s"
    )
    blocks = [
        f"clip {clip.clip_id}\n{plain(clip.source_uri)}\n{span}, as written {size}",
        "\n".join(_outcome(finished, clip)),
        _without_mark(finished, clip, judged, candidates.slice(number, 1)),
        _table(judged),
        f"scores without a rule: {', '.join(others)}" if others else "",
        f"by annotators and marks: {', '.join(declared)}" if declared else "",
        "\n".join(_remedies(finished, clip, judged)),
    ]
    return "\n\n".join(block for block in blocks if block)


def _judged(finished: Finished, number: int, candidates: pa.Table) -> Iterator[_Judged]:
    whole = candidates.slice(0, finished.without_remainders().clips.num_rows)
    corpus = corpus_of(whole, min_s=finished.recipe.propose.min_s)
    rules = finished.recipe.filters.root
    resolved = resolve(rules, corpus, finished.frozen(), measures=finished.measures)
    row = candidates.slice(number, 1)
    for bounds, rule in zip(resolved, rules.values(), strict=True):
        (measured,) = score_values(row, bounds.score)
        value = None if np.isnan(measured) else float(measured)
        text = str(row[bounds.score][0].as_py()) if bounds.names_values else None
        reason = reason_of(row, bounds)
        if bounds.severity == "flag" and reason == Reason.NOT_MEASURED:
            reason = None
        values = corpus(bounds.score) if bounds.n_measured is not None else np.zeros(0)
        yield _Judged(rule, bounds, value, text, reason, values)


def _outcome(finished: Finished, clip: ClipRow) -> Iterator[str]:
    if tags := clip.tags:
        yield f"tags: {', '.join(tags)}"
    if (mark := finished.marks.get(clip.clip_id)) is not None:
        values = dict(clip.declared(), decision=clip.decision, caption=clip.caption)
        is_newer = mark.marked_at > finished.summary["made"]
        rest = "the next run honours the mark" if is_newer else "this run did not honour the mark"
        rest = "" if has_effect(mark, values) else f"; {rest}"
        yield f"marked by hand: {', '.join(map(plain, mark.content))}{rest}"
    if clip.content_type is not None:
        yield f"content type: {clip.content_type} ({score(clip.scores['content_probability'])})"
    if form := ", ".join(_form_words(clip)):
        yield f"in the form of the recipe: {form}"
    if clip.decision == "kept":
        yield f"kept, in {clip.shard} ({clip.cut_mode or 'written'})"
        if clip.reason_detail:
            yield plain(clip.reason_detail)
        return
    value, bound = clip.reason_score, clip.reason_threshold
    is_compared = clip.reason not in (*COMPARED, Reason.NOT_SELECTED)
    has_both = is_compared and value is not None and bound is not None
    how = f" ({score(value)}, bound {score(bound)})" if has_both else ""
    yield f"rejected: {clip.reason}{how}"
    if len(clip.reasons or ()) > 1:
        yield f"all reasons, in the order of the recipe: {', '.join(clip.reasons)}"
    if clip.reason_detail:
        yield plain(clip.reason_detail)
    if clip.duplicate_of:
        yield from _original(finished, clip)


def _form_words(clip: ClipRow) -> Iterator[str]:
    """Yields how `cut.size` and `cut.fps` change the clip."""
    if clip.scale_factor is not None:
        yield f"scaled by {score(clip.scale_factor)}, {clip.cropped_share or 0.0:.0%} cropped"
    if clip.rate_factor is not None:
        yield f"{score(clip.rate_factor)} times the rate"
        yield f"{clip.repeated_share or 0.0:.0%} of its frames repeated"


def _without_mark(
    finished: Finished, clip: ClipRow, judged: Sequence[_Judged], candidate: pa.Table
) -> str:
    """Describes what the recipe decides about a clip marked `keep` without the mark."""
    if clip.declared().get(MARK_COLUMNS[0]) != "keep":
        return ""
    reasons = [rule.reason for rule in judged if rule.bounds.severity == "reject" and rule.reason]
    _, last = checks_around(candidate, filter_needs(finished.recipe))
    reasons += [str(check.reason) for check in last if check.hit[0]]
    if not reasons:
        return "Without the mark, the rules would keep it; duplicates and selection may reject it."
    named = ", ".join(dict.fromkeys(reasons))
    return f"Only the mark keeps it: without the mark, the recipe would reject it as {named}."


def _original(finished: Finished, clip: ClipRow) -> Iterator[str]:
    clips, of = finished.clips, clip.duplicate_of
    originals = taken(clips, pc.indices_nonzero(pc.equal(clips["clip_id"], of)).to_pylist())
    if clip.reason in (Reason.DUPLICATE, Reason.DIVIDED):
        what = "duplicate of" if clip.reason == Reason.DUPLICATE else "shares footage with"
        yield f"{what} {of}, which shows {clip.reason_score:.0%} of it"
    else:
        yield f"like {of}: similarity {clip.duplicate_similarity:.3f}"
    if clip.duplicate_offset_s is not None:
        yield (
            f"  {clip.duplicate_overlap_s:.1f} s from its second "
            f"{max(0.0, clip.duplicate_offset_s):.1f} on; "
            f"similarity {clip.duplicate_similarity:.3f}"
        )
    for other in ClipRows(originals, finished.clips.schema):
        what = "kept" if other.decision == "kept" else f"itself rejected: {other.reason}"
        yield f"  which is {plain(other.source_uri)} at {moment(other.start_s)}, {what}"
    parts = pc.equal(clips["reason_detail"], f"{REMAINDER} of {clip.clip_id}")
    for part in ClipRows(taken(clips, pc.indices_nonzero(parts).to_pylist()), clips.schema):
        span = f"{moment(part.start_s)} to {moment(part.end_s)}"
        yield f"  its part from {span} is {part.clip_id}, {part.reason or part.decision}"


def _table(judged: Sequence[_Judged]) -> str:
    if not judged:
        return "the recipe has no rules"
    rows = [("rule", "score", "bounds", "")]
    for rule in judged:
        value = plain(rule.text or "-") if rule.value is None else f"{rule.value:.4g}"
        verdict = "ok"
        if rule.reason is not None:
            verb = "rejects" if rule.bounds.severity == "reject" else "flags"
            is_flag = rule.bounds.severity == "flag"
            verdict = f"{verb}: {rule.bounds.tag(rule.reason) if is_flag else rule.reason}"
        name, about = rule.bounds.rule, rule.bounds.score
        name = name if name == about else f"{name} ({about})"
        rows.append((name, value, _bounds(rule), verdict))
    return "\n".join(_aligned(rows, "<><<"))


def _aligned(rows: Sequence[Sequence[str]], sides: str) -> Iterator[str]:
    """Yields rows as lines, each column aligned to its side."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, sides, widths, strict=True)
        yield "  ".join(f"{cell:{side}{width}}" for cell, side, width in cells).rstrip()


def _bounds(rule: _Judged) -> str:
    facts = {
        "drop_lowest": rule.rule.drop_lowest,
        "drop_highest": rule.rule.drop_highest,
        "n_measured": rule.bounds.n_measured,
    }
    parts = [
        f"{side} {value:.4g}{quantile_words(facts, side)}"
        for side in ("min", "max")
        if (value := getattr(rule.bounds, side)) is not None
    ]
    named = {"score": rule.bounds.score, **rule.rule.values}
    return ", ".join([*parts, *filter(None, [value_words(named)])]) or "no bound"


def _remedies(finished: Finished, clip: ClipRow, judged: Sequence[_Judged]) -> Iterator[str]:
    if clip.decision == "kept":
        return
    reasons = clip.reasons or [str(clip.reason)]
    yield (
        "It would have been kept with all of this:" if len(reasons) > 1 else "It would be kept by:"
    )
    if Reason.TOO_SHORT in reasons:
        yield f"  --set propose.min_s={_rounded(clip.end_s - clip.start_s, down=True)}"
    if Reason.TOO_LONG in reasons and all(rule.reason != Reason.TOO_LONG for rule in judged):
        yield f"  --set propose.max_s={_rounded((clip.end_s - clip.start_s) / 2, down=False)}"
    for rule in judged:
        if rule.reason in reasons and rule.bounds.severity == "reject":
            yield f"  {_remedy(rule)}"
    if Reason.CONTENT_TYPE_UNWANTED in reasons:
        yield f"  {_content_remedy(finished, clip)}"
    for reason in reasons:
        if is_of_stage(reason, finished.measures):
            yield "  another config of the stage in `stages` that rejects it, or without this stage"
        elif reason in _NOT_BY_RULES:
            yield f"  {_late_remedy(finished, clip, Reason(reason))}"
    if (
        not set(COMPARED).intersection(reasons)
        and finished.recipe.dedup.enabled
        and not any(
            reason in _NOT_BY_RULES or is_of_stage(reason, finished.measures) for reason in reasons
        )
    ):
        yield "Deduplication, which follows the rules, has not yet compared it with other clips."


def _remedy(rule: _Judged) -> str:
    key, config = f"filters.{rule.bounds.rule}", rule.rule
    if rule.reason == f"{rule.bounds.score}_unwanted":
        return f"{key}.one_of and none_of for {rule.text}"
    if rule.value is None:
        return f"no rule on {rule.bounds.score}, which could not be measured for this clip"
    is_low = rule.bounds.min is not None and rule.value < rule.bounds.min
    side, end = ("min", "lowest") if is_low else ("max", "highest")
    changes = []
    absolute = getattr(config, side)
    if absolute is not None and (rule.value < absolute if is_low else rule.value > absolute):
        changes.append(f"--set {key}.{side}={_rounded(rule.value, down=is_low)}")
    share = getattr(config, f"drop_{end}")
    if share is not None and len(rule.corpus):
        beyond = int(np.sum(rule.corpus <= rule.value if is_low else rule.corpus >= rule.value))
        fitting = max(0, beyond - 1) / len(rule.corpus)
        if fitting < share:
            rounded = floor(fitting * 10_000) / 10_000
            changes.append(f"--set {key}.drop_{end}={rounded:g}")
    return " ".join(changes) or f"another bound of {key}"


def _content_remedy(finished: Finished, clip: ClipRow) -> str:
    others = [n for n in finished.recipe.semantic.reject if n != clip.content_type]
    remedy = "--set " + shlex.quote(f"semantic.reject=[{','.join(others)}]")
    least = _rounded((clip.scores["content_probability"] or 0.0) + 1e-6, down=False)
    return remedy if float(least) > 1 else f"--set semantic.reject_from={least}, or {remedy}"


def _rounded(value: float, *, down: bool) -> str:
    """Rounds a value, down or up, to the fewest digits that still let the value pass the bound."""
    if value == 0:
        return "0"
    for digits in (3, 5, 8, 17):
        step = 10.0 ** (floor(log10(abs(value))) + 1 - digits)
        whole = np.floor(value / step) if down else np.ceil(value / step)
        text = f"{whole * step:.{digits}g}"
        if (float(text) <= value) if down else (float(text) >= value):
            return text
    return repr(value)


def _late_remedy(finished: Finished, clip: ClipRow, reason: Reason) -> str:
    shard, recipe = finished.recipe.shard, finished.recipe
    if reason in OF_FORM:
        key, column = OF_FORM[reason]
        least = "always" if key == "cut.enlarge" else _rounded(clip.value(column), down=False)
        return f"--set {key}={least}"
    if reason == Reason.NO_BUCKET:
        return (
            f"a bucket for {clip.width}x{clip.height} and {amount(clip.n_frames, 'frame')}: "
            f"shard.resolutions begins at {min(shard.resolutions)} px, shard.lengths at "
            f"{min(shard.lengths)} frames and one more"
        )
    if reason == Reason.NO_ASPECT_CLASS:
        least = _rounded((clip.reason_score or 0.0) + 1e-6, down=False)
        return (
            f"a class in shard.aspects near {clip.width}x{clip.height}, or "
            f"--set shard.aspects_tolerance={least}, or --set shard.aspects_strict=false"
        )
    if reason == Reason.DUPLICATE:
        shown = clip.reason_score or 0.0
        wider = f"--set dedup.min_share={_rounded(shown + 1e-6, down=False)}, or "
        return (
            f"{wider if shown < 1 else ''}--set dedup.enabled=false, or a rule that rejects "
            f"{clip.duplicate_of}"
        )
    if reason == Reason.NOT_SELECTED:
        rank, select = f"{clip.reason_score:.0f}", recipe.select
        if select.keep_fraction is None and not select.keep_fractions:
            return f"--set select.max_per_group={rank}, or another select.seed"
        keys = ["max_per_group"] if select.max_per_group is not None else []
        keys += ["keep_fraction"] if select.keep_fraction is not None else []
        wider = ", ".join(f"select.{key}" for key in [*keys, "seed"])
        return f"a place for the clip of rank {rank} in its group: {wider}"
    return {
        Reason.MARKED_DROP: f"curate mark {shlex.quote(finished.store.uri)} {clip.clip_id} --keep",
        Reason.DIVIDED: "--set dedup.remainders=false",
        Reason.REMOVED_BEFORE: "only another OUT: the clip is a copy of removed footage",
        Reason.SEMANTIC_DUPLICATE: "a higher cluster.similarity, or null",
        Reason.DUPLICATE_ELSEWHERE: "a recipe without that output in dedup.against",
        Reason.ANSWER_UNWANTED: "another answer, or caption.reject without the one above",
        Reason.NOT_ANNOTATED: "an answer: run again for what passes, or --set caption.failed=keep",
        Reason.JUDGED_TOO_LOW: "a better answer, or a lower caption.judge.min_score, or --set "
        "caption.failed=keep",
        Reason.CUT_FAILED: "a source that can be decoded and encoded there; the message is above",
    }[reason]
