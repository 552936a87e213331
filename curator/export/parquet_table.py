"""Parquet, a row per clip: for Ray Data, `datasets` and other readers of tables."""

from contextlib import suppress
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from curator.errors import StorageError
from curator.export.clip_reader import Clip
from curator.export.exporter import Exporter, ExporterOptions
from curator.export.job import Job
from curator.stages.shard.tar_reader import Shard

STAMP = b"curate.export"
GROUP_BYTES = 16 << 20
GROUP_ROWS = 1000

SCHEMA = pa.schema(
    [
        ("clip_id", pa.string()),
        ("path", pa.string()),
        ("text", pa.string()),
        ("num_frames", pa.int64()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("aspect_ratio", pa.float64()),
        ("resolution", pa.int64()),
        ("fps", pa.float64()),
        ("duration", pa.float64()),
        ("split", pa.string()),
        ("bucket", pa.string()),
        ("shard", pa.string()),
        ("offset", pa.int64()),
        ("bytes", pa.int64()),
        ("sha256", pa.string()),
        ("source_id", pa.string()),
        ("source_uri", pa.string()),
        ("json", pa.string()),
    ]
)
"""Columns as in `dataset.parquet`. `path` is the tar's address, `#`, and the member's name; its
MP4 is the `bytes` from `offset` on. `json` is all that is known. With videos there is `video`, the
MP4, last."""
VIDEO = pa.field("video", pa.binary())


class ParquetOptions(ExporterOptions):
    """Options of the format."""

    videos: bool = Field(False, description="put the MP4s into the tables")


class ParquetTables(Exporter[ParquetOptions, None]):
    """Writes `<split>/<bucket>_<number>-<hash>.parquet`, one per shard."""

    about = "<split>/*.parquet, a row per clip, with its MP4 if asked for: Ray Data, datasets"
    options_type = ParquetOptions
    suffixes = (".parquet",)

    def shard(self, job: Job, shard: Shard) -> None:
        """Writes a shard's table."""
        with_videos = self.options.videos
        schema = SCHEMA.append(VIDEO) if with_videos else SCHEMA
        bucket = f"{shard.bucket.replace('/', '_')}_" if shard.bucket else ""
        key = f"{shard.split}/{bucket}{shard.stem}.parquet"
        uri = job.shards.uri(shard.name)
        stamp = job.stamp(shard, "parquet", self.version, with_videos, uri)
        if job.place.size(key) is not None:
            n_rows = _standing_rows(job, key, stamp)
            if n_rows is not None:
                job.place.keep(key)
                job.exported.add(standing=1, clips=n_rows)
                return
        with (
            job.place.create(key) as output,
            pq.ParquetWriter(
                output,
                schema.with_metadata({STAMP: stamp}),
                # MP4s do not compress.
                compression={name: "none" if name == "video" else "zstd" for name in schema.names},
                use_dictionary=[name for name in schema.names if name != "video"],
                write_statistics=[name for name in schema.names if name != "video"],
            ) as writer,
        ):
            rows = _Rows(writer, schema)
            for clip in job.clips(shard, with_videos):
                rows.add(_row(clip, uri, with_videos=with_videos))
            rows.flush()
        job.exported.add(bytes=rows.n_bytes)


def _row(clip: Clip, uri: str, *, with_videos: bool) -> dict[str, Any]:
    row = clip.row() | {
        "path": f"{uri}#{clip.key}.mp4",
        "json": orjson.dumps(clip.fields, option=orjson.OPT_SORT_KEYS).decode(),
    }
    return row | {"video": clip.mp4} if with_videos else row


def _standing_rows(job: Job, key: str, stamp: str) -> int | None:
    """Returns the number of rows of a table that was made from the same input, or None."""
    with suppress(StorageError, OSError, pa.ArrowException), job.store.open(key) as stream:
        metadata = pq.read_metadata(stream)
        if (metadata.metadata or {}).get(STAMP) == stamp.encode():
            return int(metadata.num_rows)
    return None


class _Rows:
    """Collects rows into row groups of bounded size."""

    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema) -> None:
        self._writer = writer
        self._schema = schema
        self._rows: list[dict[str, Any]] = []
        self._group_bytes = 0
        self.n_bytes = 0

    def add(self, row: dict[str, Any]) -> None:
        self._rows.append(row)
        self._group_bytes += len(row.get("video") or b"") + len(row["json"])
        if self._group_bytes >= GROUP_BYTES or len(self._rows) >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, self._schema))
        self.n_bytes += self._group_bytes
        self._rows, self._group_bytes = [], 0
