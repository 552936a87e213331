"""Computes aesthetic scores and zero-shot classes from CLIP embeddings.

Torch is needed only once, to read a head's file. The result is a few small arrays, so a rerun with
other thresholds loads no network.

LAION's aesthetic heads (improved-aesthetic-predictor and aesthetic-predictor) and the aesthetic
predictor V2.5 are affine: they have no activations between layers, so their product is one vector
and one number.

Zero-shot classification is that of CLIP (Radford et al., arXiv 2103.00020, section 3.1): a class is
the mean of its prompts' unit embeddings, and probabilities are the softmax of scaled cosines.

Shape letters: N embeddings, D dimensions, K classes.
"""

# ruff: noqa: N802, N803, N815 - shape letters

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from curator.errors import ModelError, one_line
from curator.value_errors import explain


@dataclass(frozen=True)
class LinearHead:
    """A score that is affine in a unit embedding: `weight_D`, float64 [D], and `bias`."""

    weight_D: NDArray[np.float64]
    bias: float

    def scores_N(self, embeddings_ND: NDArray[Any]) -> NDArray[np.float64]:
        """Returns the scores of embeddings, float64 [N], which it normalises first."""
        scores: NDArray[np.float64] = normalised(embeddings_ND) @ self.weight_D + self.bias
        return scores


@dataclass(frozen=True)
class ZeroShot:
    """A zero-shot classifier.

    `class_KD` has the unit embeddings of the classes, float64 [K, D]; cosines are multiplied by
    `scale` before the softmax.
    """

    names: tuple[str, ...]
    class_KD: NDArray[np.float64]
    scale: float

    def probabilities_NK(self, embeddings_ND: NDArray[Any]) -> NDArray[np.float64]:
        """Returns the probability of each class, float64 [N, K]; rows sum to 1."""
        logits = self.scale * normalised(embeddings_ND) @ self.class_KD.T
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
        return probabilities


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The heads over embeddings of one CLIP model; None for a head that is off.

    `unsafe` names the classes of `safety` that are not safe for work.
    """

    aesthetic: LinearHead | None = None
    content: ZeroShot | None = None
    safety: ZeroShot | None = None
    unsafe: tuple[str, ...] = ()

    def unsafe_N(self, embeddings_ND: NDArray[Any]) -> NDArray[np.float64]:
        """Returns the probability that a picture is not safe for work, float64 [N]."""
        assert self.safety is not None
        columns = [self.safety.names.index(name) for name in self.unsafe]
        total: NDArray[np.float64] = self.safety.probabilities_NK(embeddings_ND)[:, columns].sum(1)
        return total


def normalised(embeddings_ND: NDArray[Any]) -> NDArray[np.float64]:
    """Normalises embeddings to unit length, float64 [N, D]; zero stays zero."""
    wide = embeddings_ND.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    unit: NDArray[np.float64] = wide / np.maximum(lengths, 1e-12)
    return unit


def load_linear_head(path: Path, *, dim: int) -> LinearHead:
    """Reads an aesthetic head from a PyTorch file of tensors, and multiplies its layers.

    The tensors are `weight` [1, D] and `bias` [1], or `layers.N.weight` and `layers.N.bias` (or
    `scoring_head.N…`); `dim` is D.

    Raises:
        ModelError: The file cannot be read, or holds no head for such embeddings.
    """
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ModelError(f"{path} cannot be read as PyTorch tensors: {one_line(error)}") from error
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise ModelError(f"{path} holds no dictionary of tensors")
    arrays = {name: value.double().numpy() for name, value in state.items()}
    if set(arrays) == {"weight", "bias"}:
        layers = [(arrays["weight"], arrays["bias"])]
    else:
        arrays = {re.sub(r"^scoring_head\.", "layers.", name): v for name, v in arrays.items()}
        matches = [re.fullmatch(r"layers\.(\d+)\.(weight|bias)", name) for name in arrays]
        numbers = sorted({int(match[1]) for match in matches if match is not None})
        if None in matches or len(arrays) != 2 * len(numbers) or not numbers:
            raise ModelError(
                f"{path} holds {', '.join(list(arrays)[:4])} …; expected `weight` and `bias`, or "
                "affine layers `layers.N.weight` and `layers.N.bias`"
            )
        layers = [(arrays[f"layers.{n}.weight"], arrays[f"layers.{n}.bias"]) for n in numbers]
    weight, bias = np.eye(dim), np.zeros(dim)
    for matrix, offset in layers:
        if matrix.ndim != 2 or matrix.shape[1] != len(bias) or offset.shape != (len(matrix),):
            raise ModelError(
                f"{path}: a layer has weights {matrix.shape} and offsets {offset.shape}; "
                f"expected ({offset.size}, {len(bias)}) for embeddings of {dim} dimensions"
            )
        weight, bias = matrix @ weight, matrix @ bias + offset
    if weight.shape != (1, dim):
        raise ModelError(f"{path} returns {len(weight)} numbers; expected one aesthetic score")
    return LinearHead(weight[0], float(bias[0]))


class Prompts(BaseModel):
    """Classes and the prompts that describe them."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    templates: list[str] = Field(min_length=1)
    content: dict[str, list[str]] = Field(min_length=2)
    safety: dict[str, list[str]] = Field(min_length=2)
    unsafe: list[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _whole(self) -> "Prompts":
        for template in self.templates:
            if template.count("{}") != 1:
                raise ValueError(f"template {template!r}; expected one {{}} for the prompt")
        for name, prompts in (self.content | self.safety).items():
            if not prompts:
                raise ValueError(f"{name} has no prompt")
        unknown = set(self.unsafe) - set(self.safety)
        if unknown or len(set(self.unsafe)) == len(self.safety):
            raise ValueError(f"unsafe is {self.unsafe}; expected some, not all, of the classes of "
                             f"safety: {', '.join(self.safety)}")  # fmt: skip
        return self

    def texts(self, prompts: list[str]) -> list[str]:
        """Returns each prompt in each template."""
        return [template.replace("{}", p) for p in prompts for template in self.templates]


@lru_cache(maxsize=4)
def _prompts(text: str) -> Prompts:
    from curator.strict_yaml import load_yaml

    return Prompts.model_validate(load_yaml(text))


def load_prompts(path: str | None = None) -> Prompts:
    """Reads classes and prompts from a YAML file; None means the packaged one.

    Raises:
        ModelError: The file cannot be read, or has another structure.
    """
    from curator.strict_yaml import StrictYamlError

    file = Path(path) if path is not None else Path(__file__).parent / "content_types.yaml"
    try:
        return _prompts(file.read_text(encoding="utf-8"))
    except ValidationError as error:
        location, why = explain(error, Prompts)
        raise ModelError(f"prompts {file}: {': '.join([*location, why])}") from error
    except (OSError, UnicodeDecodeError, StrictYamlError) as error:
        raise ModelError(
            f"prompts {file} cannot be read: {' '.join(str(error).split())}"
        ) from error
