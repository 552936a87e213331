"""Reads the newest state of an output root.

All commands refuse an output of another format: each reads the summary or a snapshot first, and
`require_format` raises a `UsageError`. Loaders of plain tars read them in any format.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from curator.errors import DamagedError, StorageError, UsageError
from curator.number_text import amount
from curator.storage import Store
from curator.tables.json_objects import find_json
from curator.tables.out_layout import (
    CONFIG,
    MANIFEST,
    NEXT_MANIFEST,
    SHARDS,
    SNAPSHOTS,
    SUMMARY,
    TABLES,
    find_unlisted,
)
from curator.tables.snapshot_store import (
    EARLIER,
    NUMBER,
    find_summary,
    listed_snapshots,
    named_objects,
    read_snapshot,
    require_format,
    snapshot_numbers,
    summary_or_none,
    with_fixed_paths,
)

logger = logging.getLogger(__name__)


def read_summary(store: Store, snapshot: int | None = None) -> dict[str, Any]:
    """Reads the summary of a snapshot, None for the newest; empty without a run.

    Raises `UsageError` if the snapshot does not exist, and as `require_format`.
    """
    if snapshot is not None:
        return read_snapshot(store, snapshot)
    summary = find_summary(store) or {}
    newest = max(snapshot_numbers(store), default=0)
    if newest > summary.get(NUMBER, 0):
        # A commit ended early, after its snapshot, or the summary is lost.
        summary = with_fixed_paths(read_snapshot(store, newest))
    return summary


def refuse_other_format(store: Store) -> None:
    """Raises `UsageError` for an output of another format; accepts one that cannot be read."""
    for read in (read_summary, find_settings):
        with suppress(StorageError):
            read(store)


def find_settings(store: Store) -> dict[str, Any]:
    """Reads `config.json`; empty if it is missing. Raises as `require_format`, and if damaged."""
    settings = find_json(store, CONFIG)
    if settings is not None:
        require_format(store, CONFIG, settings)
    return settings or {}


def earlier_state(store: Store) -> dict[str, Any]:
    """Reads the state that a run resumes: the summary of the last finished run, or empty.

    If the summary is lost but the shards exist, the settings of that run and the existing tables
    replace it. Raises as `read_summary`.
    """
    summary = read_summary(store)
    if summary or not store.exists(MANIFEST):
        return summary
    if not store.exists(NEXT_MANIFEST):
        logger.warning(
            "%s/%s is missing: the run resumes from shards and tables", store.uri, SUMMARY
        )
    settings = find_settings(store)
    tables = {name: [info.key for info in store.list(f"{name}/")] for name in TABLES}
    return {"fingerprints": {}, **settings, "tables": tables}


def refuse_lost_commit(store: Store) -> None:
    """Raises `UsageError` if only the shards' manifest still knows of the newest commit.

    Its snapshot and `summary.json` are lost then, or `summary.json` is an older copy. A command
    that continues would drop its clips, and take its tars for leftovers. The manifest of an older
    commit names only tars that snapshots name, or that `curate clean` removed.
    """
    try:
        manifest = find_json(store, MANIFEST)
    except DamagedError:
        # The run writes it again.
        return
    if manifest is None or store.exists(NEXT_MANIFEST):
        return
    summary = summary_or_none(store) or {}
    tars = {f"{SHARDS}/{shard['name']}" for shard in manifest["shards"]}
    tars -= named_objects(summary).union(summary.get(EARLIER, ()))
    newest = 0
    for number, snapshot in listed_snapshots(store) if tars else ():
        if not isinstance(snapshot, DamagedError):
            newest = max(newest, number)
            tars -= named_objects(snapshot).union(snapshot.get(EARLIER, ()))
    if newest and (there := find_unlisted(store, tars, ())):
        raise UsageError(
            f"{store.uri}/{MANIFEST} names {amount(len(there), 'tar')} that no snapshot names, "
            f"such as {min(there)}: the snapshot of the newest commit and {SUMMARY} are lost; "
            f"restore {SNAPSHOTS} and {SUMMARY} from a copy of OUT; or delete {MANIFEST} to "
            f"continue from snapshot {newest}, without the clips of later commits"
        )


def existing(store: Store, previous: Mapping[str, Any], table: str) -> list[str]:
    """Returns the existing parts of a table of the last finished run; warns of missing parts."""
    named = previous.get("tables", {}).get(table, ())
    there = {info.key for info in store.list(f"{table}/")}
    there |= find_unlisted(store, named, there).keys()
    lost = [name for name in named if name not in there]
    if lost:
        logger.warning(
            "missing parts of the table %s: %d, such as %s/%s; the run makes their rows again",
            table, len(lost), store.uri, lost[0],
        )  # fmt: skip
    return [name for name in named if name in there]


def read_current_summary(store: Store, snapshot: int | None = None) -> dict[str, Any]:
    """Reads the summary of a snapshot, None for the newest.

    Raises `UsageError` if OUT has no finished run, and as `read_summary`.
    """
    summary = read_summary(store, snapshot)
    if not summary:
        raise UsageError(
            f"{store.uri} has no finished run (no summary.json); expected OUT of "
            "`curate run SOURCE... OUT`, which makes one"
        )
    return summary
