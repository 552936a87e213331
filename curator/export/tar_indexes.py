"""Indexes of tars for Megatron-Energon and wids, where a run wrote none or they were lost.

A run writes the same bytes, so a manifest that names the indexes stays valid. The export also
writes missing dataset cards: without a card, Hugging Face `datasets` selects files by suffix and
mistakes `.tar.idx` for a tar. Existing cards are kept, because people edit them.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import orjson

from curator.errors import ShardError, raised_as
from curator.export.exporter import Exporter, ExporterOptions
from curator.export.job import Job
from curator.records.clips import WINDOWED
from curator.stages.shard.dataset_card import CARD, dataset_card
from curator.stages.shard.shard_index import DescribedTar, energon_files, index_bytes, wids_file
from curator.stages.shard.tar_reader import SPLITS, Shard, TarReader, declared_families


class TarIndexes(Exporter[ExporterOptions, DescribedTar]):
    """Common base of the formats that index tars."""

    indexes_tars = True

    def __init__(self, options: ExporterOptions) -> None:
        super().__init__(options)
        self._tars: list[DescribedTar] = []

    def split(self, job: Job, split: str, results: Iterator[DescribedTar]) -> None:
        """Stores the facts of the tars, sorted by name."""
        self._tars = sorted([*self._tars, *results], key=lambda tar: tar.name)


class Energon(TarIndexes):
    """Writes `<tar>.idx` for each tar, and `.nv-meta/*` for all of them and for each bucket."""

    about = "indexes for Megatron-Energon: .tar.idx beside the tars, .nv-meta"
    folder = ""

    def shard(self, job: Job, shard: Shard) -> DescribedTar:
        """Writes a tar's index."""
        tar, offsets = _read_tar(job, shard)
        job.place.put(shard.idx_name, index_bytes(offsets))
        return tar

    def finish(self, job: Job) -> None:
        """Writes the files that name all tars."""
        for folder in _folders(job):
            inside = [tar for tar in self._tars if tar.name.startswith(folder)]
            for name, data in energon_files(inside, folder):
                _put_index(job, f"{folder}.nv-meta/{name}", data)
        _put_cards(job)


class Wids(TarIndexes):
    """Writes `wids-train.json` and `wids-val.json`, for wids, the random access of WebDataset."""

    about = "wids-train.json and wids-val.json"
    folder = "wids-"

    def shard(self, job: Job, shard: Shard) -> DescribedTar:
        """Reads the facts of a tar, with its MD5."""
        return _read_tar(job, shard, with_md5=True)[0]

    def finish(self, job: Job) -> None:
        """Writes the two indexes."""
        for split in SPLITS:
            of_split = [tar for tar in self._tars if tar.split == split]
            _put_index(job, f"wids-{split}.json", wids_file(of_split))
        _put_cards(job)


def _read_tar(job: Job, shard: Shard, *, with_md5: bool = False) -> tuple[DescribedTar, list[int]]:
    """Finds the samples of a tar by its headers; reads all bytes only for the MD5.

    Returns the facts of the tar and its offsets: the first header of each sample, then the end of
    the last sample. The MD5 is empty if not requested.
    """
    digest = hashlib.md5(usedforsecurity=False)
    n_bytes = job.shards.sizes[shard.name]
    with job.shards.store.open(job.shards.key(shard.name)) as stream:

        def read(n: int) -> bytes:
            data = stream.read(n)
            digest.update(data)
            return data

        reader = TarReader(read, n_bytes, seek=None if with_md5 else stream.seek)
        with raised_as(ShardError, ShardError, of=f"{job.shards.uri(shard.name)}: "):
            samples = groupby(reader, key=lambda member: member.key)
            offsets = [next(members).offset for _, members in samples]
        while with_md5 and read(1 << 20):
            pass
    if not offsets:
        raise ShardError(f"{job.shards.uri(shard.name)} has no samples; delete it")
    job.exported.add(clips=len(offsets))
    md5 = digest.hexdigest() if with_md5 else ""
    tar = DescribedTar(
        name=shard.name,
        bucket=shard.bucket,
        split=shard.split,
        samples=len(offsets),
        bytes=n_bytes,
        md5=md5,
    )
    return tar, [*offsets, reader.end]


def _folders(job: Job) -> list[str]:
    """Returns prefixes of the tars' names: empty for all of them, then one for each bucket."""
    return ["", *(f"{name}/" for name in sorted({shard.bucket for shard in job.chosen}) if name)]


def _put_index(job: Job, name: str, data: bytes) -> None:
    """Writes an index, unless the one that the manifest names exists.

    A later version may write other bytes, which that manifest would not match.
    """
    facts = ((job.shards.manifest or {}).get("files") or {}).get(name)
    if isinstance(facts, dict) and job.place.exists_as(
        name, int(facts.get("bytes", -1)), str(facts.get("sha256"))
    ):
        return
    job.place.put(name, data)


def _put_cards(job: Job) -> None:
    """Writes missing cards next to the tars, one for all of them and one for each bucket.

    Other destinations get none, because they do not have the tars. Cards that a manifest does not
    name are not written either: `curate verify` would report them.
    """
    if job.store.uri != job.shards.uri("").rstrip("/"):
        return
    for folder in _folders(job):
        name = f"{folder}{CARD}"
        inside = [shard for shard in job.chosen if shard.name.startswith(folder)]
        is_of_set = job.shards.manifest is None or name in job.shards.manifest.get("files", {})
        if inside and is_of_set and not job.store.exists(name):
            job.place.put(name, _card(job, inside, folder))


def _card(job: Job, shards: Sequence[Shard], folder: str) -> bytes:
    names = {
        split: [shard.name.removeprefix(folder) for shard in shards if shard.split == split]
        for split in SPLITS
    }
    first = _first_sample(job, shards[0])
    metadata: dict[str, Any] = orjson.loads(first.get("json", b"{}"))
    return dataset_card(
        names,
        with_embedding="npy" in first,
        with_id="id" in first,
        with_annotation="annotation" in metadata,
        with_windows=WINDOWED[0] in metadata,
        declared=declared_families(job.shards.manifest),
        scores=metadata.get("scores", {}),
    )


def _first_sample(job: Job, shard: Shard) -> dict[str, bytes]:
    """Returns members of a tar's first sample by suffix; does not read the MP4."""
    with job.shards.store.open(job.shards.key(shard.name)) as stream:
        reader = TarReader(stream.read, job.shards.sizes[shard.name], seek=stream.seek)
        with raised_as(ShardError, ShardError, of=f"{job.shards.uri(shard.name)}: "):
            samples = groupby(reader, key=lambda member: member.key)
            return {
                member.suffix: b"" if member.suffix == "mp4" else reader.read(member)
                for member in next(samples, ("", ()))[1]
            }
