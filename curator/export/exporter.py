r"""The interface of export formats, and the list of built-in formats.

A custom format is a class such as:

    class JsonLines(Exporter[ExporterOptions, bytes]):
        about = "<split>.jsonl, a line per clip"

        def shard(self, job: Job, shard: Shard) -> bytes:
            return b"".join(orjson.dumps(clip.fields) + b"\n" for clip in job.clips(shard))

        def split(self, job: Job, split: str, results: Iterator[bytes]) -> None:
            with job.place.create(f"{split}.jsonl") as output:
                output.writelines(results)
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from curator.dataset.tar_reader import Shard
from curator.errors import RecipeError, UsageError, raised_as
from curator.extensions import Extension, Kind, load_extension
from curator.records.sources import Medium
from curator.value_errors import explain

if TYPE_CHECKING:
    from curator.export.job import Job, ShardClip

FORMATS: Mapping[str, str] = {
    "folder": "curator.export.trainer_folder:TrainerFolder",
    "images": "curator.export.image_folder:ImageFolder",
    "cosmos": "curator.export.video_folders:Cosmos",
    "opensora": "curator.export.video_folders:OpenSora",
    "cogvideo": "curator.export.video_folders:CogVideo",
    "mds": "curator.export.mds:Mds",
    "lerobot": "curator.export.lerobot:LeRobot",
    "cameras": "curator.export.camera_tars:CameraTars",
    "parquet": "curator.export.parquet_table:ParquetTables",
    "frames": "curator.export.frame_tars:FrameTars",
    "energon": "curator.export.tar_indexes:Energon",
    "wids": "curator.export.tar_indexes:Wids",
    "webshart": "curator.export.tar_indexes:Webshart",
    "ltx2-cache": "curator.export.ltx2_cache:Ltx2Cache",
    "fastvideo-cache": "curator.export.fastvideo_cache:FastVideoCache",
    "musubi-cache": "curator.export.musubi_cache:MusubiCache",
    "automodel-cache": "curator.export.automodel_cache:AutomodelCache",
    "dfm-cache": "curator.export.dfm_cache:DfmCache",
    "cosmos3": "curator.export.cosmos3:Cosmos3",
    "conversations": "curator.export.post_training:Conversations",
    "preferences": "curator.export.post_training:Preferences",
}
"""Dotted path of each built-in format, by name. The module is imported on use."""


class ExporterOptions(BaseModel):
    """Options of a format. Each field is a flag of `curate export`; its docstring is the help."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class LeastFrames(ExporterOptions):
    """Option of formats for loaders that accept clips of any length."""

    min_frames: int | None = Field(None, ge=1)
    """only clips of N frames or more (default: all); for cosmos one more than the trainer's
    num_frames, because Cosmos-Predict skips a clip of exactly num_frames"""


class RelativePaths(ExporterOptions):
    """Option of formats that name files in a table."""

    relative: bool = False
    """name files relative to the file that names them (default: in full, as loaders open them)"""


class ReusedVideos(ExporterOptions):
    """Option of formats that write MP4s as files."""

    reuse: str | None = None
    """DEST of an earlier export with MP4s: hard links to them, copies by the server on S3"""


class VideoOptions(LeastFrames, ReusedVideos):
    """Options of formats with a folder of MP4s."""


OptionsT = TypeVar("OptionsT", bound=ExporterOptions)
ResultT = TypeVar("ResultT")
RowT = TypeVar("RowT")


