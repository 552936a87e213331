"""Snapshots of an output root: a commit adds a snapshot, and no run changes an earlier snapshot.

    snapshots/00000007.json                   the summary of a commit, created exclusively
    snapshots/<table>/part-<number>-<hash>    its tables
    snapshots/manifest-<hash>.json            its manifest of the shards
    snapshots/dataset-<hash>.parquet          its table of the samples
    snapshots/removed-<hash>.json             a copy of a record of `curate remove`

A snapshot names all objects that its readers need, with size and SHA-256. Tars have theirs in the
manifest. A snapshot also names the SHA-256 of the snapshot before it, and `summary.json` that of
the newest, so snapshots form a chain. A commit writes the files at fixed paths (`summary.json`, the
folders of the tables, the indexes of the shards, the report) after its snapshot. If a commit breaks
off between the two, the next run writes these files again.

The newest summary lists objects that only earlier snapshots name as `earlier`. So a commit need not
read earlier snapshots to know which objects must stay. The list is computed from snapshots alone,
never from a listing of objects: an object that is out of reach for a while keeps its name. Only
`clean` and `curate remove`, which change what snapshots name, make the list anew.

A listing may be stale, or a folder may not be mounted. So no operation concludes from a listing
that a snapshot does not exist (`existing_numbers`). A commit reads all snapshots before it removes
an object that a snapshot could name (`proved_unnamed`).

Only `curate remove` overwrites snapshots, because removed footage must not stay in old ones.
"""

import logging
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, count, takewhile
from typing import Any

import curator
from curator.errors import CuratorError, DamagedError, UnconditionalStoreError, UsageError
from curator.number_text import amount
from curator.storage import Store
from curator.tables.fenced_store import Digest, FencedStore
from curator.tables.json_objects import find_json, read_json, sealed_json, to_json
from curator.tables.out_layout import (
    DATASET,
    MANIFEST,
    SHARDS,
    SIDES,
    SNAPSHOTS,
    SUMMARY,
    FolderLifetime,
    folders_of,
    has_fixed_path,
    is_own,
    listed_objects,
    remove,
)
from curator.tables.view_store import read_views

logger = logging.getLogger(__name__)

FORMAT = 5
"""Format of an output. Increases when a column or an object changes its name or meaning, or when
readers need a new one. A new score does not change the format: tables without it did not measure
it."""
NUMBER, CREATED_AT, EARLIER = "snapshot", "created_at", "earlier"
"""Fields of a summary: number, time, and objects that only earlier snapshots name."""
INDEXES = "indexes"
"""Field of a summary: names of the snapshot's own `manifest` and `dataset`."""
OBJECTS = "objects"
"""Field of a summary: size and SHA-256 of each object that it names, except those of the shards."""
BEFORE = "previous"
"""Field of a summary: number and SHA-256 of the snapshot before; None for the first."""
HEAD = "head"
"""Field of `summary.json` alone: SHA-256 of its snapshot, number of the first snapshot that
`curate clean` left, and the versions of written objects in the store."""
DECIDED_WITH = "decided_with"
"""Field of a summary: fingerprints that decisions depend on, and carried state of stages."""
CLUSTERS = "clusters"
"""Value that is left of clusters: number, count of clips, words and nearest clips of each."""
CENTROIDS = "centroids"
"""Value that is left in growing outputs: centroids of clusters, float16 in base64."""
CANDIDATES = "candidates"
"""Field of a summary: objects of stored candidates and of their comparisons."""
REMOVALS = "removals"
"""Field of a summary: SHA-256 of each record of `curate remove`, by name, in order."""
_CONTENT = ("recipe", "tables", "fingerprints", CANDIDATES, INDEXES, REMOVALS)
"""A commit adds a snapshot if one of these fields changes; other fields have times and counts."""
_CHAIN = (NUMBER, CREATED_AT, OBJECTS, BEFORE)
_CLEANED = folders_of(FolderLifetime.NAMED, FolderLifetime.KEPT)
_FIXED_INDEXES = {"manifest": MANIFEST, "dataset": DATASET}
_READERS = 8
_NAME = re.compile(rf"{SNAPSHOTS}/(\d{{8}})\.json")


