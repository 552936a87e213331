"""Tables and MP4s for Open-Sora.

It reads its CSV with pandas, which turns an empty field, `None` or `NA` into a number; it then
fails at the first such caption.

Source: the dataset classes of Open-Sora 7ad6a96.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curator.export.exporter import Exporter, LeastFrames, RelativePaths
from curator.export.job import Job
from curator.stages.shard.tar_reader import Shard

SCHEMA = pa.schema(
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
"""Columns of both tables: `aspect_ratio` is height by width, `resolution` their product."""

PANDAS_NULLS = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
     "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null")
)  # fmt: skip
"""Fields of a CSV that pandas takes for missing, by its documentation of `read_csv`."""

Rows = list[dict[str, Any]]


class OpenSoraOptions(LeastFrames, RelativePaths):
    """Options of the format."""


class OpenSora(Exporter[OpenSoraOptions, Rows]):
    """Writes `videos/<split>/<key>.mp4`, and a table of each split as CSV and as Parquet.

    Loaders read only videos that the tables name, so that others in the folder are not reported.
    """

    about = (
        "<split>.csv and <split>.parquet with path, text, num_frames, height, width, "
        "aspect_ratio, resolution, fps, and videos/<split>/*.mp4"
    )
    options_type = OpenSoraOptions

    def folders(self, splits: Sequence[str]) -> list[str]:
        """Where the videos go."""
        return [f"videos/{split}/" for split in splits]

    def shard(self, job: Job, shard: Shard) -> Rows:
        """Writes a shard's videos; returns its rows."""
        base = job.base(relative=self.options.relative)
        folder, least = f"videos/{shard.split}", self.options.min_frames
        rows = []
        for clip in job.videos(shard, folder, min_frames=least):
            row = clip.row() | {"path": f"{base}{folder}/{clip.key}.mp4"}
            rows.append({name: row[name] for name in SCHEMA.names})
        return rows

    def split(self, job: Job, split: str, results: Iterator[Rows]) -> None:
        """Writes the two tables."""
        with (
            job.place.create(f"{split}.csv") as lines,
            job.place.create(f"{split}.parquet") as parquet,
            pq.ParquetWriter(parquet, SCHEMA) as writer,
        ):
            lines.write(_csv([SCHEMA.names]))
            for rows in results:
                writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
                for row in rows:
                    if row["text"] in PANDAS_NULLS:
                        row["text"] += " "
                lines.write(_csv(row.values() for row in rows))


def _csv(rows: Any) -> bytes:  # noqa: ANN401 - an iterable of iterables
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
