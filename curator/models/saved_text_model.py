"""What a trainer must know of the vectors of texts: the model, its tokenizer, and what it read.

Neither torch nor transformers is imported.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from curator.errors import ModelError
from curator.models.saved_weights import SavedWeights, json_sha256, model_folder

Dtype = Literal["bf16", "f16", "f32"]
Fact = str | int | float | bool | None

TEXT = "{text}"
"""Stands for the text in a template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTextModel:
    """A model of texts in a folder.

    Attributes:
        folder: Folder with `config.json` and the weights.
        tokenizer: File of the tokenizer.
        config: Contents of `config.json`.
        name: Name of the class in transformers.
        dim: Length of a vector.
        weights: Files of the weights.
    """

    folder: Path
    tokenizer: Path
    config: Mapping[str, Any]
    name: str
    dim: int
    weights: SavedWeights

    @classmethod
    def find(cls, place: str) -> "SavedTextModel":
        """Returns the model of a folder, or of the local cache of the hub.

        Args:
            place: Path of a folder with the model and `tokenizer.json`, or with the folders
                `text_encoder` and `tokenizer`; or `owner/name` of a repository.

        Raises:
            ModelError: There is no such folder, or it lacks the model or its tokenizer.
        """
        root = model_folder(place, "model")
        folders = (root / "text_encoder", root)
        folder = next((path for path in folders if (path / "config.json").is_file()), root)
        try:
            config = json.loads((folder / "config.json").read_bytes())
            name = (config.get("architectures") or [config["model_type"]])[0]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(
                f"model {place!r}: {folder / 'config.json'} names no model of transformers "
                f"({error!r})"
            ) from error
        text_config = config.get("text_config", {})
        dim = config.get("hidden_size") or config.get("d_model") or text_config.get("hidden_size")
        if not isinstance(dim, int):
            raise ModelError(
                f"model {place!r}: {folder / 'config.json'} has neither hidden_size nor d_model; "
                "expected a model of texts"
            )
        files = [path / "tokenizer.json" for path in (folder, root / "tokenizer")]
        tokenizer = next((path for path in files if path.is_file()), None)
        if tokenizer is None:
            raise ModelError(
                f"model {place!r}: there is no tokenizer.json in {folder} or {root / 'tokenizer'}; "
                "`AutoTokenizer.from_pretrained(...).save_pretrained(...)` writes it"
            )
        return cls(
            folder=folder, tokenizer=tokenizer, config=config, name=str(name), dim=dim,
            weights=SavedWeights.find(folder, "model"),
        )  # fmt: skip

    def tokenizer_sha256(self) -> str:
        """Returns the SHA-256 of the tokenizer's contents."""
        return json_sha256(json.loads(self.tokenizer.read_bytes()))

    def facts(
        self, *, column: str, max_tokens: int, template: str, skip: int, layer: int, dtype: Dtype
    ) -> dict[str, Fact]:
        """Returns what a trainer must know of the vectors; see `text_vectors_facts`."""
        return {
            "encoder": self.name, "weights": self.weights.sha256(),
            "tokenizer": self.tokenizer_sha256(), "column": column, "max_tokens": max_tokens,
            "template": template, "skip": skip, "layer": layer, "dtype": dtype,
        }  # fmt: skip


def text_vectors_facts(
    model: str | Path,
    *,
    column: str = "caption",
    max_tokens: int = 512,
    template: str = TEXT,
    skip: int = 0,
    layer: int = -1,
    dtype: Dtype = "bf16",
) -> dict[str, Fact]:
    """Returns the facts that the annotator `text_vectors` declares with these settings.

        facts = text_vectors_facts("Wan2.1-T2V-1.3B-Diffusers", max_tokens=512)
        ClipDataset("out", members={"text_vectors": facts})

    The settings are those of the recipe.

    Raises:
        ModelError: The folder lacks the model or its tokenizer.
    """
    return SavedTextModel.find(str(model)).facts(
        column=column, max_tokens=max_tokens, template=template, skip=skip, layer=layer, dtype=dtype
    )
