"""One folder of MP4s that the readers of ten video trainers take, with an index for each of them.

An index lies where its reader looks for it: diffusion-pipe and Automodel look beside the MP4s, the
others beside `videos/`. There is no `.jsonl` in `videos/`, because diffusion-pipe opens all files
there as media, except those with a few suffixes. Indexes are ASCII: some readers decode by the
locale, and a separator such as U+2028 within a caption would end a line for others.

FastVideo drops a clip with an empty caption, and Automodel takes the name of its file as prompt.
In their indexes, an empty caption is one space.

Source: the loading code of DiffSynth-Studio fed7b18f, musubi-tuner 30c658c, diffusion-pipe 8f83dbf,
LTX-2 400fd31, FastVideo 2f3d4074, VideoX-Fun 804a425, Automodel 36044ad3, ai-toolkit 27a03a91,
SimpleTuner bc8e6ab7 and cosmos-framework 5eee9ed.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator

from curator.dataset.tar_reader import Shard
from curator.errors import UsageError, unknown_key
from curator.export.exporter import RelativePaths, VideoExporter, VideoOptions
from curator.export.job import Job, ShardClip
from curator.records.clips import RIGHTS, WITH_SOUND
from curator.trainers.clip_fit import OutputSpec
from curator.trainers.filled_config import config_file
from curator.trainers.trainer_files import trainer_names

VIDEOS = "videos"
CONFIGS = "trainers"
"""Folder of configurations of trainers. Those that walk through all folders know videos by their
suffix."""
LINES, LIST, OBJECT = ("", "\n", "\n"), ("[\n", ",\n", "\n]\n"), ("{\n", ",\n", "\n}\n")
"""Text before, between and after the entries of an index."""
Row = dict[str, Any]
Columns = tuple[tuple[str, str], ...]
"""Names of a reader, each with the name of a value."""


def parsed_columns(value: object) -> object:
    """Parses `video=path,prompt=text`; raises `ValueError` for another form."""
    if not isinstance(value, str):
        return value
    parts = [part.partition("=") for part in value.split(",")]
    pairs = [(name.strip(), source.strip()) for name, _, source in parts]
    if not all(map(all, pairs)) or len(dict(pairs)) < len(pairs):
        raise ValueError(
            f"{value!r}; expected different names with values, such as video=path,prompt=text"
        )
    return tuple(pairs)


class FolderOptions(VideoOptions, RelativePaths):
    """Options of the format."""

    columns: Annotated[Columns | None, BeforeValidator(parsed_columns)] = None
    """also write columns.jsonl with names of your choice, such as video=path,prompt=text; values
    are path, text, num_frames, width, height, fps, duration, key, bucket, audio, scores.NAME,
    meta.NAME and all others of a sample's JSON"""
    in_place: bool = False
    """write indexes only: with --reuse of its MP4s, else of the bytes of MP4s within OUT's tars"""


@dataclass(slots=True, kw_only=True)
class FolderFacts:
    """Facts about the clips of a split, for files that configure a trainer."""

    n_clips: int = 0
    forms: dict[OutputSpec, tuple[int, float]] = field(default_factory=dict)
    """Number of clips, and their seconds in the sources, by form."""
    uncaptioned: dict[OutputSpec, tuple[int, float]] = field(default_factory=dict)
    """The same of the clips without a caption, which are in `forms`, too."""
    buckets: Counter[str] = field(default_factory=Counter)

    def add(self, row: Row) -> None:
        """Counts a clip."""
        self.n_clips += 1
        self.buckets[row["bucket"]] += 1
        form = OutputSpec(
            n_frames=row["num_frames"], fps=Fraction(row["fps_fraction"]), width=row["width"],
            height=row["height"], has_sound=row["has_audio"],
        )  # fmt: skip
        end_s = float(row.get("source_end_s") or row["duration"])
        clip_s = end_s - float(row.get("source_start_s") or 0)
        for counts in [self.forms] + [self.uncaptioned] * (not row["text"].strip()):
            n, seconds = counts.get(form, (0, 0.0))
            counts[form] = n + 1, seconds + clip_s

    def count(self, value: Callable[[OutputSpec], str]) -> dict[str, int]:
        """Returns the number of clips by a value of their form."""
        counts: Counter[str] = Counter()
        for form, (n, _) in self.forms.items():
            counts[value(form)] += n
        return dict(sorted(counts.items()))