class Exporter(ABC, Generic[OptionsT, ResultT]):
    """A format. An instance serves one export.

    The job calls `begin` first and `finish` last. In between, it calls `split` once for each split
    and `shard` once for each tar. Threads run `shard` in parallel, so calls must not depend on each
    other.

    Attributes:
        about: Files of the format and their readers, for `--help`.
        version: Increase it when the same clips would give other bytes.
        options_type: Class of the format's options.
        folder: Prefix of the keys of a split.
        records: Plural noun for `Exported.n_records`; None for a format that counts no records.
        suffixes: Suffixes of all files that a loader would read from the destination. The job
            counts such files left by other exports.
        indexes_tars: Whether the format writes indexes of the tars. Indexes may be written to OUT
            itself, and always cover all tars.
        media: Media of the clips that the format holds; the job counts and leaves out the others.
        has_members: Whether the format exports the members that annotators add to samples
            (`ShardClip.members`). If not, the job reports them as left out.
    """

    about: ClassVar[str]
    version: ClassVar[int] = 1
    options_type: ClassVar[type[ExporterOptions]] = ExporterOptions
    folder: ClassVar[str] = "{split}/"
    records: ClassVar[str | None] = None
    suffixes: ClassVar[tuple[str, ...]] = ()
    indexes_tars: ClassVar[bool] = False
    media: ClassVar[frozenset[Medium]] = frozenset({Medium.VIDEO})
    has_members: ClassVar[bool] = False

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    def folders(self, splits: Sequence[str]) -> list[str]:
        """Returns the prefixes under which the job lists existing objects."""
        return list(dict.fromkeys(self.folder.format(split=split) for split in splits))

    def begin(self, job: "Job") -> None:
        """Reads data that all shards need; raises `UsageError` if something is missing."""

    @abstractmethod
    def shard(self, job: "Job", shard: Shard) -> ResultT:
        """Writes the clips of a shard, or returns data for `split`."""

    def split(self, job: "Job", split: str, results: Iterator[ResultT]) -> None:
        """Writes the objects of one split, `train` or `val`.

        `results` yields the result of each shard, in order, while threads export later shards.
        """

    def finish(self, job: "Job") -> None:
        """Writes the last objects, such as indexes of all splits."""


class VideoExporter(Exporter[OptionsT, list[RowT]]):
    """A format with a folder of MP4s for each split, and rows about the MP4s.

    Attributes:
        videos: Folder of the MP4s.
        record: Folder of the records of written MP4s; None for a format without records.
        reads_members: Whether `rows` needs the places of members, for which tars are read.
    """

    videos: ClassVar[str] = "{split}/videos"
    record: ClassVar[str | None] = None
    reads_members: bool = False

    def begin(self, job: "Job") -> None:
        """Refuses MP4s of an earlier export that this export could not take."""
        if job.earlier is not None:
            job.earlier.check_kind(job.store)

    def shard(self, job: "Job", shard: Shard) -> list[RowT]:
        """Writes the MP4s of a shard; returns their rows."""
        folder = self.videos.format(split=shard.split)
        least = self.options.min_frames if isinstance(self.options, LeastFrames) else None
        record = self.record.format(split=shard.split) if self.record is not None else None
        clips = job.videos(
            shard, folder, min_frames=least, record=record, by_metadata=not self.reads_members
        )
        rows = [row for clip in clips for row in self.rows(job, clip, f"{folder}/{clip.file_name}")]
        if self.records is not None:
            job.exported.add(records=len(rows))
        return rows

    @abstractmethod
    def rows(self, job: "Job", clip: "ShardClip", path: str) -> Iterable[RowT]:
        """Returns the rows of a clip; `path` is the key of the MP4 at the destination."""


ExporterType = type[Exporter[ExporterOptions, object]]


def load_format(name: str) -> tuple[ExporterType, Extension]:
    """Loads a format by its name in `FORMATS`, its dotted path, or its entry point.

    Returns the class and its origin. Raises `UsageError` if the format does not exist, cannot be
    loaded, or is not an exporter.
    """
    with raised_as(UsageError, RecipeError):
        extension = load_extension(Kind.EXPORTER, name, FORMATS)
    if not issubclass(extension.target, Exporter):
        raise UsageError(f"{name!r} is no exporter: it does not derive from {Exporter.__module__}")
    return extension.target, extension


def checked_options(name: str, given: Mapping[str, object]) -> ExporterOptions:
    """Validates options of a format; raises `UsageError` for a wrong name or value."""
    options_type = load_format(name)[0].options_type
    for key in given:
        if key not in options_type.model_fields:
            having = [f for f in FORMATS if key in load_format(f)[0].options_type.model_fields]
            raise UsageError(
                f"the format {name} has no option {key!r}; "
                + (f"those that have it: {', '.join(having)}" if having else "no format has it")
            )
    try:
        return options_type(**given)
    except ValidationError as error:
        location, message = explain(error, options_type)
        raise UsageError(f"{name}: {'.'.join(location)}: {message}") from error
