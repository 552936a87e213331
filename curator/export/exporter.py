r"""The contract of export formats, and the list of this package's.

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

from curator.errors import RecipeError, UsageError, raised_as
from curator.extensions import Extension, Kind, load_extension
from curator.stages.shard.tar_reader import Shard

if TYPE_CHECKING:
    from curator.export.job import Job, ShardClip

FORMATS: Mapping[str, str] = {
    "cosmos": "curator.export.video_folders:Cosmos",
    "opensora": "curator.export.video_folders:OpenSora",
    "cogvideo": "curator.export.video_folders:CogVideo",
    "mds": "curator.export.mds:Mds",
    "parquet": "curator.export.parquet_table:ParquetTables",
    "frames": "curator.export.frame_tars:FrameTars",
    "energon": "curator.export.tar_indexes:Energon",
    "wids": "curator.export.tar_indexes:Wids",
    "conversations": "curator.export.post_training:Conversations",
    "preferences": "curator.export.post_training:Preferences",
}
"""Dotted paths of this package's formats by name, as users name theirs; imported on use."""


class ExporterOptions(BaseModel):
    """Options of a format. Each field is a flag of `curate export`, its docstring the help."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class LeastFrames(ExporterOptions):
    """Option of formats whose loaders take clips of any length."""

    min_frames: int | None = Field(None, ge=1)
    """only clips of N frames or more (default: all); for cosmos one more than the trainer's
    num_frames"""


class RelativePaths(ExporterOptions):
    """Option of formats that name files in a table."""

    relative: bool = False
    """name files relative to DEST (default: in full, as loaders open them)"""


OptionsT = TypeVar("OptionsT", bound=ExporterOptions)
ResultT = TypeVar("ResultT")
RowT = TypeVar("RowT")


class Exporter(ABC, Generic[OptionsT, ResultT]):
    """One format. An instance serves one export.

    The job calls `begin`, then for each split `shard` for its shards and `split`, then `finish`. It
    runs `shard` in several threads, which must not depend on other shards.

    Attributes:
        about: Output and its readers, for help.
        version: Raised when the same clips would give other objects.
        options_type: Options that the format takes.
        folder: Prefix of the keys of a split.
        records: What `Exported.n_records` counts, in words; None where it counts nothing.
        suffixes: Ends of the names of files that a loader would take from the destination, whoever
            wrote them; the job reports those of other exports.
        indexes_tars: Whether it writes indexes of the tars: these may go into OUT itself, and
            always cover all tars.
        has_members: Whether it takes the members of samples that annotators make (`Clip.members`);
            else the job reports them as left out. Indexes of tars have them all.
    """

    about: ClassVar[str]
    version: ClassVar[int] = 1
    options_type: ClassVar[type[ExporterOptions]] = ExporterOptions
    folder: ClassVar[str] = "{split}/"
    records: ClassVar[str | None] = None
    suffixes: ClassVar[tuple[str, ...]] = ()
    indexes_tars: ClassVar[bool] = False
    has_members: ClassVar[bool] = False

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    def folders(self, splits: Sequence[str]) -> list[str]:
        """Returns prefixes of the format's keys; existing objects there are listed."""
        return list(dict.fromkeys(self.folder.format(split=split) for split in splits))

    def begin(self, job: "Job") -> None:
        """Reads data that all shards need; raises `UsageError` where something is missing."""

    @abstractmethod
    def shard(self, job: "Job", shard: Shard) -> ResultT:
        """Writes the clips of a shard, or returns data for `split`."""

    def split(self, job: "Job", split: str, results: Iterator[ResultT]) -> None:
        """Writes the objects of one split, `train` or `val`.

        `results` are those of the split's shards, in order; they are produced during the writing.
        """

    def finish(self, job: "Job") -> None:
        """Writes the last objects, such as indexes of everything."""


class VideoExporter(Exporter[OptionsT, list[RowT]]):
    """A format with the MP4s of a split in a folder, and rows about them.

    Attributes:
        videos: The folder.
    """

    videos: ClassVar[str] = "{split}/videos"

    def shard(self, job: "Job", shard: Shard) -> list[RowT]:
        """Writes a shard's videos; returns rows about them."""
        folder = self.videos.format(split=shard.split)
        least = self.options.min_frames if isinstance(self.options, LeastFrames) else None
        clips = job.videos(shard, folder, min_frames=least)
        rows = [row for clip in clips for row in self.rows(job, clip, f"{folder}/{clip.key}.mp4")]
        if self.records is not None:
            job.exported.add(records=len(rows))
        return rows

    @abstractmethod
    def rows(self, job: "Job", clip: "ShardClip", path: str) -> Iterable[RowT]:
        """Returns rows about a clip, whose MP4 has a path below the destination."""


ExporterType = type[Exporter[ExporterOptions, object]]


def load_format(name: str) -> tuple[ExporterType, Extension]:
    """Finds a format, and its origin, by its name in `FORMATS`, dotted path, or entry point.

    Raises `UsageError` where it does not exist, cannot be loaded, or is no exporter.
    """
    with raised_as(UsageError, RecipeError):
        extension = load_extension(Kind.EXPORTER, name, FORMATS)
    if not issubclass(extension.target, Exporter):
        raise UsageError(f"{name!r} is no exporter: it does not derive from {Exporter.__module__}")
    return extension.target, extension


def checked_options(name: str, given: Mapping[str, object]) -> ExporterOptions:
    """Returns the checked options of a format; `UsageError` for a wrong name or value."""
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
        first = error.errors()[0]
        key, message = str(first["loc"][0]), first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{name}: {key} is {given[key]!r}: {message}") from error