def _facts_text(facts: FolderFacts) -> str:
    described = {
        "clips": facts.n_clips,
        "with_audio": sum(n for form, (n, _) in facts.forms.items() if form.has_sound),
        "with_empty_caption": sum(n for n, _ in facts.uncaptioned.values()),
        "least_frames": min((form.n_frames for form in facts.forms), default=None),
        "most_frames": max((form.n_frames for form in facts.forms), default=None),
        "fps": facts.count(lambda form: str(form.fps)),
        "sizes": facts.count(lambda form: f"{form.width}x{form.height}"),
        "buckets": dict(sorted(facts.buckets.items())),
    }
    return json.dumps(described, indent=2) + "\n"


TEXT_FILES: Mapping[str, Callable[[FolderFacts], str]] = {"facts.json": _facts_text}
"""Small files that an export writes last into the folder of a split, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A file with an entry for each clip; `name` is relative to the folder of the split."""

    name: str
    entry: Callable[[Row], str]
    framing: tuple[str, str, str] = LIST


def _metadata(row: Row) -> str:
    # LTX-2 would open a column named `audio`, `media_path`, `reference_video` or `video_mask`.
    places = {"video": "file_path", "video_path": "path", "file_path": "file_path"}
    located = {name: row[source] for name, source in places.items() if source in row}
    if not located:
        located = {name: row[name] for name in ("address", "offset", "bytes")}
    texts = dict.fromkeys(("prompt", "caption", "text"), row["text"])
    facts = ("width", "height", "num_frames", "fps", "duration", "has_audio", "bucket", "key")
    rights = {name: row[name] for name in RIGHTS if row.get(name) is not None}
    return _json(located | texts | {"type": "video"} | {name: row[name] for name in facts} | rights)


def _cosmos3(row: Row) -> str:
    # The window's last frame, not the frame after it.
    window = {"start_frame": 0, "end_frame": row["num_frames"] - 1, "temporal_interval": 1}
    # With an empty caption, the trainer would train on a full stop.
    windows = [window | {"caption": row["text"]}] if row["text"].strip() else []
    return _json(
        {
            "uuid": row["key"],
            **{name: row[name] for name in ("duration", "width", "height")},
            "vision_path": row["file_path"],
            "nb_frames": row["num_frames"],
            "framerate": row["fps"],
            "t2w_windows": windows,
        }
    )


def _fastvideo(row: Row) -> str:
    return _json(
        {
            "path": row["file_path"].removeprefix(f"{VIDEOS}/"),
            "cap": row["text"] or " ",
            "resolution": {name: row[name] for name in ("width", "height")},
            **{name: row[name] for name in ("fps", "duration", "num_frames")},
        }
    )


def _automodel(row: Row) -> str:
    return _json({"file_name": row["name"], "caption": row["text"] or " "})


def _diffusion_pipe(row: Row) -> str:
    return f"{_json(row['name'])}: {_json([row['text']])}"


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False)


INDEXES = (
    Index(name="metadata.jsonl", entry=_metadata, framing=LINES),
    Index(name="metadata.json", entry=_metadata),
    Index(name="video_dataset_file.jsonl", entry=_cosmos3, framing=LINES),
    Index(name="videos2caption.json", entry=_fastvideo),
    Index(name=f"{VIDEOS}/captions.json", entry=_diffusion_pipe, framing=OBJECT),
    Index(name=f"{VIDEOS}/meta.json", entry=_automodel),
)
COLUMNS = Index(name="columns.jsonl", entry=lambda row: _json(row["columns"]), framing=LINES)
_OF_INDEXES = (
    "key", "text", "name", "file_path", "path", "address", "offset", "bytes", "width", "height",
    "num_frames", "fps", "fps_fraction", "duration", "has_audio", "bucket", "source_start_s",
    "source_end_s", *RIGHTS,
)  # fmt: skip


