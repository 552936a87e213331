"""`curate search`: finds clips by a clip, a picture, a video or a text."""

import argparse
from pathlib import Path

from curator.commands.arguments import EXIT_OK, add_memory, add_snapshot, positive

HELP = "find clips by a clip, a picture, a video or a text"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Finds clips of a finished run by their vectors, the nearest first. OUT is not changed."
    )
    parser.add_argument("out", metavar="OUT", help="folder or s3://bucket/prefix of a run")
    query = parser.add_mutually_exclusive_group(required=True)
    query.add_argument(
        "--clip",
        metavar="ID",
        help="clips that show the like of a clip: its id, or a beginning that no other clip has",
    )
    query.add_argument("--picture", metavar="FILE", help="clips with pictures near an image file")
    query.add_argument(
        "--video",
        metavar="FILE",
        help="clips that show footage of a video, verified, and where; then clips with pictures "
        "near it; a file, or an address such as s3://bucket/key",
    )
    query.add_argument(
        "--text", metavar="TEXT", help="clips that a text describes; needs CLIP (analyze.clip)"
    )
    parser.add_argument(
        "-k", type=positive, default=20, metavar="N", help="most clips (default: 20)"
    )
    parser.add_argument(
        "--where",
        metavar="CONDITION",
        help='only clips for which a SQL condition over columns of `clips` holds, such as "motion '
        '> 0.3"',
    )
    parser.add_argument("--all", action="store_true", help="find rejected clips too")
    parser.add_argument(
        "--html", metavar="FILE", help="write a page that plays the clips that were found"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    add_snapshot(parser)
    add_memory(parser)


def main(options: argparse.Namespace) -> int:
    from curator.errors import UsageError
    from curator.retrieval.clip_search import ClipSearch
    from curator.retrieval.search_results import as_json, as_table, render_search

    clips = ClipSearch.open(
        options.out, options.snapshot, rejected=options.all, memory_bytes=options.memory
    )
    by = next(name for name in ClipSearch.BY if getattr(options, name) is not None)
    results = clips.find(by, getattr(options, by), options.k, options.where)
    print(as_json(results) if options.json else as_table(results, by))
    if options.html is not None:
        where = Path(options.html).absolute()
        page = render_search(clips.finished, results, f"{by} {getattr(options, by)}", options.where)
        try:
            where.write_bytes(page.encode())
        except OSError as error:
            raise UsageError(f"{str(where)!r} cannot be written: {error.strerror}") from error
        if not options.json:
            print(f"{where}  the clips, to play")
    return EXIT_OK
