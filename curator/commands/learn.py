"""`curate learn`: learns the score `suitability` from marks by hand."""

import argparse
import shlex
import sys

from curator.commands.arguments import EXIT_FAILED, EXIT_OK, add_memory, fraction

HELP = "learn a score from clips that you marked keep and drop"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Learns from 50 to 500 marks (`curate mark`) how likely a clip is one that you keep, out "
        "of stored scores and vectors, and writes the model to OUT/learned/suitability.json. "
        "Refuses with exit code 3, and writes nothing, where that is no better than the best "
        "single score."
    )
    parser.add_argument("out", metavar="OUT", help="folder or s3://bucket/prefix of a run")
    parser.add_argument("--label", help="only marks with this label (default: all)")
    parser.add_argument(
        "--min",
        type=fraction,
        default=0.5,
        metavar="BOUND",
        help="bound of suitability whose effect the page shows (default: 0.5)",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="where the page goes (default: OUT/report/learn.html, or learn.html here if OUT is "
        "s3://)",
    )
    parser.add_argument("--dry-run", action="store_true", help="write neither model nor page")
    add_memory(parser)


def main(options: argparse.Namespace) -> int:
    from curator.review.finished_run import open_finished
    from curator.review.score_learning import LEAST_LIKELY
    from curator.review.suitability import learn_suitability, tuned_by
    from curator.review.tune_page import put_page, render_tune
    from curator.tables.out_layout import LEARNED_MODEL

    finished = open_finished(options.out, memory_bytes=options.memory)
    score, learned, lines = learn_suitability(finished, options.label)
    print(*lines, sep="\n")
    if learned.likely < LEAST_LIKELY:
        print(
            "curate: nothing is written: that is not surely better than one score; mark more "
            f"clips, of other recordings, or bound {learned.single}",
            file=sys.stderr,
        )
        return EXIT_FAILED
    if options.dry_run:
        return EXIT_OK
    tuned = tuned_by(finished, score, options.min)
    finished.store.write(LEARNED_MODEL, score.to_json())
    page = render_tune(tuned, lines).encode()
    where = put_page(finished.store, page, options.html, "learn.html")
    model = f"suitability.model={finished.store.uri}/{LEARNED_MODEL}"
    print(f"{where}  what the bound {options.min:g} would change")
    settings = " ".join(f"--set {shlex.quote(change)}" for change in (model, *tuned.changes))
    print(f"to have it so: curate run SOURCE... {shlex.quote(options.out)} {settings}")
    return EXIT_OK
