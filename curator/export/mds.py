"""MDS, the format of MosaicML's StreamingDataset, by its own writer.

Each tar becomes a folder of MDS shards with an index, written to a temporary folder first; the
index of a split names the shards of all its folders. An MDS shard is held in memory while it is
written: 64 MiB.
"""

import hashlib
import json
from contextlib import suppress
from typing import Any

from curator.errors import StorageError, UsageError
from curator.export.clip_reader import Clip, read_clips
from curator.export.job import Job
from curator.stages.shard.tar_reader import Shard
from curator.storage.scratch import ScratchFolder

MDS_VERSION = 1
"""Raised when the same clips would give other shards."""
SIZE_LIMIT_BYTES = 1 << 26
INDEX = "index.json"
HASH = "sha1"
"""What the package can check (`validate_hash`) without more packages."""
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
"""Columns by MDS encoding. `video` is the MP4, `json` all that is known of the clip."""


def export_mds(job: Job) -> None:
    """Writes `<split>/<bucket>_<number>-<hash>/shard.*.mds` and `<split>/index.json`.

    Raises:
        UsageError: The package is missing.
    """
    place = job.look([f"{split}/" for split in job.options.splits])
    _writer_class()

    def one(shard: Shard) -> list[dict[str, Any]]:
        bucket = f"{shard.bucket.replace('/', '_')}_" if shard.bucket else ""
        name = f"{bucket}{shard.stem}"
        folder = f"{shard.split}/{name}"
        stamp = job.stamp(shard, "mds", MDS_VERSION, COLUMNS, SIZE_LIMIT_BYTES)
        entries = _standing(job, folder, stamp)
        if entries is None:
            entries = _write(job, shard, folder, stamp)
        else:
            job.exported.add(
                standing=len(entries), clips=sum(entry["samples"] for entry in entries)
            )
        for entry in entries:
            place.keep(f"{folder}/{entry['raw_data']['basename']}")
        return [
            entry | {"raw_data": entry["raw_data"] | {"basename": f"{name}/{_basename(entry)}"}}
            for entry in entries
        ]

    for split in job.options.splits:
        own = [shard for shard in job.chosen if shard.split == split]
        if own:
            listed = [entry for entries in job.in_order(one, own) for entry in entries]
            # Last, so that what a reader finds is whole.
            place.put(f"{split}/{INDEX}", _json({"version": 2, "shards": listed}))
    job.exported.add(others=len(place.others((".mds",))))


def _writer_class() -> Any:  # noqa: ANN401 - of a package that may be missing
    try:
        from streaming import MDSWriter
    except ImportError as error:
        raise UsageError(
            f"the format mds needs the package mosaicml-streaming ({error}): pip install "
            "'curate-video[mds]', best in an environment of its own, because it holds numpy below "
            "2.2"
        ) from error
    return MDSWriter


def _basename(entry: dict[str, Any]) -> str:
    return str(entry["raw_data"]["basename"])


def _standing(job: Job, folder: str, stamp: str) -> list[dict[str, Any]] | None:
    """Entries of a folder that stands whole and was made from the same, or None."""
    place = job.place
    if place.size(f"{folder}/{INDEX}") is None:
        return None
    with suppress(StorageError, ValueError, KeyError, TypeError):
        index = json.loads(job.store.read(f"{folder}/{INDEX}"))
        entries: list[dict[str, Any]] = index["shards"]
        if index["curate"] == stamp and all(
            place.size(f"{folder}/{_basename(entry)}") == entry["raw_data"]["bytes"]
            for entry in entries
        ):
            return entries
    return None


def _write(job: Job, shard: Shard, folder: str, stamp: str) -> list[dict[str, Any]]:
    place = job.place
    with ScratchFolder("curate-mds-") as temporary:
        made = temporary.path / "made"
        writer = _writer_class()(
            out=str(made), columns=COLUMNS, hashes=[HASH], size_limit=SIZE_LIMIT_BYTES
        )
        for clip in read_clips(job.shards, shard, wants_mp4=lambda *_: True):
            writer.write(_sample(clip))
            job.count(clip)
        writer.finish()
        entries: list[dict[str, Any]] = json.loads((made / INDEX).read_bytes())["shards"]
        for entry in entries:
            data = (made / _basename(entry)).read_bytes()
            if (
                hashlib.sha1(data, usedforsecurity=False).hexdigest()
                != (entry["raw_data"]["hashes"][HASH])
            ):
                raise StorageError(f"{made / _basename(entry)} changed while it was read")
            place.put(f"{folder}/{_basename(entry)}", data)
    place.put(f"{folder}/{INDEX}", _json({"version": 2, "shards": entries, "curate": stamp}))
    return entries


def _sample(clip: Clip) -> dict[str, Any]:
    row = clip.row()
    return {name: row[name] for name in COLUMNS if name in row} | {
        "key": clip.key,
        "video": clip.mp4,
        "json": clip.fields,
    }


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
