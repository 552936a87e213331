"""The report page: headline, funnel, sources, contact sheets, distributions, shards, times."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from curator.report.contact_sheets import Sheets, anchor
from curator.report.funnel import funnel_steps
from curator.report.histogram import histograms
from curator.report.markup import Markup, esc, joined
from curator.report.number_text import amount, count, length, share, size
from curator.report.report_tables import (
    failed_sources,
    flags_table,
    funnel_table,
    notes_table,
    recipe_text,
    shards_table,
    stages_table,
)

MAX_PER_GROUP = 24
"""Most clips on a contact sheet, and most failed sources of one error code."""
MAX_NAMED = 5
"""Most reasons that the sentence at the top names."""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""Names and captions are escaped; should one slip through, nothing of it is run or fetched."""


def render_report(
    *,
    summary: dict[str, Any],
    sources: Sequence[dict[str, Any]],
    clips: Sequence[Mapping[str, Any]],
    thumbnails: Mapping[str, bytes],
    max_per_group: int = MAX_PER_GROUP,
) -> str:
    """Makes the page that shows what a run kept, what it dropped, and why.

    Args:
        summary: What `summary.json` holds.
        sources: Rows of `sources`: at least the first `max_per_group` failed ones of each error
            code, by URI.
        clips: Rows of `clips`.
        thumbnails: JPEG of a clip by its id; a clip may have none.
        max_per_group: Most clips on a contact sheet, and most failed sources of one error code:
            the first by id, which is a hash and so a fair sample, or by URI.

    Returns:
        One HTML document that refers to nothing outside itself.
    """
    sheets = Sheets(
        summary=summary, clips=clips, thumbnails=thumbnails, max_per_group=max_per_group
    )
    sections = [
        ("funnel", "Funnel", joined([funnel_table(summary), flags_table(summary)])),
        ("clips", "Clips", sheets.section()),
        ("scores", "Scores", _scores(summary, clips)),
        ("sources", "Sources", joined([
            failed_sources(summary, sources, max_per_code=max_per_group), notes_table(summary)])),
        ("shards", "Shards", shards_table(summary)),
        ("run", "Run", joined([stages_table(summary), recipe_text(summary)])),
    ]  # fmt: skip
    links = joined(Markup(f'<a href="#{name}">{title}</a>') for name, title, _ in sections)
    body = joined(
        Markup(f'<section id="{name}"><h2>{title}</h2>{content}</section>\n')
        for name, title, content in sections
    )
    header = joined(
        [_title(summary), _headline(summary), _verdict(summary), Markup(f"<nav>{links}</nav>")]
    )
    return document("curate report", header, body)


def document(title: str, header: Markup, body: Markup) -> str:
    """A whole page in the report's style that refers to nothing outside itself."""
    style = files("curator.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{esc(title)}</title><style>\n{style}</style></head><body>\n"
        f"<header>{header}</header>\n<main>\n{body}</main></body></html>\n"
    )


def shown_clips(
    clips: Sequence[Mapping[str, Any]], max_per_group: int = MAX_PER_GROUP
) -> list[str]:
    """Ids of the clips that the page of a run shows, and so of the thumbnails that it needs."""
    return Sheets(summary={}, clips=clips, thumbnails={}, max_per_group=max_per_group).shown()


def _title(summary: Mapping[str, Any]) -> Markup:
    about = (summary.get("recipe") or {}).get("about") or ""
    version = summary.get("curate_version")
    made_by = f"curate {version}" if version else "curate"
    return Markup(
        f'<p class="made">{esc(made_by)}</p><h1>Curation report</h1>'
        f'<p class="about">{esc(about)}</p>'
    )


def _headline(summary: Mapping[str, Any]) -> Markup:
    counts = summary.get("counts") or {}
    n_sources, n_failed = counts.get("sources") or 0, counts.get("failed") or 0
    n_clips, n_kept = counts.get("clips") or 0, counts.get("kept") or 0
    video_s, kept_s = summary.get("video_s") or 0.0, summary.get("kept_s") or 0.0
    shards = summary.get("shards") or []
    seconds = sum((summary.get("stage_seconds") or {}).values())
    tiles = [
        ("sources done", count(counts.get("done") or 0), _of_sources(n_sources, n_failed)),
        ("video in", length(video_s), "of the sources done"),
        ("clips kept", count(n_kept), f"{share(n_kept, n_clips)} of {count(n_clips)}"),
        ("video kept", length(kept_s), f"{share(kept_s, video_s)} of what came in"),
        ("shards", count(len(shards)), size(sum(shard.get("bytes") or 0 for shard in shards))),
        ("run time", length(seconds), "all stages together"),
    ]  # fmt: skip
    return tiles_row(tiles)


def _verdict(summary: Mapping[str, Any]) -> Markup:
    """In a sentence or two: what was kept, what was dropped for what, and what failed."""
    counts = summary.get("counts") or {}
    n_clips, n_kept = counts.get("clips") or 0, counts.get("kept") or 0
    said = []
    if n_clips:
        taken = sorted(
            ((step.n_first, step.reason) for step in funnel_steps(summary) if step.n_first),
            key=lambda item: -item[0],
        )
        named = joined(
            (
                Markup(f'{count(n)} <a href="#{anchor(reason)}">{esc(reason)}</a>')
                for n, reason in taken[:MAX_NAMED]
            ),
            ", ",
        )
        rest = sum(n for n, _ in taken[MAX_NAMED:])
        others = f", {count(rest)} for other reasons" if rest else ""
        dropped = f"; dropped {named}{others}" if taken else "; dropped none"
        said.append(f"Kept <b>{count(n_kept)}</b> of {amount(n_clips, 'clip')}{dropped}.")
    if by_error := counts.get("by_error"):
        n_failed = sum(by_error.values())
        codes = esc(", ".join(f"{count(n)} {code}" for code, n in by_error.items()))
        said.append(
            f'<a class="bad" href="#sources">{amount(n_failed, "source")} failed</a>: {codes}.'
        )
    return Markup(f'<p class="verdict">{" ".join(said)}</p>' if said else "")


def tiles_row(tiles: Sequence[tuple[str, str, object]]) -> Markup:
    """The headline's tiles: name, value and what is said of it."""
    items = joined(
        Markup(
            f"<div><dt>{esc(name)}</dt><dd><b>{esc(value)}</b><span>{esc(said)}</span></dd></div>"
        )
        for name, value, said in tiles
    )
    return Markup(f'<dl class="headline">{items}</dl>')


def _of_sources(n_sources: int, n_failed: int) -> Markup:
    failed = "none failed"
    if n_failed:
        failed = f'<a class="bad" href="#sources">{count(n_failed)} failed</a>'
    return Markup(f"of {count(n_sources)}; {failed}")


def _scores(summary: Mapping[str, Any], clips: Sequence[Mapping[str, Any]]) -> Markup:
    ruled, others = histograms(summary, clips)
    if not ruled and not others:
        return Markup('<p class="none">No clip was measured.</p>')
    legend = (
        '<p class="legend"><i class="kept"></i>kept <i class="rejected"></i>rejected, for any '
        'reason <i class="bound"></i>bound of the rule, shaded where it rejects or flags</p>'
    )
    folded = joined(
        Markup(f'<h3>{esc(family)}</h3><div class="histograms">{figures}</div>')
        for family, figures in others.items()
    )
    more = f"<details><summary>Scores without a rule</summary>{folded}</details>" if folded else ""
    return Markup(f'{legend}<div class="histograms">{ruled}</div>{more}')
