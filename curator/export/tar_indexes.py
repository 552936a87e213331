"""Indexes of tars for readers in place, where a run wrote none or they were lost.

A run writes the same bytes, so a manifest that names the indexes stays valid. The export also
writes missing dataset cards: without a card, Hugging Face `datasets` selects files by suffix and
mistakes `.tar.idx` for a tar. Existing cards are kept, because people edit them.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import orjson
import pyarrow as pa

from curator.dataset.dataset_card import CARD, dataset_card
from curator.dataset.reader_indexes import (
    CAPTIONS,
    caption_lines,
    captions_file,
    member_columns,
    members_file,
)
from curator.dataset.shard_index import (
    DATASET_SCHEMA,
    DescribedTar,
    energon_files,
    index_bytes,
    of_training,
    sample_row,
    wids_file,
)
from curator.dataset.tar_reader import (
    SPLITS,
    Member,
    Shard,
    TarReader,
    declared_families,
    members_name,
)
from curator.errors import ShardError, raised_as
from curator.export.exporter import Exporter, ExporterOptions
from curator.export.job import Job
from curator.records.clips import CLIP_FORMATS, WINDOWED
from curator.records.sources import Medium
from curator.tables.parts import rows_to_table


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTar:
    """A tar with its rows of `dataset.parquet`, which are made of its samples."""

    described: DescribedTar
    rows: pa.Table


class TarIndexes(Exporter[ExporterOptions, ReadTar]):
    """Common base of the formats that index tars."""

    indexes_tars = True
    media = frozenset({Medium.VIDEO, Medium.IMAGE})

    def __init__(self, options: ExporterOptions) -> None:
        super().__init__(options)
        self._tars: list[ReadTar] = []

    def split(self, job: Job, split: str, results: Iterator[ReadTar]) -> None:
        """Stores the tars, sorted by name."""
        self._tars = sorted([*self._tars, *results], key=lambda tar: tar.described.name)

    def inside(self, folder: str) -> tuple[list[DescribedTar], pa.Table]:
        """Returns the tars in a folder, and their rows."""
        own = [tar for tar in self._tars if tar.described.name.startswith(folder)]
        rows = [DATASET_SCHEMA.empty_table(), *(tar.rows for tar in own)]
        return [tar.described for tar in own], pa.concat_tables(rows)


class Energon(TarIndexes):
    """Writes `<tar>.idx` for each tar, and `.nv-meta/*` for all of them and for each bucket."""

    about = "indexes for Megatron-Energon: .tar.idx beside the tars, .nv-meta"
    version = 2
    folder = ""

    def shard(self, job: Job, shard: Shard) -> ReadTar:
        """Writes a tar's index."""
        tar, offsets = _read_tar(job, shard)
        job.place.put(shard.idx_name, index_bytes(offsets))
        return tar

    def finish(self, job: Job) -> None:
        """Writes the files that name all tars."""
        for folder in _folders(job):
            for name, data in energon_files(*self.inside(folder), prefix=folder):
                _put_index(job, f"{folder}.nv-meta/{name}", data)
        _put_cards(job)


class Webshart(TarIndexes):
    """Writes an index of the MP4s beside each tar, and the captions of each bucket."""

    about = (
        "indexes for webshart and SimpleTuner (.json beside the tars), diffusion-pipe's captions"
    )
    folder = ""

    def shard(self, job: Job, shard: Shard) -> ReadTar:
        """Writes a tar's index."""
        tar, _ = _read_tar(job, shard)
        job.place.put(members_name(shard.name), members_file(tar.rows, tar.described.bytes))
        return tar

    def finish(self, job: Job) -> None:
        """Writes the captions of the clips for training."""
        for folder in _folders(job)[1:]:
            lines = caption_lines(of_training(self.inside(folder)[1]))
            _put_index(job, f"{folder}{CAPTIONS}", captions_file(lines))
        _put_cards(job)


class Wids(TarIndexes):
    """Writes `wids-train.json` and `wids-val.json`, for wids, the random access of WebDataset."""

    about = "wids-train.json and wids-val.json"
    folder = "wids-"

    def shard(self, job: Job, shard: Shard) -> ReadTar:
        """Reads the facts of a tar, with its MD5."""
        return _read_tar(job, shard, with_md5=True)[0]

    def finish(self, job: Job) -> None:
        """Writes the two indexes."""
        for split in SPLITS:
            tars = (tar.described for tar in self._tars)
            of_split = [tar for tar in tars if tar.split == split]
            _put_index(job, f"wids-{split}.json", wids_file(of_split))
        _put_cards(job)


def _read_tar(job: Job, shard: Shard, *, with_md5: bool = False) -> tuple[ReadTar, list[int]]:
    """Reads a tar without its MP4s; reads all bytes only for the MD5.

    Returns the tar and its offsets: the first header of each sample, then the end of the last
    sample. The MD5 is empty if not requested.
    """
    digest = hashlib.md5(usedforsecurity=False)
    n_bytes = job.shards.sizes[shard.name]
    offsets, rows = [], []
    with job.shards.store.open(job.shards.key(shard.name)) as stream:

        def read(n: int) -> bytes:
            data = stream.read(n)
            digest.update(data)
            return data

        reader = TarReader(read, n_bytes, seek=None if with_md5 else stream.seek)
        with raised_as(
            ShardError, ShardError, KeyError, ValueError, of=f"{job.shards.uri(shard.name)}: "
        ):
            for key, members in groupby(reader, key=lambda member: member.key):
                begin, row = _row(shard, key, members, reader)
                offsets.append(begin)
                rows.append(row)
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
    return ReadTar(described=tar, rows=rows_to_table(rows, DATASET_SCHEMA)), [*offsets, reader.end]


def _row(
    shard: Shard, key: str, members: Iterator[Member], reader: TarReader
) -> tuple[int, dict[str, Any]]:
    """Reads JSON and caption of a sample; returns its first header and its row."""
    found: dict[str, Member] = {}
    texts = {"json": b"{}", "txt": b""}
    for member in members:
        found[member.suffix] = member
        if member.suffix in texts:
            texts[member.suffix] = reader.read(member)
    row = sample_row(shard.name, key, orjson.loads(texts["json"]), texts["txt"].decode())
    clip = next(member for suffix, member in found.items() if suffix in CLIP_FORMATS)
    row |= {"offset": clip.data_offset, "bytes": clip.bytes}
    row |= member_columns((suffix, member.bytes) for suffix, member in found.items())
    return min(member.offset for member in found.values()), row


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
    pictures = [shard for shard in shards if shard.facts.get("medium") == Medium.IMAGE]
    suffixes = first.keys() | {name for shard in pictures for name in _first_sample(job, shard)}
    return dataset_card(
        names,
        with_embedding="npy" in first,
        with_id="id" in first,
        with_annotation="annotation" in metadata,
        with_windows=WINDOWED[0] in metadata,
        formats=tuple(name for name in CLIP_FORMATS if name in suffixes),
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
                member.suffix: b"" if member.suffix in CLIP_FORMATS else reader.read(member)
                for member in next(samples, ("", ()))[1]
            }
