"""`curate recipes`: lists the recipes, or prints one with the meaning of each key."""

import argparse

from curator.commands.arguments import EXIT_OK, add_overrides

HELP = "list the recipes, or print one with the meaning of each key"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="recipe to print, resolved")
    add_overrides(parser)


def main(options: argparse.Namespace) -> int:
    from curator.recipe import describe, load_recipe, recipe_names

    if options.name is None:
        for name in recipe_names():
            print(f"{name}: {load_recipe(name).about.strip()}")
        return EXIT_OK
    for key, value, unit, why in describe(load_recipe(options.name, options.overrides)):
        print(f"{key} = {value}" + (f"  [{unit}]" if unit else ""))
        if why:
            print(f"    {why}")
    return EXIT_OK
