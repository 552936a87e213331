"""A folder of pictures and captions, as trainers of image models read it."""

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from curator.export.exporter import ReusedVideos, VideoExporter
from curator.export.job import Job, ShardClip
from curator.records.clips import RIGHTS
from curator.records.sources import Medium

METADATA = "metadata.jsonl"
"""The table that the builder `imagefolder` of Hugging Face `datasets` looks for."""


class ImageFolderOptions(ReusedVideos):
    """Options of the format."""


class ImageFolder(VideoExporter[ImageFolderOptions, dict[str, Any]]):
    """Writes `<split>/<key>.jpg` (or `.png`, `.webp`), `<key>.txt`, and `metadata.jsonl`.

    Trainers that walk through a folder take the text of the same stem as a picture's caption.
    """

    about = (
        "<split>/*.jpg, *.png and *.webp with a .txt each, and metadata.jsonl: still images for "
        "diffusion-pipe, musubi-tuner, ai-toolkit, SimpleTuner, sd-scripts, datasets (imagefolder)"
    )
    options_type = ImageFolderOptions
    media = frozenset({Medium.IMAGE})
    suffixes = (".jpg", ".png", ".webp", ".txt")
    videos = "{split}"
    record = "{split}/.exported"

    def rows(self, job: Job, clip: ShardClip, path: str) -> Iterable[dict[str, Any]]:
        """Writes a picture's caption; returns its row."""
        job.place.put(f"{path.rpartition('.')[0]}.txt", clip.text.encode())
        row = clip.row()
        facts = {name: row[name] for name in ("text", "width", "height", "source_uri")}
        facts |= {name: clip.fields[name] for name in RIGHTS if name in clip.fields}
        return [{"file_name": clip.file_name} | facts]

    def split(self, job: Job, split: str, results: Iterator[list[dict[str, Any]]]) -> None:
        """Writes the table of a split."""
        with job.place.create(f"{split}/{METADATA}") as output:
            for rows in results:
                output.write(b"".join(orjson.dumps(row) + b"\n" for row in rows))
