"""The report page: headline, funnel, clips, scores, sources, shards, timeline, the run itself."""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from curator.records.sources import Source
from curator.report.cluster_galleries import galleries_of, listed_clusters
from curator.report.contact_sheets import Browsing, caption_words, originals_of, sheets_of
from curator.report.funnel import course_words, funnel_steps, gpu_trouble
from curator.report.histogram import histograms
from curator.report.page_templates import render
from curator.report.report_tables import NOTES, buckets, failed_sources, tags, work_done
from curator.report.rule_text import reason_words
from curator.report.score_distance import Nearness
from curator.tables.clip_rows import ClipColumns

MAX_PER_GROUP = 24
"""Most clips on a contact sheet, and most failed sources of one error code."""
PREVIEWS = "report/previews/"
"""Where `curate report` puts moving previews: MP4s by clip id."""
MAX_NAMED = 5
"""Most reasons that the sentence at the top names."""
MAX_SHARDS = 100


def render_report(
    *,
    summary: dict[str, Any],
    sources: Sequence[Source],
    clips: ClipColumns,
    thumbnails: Mapping[str, bytes],
    max_per_group: int = MAX_PER_GROUP,
    is_of_last: bool = False,
    previews: Collection[str] = (),
) -> str:
    """Renders the page that shows which clips a run kept and dropped, and why.

    The HTML document refers to nothing outside itself but previews.

    Args:
        summary: Contents of `summary.json`.
        sources: Rows of `sources`: at least the first `max_per_group` failed ones of each error
            code, by URI.
        clips: All clips.
        thumbnails: JPEG of a clip by its id; a clip may have none.
        max_per_group: Most clips on a contact sheet, and most failed sources of one error code: the
            first by id, which is a hash and so a fair sample, or by URI.
        is_of_last: Whether `clips` are those of the last generation alone.
        previews: Ids of the clips that have a moving preview.
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
        recipe_text=json.dumps(recipe, indent=2, ensure_ascii=False, default=str),
        versions=summary.get("versions") or {},
        video_s=summary.get("video_s") or 0.0,
        kept_s=summary.get("kept_s") or 0.0,
        stage_seconds=stage_seconds,
        total_s=sum(stage_seconds.values()),
        funnel=funnel,
        course=course_words(summary),
        reason_words=reason_words,
        named=taken[:MAX_NAMED],
        n_unnamed=sum(step.n_first for step in taken[MAX_NAMED:]),
        tags=tags(summary),
        sheets=sheets,
        galleries=galleries_of(summary, clips),
        nearness=nearness,
        browsing=Browsing(sheets, nearness),
        originals=originals_of(sheets, clips),
        thumbnails=thumbnails,
        previews=previews,
        caption_words=caption_words(clips),
        ruled=ruled,
        others=others,
        failed=failed_sources(sources, counts["by_error"] or {}, max_per_code=max_per_group),
        notes=NOTES,
        shards=shards,
        max_shards=MAX_SHARDS,
        n_bytes=sum(shard.get("bytes") or 0 for shard in shards),
        buckets=buckets(shards),
        timeline=_given(summary.get("timeline")),
        gpu_trouble=gpu_trouble(summary),
        done=work_done(summary.get("work") or {}),
    )


def shown_clips(
    summary: Mapping[str, Any], clips: ClipColumns, max_per_group: int = MAX_PER_GROUP
) -> list[str]:
    """Returns ids of the clips on the page of a run, which need thumbnails."""
    shown = [clip for sheet in sheets_of({}, clips, max_per_group) for clip in sheet.clips]
    retained = [clip.duplicate_of for clip in shown if clip.duplicate_of]
    nearest = [name for cluster in listed_clusters(summary) for name in cluster["nearest"]]
    return [*(clip.clip_id for clip in shown), *retained, *nearest]


def _given(facts: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (facts or {}).items() if value is not None}
