"""`curate doctor`: reports the state of this machine, and whether a recipe can run."""

import argparse

from curator.commands.arguments import EXIT_OK, EXIT_USAGE, add_overrides

HELP = "check what works on this machine, and say what to do about the rest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Checks the machine, packages, GPU, models, storage and the recipe, and says what to do "
        "about what does not work. Changes nothing: what is written to try OUT is removed again."
    )
    parser.epilog = (
        "Exit codes: 0 the recipe can run here; 2 something that it needs is missing or broken."
    )
    parser.add_argument(
        "places",
        nargs="*",
        metavar="PLACE",
        help="SOURCE... OUT as for `curate run`; the last one is OUT, and may stand alone "
        "(default: no storage is looked at)",
    )
    parser.add_argument(
        "--recipe", default="quickstart", help="the recipe that is to run (default: %(default)s)"
    )
    add_overrides(parser)
    parser.add_argument(
        "--models",
        metavar="PLACE",
        help="models folder, or s3://bucket/prefix (default: the recipe's)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")


def main(options: argparse.Namespace) -> int:
    """Returns 0 if the recipe can run here, else the exit code of `curate run`."""
    from curator.doctor.checks import as_json, examine, print_diagnosis

    *sources, out = options.places or [None]
    diagnosis = examine(
        sources, out, recipe=options.recipe, overrides=options.overrides, models=options.models
    )
    if options.json:
        print(as_json(diagnosis))
    else:
        print_diagnosis(diagnosis)
    return EXIT_OK if diagnosis.can_run else EXIT_USAGE
