"""`curate snapshots`, `clean` and `remove`: list the contents of OUT, and delete from them."""

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curator.errors import DamagedError, UsageError
from curator.executor.termination import ends_when_asked
from curator.number_text import amount, plain
from curator.tools.commands.arguments import (
    OUT,
    SNAPSHOT,
    WOULD_REMOVE,
    Result,
    always,
    command,
    one_of,
    option,
    positive,
    terminal_line,
)

if TYPE_CHECKING:
    from curator.storage import Store
    from curator.tools.removal.removal_selection import By, RemovalSelection
    from curator.tools.removal.removing import Removed

LEAST_DIGITS = 4
"""Least length of a beginning of an id: a single letter would take a sixteenth of a corpus for a
typing error, if it happens to have one clip."""
_CLIP_ID = re.compile(rf"[0-9a-f]{{{LEAST_DIGITS},24}}")
_UNITS = {"d": "days", "h": "hours", "w": "weeks"}


@command(
    "list the snapshots of OUT with their changes, or the tars of one",
    OUT,
    option(
        "--tars",
        "print the tars of the newest snapshot, a path per line. Other tars under OUT/shards "
        "belong only to older snapshots",
    ),
    option("--split SPLIT", "only tars of train, or of val; with --tars", choices=("train", "val")),
    SNAPSHOT,
    description="Lists the snapshots of OUT, the newest first. Each commit adds a snapshot. "
    "`--snapshot N` of other commands reads a snapshot, and `curate clean` removes old snapshots.",
    only_prints=always,
)
def snapshots(options: argparse.Namespace) -> Result:
    from curator.storage import open_store
    from curator.tables.output_format import read_current_summary
    from curator.tables.snapshot_store import (
        CREATED_AT,
        NUMBER,
        listed_snapshots,
        require_snapshots,
    )

    store = open_store(options.out)
    require_snapshots(store)
    if options.tars:
        chosen = read_current_summary(store, options.snapshot)
        shards = [s for s in chosen["shards"] if options.split in (None, s["split"])]
        tars = [f"{store.uri}/{shard['name']}" for shard in shards]
        for tar in tars:
            print(tar)
        return Result(tars)
    if (options.split, options.snapshot) != (None, None):
        raise UsageError("--split and --snapshot choose tars; expected --tars with them")
    listed = list(listed_snapshots(store))
    # Each snapshot is compared with the next older readable snapshot.
    readable = [summary for _, summary in listed if not isinstance(summary, DamagedError)]
    before = iter([*readable[1:], {}])
    rows: list[dict[str, Any]] = []
    for number, summary in listed:
        if isinstance(summary, DamagedError):
            print(f"{number:>6}  damaged: {summary}")
            rows.append({NUMBER: number, "damaged": str(summary)})
            continue
        older = next(before)
        changes = list(_changes(older["recipe"], summary["recipe"])) if older else []
        counts = summary["counts"]
        facts = {
            NUMBER: number,
            CREATED_AT: summary[CREATED_AT],
            "generations": summary.get("decided_with", {}).get("generation", 1),
            "sources": counts["sources"],
            "clips": counts["clips"],
            "kept": counts["kept"],
            "kept_s": summary["kept_s"],
            "shards": len(summary["shards"]),
            "bytes": sum(shard["bytes"] for shard in summary["shards"]),
            "new_shards": len(_shards(summary) - _shards(older)),
            "recipe_changes": changes,
        }
        print(_line(facts))
        rows.append(facts)
    return Result(rows)


def _line(facts: Mapping[str, Any]) -> str:
    changes = f"  {', '.join(facts['recipe_changes'])}" if facts["recipe_changes"] else ""
    n = facts["generations"]
    of = f" of {n} generations" if n > 1 else ""
    return (
        f"{facts['snapshot']:>6}  {facts['created_at']}  {amount(facts['sources'], 'source')}{of}, "
        f"{facts['kept']} of {amount(facts['clips'], 'clip')} kept "
        f"({facts['kept_s'] / 3600:.2f} h), {amount(facts['shards'], 'tar')} "
        f"({facts['new_shards']} new, {facts['bytes'] / 1e9:.2f} GB in all)"
        f"{changes}"
    )


def _shards(summary: Mapping[str, Any]) -> set[str]:
    return {shard["name"] for shard in summary.get("shards", ())}


