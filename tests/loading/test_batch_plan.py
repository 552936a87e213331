"""Who reads what: arithmetic alone, over many numbers of tars, samples, ranks and workers."""

import random
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from curator.loading.batch_plan import BucketPlan, Plan, Setting, _in_turn, dealt, quotas


def plan_of(
    sizes: dict[str, tuple[int, ...]],
    *,
    weights: dict[str, float] | None = None,
    batch_size: int = 3,
    drop_last: bool = False,
    shuffle: int = 5,
    rank: int = 0,
    world_size: int = 1,
) -> Plan:
    setting = Setting(
        seed=7, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, rank=rank,
        world_size=world_size,
    )  # fmt: skip
    chosen = weights or dict.fromkeys(sizes)
    return Plan([BucketPlan(name=n, sizes=sizes[n], weight=chosen[n]) for n in sizes], setting)


def batches_of(plan: Plan, epoch: int, worker: int, workers: int) -> list[tuple[int, list]]:
    """Bucket, and samples as (tar, number), of each of a worker's batches."""
    lanes = plan.lanes(worker, workers)
    given: Counter[int] = Counter()
    found = []
    for i in plan.sequence(epoch, worker, lanes).tolist():
        number = epoch * lanes[i].quota + given[i]
        found.append((i, plan.batch(i, lanes[i], number)[1]))
        given[i] += 1
    return found


@pytest.mark.parametrize("seed", range(12))
def test_each_sample_once_whatever_the_numbers(seed: int) -> None:
    """Pins exact division, for any ranks and workers, and that workers differ by one batch."""
    draw = random.Random(seed)
    sizes = {name: tuple(draw.randint(1, 30) for _ in range(draw.randint(1, 6))) for name in "abc"}
    ranks, workers, epoch = draw.randint(1, 5), draw.randint(1, 7), draw.randint(0, 3)
    shuffle = draw.choice([0, 1, 5, 64])
    seen: Counter[tuple[int, int, int]] = Counter()
    for rank in range(ranks):
        plan = plan_of(
            sizes, batch_size=draw.choice([1, 3]), shuffle=shuffle, rank=rank, world_size=ranks
        )
        counts = []
        for worker in range(workers):
            batches = batches_of(plan, epoch, worker, workers)
            counts.append(len(batches))
            seen.update((i, *sample) for i, samples in batches for sample in samples)
        assert sum(counts) == plan.steps
        assert counts == [
            plan.steps // workers + (w < plan.steps % workers) for w in range(workers)
        ]
    expected = {
        (i, tar, number)
        for i, tars in enumerate(sizes.values())
        for tar, size in enumerate(tars)
        for number in range(size)
    }
    assert set(seen) == expected
    assert set(seen.values()) == {1}


def test_streams_mix_tars_and_lose_no_sample() -> None:
    """Pins that a batch has samples of many tars, each sample once, and the order without shuffle.

    Without streams, a window of the shuffle, and so a batch, lies in one large tar.
    """
    for n, streams in product(range(1, 40), (1, 3, 8)):
        assert sorted(_in_turn(place, n, streams) for place in range(n)) == list(range(n))
    setting = Setting(
        seed=1, batch_size=8, shuffle=64, drop_last=False, rank=0, world_size=1
    )  # fmt: skip
    for streams, least, most in ((1, 1.0, 2.0), (8, 4.0, 8.0)):
        seen: Counter[tuple[int, int]] = Counter()
        n_tars = []
        bucket = BucketPlan(name="*", sizes=(103,) * 24, weight=None, streams=streams)
        plan = Plan([bucket], setting)
        for worker in range(2):
            for _, samples in batches_of(plan, 0, worker, 2):
                n_tars.append(len({tar for tar, _ in samples}))
                seen.update(samples)
        assert len(seen) == sum(seen.values()) == 24 * 103
        assert least <= sum(n_tars) / len(n_tars) <= most
    plan = Plan([bucket], replace(setting, shuffle=0))
    in_order = [sample for _, samples in batches_of(plan, 3, 0, 1) for sample in samples]
    assert in_order == sorted(in_order)


def test_workers_have_tars_of_their_own() -> None:
    """Pins that 40 tars are read by 8 workers nearly apart: each has 5, and 2 more at most."""
    sizes = {"a": (30,) * 40}
    readers: Counter[int] = Counter()
    for rank, worker in product(range(2), range(4)):
        plan = plan_of(sizes, rank=rank, world_size=2)
        tars = {tar for _, samples in batches_of(plan, 1, worker, 4) for tar, _ in samples}
        assert len(tars) <= 7
        readers.update(tars)
    assert max(readers.values()) <= 2
    assert sum(count == 1 for count in readers.values()) >= 33


@pytest.mark.parametrize("workers", [1, 3])
def test_with_drop_last_ranks_agree_on_the_bucket_of_each_step(workers: int) -> None:
    """Pins equal steps and buckets for every rank, with full batches and no sample twice."""
    sizes = {"a": (11, 20), "b": (50,), "c": (9,)}
    seen: Counter[tuple[int, int, int]] = Counter()
    kinds = []
    for rank in range(4):
        plan = plan_of(sizes, drop_last=True, rank=rank, world_size=4)
        assert plan.unread == {"c": 9}
        steps = []
        for worker in range(workers):
            batches = batches_of(plan, 2, worker, workers)
            assert all(len(samples) == 3 for _, samples in batches)
            steps.append([i for i, _ in batches])
            seen.update((i, *sample) for i, samples in batches for sample in samples)
        kinds.append(steps)
    assert kinds == [kinds[0]] * 4
    assert set(seen.values()) == {1}
    assert Counter(i for i, _, _ in seen) == {0: 24, 1: 48}


def test_shares_of_batches_are_exact_in_each_epoch() -> None:
    """Pins largest remainders, over ranks and workers."""
    sizes = {"a": (60,), "b": (30, 30), "c": (1,)}
    weights = {"a": 0.5, "b": 0.3, "c": 0.2}
    for epoch in range(3):
        kinds: Counter[int] = Counter()
        for rank, worker in product(range(2), range(2)):
            plan = plan_of(sizes, weights=weights, rank=rank, world_size=2)
            kinds.update(i for i, _ in batches_of(plan, epoch, worker, 2))
        total = sum(kinds.values())
        assert total == 41
        assert all(abs(kinds[i] - total * share) <= 2 for i, share in enumerate((0.5, 0.3, 0.2)))
    # The two divisions that all else rests on.
    assert dealt([7, 2, 0, 4], 3) == [[3, 2, 2], [0, 1, 1], [0, 0, 0], [2, 1, 1]]
    assert quotas(10, [1, 1, 1]) == [4, 3, 3]
    assert quotas(7, [0.5, 0.25, 0.25]) == [3, 2, 2]
    assert quotas(0, [1, 2]) == [0, 0]
