"""`curate remove`: takes footage out of OUT for good."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from curator.commands.arguments import EXIT_OK
from curator.commands.terminal_line import TerminalLine
from curator.executor.termination import ends_when_asked

if TYPE_CHECKING:
    from curator.removal.removal_selection import By, RemovalSelection
    from curator.removal.removing import Removed
    from curator.storage import Store

HELP = "take clips or whole sources out of OUT for good, in all snapshots"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Takes footage out of all snapshots of OUT: tars that hold it are written again without "
        "it, and its rows, embeddings, captions, thumbnails and stored answers go. A record of "
        "hashes under OUT/removed keeps later runs from bringing it back. Sources themselves are "
        "not touched."
    )
    parser.epilog = (
        "`curate verify --removed OUT` proves it. No run or trainer may use OUT meanwhile. A "
        "removal that was broken off is finished by `curate remove OUT --finish`."
    )
    parser.add_argument("out", metavar="OUT", help="folder or s3://bucket/prefix of a run")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--clips", metavar="FILE", help="text file with a clip id per line")
    what.add_argument(
        "--sources",
        metavar="FILE",
        help="text file with the address or id of a source per line; all that was made of their "
        "content goes, under any address",
    )
    what.add_argument(
        "--where",
        metavar="CONDITION",
        help="SQL condition over columns of the table `clips`, such as "
        "\"source_uri LIKE '%%/private/%%'\"",
    )
    what.add_argument(
        "--finish",
        action="store_true",
        help="finish a removal that was broken off, and take out again whatever is there of "
        "earlier ones",
    )
    what.add_argument(
        "--give-up-lost",
        action="store_true",
        help="go on without records that are lost with their copies; what they named may come back",
    )
    parser.add_argument(
        "--with-duplicates",
        action="store_true",
        help="also take clips that were rejected as duplicates of removed ones: later runs may "
        "keep them",
    )
    parser.add_argument(
        "--forget",
        action="store_true",
        help="keep nothing by which re-encoded or cropped copies are known: else vectors and "
        "keypoints of its pictures stay under OUT/removed, and later runs reject such copies",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be removed; removes nothing"
    )


def main(options: argparse.Namespace) -> int:
    from curator.errors import UsageError
    from curator.removal.removing import STATE, finish_removal, repair_before
    from curator.runs.lease import held
    from curator.runs.state_repair import with_repair
    from curator.storage import open_store
    from curator.tables.out_layout import has_results
    from curator.tables.removal_records import read_removals

    store = open_store(options.out)
    # Before the lease, which would be written to whatever place was named.
    if not has_results(store):
        raise UsageError(
            f"{store.uri} has no results of a run; `curate run SOURCE... OUT` makes some"
        )
    if options.give_up_lost:
        return _give_up(options, store)
    if options.finish:
        removals = read_removals(store)
        if not removals or options.dry_run:
            print(
                f"records of removals: {removals.n_records}; unfinished: "
                f"{', '.join(removals.unfinished) or 'none'}"
            )
            return EXIT_OK
    elif options.dry_run:
        _plan(options, store)
        return EXIT_OK
    with ends_when_asked(), held(store, "remove") as lease:

        def finish() -> "Removed":
            with TerminalLine(quiet=False) as shown:
                return finish_removal(
                    store, lambda step: shown(f"removing: {step}"), check=lease.check
                )

        repair_before(store, lease.check)
        if not options.finish:
            with_repair(store, lambda: _begin(options, store), STATE, check=lease.check)
        removed = with_repair(store, finish, STATE, check=lease.check)
        if options.finish:
            if with_repair(store, lambda: _begin_returned(store), STATE, check=lease.check):
                removed = with_repair(store, finish, STATE, check=lease.check)
            _delete_returned(store)
    print(
        f"removed: {removed.n_shards} tars written again or gone, {removed.n_replies} stored "
        f"replies and {removed.n_deleted} other objects deleted; `curate verify --removed "
        f"{store.uri}` proves it"
    )
    return EXIT_OK


def _give_up(options: argparse.Namespace, store: "Store") -> int:
    from curator.removal.removing import finish_removal, give_up_lost
    from curator.runs.lease import held
    from curator.tables.removal_records import RecordChain

    lost = RecordChain.read(store).lost
    for name, why in lost.items():
        print(f"{store.uri}/{name} {why}, and has no whole copy")
    if not lost:
        print("no record of a removal is lost")
    elif not options.dry_run:
        with ends_when_asked(), held(store, "remove") as lease:
            print(f"record: {store.uri}/{give_up_lost(store)}")
            finish_removal(store, check=lease.check)
        print("what they named may come back: remove it again if it does")
    return EXIT_OK


def _plan(options: argparse.Namespace, store: "Store") -> "RemovalSelection":
    from curator.removal.removing import plan_removal

    by, named = _named(options)
    selected = plan_removal(store, by, named, with_duplicates=options.with_duplicates)
    print(_text(selected, would=options.dry_run))
    return selected


def _begin(options: argparse.Namespace, store: "Store") -> None:
    from curator.errors import UsageError
    from curator.removal.removing import begin_removal

    selected = _plan(options, store)
    record = selected.record
    if not record["clip_ids"] and not record["uris"] and not record["sources"]:
        raise UsageError("nothing matches; nothing was removed")
    print(f"record: {store.uri}/{begin_removal(store, selected, forgets=options.forget)}")


def _begin_returned(store: "Store") -> bool:
    """Begins the removal of footage that came back; returns whether there is any."""
    from curator.removal.removing import begin_removal, plan_removal

    selected = plan_removal(store, "returned", ())
    if not selected.record["clip_ids"]:
        return False
    print(_text(selected, would=False))
    print(f"record: {store.uri}/{begin_removal(store, selected)}")
    return True


def _delete_returned(store: "Store") -> None:
    from curator.removal.removing import delete_returned

    deleted = delete_returned(store)
    if deleted:
        print(f"stored results with removed footage: {len(deleted)} deleted, such as {deleted[0]}")


def _named(options: argparse.Namespace) -> "tuple[By, list[str]]":
    """Returns what is named, and how."""
    if options.where is not None:
        return "where", [options.where]
    if options.clips is not None:
        return "clips", _lines(options.clips)
    return "sources", _lines(options.sources)


def _lines(path: str) -> list[str]:
    """Returns the lines of a text file that are not empty, each once."""
    from curator.errors import UsageError

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}; expected a text file with a name per line") from error
    lines = list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    if not lines:
        raise UsageError(f"{path} is empty; expected a name per line")
    return lines


def _text(selected: "RemovalSelection", *, would: bool) -> str:
    record = selected.record
    verb = "would be removed" if would else "to remove"
    lines = [
        f"{verb}: {len(selected.clip_ids)} clips in the shards, {selected.seconds / 3600:.3f} h; "
        f"{record['n_sources']} whole sources; {len(record['clip_ids'])} clips with those that "
        f"were not kept or that other recipes made; tars to write again: {len(selected.shards)}"
    ]
    if selected.n_overlapping:
        lines.append(
            f"  {selected.n_overlapping} of them were not named, and share more than a frame with "
            "one that was"
        )
    if selected.n_same:
        lines.append(
            f"  {selected.n_same} of them are in other files, with the same frames or the same MP4"
        )
    if selected.example is not None:
        lines.append(f"  such as {selected.example}")
    if selected.n_unhashed:
        lines.append(
            f"  no frames are stored of {selected.n_unhashed} of their sources: copies in another "
            "container will be recognised by their MP4s alone"
        )
    if selected.duplicates:
        lines.append(
            f"  {len(selected.duplicates)} clips were rejected as duplicates of them, and their "
            "rows stay: --with-duplicates takes them too; after --forget later runs may keep them"
        )
        lines += [
            f"    {duplicate.clip_id} of {duplicate.source_uri}"
            for duplicate in selected.duplicates
        ]
    return "\n".join(lines)
