"""Checks what a removal must read, before its record is written; repairs from equal objects.

Nothing may be found damaged after the record is there: until the removal is finished no run starts.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from curator.errors import ShardError, UsageError
from curator.removal.snapshot_rewriting import SnapshotRewriting
from curator.runs.repair import restored
from curator.storage import Store
from curator.tables.checksums import is_damaged
from curator.tables.fenced_store import FencedStore
from curator.tables.removal_records import Removals
from curator.tables.snapshot_store import INDEXES

_READERS = 8


def repair_snapshots(
    store: FencedStore, summaries: Mapping[int, Mapping[str, Any]], *, is_begun: bool
) -> None:
    """Checks tables and indexes of all snapshots; writes damaged ones again from equal objects.

    Args:
        store: Output root.
        summaries: Of all snapshots.
        is_begun: Whether a removal is unfinished, so that no run can start.

    Raises:
        UsageError: An object is damaged, and there is no other with the same bytes.
    """
    names: set[str] = set()
    for summary in summaries.values():
        names = names.union(summary[INDEXES].values(), *summary["tables"].values())
    with ThreadPoolExecutor(_READERS) as pool:
        answers = pool.map(partial(is_damaged, store), names)
        damaged = [name for name, is_so in zip(names, answers, strict=True) if is_so]
    lost = sorted(set(damaged) - restored(store, damaged))
    if lost:
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        raise _refusal(f"{store.uri}/{lost[0]} is damaged{more}", is_begun=is_begun)


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


def _refusal(problem: str, *, is_begun: bool) -> UsageError:
    if is_begun:
        remedy = "restore it from a copy of OUT; `curate clean OUT` removes older snapshots; then "
        remedy += "`curate remove OUT --finish`"
    else:
        remedy = (
            "`curate run SOURCE... OUT` with the sources of the last run writes again what the "
            "newest snapshot names, `curate clean OUT` removes older snapshots; then remove again"
        )
    return UsageError(
        f"{problem}, and what is removed cannot be taken out of it; nothing was removed: {remedy}"
    )
