"""Data sets in the format v3.0 of LeRobot: an episode for each clip, with a user's rows.

Source: `src/lerobot/datasets` of lerobot 0.6.1.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curator.dataset.tar_reader import Shard
from curator.errors import ShardError, SourceError, UsageError, raised_as, unknown_key
from curator.export.exporter import Exporter, ExporterOptions
from curator.export.job import Job, ShardClip
from curator.family import FamilyError, FamilyVersion
from curator.media.container import open_container, video_stream
from curator.media.decode import FrameReader
from curator.media.scale import rgb_of
from curator.records.clips import RIGHTS
from curator.storage.metadata_columns import PREFIX
from curator.value_header import HeaderError

VERSION = "v3.0"
CHUNK_FILES = 1000
"""Data files of a folder, whose names are sorted as texts."""
MAX_PIXELS = 8192 * 4608
_PLACES = "chunk-{chunk_index:03d}/file-{file_index:03d}"
_VIDEOS = "videos/{video_key}/" + _PLACES + ".mp4"
_DATA = "data/" + _PLACES + ".parquet"
_EPISODES = "meta/episodes/" + _PLACES + ".parquet"
_COUNTERS = ("frame_index", "episode_index", "index", "task_index")


class LeRobotOptions(ExporterOptions):
    """Options of the format."""

    camera: str = "observation.images.main"
    """name of the video (default: observation.images.main)"""
    rows: str = "rows"
    """name of the family with rows (default: rows); without such a family, videos alone"""
    state: str | None = None
    """columns of the rows for observation.state, with commas (default: all others)"""
    action: str | None = None
    """columns of the rows for action, with commas (default: none)"""
    task: str | None = None
    """column of metadata with the task, such as task (default: the caption is the task)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A clip, as LeRobot's tables name it.

    Attributes:
        file: Number of its video in the folder of its tar.
        rows: float32 [frames, n]; None without rows.
        pixels: First picture, float64 [3, pixels], 0 to 1.
        rights: Licence and origin.
    """

    file: int
    task: str
    n_frames: int
    fps: Fraction
    size: tuple[int, int]
    rows: NDArray[np.float32] | None
    pixels: "Moments"
    rights: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, sum, sum of squares, least and largest of some numbers, [n] each but the count."""

    count: int
    total: NDArray[np.float64]
    squares: NDArray[np.float64]
    least: NDArray[np.float64]
    most: NDArray[np.float64]

    @classmethod
    def of(cls, values: NDArray[Any]) -> "Moments":
        """Returns the moments of values [N, n]."""
        numbers = values.astype(np.float64)
        return cls(
            len(numbers), numbers.sum(0), (numbers**2).sum(0), numbers.min(0), numbers.max(0)
        )

    def __add__(self, other: "Moments") -> "Moments":
        """Returns the moments of both together."""
        return Moments(
            self.count + other.count,
            self.total + other.total,
            self.squares + other.squares,
            np.minimum(self.least, other.least),
            np.maximum(self.most, other.most),
        )

    def to_json(self, *more_axes: int) -> dict[str, Any]:
        """Returns statistics as LeRobot names them."""
        mean = self.total / self.count
        std = np.sqrt(np.maximum(self.squares / self.count - mean**2, 0))
        shape = (-1, *more_axes)
        found = {"min": self.least, "max": self.most, "mean": mean, "std": std}
        return {n: v.reshape(shape).tolist() for n, v in found.items()} | {"count": [self.count]}


