"""Packs cut clips into WebDataset tars, with one bucket, split, generation and format per tar.

The clips, their sizes, a seed and the existing tars determine the tars; the number of workers, the
order of clips and crashes do not. A tar's name ends in the hash of its contents, so no run writes
other contents under the name of an existing tar. `shard_index.py` makes the files that describe
the tars to readers.
"""

import hashlib
import re
import tarfile
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Protocol, cast

from curator.buckets import Bucket
from curator.dataset.sample import Sample, padded
from curator.dataset.side_plan import END_BYTES, SidePlan, plan_sides
from curator.dataset.tar_reader import BESIDE, BLOCK, Split, index_name, meta_name
from curator.tables.out_layout import SHARDS
from curator.tables.sample_members import StoredMember

SHARD_VERSION = 3
"""Raise this number when the same clips give other bytes."""

_TAR_NAME = re.compile(
    rf"{SHARDS}/(?P<bucket>[^/]+)/(?P<split>train|val)-(?P<number>\d{{6,}})-[0-9a-f]{{8}}\.tar"
)


class Packing(Protocol):
    """The settings of `shard` on which the contents of tars depend."""

    @property
    def seed(self) -> int:
        """Seed of the order of clips."""

    @property
    def append(self) -> bool:
        """Whether a tar stays unchanged if all its clips are still kept."""

    @property
    def max_bytes(self) -> int:
        """A tar does not grow beyond this size."""

    @property
    def floor_bytes(self) -> int:
        """A smaller last tar is joined to the tar before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TarLayout:
    """The layout of a tar, in bytes from its start."""

    offsets: Sequence[int]
    """Start of each sample's first header, and the end of the last sample."""
    mp4_starts: Sequence[int]
    """First byte of each sample's MP4."""

    @property
    def n_bytes(self) -> int:
        """Size of the tar."""
        return self.offsets[-1] + END_BYTES


@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """A planned tar; its name ends in the hash of its contents."""

    name: str
    bucket: str
    split: Split
    samples: tuple[Sample, ...]
    sides: tuple[SidePlan, ...] = ()
    """Tars with members of its samples."""

    @property
    def objects(self) -> tuple[str, ...]:
        """Names of the tar, of the objects next to it, and of tars with members of its samples."""
        own = self.name, *(name(self.name) for name in BESIDE.values())
        return *own, *(name for side in self.sides for name in side.objects)

    @cached_property
    def totals(self) -> tuple[int, float]:
        """Frames and seconds of all samples."""
        metadata = [sample.metadata for sample in self.samples]
        n_frames = sum(facts["n_frames"] for facts in metadata)
        return n_frames, float(sum(facts["duration"] for facts in metadata))

    @cached_property
    def layout(self) -> TarLayout:
        """Where each sample is in the tar."""
        offsets, mp4_starts = array("Q", [0]), array("Q")
        for sample in self.samples:
            position = offsets[-1]
            for suffix, size in sample.members():
                position += BLOCK
                if suffix == sample.format:
                    mp4_starts.append(position)
                position += padded(size)
            offsets.append(position)
        return TarLayout(offsets=offsets, mp4_starts=mp4_starts)

    def missing(self, sizes: Mapping[str, int]) -> frozenset[str]:
        """Returns the names of its objects that are missing from `sizes` or have another size."""
        known = {
            self.name: self.layout.n_bytes,
            index_name(self.name): 8 * (len(self.samples) + 1),
            meta_name(self.name): sum(sample.json_bytes + 1 for sample in self.samples),
        }
        for side in self.sides:
            known |= side.sizes()
        return frozenset(
            name
            for name in self.objects
            if name not in sizes or sizes[name] != known.get(name, sizes[name])
        )


