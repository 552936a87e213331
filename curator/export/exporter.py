r"""The contract of export formats: its declarations, and its work on a shard.

    class JsonLines(Exporter[ExporterOptions, bytes]):
        about = "<split>.jsonl, a line per clip"

        def shard(self, job: Job, shard: Shard) -> bytes:
            return b"".join(orjson.dumps(clip.fields) + b"\n" for clip in job.clips(shard))

        def split(self, job: Job, split: str, results: Iterator[bytes]) -> None:
            with job.place.create(f"{split}.jsonl") as output:
                output.writelines(results)

`curator/export/formats.py` lists the formats of this package.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from curator.stages.shard.tar_reader import Shard

if TYPE_CHECKING:
    from curator.export.job import Job


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


class Exporter(ABC, Generic[OptionsT, ResultT]):
    """One format. An instance serves one export.

    The job calls `begin`, then for each split `shard` for its shards and `split`, then `finish`. It
    runs `shard` in several threads, which must not depend on other shards.

    Attributes:
        about: Output and its readers, for help.
        version: Raised when the same clips would give other objects.
        options_type: Options that the format takes.
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
    records: ClassVar[str | None] = None
    suffixes: ClassVar[tuple[str, ...]] = ()
    indexes_tars: ClassVar[bool] = False
    has_members: ClassVar[bool] = False

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    def folders(self, splits: Sequence[str]) -> list[str]:
        """Returns prefixes of the format's keys; existing objects there are listed."""
        return [f"{split}/" for split in splits]

    def begin(self, job: "Job") -> None:
        """Checks that the export can be done, and reads data that all shards need.

        Raises:
            UsageError: Something is missing.
        """

    @abstractmethod
    def shard(self, job: "Job", shard: Shard) -> ResultT:
        """Writes the clips of a shard, or returns data for `split`."""

    def split(self, job: "Job", split: str, results: Iterator[ResultT]) -> None:
        """Writes the objects of one split, `train` or `val`.

        `results` are those of the split's shards, in order; they are produced during the writing.
        """

    def finish(self, job: "Job") -> None:
        """Writes the last objects, such as indexes of everything."""
