"""`curate explain`: explains why a clip was kept or rejected."""

import argparse

from curator.commands.arguments import EXIT_OK, Commands


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    explain = commands.add_parser(
        "explain", help="say why a clip was kept or rejected, and what would have kept it"
    )
    explain.add_argument("out", metavar="OUT", help="folder or s3://bucket/prefix of a run")
    explain.add_argument(
        "clip", metavar="CLIP_ID", help="its id, or a beginning that no other clip has"
    )
    explain.set_defaults(action=run_explain)


def run_explain(options: argparse.Namespace) -> int:
    """Runs the command."""
    from curator.review.clip_explanation import explain
    from curator.review.finished_run import open_finished

    print(explain(open_finished(options.out), options.clip))
    return EXIT_OK