class TrainerFolder(VideoExporter[FolderOptions, Row]):
    """Writes `<split>/videos/<key>.mp4` and `<key>.txt`, and `INDEXES`, `TEXT_FILES`.

    Paths are relative to the folder of their index, so that the folder may be moved, except
    `video_path`: musubi-tuner opens it from its working directory.
    """

    about = (
        "<split>/videos/*.mp4 and *.txt, metadata.jsonl and other indexes: DiffSynth, LTX-2, "
        "musubi-tuner, diffusion-pipe, FastVideo, VideoX-Fun, Automodel, ai-toolkit, SimpleTuner, "
        "Cosmos 3"
    )
    options_type = FolderOptions
    suffixes = (".mp4", ".txt")
    record = "{split}/.exported"

    def begin(self, job: Job) -> None:
        """Refuses names of values that no clip has."""
        if not self.options.in_place:
            super().begin(job)
        for name, source in self.options.columns or ():
            if source not in (known := self._known(job)):
                message = unknown_key(source, known, "value")
                raise UsageError(f"--columns {name}={source}: {message}")

    def _known(self, job: Job) -> list[str]:
        """Returns the names of the values of the first clip in the first and the last tar."""
        clips = [next(iter(job.read(shard)), None) for shard in (job.chosen[0], job.chosen[-1])]
        rows = [self._values(job, clip) for clip in clips if clip is not None]
        return list(dict.fromkeys(name for row in rows for name in row))

    def shard(self, job: Job, shard: Shard) -> list[Row]:
        """Writes the MP4s and captions of a shard; returns the values of its clips."""
        if not self.options.in_place:
            return super().shard(job, shard)
        return [
            self._row(self._values(job, clip))
            for clip in job.clips(shard, min_frames=self.options.min_frames, by_metadata=True)
        ]

    def rows(self, job: Job, clip: ShardClip, path: str) -> Iterable[Row]:
        """Writes a clip's caption; returns its values."""
        job.place.put(f"{path.removesuffix('.mp4')}.txt", clip.text.encode())
        return [self._row(self._values(job, clip))]

    def _values(self, job: Job, clip: ShardClip) -> Row:
        """Returns all values of a clip by name; those of its JSON under dotted names."""
        row = {name: value for name, value in _flat(clip.fields) if name not in ("key", "path")}
        row |= clip.row() | {"key": clip.key, "address": job.shards.uri(clip.shard.name)}
        row["has_audio"] = clip.fields.get("audio") in WITH_SOUND
        del row["path"], row["clip_id"]
        if not self.options.in_place:
            row["name"] = f"{clip.key}.mp4"
            row["file_path"] = f"{VIDEOS}/{row['name']}"
            full = f"{job.store.uri}/{clip.shard.split}/{row['file_path']}"
            row["path"] = row["file_path"] if self.options.relative else full
        elif job.earlier is not None:
            row["path"] = row["file_path"] = job.earlier.address(clip)
        elif job.shards.store.is_local:
            start, end = row["offset"], row["offset"] + row["bytes"]
            row["subfile"] = f"subfile,,start,{start},end,{end},,:{row['address']}"
        return row

    def _row(self, values: Row) -> Row:
        """Returns values for the indexes, with those of --columns."""
        row = {name: values[name] for name in _OF_INDEXES if name in values}
        if self.options.columns is not None:
            row["columns"] = {name: values.get(of) for name, of in self.options.columns}
        return row

    def split(self, job: Job, split: str, results: Iterator[list[Row]]) -> None:
        """Writes the indexes of a split side by side, then its small files."""
        indexes, facts = list(self._indexes()), FolderFacts()
        with ExitStack() as opened:
            outputs = [
                opened.enter_context(job.place.create(f"{split}/{index.name}")) for index in indexes
            ]
            files = list(zip(indexes, outputs, strict=True))
            for index, output in files:
                output.write(index.framing[0].encode())
            for row in (row for rows in results for row in rows):
                for index, output in files:
                    between = index.framing[1] if facts.n_clips else ""
                    output.write((between + index.entry(row)).encode())
                facts.add(row)
            for index, output in files:
                if facts.n_clips or index.framing[0]:
                    output.write(index.framing[2].encode())
        for name, text in TEXT_FILES.items():
            job.place.put(f"{split}/{name}", text(facts).encode())
        if facts.forms:
            for name, config in self._configs(job, split, facts):
                # A folder may have a name that is no UTF-8.
                job.place.put(f"{split}/{CONFIGS}/{name}", config.encode(errors="surrogateescape"))

    def _configs(self, job: Job, split: str, facts: FolderFacts) -> Iterator[tuple[str, str]]:
        """Yields names and texts of the configurations whose trainers can read the folder."""
        has_no_paths = self.options.in_place and self.options.reuse is None
        root = ".." if self.options.relative else job.store.uri
        folder = "." if self.options.relative else f"{root}/{split}"
        places = {"root": root, "folder": folder, "videos": f"{folder}/{VIDEOS}", "split": split}
        for name in () if has_no_paths else trainer_names():
            filled = config_file(name, facts.forms, places, facts.uncaptioned)
            # An export in place has no folder of videos, but indexes.
            if filled and not (self.options.in_place and places["videos"] in filled[1]):
                yield filled

    def _indexes(self) -> Iterator[Index]:
        """Yields the indexes that can name the clips: paths, or files in the same folder."""
        options = self.options
        for index in INDEXES:
            has_paths = options.reuse is not None and "/" not in index.name
            if not options.in_place or has_paths or index.entry is _metadata:
                yield index
        if options.columns is not None:
            yield COLUMNS


def _flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of a JSON object, with dotted names for those of objects within it."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
