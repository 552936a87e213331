"""Draws tokens of the model in the worker, independently for each row of a batch.

`generate` draws for all rows from one generator, so a request's answer would depend on its batch,
and on how often memory ran out. Here temperature and nucleus are those of transformers, and each
row then gets noise of its own (Gumbel's: the largest of log-probability plus noise is a draw from
the distribution). The seed of the noise is the request's key, which holds pixels, model, words and
seed. So, except for rounding, the same request gets the same answer in any batch, another seed
gives another answer, and windows with one seed are independent.

Source: C. J. Maddison, D. Tarlow, T. Minka, A* Sampling, arXiv 1411.0030, section 2.

Shape letters: B rows of the batch, V tokens of the vocabulary.
"""

# ruff: noqa: N803, N806 - shape letters

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from curator.stages.caption.caption_records import Request

if TYPE_CHECKING:
    from torch import Tensor


def row_processors(requests: Sequence[Request], device: str) -> list[Any]:
    """Returns logits processors for one call of `generate(do_sample=False)`.

    The requests have equal sampling except for their seeds.
    """
    from transformers import TemperatureLogitsWarper, TopPLogitsWarper

    sampling = requests[0].sampling
    if sampling.temperature == 0:
        return []
    nucleus = [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    return [TemperatureLogitsWarper(sampling.temperature), *nucleus, RowNoise(requests, device)]


class RowNoise:
    """A logits processor that adds the noise of each row's own request."""

    def __init__(self, requests: Sequence[Request], device: str) -> None:
        import torch

        self._generators = [
            torch.Generator(device).manual_seed(row_seed(request)) for request in requests
        ]

    def __call__(self, input_ids: "Tensor", scores_BV: "Tensor") -> "Tensor":
        """Returns logits with noise, float64 [B, V]."""
        import torch

        uniform_BV = torch.empty_like(scores_BV, dtype=torch.float64)
        for uniform_V, generator in zip(uniform_BV, self._generators, strict=True):
            uniform_V.uniform_(generator=generator)
        return scores_BV - uniform_BV.log_().neg_().log_()


def row_seed(request: Request) -> int:
    """Returns the 64-bit seed of a request's noise."""
    return int.from_bytes(hashlib.sha256(request.key.encode()).digest()[:8], "big", signed=True)
