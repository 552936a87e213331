"""All checks, each after those that it depends on, and their outcome as text."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TextIO

from curator.doctor.diagnosis import CheckRow, Group, Needs, State
from curator.doctor.gpu import gpu_rows
from curator.doctor.machine_check import machine_rows
from curator.doctor.packages import ASKED, are_sound, package_rows
from curator.doctor.probe_process import ask_all
from curator.storage.object_service import scheme_of

_MOST_WIDTH = 44
"""Of names: longer ones would leave no room for the finding."""
_GREEN, _YELLOW, _RED, _DIM, _CYAN, _BOLD = "32", "33", "1;31", "2", "36", "1"
_COLOURS = {State.OK: _GREEN, State.NOT_NEEDED: _DIM}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The outcome of all checks."""

    recipe: str
    rows: tuple[CheckRow, ...]
    """In the order of `Group`."""

    @property
    def can_run(self) -> bool:
        """Whether nothing that the recipe needs is missing or broken."""
        return not any(row.stops for row in self.rows)


def examine(
    sources: Sequence[str] = (),
    out: str | None = None,
    *,
    recipe: str,
    overrides: Sequence[str] = (),
    models: str | None = None,
) -> Diagnosis:
    """Checks everything; writes nothing that stays.

    `sources`, `out` and `recipe` are those of `curate run`, where given; `models` replaces the
    recipe's place of weights.
    """
    answers = ask_all(ASKED)
    if are_sound(answers):
        needs, rows = _with_recipe(sources, out, recipe, overrides, models)
    else:
        # A broken package may crash the process that imports it.
        needs = Needs(s3=any(scheme_of(place) == "s3" for place in [*sources, out or ""]))
        finding = "recipe, models and storage were not checked: a package does not work"
        remedy = "see the rows of packages"
        rows = [Group.RECIPE.row(recipe, State.BROKEN, finding, remedy, needed=True)]
    rows += machine_rows(out)
    rows += package_rows(answers, needs)
    rows += gpu_rows(answers["faiss"], needed=needs.gpu)
    return Diagnosis(recipe=recipe, rows=tuple(sorted(rows, key=_order)))


def _order(row: CheckRow) -> int:
    return list(Group).index(row.group)


def _with_recipe(
    sources: Sequence[str],
    out: str | None,
    name: str,
    overrides: Sequence[str],
    models: str | None,
) -> tuple[Needs, list[CheckRow]]:
    from curator.doctor import recipe_check
    from curator.doctor.places import s3_rows, storage_rows

    recipe, row = recipe_check.read_recipe(name, overrides, models)
    places = [*sources, *([out] if out is not None else [])]
    needs = recipe_check.needs_of(recipe, places)
    rows = s3_rows() if needs.s3 else []
    s3_answers = not any(row.stops for row in rows)
    rows += storage_rows(sources, out, s3_answers=s3_answers)
    if recipe is None:
        return needs, [*rows, row]
    rows += recipe_check.model_rows(recipe, s3_answers=s3_answers)
    if s3_answers or recipe_check.mirror_of(recipe) is None:
        # The catalogue of models is in the mirror too.
        rows += recipe_check.recipe_rows(recipe, name) or [row]
    return needs, rows


def print_diagnosis(diagnosis: Diagnosis, stream: TextIO | None = None) -> None:
    """Prints a line for each check, and a last one that says whether the recipe can run.

    A terminal gets colours. No line is broken, so `grep` finds whole lines.
    """
    stream = stream or sys.stdout

    def ink(text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if stream.isatty() else text

    width = min(_MOST_WIDTH, max((len(row.name) for row in diagnosis.rows), default=0))
    for group, rows in groupby(diagnosis.rows, lambda row: row.group):
        print(ink(group, _BOLD), file=stream)
        for row in rows:
            colour = _COLOURS.get(row.state, _RED if row.stops else _YELLOW)
            state = ink(f"{row.state:<10}", colour)
            print(f"  {row.name:<{width}}  {state}  {row.found}", file=stream)
            if row.remedy:
                print(" " * (width + 16) + ink(f"-> {row.remedy}", _CYAN), file=stream)
    print(ink(verdict(diagnosis), _BOLD if diagnosis.can_run else _RED), file=stream)


def as_json(diagnosis: Diagnosis) -> str:
    """Returns the diagnosis as one JSON object; its keys are public."""
    rows = [asdict(row) for row in diagnosis.rows]
    facts = {"recipe": diagnosis.recipe, "can_run": diagnosis.can_run, "checks": rows}
    return json.dumps(facts, indent=2)


def verdict(diagnosis: Diagnosis) -> str:
    """Returns a sentence on whether the recipe can run."""
    stops = [row.name for row in diagnosis.rows if row.stops]
    others = [row.name for row in diagnosis.rows if row.is_bad and not row.stops]
    aside = f"; not needed for it, and not in order: {', '.join(others)}" if others else ""
    outcome = f"cannot run here: {', '.join(stops)}" if stops else "can run here"
    return f"recipe {diagnosis.recipe} {outcome}{aside}"
