"""Who reads what: arithmetic alone, over many numbers of tars, samples, ranks and workers."""

import random
from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from curator.errors import UsageError
from curator.loading.batch_plan import (
    BatchClass,
    Corpus,
    Geometry,
    Plan,
    PlannedBatch,
    Schedule,
    Stretch,
    _in_turn,
    most_quotas,
    quotas,
    stratified,
)


def corpus_of(
    sizes: dict[str, tuple[int, ...]],
    *,
    weights: dict[str, float] | None = None,
    streams: int = 1,
    **options: object,
) -> Corpus:
    """Tars of classes, by name."""
    counts = [len(of_class) for of_class in sizes.values()]
    values: dict[str, object] = {
        "sizes": np.concatenate([np.array(tars) for tars in sizes.values()]),
        "classes": np.repeat(np.arange(len(sizes)), counts),
        "outputs": np.zeros(sum(counts), np.int64),
        "batch_classes": tuple(
            BatchClass(name=name, share=weights[name] if weights else None, streams=streams)
            for name in sizes
        ),
        "seed": 7,
        "shuffle": 5,
    }
    return Corpus(**(values | options))  # type: ignore[arg-type]


def read(schedule: Schedule, geometry: Geometry) -> list[list[PlannedBatch]]:
    """The batches of each rank, in the order in which a DataLoader asks its workers for them."""
    found = []
    for rank in range(geometry.world_size):
        lanes = [list(schedule.batches(rank, w)) for w in range(geometry.workers)]
        n = schedule.n_batches(rank)
        assert n == sum(map(len, lanes))
        batches = [lanes[step % geometry.workers][step // geometry.workers] for step in range(n)]
        assert [batch.step for batch in batches] == list(range(n))
        found.append(batches)
    return found


def samples_of(pools: list[list]) -> list[int]:  # type: ignore[type-arg]
    return [n for ps in pools for pool in ps for n in pool.part(0, len(pool)).tolist()]


def drawn_corpus(draw: random.Random) -> Corpus:
    """Any number of classes, outputs, tars, with shares of one kind or none."""
    n_classes, n_outputs = draw.randint(1, 3), draw.randint(1, 3)
    n_tars = draw.randint(max(n_classes, n_outputs), 12)
    kind = draw.choice(["none", "outputs", "classes"])
    shares = [draw.uniform(0.2, 1) for _ in range(n_classes)]
    outputs = [i if i < n_outputs else draw.randrange(n_outputs) for i in range(n_tars)]
    return Corpus(
        sizes=np.array([draw.randint(1, 30) for _ in range(n_tars)]),
        classes=np.array([i % n_classes for i in range(n_tars)]),
        outputs=np.array(outputs) * (kind == "outputs"),
        batch_classes=tuple(
            BatchClass(
                name=str(i),
                share=shares[i] if kind == "classes" else None,
                streams=draw.choice([1, 8]),
            )
            for i in range(n_classes)
        ),
        shares=tuple(draw.uniform(0.1, 1) for _ in range(n_outputs)) if kind == "outputs" else None,
        repeat=kind != "none" and draw.random() < 0.4,
        seed=draw.randint(0, 9),
        shuffle=draw.choice([0, 1, 5, 64]),
    )


def drawn_geometry(draw: random.Random, corpus: Corpus) -> Geometry:
    sizes = tuple(draw.randint(1, 4) for _ in corpus.batch_classes)
    return Geometry(draw.randint(1, 4), draw.randint(1, 4), sizes, draw.random() < 0.5)


@pytest.mark.parametrize(
    "seed", [*range(40), *(pytest.param(n, marks=pytest.mark.long) for n in range(40, 2000))]
)
def test_an_epoch_moves_between_geometries_without_repeats_or_losses(seed: int) -> None:
    """Pins the union of all stretches: what was read and what is left is the epoch, each once.

    Each stretch has other ranks, workers, batch sizes, and another `drop_last`. Without it, ranks
    stop after different numbers of batches.
    """
    draw = random.Random(seed)
    corpus, epoch = drawn_corpus(draw), draw.randint(0, 5)
    class_of = np.repeat(corpus.classes, corpus.sizes)
    history: list[Stretch] = []
    seen: list[int] = []
    for number in range(4):
        geometry = drawn_geometry(draw, corpus)
        try:
            plan = Plan(corpus, geometry)
        except UsageError:
            continue
        schedule = plan.schedule(epoch, history, geometry.workers)
        batches = read(schedule, geometry)
        for batch in (batch for of_rank in batches for batch in of_rank):
            size = geometry.batch_sizes[batch.i]
            assert len(batch.samples) == size if geometry.drop_last else len(batch.samples) >= 1
            assert len(batch.samples) <= size
            assert set(class_of[batch.samples % corpus.n_samples]) == {batch.i}
        if geometry.drop_last:
            kinds = [[batch.i for batch in of_rank] for of_rank in batches]
            assert kinds == [kinds[0]] * geometry.world_size
        stops = [len(b) if number == 3 else draw.randint(0, len(b)) for b in batches]
        stops = [min(stops)] * len(stops) if geometry.drop_last else stops
        for rank, stop in enumerate(stops):
            seen += [n for batch in batches[rank][:stop] for n in batch.samples.tolist()]
            worker = stop % geometry.workers
            later = next(schedule.batches(rank, worker, stop), None)
            if stop < len(batches[rank]):
                assert later is not None
                assert later.samples.tolist() == batches[rank][stop].samples.tolist()
        history.append(Stretch(geometry, tuple(stops)))
    if not history:
        return
    whole = plan.epoch(epoch, history[0].geometry)
    pools = whole
    for number, stretch in enumerate(history):
        done = Schedule(corpus, pools, stretch.geometry, (epoch, number))
        pools = done.remaining(stretch.batches)
    assert len(set(seen)) == len(seen)
    assert sorted(seen + samples_of(pools)) == sorted(samples_of(whole))
    if not corpus.repeat:
        assert max(samples_of(whole)) < corpus.n_samples
    if corpus.shares is None and not plan.has_shares:
        assert sorted(samples_of(whole)) == list(range(corpus.n_samples))
    if not history[-1].geometry.drop_last and len(history) == 4:
        assert not samples_of(pools)


def test_streams_mix_tars_and_lose_no_sample() -> None:
    """Pins that a batch has samples of many tars, each sample once, and the order without shuffle.

    Without streams, a window of the shuffle, and so a batch, lies in one large tar.
    """
    for n, streams in product(range(1, 40), (1, 3, 8)):
        assert sorted(_in_turn(n, streams).tolist()) == list(range(n))
    geometry = Geometry(1, 2, (8,), False)
    for streams, least, most in ((1, 1.0, 2.0), (8, 4.0, 8.0)):
        corpus = corpus_of({"*": (103,) * 24}, streams=streams, shuffle=64)
        (batches,) = read(Plan(corpus, geometry).schedule(0, (), 2), geometry)
        n_tars = [len(set((batch.samples // 103).tolist())) for batch in batches]
        assert sorted(n for batch in batches for n in batch.samples) == list(range(24 * 103))
        assert least <= sum(n_tars) / len(n_tars) <= most
    plan = Plan(replace(corpus, shuffle=0), geometry)
    in_order = [n for batch in plan.schedule(3, (), 1).batches(0, 0) for n in batch.samples]
    assert in_order == list(range(24 * 103))


def test_workers_have_tars_of_their_own() -> None:
    """Pins that 40 tars are read by 8 workers nearly apart: each has 5, and 2 more at most."""
    schedule = Plan(corpus_of({"a": (30,) * 40}), Geometry(2, 4, (3,), False)).schedule(1, (), 4)
    readers: Counter[int] = Counter()
    for rank, worker in product(range(2), range(4)):
        samples = np.concatenate([batch.samples for batch in schedule.batches(rank, worker)])
        tars = set((samples // 30).tolist())
        assert len(tars) <= 7
        readers.update(tars)
    assert max(readers.values()) <= 2
    assert sum(count == 1 for count in readers.values()) >= 32


@pytest.mark.parametrize("workers", [1, 3])
def test_classes_have_batch_sizes_of_their_own(workers: int) -> None:
    """Pins full batches, the same class at each step of all ranks, and what is never read."""
    sizes = {"a": (11, 20), "b": (50,), "c": (9,)}
    geometry = Geometry(4, workers, (3, 5, 4), True)
    plan = Plan(corpus_of(sizes), geometry)
    assert plan.unread == {"c": 9}
    batches = read(plan.schedule(2, (), workers), geometry)
    kinds = [[batch.i for batch in of_rank] for of_rank in batches]
    assert kinds == [kinds[0]] * 4
    assert Counter(kinds[0]) == {0: 2, 1: 2}
    assert all(len(b.samples) == (3, 5)[b.i] for of_rank in batches for b in of_rank)


def test_shares_are_exact_in_each_epoch_and_in_each_part_of_it() -> None:
    """Pins shares of outputs within one sample of each prefix, and even passes over all samples."""
    shares, sizes = (0.5, 0.3, 0.2), (60, 60, 45)
    corpus = corpus_of({"*": (20,) * 6 + (15,) * 3}, shares=shares, streams=8)
    corpus = replace(corpus, outputs=np.repeat([0, 1, 2], 3))
    geometry = Geometry(2, 2, (3,), True)
    plan = Plan(corpus, geometry)
    ends = np.cumsum(sizes)
    visits: Counter[int] = Counter()
    for epoch in range(6):
        steps = list(zip(*read(plan.schedule(epoch, (), 2), geometry), strict=True))
        counts = np.zeros(3)
        for step in steps:
            samples = np.concatenate([batch.samples for batch in step])
            visits.update(samples.tolist())
            outputs = np.searchsorted(ends, samples, side="right")
            counts += np.bincount(outputs, minlength=3)
            assert np.abs(counts - counts.sum() * np.array(shares)).max() < 2
        # The scarcest output ends the epoch: 60 of 120 samples; all 120 are 20 steps of 2 x 3.
        assert counts.tolist() == [60, 36, 24]
    of_outputs = [
        {n: visits[n] for n in range(end - size, end)}
        for end, size in zip(ends, sizes, strict=True)
    ]
    assert set(of_outputs[0].values()) == {6}
    for found in of_outputs[1:]:
        assert max(found.values()) - min(found.values()) <= 1
    repeated = Plan(replace(corpus, repeat=True), geometry)
    (pools,) = repeated.epoch(0, geometry)
    assert [len(pool) for pool in pools] == quotas(165, shares)
    assert quotas(165, shares)[0] > 60


def test_quotas_and_their_sequence() -> None:
    """Pins the divisions that all else rests on."""
    assert quotas(10, [1, 1, 1]) == [4, 3, 3]
    assert quotas(7, [0.5, 0.25, 0.25]) == [3, 2, 2]
    assert quotas(0, [1, 2]) == [0, 0]
    assert most_quotas([10, 100], [1, 3]) == [10, 31]
    assert most_quotas([10, 3], [0.999, 0.001]) == [10, 0]
    draw = random.Random(0)
    for _ in range(200):
        n, shares = draw.randint(2, 5), [draw.uniform(0.01, 1) for _ in range(5)]
        have = [draw.randint(0, 50) for _ in range(n)]
        found = most_quotas(have, shares[:n])
        assert all(q <= most for q, most in zip(found, have, strict=True))
        assert found == quotas(sum(found), shares[:n])
        above = [quotas(sum(found) + k, shares[:n]) for k in range(1, 20)]
        assert all(any(q > m for q, m in zip(qs, have, strict=True)) for qs in above)
    counts = [70, 20, 10]
    labels = stratified(counts, np.random.default_rng(1))
    for end in range(1, 101):
        prefix = np.bincount(labels[:end], minlength=3)
        assert np.abs(prefix - end * np.array(counts) / 100).max() < 2
