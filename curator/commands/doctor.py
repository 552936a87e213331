"""`curate doctor`: says what works here, and whether a recipe can run."""

import argparse

from curator.doctor.checks import examine
from curator.doctor.diagnosis_text import as_json, print_diagnosis

EXIT_CANNOT_RUN = 2
"""As for `curate run`, which would end before it does anything."""


def run_doctor(options: argparse.Namespace) -> int:
    """Runs the command.

    Args:
        options: `places`, `recipe`, `overrides`, `models`, `json`.

    Returns:
        0 if the recipe can run here, else `EXIT_CANNOT_RUN`.
    """
    *sources, out = options.places or [None]
    diagnosis = examine(
        sources,
        out,
        recipe=options.recipe,
        overrides=options.overrides,
        models=options.models,
    )
    if options.json:
        print(as_json(diagnosis))
    else:
        print_diagnosis(diagnosis)
    return 0 if diagnosis.can_run else EXIT_CANNOT_RUN
