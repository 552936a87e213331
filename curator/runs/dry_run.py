"""Describes what a run would do and which clips it would drop; writes nothing.

The description follows from the listing of sources and the stored state.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from curator.errors import REFUSED, RETRIED
from curator.number_text import amount, plain, size
from curator.pipeline import graph_of
from curator.recipe import Recipe, measures_of
from curator.recipe_models import semantics_of
from curator.records.sources import SourceRef
from curator.runs.dropped_clips import DropCheck, by_source
from curator.runs.dry_run_clips import clip_lines
from curator.runs.generations import last_sources
from curator.stages.analyze.families import families_of
from curator.stages.analyze.identity_driver import decided_sources
from curator.stages.scan.listing_records import (
    FurtherSpan,
    ListedSource,
    SkippedName,
    UnlistedSource,
)
from curator.stages.scan.source_listing import list_sources
from curator.storage import Store
from curator.tables.family_store import FamilyRows
from curator.tables.output_format import read_summary
from curator.tables.source_metadata import SourceMetadata
from curator.tables.source_rights import refusals
from curator.tables.source_spans import SourceSpans
from curator.tables.track_parts import TrackParts

MAX_NAMED = 5
"""Maximum number of unreadable sources that a dry run names."""
_LAST = (
    "uri", "version", "source_id", "error_stage", "error_code", "codec", "pixel_format",
    "rotation_deg", "pixel_aspect", "is_interlaced", "is_hdr", "spans", "c2pa_generated",
)  # fmt: skip
_UNREAD = ""
"""Content id of a source that no run has read."""

_WORDS = {
    "analyzed": "analyzed already",
    "new": "to analyze, unless the footage was removed or is in another source",
    "changed": "changed since the last run; a run drops or replaces the clips of changed contents",
    "refused": "refused by rights of the recipe",
    "again": "failed before, and tried again",
    "failed": "failed before or were removed, and not tried again",
    "unlisted": "not readable",
    "skipped": "skipped, because they are not videos",
}
"""Words after each count of sources."""


def dry_run(
    sources: Sequence[str], store: Store, recipe: Recipe, *, limit: int | None, replace: bool
) -> tuple[str, str | None]:
    """Describes the work of a run, without reading sources; only the rules filter stored clips.

    Returns the description, and the reason of a refusal; None if the run may start.
    """
    previous = read_summary(store)
    rights, table = recipe.rights, last_sources(store, previous)
    names = [*_LAST, *(name for name in rights.columns if name in table.column_names)]
    last = {row["uri"]: row for row in table.select(names).to_pylist()}
    refused: set[str] = set()
    counts: Counter[str] = Counter()
    unlisted: dict[str, str] = {}
    may_be_other: set[str] = set()
    spans = SourceSpans(SourceMetadata())

    def check_rights(item: ListedSource | FurtherSpan) -> None:
        is_generated = last.get(item.uri, {}).get("c2pa_generated")
        values = item.metadata if isinstance(item, ListedSource) else {}
        own = item.span.metadata if item.span is not None else {}
        row = {"uri": item.uri, "spans": None, "c2pa_generated": is_generated, **values, **own}
        refused.update(failure.uri for failure in refusals([row], rights))

    def listed() -> Iterator[SourceRef]:
        for item in list_sources(
            sources,
            limit=limit,
            sidecar_meta=recipe.scan.sidecar_meta and rights.refuses,
            media=recipe.scan.accepted,
        ):
            if isinstance(item, SkippedName):
                counts["skipped"] += 1
            elif isinstance(item, UnlistedSource):
                unlisted[item.uri] = plain(item.message)
            elif isinstance(item, FurtherSpan):
                spans.add(item.uri, *item.span)
                check_rights(item)
            else:
                check_rights(item)
                if item.span is not None:
                    spans.add(item.uri, *item.span)
                counts["bytes"] += item.bytes
                if item.may_be_other:
                    may_be_other.add(item.uri)
                yield SourceRef(uri=item.uri, n_bytes=item.bytes, version=item.version)

    contents = _contents(listed(), store, recipe, last)
    spans.check()
    families = families_of(
        recipe.analyze, semantics_of(recipe).weights_fingerprint, measures_of(recipe).users
    )
    tracks, failed = TrackParts(store, families).stored(set(filter(None, contents.values())))
    for uri, source_id in contents.items():
        if uri in refused:
            counts["refused"] += 1
        elif source_id is None and uri in may_be_other and uri not in last:
            counts["skipped"] += 1
        elif source_id is None or source_id in failed:
            counts["failed"] += 1
        elif len(tracks.get(source_id, ())) == len(families):
            counts["analyzed"] += 1
        else:
            is_retried = uri in last and last[uri]["error_code"] in RETRIED
            is_changed = uri in last and source_id == _UNREAD
            counts["again" if is_retried else "changed" if is_changed else "new"] += 1
    counts["unlisted"] = len(unlisted)
    lines = [
        f"{amount(len(contents), 'source')}, {size(counts['bytes'])}; nothing was written to "
        f"{store.uri}",
        *(f"{counts[name]} {words}" for name, words in _WORDS.items() if counts[name]),
        *list(unlisted.values())[:MAX_NAMED],
    ]
    if len(unlisted) > MAX_NAMED:
        lines.append(f"and {len(unlisted) - MAX_NAMED} more")
    contents.update(dict.fromkeys(unlisted))
    drop_check = DropCheck(store, previous, replace=replace, unlisted=list(unlisted))
    others = (row for uri, row in last.items() if uri not in contents)
    refused.update(failure.uri for failure in refusals(others, rights))
    usable = {content for uri, content in contents.items() if content and uri not in refused}
    usable -= failed
    if not replace:
        stays = {
            row["source_id"]
            for uri, row in last.items()
            if (row["error_code"] is None or row["error_code"] in REFUSED)
            and uri not in contents
            and uri not in refused
        }
        if n_new := len(stays - usable):
            stay = f"{amount(n_new, 'source')} of earlier runs would stay"
            lines.append(f"{stay}; --replace leaves them out")
        usable |= stays
    of_clips = list(clip_lines(store, recipe, previous, last, usable))
    lines += of_clips or ["which clips to encode and to copy is known after their analysis"]
    names = [stage.name for stage in graph_of(recipe).annotators()]
    if names and not of_clips:
        lines.append(f"annotators to compute: {', '.join(names)}, of each clip that is written")
    there = pa.chunked_array([sorted(usable)], pa.string())
    unread = [uri for uri, content in contents.items() if content == _UNREAD]
    dropped = by_source(
        drop_check.missing(there, unread),
        lambda uris: {uri: contents.get(uri) for uri in uris if uri in contents or uri in refused},
        refused,
    )
    lines += [f"clips would leave the shards: {change}" for change in dropped]
    problem = drop_check.problem(dropped)
    if problem is not None and unread:
        where = f"{amount(len(unread), 'source')} that no run has read"
        lines.append(f"{problem}; unless these clips are in {where}")
        problem = None
    return "\n  ".join(lines), problem


def _contents(
    listed: Iterator[SourceRef], store: Store, recipe: Recipe, last: Mapping[str, Any]
) -> dict[str, str | None]:
    """Returns the content id of each address: None after a failed probe, `_UNREAD` without a probe.

    The id comes from the stored probe of the address. A run stores no probes of recently changed
    files, so their ids come from the table `sources` of the last run.
    """
    decided = decided_sources(store).select(["uri", "version", "source_id"]).to_pylist()
    own_id = {(row["uri"], row["version"]): row["source_id"] for row in decided}
    contents: dict[str, str | None] = {}

    def on_result(probes: pa.Table) -> None:
        for row in probes.to_pylist():
            stored = None if row["error_code"] else row["source_id"]
            contents[row["uri"]] = own_id.get((row["uri"], row["version"])) or stored

    rows = FamilyRows(graph_of(recipe)["scan"], store)
    for source in rows.missing(listed, on_result, ("uri", "version", "source_id", "error_code")):
        row = last.get(source.uri)
        if row is None or row["version"] != source.version or row["error_code"] in RETRIED:
            contents[source.uri] = _UNREAD
        else:
            contents[source.uri] = None if row["error_stage"] == "scan" else row["source_id"]
    return contents
