"""Repairs damaged objects from equal copies, and removes others, so that a run makes them again.

A snapshot has its own parts of tables and its own indexes, and the same bytes are at fixed paths:
each is the copy of the other. What was changed is known by size and version, as the store gave it
when the snapshot was made, so that nothing is read that did not change.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

from curator.errors import DamagedError, StorageError
from curator.stages.commit.commit_run import alone
from curator.storage import Store
from curator.tables.checksums import find_json, is_damaged, sealed_json, those, to_json
from curator.tables.fenced_store import Digest, FencedStore
from curator.tables.out_layout import CONFIG, LAYOUT, SHARDS, FolderLifetime, is_own, listed_objects
from curator.tables.output_format import read_summary
from curator.tables.parts import SUMMARY
from curator.tables.snapshot_store import (
    HEAD,
    NUMBER,
    archived,
    copies_of,
    objects_of,
    snapshot_name,
    snapshot_numbers,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FOR_GOOD = {name for name, life in LAYOUT.items() if life is FolderLifetime.RECORD}
ALL = frozenset(LAYOUT) - {SHARDS, "report", *_FOR_GOOD} | {SUMMARY, CONFIG}
"""Folders and objects that `curate run` makes again."""
CACHES = frozenset(
    name for name, life in LAYOUT.items() if life is FolderLifetime.CACHE and name != "tracks"
) | {"frames"}
"""Folders that `curate recaption` makes again, which has no sources."""
_ROUNDS = 2 * len(ALL)
"""Kinds of damage that one command repairs; more is a store that cannot be trusted."""


def with_repair(
    store: Store, work: Callable[[], T], kinds: frozenset[str], *, check: Callable[[], None] = alone
) -> T:
    """Does some work, again after each removal of what it found damaged.

    Args:
        store: Output root.
        work: Can be done again at any time: it goes on from what is stored.
        kinds: Folders and objects that it makes again: `ALL` or `CACHES`.
        check: Raises if nothing may be removed any more.

    Raises:
        DamagedError: An object of another kind is damaged, or one that is missing is needed.
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
    """Removes the damaged objects of the kind that an error names; says whether there were any.

    Those of which the newest snapshot has an equal copy are written again.
    """
    if error.name.split("/")[0] not in kinds:
        return False
    folder = error.name.rpartition("/")[0]
    # An object at the root is a kind of its own.
    prefix = f"{folder}/" if folder else error.name
    names = [info.key for info in store.list(prefix) if is_own(info.key)]
    damaged = those(partial(is_damaged, store), names)
    if not damaged:
        return False
    logger.warning(
        "damaged objects in %s/%s: %d of %d, such as %s (%s); they are removed, and what they held "
        "is made again",
        store.uri, folder or error.name, len(damaged), len(names),
        error.name if error.name in damaged else damaged[0], error.why,
    )  # fmt: skip
    whole = restored(FencedStore(store, check), damaged)
    store.delete([name for name in damaged if name not in whole])
    return True


def repair_objects(
    store: Store, *, check: Callable[[], None] = alone, makes_again: bool = True
) -> None:
    """Writes what is damaged again from an equal copy, and removes what has no equal copy.

    Nothing is removed without `makes_again`, which says that a run with the sources follows.
    `check` raises if nothing may be written any more.
    """
    fenced = FencedStore(store, check)
    numbers = snapshot_numbers(store)
    try:
        summary = find_json(store, SUMMARY) or {}
    except DamagedError:
        summary = {}
    head = summary.get(HEAD)
    if head is not None and summary[NUMBER] >= max(numbers, default=0):
        _repair_snapshot(fenced, summary, numbers)
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
    damaged = those(lambda name: not _has(store, name, suspects[name]), suspects)
    lost = sorted(set(damaged) - restored(fenced, damaged))
    if lost and makes_again:
        fenced.delete(lost)
        logger.warning(
            "lost objects of snapshot %d in %s: %d, such as %s, of which no whole copy is left; "
            "they are made again as far as their sources are there",
            summary[NUMBER], store.uri, len(lost), lost[0],
        )  # fmt: skip


def restored(store: FencedStore, names: Collection[str]) -> frozenset[str]:
    """Writes damaged objects of the newest snapshot again from equal copies; returns those."""
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
            "damaged objects in %s: %d, such as %s; they are written again from equal copies",
            store.uri, len(whole), min(whole),
        )  # fmt: skip
    return frozenset(whole)


def _repair_snapshot(
    store: FencedStore, summary: Mapping[str, Any], numbers: Collection[int]
) -> None:
    """Writes the newest snapshot again from `summary.json`, and says which others are gone."""
    number, head = summary[NUMBER], summary[HEAD]
    name, sha256 = snapshot_name(number), head["sha256"]
    gone = set(range(head["first"], number)).difference(numbers)
    if gone:
        logger.warning(
            "lost snapshots of %s: %s; their tars and tables stay, and only `curate clean` removes "
            "them", store.uri, ", ".join(map(str, sorted(gone))),
        )  # fmt: skip
    if number in numbers and Digest.of_object(store, name).sha256 == sha256:
        return
    logger.warning(
        "%s/%s is damaged or gone; it is written again from %s", store.uri, name, SUMMARY
    )
    data = sealed_json(archived(summary), to_json, name)
    store.write(name, data)
    # A later run that changed nothing may have written a summary with other times.
    renewed = {**summary, HEAD: {**head, "sha256": Digest.of(data).sha256}}
    store.write(SUMMARY, sealed_json(renewed, to_json, SUMMARY))


def _newest(store: Store) -> dict[str, Any]:
    """Returns the newest summary; empty without one that can be read."""
    try:
        return read_summary(store)
    except DamagedError:
        # The run meets it too.
        return {}


def _has(store: Store, name: str, digest: Digest) -> bool:
    """Returns whether an object is there with these bytes."""
    try:
        return Digest.of_object(store, name) == digest
    except StorageError:
        if store.exists(name):
            raise
        return False
