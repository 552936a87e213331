"""What a run would do and remove, from the listing and from what is stored; writes nothing."""

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from curator.number_text import amount, plain
from curator.recipe import Recipe, semantics_of
from curator.runs.earlier_sources import earlier_sources
from curator.runs.losses import Losses, by_source
from curator.stages.analyze.families import families_of
from curator.stages.analyze.identity_driver import decided_sources
from curator.stages.scan.config import ScanConfig
from curator.stages.scan.probe_parts import scan_key
from curator.stages.scan.source_listing import ListedSource, SkippedName, list_sources
from curator.stages.scan.stage import ScanStage
from curator.storage import Store
from curator.tables.key_index import KnownKeys, part_versions
from curator.tables.output_format import read_summary
from curator.tables.parts import Parts
from curator.tables.track_parts import TrackParts

MAX_NAMED = 5
"""Most sources that a dry run names as not readable."""


def dry_run(
    sources: Sequence[str], store: Store, recipe: Recipe, *, limit: int | None, replace: bool
) -> tuple[str, str | None]:
    """Says what a run would do.

    Which clips the recipe would reject shows when they are judged; what a source holds that no run
    has read yet, when it is read.

    Returns:
        The text, and why the run would be refused; None where it would not, or may not.
    """
    scanned = Parts(store, "scan", ScanStage(ScanConfig()).fingerprint({}))
    parts = part_versions(store, scanned.stage)
    probes = KnownKeys.of(store, scanned.stage, parts, scanned.of(parts))
    decided = decided_sources(store).select(["uri", "version", "source_id"]).to_pylist()
    own_id = {scan_key(row["uri"], row["version"]): row["source_id"] for row in decided}
    families = families_of(recipe.analyze, semantics_of(recipe).stamp)
    counts: Counter[str] = Counter()
    known: dict[str, dict[str, str | None]] = {}
    contents: dict[str, str | None] = {}
    unread: list[str] = []
    unlisted: list[str] = []
    unreadable: list[str] = []
    for item in list_sources(sources, limit=limit):
        if isinstance(item, SkippedName):
            counts["skipped"] += 1
        elif not isinstance(item, ListedSource):
            unreadable.append(plain(item.message))
            contents[item.uri] = None
            unlisted.append(item.uri)
        else:
            counts["sources"] += 1
            counts["bytes"] += item.bytes
            key = scan_key(item.uri, item.version)
            (part,) = probes.find([key])
            if part is None:
                unread.append(item.uri)
                continue
            if part not in known:
                table = scanned.read(part, ["uri", "source_id", "error_code"])
                columns = (table[name].to_pylist() for name in ("uri", "source_id", "error_code"))
                known[part] = {
                    uri: None if code else source_id
                    for uri, source_id, code in zip(*columns, strict=True)
                }
            contents[item.uri] = own_id.get(key) or known[part].get(item.uri)
    ids = Counter(source_id for source_id in contents.values() if source_id is not None)
    tracks, failed = TrackParts(store, families).stored(ids)
    whole = {source_id for source_id, names in tracks.items() if len(names) == len(families)}
    n_analyzed = sum(ids[source_id] for source_id in whole | failed)
    text = (
        f"{counts['sources']} sources, {counts['bytes'] / 1e9:.3f} GB; "
        f"{n_analyzed} are analyzed already; "
        f"{len(unreadable)} cannot be read; "
        f"{counts['skipped']} skipped by name; nothing was written to {store.uri}"
        + "".join(f"\n  {message}" for message in unreadable[:MAX_NAMED])
        + (f"\n  and {len(unreadable) - MAX_NAMED} more" * (len(unreadable) > MAX_NAMED))
    )
    previous = read_summary(store)
    losses = Losses(store, previous, replace=replace, unlisted=unlisted)
    usable = {name for name in contents.values() if name is not None and name not in failed}
    if not replace:
        earlier = earlier_sources(store, previous).select(["uri", "source_id"]).to_pylist()
        listed = {*contents, *unread}
        stays = [row["source_id"] for row in earlier if row["uri"] not in listed]
        n_new = len(set(stays) - usable)
        usable.update(stays)
        if n_new:
            text += (
                f"\n  {amount(n_new, 'source')} of earlier runs would stay; --replace leaves them "
                "out"
            )
    there = pa.chunked_array([sorted(usable)], pa.string())
    lost = by_source(
        losses.missing(there, unread),
        lambda uris: {uri: contents[uri] for uri in uris if uri in contents},
    )
    text += "".join(f"\n  clips would leave the shards: {one}" for one in lost)
    problem = losses.problem(lost)
    if problem is not None and unread:
        text += f"\n  {problem}; unless sources that no run has read hold them: {len(unread)}"
        problem = None
    return text, problem
