"""The contract of stages: a stage declares its inputs and outputs, and processes units of work.

The executor handles Ray, retries and progress, and the tables store results. A stage handles none
of these. `curator/pipeline.py` lists the stages in their order.

    class Blurred(PixelStage[BlurConfig]):
        name, version = "blur", 1

        def process(self, unit: ClipFrames) -> Iterator[NDArray[np.uint8]]: ...
"""

import re
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from curator.errors import CuratorError, ErrorCode
from curator.family import Family, FamilyVersion, Value, Windows
from curator.family import Scope as Scope
from curator.fingerprints import fingerprint
from curator.records.audio_requests import AudioRequest as AudioRequest
from curator.records.sources import Failure, Medium, Note

if TYPE_CHECKING:
    # Sandboxes need no Arrow.
    import pyarrow as pa


class Phase(StrEnum):
    """The part of a run to which a stage belongs."""

    LIST = "list"
    """Finds the sources."""
    MEASURE = "measure"
    """Decodes sources, and proposes clips."""
    DECIDE = "decide"
    """Rejects clips, and may compare each clip with all other clips."""
    WRITE = "write"
    """Decodes frames of sources again, to write and caption clips."""
    ANNOTATE = "annotate"
    """Computes values of written clips."""
    PACK = "pack"
    """Puts samples into tars."""
    COMMIT = "commit"
    """Makes the results visible to readers."""


GRANULARITY = {
    Scope.SOURCE: "source by source",
    Scope.CLIP: "clip by clip",
    Scope.CORPUS: "all at once",
}
OFF = "off"
BY_ORDER = "only because a run takes stages in turn"
FILTERED = "every clip to be filtered"
DECISIONS = "the decisions about all clips"
"""Texts of `Wait.on` and `Wait.why`."""
FILTERED_AGAIN = "clips are filtered again, and those that are newly kept are cut"
"""Effect of another setting of a stage that decides about clips."""
WORKER_BYTES = 2 << 30
"""Memory of a worker. Torch and the network need 1.0 GB; 1.4 GB with 1080p, 1.7 GB with 8K."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """CPUs, GPUs and memory that one worker of a stage reserves."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory_bytes: int = WORKER_BYTES


REASON_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
"""Public names of reasons, and of families of the corpus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReason:
    """A reason for which a stage rejects clips. `summary.json` has the reasons of a run's stages.

    Attributes:
        name: Public name, as in `clips.reason`.
        words: The reason in words, for the report; empty if the name says enough.
        is_listed: Whether the funnel lists the reason even if it rejects no clip.
        is_failure: Whether the recipe keeps the clip, and the stage could not do its work.
    """

    name: str
    words: str = ""
    is_listed: bool = True
    is_failure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The work of earlier stages that a stage waits for. `curate graph` prints the wait.

    Attributes:
        granularity: Source by source, clip by clip, or all at once; `off` for a disabled stage.
        on: The work that must be complete before the stage begins; empty for no wait.
        why: The reason.
        is_needed: Whether results depend on the wait. If not, the stage waits only because a run
            executes stages in order.
    """

    stage: str
    granularity: str
    on: str = ""
    why: str = ""
    is_needed: bool = False

    def __str__(self) -> str:
        return f"{self.on}: {self.why}" if self.on else "-"


class StageConfig(BaseModel):
    """Settings of a stage. They are immutable, and unknown keys are refused."""

    # The schema is built when a recipe is read, with those of all sections.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    def problem_in(self, recipe: Any, /) -> str | None:  # noqa: ANN401 - stages know no recipe
        """Returns why other sections of the recipe exclude these settings, with the remedy."""
        del recipe
        return None


def setting(default: Any = ..., *, unit: str, **checks: Any) -> Any:  # noqa: ANN401 - as `Field`
    """Returns a field of a `StageConfig` with a `unit`, and `checks` as in pydantic's `Field`."""
    return Field(default, json_schema_extra={"unit": unit}, **checks)


ConfigT = TypeVar("ConfigT", bound=BaseModel)
UnitT = TypeVar("UnitT")
ResultT = TypeVar("ResultT")
PartT = TypeVar("PartT")


