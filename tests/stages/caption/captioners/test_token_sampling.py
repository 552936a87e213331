"""Words are drawn as the request asks, whatever else is in the batch."""

# ruff: noqa: N806 - shape letters

from collections import Counter

import pytest
import torch
from vlm import request_of, task_of

from curator.stages.caption.caption_records import Request
from curator.stages.caption.captioners.local_model import row_processors

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 3.0, -4.0])


def drawn(requests: list[Request], logits: torch.Tensor, n_steps: int = 1) -> list[list[int]]:
    """Tokens of each row over some steps with the same logits."""
    processors = row_processors(requests, "cpu")
    tokens = []
    for _ in range(n_steps):
        scores_BV = logits.expand(len(requests), -1).float()
        for processor in processors:
            scores_BV = processor(torch.empty(0), scores_BV)
        tokens.append(scores_BV.argmax(dim=-1))
    return torch.stack(tokens, dim=1).tolist()


def test_draws_follow_the_nucleus_at_the_temperature() -> None:
    requests = [
        request_of(task_of("a"), temperature=1.5, max_tokens=10_000, seed=seed) for seed in range(8)
    ]
    rows = drawn(requests, LOGITS, 1000)
    found = Counter(token for row in rows for token in row)
    probabilities = (LOGITS / 1.5).softmax(dim=-1)
    # Descending: 0.50, 0.26, 0.13, 0.07 ...: four tokens hold 0.9 and three do not.
    held = probabilities.sort(descending=True).values.cumsum(0)
    assert held[2] < 0.9 < held[3]
    assert set(found) == {4, 0, 1, 2}
    for token in found:
        share = float(probabilities[token] / held[3])
        assert found[token] / 8000 == pytest.approx(share, abs=4 * (share / 8000) ** 0.5)


def test_a_row_does_not_depend_on_its_batch_and_does_on_seed_and_clip() -> None:
    one, other = task_of("one"), task_of("other")
    requests = [
        request_of(one, temperature=1.5),
        request_of(one, temperature=1.5, seed=1),
        request_of(other, temperature=1.5),
    ]
    together = drawn(requests, LOGITS, 30)
    assert [drawn([request], LOGITS, 30)[0] for request in requests] == together
    assert drawn(requests[::-1], LOGITS, 30) == together[::-1]
    assert len({tuple(row) for row in together}) == 3


def test_without_temperature_the_likeliest_is_taken() -> None:
    requests = [request_of(task_of("a"), temperature=0, seed=seed) for seed in range(4)]
    assert drawn(requests, LOGITS, 5) == [[4] * 5] * 4


def test_tokens_that_the_model_must_not_say_are_never_drawn() -> None:
    logits = torch.tensor([-torch.inf, -torch.inf, 0.0])
    requests = [request_of(task_of("a"), temperature=2.0, seed=seed) for seed in range(50)]
    assert {token for row in drawn(requests, logits, 20) for token in row} == {2}
