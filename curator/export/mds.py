"""MDS, the format of MosaicML's StreamingDataset, by its own writer.

Each tar becomes a folder of MDS shards with an index, written to a temporary folder first; the
index of a split names the shards of all its folders. An MDS shard (64 MiB) is held in memory during
writing.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from curator.dataset.tar_reader import Shard
from curator.errors import StorageError, UsageError
from curator.export.exporter import Exporter, ExporterOptions
from curator.export.job import Job
from curator.installation import install_extra
from curator.records.sources import Medium
from curator.storage.scratch import ScratchFolder

SIZE_LIMIT_BYTES = 1 << 26
INDEX = "index.json"
HASH = "sha1"
"""A hash that StreamingDataset checks (`validate_hash`) without further packages."""
Entries = list[dict[str, Any]]
"""Entries of an index, one for each MDS shard."""
COLUMNS = {
    "key": "str",
    "video": "bytes",
    "text": "str",
    "num_frames": "int64",
    "height": "int64",
    "width": "int64",
    "fps": "float64",
    "duration": "float64",
    "bucket": "str",
    "json": "json",
}
"""Columns by MDS encoding. `video` is the MP4, `json` the full JSON of the clip."""


class Mds(Exporter[ExporterOptions, Entries]):
    """Writes `<split>/<bucket>_<number>-<hash>/shard.*.mds` and `<split>/index.json`."""

    about = "<split>/index.json and shards for MosaicML's StreamingDataset"
    media = frozenset({Medium.VIDEO, Medium.IMAGE})
    suffixes = (".mds",)

    def begin(self, job: Job) -> None:
        """Checks that the package is installed."""
        _writer_class()

    def shard(self, job: Job, shard: Shard) -> Entries:
        """Writes a shard's folder; returns its entries for the index of its split."""
        name = shard.name.removesuffix(".tar").replace("/", "_")
        folder = f"{shard.split}/{name}"
        fingerprint = job.fingerprint(shard, "mds", self.version, COLUMNS, SIZE_LIMIT_BYTES)
        entries = _reusable_entries(job, folder, fingerprint)
        if entries is None:
            entries = _write(job, shard, folder, fingerprint)
        else:
            n_clips = sum(entry["samples"] for entry in entries)
            names = (f"{folder}/{_basename(entry)}" for entry in entries)
            job.place.reuse(*names, clips=n_clips)
        return [
            entry | {"raw_data": entry["raw_data"] | {"basename": f"{name}/{_basename(entry)}"}}
            for entry in entries
        ]

    def split(self, job: Job, split: str, results: Iterator[Entries]) -> None:
        """Writes the index last, so that readers find only complete data."""
        listed = [entry for entries in results for entry in entries]
        job.place.put(f"{split}/{INDEX}", _json({"version": 2, "shards": listed}))


def _writer_class() -> Any:  # noqa: ANN401 - of a package that may be missing
    try:
        from streaming import MDSWriter
    except ImportError as error:
        raise UsageError(
            f"the format mds needs the package mosaicml-streaming ({error}): "
            f"{install_extra('mds')}, best in an environment of its own, because it holds numpy "
            "below 2.2"
        ) from error
    return MDSWriter


def _basename(entry: dict[str, Any]) -> str:
    return str(entry["raw_data"]["basename"])


def _reusable_entries(job: Job, folder: str, fingerprint: str) -> Entries | None:
    """Returns the entries of a complete folder that was made from the same input, or None."""
    place = job.place
    if place.size(f"{folder}/{INDEX}") is None:
        return None
    with suppress(StorageError, ValueError, KeyError, TypeError):
        index = json.loads(job.store.read(f"{folder}/{INDEX}"))
        entries: Entries = index["shards"]
        if index["curate"] == fingerprint and all(
            place.size(f"{folder}/{_basename(entry)}") == entry["raw_data"]["bytes"]
            for entry in entries
        ):
            return entries
    return None


def _write(job: Job, shard: Shard, folder: str, fingerprint: str) -> Entries:
    place = job.place
    with ScratchFolder("curate-mds-") as temporary:
        made = temporary.path / "made"
        writer = _writer_class()(
            out=str(made), columns=COLUMNS, hashes=[HASH], size_limit=SIZE_LIMIT_BYTES
        )
        for clip in job.clips(shard, True):
            own = {"key": clip.key, "video": clip.mp4, "json": clip.fields}
            row = clip.row() | own
            writer.write({name: row[name] for name in COLUMNS})
        writer.finish()
        entries: Entries = json.loads((made / INDEX).read_bytes())["shards"]
        for entry in entries:
            data = (made / _basename(entry)).read_bytes()
            digest = hashlib.sha1(data, usedforsecurity=False).hexdigest()
            if digest != entry["raw_data"]["hashes"][HASH]:
                raise StorageError(f"{made / _basename(entry)} changed while it was read")
            place.put(f"{folder}/{_basename(entry)}", data)
    place.put(f"{folder}/{INDEX}", _json({"version": 2, "shards": entries, "curate": fingerprint}))
    return entries


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
