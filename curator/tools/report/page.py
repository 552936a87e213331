"""The report page: headline, funnel, clips, scores, sources, shards, workers and run."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import orjson

from curator.number_text import amount
from curator.records.sources import Note, Source
from curator.tables.clip_rows import ClipColumns
from curator.tables.proof_store import Proof, by_reason
from curator.tools.report.contact_sheets import (
    Browsing,
    Sheet,
    caption_words,
    galleries_of,
    listed_clusters,
    originals_of,
    sheets_of,
)
from curator.tools.report.default_words import default_words
from curator.tools.report.funnel import (
    applied_rules,
    bound_words,
    course_words,
    funnel_steps,
    gpu_trouble,
    reason_words,
    reasons_of,
)
from curator.tools.report.histogram import histograms
from curator.tools.report.page_templates import render
from curator.tools.report.score_distance import Nearness
from curator.trainers.fit_words import fit_lines

MAX_PER_GROUP = 24
"""Most clips on a contact sheet, and most failed sources of one error code."""
PREVIEWS = "report/previews/"
"""Folder of the moving previews of `curate report`: MP4s by clip id."""
MAX_NAMED = 5
"""Most reasons that the sentence at the top names."""
MAX_SHARDS = 100


def render_report(
    *,
    summary: dict[str, Any],
    sources: Sequence[Source],
    clips: ClipColumns,
    pictures: Callable[[Iterable[str]], Mapping[str, bytes]],
    max_per_group: int = MAX_PER_GROUP,
    is_of_last: bool = False,
    previews: Collection[str] = (),
    proofs: Iterable[Proof] = (),
) -> str:
    """Renders the page that shows which clips a run kept and dropped, and why.

    The HTML document refers to no other files except previews.

    Args:
        summary: Contents of `summary.json`.
        sources: Rows of `sources`: for each error code, at least the first `max_per_group` failed
            sources by URI.
        clips: All clips.
        pictures: Returns JPEGs of clips by their ids; a clip may have none.
        max_per_group: Most clips on a contact sheet, the first by id; ids are hashes, so these
            clips are a fair sample. Also most failed sources of one error code, the first by URI.
        is_of_last: Whether `clips` has only the clips of the last generation.
        previews: Ids of the clips with a moving preview.
        proofs: Results of `curate prove`, the oldest first.
    """
    counts: Mapping[str, Any] = defaultdict(int, _given(summary.get("counts")))
    recipe, shards = _given(summary.get("recipe")), summary.get("shards") or []
    stage_seconds = summary.get("stage_seconds") or {}
    funnel = funnel_steps(summary)
    taken = sorted((step for step in funnel if step.n_first), key=lambda step: -step.n_first)
    ruled, others = histograms(summary, clips)
    sheets, nearness = sheets_of(summary, clips, max_per_group), Nearness(summary, clips)
    return render(
        "report.html.j2",
        summary=summary,
        version=summary.get("curate_version"),
        counts=counts,
        is_of_last=is_of_last,
        has_clips=len(clips) > 0,
        recipe=recipe,
        recipe_text=orjson.dumps(recipe, option=orjson.OPT_INDENT_2, default=str).decode(),
        versions=summary.get("versions") or {},
        video_s=summary.get("video_s") or 0.0,
        kept_s=summary.get("kept_s") or 0.0,
        stage_seconds=stage_seconds,
        total_s=sum(stage_seconds.values()),
        funnel=funnel,
        course=course_words(summary),
        default_words=[*default_words(summary), *fit_lines(summary, "OUT")],
        reason_words=reason_words,
        proofs=by_reason(proofs, summary),
        named=taken[:MAX_NAMED],
        n_unnamed=sum(step.n_first for step in taken[MAX_NAMED:]),
        tags=_tags(summary),
        sheets=sheets,
        galleries=galleries_of(summary, clips),
        nearness=nearness,
        browsing=Browsing(sheets, nearness),
        originals=originals_of(sheets, clips),
        thumbnails=pictures(_ids_of(summary, sheets)),
        previews=previews,
        caption_words=caption_words(clips),
        ruled=ruled,
        others=others,
        failed=_failed_sources(sources, counts["by_error"] or {}, max_per_group),
        notes={note: note.words for note in Note},
        shards=shards,
        max_shards=MAX_SHARDS,
        n_bytes=sum(shard.get("bytes") or 0 for shard in shards),
        buckets=_buckets(shards),
        unit_times=summary.get("unit_times") or [],
        gpu_trouble=gpu_trouble(summary),
        done=_work_done(summary.get("work") or {}),
    )


def shown_clips(
    summary: Mapping[str, Any], clips: ClipColumns, max_per_group: int = MAX_PER_GROUP
) -> list[str]:
    """Returns ids of the clips that may be on a run's page and need thumbnails."""
    return _ids_of(summary, sheets_of({}, clips, max_per_group))


