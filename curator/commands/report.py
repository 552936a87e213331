"""`curate report`: writes the report of a finished run again, with moving previews."""

import argparse

from curator.commands.arguments import EXIT_OK

HELP = "write the report of OUT again, with moving previews of the kept clips"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Writes OUT/report/index.html of the newest snapshot again, and next to it a short MP4 of "
        "each kept clip that the page shows: it plays while the pointer rests on it. A later run "
        "writes the page with stills again."
    )
    parser.add_argument("out", metavar="OUT", help="folder or s3://bucket/prefix of a run")


def main(options: argparse.Namespace) -> int:
    from curator.executor.engine import Engine
    from curator.review.clip_previews import write_report
    from curator.review.finished_run import open_finished
    from curator.runs.lease import held
    from curator.tables.removal_records import finished_removals

    # Before the lease, which would be written to whatever place was named.
    store = open_finished(options.out).store
    with held(store, "report"), Engine(address=None, workers=1) as engine:
        finished_removals(store)
        n_previews = write_report(open_finished(options.out), engine)
    print(f"{store.uri}/report/index.html  {n_previews} clips play")
    return EXIT_OK
