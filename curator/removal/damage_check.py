"""Checks what a removal must read, before its record is written; repairs from equal objects.

Nothing may be found damaged after the record is there: until the removal is finished no run starts.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from curator.errors import ShardError, UsageError
from curator.removal.snapshot_rewriting import SnapshotRewriting
from curator.storage import Store
from curator.tables.checksums import is_damaged
from curator.tables.out_layout import DATASET, MANIFEST, SNAPSHOTS
from curator.tables.removal_records import Removals
from curator.tables.snapshot_store import INDEXES

logger = logging.getLogger(__name__)

_READERS = 8
_FIXED_INDEXES = {"manifest": MANIFEST, "dataset": DATASET}


def repair_snapshots(
    store: Store, summaries: Mapping[int, Mapping[str, Any]], *, is_begun: bool
) -> None:
    """Checks tables and indexes of all snapshots; writes damaged ones again from equal objects.

    The folders of the tables and the indexes at fixed paths repeat those of the newest snapshot.

    Args:
        store: Output root.
        summaries: Of all snapshots.
        is_begun: Whether a removal is unfinished, so that no run can start.

    Raises:
        UsageError: An object is damaged, and there is no other with the same bytes.
    """
    equal = dict(pair for summary in summaries.values() for pair in _equal_objects(summary))
    with ThreadPoolExecutor(_READERS) as pool:
        found = pool.map(partial(is_damaged, store), equal)
        damaged = [name for name, is_so in zip(equal, found, strict=True) if is_so]
    lost = [name for name in damaged if not _is_equal(store, name, equal[name])]
    if lost:
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        raise _refusal(f"{store.uri}/{lost[0]} is damaged{more}", is_begun=is_begun)
    for name in damaged:
        logger.warning("%s/%s is damaged; %s is copied to it", store.uri, name, equal[name])
        store.copy(equal[name], name)


def check_tars(
    store: Store, summaries: Mapping[int, Mapping[str, Any]], removals: Removals
) -> None:
    """Reads the tars that a removal writes again.

    Raises:
        UsageError: One is damaged.
    """
    rewriting = SnapshotRewriting(store, removals, (), {})
    for summary in summaries.values():
        try:
            rewriting.check_tars(summary)
        except ShardError as error:
            raise _refusal(str(error), is_begun=False) from error


def _equal_objects(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the objects of a snapshot with the names of those that may have the same bytes."""
    parts: Sequence[str] = [part for parts in summary["tables"].values() for part in parts]
    for part in parts:
        yield part, part.removeprefix(f"{SNAPSHOTS}/")
    for kind, name in summary[INDEXES].items():
        yield name, _FIXED_INDEXES[kind]


def _is_equal(store: Store, name: str, other: str) -> bool:
    """Returns whether another object has the bytes that one had."""
    if other == name or is_damaged(store, other):
        return False
    if other not in _FIXED_INDEXES.values():
        # Parts are named by their bytes.
        return True
    return hashlib.sha256(store.read(other)).hexdigest()[:16] in name


def _refusal(found: str, *, is_begun: bool) -> UsageError:
    if is_begun:
        remedy = "restore it from a copy of OUT; `curate clean OUT` removes older snapshots; then "
        remedy += "`curate remove OUT --finish`"
    else:
        remedy = (
            "`curate run SOURCE... OUT` with the sources of the last run writes again what the "
            "newest snapshot names, `curate clean OUT` removes older snapshots; then remove again"
        )
    return UsageError(
        f"{found}, and what is removed cannot be taken out of it; nothing was removed: {remedy}"
    )
