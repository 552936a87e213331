"""Parquet, a row per clip: for Ray Data, `datasets` and other readers of tables."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from curator.dataset.shard_index import DATASET_SCHEMA
from curator.dataset.tar_reader import COLUMNS, Shard, declared_families
from curator.errors import StorageError
from curator.export.exporter import Exporter, ExporterOptions
from curator.export.job import Job, ShardClip
from curator.family import Family, Place
from curator.records.sources import Medium
from curator.tables.schemas import family_fields

STAMP = b"curate.export"
GROUP_BYTES = 16 << 20
GROUP_ROWS = 1000

_AS_IN_DATASET = (
    "clip_id", "path", "text", "num_frames", "height", "width", "aspect_ratio", "resolution", "fps",
    "duration", "split", "bucket", "shard", "offset", "bytes", "sha256", "source_id", "source_uri",
)  # fmt: skip
SCHEMA = pa.schema([*map(DATASET_SCHEMA.field, _AS_IN_DATASET), ("json", pa.string())])
"""Columns as in `dataset.parquet`. `path` is the tar's address, `#`, and the member's name; its
MP4 is the `bytes` from `offset` on. `json` is the full JSON of the clip. After these columns come
the columns of annotators; then `<family>_offset` and `<family>_bytes` of each member that an
annotator added, and `<family>_tar` if it is in a side tar; and last, with
videos, `video`, the MP4."""
VIDEO = pa.field("video", pa.binary())


class ParquetOptions(ExporterOptions):
    """Options of the format."""

    videos: bool = False
    """put the MP4s into the tables"""


class ParquetTables(Exporter[ParquetOptions, None]):
    """Writes `<split>/<bucket>_<number>-<hash>.parquet`, one per shard."""

    about = "<split>/*.parquet, a row per clip, with its MP4 if asked for: Ray Data, datasets"
    options_type = ParquetOptions
    media = frozenset({Medium.VIDEO, Medium.IMAGE})
    suffixes = (".parquet",)
    has_members = True

    def shard(self, job: Job, shard: Shard) -> None:
        """Writes a shard's table."""
        with_videos = self.options.videos
        added = {suffix: Family.from_json(v) for suffix, v in job.shards.declared.items()}
        declared = {suffix: family.name for suffix, family in added.items()}
        places = [
            pa.field(f"{family.name}_{fact}", pa.string() if fact == "tar" else pa.int64())
            for family in added.values()
            for fact in ("offset", "bytes", "tar")[: 3 if family.is_side else 2]
        ]
        families = map(Family.from_json, declared_families(job.shards.manifest).values())
        columns = [
            field
            for family in families
            if family.place is Place.SAMPLE
            for field in family_fields(family)
        ]
        video = [VIDEO] if with_videos else []
        schema = pa.schema([*SCHEMA, *columns, *places, *video])
        key = f"{shard.split}/{shard.name.removesuffix('.tar').replace('/', '_')}.parquet"
        uri = job.shards.uri(shard.name)
        # Tables without such columns keep the fingerprint that they had before such columns
        # existed.
        own: list[object] = [sorted(declared.items())] if declared else []
        own += [[(field.name, str(field.type)) for field in columns]] if columns else []
        fingerprint = job.fingerprint(shard, "parquet", self.version, with_videos, uri, *own)
        n_rows = _reusable_rows(job, key, fingerprint)
        if n_rows is not None:
            job.place.reuse(key, clips=n_rows)
            return
        others = [name for name in schema.names if name != "video"]
        with (
            job.place.create(key) as output,
            pq.ParquetWriter(
                output,
                schema.with_metadata({STAMP: fingerprint}),
                # MP4s do not compress.
                compression={name: "none" if name == "video" else "zstd" for name in schema.names},
                use_dictionary=others,
                write_statistics=others,
            ) as writer,
        ):
            clips = job.clips(shard, with_videos)
            rows_of = (_row(clip, uri, declared, with_videos) for clip in clips)
            for rows, n_bytes in _groups(rows_of):
                writer.write_table(pa.Table.from_pylist(rows, schema))
                job.exported.add(bytes=n_bytes)


def _row(
    clip: ShardClip, uri: str, declared: Mapping[str, str], with_videos: bool
) -> dict[str, Any]:
    row = clip.row() | {
        "path": f"{uri}#{clip.file_name}",
        "json": orjson.dumps(clip.fields, option=orjson.OPT_SORT_KEYS).decode(),
        **clip.fields.get(COLUMNS, {}),
    }
    for suffix, name in declared.items():
        tar, offset, n_bytes = clip.members.get(suffix, (None, None, None))
        row |= {f"{name}_offset": offset, f"{name}_bytes": n_bytes, f"{name}_tar": tar}
    return row | {"video": clip.mp4} if with_videos else row


def _reusable_rows(job: Job, key: str, fingerprint: str) -> int | None:
    """Returns the number of rows of a table that was made from the same input, or None."""
    if job.place.size(key) is None:
        return None
    with suppress(StorageError, OSError, pa.ArrowException), job.store.open(key) as stream:
        metadata = pq.read_metadata(stream)
        if (metadata.metadata or {}).get(STAMP) == fingerprint.encode():
            return int(metadata.num_rows)
    return None


def _groups(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Collects rows into row groups of bounded size; yields each with its bytes."""
    group: list[dict[str, Any]] = []
    n_bytes = 0
    for row in rows:
        group.append(row)
        n_bytes += len(row.get("video") or b"") + len(row["json"])
        if n_bytes >= GROUP_BYTES or len(group) >= GROUP_ROWS:
            yield group, n_bytes
            group, n_bytes = [], 0
    if group:
        yield group, n_bytes
