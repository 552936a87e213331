"""Embeds texts with text encoders, of the catalogue or of a folder, through `transformers`.

A sentence encoder returns one unit vector per caption. A T5 encoder returns one vector per token,
as trainers of world models need: Cosmos Predict reads up to 512 tokens of 1024 values from T5-11B
without padding, and pads them with zeros. So do UMT5, and language models such as Gemma and Qwen,
of which trainers may read another layer than the last one.

A text is batched only with texts that are padded to the same length, so its embedding depends on
the others only through rounding of sums: by less than 1e-5 of the largest value in float32, by the
last bit after conversion to float16, and by 1% in bfloat16, which GPUs use.

Weights load from safetensors, or from PyTorch's format without code; tokenizers load from
`tokenizer.json`. Nothing is downloaded, and no code of a repository runs.

Shape letters: N texts, T tokens with padding, L tokens of one text, D dimensions.
"""

# ruff: noqa: N806 - shape letters

import hashlib
import importlib
import importlib.util
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from curator.errors import ModelError, in_one_line, one_line
from curator.installation import install_extra
from curator.models.catalogue import ModelEntry
from curator.models.saved_text_model import Dtype

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "float32", "bfloat16", "float16"]
Embedding = NDArray[np.float32] | NDArray[np.float16]

STEP_TOKENS = 16
"""Texts are padded to a multiple of this."""
BATCH_TOKENS = 4096
"""Most tokens of a batch, with padding. The widest layer of T5-11B then takes 0.5 GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEncoder:
    """An encoder of a folder that gives a vector for each token.

    Attributes:
        name: Name for messages.
        max_tokens: Most tokens that are read, with special tokens.
        dim: Length of a vector.
        tokenizer: File of the tokenizer.
        dtype: Type of the vectors; bfloat16 vectors are tensors of torch.
        layer: Layer whose output is taken: -1 for the model's output, -2 for the layer before.
        skipped: Number of tokens at the beginning whose vectors are left out.
    """

    name: str
    max_tokens: int
    dim: int
    tokenizer: Path
    dtype: Dtype
    layer: int = -1
    skipped: int = 0
    pooling: Literal["tokens"] = "tokens"


def text_hash(text: str) -> str:
    """Returns the key of a caption, which depends only on the text: 32 hex digits of SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def check_transformers() -> None:
    """Raises ModelError if the package is not installed; imports nothing."""
    if importlib.util.find_spec("transformers") is None:
        raise ModelError(f"embeddings of texts need transformers: {install_extra('text')}")


