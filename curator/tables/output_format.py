"""The version of a run's output, and the treatment of other versions.

Objects of an older version are never converted:

    shards                       `verify`, `export` and the loader read them as they are
    scan, tracks, candidates     are reused if their fingerprint is the same
    clips in `cuts` and shards   are reused if their fingerprint is the same
    replies, annotations         are reused if the request to the model is the same
    tables, summary, settings    `run` replaces them; `explain`, `tune` and `recaption` refuse them

All commands refuse an output of a newer version.
"""

import logging
from collections.abc import Mapping
from typing import Any

from curator.errors import DamagedError, UsageError
from curator.number_text import amount
from curator.storage import Store
from curator.tables.checksums import find_json, read_json
from curator.tables.out_layout import (
    CONFIG,
    MANIFEST,
    NEXT_MANIFEST,
    SHARDS,
    SNAPSHOTS,
    TABLES,
    find_unlisted,
)
from curator.tables.parts import SUMMARY
from curator.tables.snapshot_store import (
    EARLIER,
    NUMBER,
    listed_snapshots,
    named_objects,
    read_snapshot,
    snapshot_name,
    snapshot_numbers,
    summary_or_none,
    with_fixed_paths,
)

logger = logging.getLogger(__name__)

FORMAT = 3
"""Increases when a column or an object changes its name or meaning. Format 1 has no number."""


def read_summary(store: Store, snapshot: int | None = None) -> dict[str, Any]:
    """Reads the summary of a snapshot, None for the newest; empty without a run.

    Returns a summary of an older version unchanged. Raises `UsageError` if a newer version wrote
    the summary, or if the snapshot does not exist.
    """
    if snapshot is not None:
        summary = read_snapshot(store, snapshot)
    else:
        summary = find_json(store, SUMMARY) or {}
        newest = max(snapshot_numbers(store), default=0)
        if newest > summary.get(NUMBER, 0):
            # A commit ended early, after its snapshot, or the summary is lost.
            summary = with_fixed_paths(read_json(store, snapshot_name(newest)))
    if _format(summary) > FORMAT:
        raise UsageError(
            f"{_made_by(store, summary)}; this version reads up to {FORMAT}: update curate, or "
            "name another OUT"
        )
    return summary


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
    settings = find_json(store, CONFIG) or {}
    tables = {name: [info.key for info in store.list(f"{name}/")] for name in TABLES}
    return {"format": FORMAT, "fingerprints": {}, **settings, "tables": tables}


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
    """Reads the summary of a snapshot with tables of this version; None for the newest.

    Raises:
        UsageError: OUT has no finished run or no such snapshot, or another version wrote it.
    """
    summary = read_summary(store, snapshot)
    if not summary:
        raise UsageError(
            f"{store.uri} has no finished run (no summary.json); expected OUT of "
            "`curate run SOURCE... OUT`, which makes one"
        )
    if _format(summary) < FORMAT:
        raise UsageError(
            f"{_made_by(store, summary)}; expected {FORMAT}: `curate run SOURCE... OUT` updates "
            "this output; its shards can be loaded, verified and exported without an update"
        )
    return summary


def log_older(store: Store, summary: Mapping[str, Any]) -> None:
    """Logs how a run treats an output of an older version; `summary` is empty without a run."""
    if summary and _format(summary) < FORMAT:
        made_by = _made_by(store, summary)
        logger.warning(
            "%s; this version writes %d: what older code measured is made again", made_by, FORMAT
        )


def _format(summary: Mapping[str, Any]) -> int:
    return int(summary.get("format", 1))


def _made_by(store: Store, summary: Mapping[str, Any]) -> str:
    version = summary.get("curate_version", "of an unknown version")
    return f"{store.uri} was made by curate {version} in output format {_format(summary)}"
