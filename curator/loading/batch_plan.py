"""Computes which samples an epoch has, and which rank and worker reads each of them in which order.

Nothing depends on earlier reads, so a position in an epoch is a number of batches per rank.

The samples of an epoch are a *pool* for each class of batches and each output; they depend on seed,
epoch and shares only. A `Schedule` divides pools among ranks and workers: it draws the class of
each step, which all ranks have in common, and the output of each place in the batches. Each worker
then gets a contiguous piece of each pool, so two workers share at most the tars where their pieces
meet, and no worker is idle if there are fewer tars than workers. If ranks, workers or batch sizes
change within an epoch, the next schedule divides what the schedules before it did not read.

Worker `s % workers` makes batch `s` of a rank, in the order of PyTorch's DataLoader.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from curator.errors import UsageError

MAX_LISTED = 8
"""Most buckets that a message names."""
_CYCLE, _TARS, _ROLL, _CLASSES, _OUTPUTS, _BLOCKS = range(6)
"""Purposes of random numbers; each purpose has its own stream."""

Numbers = NDArray[np.int64]


def random_of(seed: int, *numbers: int) -> np.random.Generator:
    """Returns a generator that is seeded with all the numbers."""
    return np.random.default_rng([seed & (2**64 - 1), *numbers])


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClass:
    """Clips whose batches have one shape.

    Attributes:
        share: Share of the batches; None if classes have no shares.
        streams: Parts of a worker's samples from which it reads in turn, if it shuffles. A tar has
            one bucket, so several streams put clips of several buckets into a batch.
    """

    name: str
    share: float | None = None
    streams: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The tars to read, by their index, and how their samples are drawn.

    Attributes:
        sizes: Number of samples of each tar. Samples are numbered through all tars.
        classes: Index of each tar's class.
        outputs: Index of each tar's output; all 0 if outputs have no shares.
        shares: Share of each output in the samples; None for all samples of all outputs.
        repeat: Whether an epoch with shares is as long as the corpus and repeats samples.
        shuffle: Window of the shuffle, in samples; 0 keeps the order of tars and samples.
    """

    sizes: Numbers
    classes: Numbers
    outputs: Numbers
    batch_classes: tuple[BatchClass, ...]
    shares: tuple[float, ...] | None = None
    repeat: bool = False
    seed: int = 0
    shuffle: int = 0

    @property
    def n_samples(self) -> int:
        """Number of samples in all tars."""
        return int(self.sizes.sum())

    @property
    def n_outputs(self) -> int:
        """Number of outputs with a share, or 1."""
        return len(self.shares or (1.0,))

    def n_of(self, labels: Numbers, count: int) -> list[int]:
        """Returns the number of samples for each of `count` labels of tars."""
        totals = np.bincount(labels, self.sizes, minlength=count)
        return [int(total) for total in totals]


class Geometry(NamedTuple):
    """How batches are divided: `batch_sizes` are by class.

    With `drop_last`, all ranks have the same number of batches, and only full batches.
    """

    world_size: int
    workers: int
    batch_sizes: tuple[int, ...]
    drop_last: bool


class Stretch(NamedTuple):
    """A part of an epoch that was read with one geometry: the number of batches of each rank."""

    geometry: Geometry
    batches: tuple[int, ...]


class PlannedBatch(NamedTuple):
    """A batch: its number on the rank, its class, and its samples by number.

    Numbers from `Corpus.n_samples` on are repetitions within the epoch.
    """

    step: int
    i: int
    samples: Numbers