def plan_shards(
    samples: Iterable[tuple[Bucket, Sample]],
    config: Packing,
    reusable: Mapping[str, Collection[str]] | None = None,
    taken: Iterable[str] = (),
) -> list[ShardPlan]:
    """Groups samples into tars.

    Args:
        samples: In any order; keys are unique.
        config: Sizes, and the seed of the order.
        reusable: Sample keys of each tar of the last finished run, by the tar's name. A tar stays
            if it is not too large, if its samples are of one generation and format, and if all are
            wanted with the same bucket, split and bytes. Other samples are put into new tars.
        taken: Names of tars of earlier generations. New tars do not use their numbers.

    Returns:
        Plans sorted by name. The hash of seed and key orders the samples of a tar, so that
        neighbours come from different parts of the corpus.
    """
    groups: defaultdict[tuple[str, Split], dict[str, Sample]] = defaultdict(dict)
    for bucket, sample in samples:
        groups[bucket.name, sample.split][sample.key] = sample
    numbers: defaultdict[tuple[str, Split], int] = defaultdict(int)
    """The next number of each bucket and split."""

    def use(place: tuple[str, Split, int]) -> None:
        numbers[place[:2]] = max(numbers[place[:2]], place[2] + 1)

    for earlier in filter(None, map(place_of, taken)):
        use(earlier)
    plans = []
    for name, keys in sorted(reusable.items()) if reusable and config.append else ():
        # A tar with a name of another form does not stay.
        if (place := place_of(name)) and (plan := _kept(name, place, keys, groups, config)):
            plans.append(plan)
            use(place)
            for sample in plan.samples:
                del groups[place[:2]][sample.key]
    for (folder, split), by_key in groups.items():
        kind = attrgetter("generation", "format")
        for _, own in groupby(sorted(by_key.values(), key=kind), kind):
            for packed in _packed(_shuffled(own, config.seed), config):
                number = numbers[folder, split]
                plans.append(plan_shard(folder, split, number, packed))
                numbers[folder, split] = number + 1
    return sorted(plans, key=lambda plan: plan.name)


def _kept(
    name: str,
    place: tuple[str, Split, int],
    keys: Collection[str],
    groups: Mapping[tuple[str, Split], Mapping[str, Sample]],
    config: Packing,
) -> ShardPlan | None:
    """Returns the plan of an existing tar; None if its bytes would differ now."""
    wanted = groups.get(place[:2], {})
    if not keys or not all(key in wanted for key in keys):
        return None
    ordered = _shuffled((wanted[key] for key in keys), config.seed)
    n_bytes = END_BYTES + sum(sample.n_bytes for sample in ordered)
    is_too_large = len(ordered) > 1 and n_bytes > config.max_bytes + config.floor_bytes
    kinds = {(sample.generation, sample.format) for sample in ordered}
    if is_too_large or len(kinds) > 1:
        return None
    plan = plan_shard(*place, ordered)
    return plan if plan.name == name else None


def _shuffled(samples: Iterable[Sample], seed: int) -> list[Sample]:
    def place(sample: Sample) -> bytes:
        return hashlib.sha256(f"order {seed} {sample.key}".encode()).digest()

    return sorted(samples, key=place)


def _packed(samples: Sequence[Sample], config: Packing) -> list[list[Sample]]:
    """Groups samples up to `max_bytes`; joins a last group below `min_bytes` to the one before."""
    groups: list[list[Sample]] = []
    sizes: list[int] = []
    for sample in samples:
        n_bytes = sample.n_bytes
        if not groups or sizes[-1] + n_bytes > config.max_bytes:
            groups.append([])
            sizes.append(END_BYTES)
        groups[-1].append(sample)
        sizes[-1] += n_bytes
    if len(groups) > 1 and sizes[-1] < config.floor_bytes:
        joined = sizes[-2] + sizes[-1] - END_BYTES
        if joined <= config.max_bytes + config.floor_bytes:
            last = groups.pop()
            groups[-1] += last
    return groups


def place_of(name: str) -> tuple[str, Split, int] | None:
    """Returns bucket, split and number in a tar's name; None for a name of another form."""
    match = _TAR_NAME.fullmatch(name)
    if match is None:
        return None
    return match["bucket"], cast(Split, match["split"]), int(match["number"])


def plan_shard(bucket: str, split: Split, number: int, group: Sequence[Sample]) -> ShardPlan:
    """Plans a tar of samples in the given order; its name has the hash of their contents."""
    digest = hashlib.sha256(f"shard {SHARD_VERSION}\n".encode())
    for sample in group:
        json_text, text, sha256 = sample.texts()
        for part in (sample.key.encode(), sha256, json_text):
            digest.update(part + b"\n")
        digest.update(f"{len(text.decode())} ".encode() + text + b"\n")
        if sample.embedding is not None:
            digest.update(sample.npy())
        for member in sample.stored:
            digest.update(member.digest.encode())
        if sample.has_id:
            digest.update(b"id\n")
    fingerprint = digest.hexdigest()[:8]
    return ShardPlan(
        name=f"{SHARDS}/{bucket}/{split}-{number:06d}-{fingerprint}.tar",
        bucket=bucket,
        split=split,
        samples=tuple(group),
        sides=plan_sides(bucket, split, number, group),
    )