def _changes(before: object, now: object, key: str = "") -> Iterator[str]:
    """Yields the differences of two recipes, as `key: old -> new`."""
    if before == now:
        return
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in sorted({*before, *now}):
            below = f"{key}.{name}" if key else str(name)
            yield from _changes(before.get(name), now.get(name), below)
        return
    yield f"{key}: {json.dumps(before)} -> {json.dumps(now)}"


def _age(text: str) -> timedelta:
    number, unit = text[:-1], text[-1:]
    if not number.isdigit() or unit not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a whole number and d, h or w: 7d")
    return timedelta(**{_UNITS[unit]: int(number)})


@command(
    "remove old snapshots of OUT, and tars that only they name",
    OUT,
    option(
        "--keep N",
        "number of newest snapshots that stay (default: %(default)s)",
        positive,
        default=1,
    ),
    option(
        "--older-than AGE",
        "remove only snapshots older than this, such as 7d, 12h or 2w (default: any age)",
        _age,
    ),
    WOULD_REMOVE,
    description="Removes snapshots of OUT, and the objects that no other snapshot names: tars, "
    "tables, stored candidates. The newest snapshot always stays. So do a snapshot that a view "
    "names and all newer ones. A trainer or a reader that still uses a removed snapshot loses its "
    "files.",
)
def clean(options: argparse.Namespace) -> Result:
    from curator.runs.lease import acquire_lease
    from curator.storage import open_store
    from curator.tables.out_layout import OWN_FOLDERS, is_own
    from curator.tables.output_format import refuse_lost_commit
    from curator.tables.removal_records import finished_removals, read_removals
    from curator.tables.snapshot_store import clean as remove_old
    from curator.tables.snapshot_store import require_snapshots

    store = open_store(options.out)
    require_snapshots(store)
    # A removal needs what no snapshot names yet: the copy of its record, and new objects.
    read_removals(store).require_finished(store.uri)
    refuse_lost_commit(store)
    chosen = {"keep": options.keep, "older_than": options.older_than}
    if options.dry_run:
        cleaned = remove_old(store, **chosen, dry_run=True)
    else:
        with acquire_lease(store, "clean") as lease:
            finished_removals(store)
            cleaned = remove_old(store, **chosen, check=lease.check)
            store.clean_temporary(("", *OWN_FOLDERS), is_own)
    done = "would be removed" if options.dry_run else "removed"
    numbers = ", ".join(map(str, cleaned.removed)) or "none"
    print(
        f"snapshots {done}: {numbers}; objects: {cleaned.n_objects}, "
        f"{cleaned.n_bytes / 1e9:.3f} GB; kept: {', '.join(map(str, cleaned.kept))}"
    )
    if cleaned.for_views:
        print(
            f"kept because a view reads an older snapshot: {', '.join(cleaned.for_views)}; `curate "
            f"views {store.uri} --remove NAME` deletes a view, `--replace` makes it of the newest"
        )
    return Result({"dry_run": options.dry_run, **asdict(cleaned)})


