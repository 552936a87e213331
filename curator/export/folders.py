"""Folders of MP4s, for loaders that take files.

Cosmos-Predict2 and 2.5 take from a folder all `videos/*.mp4`, and for each the prompt from
`metas/<name>.txt`. 2.5 draws the first frame from [0, frames - N), which is empty for a clip of
exactly N frames: buckets promise N + 1. Text embeddings are made by its own script.
Source: the post-training guides and the dataset class of cosmos-predict2.5.
"""

import csv
import io
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curator.export.job import Job
from curator.export.read import Clip, read_clips
from curator.shardset import Shard

OPENSORA_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("text", pa.string()),
        ("num_frames", pa.int64()),
        ("height", pa.int64()),
        ("width", pa.int64()),
        ("aspect_ratio", pa.float64()),
        ("resolution", pa.int64()),
        ("fps", pa.float64()),
    ]
)
"""What Open-Sora's tables hold: `aspect_ratio` is height by width, `resolution` their product."""


def export_cosmos(job: Job) -> None:
    """Writes `<split>/videos/<key>.mp4` and `<split>/metas/<key>.txt`."""
    place = job.look([f"{split}/" for split in job.options.splits])

    def one(shard: Shard) -> None:
        for clip in write_videos(job, shard, f"{shard.split}/videos"):
            place.put(f"{shard.split}/metas/{clip.key}.txt", clip.text.encode())

    job.each(one)
    job.exported.add(others=len(place.others((".mp4", ".txt"))))


def export_opensora(job: Job) -> None:
    """Writes `videos/<split>/<key>.mp4`, and a table of each split as CSV and as Parquet."""
    job.look([f"videos/{split}/" for split in job.options.splits])
    base = "" if job.options.relative_paths else f"{job.store.uri}/"

    def one(shard: Shard) -> list[dict[str, Any]]:
        folder = f"videos/{shard.split}"
        rows = []
        for clip in write_videos(job, shard, folder):
            row = clip.row() | {"path": f"{base}{folder}/{clip.key}.mp4"}
            rows.append({name: row[name] for name in OPENSORA_SCHEMA.names})
        return rows

    for split in job.options.splits:
        own = [shard for shard in job.chosen if shard.split == split]
        if not own:
            continue
        with ExitStack() as stack:
            lines = stack.enter_context(job.store.create(f"{split}.csv"))
            parquet = stack.enter_context(job.store.create(f"{split}.parquet"))
            writer = stack.enter_context(pq.ParquetWriter(parquet, OPENSORA_SCHEMA))
            lines.write(_csv([OPENSORA_SCHEMA.names]))
            for rows in job.in_order(one, own):
                lines.write(_csv(row.values() for row in rows))
                writer.write_table(pa.Table.from_pylist(rows, OPENSORA_SCHEMA))
        job.exported.add(objects=2)
    # Tables name the videos, so that others beside them do no harm: they are not counted.


def _csv(rows: Any) -> bytes:  # noqa: ANN401 - an iterable of iterables
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def write_videos(job: Job, shard: Shard, folder: str) -> Iterator[Clip]:
    """Writes the MP4s of a shard that are not there yet; yields all its clips."""
    place = job.place

    def wants(clip: Clip, sha256: str) -> bool:
        return not place.stands(f"{folder}/{clip.key}.mp4", clip.mp4_bytes, sha256)

    for clip in read_clips(job.shards, shard, wants_mp4=wants):
        if clip.mp4 is not None:
            place.put(f"{folder}/{clip.key}.mp4", clip.mp4)
        job.count(clip)
        yield clip