def write_shard(
    plan: ShardPlan,
    write: Callable[[bytes], object],
    read_clip: Callable[[Sample], bytes],
    read_member: Callable[[StoredMember], bytes] | None = None,
) -> None:
    """Writes a tar as a stream; one sample at a time is in memory.

    `read_clip` returns a sample's MP4, `read_member` a member that a family declares. Without such
    members, `read_member` may be None. Its side tars are written by `write_side`.
    """
    for sample in plan.samples:
        json_text, text, _ = sample.texts()
        contents = {"json": json_text, sample.format: read_clip(sample), "txt": text}
        if sample.embedding is not None:
            contents["npy"] = sample.npy()
        if read_member is not None:
            contents |= {member.suffix: read_member(member) for member in sample.stored}
        if sample.has_id:
            contents["id"] = sample.id()
        for suffix, _ in sample.members():
            _write_member(write, f"{sample.key}.{suffix}", contents[suffix])
    write(b"\0" * END_BYTES)


def write_side(
    plan: SidePlan,
    write: Callable[[bytes], object],
    read_member: Callable[[StoredMember], bytes],
) -> None:
    """Writes a tar with a member of each sample as a stream; one member at a time is in memory."""
    for key, value in plan.values:
        _write_member(write, f"{key}.{plan.suffix}", read_member(value))
    write(b"\0" * END_BYTES)


def holds_shard(plan: ShardPlan, read: Callable[[int], bytes]) -> bool:
    """Returns whether a stream is what `write_shard` writes; values may have other bits."""
    for sample in plan.samples:
        json_text, text, sha256 = sample.texts()
        contents = {"json": json_text, "txt": text}
        contents |= {} if sample.embedding is None else {"npy": sample.npy()}
        contents |= {"id": sample.id()} if sample.has_id else {}
        families = {member.suffix: member.version.family for member in sample.stored}
        for suffix, size in sample.members():
            data = _read_member(read, f"{sample.key}.{suffix}", size)
            if suffix == sample.format:
                is_right = hashlib.sha256(data).hexdigest() == sha256.decode()
            elif suffix in families:
                is_right = families[suffix].is_whole(data)
            else:
                is_right = data == contents[suffix]
            if not is_right:
                return False
    return read(END_BYTES + 1) == bytes(END_BYTES)


def holds_side(plan: SidePlan, read: Callable[[int], bytes]) -> bool:
    """Returns whether a stream is what `write_side` writes; values may have other bits."""
    for key, value in plan.values:
        data = _read_member(read, f"{key}.{plan.suffix}", value.n_bytes)
        if not value.version.family.is_whole(data):
            return False
    return read(END_BYTES + 1) == bytes(END_BYTES)


def _read_member(read: Callable[[int], bytes], name: str, size: int) -> bytes:
    """Returns the data of the next member; empty if it is another one."""
    header, data = read(BLOCK), read(padded(size))
    is_own = header == tar_header(name, size) and not any(data[size:])
    return data[:size] if is_own else b""


def _write_member(write: Callable[[bytes], object], name: str, data: bytes) -> None:
    write(tar_header(name, len(data)))
    write(data)
    write(b"\0" * (padded(len(data)) - len(data)))


def tar_header(name: str, size: int) -> bytes:
    """Returns the same header as `tarfile`, in a fifth of the time."""
    if len(name) > _LONGEST_NAME or not name.isascii() or size >= 8**11:
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o644
        return info.tobuf(format=tarfile.USTAR_FORMAT)
    begin = name.encode().ljust(_LONGEST_NAME, b"\0") + _MODE_AND_OWNER + b"%011o\0" % size + _TIME
    total = sum(begin) + sum(_REST) + 8 * ord(" ")
    return begin + b"%06o\0 " % total + _REST


_LONGEST_NAME = 100
_MODE_AND_OWNER = b"0000644\0" + 2 * b"0000000\0"
_TIME = b"00000000000\0"
_REST = (b"0".ljust(101, b"\0") + b"ustar\x0000").ljust(BLOCK - 156, b"\0")
"""Rest of a header, from the type (a file) on: no link, no names of owners, no device numbers."""
