"""Embeddings of captions, by text encoders of the catalogue, through `transformers`.

A sentence encoder gives one unit vector a caption. A T5 encoder gives a vector for each token, as
trainers of world models take them: Cosmos Predict reads up to 512 tokens of 1024 values of T5-11B,
without padding, and fills up with zeros itself.

A text's embedding does not depend on which others are embedded with it, but for the last bits of
sums: texts are computed together only with those that are filled up to the same length. In float32
values move by less than 1e-5 of the largest, after float16 by its last bit; in bfloat16, which is
used on GPUs, by 1%.

Weights load from safetensors, or from PyTorch's form without code in it; tokenizers from
`tokenizer.json`. Nothing is fetched, and no code of a repository is run.

Shape letters: N texts, T tokens filled up, L tokens of one text, D dimensions.
"""

# ruff: noqa: N806 - shape letters

import hashlib
import importlib
import importlib.util
import math
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from curator.errors import ModelError, install_extra, one_line
from curator.models.catalogue import ModelEntry

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "float32", "bfloat16"]
Embedding = NDArray[np.float32] | NDArray[np.float16]

STEP_TOKENS = 16
"""Texts are filled up to a multiple of this."""
BATCH_TOKENS = 4096
"""Of a batch, filling counted; at 512 tokens T5-11B's widest layer then takes 0.5 GB."""


def text_hash(text: str) -> str:
    """What a caption is known by, whatever clips have it: 32 hex digits of SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def check_transformers() -> None:
    """Raises ModelError if the package is not installed; imports nothing."""
    if importlib.util.find_spec("transformers") is None:
        raise ModelError(
            f"embeddings of captions need transformers: {install_extra('captions-local')}"
        )


class TextEncoder:
    """A text encoder, loaded.

    Args:
        entry: The model, of the kind `text`.
        folder: Where its files are.
        device: Where it computes; `auto` is a GPU if there is one.
        precision: `auto` is float32 on a CPU and bfloat16 on a GPU; T5 overflows in float16.

    Raises:
        ModelError: transformers is missing, or the files hold no such model.
    """

    def __init__(
        self,
        entry: ModelEntry,
        folder: Path,
        *,
        device: Device = "auto",
        precision: Precision = "auto",
    ) -> None:
        check_transformers()
        # By name, because type checkers would read all of both packages.
        self._torch: Any = importlib.import_module("torch")
        self.entry = entry
        if device == "auto":
            device = "cuda" if self._torch.cuda.is_available() else "cpu"
        if precision == "auto":
            precision = "bfloat16" if device == "cuda" else "float32"
        self.device, self.precision = device, precision
        path = folder / "tokenizer.json"
        try:
            self._tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(path))
        except Exception as error:
            raise ModelError(
                f"model {entry.name}: {path} cannot be read: {one_line(error)}"
            ) from error
        # Files carry the settings of some example, such as 128 tokens.
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(entry.max_tokens)
        self._model = self._load(folder)

    def _load(self, folder: Path) -> Any:  # noqa: ANN401
        torch, entry = self._torch, self.entry
        transformers: Any = importlib.import_module("transformers")
        # Of encoders with a decoder, such as T5, the encoder.
        auto = transformers.AutoModelForTextEncoding
        # It shows bars, and warns of the decoder that it leaves out.
        hf_logging = transformers.utils.logging
        level, shows_bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
        hf_logging.set_verbosity_error()
        hf_logging.disable_progress_bar()
        try:
            # What the file lacks is drawn at random: that is looked for below, and must not use up
            # the process's seed.
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
                f"model {entry.name}: {folder} lacks {len(wrong)} tensors, {wrong[0]} among them"
            )
        if model.config.hidden_size != entry.dim:
            raise ModelError(
                f"model {entry.name}: embeddings have {model.config.hidden_size} values; expected "
                f"{entry.dim}"
            )
        return model.eval().to(self.device).requires_grad_(False)

    def each(self, texts: Sequence[str]) -> Iterator[tuple[int, Embedding]]:
        """Embeddings of texts that are not empty, with their number, the shortest texts first."""
        ids = [code.ids for code in self._tokenizer.encode_batch(list(texts))]

        def filled(index: int) -> int:
            return STEP_TOKENS * math.ceil(len(ids[index]) / STEP_TOKENS)

        # The order of the texts must not decide who is computed with whom.
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
            answer = self._model(input_ids=ids_NT.to(self.device), attention_mask=mask_NT)
            hidden_NTD = answer.last_hidden_state.float()
            if self.entry.pooling == "tokens":
                half_NTD = hidden_NTD.half().cpu().numpy()
                made: list[Embedding] = [
                    half_NTD[row, : len(some)].copy() for row, some in enumerate(ids)
                ]
            else:
                pooled_ND = hidden_NTD[:, 0]
                if self.entry.pooling == "mean":
                    weights_NT1 = mask_NT.unsqueeze(-1).float()
                    pooled_ND = (hidden_NTD * weights_NT1).sum(1) / weights_NT1.sum(1)
                made = list(torch.nn.functional.normalize(pooled_ND, dim=-1).cpu().numpy())
        for embedding in made:
            if not np.isfinite(embedding).all():
                raise ModelError(
                    f"model {self.entry.name} gave values that are no numbers, in {self.precision}"
                )
        return made


def torch_refusal() -> str | None:
    """Returns why a model cannot use the GPU that this process holds, or None."""
    import torch

    if torch.cuda.is_available():
        return None
    return f"torch {torch.__version__} sees no GPU; `curate doctor` says why"
