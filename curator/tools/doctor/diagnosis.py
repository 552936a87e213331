"""The outcomes of checks, and their formats as text and JSON."""

import sys
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any, NamedTuple, TextIO

_MOST_WIDTH = 44
"""Most columns for names. Longer names would leave no room for findings."""
_GREEN, _YELLOW, _RED, _DIM, _CYAN, _BOLD = "32", "33", "1;31", "2", "36", "1"


class State(StrEnum):
    """Outcome of a check. Public: written by `curate doctor --json`."""

    OK = "ok"
    MISSING = "missing"
    """Absent, or insufficient."""
    BROKEN = "broken"
    """Present, but does not work."""
    NOT_NEEDED = "not needed"
    """Absent, but the recipe does not use it."""


class Fault(NamedTuple):
    """A fault and its remedy. `needed` overrides the value of the check."""

    found: str
    remedy: str | None
    state: State = State.MISSING
    needed: bool | None = None

    @classmethod
    def of(cls, error: Exception | str, remedy: str = "", state: State = State.BROKEN) -> "Fault":
        """Splits an error at its first semicolon into finding and remedy; default is `remedy`."""
        finding, _, own = str(error).partition("; ")
        return cls(finding, own or remedy, state)


class Group(StrEnum):
    """Subjects of checks, in the order of the output."""

    MACHINE = "machine"
    VIDEO = "video on CPU"
    GPU = "GPU"
    MODELS = "models"
    STORAGE = "storage"
    RECIPE = "recipe"

    def row(self, name: str, outcome: str | Fault, *, needed: bool = False) -> "CheckRow":
        """Returns the row of a check. If a check that is `needed` fails, no run works."""
        if isinstance(outcome, str):
            outcome = Fault(outcome, None, State.OK)
        found, remedy, state, own = outcome
        needed = needed if own is None else own
        return CheckRow(
            group=self, name=name, state=state, found=found, remedy=remedy, needed=needed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """The outcome of one check. If a check that is `needed` fails, the recipe cannot run."""

    group: Group
    name: str
    state: State
    found: str
    remedy: str | None = None
    needed: bool = False

    def __post_init__(self) -> None:
        if self.is_bad and not self.remedy:
            raise ValueError(f"{self.name} is {self.state} and has no remedy")

    @property
    def is_bad(self) -> bool:
        """Whether the checked item is missing or broken."""
        return self.state in (State.MISSING, State.BROKEN)

    @property
    def stops(self) -> bool:
        """Whether this outcome prevents the recipe from running."""
        return self.is_bad and self.needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The outcome of all checks."""

    recipe: str
    rows: tuple[CheckRow, ...]
    """In the order of `Group`."""

    @property
    def can_run(self) -> bool:
        """Whether everything that the recipe needs is present and works."""
        return not any(row.stops for row in self.rows)

    @property
    def verdict(self) -> str:
        """A sentence that says whether the recipe can run."""
        stops = [row.name for row in self.rows if row.stops]
        others = [row.name for row in self.rows if row.is_bad and not row.stops]
        aside = f"; not needed, but faulty: {', '.join(others)}" if others else ""
        outcome = f"cannot run here: {', '.join(stops)}" if stops else "can run here"
        return f"recipe {self.recipe} {outcome}{aside}"

    def facts(self) -> dict[str, Any]:
        """Returns the diagnosis for `--json`; its keys are public."""
        checks = [asdict(row) for row in self.rows]
        return {"recipe": self.recipe, "can_run": self.can_run, "checks": checks}

    def print(self, stream: TextIO | None = None) -> None:
        """Prints a line for each check and each remedy, and the verdict as the last line.

        Output to a terminal has colours. Lines are not wrapped, so `grep` finds whole lines.
        """
        stream = stream or sys.stdout

        def ink(text: str, code: str) -> str:
            return f"\x1b[{code}m{text}\x1b[0m" if stream.isatty() else text

        colours = {State.OK: _GREEN, State.NOT_NEEDED: _DIM}
        width = min(_MOST_WIDTH, max((len(row.name) for row in self.rows), default=0))
        for group, rows in groupby(self.rows, lambda row: row.group):
            print(ink(group, _BOLD), file=stream)
            for row in rows:
                colour = colours.get(row.state, _RED if row.stops else _YELLOW)
                state = ink(f"{row.state:<10}", colour)
                print(f"  {row.name:<{width}}  {state}  {row.found}", file=stream)
                if row.remedy:
                    print(" " * (width + 16) + ink(f"-> {row.remedy}", _CYAN), file=stream)
        print(ink(self.verdict, _BOLD if self.can_run else _RED), file=stream)
