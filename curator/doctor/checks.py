"""All checks, each after those that it depends on, and their outcome as text."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from typing import TextIO

from curator.doctor.diagnosis import Group, Needs, Row, State, can_run
from curator.doctor.gpu import gpu_rows
from curator.doctor.host import Host
from curator.doctor.machine_check import machine_rows
from curator.doctor.packages import ASKED, are_sound, ask_all, package_rows
from curator.storage.object_service import scheme_of

_STYLES = {
    State.OK: "green",
    State.MISSING: "bold red",
    State.BROKEN: "bold red",
    State.NOT_NEEDED: "dim",
}
_HARMLESS = "yellow"
"""Style of rows that are missing or broken and stop nothing."""
_PLAIN_WIDTH = 1000
"""Columns without a terminal: no line is broken, so `grep` finds whole lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The outcome of all checks."""

    recipe: str
    rows: tuple[Row, ...]
    """In the order of `Group`."""

    @property
    def can_run(self) -> bool:
        """Whether the recipe can run here."""
        return can_run(self.rows)


def examine(
    sources: Sequence[str] = (),
    out: str | None = None,
    *,
    recipe: str,
    overrides: Sequence[str] = (),
    models: str | None = None,
    host: Host | None = None,
) -> Diagnosis:
    """Checks everything; writes nothing that stays.

    `sources`, `out` and `recipe` are those of `curate run`, where given; `models` replaces the
    recipe's place of weights.
    """
    host = host or Host()
    answers = ask_all(host, ASKED)
    places = [*sources, *([out] if out is not None else [])]
    if are_sound(answers):
        needs, rows = _with_recipe(host, sources, out, recipe, overrides, models)
    else:
        # A broken package may crash the process that imports it.
        needs = Needs(s3=any(scheme_of(place) == "s3" for place in places))
        found = "recipe, models and storage were not checked: a package does not work"
        remedy = "see the rows of packages"
        rows = [Group.RECIPE.row(recipe, State.BROKEN, found, remedy, needed=True)]
    rows += machine_rows(host, out)
    rows += package_rows(host, answers, needs)
    rows += gpu_rows(host, answers["faiss"], needs)
    ordered = sorted(rows, key=lambda row: list(Group).index(row.group))
    return Diagnosis(recipe=recipe, rows=tuple(ordered))


def _with_recipe(
    host: Host,
    sources: Sequence[str],
    out: str | None,
    name: str,
    overrides: Sequence[str],
    models: str | None,
) -> tuple[Needs, list[Row]]:
    from curator.doctor import recipe_check
    from curator.doctor.places import s3_rows, storage_rows

    recipe, row = recipe_check.read_recipe(name, overrides, models)
    places = [*sources, *([out] if out is not None else [])]
    mirror = recipe_check.mirror_of(recipe) if recipe is not None else None
    on_s3 = [place for place in (*places, mirror) if place is not None and scheme_of(place) == "s3"]
    rows = s3_rows(host, on_s3) if on_s3 else []
    s3_answers = not any(found.stops for found in rows)
    rows += storage_rows(sources, out, s3_answers=s3_answers)
    if recipe is None:
        return recipe_check.needs_of(None, places), [*rows, row]
    rows += recipe_check.model_rows(recipe, s3_answers=s3_answers)
    if s3_answers or mirror is None:
        # The catalogue of models is in the mirror too.
        rows += recipe_check.recipe_rows(recipe, name) or [row]
    return recipe_check.needs_of(recipe, places), rows


def print_diagnosis(diagnosis: Diagnosis, stream: TextIO | None = None) -> None:
    """Prints the table, and a last line that says whether the recipe can run."""
    stream = stream or sys.stdout
    if stream.isatty():
        _render(diagnosis, stream, None)
        return
    sink = StringIO()
    _render(diagnosis, sink, _PLAIN_WIDTH)
    lines = (line.rstrip() for line in sink.getvalue().splitlines())
    print(*lines, sep="\n", file=stream)


def as_json(diagnosis: Diagnosis) -> str:
    """Returns the diagnosis as one JSON object; its keys are public."""
    return json.dumps(
        {
            "recipe": diagnosis.recipe,
            "can_run": diagnosis.can_run,
            "checks": [asdict(row) for row in diagnosis.rows],
        },
        indent=2,
    )


def verdict(diagnosis: Diagnosis) -> str:
    """Returns a sentence on whether the recipe can run."""
    stops = [row.name for row in diagnosis.rows if row.stops]
    others = [row.name for row in diagnosis.rows if row.is_bad and not row.stops]
    aside = f"; not needed for it, and not in order: {', '.join(others)}" if others else ""
    if stops:
        return f"recipe {diagnosis.recipe} cannot run here: {', '.join(stops)}{aside}"
    return f"recipe {diagnosis.recipe} can run here{aside}"


def _render(diagnosis: Diagnosis, stream: TextIO, width: int | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=stream, width=width, highlight=False)
    table = Table.grid(padding=(0, 2))
    # Breaks only long names, which would leave no room for the finding.
    table.add_column(max_width=44)
    table.add_column(no_wrap=True)
    table.add_column()
    for group in Group:
        rows = [row for row in diagnosis.rows if row.group is group]
        if rows:
            table.add_row(Text(group, "bold"), "", "")
        for row in rows:
            style = _HARMLESS if row.is_bad and not row.stops else _STYLES[row.state]
            table.add_row(Text(f"  {row.name}"), Text(row.state, style), Text(row.found))
            if row.remedy:
                table.add_row("", "", Text(f"-> {row.remedy}", "cyan"))
    console.print(table)
    console.print(Text(verdict(diagnosis), "bold" if diagnosis.can_run else "bold red"))
