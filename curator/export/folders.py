"""Folders of MP4s, for loaders that take files.

Cosmos-Predict2 and 2.5 take from a folder all `videos/*.mp4`, and for each the prompt from
`metas/<name>.txt`. Both draw the first frame from [0, frames - N), which is empty for a clip of
exactly N frames: buckets promise N + 1. A clip that is too short is replaced by another one drawn
at random, without end if all are. Text embeddings of Predict2 are made by its own script.

Open-Sora reads its CSV with pandas, for which an empty field, and one that says `None` or `NA`, is
a number; it then fails at the first such caption.

CogVideo has two loaders. The one for SAT walks a folder, finds a caption by writing `labels` for
each `videos` in the path, and takes the first line of it, which an empty file has not. The other
one, and finetrainers, read a list of paths and a list of prompts, a line each, and pass over empty
lines, so that a clip without a caption would move all prompts behind it.

Source: the dataset classes of cosmos-predict2 661da47, cosmos-predict2.5 50369b8, Open-Sora
7ad6a96, CogVideo 7a1af71 and finetrainers f476c37.
"""

import csv
import io
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curator.errors import UsageError
from curator.export.clip_reader import Clip, read_clips
from curator.export.job import Job
from curator.stages.shard.tar_reader import Shard

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

PANDAS_NULLS = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
     "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null")
)  # fmt: skip
"""Fields of a CSV that pandas takes for missing, by its documentation of `read_csv`."""


def export_cosmos(job: Job) -> None:
    """Writes `<split>/videos/<key>.mp4` and `<split>/metas/<key>.txt`."""
    place = job.look([f"{split}/" for split in job.options.splits])

    def one(shard: Shard) -> None:
        for clip in write_videos(job, shard, f"{shard.split}/videos"):
            place.put(f"{shard.split}/metas/{clip.key}.txt", clip.text.encode())

    job.each(one)
    job.exported.add(others=len(place.others((".mp4", ".txt"))))


def export_cogvideo(job: Job) -> None:
    """Writes `<split>/videos/<key>.mp4`, `<split>/labels/<key>.txt`, and two lists of each split.

    Raises:
        UsageError: The destination's own path would be changed when captions are looked up.
    """
    if "videos" in job.store.uri or ".mp4" in job.store.uri:
        raise UsageError(
            f"{job.store.uri}: CogVideo finds captions by writing 'labels' for each 'videos' in a "
            "path, and '.txt' for each '.mp4'; choose a destination with neither"
        )
    place = job.look([f"{split}/" for split in job.options.splits])

    def one(shard: Shard) -> list[tuple[str, str]]:
        pairs = []
        for clip in write_videos(job, shard, f"{shard.split}/videos"):
            if line := _one_line(clip.text):
                place.put(f"{shard.split}/labels/{clip.key}.txt", f"{line}\n".encode())
                pairs.append((f"videos/{clip.key}.mp4", line))
        job.exported.add(records=len(pairs))
        return pairs

    for split in job.options.splits:
        own = [shard for shard in job.chosen if shard.split == split]
        if not own:
            continue
        names = [f"{split}/{name}" for name in ("videos.txt", "prompts.txt")]
        with ExitStack() as stack:
            videos, prompts = (stack.enter_context(job.store.create(name)) for name in names)
            for pairs in job.in_order(one, own):
                videos.write("".join(f"{path}\n" for path, _ in pairs).encode())
                prompts.write("".join(f"{line}\n" for _, line in pairs).encode())
        for name in names:
            place.keep(name)
        job.exported.add(objects=2)
    job.exported.add(others=len(place.others((".mp4", ".txt"))))


def _one_line(text: str) -> str:
    """A caption without line breaks of any kind: loaders split at all of them."""
    return " ".join(part for line in text.splitlines() if (part := line.strip()))


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
                lines.write(
                    _csv((row | {"text": _kept_text(row["text"])}).values() for row in rows)
                )
                writer.write_table(pa.Table.from_pylist(rows, OPENSORA_SCHEMA))
        job.exported.add(objects=2)
    # Tables name the videos, so that others beside them do no harm: they are not counted.


def _kept_text(text: str) -> str:
    """A caption that pandas reads as text: with a space behind what it would take for missing."""
    return f"{text} " if text in PANDAS_NULLS else text


def _csv(rows: Any) -> bytes:  # noqa: ANN401 - an iterable of iterables
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def write_videos(job: Job, shard: Shard, folder: str) -> Iterator[Clip]:
    """Writes the MP4s of a shard that are not there yet; yields all its clips of enough frames."""
    place = job.place
    least = job.options.min_frames or 0

    def wants(clip: Clip, sha256: str) -> bool:
        return clip.fields["n_frames"] >= least and not place.stands(
            f"{folder}/{clip.key}.mp4", clip.mp4_bytes, sha256
        )

    for clip in read_clips(job.shards, shard, wants_mp4=wants):
        if clip.fields["n_frames"] < least:
            job.exported.add(short=1)
            continue
        if clip.mp4 is not None:
            place.put(f"{folder}/{clip.key}.mp4", clip.mp4)
        job.count(clip)
        yield clip
