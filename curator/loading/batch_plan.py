"""Computes the order of samples from their counts, a seed and an epoch.

The order does not depend on earlier reads, so an epoch and a step identify a position.

A *round* of a bucket is one pass over its samples. Each round draws an order of the tars, and
shuffles samples within windows. Each rank reads one contiguous piece of the round, and each worker
of the rank reads a contiguous run of the piece's batches. Two workers share at most the tar where
their runs meet, and no worker is idle if there are fewer tars than workers.

Worker `s % num_workers` makes step `s` of a rank, in the order of PyTorch's DataLoader.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from curator.errors import UsageError

MAX_LISTED = 8
"""Most buckets that a message names."""
_SEQUENCE, _ROUND, _BLOCK, _DROPPED = range(4)
"""Purposes of random numbers; each purpose has its own stream."""


def random_of(seed: int, *numbers: int) -> np.random.Generator:
    """Returns a generator that is seeded with all the numbers."""
    return np.random.default_rng([seed & (2**64 - 1), *numbers])


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPlan:
    """The reading plan of one bucket, or of all buckets whose clips share batches.

    Attributes:
        sizes: Number of samples in each tar, in the order of the tars' names.
        weight: Share of the batches; None for the batches of one round.
        streams: Parts of a worker's samples from which it reads in turn, if it shuffles. A tar has
            one bucket, so several streams put clips of several buckets into a batch.
    """

    name: str
    sizes: tuple[int, ...]
    weight: float | None
    streams: int = 1

    @property
    def n_samples(self) -> int:
        """Number of samples in all tars."""
        return sum(self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Settings of the order, and of the division among ranks.

    Attributes:
        shuffle: Window of the shuffle, in samples; 0 keeps the order of tars and samples.
        drop_last: Whether all ranks have the same number of batches, and only full batches.
    """

    seed: int
    batch_size: int
    shuffle: int
    drop_last: bool
    rank: int
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShare:
    """The samples of a bucket that one worker reads.

    Attributes:
        start: First sample, by its place in the order of a round; `stop` is exclusive.
        n_batches: Number of batches in a round.
        quota: Number of batches in an epoch.
        salt: Distinguishes the random orders of workers that read the same samples; else 0.
    """

    start: int
    stop: int
    n_batches: int
    quota: int
    salt: int = 0


def dealt(counts: Sequence[int], ways: int) -> list[list[int]]:
    """Divides each count into `ways` parts; returns the parts of each count.

    The parts of a count differ by at most one. So do the totals of the ways, and the first ways
    have the larger totals.
    """
    parts, begin = [], 0
    for count in counts:
        base, extra = divmod(count, ways)
        parts.append([base + ((way - begin) % ways < extra) for way in range(ways)])
        begin = (begin + extra) % ways
    return parts


def quotas(total: int, weights: Sequence[float]) -> list[int]:
    """Divides a total into whole shares by the largest-remainder method."""
    exact = [total * weight / sum(weights) for weight in weights]
    whole = [int(share) for share in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: whole[i] - exact[i])
    for i in by_rest[: total - sum(whole)]:
        whole[i] += 1
    return whole


