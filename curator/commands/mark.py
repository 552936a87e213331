"""`curate mark`: keeps or drops clips by hand, and describes them."""

import argparse

from curator.commands.arguments import EXIT_OK
from curator.errors import UsageError

HELP = "keep or drop clips by hand, and give them labels, notes and captions"
_VERDICTS = {
    "keep": "keep clips, whatever rules on scores, duplicates, clusters and selection say",
    "drop": "reject clips as marked_drop",
}
_TEXTS = {"label": "at most 100 characters", "note": "at most 10,000 characters",
          "caption": "replaces the caption"}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Stores what you decide about clips of a finished run. The next `curate run` honours it "
        "(run.marks: override). What is not named of an earlier mark stays."
    )
    parser.add_argument("out", metavar="OUT", help="folder or s3://bucket/prefix of a run")
    parser.add_argument(
        "clips", nargs="*", metavar="CLIP_ID", help="ids, or beginnings that no other clip has"
    )
    verdict = parser.add_mutually_exclusive_group()
    for name, words in _VERDICTS.items():
        verdict.add_argument(
            f"--{name}", action="store_const", const=name, dest="verdict", help=words
        )
    for name, words in _TEXTS.items():
        parser.add_argument(f"--{name}", metavar="TEXT", help=words)
    parser.add_argument("--clear", action="store_true", help="forget earlier marks of the clips")
    parser.add_argument(
        "--csv",
        metavar="FILE",
        help="take marks from a CSV with the columns clip_id, verdict, label, note, caption; an "
        "empty cell changes nothing",
    )
    parser.add_argument("--list", action="store_true", help="print all marks as such a CSV")


def main(options: argparse.Namespace) -> int:
    from curator.number_text import amount
    from curator.review.clip_marking import CONTENT, mark_clips, marks_csv, read_csv
    from curator.storage import open_store
    from curator.tables.mark_table import read_marks

    store = open_store(options.out)
    fields = {n: getattr(options, n) for n in CONTENT if options.clear or getattr(options, n)}
    if bool(options.clips) != bool(fields) or not (options.clips or options.csv or options.list):
        raise UsageError("expected clips and what to mark them with; or --csv, or --list")
    of_file = read_csv(options.csv) if options.csv else []
    changes = [*((name, fields) for name in options.clips), *of_file]
    if changes:
        n_clips = mark_clips(store, changes)
        if not options.list:
            done = "marks cleared of" if options.clear else "marked"
            print(f"{done} {amount(n_clips, 'clip')}; the next `curate run` honours that")
    if options.list:
        print(marks_csv(read_marks(store).values()), end="")
    return EXIT_OK
