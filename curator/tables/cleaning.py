"""Removes old snapshots, and the objects that only they name."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from curator.errors import DamagedError
from curator.storage import Store
from curator.tables.checksums import find_json, sealed_json, to_json
from curator.tables.fenced_store import FencedStore
from curator.tables.out_layout import LAYOUT, FolderLifetime, has_fixed_path, is_own, remove
from curator.tables.parts import SUMMARY
from curator.tables.snapshot_store import (
    HEAD,
    MADE,
    listed_snapshots,
    named_objects,
    require_snapshots,
    snapshot_name,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What was removed, or would be: snapshots, the newest first, and what only they name."""

    kept: list[int]
    removed: list[int]
    n_objects: int
    n_bytes: int


def clean(
    store: Store,
    *,
    keep: int = 1,
    older_than: timedelta | None = None,
    dry_run: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Cleaned:
    """Removes snapshots and what only they name.

    Args:
        store: Output root.
        keep: The newest snapshots that stay in any case, at least one.
        older_than: Age from which others are removed; None for any.
        dry_run: Only count.
        check: Called before anything is removed; raises where it may not be.

    Raises:
        UsageError: There are no snapshots.
        DamagedError: One that is to stay cannot be read, so that what it names is not known.
    """
    require_snapshots(store)
    newest = None if older_than is None else datetime.now(UTC) - older_than
    kept: list[int] = []
    removed: list[int] = []
    named: set[str] = set()
    for number, summary in listed_snapshots(store):
        stays = len(kept) < keep
        if isinstance(summary, DamagedError):
            if stays or newest is not None:
                raise summary
            removed.append(number)
            continue
        if stays or (newest is not None and datetime.fromisoformat(summary[MADE]) >= newest):
            kept.append(number)
            named |= {snapshot_name(number)} | named_objects(summary)
        else:
            removed.append(number)
    folders = [
        name for name, life in LAYOUT.items() if life in (FolderLifetime.NAMED, FolderLifetime.KEPT)
    ]
    old = {
        info.key: info.bytes
        for folder in folders
        for info in store.list(f"{folder}/")
        if info.key not in named and is_own(info.key) and not has_fixed_path(info.key)
    }
    if not dry_run and old:
        check()
        _note_first(FencedStore(store, check), min(kept))
        # First the snapshots themselves, so that none names an object that is gone.
        snapshots = {snapshot_name(number) for number in removed} & old.keys()
        store.delete(sorted(snapshots))
        remove(store, old.keys() - snapshots)
    return Cleaned(kept=kept, removed=removed, n_objects=len(old), n_bytes=sum(old.values()))


def _note_first(store: FencedStore, number: int) -> None:
    """Writes where the chain begins, before anything is removed: what is missing later is lost."""
    summary = find_json(store, SUMMARY) or {}
    if HEAD in summary:
        summary[HEAD]["first"] = number
        store.write(SUMMARY, sealed_json(summary, to_json, SUMMARY))
