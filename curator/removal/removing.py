"""The steps of a removal: write a record, rewrite objects, delete the old objects.

Each step can be repeated, and finds its work by the hashes of the record. So an interrupted removal
needs only the record to finish. Old objects are deleted after all snapshots name new objects.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from curator.errors import DamagedError, ShardError, UsageError
from curator.removal.removal_selection import By, RemovalSelection, select
from curator.removal.snapshot_rewriting import RewrittenSnapshot, SnapshotRewriting
from curator.removal.state_scrubbing import StateScrubbing
from curator.report import render_report, shown_clips
from curator.runs.repair import restored
from curator.stages.commit.commit_run import write_fixed_paths
from curator.stages.propose.candidate_store import read_pictures, stored_candidates
from curator.storage import Store
from curator.tables.checksums import find_json, is_damaged, those
from curator.tables.fenced_store import FencedStore
from curator.tables.footage_store import FootageStore, write_removed_footage
from curator.tables.out_layout import (
    INDEX,
    LAYOUT,
    NEXT_MANIFEST,
    OWN_FOLDERS,
    SHARDS,
    FolderLifetime,
    is_own,
)
from curator.tables.parts import SUMMARY
from curator.tables.removal_records import (
    KNOWN_BY,
    LOST,
    RecordChain,
    add_record,
    empty_record,
    head_of_records,
    mark_finished,
    read_removals,
    removals_of,
)
from curator.tables.snapshot_store import (
    INDEXES,
    listed_snapshots,
    named_objects,
    record_copy,
    renew_links,
    snapshot_name,
    with_fixed_paths,
)
from curator.verify.removed_check import found_in

_REPLACED = (
    *(name for name, life in LAYOUT.items() if life in (FolderLifetime.TABLE, FolderLifetime.KEPT)),
    SHARDS,
    "alike",
    INDEX,
)
"""Folders whose objects go when no snapshot names them."""
STATE = frozenset(
    name
    for name, life in LAYOUT.items()
    if life in (FolderLifetime.FINGERPRINTED, FolderLifetime.CACHE, FolderLifetime.RUN)
) | {"candidates", "alike"}
"""Folders whose damaged objects a removal may remove: later runs make them again."""
_REFUSAL = "{}, and what is removed cannot be taken out of it; nothing was removed: {}"
_RUN_AGAIN = (
    "`curate run SOURCE... OUT` with the sources of the last run writes again what the newest "
    "snapshot names, `curate clean OUT` removes older snapshots; then remove again"
)
_OF_ENERGON = (".nv-meta/index.sqlite", ".nv-meta/index.uuid")
"""Files that Megatron-Energon derives from the names and keys of tars, and can derive again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Records that a removal finished, and the numbers of objects that it rewrote or deleted."""

    records: tuple[str, ...]
    n_shards: int
    n_replies: int
    n_deleted: int


def plan_removal(
    store: Store, by: By, named: Sequence[str], *, with_duplicates: bool = False
) -> RemovalSelection:
    """Selects the footage of a removal; changes nothing.

    Raises:
        UsageError: An earlier removal is unfinished, or no clip or source has a given name.
    """
    removals = read_removals(store)
    if removals.unfinished:
        raise UsageError(
            f"a removal from {store.uri} was begun and not finished: run `curate remove "
            f"{store.uri} --finish` first"
        )
    return select(
        store, _summaries(store), by, named, with_duplicates=with_duplicates, before=removals
    )


def repair_before(store: Store, check: Callable[[], None] = lambda: None) -> None:
    """Checks tables and indexes of all snapshots; restores damaged ones from identical objects.

    `check` raises if this process may no longer write.

    Raises:
        UsageError: An object is damaged, and no other object has the same bytes.
    """
    fenced = FencedStore(store, check)
    names: set[str] = set()
    for summary in _summaries(store).values():
        names = names.union(summary[INDEXES].values(), *summary["tables"].values())
    damaged = those(partial(is_damaged, fenced), names)
    if not (lost := sorted(set(damaged) - restored(fenced, damaged))):
        return
    remedy = _RUN_AGAIN
    if read_removals(store).unfinished:
        # Until it is finished no run starts.
        remedy = "restore it from a copy of OUT; `curate clean OUT` removes older snapshots; then "
        remedy += "`curate remove OUT --finish`"
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    raise UsageError(_REFUSAL.format(f"{store.uri}/{lost[0]} is damaged{more}", remedy))


def begin_removal(store: Store, selected: RemovalSelection, *, forgets: bool = False) -> str:
    """Writes the record of a removal, which keeps the footage from coming back; returns its name.

    Args:
        store: Output root.
        selected: Footage to remove.
        forgets: Whether to store nothing that recognises re-encoded or cropped copies.

    Raises:
        CuratorError: Another removal began meanwhile.
        UsageError: A tar to rewrite is damaged. The check comes before the record, because no run
            starts between the record and the end of the removal.
    """
    rewriting = SnapshotRewriting(store, removals_of([selected.record]), (), {})
    try:
        for summary in _summaries(store).values():
            rewriting.check_tars(summary)
    except ShardError as error:
        raise UsageError(_REFUSAL.format(error, _RUN_AGAIN)) from error
    name = None
    if not forgets:
        stored = [info.key for info in store.list("candidates/footage/")]
        footage = FootageStore.of(store, stored).clips(selected.footage_ids)
        name = write_removed_footage(store, list(footage.values()))
    return add_record(store, {**selected.record, KNOWN_BY: name})


def give_up_lost(store: Store) -> str:
    """Adds a record that gives up records lost with their copies; returns its name."""
    return add_record(store, empty_record("lost") | {LOST: dict(RecordChain.read(store).lost)})


def finish_removal(
    store: Store,
    progress: Callable[[str], object] = lambda step: None,
    check: Callable[[], None] = lambda: None,
) -> Removed:
    """Removes all footage that the records name and that is still in the output.

    `progress` is called with the name of each step. `check` is called before each step, and raises
    if this process may no longer write.

    Raises:
        StorageError: An object that holds removed footage cannot be read or written.
    """
    store = FencedStore(store, check)
    removals = read_removals(store, repair=True)
    records = head_of_records(store)
    summaries = _summaries(store)
    scrubbing = StateScrubbing(store, removals)
    rewriting = SnapshotRewriting(store, removals, scrubbing.pairs(), records)
    newest: RewrittenSnapshot | None = None
    for number in sorted(summaries):
        check()
        progress(f"snapshot {number}")
        newest = rewriting.rewrite(summaries[number])
        summaries[number] = newest.summary
    check()
    progress("stored results")
    scrubbing.scrub(summaries)
    for number in sorted(summaries):
        summaries[number] = renew_links(store, summaries[number])
    named = {snapshot_name(number) for number in summaries} | {*map(record_copy, records.values())}
    if newest is not None:
        newest = replace(newest, summary=summaries[max(summaries)])
        check()
        progress("indexes and report")
        _publish(store, newest)
        named |= newest.shard_files.keys()
        every = [*summaries.values(), with_fixed_paths(newest.summary)]
        named = named.union(*map(named_objects, every))
    check()
    progress("old objects")
    old = list(_unnamed(store, named))
    store.delete(old)
    store.clean_temporary(("", *OWN_FOLDERS), is_own, older_than_s=0)
    mark_finished(store, removals.unfinished)
    return Removed(
        records=removals.unfinished,
        n_shards=len(rewriting.tars.done),
        n_replies=scrubbing.n_replies,
        n_deleted=len(old),
    )


def delete_returned(store: Store) -> list[str]:
    """Deletes stored results in which `verify --removed` finds something; returns their names.

    Runs compute the results again, without the removed footage.
    """
    removals = read_removals(store)
    names = [info.key for folder in sorted(STATE) for info in store.list(f"{folder}/")]
    keys = found_in(store, removals, filter(is_own, names))
    store.delete(keys)
    return keys


def _summaries(store: Store) -> dict[int, dict[str, Any]]:
    """Reads all snapshots; raises if one is unreadable, because its objects would stay."""
    summaries: dict[int, dict[str, Any]] = {}
    for number, summary in listed_snapshots(store):
        if isinstance(summary, DamagedError):
            raise summary
        summaries[number] = summary
    return summaries


def _publish(store: Store, newest: RewrittenSnapshot) -> None:
    """Writes the files at fixed paths from the newest snapshot, as the commit of a run does."""
    summary, clips = newest.summary, newest.clips
    names = [n for n in stored_candidates(store, summary, "pictures") if store.exists(n)]
    page = render_report(
        summary=summary,
        sources=newest.totals.failed,
        clips=clips,
        thumbnails=read_pictures(store, names, shown_clips(summary, clips)),
    )
    previous = find_json(store, SUMMARY) or {}
    write_fixed_paths(store, with_fixed_paths(summary), previous, newest.shard_files, page)
    # `curate tune` and `curate learn` write these pages.
    store.delete([NEXT_MANIFEST, "report/tune.html", "report/learn.html"])


def _unnamed(store: Store, named: set[str]) -> list[str]:
    """Returns objects that no snapshot names, and files that Megatron-Energon made of tars."""
    return [
        info.key
        for folder in _REPLACED
        for info in store.list(f"{folder}/")
        if info.key not in named and (is_own(info.key) or info.key.endswith(_OF_ENERGON))
    ]
