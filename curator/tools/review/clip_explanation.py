"""Lists clips with their outcomes; explains why a clip was rejected and how to keep it."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.dataset.output_form import as_written
from curator.errors import UsageError, ambiguous_id
from curator.measures.filtering import checks_around
from curator.number_text import amount, moment, plain, score
from curator.pipeline import filter_needs
from curator.records.clips import CLAIMS_COLUMN, COMPARED, REMAINDER, Reason
from curator.runs.marked_clips import has_effect
from curator.tables.clip_rows import ClipRow, ClipRows
from curator.tables.disk_table import taken
from curator.tables.long_columns import take_values
from curator.tables.mark_table import MARK_COLUMNS
from curator.tools.report.funnel import quantile_words, value_words
from curator.tools.report.page_templates import declared_values, short
from curator.tools.review.finished_run import Finished
from curator.tools.review.remedies import (
    MAX_TRIED,
    AppliedRule,
    Trial,
    applied_rules,
    find_remedies,
    words,
)

MAX_LISTED = 50


def find_clip(finished: Finished, prefix: str) -> int:
    """Returns the row of the clip with an id prefix; `UsageError` if none or several match."""
    ids = finished.clips["clip_id"]
    clips = pc.indices_nonzero(pc.starts_with(ids, prefix)).to_pylist() if prefix else []
    if clips and len(set(take_values(ids, pa.array(clips)).to_pylist())) == 1:
        # A remainder that is nearly its whole clip has the clip's id, and comes last.
        return int(clips[-1])
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


def explain(
    finished: Finished,
    prefix: str,
    candidates: pa.Table | None = None,
    *,
    max_tried: int = MAX_TRIED,
) -> str:
    """Explains the outcome of the clip whose id begins with a prefix, as text.

    `candidates` are those of `finished`, perhaps without remainders; None to read them. In a run
    with more than `max_tried` clips, settings are tried with the rules alone.
    """
    number = find_clip(finished, prefix)
    (clip,) = ClipRows(finished.clips.slice(number, 1), finished.clips.schema)
    if candidates is None:
        candidates = finished.candidates()
    applied = list(applied_rules(finished, finished.recipe, candidates, number))
    ruled = {rule.bounds.score for rule in applied}
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
    form = "written as" if clip.decision == "kept" else "would be written as"
    blocks = [
        f"clip {clip.clip_id}\n{plain(clip.source_uri)}\n{span}, {form} {size}",
        "\n".join(_outcome(finished, clip)),
        _without_mark(
            finished,
            clip,
            applied,
            as_written(candidates.slice(number, 1), finished.recipe.cut, finished.recipe.shard),
        ),
        _table(applied),
        f"scores without a rule: {', '.join(others)}" if others else "",
        f"by annotators and marks: {', '.join(declared)}" if declared else "",
        _claims(clip),
        "\n".join(_remedies(finished, clip, Trial(finished, candidates, number, max_tried))),
    ]
    return "\n\n".join(block for block in blocks if block)


def _outcome(finished: Finished, clip: ClipRow) -> Iterator[str]:
    if tags := clip.tags:
        yield f"tags: {', '.join(tags)}"
    if (mark := finished.marks.get(clip.clip_id)) is not None:
        values = dict(clip.declared(), decision=clip.decision, caption=clip.caption)
        # Whole seconds, as the commit has: a fast run honours a mark of the same second.
        is_newer = mark.marked_at[:19] > finished.summary["created_at"][:19]
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
    """Yields of which window the clip is, and how its size and rate change it."""
    if clip.window_frames is not None:
        rate = "the source's rate" if clip.window_fps is None else f"{clip.window_fps:.4g}/s"
        yield f"window of {clip.window_frames} frames at {rate}"
    if clip.scale_factor is not None:
        yield f"scaled by {score(clip.scale_factor)}, {clip.cropped_share or 0.0:.0%} cropped"
    if clip.rate_factor is not None:
        yield f"{score(clip.rate_factor)} times the rate"
        yield f"{clip.repeated_share or 0.0:.0%} of its frames repeated"


def _without_mark(
    finished: Finished, clip: ClipRow, applied: Sequence[AppliedRule], candidate: pa.Table
) -> str:
    """Describes what the recipe decides about a clip marked `keep` without the mark."""
    if clip.declared().get(MARK_COLUMNS[0]) != "keep":
        return ""
    reasons = [rule.reason for rule in applied if rule.bounds.severity == "reject" and rule.reason]
    _, last = checks_around(candidate, filter_needs(finished.recipe))
    reasons += [str(check.reason) for check in last if check.hit[0]]
    if not reasons:
        return "Without the mark, the rules would keep it; duplicates and selection may reject it."
    named = ", ".join(dict.fromkeys(reasons))
    return f"Only the mark keeps it: without the mark, the recipe would reject it as {named}."


def _remedies(finished: Finished, clip: ClipRow, trial: Trial) -> Iterator[str]:
    if clip.decision != "kept":
        yield from words(finished.store.uri, clip, trial, find_remedies(trial, clip))


def _original(finished: Finished, clip: ClipRow) -> Iterator[str]:
    clips, of = finished.clips, clip.duplicate_of
    originals = taken(clips, pc.indices_nonzero(pc.equal(clips["clip_id"], of)).to_pylist())
    if clip.reason in (Reason.DUPLICATE, Reason.DIVIDED):
        what = "duplicate of" if clip.reason == Reason.DUPLICATE else "shares footage with"
        share = (clip.duplicate_overlap_s or 0.0) / max(clip.end_s - clip.start_s, 1e-9)
        is_alone = clip.reason == Reason.DIVIDED or share > (clip.reason_score or 0.0) - 0.05
        who = "which shows" if is_alone else "which, with other clips that stay, shows"
        yield f"{what} {of}, {who} {clip.reason_score:.0%} of it"
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


def _table(applied: Sequence[AppliedRule]) -> str:
    if not applied:
        return "the recipe has no rules"
    rows = [("rule", "score", "bounds", "")]
    for rule in applied:
        text = plain(", ".join(map(str, rule.values))) or "-"
        value = text if rule.value is None else f"{rule.value:.4g}"
        verdict = "ok"
        if rule.reason is not None:
            verb = "rejects" if rule.bounds.severity == "reject" else "flags"
            is_flag = rule.bounds.severity == "flag"
            verdict = f"{verb}: {rule.bounds.tag(rule.reason) if is_flag else rule.reason}"
        name, about = rule.bounds.rule, rule.bounds.score
        name = name if name == about else f"{name} ({about})"
        rows.append((name, value, _bounds(rule), verdict))
    return "\n".join(_aligned(rows, "<><<"))


def _claims(clip: ClipRow) -> str:
    """Returns the claims of the caption, their verdicts and measurements; empty for none."""
    claims = json.loads(clip.declared().get(CLAIMS_COLUMN) or "[]")
    if not claims:
        return ""
    names = ("kind", "text", "verdict", "measured")
    rows = [[plain(short(claim[name])) for name in names] for claim in claims]
    heading = ("claim", "words of the caption", "verdict", "measured")
    return "\n".join(_aligned([heading, *rows], "<<<<"))


def _aligned(rows: Sequence[Sequence[str]], sides: str) -> Iterator[str]:
    """Yields rows as lines, each column aligned to its side."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, sides, widths, strict=True)
        yield "  ".join(f"{cell:{side}{width}}" for cell, side, width in cells).rstrip()


def _bounds(rule: AppliedRule) -> str:
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
