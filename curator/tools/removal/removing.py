"""The steps of a removal: write a record, rewrite objects, delete the old objects.

Each step can be repeated, and finds its work by the hashes of the record. So an interrupted removal
needs only the record to finish. Old objects are deleted after all snapshots name new objects.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from curator.errors import DamagedError, ShardError, StorageError, UsageError
from curator.export.output_views import remake_views
from curator.runs.commit_run import write_fixed_paths
from curator.runs.repair import restored
from curator.storage import Store
from curator.tables.candidate_store import read_pictures, stored_candidates
from curator.tables.checksums import filter_in_threads, is_damaged
from curator.tables.fenced_store import FencedStore
from curator.tables.footage_store import FootageStore, write_removed_footage
from curator.tables.json_objects import read_json, sealed_json, to_json
from curator.tables.lasting_objects import lost_objects, repair_lasting
from curator.tables.named_ids import without_ids
from curator.tables.out_layout import (
    NEXT_MANIFEST,
    OWN_FOLDERS,
    SUMMARY,
    OnRemoval,
    folders_of,
    is_own,
)
from curator.tables.output_format import refuse_lost_commit
from curator.tables.removal_records import (
    KNOWN_BY,
    LOST,
    RecordChain,
    add_record,
    empty_record,
    head_of_records,
    kept_objects,
    mark_finished,
    read_removals,
    removals_of,
)
from curator.tables.snapshot_store import (
    HEAD,
    INDEXES,
    NUMBER,
    REMOVALS,
    archived,
    find_summary,
    listed_snapshots,
    named_objects,
    record_copy,
    renew_links,
    snapshot_name,
    snapshot_numbers,
    with_fixed_paths,
)
from curator.tools.removal.removal_selection import By, RemovalSelection, select
from curator.tools.removal.snapshot_rewriting import RewrittenSnapshot, SnapshotRewriting
from curator.tools.removal.state_scrubbing import StateScrubbing
from curator.tools.report import render_report
from curator.tools.verify.removed_check import found_in

logger = logging.getLogger(__name__)

STATE = frozenset(folders_of(OnRemoval.ROWS, OnRemoval.OBJECT, OnRemoval.FOLDER))
"""Folders whose damaged objects a removal may remove: later runs make them again."""
_REFUSAL = "{}, and what is removed cannot be taken out of it; nothing was removed: {}"
_RUN_AGAIN = (
    "`curate run SOURCE... OUT` with the sources of the last run writes again what the newest "
    "snapshot names, `curate clean OUT` removes older snapshots; then remove again"
)
_RESTORE = (
    "restore it from a backup of OUT, then `curate remove {0} --finish`; or `curate remove {0} "
    "--give-up-lost` removes the snapshots that need it, and finishes (with --dry-run, it only "
    "lists these snapshots)"
)


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
        UsageError: An earlier removal is unfinished, the newest snapshot is lost, or no clip or
            source has a given name.
    """
    removals = read_removals(store)
    removals.require_finished(store.uri)
    refuse_lost_commit(store)
    return select(
        store, _summaries(store), by, named, with_duplicates=with_duplicates, before=removals
    )


def repair_before(store: Store, check: Callable[[], None] = lambda: None) -> None:
    """Checks tables and indexes of all snapshots, marks, learned scores and footage of removals.

    Restores damaged objects from identical ones. `check` raises if this process may no longer
    write.

    Raises:
        UsageError: An object is damaged, and no other object has the same bytes.
    """
    fenced = FencedStore(store, check)
    removals = read_removals(store)
    repair_lasting(fenced, kept_objects(store, removals))
    if removals.unfinished:
        _restore_newest(fenced)
    lost = _lost_objects(fenced, _summaries(store).values())
    if not lost:
        return
    remedy = _RUN_AGAIN
    if removals.unfinished:
        # Until it is finished no run starts.
        remedy = _RESTORE.format(store.uri)
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