class GraphStage(ABC, Generic[ConfigT]):
    """The declaration of a stage, from which `curator/pipeline.py` builds the graph.

    Attributes:
        name: Name in the graph, and in the recipe.
        version: Raised when the same input and configuration would give another result.
        phase: The part of a run to which the stage belongs.
        scope: Whether the stage works source by source, clip by clip, or on all clips at once.
        reads: Tables that the stage reads. The stage's fingerprint includes theirs.
        writes: Tables that the stage writes.
        by_content: Tables of `reads` whose row ids are hashes of content. The stage's fingerprint
            does not include theirs.
        media: Media of the sources or clips that the stage accepts. A source fails as
            `unused_medium` if no stage that reads the table `scan` accepts its medium.
        config_type: Model of the stage's section of the recipe.
        results_ignore: Settings that change no result. The fingerprint does not include them.
        sections: Sections of the recipe with settings of the stage; by default the section with
            its name.
        change_effect: Effect of another setting on the next run, for people; empty for a stage
            without a section of its own.
        is_remade: Whether `curate recaption` runs the stage again over a finished run.
        step: Step of the run to which the stage's work belongs, in progress, plan and times; by
            default its name. Stages of one step run together.
        noun: Noun for an item of the stage's work, in the progress.
        time_share: Typical wall time, relative to other stages, for the remaining time of a run
            without a plan and without an earlier run. 0 leaves the stage out of the estimate.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    phase: ClassVar[Phase]
    scope: ClassVar[Scope]
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    by_content: ClassVar[frozenset[str]] = frozenset()
    results_ignore: ClassVar[frozenset[str]] = frozenset()
    media: ClassVar[frozenset[Medium]] = frozenset({Medium.VIDEO})
    config_type: ClassVar[type[BaseModel]] = StageConfig
    change_effect: ClassVar[str] = ""
    is_remade: ClassVar[bool] = False
    noun: ClassVar[str] = "item"
    time_share: ClassVar[float] = 0.0

    def __init__(self, config: ConfigT) -> None:
        self.config = config

    @property
    def sections(self) -> tuple[str, ...]:
        """Sections of the recipe with settings of the stage."""
        return (self.name,)

    @property
    def step(self) -> str:
        """Step of the run to which the stage's work belongs."""
        return self.name

    def reasons(self) -> Iterator[StageReason]:
        """Yields the reasons for which the stage may reject a clip, in order of precedence."""
        yield from ()

    @property
    def is_on(self) -> bool:
        """Whether the stage is enabled: its setting `enabled`, or true without such a setting."""
        return bool(getattr(self.config, "enabled", True))

    def wait(self, before: Sequence[Wait], *, is_growing: bool) -> Wait:
        """Returns the wait of the stage; by default the stage waits for nothing.

        `before` are the waits of earlier stages. With `is_growing`, a run does not change clips of
        earlier generations.
        """
        return self.waits_for()

    def waits_for(self, on: str = "", why: str = "", *, is_needed: bool = True) -> Wait:
        """Returns a `Wait` of this stage; a helper for `wait`."""
        granularity, is_needed = GRANULARITY[self.scope], is_needed and bool(on)
        return Wait(stage=self.name, granularity=granularity, on=on, why=why, is_needed=is_needed)

    def waits_for_decisions(self, before: Sequence[Wait]) -> Wait:
        """Returns a `Wait` for the stages that reject clips; a helper for `wait`."""
        all_at_once = GRANULARITY[Scope.CORPUS]
        waits = (wait for wait in before if wait.is_needed and wait.granularity == all_at_once)
        deciding = [wait.stage for wait in waits]
        if deciding:
            return self.waits_for(DECISIONS, f"{', '.join(deciding)} may reject any of them")
        why = f"{BY_ORDER}; none depends on other clips"
        return self.waits_for(DECISIONS, why, is_needed=False)

    @property
    def resources(self) -> Resources:
        """Resources of one worker."""
        return Resources()

    def setup(self) -> None:
        """Loads models and opens devices; runs once per worker, before its first unit."""

    def settings(self) -> dict[str, object]:
        """The settings that results depend on, for the fingerprint."""
        return self.config.model_dump(mode="json", exclude=set(self.results_ignore))

    def models(self) -> tuple[object, ...]:
        """Names or hashes of weights that results depend on, for the fingerprint."""
        return ()

    def fingerprint(self, inputs: Mapping[str, str]) -> str:
        """Returns a hash of all that determines the results of the stage.

        The hash covers name, version, settings, models, and `inputs`: the fingerprints of tables,
        by name.
        """
        read = {name: inputs[name] for name in self.reads if name not in self.by_content}
        return fingerprint(self.name, self.version, self.settings(), self.models(), read)


