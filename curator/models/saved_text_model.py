"""What a trainer must know of the vectors of texts: the model, its tokenizer, and what it read.

Neither torch nor transformers is imported.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from curator.errors import ModelError
from curator.models.saved_weights import SavedWeights, json_sha256, model_folder, read_settings

Dtype = Literal["bf16", "f16", "f32"]
Fact = str | int | float | bool | None

TEXT = "{text}"
"""Stands for the text in a template."""
_EXPECTED = (
    "expected a text encoder or language model of transformers, such as UMT5EncoderModel: name its "
    "folder, or that of a pipeline with text_encoder and tokenizer"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTextModel:
    """A model of texts in a folder.

    Attributes:
        folder: Folder with `config.json` and the weights.
        tokenizer: File of the tokenizer.
        tokenizer_sha256: SHA-256 of its contents.
        config: Contents of `config.json`.
        name: Name of the class in transformers.
        dim: Length of a vector.
        weights: Files of the weights.
    """

    folder: Path
    tokenizer: Path
    tokenizer_sha256: str
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
            ModelError: There is no such folder, it lacks the model or its tokenizer, or it holds
                another kind of model.
        """
        root, of = model_folder(place, "model"), f"model {place!r}"
        folders = (root / "text_encoder", root)
        folder = next((path for path in folders if (path / "config.json").is_file()), None)
        if folder is None:
            raise ModelError(
                f"{of}: neither {root} nor its folder text_encoder has config.json; expected the "
                "folder of a model of texts as `save_pretrained` of transformers writes it"
            )
        path = folder / "config.json"
        config = read_settings(path, of)
        name, text_config = _class_of(config), config.get("text_config")
        if name is None:
            what = config.get("_class_name")
            what = f"is of the class {what!r} of diffusers" if what else "names no class"
            raise ModelError(f"{of}: {path} {what}; {_EXPECTED}")
        # Configurations of models with pictures leave out the defaults of their text models.
        inner = text_config if isinstance(text_config, Mapping) else {}
        if not inner and not config.get("vocab_size"):
            raise ModelError(
                f"{of}: {path} is of the class {name!r}, which reads no texts: it has neither "
                f"vocab_size nor text_config; {_EXPECTED}"
            )
        dim = config.get("hidden_size") or config.get("d_model") or inner.get("hidden_size")
        if not isinstance(dim, int) or dim < 1:
            raise ModelError(
                f"{of}: {path} is of the class {name!r}, and has no length of a vector, "
                f"hidden_size or d_model; {_EXPECTED}"
            )
        files = [path / "tokenizer.json" for path in (folder, root / "tokenizer")]
        tokenizer = next((path for path in files if path.is_file()), None)
        if tokenizer is None:
            raise ModelError(
                f"{of}: there is no tokenizer.json in {folder} or {root / 'tokenizer'}; "
                "`AutoTokenizer.from_pretrained(...).save_pretrained(...)` writes it"
            )
        contents = read_settings(tokenizer, of)
        if not isinstance(contents.get("model"), dict):
            raise ModelError(
                f"{of}: {tokenizer} is no file of the package tokenizers; "
                "`AutoTokenizer.from_pretrained(...).save_pretrained(...)` writes one"
            )
        return cls(
            folder=folder, tokenizer=tokenizer, tokenizer_sha256=json_sha256(contents),
            config=config, name=name, dim=dim, weights=SavedWeights.find(folder, "model"),
        )  # fmt: skip

    def facts(
        self, *, column: str, max_tokens: int, template: str, skip: int, layer: int, dtype: Dtype
    ) -> dict[str, Fact]:
        """Returns what a trainer must know of the vectors; see `text_vectors_facts`."""
        return {
            "encoder": self.name, "weights": self.weights.sha256(),
            "tokenizer": self.tokenizer_sha256, "column": column, "max_tokens": max_tokens,
            "template": template, "skip": skip, "layer": layer, "dtype": dtype,
        }  # fmt: skip


def _class_of(config: Mapping[str, Any]) -> str | None:
    """Returns the class in transformers, or the type if the file names no class; None for none."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else config.get("model_type")
    return name if isinstance(name, str) and name else None


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