@command(
    "take clips or whole sources out of OUT for good, in all snapshots",
    OUT,
    one_of(
        option(
            "--clips FILE",
            "text file with a clip id per line, or a beginning that no other clip has",
        ),
        option(
            "--sources FILE",
            "text file with the address or id of a source per line; removes everything made from "
            "their content, under any address",
        ),
        option(
            "--where CONDITION",
            'SQL condition over columns of the table `clips`, such as "source_uri LIKE '
            "'%%/private/%%'\"",
        ),
        option(
            "--finish",
            "finish an interrupted removal, and remove footage of earlier removals that came back",
        ),
        option(
            "--give-up-lost",
            "continue without records, and footage by which edited copies are recognised, that are "
            "lost with their copies: such footage may come back. If a removal is unfinished, also "
            "remove snapshots that it cannot rewrite, because a table, an index or a tar is lost",
        ),
        required=True,
    ),
    option(
        "--with-duplicates",
        "also remove clips that were rejected as duplicates of removed clips, and that later "
        "runs may keep",
    ),
    option(
        "--forget",
        "do not keep vectors and keypoints of the removed pictures under OUT/removed; later runs "
        "then cannot recognise re-encoded or cropped copies",
    ),
    WOULD_REMOVE,
    description="Removes footage from all snapshots of OUT: rewrites the tars that hold the "
    "footage, and deletes its rows, embeddings, captions, thumbnails and stored answers. A record "
    "of hashes under OUT/removed keeps the footage out of later runs. Source files stay.",
    epilog="`curate verify --removed OUT` proves the removal. No run or trainer may use OUT during "
    "a removal. `curate remove OUT --finish` finishes an interrupted removal.",
)
def remove(options: argparse.Namespace) -> Result:
    from curator.runs.lease import acquire_lease
    from curator.runs.repair import with_repair
    from curator.storage import open_store
    from curator.tables.out_layout import has_results
    from curator.tables.output_format import refuse_other_format
    from curator.tables.removal_records import read_removals
    from curator.tools.removal.removing import STATE, delete_returned, finish_removal, repair_before

    if options.clips is not None or options.sources is not None:
        _named(options)
    store = open_store(options.out)
    # Before the lease, which would be written to whatever place was named.
    if not has_results(store):
        raise UsageError(
            f"{store.uri} has no results of a run; `curate run SOURCE... OUT` makes some"
        )
    refuse_other_format(store)
    if options.give_up_lost:
        return _give_up(options, store)
    if options.finish:
        removals = read_removals(store)
        if not removals or options.dry_run:
            print(
                f"records of removals: {removals.n_records}; unfinished: "
                f"{', '.join(removals.unfinished) or 'none'}"
            )
            return Result({"records": removals.n_records, "unfinished": [*removals.unfinished]})
    elif options.dry_run:
        return Result({"dry_run": True, **_selected_facts(_plan(options, store))})
    with ends_when_asked(), acquire_lease(store, "remove") as lease:

        def finish() -> "Removed":
            with terminal_line() as shown:
                return finish_removal(
                    store, lambda step: shown(f"removing: {step}"), check=lease.check
                )

        repair_before(store, lease.check)
        selected: dict[str, Any] = {}
        if not options.finish:
            begun = with_repair(store, lambda: _begin(options, store), STATE, check=lease.check)
            selected = _selected_facts(begun)
        removed = with_repair(store, finish, STATE, check=lease.check)
        if options.finish:
            if with_repair(store, lambda: _begin_returned(store), STATE, check=lease.check):
                removed = with_repair(store, finish, STATE, check=lease.check)
            if deleted := delete_returned(store):
                print(
                    f"stored results with removed footage: {len(deleted)} deleted, such as "
                    f"{deleted[0]}"
                )
    print(
        f"removed: {amount(removed.n_shards, 'tar')} written again or gone; deleted: "
        f"{amount(removed.n_replies, 'stored answer')} and "
        f"{amount(removed.n_deleted, 'other object')}; `curate verify --removed {store.uri}` "
        "proves it"
    )
    return Result({"dry_run": False, **selected, **asdict(removed)})


def _give_up(options: argparse.Namespace, store: "Store") -> Result:
    from curator.runs.lease import acquire_lease
    from curator.tools.removal.removing import (
        finish_removal,
        give_up_lost,
        give_up_snapshots,
        lost_of_removals,
        unreadable_snapshots,
    )

    lost = lost_of_removals(store)
    for name, why in lost.items():
        print(f"{store.uri}/{name} {why}, and has no whole copy")
    numbers = unreadable_snapshots(store, repairs=False)
    if numbers:
        print(f"snapshots that the unfinished removal cannot rewrite, and older ones: {numbers}")
    if not lost and not numbers:
        print("no record or footage of a removal is lost")
    elif not options.dry_run:
        with ends_when_asked(), acquire_lease(store, "remove") as lease:
            if lost:
                print(f"record: {store.uri}/{give_up_lost(store)}")
            if numbers and (numbers := unreadable_snapshots(store, lease.check)):
                print(f"snapshots removed: {', '.join(map(str, numbers))}")
                give_up_snapshots(store, numbers, lease.check)
            finish_removal(store, check=lease.check)
        if lost:
            print("the footage of these records may come back: then remove it again")
    return Result({"dry_run": options.dry_run, "lost": dict(lost), "snapshots": list(numbers)})


def _plan(options: argparse.Namespace, store: "Store") -> "RemovalSelection":
    from curator.tools.removal.removing import plan_removal

    by, named = _named(options)
    selected = plan_removal(store, by, named, with_duplicates=options.with_duplicates)
    print(*_selected_lines(selected, would=options.dry_run), sep="\n")
    return selected


