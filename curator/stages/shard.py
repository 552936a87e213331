"""Packs written clips into WebDataset tars, one bucket per tar, with the same bytes every time.

Which clip goes where follows from the sorted clips and their sizes alone. A tar's name ends in the
hash of what is in it, so that an object that stands is never rewritten with other content, and one
that is already there need not be written again.
"""

import hashlib
import math
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, BinaryIO

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator

SHARD_VERSION = 2
"""Raised when the same clips would give other bytes."""

BLOCK = tarfile.BLOCKSIZE
END_BYTES = 2 * BLOCK
"""Empty blocks that end a tar."""


class ShardConfig(BaseModel):
    """How clips are grouped and packed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # 1 GB: what Megatron-Energon and open_clip recommend for sequential reads from object storage.
    max_bytes: int = Field(
        1_000_000_000,
        ge=1 << 16,
        description="a tar is closed before it would grow beyond this",
        json_schema_extra={"unit": "bytes"},
    )
    resolutions: tuple[int, ...] = Field(
        (240, 360, 480, 720, 1080, 1440, 2160),
        min_length=1,
        description="resolution classes by shorter side; a clip falls into the largest it reaches",
        json_schema_extra={"unit": "px"},
    )
    # The strings that Cosmos-Tokenize1's configurations use.
    aspects: tuple[str, ...] = Field(
        ("1,1", "4,3", "3,4", "16,9", "9,16"),
        min_length=1,
        description="aspect classes, width,height; a clip falls into the nearest",
        json_schema_extra={"unit": "width,height"},
    )
    # 4k+1 grids of causal tokenizers; cosmos-predict2.5 needs one frame more than it asks for.
    lengths: tuple[int, ...] = Field(
        (17, 33, 49, 121),
        min_length=1,
        description="minimum-length classes; a clip in class N has N+1 frames or more",
        json_schema_extra={"unit": "frames"},
    )

    @field_validator("aspects")
    @classmethod
    def _readable(cls, aspects: tuple[str, ...]) -> tuple[str, ...]:
        for aspect in aspects:
            numbers = aspect.split(",")
            if len(numbers) != 2 or not all(n.isdigit() and int(n) > 0 for n in numbers):
                raise ValueError(f"aspect {aspect!r}; expected two whole numbers such as '16,9'")
        return aspects


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Clips that a trainer can put into one batch after cropping to the smallest."""

    resolution: int
    aspect: str
    min_frames: int

    @property
    def name(self) -> str:
        """Folder under `shards/`, such as `720p_16-9_121f`."""
        return f"{self.resolution}p_{self.aspect.replace(',', '-')}_{self.min_frames}f"


def bucket_of(width: int, height: int, n_frames: int, config: ShardConfig) -> Bucket | None:
    """Bucket of a clip.

    Args:
        width: Pixels.
        height: Pixels.
        n_frames: Frames of the written clip.
        config: Classes.

    Returns:
        The bucket, or None for a clip below the smallest resolution or length class.
    """
    resolutions = [size for size in config.resolutions if size <= min(width, height)]
    lengths = [length for length in config.lengths if length + 1 <= n_frames]
    if not resolutions or not lengths:
        return None
    return Bucket(
        resolution=max(resolutions),
        aspect=_nearest(width, height, tuple(config.aspects)),
        min_frames=max(lengths),
    )


@cache
def _nearest(width: int, height: int, aspects: tuple[str, ...]) -> str:
    return min(aspects, key=lambda a: abs(math.log(width / height / _ratio(a))))


def _ratio(aspect: str) -> float:
    width, height = aspect.split(",")
    return int(width) / int(height)


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where the bytes of an encoded clip lie under the output root."""

    name: str
    row: int | None = None
    """Row of a part of `cuts`, or None when `offset` counts."""
    offset: int | None = None
    """First byte within a tar."""
    n_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample of a shard."""

    key: str
    metadata: Mapping[str, Any]
    caption: str
    mp4_bytes: int
    mp4_sha256: str
    location: Location
    _json: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuses keys that readers of WebDataset would split or skip."""
        if not self.key.isalnum():
            raise ValueError(f"key {self.key!r}; expected letters and digits only")
        # Planning asks for it three times, and with many samples that is most of the time.
        object.__setattr__(self, "_json", orjson.dumps(self.metadata, option=orjson.OPT_SORT_KEYS))

    @property
    def n_bytes(self) -> int:
        """Bytes that the sample takes in a tar."""
        sizes = (len(self.json()), self.mp4_bytes, len(self.caption.encode()))
        return sum(BLOCK + math.ceil(size / BLOCK) * BLOCK for size in sizes)

    def json(self) -> bytes:
        """The sample's metadata as canonical JSON."""
        return self._json


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """A tar to be: its name says what is in it."""

    name: str
    bucket: str
    samples: tuple[Sample, ...]


