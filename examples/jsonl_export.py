"""A custom export format: one line of JSON per clip, with the tar that holds the clip's MP4.

export PYTHONPATH=examples
curate export OUT DEST --format jsonl_export:JsonLines --min-duration-s 2
"""

from collections.abc import Iterator

import orjson
from pydantic import Field

from curator.dataset.tar_reader import Shard
from curator.export.exporter import Exporter, ExporterOptions
from curator.export.job import Job


class JsonLinesOptions(ExporterOptions):
    """Options of the format. Each is a flag of `curate export`; its description is the help."""

    min_duration_s: float = Field(
        0.0, ge=0, description="only clips of this many seconds or more (default: 0, all)"
    )


class JsonLines(Exporter[JsonLinesOptions, bytes]):
    """Writes `<split>.jsonl`."""

    about = "<split>.jsonl: caption, size and place of each clip, a line each"
    version = 1
    options_type = JsonLinesOptions
    records = "lines"

    def shard(self, job: Job, shard: Shard) -> bytes:
        """Returns the lines of one shard. Threads call this for several shards at once."""
        rows = [clip.row() for clip in job.clips(shard)]
        lines = [
            orjson.dumps(row | {"tar": job.shards.uri(shard.name)}) + b"\n"
            for row in rows
            if row["duration"] >= self.options.min_duration_s
        ]
        job.exported.add(records=len(lines))
        return b"".join(lines)

    def split(self, job: Job, split: str, results: Iterator[bytes]) -> None:
        """Writes the lines of a split's shards, in the order of the shards."""
        with job.place.create(f"{split}.jsonl") as output:
            output.writelines(results)
