"""One sample of a shard: the members of one clip in a tar.

The JSON and the caption take some KB, most of a sample's memory. A temporary file can hold them.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from curator.dataset.tar_reader import BLOCK, Split
from curator.family import Array
from curator.records.clips import ClipFormat
from curator.tables.clip_locations import Location
from curator.tables.sample_members import StoredMember
from curator.tables.spill_file import Spill


class Sample:
    """One sample of a shard.

    Args:
        key: Letters and digits.
        embedding: float32 [D]; None for a sample without the member `npy`.
        stored: Members that families declare, in the tar or in side tars.
        has_id: Whether the sample has the member `id`.
        format: Format of the clip's file, which is the suffix of its member. A tar has one format.
        generation: Generation of the clip's source. A tar has clips of one generation.
        spill: Temporary file for JSON and caption; None keeps them in memory.

    Raises:
        ValueError: The key has other characters: readers of WebDataset would split or skip it.
    """

    __slots__ = (
        "_caption_bytes",
        "_text",
        "embedding",
        "format",
        "generation",
        "has_id",
        "json_bytes",
        "key",
        "location",
        "mp4_bytes",
        "side_members",
        "split",
        "stored",
    )  # fmt: skip

    def __init__(
        self,
        *,
        key: str,
        metadata: Mapping[str, Any],
        caption: str,
        mp4_bytes: int,
        mp4_sha256: str,
        location: Location,
        format: ClipFormat = "mp4",
        split: Split = "train",
        embedding: NDArray[np.float32] | None = None,
        stored: Sequence[StoredMember] = (),
        has_id: bool = False,
        generation: int = 1,
        spill: Spill | None = None,
    ) -> None:
        if not key.isalnum():
            raise ValueError(f"key {key!r}; expected letters and digits only")
        self.key = key
        self.mp4_bytes = mp4_bytes
        self.location = location
        self.format = format
        self.split = split
        self.embedding = embedding
        by_suffix = sorted(stored, key=lambda member: member.suffix)
        self.stored = tuple(m for m in by_suffix if not m.version.family.is_side)
        self.side_members = tuple(m for m in by_suffix if m.version.family.is_side)
        self.has_id = has_id
        self.generation = generation
        json_text = orjson.dumps(metadata, option=orjson.OPT_SORT_KEYS)
        text = caption.encode()
        self.json_bytes, self._caption_bytes = len(json_text), len(text)
        whole = json_text + text + mp4_sha256.encode()
        # The hash is stored with the texts, so that one read returns all three.
        self._text = whole if spill is None else (spill, spill.add(whole), len(whole))

    def __reduce__(self) -> tuple[Callable[[], "Sample"], tuple[()]]:
        """Pickles the sample with its texts, without the temporary file."""
        own = {name: getattr(self, name) for name in _ABOUT}
        own["stored"] = self.stored + self.side_members
        return partial(Sample, **own), ()

    def __eq__(self, other: object) -> bool:
        """Returns whether samples are equal; ignores embedding, families and generation."""
        if not isinstance(other, Sample):
            return NotImplemented
        names = ("key", "mp4_bytes", "format", "location", "split", "has_id", "json_bytes")
        return self._whole() == other._whole() and all(
            getattr(self, name) == getattr(other, name) for name in names
        )

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Sample(key={self.key!r})"

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Contents of the JSON, parsed at each access."""
        return cast(Mapping[str, Any], orjson.loads(self.json()))

    @property
    def caption(self) -> str:
        """Contents of the member `txt`."""
        return self.texts()[1].decode()

    @property
    def mp4_sha256(self) -> str:
        """SHA-256 of the MP4, in hex."""
        return self.texts()[2].decode()

    @property
    def n_bytes(self) -> int:
        """Size of the sample in a tar, in bytes."""
        return sum(BLOCK + padded(size) for _, size in self.members())

    def members(self) -> list[tuple[str, int]]:
        """Returns suffix and size in bytes of each member, in the order of the tar."""
        members: list[tuple[str, int]] = [
            ("json", self.json_bytes), (self.format, self.mp4_bytes), ("txt", self._caption_bytes),
        ]  # fmt: skip
        if self.embedding is not None:
            members.append(("npy", len(self.npy())))
        members += [(member.suffix, member.n_bytes) for member in self.stored]
        if self.has_id:
            members.append(("id", len(self.id())))
        return members

    def distances(self) -> Iterator[tuple[StoredMember, int]]:
        """Yields a tar's members of families, with the distance in bytes from the MP4's start."""
        position = mp4 = 0
        by_suffix = {member.suffix: member for member in self.stored}
        for suffix, size in self.members():
            position += BLOCK
            if suffix == self.format:
                mp4 = position
            elif suffix in by_suffix:
                yield by_suffix[suffix], position - mp4
            position += padded(size)

    def json(self) -> bytes:
        """Returns the metadata as JSON with sorted keys."""
        return self.texts()[0]

    def id(self) -> bytes:
        """Returns a hash of the key, a whole number below 2**52, in decimal digits."""
        return str(int.from_bytes(hashlib.sha256(self.key.encode()).digest()[:8]) >> 12).encode()

    def npy(self) -> bytes:
        """Returns the embedding as a NumPy file, float32 [D]."""
        assert self.embedding is not None
        return _EMBEDDING.encode(np.asarray(self.embedding, np.float32), "npy")

    def texts(self) -> tuple[bytes, bytes, bytes]:
        """Returns JSON, caption and the MP4's SHA-256 in hex as bytes, with one read."""
        whole, end = self._whole(), self.json_bytes + self._caption_bytes
        return whole[: self.json_bytes], whole[self.json_bytes : end], whole[end:]

    def _whole(self) -> bytes:
        if isinstance(self._text, bytes):
            return self._text
        spill, begin, length = self._text
        return spill.read(begin, length)


_EMBEDDING = Array("f32", ("dimension",))
_ABOUT = (
    "key", "metadata", "caption", "mp4_bytes", "mp4_sha256", "location", "format", "split",
    "embedding", "has_id",
)  # fmt: skip


def padded(size: int) -> int:
    """Returns the size of a member's data in a tar, padded to whole blocks, in bytes."""
    return math.ceil(size / BLOCK) * BLOCK
