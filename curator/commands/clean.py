"""`curate clean`: removes old snapshots of OUT, and what only they name."""

import argparse
from datetime import timedelta

from curator.commands.arguments import EXIT_OK, positive

HELP = "remove old snapshots of OUT, and the tars and tables that only they name"
UNITS = {"d": "days", "h": "hours", "w": "weeks"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Removes snapshots of OUT, and the objects that no other snapshot names: tars, tables, "
        "stored candidates. The newest snapshot always stays. A trainer or a reader that still "
        "uses a removed one loses its files."
    )
    parser.add_argument("out", metavar="OUT", help="folder or s3://bucket/prefix of a run")
    parser.add_argument(
        "--keep",
        type=positive,
        default=1,
        metavar="N",
        help="the newest snapshots that stay (default: %(default)s)",
    )
    parser.add_argument(
        "--older-than",
        type=_age,
        metavar="AGE",
        help="remove only snapshots older than this, such as 7d, 12h or 2w (default: any age)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be removed; removes nothing"
    )


def _age(text: str) -> timedelta:
    number, unit = text[:-1], text[-1:]
    if not number.isdigit() or unit not in UNITS:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a whole number and d, h or w: 7d")
    return timedelta(**{UNITS[unit]: int(number)})


def main(options: argparse.Namespace) -> int:
    from curator.runs.lease import held
    from curator.storage import open_store
    from curator.tables.out_layout import OWN_FOLDERS, is_own
    from curator.tables.removal_records import read_removals
    from curator.tables.snapshot_store import clean, require_snapshots

    store = open_store(options.out)
    # Before the lease, which would be written to whatever place was named.
    require_snapshots(store)
    chosen = {"keep": options.keep, "older_than": options.older_than}
    if options.dry_run:
        cleaned = clean(store, **chosen, dry_run=True)
    else:
        with held(store, "clean") as lease:
            read_removals(store, repair=True)
            cleaned = clean(store, **chosen, check=lease.check)
            store.clean_temporary(("", *OWN_FOLDERS), is_own)
    done = "would be removed" if options.dry_run else "removed"
    numbers = ", ".join(map(str, cleaned.removed)) or "none"
    print(
        f"snapshots {done}: {numbers}; objects: {cleaned.n_objects}, "
        f"{cleaned.n_bytes / 1e9:.3f} GB; kept: {', '.join(map(str, cleaned.kept))}"
    )
    return EXIT_OK