def _lost_objects(
    store: FencedStore, summaries: Iterable[Mapping[str, Any]], *, repairs: bool = True
) -> list[str]:
    """Returns damaged tables and indexes of snapshots.

    With `repairs`, restores those of which there is an identical object, and returns the others.
    """
    names: set[str] = set()
    for summary in summaries:
        names = names.union(summary[INDEXES].values(), *summary["tables"].values())
    damaged = filter_in_threads(partial(is_damaged, store), names)
    return sorted(set(damaged) - (restored(store, damaged) if repairs else frozenset()))


def lost_of_removals(store: Store) -> dict[str, str]:
    """Returns why records, and footage that they name, are lost with their copies, by name."""
    chain = RecordChain.read(store)
    footage = lost_objects(store, chain.removals().footage)
    return {**chain.lost, **{stored.name: stored.fault for stored in footage}}


def give_up_lost(store: Store) -> str:
    """Adds a record that gives up what `lost_of_removals` returns; returns its name."""
    return add_record(store, empty_record("lost") | {LOST: lost_of_removals(store)})


def unreadable_snapshots(
    store: Store, check: Callable[[], None] = lambda: None, *, repairs: bool = True
) -> list[int]:
    """Returns the snapshots that an unfinished removal cannot rewrite, and all that are older.

    Such a snapshot lacks a table, an index, or a tar that holds removed footage. Snapshots that are
    newer than all rewritable ones are among them. Without an unfinished removal, returns none: then
    `curate run` and `curate clean` help. `repairs` restores objects from identical ones.
    """
    removals = RecordChain.read(store).removals()
    if not removals.unfinished:
        return []
    fenced = FencedStore(store, check)
    if repairs:
        _restore_newest(fenced)
    rewriting = SnapshotRewriting(fenced, removals, (), {})

    def is_rewritable(summary: Mapping[str, Any] | DamagedError) -> bool:
        if isinstance(summary, DamagedError) or _lost_objects(fenced, [summary], repairs=repairs):
            return False
        try:
            rewriting.check_tars(summary)
        except ShardError:
            return False
        return True

    dropped: list[int] = []
    has_newer = False
    for number, summary in listed_snapshots(store):
        if (has_newer and dropped and dropped[-1] == number + 1) or not is_rewritable(summary):
            dropped.append(number)
        else:
            has_newer = True
    return dropped


def give_up_snapshots(store: Store, numbers: Collection[int], check: Callable[[], None]) -> None:
    """Removes snapshots, so that the removal deletes all objects that no other snapshot names.

    `curate clean` does not do this: it would also remove what the removal has written so far.
    """
    fenced = FencedStore(store, check)
    left = set(snapshot_numbers(store)).difference(numbers)
    newest: object = None
    with suppress(DamagedError):
        summary = find_summary(store) or {}
        newest = summary.get(NUMBER)
        if HEAD in summary and left:
            # Else the snapshots that go would count as lost.
            summary[HEAD]["first"] = min(left)
            fenced.write(SUMMARY, sealed_json(summary, to_json, SUMMARY))
    fenced.delete(map(snapshot_name, numbers))
    if newest not in left:
        # The snapshot that it names would count as lost.
        fenced.delete([SUMMARY])


def _restore_newest(store: FencedStore) -> None:
    """Writes the newest snapshot from `summary.json` if only that names all records.

    After a backup of older snapshots was restored, the tables that `summary.json` names are those
    without removed footage.
    """
    try:
        summary = find_summary(store) or {}
    except DamagedError:
        return
    number = summary.get(NUMBER, 0)
    if number < max(snapshot_numbers(store), default=1):
        return
    name = snapshot_name(number)
    try:
        named = read_json(store, name).get(REMOVALS, {})
    except DamagedError:
        named = {}
    if summary.get(REMOVALS, {}).keys() > named.keys():
        logger.warning("%s/%s is restored from %s", store.uri, name, SUMMARY)
        store.write(name, sealed_json(archived(summary), to_json, name))