class LeRobot(Exporter[LeRobotOptions, list[Episode]]):
    """Writes a data set for each split: `<split>/meta`, `<split>/data`, `<split>/videos`.

    LeRobot has one rate and one size for all episodes, and no missing values. So clips of another
    rate or size are refused, and clips without rows, or with a frame without a row, are left out.
    """

    about = "<split>/meta, data and videos in format v3.0: LeRobotDataset(root=DEST/train)"
    options_type = LeRobotOptions
    records = "frames"
    suffixes = (".parquet", ".mp4", ".json")
    has_members = True

    def begin(self, job: Job) -> None:
        """Finds the rows; raises `UsageError` for columns that they do not have."""
        declared = map(FamilyVersion.from_json, job.shards.declared.values())
        versions = {version.family.name: version for version in declared}
        self._rows = versions.get(self.options.rows)
        used = set() if self._rows is None else {self._rows.family.member}
        job.exported.left_members = tuple(sorted(set(job.shards.declared) - used))
        self._columns: dict[str, list[int]] = {}
        self._names: dict[str, list[str]] = {}
        asked = {"action": self.options.action, "observation.state": self.options.state}
        if self._rows is None:
            if any(names is not None for names in asked.values()):
                raise UsageError(f"--rows: {unknown_key(self.options.rows, versions, 'family')}")
            return
        known = str(self._rows.family.facts.get("columns", "")).split(", ")
        taken: set[str] = set()
        for feature, names in asked.items():
            rest = feature == "observation.state" and names is None
            own = [n for n in known if n not in taken] if rest else _listed(names)
            for name in own:
                if name not in known:
                    raise UsageError(
                        f"{feature}: " + unknown_key(name, known, "column of the rows")
                    )
            taken.update(own)
            if own:
                self._columns[feature] = [known.index(name) for name in own]
                self._names[feature] = own
        self._n_columns = len(known)

    def shard(self, job: Job, shard: Shard) -> list[Episode]:
        """Writes the videos of a shard; returns its episodes."""
        chunk = [own.name for own in job.chosen if own.split == shard.split].index(shard.name)
        needs = () if self._rows is None else (self._rows.family.member,)
        episodes: list[Episode] = []
        for clip in job.clips(shard, True, needs=needs):
            rows = self._values(job, clip)
            if rows is not None and not np.isfinite(rows).all():
                job.exported.add(clips=-1, lacking=1)
                continue
            assert clip.mp4 is not None
            place = {"video_key": self.options.camera, "chunk_index": chunk}
            name = _VIDEOS.format(**place, file_index=len(episodes))
            job.place.put(f"{shard.split}/{name}", clip.mp4)
            fields = clip.fields
            job.exported.add(records=int(fields["n_frames"]))
            episodes.append(
                Episode(
                    file=len(episodes), task=self._task(clip), n_frames=int(fields["n_frames"]),
                    fps=Fraction(fields["fps_fraction"]),
                    size=(int(fields["width"]), int(fields["height"])), rows=rows,
                    pixels=Moments.of(_first_picture(clip).reshape(-1, 3) / 255),
                    rights={name: fields.get(name) for name in RIGHTS},
                )
            )  # fmt: skip
        return episodes

    def _task(self, clip: ShardClip) -> str:
        """Returns the task of a clip; raises `UsageError` if its metadata has none."""
        name = self.options.task
        if name is None:
            return clip.text
        meta = clip.fields.get("meta") or {}
        value = meta.get(name.removeprefix(PREFIX))
        if value is None:
            raise UsageError(
                f"--task {name}: clip {clip.key} has no such metadata, only {sorted(meta)}; name a "
                "column that the manifest gives for all clips, or leave clips out by --where"
            )
        return str(value)

    def _values(self, job: Job, clip: ShardClip) -> NDArray[np.float32] | None:
        """Returns the rows of a clip, float32 [frames, n]."""
        if self._rows is None:
            return None
        family = self._rows.family
        tar, offset, n_bytes = clip.members[family.member]
        data = job.shards.store.read_range(job.shards.key(tar), offset, offset + n_bytes)
        name = f"{job.shards.uri(tar)}: {clip.key}: {family.name}: "
        with raised_as(ShardError, FamilyError, HeaderError, of=name):
            value, _ = self._rows.read(data, clip.fields, Fraction(clip.fields["fps_fraction"]))
        rows = np.asarray(value, np.float32)
        if rows.shape[1] != self._n_columns:
            raise UsageError(
                f"{family.name!r} has {rows.shape[1]} values for {self._n_columns} columns, as "
                "some have lists; expected a column for each value"
            )
        return rows

    def split(self, job: Job, split: str, results: Iterator[list[Episode]]) -> None:
        """Writes the tables of a split, and `info.json` last."""
        tables = _Tables(job, split, self.options.camera, self._columns)
        for chunk, episodes in enumerate(results):
            tables.add(chunk, episodes)
        tables.finish(self._names)


