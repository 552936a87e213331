"""What one check found."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How one thing stands. Public: written by `curate doctor --json`."""

    OK = "ok"
    MISSING = "missing"
    """Not there, or too little of it."""
    BROKEN = "broken"
    """There, and does not work."""
    NOT_NEEDED = "not needed"
    """Not there, and nothing that was asked for uses it."""


class Group(StrEnum):
    """What a check is about, in the order in which they are shown."""

    MACHINE = "machine"
    VIDEO = "video on CPU"
    GPU = "GPU"
    MODELS = "models"
    STORAGE = "storage"
    RECIPE = "recipe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The outcome of one check.

    Attributes:
        group: What it is about.
        name: What was looked at.
        state: How it stands.
        found: What was seen, in words.
        remedy: What to do about it; None where nothing is to be done.
        needed: Whether the recipe cannot run without it.
    """

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
        """Whether it is missing or broken."""
        return self.state in (State.MISSING, State.BROKEN)

    @property
    def stops(self) -> bool:
        """Whether the recipe cannot run for it."""
        return self.is_bad and self.needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a recipe and its places use beyond what every run does.

    Attributes:
        gpu: A GPU.
        clip: A CLIP model, and so the package `open_clip`.
        text: The text detector, and so `onnxruntime`.
        s3: Object storage.
    """

    gpu: bool = False
    clip: bool = False
    text: bool = True
    s3: bool = False


def can_run(rows: Iterable[Row]) -> bool:
    """Whether nothing that the recipe needs is missing or broken."""
    return not any(row.stops for row in rows)


def first_line(text: str) -> str:
    """The first line that says something, without spaces around it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
