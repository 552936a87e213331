"""A vision-language model in the worker: `captioner: transformers`.

Requests with equal sampling are sorted by length and batched so that tokens, padding and longest
answers stay below `batch_tokens`. There is no guided decoding: the prompt describes the schema of
the answer, and one repair request follows a broken answer.

In `generate`, all rows of a batch draw from one random generator, so an answer would depend on its
batch. Here, transformers applies temperature and top_p, then each row adds Gumbel noise to its
log-probabilities; the largest sum is a draw from the distribution. The request's key, a hash of
pixels, model, text and seed, seeds the noise. The same request gets the same answer in any batch,
except for rounding: other rows change the last bits of sums, which may swap two tokens of nearly
equal probability in bfloat16.

Source: C. J. Maddison, D. Tarlow, T. Minka, A* Sampling, arXiv 1411.0030, section 2.

Shape letters: B rows of the batch, V tokens of the vocabulary.
"""

# ruff: noqa: N803, N806 - shape letters

import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from curator.stages.caption.caption_records import Frames, Reply, Request, Unanswered
from curator.stages.caption.captioners.captioner_contract import Captioner, SizedRequest
from curator.stages.caption.captioners.model_loading import Device, check_model, load
from curator.stages.caption.config import ModelConfig

if TYPE_CHECKING:
    import torch


class LocalCaptioner(Captioner):
    """A model that answers in this process; one per worker, on a GPU if one is available."""

    gpus = 1.0
    # Enough for a model of 2 billion parameters on CPUs.
    memory_bytes = 8 << 30

    def __init__(
        self, config: ModelConfig, *, section: str = "caption", device: Device = "auto"
    ) -> None:
        super().__init__(config, section=section)
        self._device = device
        self.batch_tokens = config.batch_tokens
        """Most tokens of a batch; shrinks below the setting when memory runs out."""
        self.counts: Counter[str] = Counter()
        """Since loading: `batches`; batches `halved` for lack of memory; batches answered `apart`
        because the model refused the batch; `tokens_in`, `tokens_padded` (prompts with padding) and
        `tokens_out`; and `prepare_s`, the seconds of preparing inputs."""

    def check(self, trial: Frames | None) -> None:
        """Checks packages and files."""
        check_model(self.config)

    def setup(self) -> None:
        """Loads the model."""
        self._loaded = load(self.config, device=self._device)

    def answer(self, request: Request, frames: Frames) -> Reply:
        """Answers one request."""
        sized = self.sized(request, frames)
        return sized if isinstance(sized, Reply) else next(self.answer_batch([sized]))[1]

    def sized(self, request: Request, frames: Frames) -> SizedRequest | Reply:
        """Measures a request; refuses unsuitable pictures, and more tokens than the context has."""
        try:
            asked = self._loaded.chat.sized(request, frames)
        except ValueError as error:
            return _refused(str(error))
        context, longest = self._loaded.context, request.sampling.max_tokens
        if context is not None and asked.n_tokens + longest > context:
            return _refused(
                f"{asked.n_tokens} tokens and an answer of {longest}; the model's context has "
                f"{context}: show fewer or smaller frames"
            )
        return asked

    def next_batch(
        self, pending: Sequence[SizedRequest]
    ) -> tuple[list[SizedRequest], list[SizedRequest]]:
        """Takes the longest request, and the next longest with equal sampling, up to the budget."""
        if not pending:
            return [], []
        first, *others = sorted(
            pending, key=lambda asked: (-asked.request.sampling.max_tokens, -asked.n_tokens)
        )
        group, batch = self._group(first), [first]
        left: list[SizedRequest] = []
        for asked in others:
            fits = _cost([*batch, asked]) <= self.batch_tokens
            (batch if fits and self._group(asked) == group else left).append(asked)
        return batch, left

    def answer_batch(self, batch: list[SizedRequest]) -> Iterator[tuple[SizedRequest, Reply]]:
        """Answers a batch, in parts if it fails as a whole; yields each reply when it is ready."""
        begun_s = time.monotonic()
        try:
            yield from zip(batch, self._generated(batch), strict=True)
            return
        except ValueError as error:
            failure, detail = Unanswered.REFUSED_REQUEST, _line(error)
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise
            failure, detail = Unanswered.OUT_OF_MEMORY, _line(error)
        # Outside the handlers, because their errors keep references to allocated memory.
        if failure == Unanswered.OUT_OF_MEMORY and self._loaded.device == "cuda":
            import torch

            torch.cuda.empty_cache()
        if len(batch) == 1:
            seconds = time.monotonic() - begun_s
            yield batch[0], Reply(failure=failure, detail=detail, seconds=seconds)
            return
        size = 1
        if failure == Unanswered.OUT_OF_MEMORY:
            size = (len(batch) + 1) // 2
            self.counts["halved"] += 1
            self.batch_tokens = min(self.batch_tokens, _cost(batch[:size]))
        else:
            self.counts["apart"] += 1
        for begin in range(0, len(batch), size):
            yield from self.answer_batch(batch[begin : begin + size])

    def _generated(self, batch: list[SizedRequest]) -> list[Reply]:
        import torch
        from transformers import LogitsProcessorList

        chat, model, device = self._loaded.chat, self._loaded.model, self._loaded.device
        begun_s = time.monotonic()
        inputs = chat.inputs(batch)
        for name in inputs:
            # Other inputs, such as seconds between frames, would lose precision.
            if name.startswith("pixel_values") and inputs[name].is_floating_point():
                inputs[name] = inputs[name].to(model.dtype)
        self.counts.update({"prepare_s": time.monotonic() - begun_s})
        requests, ends = [asked.request for asked in batch], model.generation_config.eos_token_id
        placed = {
            name: value.to(device) if hasattr(value, "to") else value
            for name, value in inputs.items()
        }
        with torch.no_grad():
            tokens = model.generate(
                **placed,
                max_new_tokens=requests[0].sampling.max_tokens,
                logits_processor=LogitsProcessorList(row_processors(requests, device)),
            )
        answers = tokens[:, inputs["input_ids"].shape[1] :].tolist()
        seconds = time.monotonic() - begun_s
        replies = []
        for n_in, answer in zip(inputs["attention_mask"].sum(dim=1), answers, strict=True):
            n_out = next((i for i, token in enumerate(answer) if token in ends), None)
            reply = Reply(
                text=chat.decoded(answer[:n_out]),
                is_whole=n_out is not None,
                tokens_in=int(n_in),
                # With the end token, as servers count.
                tokens_out=len(answer) if n_out is None else n_out + 1,
                seconds=seconds,
            )
            replies.append(reply)
        self.counts.update(
            batches=1,
            tokens_in=sum(reply.tokens_in for reply in replies),
            tokens_padded=inputs["input_ids"].numel(),
            tokens_out=sum(reply.tokens_out for reply in replies),
        )
        return replies

    def _group(self, asked: SizedRequest) -> object:
        """Returns the key of requests that may share a batch; videos must be of equal sizes."""
        sizes = asked.sizes if self._loaded.chat.frames_as == "video" else bool(asked.sizes)
        return sizes, replace(asked.request.sampling, seed=0)


