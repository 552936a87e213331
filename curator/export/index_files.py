"""Indexes beside the tars, written anew: for shards of older versions, and for lost ones.

The bytes are those that a run writes, so that a manifest that names them still holds.
"""

import hashlib
from dataclasses import dataclass

from curator.errors import ShardError, UsageError
from curator.export.export_cards import put_cards
from curator.export.job import Job
from curator.stages.shard.shard_index import IndexedTar, energon_files, index_bytes, wids_file
from curator.stages.shard.tar_reader import IDX_SUFFIX, SPLITS, Shard, TarReader


@dataclass(frozen=True, slots=True, kw_only=True)
class TarIndex:
    """What indexes say about a tar."""

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
        """What indexes of readers say of it."""
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


def export_energon(job: Job) -> None:
    """Writes `<tar>.idx` for each tar, and `.nv-meta/*` for all of them and for each bucket."""
    _refuse_part(job)
    place = job.look([""])

    def one(shard: Shard) -> TarIndex:
        index = read_index(job, shard, with_md5=False)
        place.put(f"{shard.name}{IDX_SUFFIX}", index_bytes(index.offsets))
        return index

    tars = list(job.in_order(one, job.chosen))
    buckets = sorted({tar.shard.bucket for tar in tars if tar.shard.bucket})
    for folder in ("", *(f"{bucket}/" for bucket in buckets)):
        inside = [tar for tar in tars if tar.shard.name.startswith(folder)]
        for name, data in energon_files([tar.facts() for tar in inside], folder):
            _put(job, f"{folder}.nv-meta/{name}", data)
    put_cards(job)


def export_wids(job: Job) -> None:
    """Writes `wids-train.json` and `wids-val.json`."""
    _refuse_part(job)
    job.look(["wids-"])
    tars = list(job.in_order(lambda shard: read_index(job, shard, with_md5=True), job.chosen))
    for split in SPLITS:
        of_split = [tar.facts() for tar in tars if tar.shard.split == split]
        _put(job, f"wids-{split}.json", wids_file(of_split))
    put_cards(job)


def _put(job: Job, name: str, data: bytes) -> None:
    """Writes an index, unless the one that the manifest names stands.

    A later version may write other bytes, with which that manifest would not hold.
    """
    facts = ((job.shards.manifest or {}).get("files") or {}).get(name)
    if isinstance(facts, dict) and job.place.stands(
        name, int(facts.get("bytes", -1)), str(facts.get("sha256"))
    ):
        return
    job.place.put(name, data)


def _refuse_part(job: Job) -> None:
    """Indexes of some shards would hide the others."""
    if len(job.chosen) < len(job.shards.shards):
        raise UsageError(
            f"the format {job.options.format} indexes all shards; leave out --split and --bucket. "
            "Each bucket has a .nv-meta of its own, and each split a wids index"
        )
