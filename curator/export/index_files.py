"""Rewrites the indexes of the tars: for shards of older versions, and for lost indexes.

The bytes are those of a run, so that a manifest that names them stays valid.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from curator.errors import ShardError
from curator.export.exporter import Exporter, ExporterOptions
from curator.export.job import Job
from curator.stages.shard.shard_index import IndexedTar
from curator.stages.shard.tar_reader import Shard, TarReader


@dataclass(frozen=True, slots=True, kw_only=True)
class TarIndex:
    """The facts of a tar that indexes hold."""

    shard: Shard
    offsets: tuple[int, ...]
    """Of each sample's first header, and of what is behind the last sample."""
    n_bytes: int
    md5: str
    """Empty where it was not asked for."""

    @property
    def n_samples(self) -> int:
        """Samples in the tar."""
        return len(self.offsets) - 1

    def facts(self) -> IndexedTar:
        """Returns these facts as indexes of readers take them."""
        return IndexedTar(
            name=self.shard.name,
            split=self.shard.split,
            n_samples=self.n_samples,
            n_bytes=self.n_bytes,
            md5=self.md5,
        )


def read_index(job: Job, shard: Shard, *, with_md5: bool) -> TarIndex:
    """Finds the samples of a tar by its headers; reads all bytes only for the MD5.

    Raises:
        ShardError: The tar is damaged or empty.
    """
    digest = hashlib.md5(usedforsecurity=False)
    n_bytes = job.shards.sizes[shard.name]
    offsets: list[int] = []
    with job.shards.store.open(job.shards.key(shard.name)) as stream:

        def read(n: int) -> bytes:
            data = stream.read(n)
            digest.update(data)
            return data

        reader = TarReader(read, n_bytes, seek=None if with_md5 else stream.seek)
        key = None
        try:
            for member in reader:
                if member.key != key:
                    key = member.key
                    offsets.append(member.offset)
        except ShardError as error:
            raise ShardError(f"{job.shards.uri(shard.name)}: {error}") from error
        while with_md5 and read(1 << 20):
            pass
    if not offsets:
        raise ShardError(f"{job.shards.uri(shard.name)} has no samples; delete it")
    job.exported.add(clips=len(offsets))
    return TarIndex(
        shard=shard,
        offsets=(*offsets, reader.end),
        n_bytes=n_bytes,
        md5=digest.hexdigest() if with_md5 else "",
    )


class TarIndexes(Exporter[ExporterOptions, TarIndex]):
    """The part that formats with indexes of tars share: the tars, sorted by name."""

    indexes_tars = True
    with_md5: ClassVar[bool] = False

    def __init__(self, options: ExporterOptions) -> None:
        super().__init__(options)
        self._tars: list[TarIndex] = []

    def shard(self, job: Job, shard: Shard) -> TarIndex:
        """Reads the facts of a tar."""
        return read_index(job, shard, with_md5=self.with_md5)

    def split(self, job: Job, split: str, results: Iterator[TarIndex]) -> None:
        """Stores them."""
        self._tars += results

    def tars(self) -> list[TarIndex]:
        """All tars, sorted by name."""
        return sorted(self._tars, key=lambda tar: tar.shard.name)


def put_index(job: Job, name: str, data: bytes) -> None:
    """Writes an index, unless the one that the manifest names exists.

    A later version may write other bytes, which that manifest would not match.
    """
    facts = ((job.shards.manifest or {}).get("files") or {}).get(name)
    if isinstance(facts, dict) and job.place.stands(
        name, int(facts.get("bytes", -1)), str(facts.get("sha256"))
    ):
        return
    job.place.put(name, data)
