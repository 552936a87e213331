"""What a run would do and remove, from the listing and from what is stored; writes nothing."""

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa

from curator.number_text import amount, plain
from curator.pipeline import graph_of
from curator.recipe import Recipe, measures_of, semantics_of
from curator.records.sources import SourceRef
from curator.runs.dropped_clips import DropCheck, by_source
from curator.runs.generations import earlier_sources
from curator.stages.analyze.families import families_of
from curator.stages.analyze.identity_driver import decided_sources
from curator.stages.scan.source_listing import SkippedName, UnlistedSource, list_sources
from curator.storage import Store
from curator.tables.family_store import FamilyRows
from curator.tables.output_format import read_summary
from curator.tables.track_parts import TrackParts

MAX_NAMED = 5
"""Most sources that a dry run names as not readable."""


def dry_run(
    sources: Sequence[str], store: Store, recipe: Recipe, *, limit: int | None, replace: bool
) -> tuple[str, str | None]:
    """Says what a run would do, as far as clips are not judged and sources not read for it.

    Returns the text, and why the run would be refused; None where it would not, or may not.
    """
    decided = decided_sources(store).select(["uri", "version", "source_id"]).to_pylist()
    own_id = {(row["uri"], row["version"]): row["source_id"] for row in decided}
    families = families_of(
        recipe.analyze, semantics_of(recipe).weights_fingerprint, measures_of(recipe).users
    )
    counts: Counter[str] = Counter()
    contents: dict[str, str | None] = {}
    unlisted: list[str] = []
    unreadable: list[str] = []

    def listed() -> Iterator[SourceRef]:
        for item in list_sources(sources, limit=limit):
            if isinstance(item, SkippedName):
                counts["skipped"] += 1
            elif isinstance(item, UnlistedSource):
                unreadable.append(plain(item.message))
                contents[item.uri] = None
                unlisted.append(item.uri)
            else:
                counts["sources"] += 1
                counts["bytes"] += item.bytes
                yield SourceRef(uri=item.uri, n_bytes=item.bytes, version=item.version)

    def take(probes: pa.Table) -> None:
        for row in probes.to_pylist():
            stored = None if row["error_code"] else row["source_id"]
            contents[row["uri"]] = own_id.get((row["uri"], row["version"])) or stored

    rows = FamilyRows(graph_of(recipe)["scan"], store)
    columns = ("uri", "version", "source_id", "error_code")
    unread = [source.uri for source in rows.missing(listed(), take, columns)]
    ids = Counter(source_id for source_id in contents.values() if source_id is not None)
    tracks, failed = TrackParts(store, families).stored(ids)
    whole = {source_id for source_id, names in tracks.items() if len(names) == len(families)}
    n_analyzed = sum(ids[source_id] for source_id in whole | failed)
    text = (
        f"{counts['sources']} sources, {counts['bytes'] / 1e9:.3f} GB; {n_analyzed} are analyzed "
        f"already; {len(unreadable)} cannot be read; "
        f"{counts['skipped']} skipped by name; nothing was written to {store.uri}"
        + "".join(f"\n  {message}" for message in unreadable[:MAX_NAMED])
        + (f"\n  and {len(unreadable) - MAX_NAMED} more" * (len(unreadable) > MAX_NAMED))
    )
    previous = read_summary(store)
    drop_check = DropCheck(store, previous, replace=replace, unlisted=unlisted)
    usable = {name for name in contents.values() if name is not None and name not in failed}
    if not replace:
        earlier = earlier_sources(store, previous).select(["uri", "source_id"]).to_pylist()
        named = {*contents, *unread}
        stays = [row["source_id"] for row in earlier if row["uri"] not in named]
        n_new = len(set(stays) - usable)
        usable.update(stays)
        if n_new:
            stay = f"{amount(n_new, 'source')} of earlier runs would stay"
            text += f"\n  {stay}; --replace leaves them out"
    there = pa.chunked_array([sorted(usable)], pa.string())
    dropped = by_source(
        drop_check.missing(there, unread),
        lambda uris: {uri: contents[uri] for uri in uris if uri in contents},
    )
    text += "".join(f"\n  clips would leave the shards: {change}" for change in dropped)
    problem = drop_check.problem(dropped)
    if problem is not None and unread:
        text += f"\n  {problem}; unless sources that no run has read hold them: {len(unread)}"
        problem = None
    return text, problem
