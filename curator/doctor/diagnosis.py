"""What checks find, and their outcome as text."""

import json
import sys
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple, TextIO

_MOST_WIDTH = 44
"""Of names: longer ones would leave no room for the finding."""
_GREEN, _YELLOW, _RED, _DIM, _CYAN, _BOLD = "32", "33", "1;31", "2", "36", "1"


class State(StrEnum):
    """Outcome of a check. Public: written by `curate doctor --json`."""

    OK = "ok"
    MISSING = "missing"
    """Absent, or too little."""
    BROKEN = "broken"
    """Present, and does not work."""
    NOT_NEEDED = "not needed"
    """Absent, and the recipe does not use it."""


class Fault(NamedTuple):
    """What is not in order, and what to do about it; `needed` overrides that of the check."""

    found: str
    remedy: str | None
    state: State = State.MISSING
    needed: bool | None = None

    @classmethod
    def of(cls, error: Exception | str, remedy: str = "", state: State = State.BROKEN) -> "Fault":
        """Returns what an error says before a semicolon, and the remedy behind it, if any."""
        finding, _, own = str(error).partition("; ")
        return cls(finding, own or remedy, state)


class Group(StrEnum):
    """Subject of a check, in the order in which they are shown."""

    MACHINE = "machine"
    VIDEO = "video on CPU"
    GPU = "GPU"
    MODELS = "models"
    STORAGE = "storage"
    RECIPE = "recipe"

    def row(self, name: str, outcome: str | Fault, *, needed: bool = False) -> "CheckRow":
        """Returns the row of a check of this subject; without what is `needed`, no run works."""
        if isinstance(outcome, str):
            outcome = Fault(outcome, None, State.OK)
        found, remedy, state, own = outcome
        needed = needed if own is None else own
        return CheckRow(
            group=self, name=name, state=state, found=found, remedy=remedy, needed=needed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """The outcome of one check; without what is `needed`, the recipe cannot run."""

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
        """Whether the thing is missing or broken."""
        return self.state in (State.MISSING, State.BROKEN)

    @property
    def stops(self) -> bool:
        """Whether it keeps the recipe from running."""
        return self.is_bad and self.needed


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

    @property
    def verdict(self) -> str:
        """A sentence on whether the recipe can run."""
        stops = [row.name for row in self.rows if row.stops]
        others = [row.name for row in self.rows if row.is_bad and not row.stops]
        aside = f"; not needed for it, and not in order: {', '.join(others)}" if others else ""
        outcome = f"cannot run here: {', '.join(stops)}" if stops else "can run here"
        return f"recipe {self.recipe} {outcome}{aside}"

    def as_json(self) -> str:
        """Returns one JSON object; its keys are public."""
        checks = [asdict(row) for row in self.rows]
        facts = {"recipe": self.recipe, "can_run": self.can_run, "checks": checks}
        return json.dumps(facts, indent=2)

    def print(self, stream: TextIO | None = None) -> None:
        """Prints a line for each check, and a last one that says whether the recipe can run.

        A terminal gets colours. No line is broken, so `grep` finds whole lines.
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