class Plan:
    """The samples of a rank and of each of its workers.

    Args:
        buckets: Sorted by name. All buckets have a weight, or no bucket has one.

    Raises:
        UsageError: With `drop_last`, no bucket has a full batch for each rank, or a bucket with a
            weight has less than one batch.
    """

    def __init__(self, buckets: Sequence[BucketPlan], setting: Setting) -> None:
        self.buckets = tuple(buckets)
        self.setting = setting
        size, ranks = setting.batch_size, setting.world_size
        self._pieces = [self._piece(bucket.n_samples) for bucket in buckets]
        self._n_batches = [-(-(stop - start) // size) for start, stop in self._pieces]
        self._quotas = self._n_batches
        self.steps = sum(self._n_batches)
        # With `drop_last`, all ranks read the same number of batches of a bucket.
        is_read = [not setting.drop_last or b.n_samples >= ranks * size for b in buckets]
        if not any(is_read):
            raise UsageError(
                f"no bucket has a full batch of {size} for each of {ranks} ranks (samples: "
                f"{listed({b.name: b.n_samples for b in buckets})}); lower batch_size, set "
                "drop_last=False, or give size=(width, height), so that all clips share batches"
            )
        pairs = zip(buckets, is_read, strict=True)
        unread = [(b.name, b.n_samples) for b, is_full in pairs if not is_full]
        self.unread = dict(sorted(unread, key=lambda item: -item[1]))
        """Samples of buckets that are left out, because they lack a full batch for each rank and a
        weight."""
        if buckets[0].weight is not None:
            for bucket in buckets:
                if setting.drop_last and bucket.n_samples < size:
                    raise UsageError(
                        f"bucket {bucket.name!r} has a weight but only {bucket.n_samples} samples, "
                        f"fewer than batch_size {size}; lower batch_size, leave the bucket out, or "
                        "set drop_last=False"
                    )
            self._quotas = quotas(self.steps, [bucket.weight or 0.0 for bucket in buckets])
            self.unread = {}

    def _piece(self, n_samples: int) -> tuple[int, int]:
        """Returns the half-open piece of a round that this rank reads."""
        setting = self.setting
        if setting.drop_last:
            length = n_samples // (setting.world_size * setting.batch_size) * setting.batch_size
            return setting.rank * length, (setting.rank + 1) * length
        share = n_samples * setting.rank // setting.world_size
        return share, n_samples * (setting.rank + 1) // setting.world_size

    def lanes(self, worker: int, num_workers: int) -> list[WorkerShare]:
        """Returns the samples that a worker reads of each bucket."""
        size = self.setting.batch_size
        rounds, epochs = dealt(self._n_batches, num_workers), dealt(self._quotas, num_workers)
        lanes = []
        for bucket, piece, of_round, of_epoch in zip(
            self.buckets, self._pieces, rounds, epochs, strict=True
        ):
            n_batches, quota = of_round[worker], of_epoch[worker]
            start, salt = piece[0] + sum(of_round[:worker]) * size, 0
            stop = min(start + n_batches * size, piece[1])
            if quota and not n_batches:
                # The rank has too few batches for this worker, which reads the whole bucket.
                start, stop = 0, bucket.n_samples
                n_batches = stop // size if self.setting.drop_last else -(-stop // size)
                n_batches, salt = max(1, n_batches), self.setting.rank * num_workers + worker + 1
            lanes.append(
                WorkerShare(start=start, stop=stop, n_batches=n_batches, quota=quota, salt=salt)
            )
        return lanes

    def sequence(self, epoch: int, worker: int, lanes: Sequence[WorkerShare]) -> NDArray[np.int64]:
        """Returns the index of the bucket of each batch that a worker makes in an epoch."""
        ordered = np.repeat(np.arange(len(lanes)), [lane.quota for lane in lanes])
        return random_of(self.setting.seed, _SEQUENCE, epoch, worker).permutation(ordered)

    def batch(self, i: int, lane: WorkerShare, number: int) -> tuple[int, list[tuple[int, int]]]:
        """Returns the round and the samples of a batch of bucket `i`.

        `number` counts the batches of the lane over all epochs. A sample is the index of its tar in
        the bucket, and its index in the tar.
        """
        setting = self.setting
        round_, within = divmod(number, lane.n_batches)
        first = within * setting.batch_size
        stop = min(first + setting.batch_size, lane.stop - lane.start)
        order = [self._shuffled(i, lane, round_, place) for place in range(first, stop)]
        bucket = self.buckets[i]
        bound = setting.world_size * setting.batch_size
        dropped = bucket.n_samples % bound if setting.drop_last and not lane.salt else 0
        code = crc32(bucket.name.encode())
        skip = 0
        if setting.shuffle and dropped:
            skip = int(random_of(setting.seed, _DROPPED, round_, code).integers(dropped + 1))
        tars, ends = _round_order(setting.seed, bucket, round_, bool(setting.shuffle), lane.salt)
        samples = []
        streams = bucket.streams if setting.shuffle else 1
        for place in order:
            at = lane.start + _in_turn(place, lane.stop - lane.start, streams) + skip
            k = int(np.searchsorted(ends, at, side="right"))
            samples.append((int(tars[k]), at - (int(ends[k - 1]) if k else 0)))
        return round_, samples

    def _shuffled(self, i: int, lane: WorkerShare, round_: int, place: int) -> int:
        setting = self.setting
        if not setting.shuffle:
            return place
        block, within = divmod(place, setting.shuffle)
        first = block * setting.shuffle
        length = min(setting.shuffle, lane.stop - lane.start - first)
        code = crc32(self.buckets[i].name.encode())
        key = (setting.seed, code, round_, lane.start + first, lane.salt, length)
        return first + int(_permutation(*key)[within])


def _in_turn(place: int, n: int, streams: int) -> int:
    """Divides [0, n) into equal parts; returns the number at a place if each part has its turn."""
    length, longer = divmod(n, streams)
    within, part = divmod(place, streams) if place < length * streams else (length, place % streams)
    return part * length + min(part, longer) + within


@lru_cache(maxsize=64)
def _permutation(
    seed: int, code: int, round_: int, first: int, salt: int, length: int
) -> NDArray[np.int64]:
    return random_of(seed, _BLOCK, code, round_, first, salt).permutation(length)


@lru_cache(maxsize=64)
def _round_order(
    seed: int, bucket: BucketPlan, round_: int, shuffled: bool, salt: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the tars in the order of a round, and the place after each tar's last sample."""
    tars = np.arange(len(bucket.sizes))
    if shuffled:
        code = crc32(bucket.name.encode())
        tars = random_of(seed, _ROUND, round_, code, salt).permutation(tars)
    return tars, np.cumsum(np.asarray(bucket.sizes)[tars])


def listed(facts: Mapping[str, object]) -> str:
    """Names buckets, each with a fact."""
    named = [f"{name}: {fact}" for name, fact in facts.items()]
    more = f" and {len(named) - MAX_LISTED} more" if len(named) > MAX_LISTED else ""
    return ", ".join(named[:MAX_LISTED]) + more


def normalized(weights: Mapping[str, float]) -> dict[str, float]:
    """Scales weights to a sum of 1.

    Raises:
        UsageError: A weight is not a positive number.
    """
    for name, weight in weights.items():
        if not (0 < weight < float("inf")):
            raise UsageError(
                f"weight {weight!r} of bucket {name!r}; expected a number above 0 (leave a bucket "
                "out to read none of it)"
            )
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}
