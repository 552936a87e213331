"""Words are drawn as the request asks, whatever else is in the batch."""

# ruff: noqa: N806 - shape letters

from collections import Counter

import pytest
import torch
from vlm import request_of, task_of

from curator.stages.caption.caption_records import Request
from curator.stages.caption.captioners import token_sampling as words
from curator.stages.caption.captioners.token_sampling import RowSampler

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 3.0, -4.0])


def drawn(requests: list[Request], logits: torch.Tensor, n_steps: int = 1) -> list[list[int]]:
    """Tokens of each row over some steps with the same logits."""
    sampler = RowSampler(requests, end_token=0, device="cpu")
    scores_BV = logits.expand(len(requests), -1).float()
    steps = [sampler(torch.empty(0), scores_BV.clone()) for _ in range(n_steps)]
    if any(request.sampling.temperature > 0 for request in requests):
        for left_BV in steps:
            assert (left_BV.isfinite().sum(dim=-1) == 1).all()
    return torch.stack([left_BV.argmax(dim=-1) for left_BV in steps], dim=1).tolist()


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


def test_few_candidates_give_what_all_tokens_would(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(500, generator=torch.Generator().manual_seed(1))
    requests = [
        request_of(task_of("a"), temperature=t, max_tokens=99, seed=seed)
        for seed, t in enumerate((0.1, 0.5, 1.0, 2.0, 0.0))
    ]
    some = drawn(requests, logits, 20)
    monkeypatch.setattr(words, "CANDIDATES", 500)
    assert drawn(requests, logits, 20) == some
    monkeypatch.setattr(words, "CANDIDATES", 2)
    assert drawn(requests, logits, 20) == some
    assert len(set(some[3])) > 5
    assert set(some[4]) == {int(logits.argmax())}


def test_a_row_does_not_depend_on_its_batch_and_does_on_seed_and_clip() -> None:
    one, other = task_of("one"), task_of("other")
    requests = [
        request_of(one, temperature=1.5, max_tokens=99),
        request_of(one, temperature=1.5, max_tokens=99, seed=1),
        request_of(other, temperature=1.5, max_tokens=99),
        request_of(other, temperature=0, max_tokens=99),
    ]
    together = drawn(requests, LOGITS, 30)
    assert [drawn([request], LOGITS, 30)[0] for request in requests] == together
    assert drawn(requests[::-1], LOGITS, 30) == together[::-1]
    assert len({tuple(row) for row in together}) == 4
    assert set(together[3]) == {4}


def test_a_row_ends_at_its_own_limit_while_others_go_on() -> None:
    requests = [request_of(task_of("a"), max_tokens=n) for n in (2, 5)]
    assert drawn(requests, LOGITS, 5) == [[4, 4, 0, 0, 0], [4, 4, 4, 4, 4]]


def test_noise_is_the_published_generator() -> None:
    # First outputs of SplitMix64 from seed 0, as published with its reference implementation.
    states = torch.tensor(
        [(n * words._GOLDEN) & (2**64 - 1) for n in (1, 2, 3)], dtype=torch.uint64
    )
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    mixed = words._mixed(states.view(torch.int64)).tolist()
    assert [value & (2**64 - 1) for value in mixed] == expected