def _selected_facts(selected: "RemovalSelection") -> dict[str, Any]:
    return {
        "clips": len(selected.clip_ids),
        "seconds": selected.seconds,
        "sources": selected.record["n_sources"],
        "clip_ids": sorted(selected.record["clip_ids"]),
        "tars": sorted(selected.shards),
        "overlapping": selected.n_overlapping,
        "same": selected.n_same,
        "duplicates": [duplicate.clip_id for duplicate in selected.duplicates],
    }


def _begin(options: argparse.Namespace, store: "Store") -> "RemovalSelection":
    from curator.tools.removal.removing import begin_removal

    selected = _plan(options, store)
    record = selected.record
    if not record["clip_ids"] and not record["uris"] and not record["sources"]:
        raise UsageError("nothing matches; nothing was removed")
    print(f"record: {store.uri}/{begin_removal(store, selected, forgets=options.forget)}")
    return selected


def _begin_returned(store: "Store") -> bool:
    """Begins the removal of footage that came back; returns whether there is any."""
    from curator.tools.removal.removing import begin_removal, plan_removal

    selected = plan_removal(store, "returned", ())
    if not selected.record["clip_ids"]:
        return False
    print(*_selected_lines(selected, would=False), sep="\n")
    print(f"record: {store.uri}/{begin_removal(store, selected)}")
    return True


def _named(options: argparse.Namespace) -> "tuple[By, list[str]]":
    """Returns what is named, and how."""
    if options.where is not None:
        return "where", [options.where]
    if options.clips is not None:
        return "clips", _clip_ids(options.clips)
    return "sources", list(_lines(options.sources))


def _clip_ids(path: str) -> list[str]:
    """Returns the ids of a file with an id, or a beginning, per line."""
    lines = _lines(path)
    for name, number in lines.items():
        if _CLIP_ID.fullmatch(name) is None:
            raise UsageError(
                f"{path}, line {number}: {plain(name)[:80]!r} is no clip id; expected "
                f"{LEAST_DIGITS} to 24 of the digits 0 to 9 and a to f: an id, or a beginning that "
                "no other clip has. Nothing was removed"
            )
    return list(lines)


def _lines(path: str) -> dict[str, int]:
    """Returns the lines of a text file that are not empty, each once, and where each first is.

    A byte order mark is skipped, and so are lines that begin with `# `, as in manifests.
    """
    expected = "expected a text file in UTF-8 with a name per line"
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}; {expected}") from error
    if "\0" in text:
        raise UsageError(f"{path} has NUL characters, as UTF-16 has; {expected}")
    lines: dict[str, int] = {}
    # Not `splitlines`, which also splits at characters that names may have.
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        if (name := line.strip()) and not line.startswith("# "):
            lines.setdefault(name, number)
    if not lines:
        raise UsageError(f"{path} has no names; {expected}")
    return lines


def _selected_lines(selected: "RemovalSelection", *, would: bool) -> Iterator[str]:
    record = selected.record
    yield (
        f"{'would be removed' if would else 'to remove'}: {amount(len(selected.clip_ids), 'clip')} "
        f"in the shards, {selected.seconds / 3600:.3f} h; "
        f"{amount(record['n_sources'], 'whole source')}; {amount(len(record['clip_ids']), 'clip')} "
        "with those that were not kept or that other recipes made; tars to write again: "
        f"{len(selected.shards)}"
    )
    if n := selected.n_overlapping:
        yield f"  {n} of them were not named, and share more than a frame with one that was"
    if n := selected.n_same:
        yield f"  {n} of them are in other files, with the same frames or the same MP4"
    if selected.example is not None:
        yield f"  such as {selected.example}"
    if n := selected.n_unhashed:
        yield (
            f"  no frames are stored of {n} of their sources: copies in another container will be "
            "recognised by their MP4s alone"
        )
    if selected.duplicates:
        yield (
            f"  rejected as duplicates of them, with rows that stay: "
            f"{amount(len(selected.duplicates), 'clip')}; --with-duplicates takes them too; after "
            "--forget later runs may keep them"
        )
    for duplicate in selected.duplicates:
        yield f"    {duplicate.clip_id} of {duplicate.source_uri}"
