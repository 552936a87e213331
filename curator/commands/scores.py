"""`curate scores`: explains each score of a clip."""

import argparse

from curator.commands.arguments import EXIT_OK

HELP = "say what each score of a clip is"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="SCORE", help="one of them (default: all)")
    parser.add_argument(
        "--recipe", metavar="NAME|FILE", help="with the scores of the measures that it names"
    )
    parser.add_argument("--markdown", action="store_true", help="all, as a table")


def main(options: argparse.Namespace) -> int:
    from curator.measures.score_list import BUILT_IN

    measures = BUILT_IN
    if options.recipe is not None:
        from curator.recipe import load_recipe, measures_of

        measures = measures_of(load_recipe(options.recipe))
    if options.markdown:
        print(measures.markdown(), end="")
    else:
        print(*measures.text(options.name), sep="\n")
    return EXIT_OK
