"""`curate scores`: explains each score of a clip."""

import argparse

from curator.commands.arguments import EXIT_OK, Commands


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    scores = commands.add_parser("scores", help="say what each score of a clip is")
    scores.add_argument("name", nargs="?", metavar="SCORE", help="one of them (default: all)")
    scores.add_argument(
        "--recipe", metavar="NAME|FILE", help="with the scores of the measures that it names"
    )
    scores.add_argument("--markdown", action="store_true", help="all, as a table")
    scores.set_defaults(action=run_scores)


def run_scores(options: argparse.Namespace) -> int:
    """Runs the command."""
    from curator.measures.documentation import markdown, text

    if options.recipe is not None:
        from curator.recipe import load_recipe

        load_recipe(options.recipe)
    if options.markdown:
        print(markdown(), end="")
    else:
        print(*text(options.name), sep="\n")
    return EXIT_OK