def _ids_of(summary: Mapping[str, Any], sheets: Iterable[Sheet]) -> list[str]:
    shown = [clip for sheet in sheets for clip in sheet.clips]
    retained = [clip.duplicate_of for clip in shown if clip.duplicate_of]
    nearest = [name for cluster in listed_clusters(summary) for name in cluster["nearest"]]
    return [*(clip.clip_id for clip in shown), *retained, *nearest]


def _given(facts: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (facts or {}).items() if value is not None}


def _tags(summary: Mapping[str, Any]) -> list[tuple[str, str, int, int]]:
    """Lists the tags of rules in their order, then all other tags of clips.

    A row has the name, the bound that gives the tag (or an empty text), the number of clips, and
    the number of kept clips.
    """
    counts = summary.get("counts") or {}
    n_flagged, kept = counts.get("by_tag") or {}, counts.get("by_tag_kept") or {}
    meant: dict[str, str] = {}
    for rule in applied_rules(summary):
        if rule["severity"] == "flag":
            for reason, side, _ in reasons_of(rule):
                name = str(reason) if rule["rule"] == rule["score"] else rule["rule"]
                words = bound_words(rule, side)
                meant[name] = f"{meant[name]} or {words}" if name in meant else words
    return [
        (name, meant.get(name, ""), n_flagged.get(name) or 0, kept.get(name) or 0)
        for name in dict.fromkeys([*meant, *n_flagged])
    ]


def _failed_sources(
    sources: Iterable[Source], n_by_code: Mapping[str, int], max_per_code: int
) -> list[tuple[str, int, Sequence[Source]]]:
    """Returns error codes, most frequent first, with number of sources and the first by URI."""
    by_code: dict[str, list[Source]] = {}
    for row in sources:
        if row.outcome == "failed":
            by_code.setdefault(str(row.error_code), []).append(row)
    groups = []
    for code, rows in by_code.items():
        first = sorted(rows, key=lambda row: row.uri)[:max_per_code]
        groups.append((code, max(len(rows), n_by_code.get(code) or 0), first))
    return sorted(groups, key=lambda item: (-item[1], item[0]))


def _buckets(shards: Iterable[Mapping[str, Any]]) -> list[tuple[str, int, int, int, int]]:
    """Returns buckets by name, with their numbers of shards, clips, frames and bytes."""
    by_bucket: dict[str, list[int]] = {}
    for shard in shards:
        totals = by_bucket.setdefault(str(shard.get("bucket")), [0, 0, 0, 0])
        for number, key in enumerate(("n_samples", "n_frames", "bytes"), start=1):
            totals[number] += shard.get(key) or 0
        totals[0] += 1
    return [
        (name, n, clips, frames, size)
        for name, (n, clips, frames, size) in sorted(by_bucket.items())
    ]


def _work_done(work: Mapping[str, int]) -> list[str]:
    """Describes the work of this run alone."""
    words = (
        ("sources_scanned", "source", "probed"),
        ("sources_analyzed", "source", "analyzed"),
        ("clips_cut", "clip", "written"),
        ("shards_written", "shard", "packed"),
    )
    return [f"{amount(work[key], noun)} {verb}" for key, noun, verb in words if key in work]
