"""A diagnosis for people, and for programs."""

import json
import sys
from dataclasses import asdict
from io import StringIO
from typing import TextIO

from curator.doctor.checks import Diagnosis
from curator.doctor.diagnosis import Group, State

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


def print_diagnosis(diagnosis: Diagnosis, stream: TextIO | None = None) -> None:
    """Prints the table, and a last line that says whether the recipe can run.

    `stream` is standard output by default.
    """
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
