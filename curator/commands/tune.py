"""`curate tune`: shows which clips other bounds would keep and drop."""

import argparse
import shlex

from curator.commands.arguments import EXIT_OK, add_memory, add_snapshot

HELP = "say what other bounds would keep and drop"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Decides anew about the clips of a finished run, from what is stored. Nothing is decoded "
        "and the run is not changed; writes a page with clips on either side."
    )
    parser.add_argument("out", metavar="OUT", help="folder or s3://bucket/prefix of a run")
    parser.add_argument(
        "changes",
        nargs="+",
        metavar="CHANGE",
        help="score.bound=value, such as motion.min=0.02, sharpness.drop_lowest=0.2 or "
        "noise.max=null; keys of dedup and select in full, such as select.max_per_group=100, and "
        "semantic.reject and semantic.reject_from",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="where the page goes (default: OUT/report/tune.html, or tune.html here if OUT is s3://)",
    )
    add_snapshot(parser)
    parser.add_argument(
        "--rules-only",
        action="store_true",
        help="leave duplicates and selection as they are: faster with many clips, and approximate",
    )
    add_memory(parser)


def main(options: argparse.Namespace) -> int:
    from curator.review.bound_tuning import summary_lines, tune
    from curator.review.finished_run import open_finished
    from curator.review.tune_page import put_page, render_tune

    finished = open_finished(options.out, options.snapshot, memory_bytes=options.memory)
    tuned = tune(finished, options.changes, rules_only=options.rules_only)
    page = render_tune(tuned).encode()
    where = put_page(finished.store, page, options.html, "tune.html")
    settings = " ".join(f"--set {shlex.quote(change)}" for change in tuned.changes)
    print(*summary_lines(tuned), sep="\n")
    print(f"{where}  clips on either side, to look at")
    print(f"to have it so: curate run SOURCE... {shlex.quote(options.out)} {settings}")
    return EXIT_OK