def _listed(names: str | None) -> list[str]:
    return [name.strip() for name in names.split(",")] if names else []


def _first_picture(clip: ShardClip) -> NDArray[np.uint8]:
    """Decodes the first frame, uint8 [H, W, 3], RGB, of which statistics of pictures are made."""
    assert clip.mp4 is not None
    try:
        with open_container(io.BytesIO(clip.mp4), clip.key, n_bytes=len(clip.mp4)) as container:
            stream = video_stream(container, clip.key)
            reader = FrameReader(container, stream, clip.key, threads=1, max_pixels=MAX_PIXELS)
            return rgb_of(next(iter(reader)).picture)
    except (SourceError, StopIteration) as error:
        raise ShardError(f"{clip.key}: no frame decodes: {error}") from error


class _Tables:
    """The tables of a data set, tar by tar."""

    def __init__(
        self, job: Job, split: str, camera: str, columns: Mapping[str, Sequence[int]]
    ) -> None:
        self._job, self._split, self._camera, self._columns = job, split, camera, columns
        self._tasks: dict[str, int] = {}
        self._episodes: list[dict[str, Any]] = []
        self._n_frames = 0
        self._form: tuple[Fraction, tuple[int, int]] | None = None
        self._moments: dict[str, Moments] = {}

    def add(self, chunk: int, episodes: Sequence[Episode]) -> None:
        """Writes the data of a tar, whose videos are in a folder with its number."""
        if not episodes:
            return
        place = {"chunk_index": chunk // CHUNK_FILES, "file_index": chunk % CHUNK_FILES}
        tables = []
        for episode in episodes:
            self._check(episode)
            tables.append(self._data(episode))
            video = f"videos/{self._camera}"
            length_s = float(episode.n_frames / episode.fps)
            self._episodes.append({
                "episode_index": len(self._episodes), "tasks": [episode.task],
                "length": episode.n_frames, "data/chunk_index": place["chunk_index"],
                "data/file_index": place["file_index"], "dataset_from_index": self._n_frames,
                "dataset_to_index": self._n_frames + episode.n_frames,
                f"{video}/chunk_index": chunk, f"{video}/file_index": episode.file,
                f"{video}/from_timestamp": 0.0, f"{video}/to_timestamp": length_s,
                "meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0, **episode.rights,
            })  # fmt: skip
            self._n_frames += episode.n_frames
        self._write(_DATA.format(**place), pa.concat_tables(tables))

    def _check(self, episode: Episode) -> None:
        form = (episode.fps, episode.size)
        if episode.fps.denominator != 1:
            raise UsageError(
                f"clips of {float(episode.fps):g} frames/s; LeRobot's rates are whole numbers: "
                "run `curate run` with cut.fps, such as --set cut.fps=30"
            )
        self._form = self._form or form
        if form != self._form:
            first, own = ((f"{f} frames/s", f"{s[0]}x{s[1]} px") for f, s in (self._form, form))
            differ = next((a, b) for a, b in zip(first, own, strict=True) if a != b)
            raise UsageError(
                f"clips of {differ[0]} and of {differ[1]}; LeRobot has one rate and one size "
                "for all episodes: run `curate run` with cut.fps and cut.size, or choose clips "
                "with --where"
            )

    def _data(self, episode: Episode) -> pa.Table:
        n = episode.n_frames
        task = self._tasks.setdefault(episode.task, len(self._tasks))
        numbers = np.arange(n, dtype=np.int64)
        columns: dict[str, Any] = {
            "timestamp": (numbers / float(episode.fps)).astype(np.float32),
            "frame_index": numbers,
            "episode_index": np.full(n, len(self._episodes), np.int64),
            "index": numbers + self._n_frames,
            "task_index": np.full(n, task, np.int64),
        }
        self._count(self._camera, episode.pixels)
        for name, values in columns.items():
            self._count(name, Moments.of(values[:, None]))
        for feature, own in self._columns.items():
            assert episode.rows is not None
            rows = np.ascontiguousarray(episode.rows[:, list(own)])
            self._count(feature, Moments.of(rows))
            flat = pa.array(rows.ravel())
            one = len(own) == 1
            columns[feature] = flat if one else pa.FixedSizeListArray.from_arrays(flat, len(own))
        return pa.table(columns)

    def _count(self, name: str, moments: Moments) -> None:
        earlier = self._moments.get(name)
        self._moments[name] = moments if earlier is None else earlier + moments

    def finish(self, names: Mapping[str, Sequence[str]]) -> None:
        """Writes tasks, episodes, statistics and `info.json`."""
        if self._form is None:
            raise UsageError(
                f"no clip of the split {self._split} has a row for each frame; expected "
                "at least one"
            )
        fps, (width, height) = self._form
        tasks = pa.table({"task_index": list(self._tasks.values()), "task": list(self._tasks)})
        self._write("meta/tasks.parquet", tasks.replace_schema_metadata(_TASKS_METADATA))
        episodes = pa.Table.from_pylist(self._episodes)
        lacking = [name for name in RIGHTS if episodes[name].null_count == len(episodes)]
        episodes = episodes.drop_columns(lacking)
        self._write(_EPISODES.format(chunk_index=0, file_index=0), episodes)
        stats = {
            name: moments.to_json(*((1, 1) if name == self._camera else ()))
            for name, moments in self._moments.items()
        }
        self._put("meta/stats.json", stats)
        video = {
            "dtype": "video", "shape": [height, width, 3], "names": ["height", "width", "channels"],
            "info": {"video.height": height, "video.width": width, "video.fps": int(fps),
                     "video.channels": 3, "is_depth_map": False, "has_audio": False},
        }  # fmt: skip
        features: dict[str, Any] = {
            self._camera: video,
            "timestamp": {"dtype": "float32", "shape": [1], "names": None},
            **{name: {"dtype": "int64", "shape": [1], "names": None} for name in _COUNTERS},
        }
        for feature, own in names.items():
            features[feature] = {"dtype": "float32", "shape": [len(own)], "names": list(own)}
        self._put(
            "meta/info.json",
            {
                "codebase_version": VERSION, "robot_type": None, "fps": int(fps),
                "total_episodes": len(self._episodes), "total_frames": self._n_frames,
                "total_tasks": len(self._tasks), "chunks_size": CHUNK_FILES,
                "data_files_size_in_mb": 100, "video_files_size_in_mb": 200,
                "splits": {"train": f"0:{len(self._episodes)}"}, "data_path": _DATA,
                "video_path": _VIDEOS, "features": features,
            },
        )  # fmt: skip

    def _write(self, name: str, table: pa.Table) -> None:
        output = io.BytesIO()
        pq.write_table(table, output)
        self._job.place.put(f"{self._split}/{name}", output.getvalue())

    def _put(self, name: str, value: object) -> None:
        self._job.place.put(
            f"{self._split}/{name}", orjson.dumps(value, option=orjson.OPT_INDENT_2)
        )


_TASKS_METADATA = {
    # LeRobot looks tasks up by pandas' index, which this names.
    "pandas": json.dumps({
        "index_columns": ["task"], "column_indexes": [], "pandas_version": "2.2.0",
        "columns": [
            {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": stored,
             "metadata": None}
            for name, kind, stored in (
                ("task_index", "int64", "int64"), ("task", "unicode", "object"),
            )
        ],
    })
}  # fmt: skip