def snapshot_name(number: int) -> str:
    """Returns the object name of a snapshot."""
    return f"{SNAPSHOTS}/{number:08d}.json"


def is_snapshot(name: str) -> bool:
    """Returns whether this is the object name of a snapshot."""
    return _NAME.fullmatch(name) is not None


def snapshot_numbers(store: Store) -> list[int]:
    """Returns the numbers of all snapshots, ascending."""
    matches = (_NAME.fullmatch(info.key) for info in store.list(f"{SNAPSHOTS}/0"))
    return [int(match[1]) for match in matches if match is not None]


def existing_numbers(store: Store, summary: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """Returns the numbers of the snapshots that exist, and of those that are lost, ascending.

    Asks for each snapshot that `summary`, the newest summary, implies and the listing lacks, and
    for the one after the last. A lost snapshot may come back, such as from a disk that is not
    mounted.
    """
    listed = snapshot_numbers(store)
    last = max([summary.get(NUMBER, 0), *listed])
    first = summary.get(HEAD, {}).get("first", min(listed, default=last))
    missing = sorted(set(range(max(first, 1), last + 1)).difference(listed))
    found = [number for number in missing if store.exists(snapshot_name(number))]
    lost = sorted(set(missing).difference(found))
    if last:
        # `clean` may have ended between the record of a later first snapshot and a removal.
        beyond = chain(
            _while_there(store, range(first - 1, 0, -1)), _while_there(store, count(last + 1))
        )
        found += [number for number in beyond if number not in listed]
    return sorted([*listed, *found]), lost


def _while_there(store: Store, numbers: Iterable[int]) -> Iterator[int]:
    return takewhile(lambda number: store.exists(snapshot_name(number)), numbers)


def require_format(store: Store, name: str, value: Mapping[str, Any]) -> None:
    """Raises `UsageError` for a summary, a snapshot or settings of another output format."""
    if (found := value.get("format")) != FORMAT:
        if "fingerprints" not in value:
            raise UsageError(
                f"OUT {store.uri!r} has a {name} that curate did not write: choose another OUT, or "
                "move the file elsewhere"
            )
        version = value.get("curate_version", "of an unknown version")
        words = "and names no output format" if found is None else f"in output format {found}"
        raise UsageError(
            f"{store.uri} was made by curate {version} {words}; expected format {FORMAT}, which "
            f"curate {curator.__version__} reads and writes: use the version that made this "
            "output, or make a new one with `curate run SOURCE... NEW_OUT`"
        )


def find_summary(store: Store) -> dict[str, Any] | None:
    """Reads `summary.json`; None if it is missing. Raises as `require_format`, and if damaged."""
    summary = find_json(store, SUMMARY)
    if summary is not None:
        require_format(store, SUMMARY, summary)
    return summary


def summary_or_none(store: Store) -> dict[str, Any] | None:
    """Reads `summary.json`; None if it is missing or damaged. Raises as `require_format`."""
    try:
        return find_summary(store)
    except DamagedError:
        return None


def require_snapshots(store: Store) -> list[int]:
    """Returns the numbers of all snapshots, ascending; raises `UsageError` without any."""
    numbers = snapshot_numbers(store)
    if not numbers:
        raise UsageError(f"{store.uri} has no snapshots; `curate run SOURCE... OUT` makes one")
    return numbers


def read_snapshot(store: Store, number: int) -> dict[str, Any]:
    """Reads a snapshot.

    Raises `UsageError` if it does not exist, and else as `require_format` and `read_json`.
    """
    name, numbers = snapshot_name(number), snapshot_numbers(store)
    if number not in numbers and not store.exists(name):
        there = ", ".join(map(str, numbers[-8:])) or "none"
        raise UsageError(
            f"{store.uri} has no snapshot {number}; there are {there}: `curate snapshots` lists "
            "all snapshots"
        )
    return _opened(store, name)


def _opened(store: Store, name: str) -> dict[str, Any]:
    snapshot = read_json(store, name)
    require_format(store, name, snapshot)
    return snapshot


def archived(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a summary in the form of a snapshot, which names its own parts of tables."""
    return {name: value for name, value in _renamed(summary, own_part).items() if name != HEAD}


def with_fixed_paths(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a summary that names the parts of tables in the folders of the tables."""
    return _renamed(summary, _fixed_part)


def _renamed(summary: Mapping[str, Any], name: Callable[[str], str]) -> dict[str, Any]:
    tables = {t: [name(part) for part in parts] for t, parts in summary.get("tables", {}).items()}
    return {**summary, "tables": tables}


def _parts(summary: Mapping[str, Any]) -> list[str]:
    return [part for parts in summary.get("tables", {}).values() for part in parts]


def put_in_place(store: Store, summary: Mapping[str, Any]) -> None:
    """Copies the snapshot's own parts of tables into the folders of tables that lack them."""
    there = {i.key for t in summary["tables"] for i in store.list(f"{t}/")}
    for part in _parts(summary):
        if _fixed_part(part) not in there:
            store.copy(own_part(part), _fixed_part(part))


def _fixed_part(part: str) -> str:
    """Returns the name of a part of a table in the folder of the table."""
    return part.removeprefix(f"{SNAPSHOTS}/")


def own_part(part: str) -> str:
    """Returns the name of a part of a table among the snapshots."""
    return f"{SNAPSHOTS}/{_fixed_part(part)}"


def named_objects(summary: Mapping[str, Any]) -> set[str]:
    """Returns the objects that readers of a snapshot need besides the snapshot itself."""
    names = {*_parts(summary), *summary.get(CANDIDATES, ()), *summary.get(INDEXES, {}).values()}
    return names.union(_of_shards(summary), map(record_copy, summary.get(REMOVALS, {}).values()))


def record_copy(sha256: str) -> str:
    """Returns the name of the copy of a removal record, by the hash of its bytes."""
    return f"{SNAPSHOTS}/removed-{sha256[:16]}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A summary with the number of its snapshot."""

    summary: dict[str, Any]
    """Has `snapshot`, `created_at` and `earlier`, and the fixed paths of the tables."""
    is_new: bool
    """Whether the commit adds a snapshot, because it changes results for readers."""
    named: frozenset[str]
    """Objects that this or an earlier snapshot names, and objects with fixed paths."""


def number_commit(
    store: FencedStore,
    summary: Mapping[str, Any],
    previous: Mapping[str, Any],
    *,
    manifest: bytes,
    dataset: bytes,
) -> Committed:
    """Writes a snapshot's own indexes and parts of tables, and gives the snapshot its number.

    `previous` is the newest summary; empty for none.
    """
    numbers, lost = existing_numbers(store, previous)
    if numbers and NUMBER in previous and previous[NUMBER] < numbers[-1]:
        raise _other_commit(store, numbers[-1])
    summary = {**summary, INDEXES: index_names(manifest, dataset)}
    archive = archived(summary)
    named = named_objects(archive)
    listed = {info.key: info.bytes for info in store.list(f"{SNAPSHOTS}/")}
    for name, data in zip(summary[INDEXES].values(), (manifest, dataset), strict=True):
        if listed.get(name) != len(data):
            store.write(name, data)
    is_new = not (numbers and previous.get(NUMBER) in numbers and _is_same(summary, previous))
    facts: dict[str, Any]
    if is_new:
        facts = {
            NUMBER: max([*numbers, *lost], default=0) + 1,
            CREATED_AT: datetime.now(UTC).isoformat(timespec="seconds"),
            OBJECTS: digests(store, named - _of_shards(archive), previous),
            BEFORE: _link(store, numbers[-1]) if numbers else None,
        }
    else:
        facts = {name: previous[name] for name in _CHAIN if name in previous}
    earlier = set(previous.get(EARLIER, ()))
    if NUMBER in previous:
        earlier |= named_objects(archived(previous))
    earlier -= named
    # The summary may have values of the snapshot before, which `facts` replaces.
    first = {name: facts[name] for name in (NUMBER, CREATED_AT)}
    numbered = first | with_fixed_paths(summary) | {EARLIER: sorted(earlier)} | facts
    objects = named | earlier | named_objects(numbered)
    return Committed(summary=numbered, is_new=is_new, named=frozenset(objects))


def digests(
    store: FencedStore, names: Collection[str], previous: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Returns size and SHA-256 of objects.

    The function reads only objects that this process did not write and `previous` does not name,
    such as objects of an interrupted run.
    """
    by_name = dict(previous.get(OBJECTS, {}))
    by_name |= {name: digest.as_dict() for name, digest in store.written.items()}
    unknown = sorted(set(names).difference(by_name))
    with ThreadPoolExecutor(_READERS) as pool:
        read = pool.map(lambda name: Digest.of_object(store, name).as_dict(), unknown)
        by_name |= dict(zip(unknown, read, strict=True))
    return {name: by_name[name] for name in sorted(names)}


def renew_links(store: FencedStore, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Writes a snapshot again with new hashes of its objects and of the snapshot before.

    `curate remove` calls it for all snapshots, the oldest first. `curate remove` rewrites
    candidates under their names, so it reads candidates that this process did not write. Returns
    the summary.
    """
    kept = {n: facts for n, facts in summary[OBJECTS].items() if n not in summary[CANDIDATES]}
    there = listed_objects(store, {name.split("/")[0] for name in summary[CANDIDATES]})
    # Damaged candidates were removed, and later runs make them again.
    summary = {**summary, CANDIDATES: [name for name in summary[CANDIDATES] if name in there]}
    names = named_objects(summary) - _of_shards(summary)
    before = summary[BEFORE]
    if before is not None and store.exists(snapshot_name(before[NUMBER])):
        before = _link(store, before[NUMBER])
    facts = {OBJECTS: digests(store, names, {OBJECTS: kept}), BEFORE: before}
    renewed = {**summary, **facts}
    name = snapshot_name(summary[NUMBER])
    store.write(name, sealed_json(renewed, to_json, name))
    return renewed


def head_of(
    store: Store, summary: Mapping[str, Any], previous: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the field `head` of `summary.json`; the snapshot must be stored already."""
    names = sorted(objects_of(summary))
    objects = listed_objects(store, {name.split("/")[0] for name in names})
    first = previous[HEAD]["first"] if HEAD in previous else None
    return {
        "sha256": _link(store, summary[NUMBER])["sha256"],
        "first": min(existing_numbers(store, summary)[0]) if first is None else first,
        "versions": {name: objects[name].version for name in names if name in objects},
    }


def own_objects(summary: Mapping[str, Any]) -> dict[str, Digest]:
    """Returns the objects of a snapshot with a recorded size and SHA-256."""
    return {
        name: Digest(n_bytes=facts["bytes"], sha256=facts["sha256"])
        for name, facts in summary.get(OBJECTS, {}).items()
    }


def objects_of(summary: Mapping[str, Any]) -> dict[str, Digest]:
    """Returns the objects that a summary of the newest snapshot names, also at fixed paths.

    Objects of the shards are not among them: the manifest names them.
    """
    objects, parts = own_objects(summary), _parts(summary)
    return objects | {_fixed_part(p): objects[own_part(p)] for p in parts if own_part(p) in objects}


def copies_of(summary: Mapping[str, Any]) -> dict[str, str]:
    """Returns for each own object of a snapshot the object at a fixed path with the same bytes."""
    copies = {own_part(part): _fixed_part(part) for part in _parts(summary)}
    return copies | {name: _FIXED_INDEXES[n] for n, name in summary.get(INDEXES, {}).items()}


def _of_shards(summary: Mapping[str, Any]) -> set[str]:
    return set().union(*(shard.get("versions", ()) for shard in summary.get("shards", ())))


def _link(store: Store, number: int) -> dict[str, Any]:
    return {NUMBER: number, "sha256": Digest.of(store.read(snapshot_name(number))).sha256}


def index_names(manifest: bytes, dataset: bytes) -> dict[str, str]:
    """Returns the names of a snapshot's own `manifest` and `dataset`, in this order."""
    return {
        "manifest": f"{SNAPSHOTS}/manifest-{Digest.of(manifest).sha256[:16]}.json",
        "dataset": f"{SNAPSHOTS}/dataset-{Digest.of(dataset).sha256[:16]}.parquet",
    }


def add_snapshot(store: Store, number: int, data: bytes) -> None:
    """Commits a snapshot; raises `CuratorError` if another run has added one with this number."""
    if not created(store, snapshot_name(number), data):
        raise _other_commit(store, number)


def _other_commit(store: Store, number: int) -> CuratorError:
    return CuratorError(
        f"{store.uri}/{snapshot_name(number)} exists already: another run committed to this OUT "
        "meanwhile; this run changed nothing of that commit"
    )


def created(store: Store, name: str, data: bytes) -> bool:
    """Creates an object; returns False if the object exists already.

    A store without conditional writes needs a separate check, so two processes may both succeed.
    The process that took the lease has logged a warning.
    """
    try:
        return store.write_new(name, data) is not None
    except UnconditionalStoreError:
        if store.exists(name):
            return False
        store.write(name, data)
        return True


def older_tars_line(store: Store, summary: Mapping[str, Any]) -> str:
    """Counts tars that the newest snapshot does not name, in words; empty if there are none.

    One listing. The index of a tar has 8 bytes per sample and for the end.
    """
    named = {shard["name"] for shard in summary["shards"]}
    sizes = {info.key: info.bytes for info in store.list(f"{SHARDS}/")}
    tars = (key for key in sizes if key.endswith(".tar"))
    older = [k for k in tars if k not in named and not k.startswith(f"{SHARDS}/{SIDES}/")]
    if not older:
        return ""
    n_samples = sum(max(0, sizes.get(f"{key}.idx", 0) // 8 - 1) for key in older)
    return (
        f"{store.uri}/{SHARDS} also has {amount(len(older), 'tar')} with "
        f"{amount(n_samples, 'sample')} of older snapshots, which a glob over shards reads too: "
        f"`curate snapshots {shlex.quote(store.uri)} --tars` lists the newest snapshot's, and "
        f"`curate clean {shlex.quote(store.uri)}` removes the others"
    )


def listed_snapshots(store: Store) -> Iterator[tuple[int, dict[str, Any] | DamagedError]]:
    """Yields number and summary of each snapshot, newest first; for a damaged one, the error.

    A lost snapshot is a damaged one. Raises as `require_format`.
    """
    summary = summary_or_none(store) or {}
    for number in sorted(chain(*existing_numbers(store, summary)), reverse=True):
        try:
            yield number, _opened(store, snapshot_name(number))
        except DamagedError as error:
            yield number, error


def proved_unnamed(store: Store, names: Collection[str]) -> list[str]:
    """Returns the objects that no snapshot names, as a proof before their removal.

    Reads all snapshots if a snapshot could name any of the objects. If a snapshot is lost or
    damaged, nothing is proved, and such objects stay.
    """
    doubtful = set(filter(_may_be_named, names))
    for _, summary in listed_snapshots(store) if doubtful else ():
        if isinstance(summary, DamagedError):
            logger.warning(
                "objects that this run does not need stay, because %s may name them: %d, such as "
                "%s; restore it from a copy, or run `curate clean %s`, which removes older "
                "snapshots and what only they name",
                summary.name, len(doubtful), min(doubtful), store.uri,
            )  # fmt: skip
            return [name for name in names if not _may_be_named(name)]
        doubtful -= named_objects(summary)
    return [name for name in names if name in doubtful or not _may_be_named(name)]


def _may_be_named(name: str) -> bool:
    """Returns whether snapshots name objects of this kind, which no run overwrites."""
    return name.split("/")[0] in _CLEANED and not has_fixed_path(name)


def follows(summary: Mapping[str, Any], snapshot: Mapping[str, Any]) -> bool:
    """Returns whether `summary.json` comes from a snapshot, or a later run without changes."""
    is_linked = all(summary.get(name) == snapshot.get(name) for name in _CHAIN)
    return is_linked and _is_same(summary, snapshot)


def _is_same(summary: Mapping[str, Any], previous: Mapping[str, Any]) -> bool:
    return _content(summary) == _content(previous)


def _content(summary: Mapping[str, Any]) -> list[Any]:
    snapshot = archived(summary)
    shards = [shard["name"] for shard in snapshot.get("shards", ())]
    return [shards, *(snapshot.get(field) for field in _CONTENT)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What `clean` removes: snapshots, newest first, and the objects that only they name.

    `for_views` has the views for which snapshots stay that would go else.
    """

    kept: list[int]
    removed: list[int]
    n_objects: int
    n_bytes: int
    for_views: list[str]


def clean(
    store: Store,
    *,
    keep: int = 1,
    older_than: timedelta | None = None,
    dry_run: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Cleaned:
    """Removes snapshots, and objects that only they name; with `dry_run`, only counts them.

    The newest `keep` snapshots stay, at least one, and so do snapshots younger than `older_than`,
    and all from the oldest on that a view names. `check` is called before the first removal, and
    raises if this process may not remove objects. Raises `UsageError` if a snapshot that stays or
    the facts of a view cannot be read, because their objects are unknown, and as
    `require_snapshots`.
    """
    require_snapshots(store)
    newest = None if older_than is None else datetime.now(UTC) - older_than
    views = {view.name: view.snapshot for view in read_views(store)}
    oldest = min(views.values(), default=None)
    kept: dict[int, set[str]] = {}
    removed: list[int] = []
    for_views: set[str] = set()
    for number, summary in listed_snapshots(store):
        stays, is_viewed = len(kept) < keep, oldest is not None and number >= oldest
        if isinstance(summary, DamagedError):
            if stays or is_viewed or newest is not None:
                raise UsageError(
                    f"{store.uri}/{summary.name} is lost ({summary.why}), so what it names is "
                    "unknown: restore it from a copy of OUT; or keep fewer snapshots (--keep N, "
                    "without --older-than); `curate run` writes the newest one again"
                )
            removed.append(number)
        elif stays or (
            newest is not None and datetime.fromisoformat(summary[CREATED_AT]) >= newest
        ):
            kept[number] = named_objects(summary)
        elif is_viewed:
            kept[number] = named_objects(summary)
            for_views.update(name for name, own in views.items() if own <= number)
        else:
            removed.append(number)
    named = set().union(map(snapshot_name, kept), *kept.values())
    old = {
        info.key: info.bytes
        for folder in _CLEANED
        for info in store.list(f"{folder}/")
        if info.key not in named and is_own(info.key) and _may_be_named(info.key)
    }
    if not dry_run and (old or removed):
        check()
        fenced = FencedStore(store, check)
        head = find_summary(store) or {}
        if HEAD in head:
            # A missing snapshot after the first is lost, so the record comes before removals.
            head[HEAD]["first"] = min(kept)
            fenced.write(SUMMARY, sealed_json(head, to_json, SUMMARY))
        # Snapshots are removed first, so that no snapshot names an object that is gone.
        store.delete(map(snapshot_name, sorted(removed)))
        if HEAD in head:
            head[EARLIER] = sorted(set().union(*kept.values()) - kept[max(kept)])
            fenced.write(SUMMARY, sealed_json(head, to_json, SUMMARY))
        remove(store, old.keys() - set(map(snapshot_name, removed)))
    return Cleaned(
        kept=[*kept],
        removed=removed,
        n_objects=len(old),
        n_bytes=sum(old.values()),
        for_views=sorted(for_views),
    )
