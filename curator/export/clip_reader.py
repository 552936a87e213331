"""Reads clips out of tars as streams: memory is one clip."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import orjson

from curator.errors import ShardError, UsageError
from curator.stages.shard.tar_reader import MAX_TEXT_BYTES, Member, Shard, ShardSet, TarReader


@dataclass(slots=True, kw_only=True)
class ShardClip:
    """A sample of a shard."""

    key: str
    shard: Shard
    fields: dict[str, Any] = field(default_factory=dict)
    """Its JSON."""
    text: str = ""
    mp4: bytes | None = None
    """None where it was not asked for."""
    mp4_offset: int = -1
    mp4_bytes: int = 0
    members: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Offset in the tar and bytes of each other member, by suffix."""

    def row(self) -> dict[str, Any]:
        """Columns as in `dataset.parquet`, without the path."""
        fields = self.fields
        width, height = fields["width"], fields["height"]
        return {
            "clip_id": self.key,
            "shard": self.shard.name,
            "split": self.shard.split,
            "bucket": self.shard.bucket,
            "offset": self.mp4_offset,
            "bytes": self.mp4_bytes,
            "text": self.text,
            "num_frames": fields["n_frames"],
            "height": height,
            "width": width,
            "aspect_ratio": height / width,
            "resolution": height * width,
            "fps": float(fields["fps"]),
            "duration": float(fields.get("duration") or fields["n_frames"] / fields["fps"]),
            "source_id": fields.get("source_id"),
            "source_uri": fields.get("source_uri"),
            "sha256": fields["mp4_sha256"],
        }


def chosen_shards(
    shards: ShardSet, splits: Sequence[str], buckets: Sequence[str] | None
) -> list[Shard]:
    """Returns the shards of some splits and buckets, None for all buckets; refuses no shards."""
    names = sorted({shard.bucket for shard in shards.shards})
    for name in buckets or ():
        if name not in names:
            raise UsageError(
                f"no bucket {name!r} in {shards.uri('')}; there are: {', '.join(names) or 'none'}"
            )
    chosen = [
        shard
        for shard in shards.shards
        if shard.split in splits and (buckets is None or shard.bucket in buckets)
    ]
    if not chosen:
        raise UsageError(
            f"{shards.uri('')} has no shards of {', '.join(splits) or 'none'}"
            + (f" in {', '.join(buckets)}" if buckets else "")
            + "; see its manifest.json for what there is"
        )
    for shard in chosen:
        if shard.name not in shards.sizes:
            raise UsageError(f"{shards.uri(shard.name)} is missing; `curate verify` says what else")
    return chosen


def read_clips(
    shards: ShardSet, shard: Shard, *, wants_mp4: Callable[[ShardClip, str], bool]
) -> Iterator[ShardClip]:
    """Yields the clips of a shard, in its order.

    Raises:
        ShardError: The tar is damaged, or a clip's bytes do not match its JSON.
        StorageError: It cannot be read.
    """
    try:
        with shards.store.open(shards.key(shard.name)) as stream:
            reader = TarReader(stream.read, shards.sizes[shard.name], seek=stream.seek)
            for key, members in groupby(reader, key=lambda member: member.key):
                clip = ShardClip(key=key, shard=shard)
                for member in members:
                    _take(reader, member, clip, wants_mp4)
                if clip.mp4_offset < 0:
                    raise ShardError(f"the sample {key!r} has no MP4")
                yield clip
    except (ShardError, orjson.JSONDecodeError, UnicodeDecodeError, KeyError) as error:
        remedy = f"`curate verify {shards.store.uri}` says what is wrong"
        raise ShardError(f"{shards.uri(shard.name)}: {error}; {remedy}") from error


def _take(
    reader: TarReader, member: Member, clip: ShardClip, wants_mp4: Callable[[ShardClip, str], bool]
) -> None:
    if member.suffix == "mp4":
        clip.mp4_offset, clip.mp4_bytes = member.data_offset, member.bytes
        if not clip.fields:
            raise ShardError(f"the JSON of {clip.key!r} does not come before its MP4")
        sha256 = str(clip.fields["mp4_sha256"])
        if wants_mp4(clip, sha256):
            clip.mp4 = reader.read(member)
            digest = hashlib.sha256(clip.mp4).hexdigest()
            if digest != sha256:
                raise ShardError(f"{member.name!r} has sha256 {digest}; expected {sha256}")
    elif member.suffix in ("json", "txt"):
        if member.bytes > MAX_TEXT_BYTES:
            raise ShardError(f"{member.name!r} has {member.bytes} bytes; expected a text")
        data = reader.read(member)
        if member.suffix == "txt":
            clip.text = data.decode()
            return
        fields = orjson.loads(data)
        if not isinstance(fields, dict) or not clip.key.isalnum():
            raise ShardError(f"{member.name!r} is no sample of `curate run`")
        clip.fields = fields
    else:
        clip.members[member.suffix] = member.data_offset, member.bytes