class Stage(GraphStage[ConfigT], Generic[ConfigT, UnitT, ResultT]):
    """A stage that workers run, unit by unit.

    Attributes:
        sandboxed: Whether `process` reads untrusted bytes, and thus runs in a sandbox. There,
            `process` can open only the source of its unit, and its results may contain only
            classes that its return type names.
        imports: Modules that a sandbox imports before it is locked, so that Python can write their
            bytecode.
        memory_code: Error code of a unit that needs more memory than `limit_bytes`.
        fails_alone: Whether a `CuratorError` fails only its unit; if not, the error ends the run.
        helpers: Names of the stages that prepare or finish its work, in workers of their own.
        unit_items: Maximum number of items per unit.
    """

    sandboxed: ClassVar[bool] = False
    imports: ClassVar[tuple[str, ...]] = ()
    memory_code: ClassVar[ErrorCode] = ErrorCode.OUT_OF_MEMORY
    fails_alone: ClassVar[bool] = True
    helpers: ClassVar[tuple[str, ...]] = ()
    unit_items: ClassVar[int] = 64

    def __init__(self, config: ConfigT) -> None:
        super().__init__(config)
        self.cpu_s: defaultdict[str, float] = defaultdict(float)
        """CPU-seconds that `process` measured, by name; the worker collects them."""
        self.child_cpu_s = 0.0
        """CPU-seconds that a child process, such as a server, spent on `process`."""
        self.counts: Counter[str] = Counter()
        """Counters of `process`; the worker collects them."""
        self.notes: list[str] = []
        """Warnings for the user; the worker collects them, because users do not see its log."""
        self.on_reached: Callable[[float], None] | None = None
        """Takes the seconds of video of the unit that `process` has done so far, at any rate of
        calls. A sandbox sets it; None elsewhere."""

    @property
    def kinds(self) -> tuple[Resources, ...]:
        """Kinds of workers, the preferred kind first. All kinds give the same results."""
        return (self.resources,)

    @property
    def in_flight(self) -> int | None:
        """Concurrent requests of all workers to a service; None for a stage without a service."""
        return None

    def share(self, n_workers: int) -> Self:
        """Returns the stage for one of `n_workers` workers, with its share of `in_flight`."""
        return self

    def preflight(self) -> None:
        """Checks weights and services; runs in the driver, if any result is missing.

        The driver calls it again while a service does not answer for long. Raises `UsageError` if
        the stage cannot work.
        """

    def node_refusal(self) -> str | None:
        """Returns why this node cannot run the stage, or None. The check runs on the node.

        It runs for workers with a GPU, and on a cluster also for workers that use a service.
        """
        return None

    @property
    def locks(self) -> bool:
        """Whether the sandbox blocks files and network. With a GPU, it keeps the GPU's devices."""
        return True

    @property
    def limit_bytes(self) -> int | None:
        """Memory that a unit may use in a sandbox; None for no limit."""
        return None

    def files(self) -> tuple[str, ...]:
        """Files and folders, such as model weights, that a sandbox reads besides packages."""
        return ()

    def limit_s(self, unit: UnitT, /) -> float | None:
        """CPU-seconds that a unit may use in a sandbox; None for no limit."""
        return None

    @abstractmethod
    def process(self, unit: UnitT, /) -> ResultT:
        """Turns one unit into one result."""

    def failed(self, unit: UnitT, failure: Failure, /) -> ResultT:
        """Returns the result of a failed unit; by default raises an error that ends the run."""
        raise CuratorError(f"{self.name}: {failure.message}")

    def retried(self, unit: UnitT, /) -> UnitT:
        """Returns a unit on which a worker died, for the next attempt."""
        return unit

    def on_cpu(self, note: Note, /) -> Self | None:
        """Returns the stage for a CPU, or None if the stage needs a GPU.

        A worker runs it over units on which a GPU failed. It shares `cpu_s` and `counts` with this
        stage, and adds `note` to its results.
        """
        return None

    def video_s(self, unit: UnitT, /) -> float:
        """Returns the seconds of video of a unit, by its header; the progress counts them."""
        return 0.0

    def work_s(self, unit: UnitT, /) -> float:
        """Returns the seconds of video weighted by cost, to estimate the remaining time."""
        return self.video_s(unit)

    def release(self) -> None:
        """Closes files that a group of units shared; runs after the group."""

    def close(self) -> None:
        """Stops a stage that runs in a thread of the driver; a running `process` then raises."""


