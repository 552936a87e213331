"""The finding of one check."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Outcome of a check. Public: written by `curate doctor --json`."""

    OK = "ok"
    MISSING = "missing"
    """Absent, or too little."""
    BROKEN = "broken"
    """Present, and does not work."""
    NOT_NEEDED = "not needed"
    """Absent, and the recipe does not use it."""


class Group(StrEnum):
    """Subject of a check, in the order in which they are shown."""

    MACHINE = "machine"
    VIDEO = "video on CPU"
    GPU = "GPU"
    MODELS = "models"
    STORAGE = "storage"
    RECIPE = "recipe"

    def row(
        self,
        name: str,
        state: State,
        found: str,
        remedy: str | None = None,
        *,
        needed: bool = False,
    ) -> "CheckRow":
        """Returns the outcome of a check of this subject; see `CheckRow`."""
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
class Needs:
    """Needs of a recipe and its places beyond those of every run."""

    gpu: bool = False
    clip: bool = False
    """A CLIP model, and so the package `open_clip`."""
    s3: bool = False


def finding_of(error: Exception | str, remedy: str = "") -> tuple[str, str]:
    """Returns what an error's message says before a semicolon, and the remedy behind it, if any."""
    finding, _, own = str(error).partition("; ")
    return finding, own or remedy
