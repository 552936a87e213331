"""`curate explain`: lists clips, or explains why one was kept or rejected."""

import argparse

from curator.commands.arguments import EXIT_OK, add_snapshot

HELP = "say why a clip was kept or rejected, and what would have kept it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="folder or s3://bucket/prefix of a run")
    parser.add_argument(
        "clip",
        nargs="?",
        metavar="CLIP_ID",
        help="its id, or a beginning that no other clip has (default: lists the first clips)",
    )
    add_snapshot(parser)


def main(options: argparse.Namespace) -> int:
    from curator.review.clip_explanation import explain, listing
    from curator.review.finished_run import open_finished

    finished = open_finished(options.out, options.snapshot)
    print(listing(finished) if options.clip is None else explain(finished, options.clip))
    return EXIT_OK