class Pool:
    """Samples in the order of an epoch, as ranges of numbers: a range is most of a tar."""

    def __init__(self, starts: Numbers, lengths: Numbers) -> None:
        self._starts, self._lengths = starts, lengths
        self._ends = np.cumsum(lengths)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def part(self, begin: int, end: int) -> Numbers:
        """Returns the samples at the places from `begin` to before `end`."""
        if begin >= end:
            return np.empty(0, np.int64)
        first = int(np.searchsorted(self._ends, begin, side="right"))
        last = int(np.searchsorted(self._ends, end, side="left")) + 1
        starts, lengths = self._starts[first:last].copy(), self._lengths[first:last].copy()
        within = begin - int(self._ends[first] - lengths[0])
        starts[0] += within
        lengths[0] -= within
        lengths[-1] -= int(self._ends[last - 1]) - end
        before = np.cumsum(lengths) - lengths
        return np.repeat(starts - before, lengths) + np.arange(end - begin)

    def without(self, consumed: Numbers) -> "Pool":
        """Returns the samples that are not in `consumed`, in the same order."""
        if not len(consumed):
            return self
        samples = self.part(0, len(self))
        left = samples[~np.isin(samples, consumed, assume_unique=True)]
        breaks = np.flatnonzero(np.diff(left) != 1) + 1
        begins = np.concatenate([[0], breaks]) if len(left) else breaks
        return Pool(left[begins], np.diff(np.append(begins, len(left))))

    def rolled(self, by: int) -> "Pool":
        """Returns the same samples from place `by` on, then those before it."""
        if not 0 < by < len(self):
            return self
        i = int(np.searchsorted(self._ends, by, side="right"))
        within = by - int(self._ends[i] - self._lengths[i])
        starts, lengths = np.roll(self._starts, -i), np.roll(self._lengths, -i)
        starts = np.append(starts, starts[0])
        lengths = np.append(lengths, within)
        starts[0] += within
        lengths[0] -= within
        return Pool(starts, lengths)


def quotas(total: int, weights: Sequence[float]) -> list[int]:
    """Divides a total into whole shares by the largest-remainder method."""
    exact = [total * weight / sum(weights) for weight in weights]
    whole = [int(share) for share in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: whole[i] - exact[i])
    for i in by_rest[: total - sum(whole)]:
        whole[i] += 1
    return whole


