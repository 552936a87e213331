"""`curate graph`: prints the stages of a recipe."""

import argparse

from curator.commands.arguments import EXIT_OK, add_overrides
from curator.errors import ModelError, UsageError

HELP = (
    "print the stages of a recipe: scope, resources, tables, fingerprints, and what they wait for"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Prints the graph that `curate run` follows with a recipe. Nothing is read or written but "
        "the recipe."
    )
    parser.add_argument(
        "recipe", nargs="?", default="quickstart", metavar="RECIPE",
        help="name from `curate recipes`, or a YAML file (default: %(default)s)",
    )  # fmt: skip
    add_overrides(parser)
    parser.add_argument(
        "--format", choices=("text", "mermaid"), default="text",
        help="tables for people, or a Mermaid diagram (default: %(default)s)",
    )  # fmt: skip


def main(options: argparse.Namespace) -> int:
    from curator.pipeline import graph_of
    from curator.recipe import load_recipe

    try:
        graph = graph_of(load_recipe(options.recipe, options.overrides))
    except ModelError as error:
        raise UsageError(str(error)) from error
    print(graph.mermaid() if options.format == "mermaid" else graph.text())
    return EXIT_OK