AnyGraphStage = GraphStage[Any]
AnyStage = Stage[Any, Any, Any]


class ItemStage(Stage[ConfigT, UnitT, ResultT]):
    """A stage that stores a row per item. Later runs find the row by its key and skip the item.

    Attributes:
        key: Columns whose values, joined by tabs, are the key of a row. Items have attributes with
            the same names.
    """

    key: ClassVar[tuple[str, ...]]

    @abstractmethod
    def rows(self, items: Sequence[UnitT], results: Sequence[ResultT], /) -> "pa.Table":
        """Returns a row for each item; runs outside the sandbox.

        Takes ids from `items`: results of a sandbox are untrusted, and may name another item.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipFrames:
    """The frames of one clip, before encoding.

    Attributes:
        fps: Frame rate, in frames per second.
        frames: Pictures in order, uint8 [height, width, 3] RGB each, BT.709, upright.
    """

    clip_id: str
    fps: Fraction
    frames: Iterator[NDArray[np.uint8]]


class PixelStage(Stage[ConfigT, ClipFrames, Iterator[NDArray[np.uint8]]]):
    """A custom stage that changes pixels before the encoder.

    `process` yields one frame per input frame, of the same size. With such a stage, a run encodes
    all clips, and copies no streams.
    """

    phase = Phase.WRITE
    scope = Scope.CLIP
    reads = ("clips",)
    by_content = frozenset({"clips"})


class ClipVectors(Protocol):
    """One model's vectors of clips. Many vectors are on the local disk instead of in memory."""

    def known(self, ids: "pa.Array", /) -> NDArray[np.bool_]:
        """Returns which clips have a vector, bool [N]."""

    def matrix(self, ids: "pa.Array", /) -> NDArray[np.float32]:
        """Returns the vectors of clips, float32 [N, D]; each clip must have a vector."""