def most_quotas(available: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Returns the quotas of the largest total of which none is more than what is available."""
    scale = sum(weights)
    total = min(
        int((most + 1) * scale / weight) for most, weight in zip(available, weights, strict=True)
    )
    while any(q > most for q, most in zip(quotas(total, weights), available, strict=True)):
        total -= 1
    return quotas(total, weights)


def stratified(counts: Sequence[int], random: np.random.Generator) -> Numbers:
    """Returns a sequence of labels, of which each prefix has about the shares of the whole."""
    if len(counts) == 1:
        return np.zeros(counts[0], np.int64)
    keys = [(np.arange(n) + random.random(n)) / max(n, 1) for n in counts]
    labels = np.repeat(np.arange(len(counts)), counts)
    return labels[np.argsort(np.concatenate(keys), kind="stable")]


class Plan:
    """The samples of each epoch, and their division.

    Raises:
        UsageError: No class fills a batch for each rank, or a share is less than one batch.
    """

    def __init__(self, corpus: Corpus, geometry: Geometry) -> None:
        self.corpus, self.geometry = corpus, geometry
        self._starts = np.cumsum(corpus.sizes) - corpus.sizes
        if corpus.shares is not None and 0 in corpus.n_of(corpus.outputs, corpus.n_outputs):
            raise UsageError(
                "shares has a share of an output without clips to read; leave the output out, or "
                "loosen where, view or buckets"
            )
        self._check(corpus.n_of(corpus.classes, len(corpus.batch_classes)))
        self._check_shares()

    def _check(self, totals: Sequence[int]) -> None:
        corpus, (ranks, _, sizes, drop_last) = self.corpus, self.geometry
        names = [each.name for each in corpus.batch_classes]
        steps = self._whole_steps(self.geometry)
        is_read = [bool(n) or not drop_last for n in steps]
        facts = {name: n for name, n in zip(names, totals, strict=True)}
        if not any(is_read):
            of = "" if len(set(sizes)) > 1 else f"of {sizes[0]} "
            raise UsageError(
                f"no bucket has a full batch {of}for each of {ranks} ranks (samples: "
                f"{listed(facts)}); lower batch_size, set drop_last=False, or give size=(width, "
                "height), so that all clips share batches"
            )
        self.unread = {
            name: n
            for (name, n), full in sorted(
                zip(facts.items(), is_read, strict=True), key=lambda item: -item[0][1]
            )
            if not full
        }
        """Samples of classes that have no full batch for each rank, and so are never read."""
        if self._class_shares is None:
            return
        for name, n, size, n_steps in zip(names, totals, sizes, steps, strict=True):
            needed = size if corpus.repeat else size * ranks
            if (drop_last and n < size) or (not corpus.repeat and not n_steps):
                raise UsageError(
                    f"bucket {name!r} has a weight but only {n} samples, fewer than "
                    f"{'batch_size' if needed == size else 'batch_size times ranks,'} {needed}; "
                    "lower batch_size, leave the bucket out"
                    + (", or set drop_last=False" if corpus.repeat else ", or give repeat=True")
                )
        self.unread = {}

    def _check_shares(self) -> None:
        """Refuses shares that would never be read."""
        for group, n in enumerate(self._counts(self.geometry)):
            if n == 0:
                of_class = self._class_shares is not None
                name = self.corpus.batch_classes[group].name if of_class else f"output {group}"
                raise UsageError(
                    f"the share of {name!r} is so small that an epoch has none of its clips; raise "
                    "it, leave it out, or give repeat=True, which makes epochs longer"
                )

    @property
    def _class_shares(self) -> list[float] | None:
        shares = [each.share for each in self.corpus.batch_classes]
        return None if None in shares else [share or 0.0 for share in shares]

    @property
    def has_shares(self) -> bool:
        """Whether outputs or classes have shares."""
        return self.corpus.shares is not None or self._class_shares is not None

    def _whole_steps(self, geometry: Geometry) -> list[int]:
        """Returns the number of steps of each class in which all ranks have full batches."""
        totals = self.corpus.n_of(self.corpus.classes, len(self.corpus.batch_classes))
        return [
            n // (size * geometry.world_size)
            for n, size in zip(totals, geometry.batch_sizes, strict=True)
        ]

    def epoch(self, epoch: int, geometry: Geometry) -> list[list[Pool]]:
        """Returns the pools of an epoch, by class and output.

        `geometry` is the epoch's first one: shares of batches are whole steps of it.
        """
        corpus = self.corpus
        shares = self._class_shares
        groups = corpus.outputs if shares is None else corpus.classes
        parts = [
            self._window(epoch, np.flatnonzero(groups == group), n, group)
            for group, n in enumerate(self._counts(geometry))
        ]
        tars, starts, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
        outputs = corpus.outputs[tars] if shares is None else np.zeros_like(tars)
        return [
            [
                self._ordered(epoch, i, output, starts[chosen], lengths[chosen])
                for output in range(corpus.n_outputs)
                for chosen in [(corpus.classes[tars] == i) & (outputs == output)]
            ]
            for i in range(len(corpus.batch_classes))
        ]

    def _counts(self, geometry: Geometry) -> Sequence[int | None]:
        """Returns the samples of an epoch by output, or by class if classes have shares.

        None stands for all samples.
        """
        corpus, repeat = self.corpus, self.corpus.repeat
        if (shares := self._class_shares) is not None:
            whole = self._whole_steps(geometry)
            steps = quotas(max(1, sum(whole)), shares) if repeat else most_quotas(whole, shares)
            sizes = geometry.batch_sizes
            return [n * size * geometry.world_size for n, size in zip(steps, sizes, strict=True)]
        if corpus.shares is None:
            return [None]
        totals = corpus.n_of(corpus.outputs, corpus.n_outputs)
        return quotas(sum(totals), corpus.shares) if repeat else most_quotas(totals, corpus.shares)

    def _window(
        self, epoch: int, tars: Numbers, n: int | None, group: int
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Returns ranges of samples of an epoch: each range's tar, first number and length.

        The `n` samples are the next ones in a cycle of all samples of these tars, so epochs go
        through the cycle evenly; None is the whole cycle.
        """
        corpus = self.corpus
        if n is None:
            return tars, self._starts[tars], corpus.sizes[tars]
        if corpus.shuffle:
            tars = random_of(corpus.seed, _CYCLE, group).permutation(tars)
        total = int(corpus.sizes[tars].sum())
        found = [
            (tars, self._starts[tars] + copy * corpus.n_samples, corpus.sizes[tars])
            for copy in range(n // total)
        ]
        begin, length = epoch * n % total, n % total
        twice = np.concatenate([tars, tars])
        ends = np.cumsum(corpus.sizes[twice])
        begins = ends - corpus.sizes[twice]
        lows, highs = np.maximum(begins, begin), np.minimum(ends, begin + length)
        inside = highs > lows
        starts = self._starts[twice] + (lows - begins) + (n // total) * corpus.n_samples
        found.append((twice[inside], starts[inside], (highs - lows)[inside]))
        first, second, third = zip(*found, strict=True)
        return np.concatenate(first), np.concatenate(second), np.concatenate(third)

    def _ordered(self, epoch: int, i: int, output: int, starts: Numbers, lengths: Numbers) -> Pool:
        """Returns a pool with its ranges in the order of an epoch.

        It begins anywhere, so that `drop_last` leaves out other samples in each epoch.
        """
        corpus = self.corpus
        if not corpus.shuffle:
            return Pool(starts, lengths)
        key = (crc32(corpus.batch_classes[i].name.encode()), output)
        order = random_of(corpus.seed, _TARS, epoch, *key).permutation(len(starts))
        copies = starts[order] // corpus.n_samples
        order = order[np.argsort(copies, kind="stable")]
        pool = Pool(starts[order], lengths[order])
        return pool.rolled(int(random_of(corpus.seed, _ROLL, epoch, *key).integers(len(pool) or 1)))

    def schedule(self, epoch: int, history: Sequence[Stretch], workers: int) -> "Schedule":
        """Returns the schedule of what an epoch's earlier stretches did not read."""
        own = self.geometry._replace(workers=workers)
        pools = self.epoch(epoch, history[0].geometry if history else own)
        for number, stretch in enumerate(history):
            done = Schedule(self.corpus, pools, stretch.geometry, (epoch, number))
            pools = done.remaining(stretch.batches)
        return Schedule(self.corpus, pools, own, (epoch, len(history)))


class Schedule:
    """The division of pools among steps, ranks and workers.

    Args:
        corpus: The tars.
        pools: The samples by class and output.
        geometry: The division.
        key: Epoch and number of the schedule in it, for random numbers.
    """

    def __init__(
        self,
        corpus: Corpus,
        pools: Sequence[Sequence[Pool]],
        geometry: Geometry,
        key: tuple[int, int],
    ) -> None:
        self._corpus, self._pools, self._key = corpus, pools, key
        self._workers = workers = geometry.workers
        ranks = geometry.world_size
        counts = [sum(map(len, of_class)) for of_class in pools]
        units = [size * ranks for size in geometry.batch_sizes]
        steps = [
            n // unit if geometry.drop_last else -(-n // unit)
            for n, unit in zip(counts, units, strict=True)
        ]
        self._classes = stratified(steps, random_of(corpus.seed, _CLASSES, *key))
        sizes = np.repeat(np.array(geometry.batch_sizes)[self._classes][:, None], ranks, axis=1)
        places = [np.flatnonzero(self._classes == i) for i in range(len(pools))]
        for place, n, unit in zip(places, counts, units, strict=True):
            if not geometry.drop_last and n % unit:
                # The last step of a class may have fewer samples, or none for some ranks.
                sizes[place[-1]] = np.diff(n % unit * np.arange(ranks + 1) // ranks)
        self._numbers = np.cumsum(sizes > 0, axis=0) - 1
        """Number of the rank's batch at each step and rank."""
        self._lanes = np.where(sizes > 0, np.arange(ranks) * workers + self._numbers % workers, -1)
        self._steps = places
        self._counts = [self._of_outputs(i, sizes[place]) for i, place in enumerate(places)]
        """Samples in each batch, by class: integers [outputs, steps of the class, ranks]."""
        self._nth = np.zeros(len(self._classes), np.int64)
        """Number of each step among the steps of its class."""
        for place in places:
            self._nth[place] = np.arange(len(place))
        self._n_lanes = ranks * workers
        self._ends = [
            [
                np.concatenate([[0], np.cumsum(self._per_lane(i, counts))])
                for counts in self._counts[i]
            ]
            for i in range(len(pools))
        ]
        """Place in a pool where each worker's piece begins, by class and output."""
        self._runs: dict[tuple[int, int, int], Numbers] = {}

    def _of_outputs(self, i: int, sizes: Numbers) -> Numbers:
        pools = self._pools[i]
        if len(pools) == 1:
            return sizes[None]
        name = crc32(self._corpus.batch_classes[i].name.encode())
        labels = stratified(
            [len(pool) for pool in pools], random_of(self._corpus.seed, _OUTPUTS, *self._key, name)
        )
        ends = np.cumsum(sizes)
        counts = []
        for output in range(len(pools)):
            until = np.concatenate([[0], np.cumsum(labels == output)])
            counts.append((until[ends] - until[ends - sizes.ravel()]).reshape(sizes.shape))
        return np.stack(counts)

    def n_batches(self, rank: int) -> int:
        """Number of batches of a rank."""
        return int((self._lanes[:, rank] >= 0).sum())

    @property
    def n_samples(self) -> int:
        """Number of samples in the batches of all ranks."""
        return sum(int(counts.sum()) for counts in self._counts)

    def batches(self, rank: int, worker: int, first: int = 0) -> Iterator[PlannedBatch]:
        """Yields a worker's batches from the rank's batch `first` on."""
        lane = rank * self._workers + worker
        done = [[0] * len(of_class) for of_class in self._pools]
        for step in np.flatnonzero(self._lanes[:, rank] == lane).tolist():
            i, number = int(self._classes[step]), int(self._numbers[step, rank])
            counts = self._counts[i][:, self._nth[step], rank].tolist()
            begins, done[i] = done[i], [n + m for n, m in zip(done[i], counts, strict=True)]
            if number >= first:
                parts = [
                    self._run(i, output, lane)[begin : begin + count]
                    for output, (begin, count) in enumerate(zip(begins, counts, strict=True))
                ]
                yield PlannedBatch(number, i, np.concatenate(parts))

    def remaining(self, batches: Sequence[int]) -> list[list[Pool]]:
        """Returns the pools without what ranks have read in their first batches."""
        read = self._numbers < np.asarray(batches)
        return [
            [pool.without(self._consumed(i, output, read)) for output, pool in enumerate(of_class)]
            for i, of_class in enumerate(self._pools)
        ]

    def _consumed(self, i: int, output: int, read: NDArray[np.bool_]) -> Numbers:
        counts = np.where(read[self._steps[i]], self._counts[i][output], 0)
        per_lane = self._per_lane(i, counts)
        parts = [
            self._drawn(i, output, lane)[: per_lane[lane]]
            for lane in np.flatnonzero(per_lane).tolist()
        ]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def _per_lane(self, i: int, counts: Numbers) -> Numbers:
        """Sums samples of batches [steps of the class, ranks] per worker of each rank."""
        lanes = self._lanes[self._steps[i]]
        made = lanes >= 0
        totals = np.bincount(lanes[made], counts[made], minlength=self._n_lanes)
        return totals.astype(np.int64)

    def _run(self, i: int, output: int, lane: int) -> Numbers:
        if (i, output, lane) not in self._runs:
            self._runs[i, output, lane] = self._drawn(i, output, lane)
        return self._runs[i, output, lane]

    def _drawn(self, i: int, output: int, lane: int) -> Numbers:
        """Returns the samples of a pool that one worker of a rank reads, in its order."""
        corpus = self._corpus
        begin, end = self._ends[i][output][lane : lane + 2].tolist()
        samples = self._pools[i][output].part(begin, end)
        if not corpus.shuffle or len(samples) < 2:
            return samples
        samples = samples[_in_turn(len(samples), corpus.batch_classes[i].streams)]
        name = crc32(corpus.batch_classes[i].name.encode())
        random = random_of(corpus.seed, _BLOCKS, *self._key, name, output, lane)
        blocks = np.arange(len(samples)) // corpus.shuffle
        shuffled: Numbers = samples[np.argsort(blocks + random.random(len(samples)))]
        return shuffled


def _in_turn(n: int, streams: int) -> Numbers:
    """Divides [0, n) into equal parts; returns the numbers if each part has its turn."""
    length, longer = divmod(n, streams)
    within, part = np.divmod(np.arange(n), streams)
    order: Numbers = part * length + np.minimum(part, longer) + within
    return order


def listed(facts: Mapping[str, object]) -> str:
    """Names buckets, each with a fact."""
    named = [f"{name}: {fact}" for name, fact in facts.items()]
    more = f" and {len(named) - MAX_LISTED} more" if len(named) > MAX_LISTED else ""
    return ", ".join(named[:MAX_LISTED]) + more


def normalized(weights: Mapping[str, float], kind: str = "bucket") -> dict[str, float]:
    """Scales weights to a sum of 1.

    Raises:
        UsageError: A weight is not a positive number.
    """
    for name, weight in weights.items():
        if not isinstance(weight, int | float) or not (0 < weight < float("inf")):
            raise UsageError(
                f"weight {weight!r} of {kind} {name!r}; expected a number above 0 (leave the "
                f"{kind} out to read none of it)"
            )
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}