def row_processors(requests: Sequence[Request], device: str) -> list[Any]:
    """Returns logits processors for `generate(do_sample=False)`; requests differ only in seed."""
    from transformers import TemperatureLogitsWarper, TopPLogitsWarper

    sampling = requests[0].sampling
    if sampling.temperature == 0:
        return []
    nucleus = [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    return [TemperatureLogitsWarper(sampling.temperature), *nucleus, _RowNoise(requests, device)]


class _RowNoise:
    """Adds Gumbel noise, float64 [B, V], to logits; the key of each row's request is the seed."""

    def __init__(self, requests: Sequence[Request], device: str) -> None:
        import torch

        self._generators = [
            torch.Generator(device).manual_seed(
                int.from_bytes(hashlib.sha256(request.key.encode()).digest()[:8], signed=True)
            )
            for request in requests
        ]

    def __call__(self, input_ids: "torch.Tensor", scores_BV: "torch.Tensor") -> "torch.Tensor":
        import torch

        uniform_BV = torch.empty_like(scores_BV, dtype=torch.float64)
        for uniform_V, generator in zip(uniform_BV, self._generators, strict=True):
            uniform_V.uniform_(generator=generator)
        return scores_BV - uniform_BV.log_().neg_().log_()


def _cost(batch: Sequence[SizedRequest]) -> int:
    """Counts the tokens of a batch, with padding and the longest possible answers."""
    longest = max(asked.request.sampling.max_tokens for asked in batch)
    return len(batch) * (max(asked.n_tokens for asked in batch) + longest)


def _refused(detail: str) -> Reply:
    return Reply(failure=Unanswered.REFUSED_REQUEST, detail=detail)


def _is_out_of_memory(error: BaseException) -> bool:
    import torch

    text = str(error)
    return (
        isinstance(error, torch.OutOfMemoryError | MemoryError)
        or "can't allocate memory" in text
        or "out of memory" in text
    )


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
