"""What a run would do and remove, from the listing and from what is stored; writes nothing."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from curator.errors import RETRIED
from curator.number_text import amount, plain, size
from curator.pipeline import graph_of
from curator.recipe import Recipe, measures_of, semantics_of
from curator.records.sources import SourceRef
from curator.runs.dropped_clips import DropCheck, by_source
from curator.runs.generations import last_sources
from curator.stages.analyze.families import families_of
from curator.stages.analyze.identity_driver import decided_sources
from curator.stages.scan.source_listing import SkippedName, UnlistedSource, list_sources
from curator.storage import Store
from curator.tables.family_store import FamilyRows
from curator.tables.output_format import read_summary
from curator.tables.track_parts import TrackParts

MAX_NAMED = 5
"""Most sources that a dry run names as not readable."""
_LAST = ("uri", "version", "source_id", "error_stage", "error_code")
_Rows = Mapping[str, Mapping[str, Any]]
"""Rows of `sources` of the last run, by address."""


def dry_run(
    sources: Sequence[str], store: Store, recipe: Recipe, *, limit: int | None, replace: bool
) -> tuple[str, str | None]:
    """Says what a run would do, as far as clips are not judged and sources not read for it.

    Returns the text, and why the run would be refused; None where it would not, or may not.
    """
    previous = read_summary(store)
    last = {row["uri"]: row for row in last_sources(store, previous).select(_LAST).to_pylist()}
    named = _Named()
    named.find(named.listed(sources, limit), store, recipe, last)
    families = families_of(
        recipe.analyze, semantics_of(recipe).weights_fingerprint, measures_of(recipe).users
    )
    ids = {source_id for source_id in named.contents.values() if source_id is not None}
    tracks, failed = TrackParts(store, families).stored(ids)
    counts: Counter[str] = Counter()
    for uri, source_id in (*named.contents.items(), *((uri, "") for uri in named.unread)):
        if source_id in failed:
            counts["failed"] += 1
        elif source_id and len(tracks.get(source_id, ())) == len(families):
            counts["analyzed"] += 1
        elif uri in last and last[uri]["error_code"] in RETRIED:
            counts["again"] += 1
        else:
            counts["failed" if source_id is None else "new"] += 1
    messages = named.unlisted.values()
    lines = [
        f"{amount(counts.total(), 'source')}, {size(named.n_bytes)}: {counts['analyzed']} analyzed "
        f"already, {counts['new']} to analyze, {counts['again']} failed before and tried again, "
        f"{counts['failed']} failed before and not tried again; {len(messages)} not readable; "
        f"{named.n_skipped} skipped by name; nothing was written to {store.uri}",
        *list(messages)[:MAX_NAMED],
        *([f"and {len(messages) - MAX_NAMED} more"] if len(messages) > MAX_NAMED else ()),
    ]
    named.contents.update(dict.fromkeys(named.unlisted))
    drop_check = DropCheck(store, previous, replace=replace, unlisted=list(named.unlisted))
    usable = {name for name in named.contents.values() if name is not None and name not in failed}
    if not replace:
        addresses = {*named.contents, *named.unread}
        stays = {
            row["source_id"]
            for uri, row in last.items()
            if row["error_code"] is None and uri not in addresses
        }
        if n_new := len(stays - usable):
            stay = f"{amount(n_new, 'source')} of earlier runs would stay"
            lines.append(f"{stay}; --replace leaves them out")
        usable |= stays
    there = pa.chunked_array([sorted(usable)], pa.string())
    dropped = by_source(
        drop_check.missing(there, named.unread),
        lambda uris: {uri: named.contents[uri] for uri in uris if uri in named.contents},
    )
    lines += [f"clips would leave the shards: {change}" for change in dropped]
    problem = drop_check.problem(dropped)
    if problem is not None and named.unread:
        unread = f"unless sources that no run has read hold them: {len(named.unread)}"
        lines.append(f"{problem}; {unread}")
        problem = None
    return "\n  ".join(lines), problem


@dataclass(slots=True)
class _Named:
    """The sources that the user named.

    Attributes:
        contents: Content id of each address whose content is known; None where a probe failed.
        unread: Addresses whose content no run knows.
        unlisted: Why an address cannot be listed or read.
    """

    contents: dict[str, str | None] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    unlisted: dict[str, str] = field(default_factory=dict)
    n_bytes: int = 0
    n_skipped: int = 0

    def listed(self, sources: Sequence[str], limit: int | None) -> Iterator[SourceRef]:
        """Lists sources."""
        for item in list_sources(sources, limit=limit):
            if isinstance(item, SkippedName):
                self.n_skipped += 1
            elif isinstance(item, UnlistedSource):
                self.unlisted[item.uri] = plain(item.message)
            else:
                self.n_bytes += item.bytes
                yield SourceRef(uri=item.uri, n_bytes=item.bytes, version=item.version)

    def find(self, listed: Iterator[SourceRef], store: Store, recipe: Recipe, last: _Rows) -> None:
        """Finds the contents in stored probes, and in the rows of the last run."""
        decided = decided_sources(store).select(["uri", "version", "source_id"]).to_pylist()
        own_id = {(row["uri"], row["version"]): row["source_id"] for row in decided}

        def take(probes: pa.Table) -> None:
            for row in probes.to_pylist():
                stored = None if row["error_code"] else row["source_id"]
                self.contents[row["uri"]] = own_id.get((row["uri"], row["version"])) or stored

        rows = FamilyRows(graph_of(recipe)["scan"], store)
        for source in rows.missing(listed, take, ("uri", "version", "source_id", "error_code")):
            # Probes of files that were young in the last run are not stored.
            row = last.get(source.uri)
            if row is None or row["version"] != source.version or row["error_code"] in RETRIED:
                self.unread.append(source.uri)
            else:
                failed = row["error_stage"] == "scan"
                self.contents[source.uri] = None if failed else row["source_id"]
