"""Samples tokens of the model in the worker, independently for each row of a batch.

`generate` draws for all rows from one generator, so a request's answer would depend on its batch,
and on how often memory ran out. Here noise is a function of the request's key, the step and the
token (Gumbel's: the largest of log-probability plus noise is a draw from the distribution). The key
holds pixels, model, words and seed. So, except for rounding, the same request gets the same answer
in any batch, another seed gives another answer, and windows with one seed are independent.

Source: C. J. Maddison, D. Tarlow, T. Minka, A* Sampling, arXiv 1411.0030, section 2; for mixing the
bits G. Steele, D. Lea, C. Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.

Shape letters: B rows of the batch, V tokens of the vocabulary, K candidates.
"""

# ruff: noqa: N803, N806 - shape letters

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from curator.stages.caption.caption_records import Request

if TYPE_CHECKING:
    from torch import Tensor

CANDIDATES = 256
"""Likeliest tokens to try first; steps where these do not hold `top_p` use all tokens."""

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class RowSampler:
    """Picks the next token of each row, by that row's own request.

    A logits processor for one call of `generate(do_sample=False)`, which takes the largest: only
    the picked token remains. `end_token` ends a row that reached its own `max_tokens`.
    """

    def __init__(self, requests: Sequence[Request], *, end_token: int, device: str) -> None:
        import torch

        self._step = 0
        self._end_token = end_token
        samplings = [request.sampling for request in requests]
        self._limits = [sampling.max_tokens for sampling in samplings]
        self._is_greedy = all(sampling.temperature == 0 for sampling in samplings)

        def column(values: Sequence[float]) -> "Tensor":
            return torch.tensor(values, dtype=torch.float32, device=device)[:, None]

        self._temperature_B1 = column([s.temperature or 1.0 for s in samplings])
        self._is_drawn_B1 = column([float(s.temperature > 0) for s in samplings]).bool()
        self._top_p_B1 = column([s.top_p if s.temperature > 0 else 0.0 for s in samplings])
        keys = [row_key(request) for request in requests]
        self._keys_B1 = torch.tensor(keys, dtype=torch.int64, device=device)[:, None]

    def __call__(self, input_ids: "Tensor", scores: "Tensor") -> "Tensor":
        """Makes each row's token the largest of the logits `scores`, float32 [B, V].

        Returns:
            float32 [B, V], 0 for the picked token and -inf for all others; the logits themselves if
            all rows take the likeliest.
        """
        import torch

        over = [row for row, limit in enumerate(self._limits) if self._step >= limit]
        if self._is_greedy and not over:
            self._step += 1
            return scores
        picked_B1 = scores.argmax(dim=-1, keepdim=True)
        if not self._is_greedy:
            drawn_B1 = self._drawn(scores / self._temperature_B1)
            picked_B1 = torch.where(self._is_drawn_B1, drawn_B1, picked_B1)
        if over:
            picked_B1[over] = self._end_token
        self._step += 1
        return torch.full_like(scores, -torch.inf).scatter_(1, picked_B1, 0.0)

    def _drawn(self, scaled_BV: "Tensor") -> "Tensor":
        total_B1 = scaled_BV.logsumexp(dim=-1, keepdim=True)
        n_tokens = scaled_BV.shape[-1]
        n_candidates = min(CANDIDATES, n_tokens)
        logs_BK, tokens_BK = scaled_BV.topk(n_candidates, dim=-1)
        held_BK = (logs_BK - total_B1).exp().cumsum(dim=-1)
        if n_candidates < n_tokens and bool((held_BK[:, -1:] < self._top_p_B1).any()):
            logs_BK, tokens_BK = scaled_BV.sort(dim=-1, descending=True)
            held_BK = (logs_BK - total_B1).exp().cumsum(dim=-1)
        noisy_BK = logs_BK + self._noise(tokens_BK)
        # The nucleus is the shortest list that holds top_p: tokens before which less is held.
        is_outside_BK = held_BK.roll(1, dims=-1) >= self._top_p_B1
        is_outside_BK[:, 0] = False
        best_B1 = noisy_BK.masked_fill(is_outside_BK, -float("inf")).argmax(dim=-1, keepdim=True)
        return tokens_BK.gather(1, best_B1)

    def _noise(self, tokens_BK: "Tensor") -> "Tensor":
        step_B1 = _mixed(self._keys_B1 + _signed(self._step * _GOLDEN))
        bits_BK = _mixed(step_B1 + (tokens_BK + 1) * _signed(_GOLDEN))
        uniform_BK = (_shifted(bits_BK, 11).double() + 0.5) * 2.0**-53
        return (-(-uniform_BK.log()).log()).float()


def row_key(request: Request) -> int:
    """Returns the signed 64-bit start of a request's noise."""
    digest = hashlib.sha256(request.key.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _mixed(x: "Tensor") -> "Tensor":
    """SplitMix64's finalizer; int64 arithmetic wraps around as it expects."""
    x = (x ^ _shifted(x, 30)) * _signed(_MIX_1)
    x = (x ^ _shifted(x, 27)) * _signed(_MIX_2)
    return x ^ _shifted(x, 31)


def _shifted(x: "Tensor", n_bits: int) -> "Tensor":
    """Shifts to the right as if without sign."""
    return (x >> n_bits) & ((1 << (64 - n_bits)) - 1)


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