class TextEncoder:
    """A loaded text encoder.

    Args:
        entry: A model of kind `text`, or an encoder of a folder.
        folder: Folder of the model's files.
        device: `auto` is a GPU if there is one.
        precision: `auto` is float32 on a CPU and bfloat16 on a GPU; T5 overflows in float16.

    Raises:
        ModelError: transformers is missing, or the files hold another model.
    """

    def __init__(
        self,
        entry: ModelEntry | TokenEncoder,
        folder: Path,
        *,
        device: Device = "auto",
        precision: Precision = "auto",
    ) -> None:
        check_transformers()
        # Imported by name, because a type checker would otherwise read both packages.
        self._torch: Any = importlib.import_module("torch")
        self.entry = entry
        if device == "auto":
            device = "cuda" if self._torch.cuda.is_available() else "cpu"
        if precision == "auto":
            precision = "bfloat16" if device == "cuda" else "float32"
        self.device, self.precision = device, precision
        path = folder / "tokenizer.json"
        self._layer, self._skipped, self._dtype = -1, 0, "f16"
        if isinstance(entry, TokenEncoder):
            path = entry.tokenizer
            self._layer, self._skipped, self._dtype = entry.layer, entry.skipped, entry.dtype
        try:
            self._tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(path))
        except Exception as error:
            raise ModelError(
                f"model {entry.name}: {path} cannot be read: {one_line(error)}"
            ) from error
        # Tokenizer files may contain other settings, such as 128 tokens.
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(entry.max_tokens)
        self._model = self._load(folder)
        self._check(folder)

    def _load(self, folder: Path) -> Any:  # noqa: ANN401
        torch, entry = self._torch, self.entry
        transformers: Any = importlib.import_module("transformers")
        # Loads only the encoder of models that also have a decoder, such as T5.
        auto = transformers.AutoModelForTextEncoding
        encoders = importlib.import_module("transformers.models.auto.modeling_auto")
        if model_type(folder) not in encoders.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES:
            auto = transformers.AutoModel
        # Hides its progress bars, and its warning about the missing decoder.
        hf_logging = transformers.utils.logging
        level, shows_bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
        hf_logging.set_verbosity_error()
        hf_logging.disable_progress_bar()
        try:
            # Transformers draws missing tensors at random, which must not advance the process's
            # generator. They are an error below.
            with torch.random.fork_rng(devices=[]):
                model, report = auto.from_pretrained(
                    str(folder),
                    dtype=getattr(torch, self.precision),
                    local_files_only=True,
                    trust_remote_code=False,
                    output_loading_info=True,
                )
        except Exception as error:
            raise ModelError(
                f"model {entry.name}: {folder} cannot be loaded: {one_line(error)}"
            ) from error
        finally:
            hf_logging.set_verbosity(level)
            if shows_bars:
                hf_logging.enable_progress_bar()
        lacking = [name for name in report["missing_keys"] if not name.startswith("pooler.")]
        if lacking or report["mismatched_keys"]:
            wrong = sorted(lacking or map(str, report["mismatched_keys"]))
            raise ModelError(
                f"model {entry.name}: {folder} lacks {len(wrong)} tensors, such as {wrong[0]}"
            )
        config = model.config.get_text_config()
        if config.hidden_size != entry.dim:
            raise ModelError(
                f"model {entry.name}: embeddings have {config.hidden_size} values; expected "
                f"{entry.dim}"
            )
        return model.eval().to(self.device).requires_grad_(False)

    def _check(self, folder: Path) -> None:
        """Raises `ModelError` if the model gives no vectors of a text, as models of sound do."""
        # An index of a layer that the model lacks is such an error, too.
        ids = self._tokenizer.encode("text").ids or [0]
        try:
            self._batch([ids], math.ceil(len(ids) / STEP_TOKENS) * STEP_TOKENS)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"model {self.entry.name}: {folder} holds a {type(self._model).__name__}, which "
                f"gives no vectors of a text ({in_one_line(error)}); expected a text encoder or "
                f"language model, and a layer that it has"
            ) from error

    def each(self, texts: Sequence[str]) -> Iterator[tuple[int, Embedding]]:
        """Yields the indices and embeddings of texts, the shortest first; no text may be empty."""
        ids = [code.ids for code in self._tokenizer.encode_batch(list(texts))]

        def filled(index: int) -> int:
            return STEP_TOKENS * math.ceil(len(ids[index]) / STEP_TOKENS)

        # Batches must not depend on the order of the texts.
        order = sorted(range(len(ids)), key=lambda i: (filled(i), ids[i], i))
        for length, indices in groupby(order, key=filled):
            while some := list(islice(indices, max(1, BATCH_TOKENS // length))):
                yield from zip(some, self._batch([ids[i] for i in some], length), strict=True)

    def _batch(self, ids: Sequence[Sequence[int]], length: int) -> list[Embedding]:
        torch = self._torch
        ids_NT = torch.zeros((len(ids), length), dtype=torch.long)
        mask_NT = torch.zeros_like(ids_NT)
        for row, some in enumerate(ids):
            ids_NT[row, : len(some)] = torch.tensor(some)
            mask_NT[row, : len(some)] = 1
        with torch.inference_mode():
            mask_NT = mask_NT.to(self.device)
            given = {"input_ids": ids_NT.to(self.device), "attention_mask": mask_NT}
            if self._layer == -1:
                hidden_NTD = self._model(**given).last_hidden_state.float()
            else:
                states = self._model(**given, output_hidden_states=True).hidden_states
                hidden_NTD = states[self._layer].float()
            if self.entry.pooling == "tokens":
                dtype = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
                kept_NTD = hidden_NTD.to(dtype[self._dtype]).cpu()
                if self._dtype != "bf16":
                    kept_NTD = kept_NTD.numpy()
                made: list[Any] = [
                    kept_NTD[row, self._skipped : len(some)] for row, some in enumerate(ids)
                ]
                made = [each.clone() if self._dtype == "bf16" else each.copy() for each in made]
            else:
                pooled_ND = hidden_NTD[:, 0]
                if self.entry.pooling == "mean":
                    weights_NT1 = mask_NT.unsqueeze(-1).float()
                    pooled_ND = (hidden_NTD * weights_NT1).sum(1) / weights_NT1.sum(1)
                made = list(torch.nn.functional.normalize(pooled_ND, dim=-1).cpu().numpy())
        for embedding in made:
            if not torch.isfinite(torch.as_tensor(embedding)).all():
                raise ModelError(
                    f"model {self.entry.name} returned NaN or infinity in {self.precision}"
                )
        return made


def model_type(folder: Path) -> str:
    """Returns the type of a model of transformers, from its `config.json`; empty if unknown."""
    try:
        return str(json.loads((folder / "config.json").read_bytes()).get("model_type", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def torch_refusal() -> str | None:
    """Returns why a model cannot use this process's GPU; None if it can."""
    import torch

    if torch.cuda.is_available():
        return None
    return f"torch {torch.__version__} sees no GPU; `curate doctor` says why"
