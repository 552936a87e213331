"""Folders of MP4s for the fine-tuning of video models: Cosmos-Predict, CogVideo, Open-Sora.

Source: the dataset classes of cosmos-predict2 661da47, cosmos-predict2.5 50369b8, CogVideo 7a1af71,
finetrainers f476c37 and Open-Sora 7ad6a96.
"""

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curator.errors import UsageError
from curator.export.exporter import RelativePaths, VideoExporter, VideoOptions
from curator.export.job import Job, ShardClip

OPENSORA_SCHEMA = pa.schema(
    [("path", pa.string()), ("text", pa.string()), ("num_frames", pa.int64()),
     ("height", pa.int64()), ("width", pa.int64()), ("aspect_ratio", pa.float64()),
     ("resolution", pa.int64()), ("fps", pa.float64())]
)  # fmt: skip
"""Columns of both tables: `aspect_ratio` is height by width, `resolution` their product."""

PANDAS_NULLS = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
     "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null")
)  # fmt: skip
"""Fields of a CSV that pandas reads as missing. Source: documentation of `read_csv`."""


class Cosmos(VideoExporter[VideoOptions, object]):
    """Writes `<split>/videos/<key>.mp4` and `<split>/metas/<key>.txt`, the prompt.

    Loaders draw the first frame from [0, frames - N), which is empty for a clip of exactly N
    frames: buckets guarantee N + 1. Loaders replace a clip that is too short by a random other
    clip, and loop forever if all clips are too short. Predict2's script makes the text embeddings.
    """

    about = (
        "<split>/videos/*.mp4 and <split>/metas/*.txt: Cosmos-Predict2 and 2.5, which are closed; "
        "folder is for Cosmos 3"
    )
    options_type = VideoOptions
    suffixes = (".mp4", ".txt")

    def rows(self, job: Job, clip: ShardClip, path: str) -> Iterable[object]:
        """Writes a clip's prompt; returns no rows."""
        job.place.put(f"{clip.shard.split}/metas/{clip.key}.txt", clip.text.encode())
        return ()


class CogVideo(VideoExporter[VideoOptions, tuple[str, str]]):
    """Writes `<split>/videos/<key>.mp4`, `<split>/labels/<key>.txt`, and two lists of a split.

    The loader for SAT walks a folder, finds a caption by replacing each `videos` in the path by
    `labels`, and reads the first line of the caption, which an empty file lacks. CogVideo's other
    loader and finetrainers read a list of paths and a list of prompts. Both skip empty lines, so a
    clip without a caption would shift all later prompts; the export leaves such clips out.
    """

    about = (
        "<split>/videos/*.mp4, <split>/labels/*.txt, and lists of both, videos.txt and "
        "prompts.txt: CogVideo and finetrainers, which are inactive"
    )
    options_type = VideoOptions
    records = "captions"
    suffixes = (".mp4", ".txt")

    def begin(self, job: Job) -> None:
        """Refuses a destination whose path would be changed when captions are looked up."""
        super().begin(job)
        if "videos" in job.store.uri or ".mp4" in job.store.uri:
            raise UsageError(
                f"{job.store.uri}: CogVideo finds captions by writing 'labels' for each 'videos' "
                "in a path, and '.txt' for each '.mp4'; choose a destination with neither"
            )

    def rows(self, job: Job, clip: ShardClip, path: str) -> Iterable[tuple[str, str]]:
        """Writes a clip's caption; returns its lines of the lists."""
        # Without line breaks of any kind: loaders split at all of them.
        line = " ".join(part for line in clip.text.splitlines() if (part := line.strip()))
        if not line:
            return []
        job.place.put(f"{clip.shard.split}/labels/{clip.key}.txt", f"{line}\n".encode())
        return [(f"videos/{clip.key}.mp4", line)]

    def split(self, job: Job, split: str, results: Iterator[list[tuple[str, str]]]) -> None:
        """Writes the two lists."""
        with (
            job.place.create(f"{split}/videos.txt") as videos,
            job.place.create(f"{split}/prompts.txt") as prompts,
        ):
            for pairs in results:
                videos.write("".join(f"{path}\n" for path, _ in pairs).encode())
                prompts.write("".join(f"{line}\n" for _, line in pairs).encode())


class OpenSoraOptions(VideoOptions, RelativePaths):
    """Options of the format."""


class OpenSora(VideoExporter[OpenSoraOptions, dict[str, Any]]):
    """Writes `videos/<split>/<key>.mp4`, and a table of each split as CSV and as Parquet.

    Loaders read only videos that the tables name, so other videos in the folder are not reported.
    The CSV is read with pandas, which turns an empty field, `None` or `NA` into a number; the
    loader then fails at the first such caption.
    """

    about = (
        "<split>.csv and <split>.parquet with path, text, num_frames, height, width, "
        "aspect_ratio, resolution, fps, and videos/<split>/*.mp4: Open-Sora, which is inactive"
    )
    options_type = OpenSoraOptions
    videos = "videos/{split}"
    folder = "videos/{split}/"

    def rows(self, job: Job, clip: ShardClip, path: str) -> Iterable[dict[str, Any]]:
        """Returns a clip's row."""
        row = clip.row() | {"path": job.base(relative=self.options.relative) + path}
        return [{name: row[name] for name in OPENSORA_SCHEMA.names}]

    def split(self, job: Job, split: str, results: Iterator[list[dict[str, Any]]]) -> None:
        """Writes the two tables."""
        with (
            job.place.create(f"{split}.csv") as lines,
            job.place.create(f"{split}.parquet") as parquet,
            pq.ParquetWriter(parquet, OPENSORA_SCHEMA) as writer,
        ):
            lines.write(_csv([OPENSORA_SCHEMA.names]))
            for rows in results:
                writer.write_table(pa.Table.from_pylist(rows, OPENSORA_SCHEMA))
                for row in rows:
                    if row["text"] in PANDAS_NULLS:
                        row["text"] += " "
                lines.write(_csv(row.values() for row in rows))


def _csv(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