class Footage(Protocol):
    """Footage of clips. Workers read it too, so it can be pickled."""

    def blocks(self) -> Iterator["pa.Table"]:
        """Yields rows of `FOOTAGE_SCHEMA`, some clips at a time."""

    def clips(self, clip_ids: Sequence[str]) -> Mapping[str, Any]:
        """Returns the `ClipFootage` of known clips, by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceClips:
    """Fixed clips, such as those of another output, with which a stage compares new clips.

    No decision changes a fixed clip. A new clip with the same footage is rejected with `reason`.

    Attributes:
        key: Fingerprint of the fixed clips; another set of clips has another key.
        reason: Reason for which a new clip with the same footage is rejected.
        footage: Footage of the fixed clips; it may contain other clips too.
        clip_ids: string[N], ids of the fixed clips; None for all clips of `footage`.
        name: Name for messages; empty if the user cannot look up the ids of these clips.
        groups: string[N], groups of the fixed clips; new clips of the same group stay. None for no
            groups.
    """

    key: str
    reason: str
    footage: Footage
    clip_ids: "pa.Array | None" = None
    name: str = ""
    groups: "pa.Array | None" = None


class Corpus(Protocol):
    """The clips that a stage decides about: those that no earlier stage rejected.

    Clips are sorted by source and time, and numbered from 0. Tables and vectors that exceed the
    memory budget are on the local disk.
    """

    @property
    def num_rows(self) -> int:
        """Number of clips."""

    @property
    def column_names(self) -> list[str]:
        """Columns of `clips`, including `meta.*`."""

    def __getitem__(self, name: str, /) -> "pa.ChunkedArray":
        """Returns a column of all clips. The stage `filter` gets the values in no order."""

    def blocks(self, names: Sequence[str] | None = None) -> Iterator["pa.Table"]:
        """Yields the columns `names`, or all columns, in tables of some clips each."""

    def vectors(self, family: str) -> ClipVectors:
        """Returns the vectors of a table, such as `embeddings`."""

    def footage(self) -> "Footage":
        """Returns the footage by which clips are compared: vectors, pictures and luma."""

    def reference_clips(self) -> Sequence["ReferenceClips"]:
        """Returns clips of earlier generations, clips of other outputs, and removed clips."""

    def carried(self, family: str) -> Any:  # noqa: ANN401 - as the stage left it
        """Returns the `CarriedState.rows` of an earlier generation; None without any."""

    def read(self, family: str) -> "pa.Table | None":
        """Returns the table of a family that an earlier run stored, or None."""

    def marked(
        self, verdict: Literal["keep", "drop"], ids: "pa.ChunkedArray", /
    ) -> NDArray[np.bool_]:
        """Returns which of the clips `ids` people marked with `verdict`, bool [N]."""


DECISION_COLUMNS = frozenset({
    "reason", "reasons", "reason_detail", "reason_score", "reason_threshold", "tags",
    "duplicate_of", "duplicate_similarity", "duplicate_offset_s", "duplicate_overlap_s",
    "cluster",
})  # fmt: skip
"""Columns of `clips` that a `CorpusStage` may set; the others are facts about a clip."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decisions of a stage about some clips of a `Corpus`.

    Attributes:
        rows: int64 [N], distinct numbers of clips.
        columns: N rows with some of `DECISION_COLUMNS`, including `reason`. A clip with a `reason`
            is rejected; a clip with a null `reason` stays. A reason is a public name of lower case
            letters, digits and `_`.
    """

    rows: NDArray[np.int64]
    columns: "pa.Table"


@dataclass(frozen=True, slots=True)
class CarriedState:
    """State that a stage stores for later generations or runs, as a family of scope `corpus`.

    Attributes:
        family: Name of the family.
        rows: Either JSON values, which `Corpus.carried` returns in later generations, or a table,
            which `Corpus.read` returns in later runs.
    """

    family: str
    rows: Any


@dataclass(frozen=True, slots=True)
class Remainders:
    """Parts of clips that become new clips. The run scores them from tracks and filters them.

    Attributes:
        rows: int64 [N], numbers of the clips.
        start_s: float64 [N], start of each part, in seconds from the first frame of its clip.
        end_s: float64 [N], end of each part, in the same unit.
    """

    rows: NDArray[np.int64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]


class Work(Protocol):
    """Runs a pure function over an array, part by part; uses workers for enough work."""

    def __call__(
        self,
        function: Callable[[NDArray[np.float32], PartT], ResultT],
        array: NDArray[np.float32],
        parts: Iterable[PartT],
        *,
        cpu_s: float,
    ) -> Generator[ResultT, None, None]:
        """Yields `function(array, part)` of each part, in any order.

        To cancel the remaining parts, close the generator.

        Args:
            function: Stateless function that can be pickled.
            array: float32 [N, D], shared by all parts.
            parts: Small values, such as ranges of rows.
            cpu_s: Estimated CPU-seconds of all parts together.
        """


class CorpusStage(GraphStage[ConfigT]):
    """A stage that decides about all clips of a generation, in the driver."""

    phase = Phase.DECIDE
    scope = Scope.CORPUS
    reads: ClassVar[tuple[str, ...]] = ("clips",)
    writes: ClassVar[tuple[str, ...]] = ("clips",)
    change_effect: ClassVar[str] = FILTERED_AGAIN
    time_share: ClassVar[float] = 0.1

    @property
    def needs_all(self) -> str | None:
        """Why the stage needs all clips at once; None if it decides about each clip alone.

        In the latter case, a run may call `decide` with the clips of some sources first.
        """
        return None

    @property
    def compares_clips(self) -> bool:
        """Whether it rejects clips for others that show the same, more of them in more clips."""
        return False

    @property
    def needs_earlier(self) -> str:
        """Text appended to `needs_all` when the run does not change earlier generations."""
        return ""

    @abstractmethod
    def decide(
        self, corpus: Corpus, work: Work, /
    ) -> Iterator[Decisions | CarriedState | Remainders | str]:
        """Yields decisions, state for later, parts that become clips, and texts of warnings.

        The stage `filter` yields decisions about each block before it reads the next block. Other
        stages may yield decisions in any order, at most one per clip.
        """

    def remedies(
        self,
        reason: str,
        clip: Any,  # noqa: ANN401 - a row
        /,
    ) -> Iterator[dict[str, str | float]]:
        """Yields alternative settings that end a reason of the stage against a clip.

        `curate explain` tries them. `clip` has the columns of `clips` as attributes. Settings are
        by dotted key of the recipe; a number is a bound that the setting must exceed.
        """
        del reason, clip
        yield from ()

    def wait(self, before: Sequence[Wait], *, is_growing: bool) -> Wait:
        """Returns a wait with the reason `needs_all`."""
        if self.needs_all is None:
            why = f"{BY_ORDER}; no decision depends on other clips"
            return self.waits_for(FILTERED, why, is_needed=False)
        return self.waits_for(FILTERED, self.needs_all + (self.needs_earlier if is_growing else ""))


AnyCorpusStage = CorpusStage[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A clip that a `ClipFilter` rejects.

    Attributes:
        reason: Public name of the fact, such as `on_blocklist`.
        detail: One line for people.
    """

    clip_id: str
    reason: str
    detail: str | None = None


