"""Repairs damaged objects from equal copies, and removes others for the run to make them again.

Each index and each part of a table exists twice: under the newest snapshot, and at a fixed path.
Each is the copy of the other. The summary records sizes and versions of objects at the time of the
commit, so the check reads only objects with another size or version.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

from curator.errors import DamagedError, StorageError
from curator.runs.commit_run import no_lease_check
from curator.storage import Store
from curator.tables.checksums import filter_in_threads, is_damaged
from curator.tables.fenced_store import Digest, FencedStore
from curator.tables.json_objects import TRIES, sealed_json, to_json
from curator.tables.out_layout import (
    CONFIG,
    OWN_FOLDERS,
    SHARDS,
    SUMMARY,
    FolderLifetime,
    folders_of,
    is_own,
    listed_objects,
)
from curator.tables.output_format import read_summary, refuse_lost_commit
from curator.tables.snapshot_store import (
    EARLIER,
    HEAD,
    NUMBER,
    archived,
    copies_of,
    existing_numbers,
    is_snapshot,
    objects_of,
    snapshot_name,
    snapshot_numbers,
    summary_or_none,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FOR_GOOD = folders_of(FolderLifetime.RECORD)
ALL = OWN_FOLDERS - {SHARDS, "report", *_FOR_GOOD} | {SUMMARY, CONFIG}
"""Folders and objects that `curate run` makes again."""
CACHES = frozenset({*folders_of(FolderLifetime.CACHE), "frames"} - {"tracks"})
"""Folders that `curate recaption` makes again. It does not read sources."""
_ROUNDS = 2 * len(ALL)
"""Maximum number of repairs in one command; a store with more damage cannot be trusted."""


def with_repair(
    store: Store,
    work: Callable[[], T],
    kinds: frozenset[str],
    *,
    check: Callable[[], None] = no_lease_check,
) -> T:
    """Does some work; after damage, removes the damaged objects and starts the work again.

    Args:
        store: Output root.
        work: The work, which resumes from stored state.
        kinds: Folders and objects that the work makes again: `ALL` or `CACHES`.
        check: Raises if this run may not remove objects any more.

    Raises:
        DamagedError: An object of another kind is damaged, or a needed object is missing.
    """
    for _ in range(_ROUNDS):
        try:
            return work()
        except DamagedError as error:
            check()
            if not _remove(store, error, kinds, check):
                raise
    return work()


def _remove(
    store: Store, error: DamagedError, kinds: frozenset[str], check: Callable[[], None]
) -> bool:
    """Removes all damaged objects of the kind that an error names; returns whether there are any.

    If the newest snapshot has an equal copy of an object, it restores the object instead. Snapshots
    and objects of earlier snapshots stay, because no run makes them again.
    """
    if error.name.split("/")[0] not in kinds:
        return False
    folder = error.name.rpartition("/")[0]
    # An object at the root is its own kind.
    prefix = f"{folder}/" if folder else error.name
    earlier = set(_newest(store).get(EARLIER, ()))
    names = [
        info.key
        for info in store.list(prefix)
        if is_own(info.key) and info.key not in earlier and not is_snapshot(info.key)
    ]
    damaged = filter_in_threads(partial(is_damaged, store), names)
    if not damaged:
        return False
    logger.warning(
        "damaged objects in %s/%s: %d of %d, such as %s (%s); this command removes these objects, "
        "and makes again what it needs of them",
        store.uri, folder or error.name, len(damaged), len(names),
        error.name if error.name in damaged else damaged[0], error.why,
    )  # fmt: skip
    whole = restored(FencedStore(store, check), damaged)
    store.delete([name for name in damaged if name not in whole])
    return True


def repair_objects(
    store: Store, *, check: Callable[[], None] = no_lease_check, makes_again: bool = True
) -> None:
    """Restores damaged objects of the newest snapshot from equal copies, and removes the others.

    `makes_again` says that a run with the sources follows; else the function removes nothing.
    `check` raises if this run may not write any more. Raises as `refuse_lost_commit`.
    """
    refuse_lost_commit(store)
    fenced = FencedStore(store, check)
    numbers = snapshot_numbers(store)
    summary = summary_or_none(store) or {}
    head = summary.get(HEAD)
    if head is not None and summary[NUMBER] >= max(numbers, default=0):
        _repair_snapshot(fenced, summary)
    summary = _newest(store)
    folders = {name.split("/")[0] for name in objects_of(summary)}
    there = listed_objects(store, folders) if folders else {}
    versions = head["versions"] if head is not None else {}
    suspects = {
        name: digest
        for name, digest in objects_of(summary).items()
        if (info := there.get(name)) is None
        or (info.bytes, info.version) != (digest.n_bytes, versions.get(name))
    }
    damaged = filter_in_threads(lambda name: not _has(store, name, suspects[name]), suspects)
    lost = sorted(set(damaged) - restored(fenced, damaged))
    if lost and makes_again:
        fenced.delete(lost)
        logger.warning(
            "lost objects of snapshot %d in %s: %d, such as %s, without a valid copy; the run "
            "makes these objects again if their sources exist",
            summary[NUMBER], store.uri, len(lost), lost[0],
        )  # fmt: skip


def restored(store: FencedStore, names: Collection[str]) -> frozenset[str]:
    """Restores damaged objects of the newest snapshot from equal copies; returns their names."""
    summary = _newest(store)
    objects, whole = objects_of(summary), set()
    for own, fixed in copies_of(summary).items():
        for name, copy in ((own, fixed), (fixed, own)):
            if name not in names or name not in objects:
                continue
            if copy not in names and _has(store, copy, objects[name]):
                store.copy(copy, name)
                whole.add(name)
    if whole:
        logger.warning(
            "damaged objects in %s: %d, such as %s; this command restores them from equal copies",
            store.uri, len(whole), min(whole),
        )  # fmt: skip
    return frozenset(whole)


def _repair_snapshot(store: FencedStore, summary: Mapping[str, Any]) -> None:
    """Restores the newest snapshot from `summary.json`, and warns of lost earlier snapshots."""
    number, head = summary[NUMBER], summary[HEAD]
    name, sha256 = snapshot_name(number), head["sha256"]
    if gone := [lost for lost in existing_numbers(store, summary)[1] if lost != number]:
        logger.warning(
            "lost snapshots of %s: %s; only `curate clean` removes their tars and tables",
            store.uri, ", ".join(map(str, gone)),
        )  # fmt: skip
    if store.exists(name) and Digest.of_object(store, name).sha256 == sha256:
        return
    logger.warning(
        "%s/%s is damaged or gone; this command restores it from %s", store.uri, name, SUMMARY
    )
    data = sealed_json(archived(summary), to_json, name)
    store.write(name, data)
    # The hash may differ: a later run without changes may have written other times.
    renewed = {**summary, HEAD: {**head, "sha256": Digest.of(data).sha256}}
    store.write(SUMMARY, sealed_json(renewed, to_json, SUMMARY))


def _newest(store: Store) -> dict[str, Any]:
    """Returns the newest summary; empty if there is no readable summary."""
    try:
        return read_summary(store)
    except DamagedError:
        # The run meets the same error, and reports it.
        return {}


def _has(store: Store, name: str, digest: Digest) -> bool:
    """Returns whether an object exists with these bytes; reads it again before it says no."""
    try:
        return any(Digest.of_object(store, name) == digest for _ in range(TRIES))
    except StorageError:
        if store.exists(name):
            raise
        return False