def finish_removal(
    store: Store,
    progress: Callable[[str], object] = lambda step: None,
    check: Callable[[], None] = lambda: None,
) -> Removed:
    """Removes all footage that the records name and that is still in the output.

    `progress` is called with the name of each step. `check` is called before each step, and raises
    if this process may no longer write.

    Raises:
        StorageError: An object that holds removed footage cannot be read or written, or an
            unfinished upload cannot be aborted.
        UsageError: A snapshot lacks an object that holds removed footage.
    """
    store = FencedStore(store, check)
    removals = read_removals(store, repair=True)
    repair_lasting(store, kept_objects(store, removals))
    records = head_of_records(store)
    summaries = _summaries(store)
    scrubbing = StateScrubbing(store, removals)
    rewriting = SnapshotRewriting(store, removals, scrubbing.named_by_snapshots(), records)
    newest: RewrittenSnapshot | None = None
    for number in sorted(summaries):
        check()
        progress(f"snapshot {number}")
        try:
            newest = rewriting.rewrite(summaries[number])
        except ShardError as error:
            raise UsageError(f"{error}; {_RESTORE.format(store.uri)}") from error
        summaries[number] = newest.summary
    check()
    progress("stored results")
    scrubbing.scrub(summaries)
    for number in sorted(summaries):
        summaries[number] = renew_links(store, summaries[number])
    named = {snapshot_name(number) for number in summaries} | {*map(record_copy, records.values())}
    progress("views")
    named |= remake_views(store, lambda text: without_ids(text, removals.ids), check)
    if newest is not None:
        newest = replace(newest, summary=summaries[max(summaries)])
        check()
        progress("indexes and report")
        _publish(store, newest)
        named |= newest.shard_files.keys()
        every = [*summaries.values(), with_fixed_paths(newest.summary)]
        named = named.union(*map(named_objects, every))
    else:
        # Nothing can be written from a snapshot, and these files show removed footage.
        pages = [info.key for info in store.list("report/") if is_own(info.key)]
        store.delete([SUMMARY, NEXT_MANIFEST, *pages])
    check()
    progress("old objects")
    old = list(_unnamed(store, named))
    store.delete(old)
    try:
        store.clean_temporary(("", *OWN_FOLDERS), is_own, older_than_s=0, strict=True)
    except StorageError as error:
        raise StorageError(
            f"{error}; they may hold removed footage, so the removal is not finished: grant the "
            "permission, or let somebody who has it abort the uploads; then `curate remove "
            f"{store.uri} --finish`"
        ) from error
    mark_finished(store, removals.unfinished)
    return Removed(
        records=removals.unfinished,
        n_shards=len({tar for tar, _ in rewriting.tars.done}),
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
    """Reads all snapshots; raises `UsageError` if one is lost, because its objects would stay."""
    summaries: dict[int, dict[str, Any]] = {}
    for number, summary in listed_snapshots(store):
        if isinstance(summary, DamagedError):
            is_unfinished = bool(read_removals(store).unfinished)
            remedy = _RESTORE.format(store.uri) if is_unfinished else _RUN_AGAIN
            raise UsageError(f"{store.uri}/{summary.name} is lost ({summary.why}): {remedy}")
        summaries[number] = summary
    return summaries


def _publish(store: Store, newest: RewrittenSnapshot) -> None:
    """Writes the files at fixed paths from the newest snapshot, as the commit of a run does."""
    summary, clips = newest.summary, newest.clips
    names = [n for n in stored_candidates(summary, "pictures") if store.exists(n)]
    page = render_report(
        summary=summary,
        sources=newest.totals.failed,
        clips=clips,
        pictures=partial(read_pictures, store, names),
    )
    previous: dict[str, Any] = {}
    with suppress(DamagedError):
        previous = find_summary(store) or {}
    write_fixed_paths(store, with_fixed_paths(summary), previous, newest.shard_files, page)
    # `curate tune` and `curate learn` write these pages.
    store.delete([NEXT_MANIFEST, "report/tune.html", "report/learn.html"])


def _unnamed(store: Store, named: set[str]) -> list[str]:
    """Returns objects that no snapshot names."""
    return [
        info.key
        for folder in folders_of(OnRemoval.UNNAMED)
        for info in store.list(f"{folder}/")
        if info.key not in named and is_own(info.key)
    ]