class ClipFilter(CorpusStage[ConfigT]):
    """A custom stage that rejects clips by their columns.

    `process` gets the rows of `clips` that are kept so far, in one table. The stage runs before
    `select` unless the recipe gives another place.
    """

    needs_all = "it gets all kept clips in one table"

    @abstractmethod
    def process(self, unit: "pa.Table", /) -> Iterable[Rejection]:
        """Returns a rejection for each clip to reject."""

    def decide(self, corpus: Corpus, work: Work, /) -> Iterator[Decisions]:
        """Passes all clips to `process`, and yields its rejections as decisions."""
        import pyarrow as pa
        import pyarrow.compute as pc

        clips = pa.concat_tables(corpus.blocks())
        rejections: defaultdict[str, list[Rejection]] = defaultdict(list)
        for rejection in self.process(clips):
            rejections[rejection.clip_id].append(rejection)
        names = pa.array(list(rejections), pa.string())
        is_rejected = pc.is_in(clips["clip_id"], value_set=names)
        rejected = [rejections[name] for name in clips["clip_id"].filter(is_rejected).to_pylist()]
        columns = {
            "reason": [of_clip[-1].reason for of_clip in rejected],
            "reasons": [[rejection.reason for rejection in of_clip] for of_clip in rejected],
            "reason_detail": [of_clip[-1].detail for of_clip in rejected],
        }
        yield Decisions(np.flatnonzero(is_rejected.to_numpy()), pa.table(columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipFacts:
    """Facts about a written clip, for an annotator. `width` and `height` are in pixels.

    Attributes:
        fps: Frames per second.
        columns: Values of the columns that the annotator reads, by name.
    """

    clip_id: str
    source_id: str
    n_frames: int
    fps: Fraction
    width: int
    height: int
    columns: Mapping[str, Any]


FRAMES_VERSION = 2
"""Version of the pixels of requested frames: another one computes all values of frames again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRequest:
    """A request for frames of each written clip.

    Attributes:
        at: `all` for all frames; a number for evenly spaced frames per second; or a function of a
            clip that returns frame numbers, from 0.
        size: (width, height) scales frames to cover this size and crops around the centre: the
            pixels that `ClipDataset(size=...)` gives. A number limits the longer side,
            and enlarges no frame. None keeps the written size.
        device: `cpu` gives NumPy arrays to `process`. `gpu` gives torch tensors, on the worker's
            GPU if the worker has a GPU.
    """

    at: Literal["all"] | float | Callable[[ClipFacts], Sequence[int]] = "all"
    size: tuple[int, int] | int | None = None
    device: Literal["cpu", "gpu"] = "cpu"

    def numbers(self, clip: ClipFacts) -> list[int]:
        """Returns the numbers of the requested frames of a clip, ascending.

        Raises `ValueError` if the function `at` returns no frames, or frames outside the clip.
        """
        if self.at == "all":
            return list(range(clip.n_frames))
        if callable(self.at):
            wanted = sorted(set(self.at(clip)))
            if not wanted or wanted[0] < 0 or wanted[-1] >= clip.n_frames:
                raise ValueError(
                    f"frames {wanted} of a clip of {clip.n_frames} frames; expected at least one "
                    f"number, from 0 to {clip.n_frames - 1}"
                )
            return wanted
        step = max(float(clip.fps) / float(self.at), 1.0)
        n_frames = max(1, round(clip.n_frames / step))
        # The middle frame of each of `n_frames` equal parts.
        return [int((number + 0.5) * clip.n_frames / n_frames) for number in range(n_frames)]

    def size_of(self, clip: ClipFacts) -> tuple[int, int]:
        """Returns width and height of the requested frames of a clip, in pixels."""
        if isinstance(self.size, tuple):
            return self.size
        if self.size is None:
            return clip.width, clip.height
        scale = min(1.0, self.size / max(clip.width, clip.height))
        return max(1, round(clip.width * scale)), max(1, round(clip.height * scale))


Pixels = Any
"""A NumPy array or a torch tensor; `FrameRequest.device` decides which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedFrames:
    """The frames of a clip for one request.

    Attributes:
        numbers: Number of each frame in the clip, from 0.
        pixels: uint8 [T, H, W, 3] RGB, upright.
    """

    numbers: tuple[int, ...]
    pixels: Pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledClip:
    """A clip, or a window of it, with its requested frames, in the order of `Annotator.frames`.

    Attributes:
        start: Number of the window's first frame in the clip; None for a whole clip.
        audio: float32 [C, N], -1 to 1, from the clip's or the window's first frame to the end of
            its last one, `ceil(seconds * rate)` samples of each channel. None for a clip without
            audio, and for an annotator that requests none.
        signals: Float32 [n_frames] by the names of `Annotator.signals`: a value per written frame.
        thumbnails: Stored JPEGs of the clip's source frames, in order, if `Annotator.thumbnails`.
    """

    facts: ClipFacts
    requested: tuple[RequestedFrames, ...]
    start: int | None = None
    audio: NDArray[np.float32] | None = None
    signals: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    thumbnails: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def frames(self) -> Pixels:
        """Frames of the first request, uint8 [T, H, W, 3] RGB."""
        return self.requested[0].pixels


SHORT_CAPTION, CAPTION_FIELDS, EMBEDDING, CLIP_EMBEDDING = NOT_IN_CLIPS = (
    "short_caption", "caption_fields", "embedding", "clip_embedding",
)  # fmt: skip
"""Values that annotators read like columns: the captioner's short caption; the structured fields of
its answer as JSON, for a clip of one window; and the vectors of the tables `embeddings` and
`clip_embeddings`, float32 [D]. None for a clip without the value."""
THUMBNAILS = ("thumbnail_frame", "thumbnails")
"""Columns of tracks with the JPEGs of a source, and their frames."""
PLACE_IN_SOURCE = ("start_frame", "end_frame", "is_vfr", "rate_factor", "window_frames")
"""Columns that say, with length and rate, which frames of the source a written clip shows."""


class Annotator(Stage[ConfigT, Sequence[SampledClip], Sequence[Any]]):
    """A stage that computes values of each written clip, such as latents, poses or a depth map.

    A user writes declarations, `setup` and `process`. Values become members of the samples, or
    columns of `clips`.

    Attributes:
        families: Declarations of the values. With several families, `process` returns a mapping by
            name for each clip.
        frames: Requests for frames; by default all frames, or none for an annotator that declares
            `audio` or `signals` in its class. Empty for one that reads only columns.
        audio: Request for the audio of the clip or window. Without `frames`, no frame is decoded.
        columns: Columns of `clips`, or names in `NOT_IN_CLIPS`, that it reads. If a clip's value
            in one of them changes, the clip is annotated again.
        signals: Signals that the analysis measured, per frame (such as `luma_mean`) or per sample
            (such as `motion`, or a signal of a `Measure` of the recipe). `SampledClip.signals` has
            a value per written frame. A frame that the cut repeats has the value of its source
            frame. A sample's value holds from its frame to the frame before the next sample, and
            counts only if all frames that it compares are in the clip, as for scores. NaN stands
            for frames before the clip's first sample, and for what was not measured.
        thumbnails: Whether it reads the stored thumbnails of the clip; nothing is decoded for them
            but JPEGs of at most 320 px.
        windows: Windows of each clip. `process` then gets windows in place of clips, and returns a
            value for each; readers draw one of them. A clip shorter than a window has no value.
            Requests count a window's frames from 0. None gives whole clips to `process`.
        batch: Maximum number of clips, or windows, per call of `process`.
        kinds: Kinds of workers, as in `Stage`.
        required: Whether a clip on which it fails is rejected as `<name>_failed`. If not, the
            sample lacks the value.
        timeout_s: Maximum duration of a call of `process`, in seconds of wall time per clip. A
            call that takes longer ends its worker, as a crash does.
    """

    phase = Phase.ANNOTATE
    scope = Scope.CLIP
    reads = ("clips", "cuts")
    by_content = frozenset(reads)
    families: tuple[Family, ...] = ()
    frames: tuple[FrameRequest, ...] = (FrameRequest(),)
    audio: AudioRequest | None = None
    columns: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    thumbnails: ClassVar[bool] = False
    windows: Windows | None = None
    batch: int = 1
    kinds: tuple[Resources, ...] = (Resources(),)
    required: ClassVar[bool] = True
    timeout_s: ClassVar[float] = 600.0
    step = "annotate"
    noun = "clip"
    time_share = 0.1

    def __init_subclass__(cls, **options: object) -> None:
        """Requests no frames for a class that declares another input, and no `frames`."""
        super().__init_subclass__(**options)
        if (
            cls.audio is not None or cls.signals or cls.thumbnails
        ) and cls.frames is Annotator.frames:
            cls.frames = ()

    @property
    def decodes(self) -> bool:
        """Whether its values need a decode of the clip."""
        return bool(self.frames) or self.audio is not None

    @property
    def failed_reason(self) -> str:
        """Reason of a clip on which the annotator fails, if a value is `required`."""
        return f"{self.name}_failed"

    def reasons(self) -> Iterator[StageReason]:
        """Yields the reason of failures."""
        if self.required:
            words = f"the stage {self.name} failed on it"
            yield StageReason(
                name=self.failed_reason, words=words, is_listed=False, is_failure=True
            )

    @property
    def resources(self) -> Resources:
        """The preferred kind of worker."""
        return self.kinds[0]

    @abstractmethod
    def process(self, unit: Sequence[SampledClip], /) -> Sequence[Value | Mapping[str, Value]]:
        """Returns a value for each clip.

        After an error, each clip of the batch is processed alone, so that only the clip at fault
        fails. A `CuratorError` ends the run.
        """

    def versions(self) -> dict[str, FamilyVersion]:
        """Returns the families with their fingerprints, by name."""
        requests = [
            (getattr(f.at, "__qualname__", str(f.at)), f.size, FRAMES_VERSION) for f in self.frames
        ]
        made_by = self.name, self.version, self.settings(), self.models()
        # An absent request is left out, so that values of earlier versions stay valid.
        audio = [] if self.audio is None else [("audio", self.audio.rate, self.audio.channels)]
        of_track = [self.track_columns] if self.track_columns else []
        reads = requests, self.columns, *of_track, *audio
        versions = {}
        for family in self.declared_families():
            # The same values are used again at another place. Values of versions without places
            # are used again, too: declarations had this field.
            declared = {name: v for name, v in family.to_json().items() if name != "place"}
            declared["in_samples"] = True
            made = fingerprint(*made_by, declared, *reads)
            versions[family.name] = FamilyVersion(family, made)
        return versions

    def declared_families(self) -> list[Family]:
        """Returns the families with the stage's windows; raises `FamilyError` if they exclude."""
        return [replace(family, windows=self.windows) for family in self.families]

    def reads_columns(self) -> tuple[str, ...]:
        """Returns `columns`, and those that place a clip in the tracks that the stage reads."""
        return (*self.columns, *PLACE_IN_SOURCE) if self.track_columns else self.columns

    @property
    def track_columns(self) -> tuple[str, ...]:
        """Signals, and columns of tracks, that it reads."""
        return (*self.signals, *THUMBNAILS) if self.thumbnails else self.signals

    def writes_columns(self) -> list[str]:
        """Returns the names of the columns that the annotator adds to `clips`."""
        return [name for family in self.families for name in family.columns]

    def key(self, facts: ClipFacts, mp4_sha256: str) -> str | None:
        """Returns a digest of the inputs of a clip's values; None for a clip without values.

        Clips with the same key share a value, so a method that leaves out the MP4 must belong to an
        annotator without frames and audio. The columns of `facts` are those of `reads_columns`,
        and for each of `signals` the fingerprint of the settings that measured it.
        """
        if self.windows is not None and not self.windows.starts(facts.n_frames):
            return None
        columns = {
            name: sha256(value.tobytes()).hexdigest() if isinstance(value, np.ndarray) else value
            for name, value in facts.columns.items()
        }
        return fingerprint(facts.clip_id, mp4_sha256, columns)


AnyAnnotator = Annotator[Any]