def plan_shards(samples: Iterable[tuple[Bucket, Sample]], config: ShardConfig) -> list[ShardPlan]:
    """Groups samples into tars.

    Args:
        samples: In any order; keys are unique.
        config: Size limit.

    Returns:
        Plans sorted by name. Within a bucket samples are sorted by key, which is a hash, so that
        neighbours come from different places of the corpus.
    """
    by_bucket: dict[str, list[Sample]] = {}
    for bucket, sample in samples:
        by_bucket.setdefault(bucket.name, []).append(sample)
    plans = []
    for name in sorted(by_bucket):
        ordered = sorted(by_bucket[name], key=lambda sample: sample.key)
        for number, group in enumerate(_groups(ordered, config.max_bytes)):
            plans.append(_plan(name, number, group))
    return plans


def _groups(samples: Sequence[Sample], max_bytes: int) -> Iterator[tuple[Sample, ...]]:
    group: list[Sample] = []
    total = END_BYTES
    for sample in samples:
        n_bytes = sample.n_bytes
        if group and total + n_bytes > max_bytes:
            yield tuple(group)
            group, total = [], END_BYTES
        group.append(sample)
        total += n_bytes
    if group:
        yield tuple(group)


def _plan(bucket: str, number: int, group: tuple[Sample, ...]) -> ShardPlan:
    digest = hashlib.sha256(f"shard {SHARD_VERSION}\n".encode())
    for sample in group:
        for member in (sample.key.encode(), sample.mp4_sha256.encode(), sample.json()):
            digest.update(member + b"\n")
        digest.update(f"{len(sample.caption)} {sample.caption}\n".encode())
    stamp = digest.hexdigest()[:8]
    return ShardPlan(name=f"shards/{bucket}/{number:06d}-{stamp}.tar", bucket=bucket, samples=group)


def tar_layout(plan: ShardPlan) -> tuple[dict[str, int], int]:
    """Where each clip's bytes will lie in a tar, and how large the tar will be.

    Returns:
        Offset of each key's MP4, and the size in bytes.
    """
    offsets, position = {}, 0
    for sample in plan.samples:
        for suffix, size in _members(sample):
            position += BLOCK
            if suffix == "mp4":
                offsets[sample.key] = position
            position += math.ceil(size / BLOCK) * BLOCK
    return offsets, position + END_BYTES


def _members(sample: Sample) -> list[tuple[str, int]]:
    return [
        ("json", len(sample.json())),
        ("mp4", sample.mp4_bytes),
        ("txt", len(sample.caption.encode())),
    ]


def write_shard(plan: ShardPlan, output: BinaryIO, read_clip: Callable[[Sample], bytes]) -> int:
    """Writes a tar as a stream; memory is one clip.

    Args:
        plan: What to write.
        output: Binary stream, append only.
        read_clip: Gives the bytes of a sample's MP4.

    Returns:
        Bytes written.
    """
    n_bytes = 0
    for sample in plan.samples:
        contents = {
            "json": sample.json(),
            "mp4": read_clip(sample),
            "txt": sample.caption.encode(),
        }
        for suffix, _ in _members(sample):
            data = contents[suffix]
            output.write(_header(f"{sample.key}.{suffix}", len(data)))
            output.write(data)
            padding = -len(data) % BLOCK
            output.write(b"\0" * padding)
            n_bytes += BLOCK + len(data) + padding
    output.write(b"\0" * END_BYTES)
    return n_bytes + END_BYTES


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, 0, 0o644
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info.tobuf(format=tarfile.USTAR_FORMAT)
