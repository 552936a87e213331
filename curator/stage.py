"""The contract of stages: what a stage declares, and what it does with one unit of work.

A stage knows neither Ray, nor retries, nor progress, nor where results are stored: those are the
executor's and the tables'. `curator/pipeline.py` lists the stages in their order.

    class Blurred(PixelStage[BlurConfig]):
        name, version = "blur", 1

        def process(self, unit: ClipFrames) -> Iterator[NDArray[np.uint8]]: ...
"""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from curator.errors import CuratorError, ErrorCode
from curator.family import Family, FamilyVersion, Value
from curator.family import Scope as Scope
from curator.fingerprints import fingerprint
from curator.records.sources import Failure, Note

if TYPE_CHECKING:
    # Sandboxes need no Arrow.
    import pyarrow as pa


class Phase(StrEnum):
    """What a run does with a stage; stages of one phase stand side by side in the graph."""

    LIST = "list"
    """Finds the sources."""
    MEASURE = "measure"
    """Decodes sources, and proposes clips."""
    DECIDE = "decide"
    """Rejects clips, by what is known of all."""
    WRITE = "write"
    """Looks at frames of sources once more: writes and captions clips."""
    ANNOTATE = "annotate"
    """Makes values of written clips."""
    PACK = "pack"
    """Puts samples into tars."""
    COMMIT = "commit"
    """Shows the results to readers."""


GRANULARITY = {
    Scope.SOURCE: "source by source",
    Scope.CLIP: "clip by clip",
    Scope.CORPUS: "all at once",
}
OFF = "off"
BY_ORDER = "only because a run takes stages in turn"
JUDGED = "every clip to be judged"
DECISIONS = "the decisions about all clips"
"""Words for waits, by which later stages know them."""
WORKER_BYTES = 2 << 30
"""Memory that a worker may need: torch and the network 1.0 GB, with 1080p 1.4, with 8K 1.7."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one worker of a stage takes."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory_bytes: int = WORKER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What a stage waits for in a generation. `curate graph` prints it.

    Attributes:
        granularity: Source by source, clip by clip, or all at once; `off` where it does nothing.
        on: What must be complete before it begins; empty for nothing.
        why: The reason.
        is_needed: Whether results depend on the wait; else only the order of a run makes it.
    """

    stage: str
    granularity: str
    on: str = ""
    why: str = ""
    is_needed: bool = False

    def __str__(self) -> str:
        return f"{self.on}: {self.why}" if self.on else "-"


class StageConfig(BaseModel):
    """Settings of a stage: unknown keys are refused, values are fixed."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def setting(default: Any = ..., *, unit: str, **checks: Any) -> Any:  # noqa: ANN401 - as `Field`
    """A field of a `StageConfig` with a unit, for people, and the checks that `Field` takes."""
    return Field(default, json_schema_extra={"unit": unit}, **checks)


ConfigT = TypeVar("ConfigT", bound=BaseModel)
UnitT = TypeVar("UnitT")
ResultT = TypeVar("ResultT")
PartT = TypeVar("PartT")


class GraphStage(ABC, Generic[ConfigT]):
    """What the graph knows of a stage: a declaration.

    Attributes:
        name: Its name in the graph, and its section of the recipe.
        version: Version of its meaning: raised when the same input and configuration would give
            another result.
        phase: What a run does with it.
        scope: What it works on at a time.
        reads: Tables it reads; their fingerprints go into its own.
        writes: Tables it writes.
        by_content: Tables of `reads` whose rows are named by their content: their fingerprints are
            not in this stage's own.
        config_type: Model of its section of the recipe.
        results_ignore: Keys of the configuration that change no result, and are in no fingerprint.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    phase: ClassVar[Phase]
    scope: ClassVar[Scope]
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    by_content: ClassVar[frozenset[str]] = frozenset()
    results_ignore: ClassVar[frozenset[str]] = frozenset()
    config_type: ClassVar[type[BaseModel]] = StageConfig

    def __init__(self, config: ConfigT) -> None:
        self.config = config

    @property
    def is_on(self) -> bool:
        """Whether it does anything: by default what its setting `enabled` says, if it has one."""
        return bool(getattr(self.config, "enabled", True))

    def wait(self, before: Sequence[Wait], *, is_growing: bool) -> Wait:
        """Returns what it waits for, after waits `before` of earlier stages; by default nothing.

        `is_growing` says that earlier generations stay as they are.
        """
        return self.waits_for()

    def waits_for(self, on: str = "", why: str = "", *, is_needed: bool = True) -> Wait:
        """Returns a wait of this stage, for `wait`."""
        granularity, is_needed = GRANULARITY[self.scope], is_needed and bool(on)
        return Wait(stage=self.name, granularity=granularity, on=on, why=why, is_needed=is_needed)

    def waits_for_decisions(self, before: Sequence[Wait]) -> Wait:
        """Returns the wait for the stages that reject clips, for `wait`."""
        all_at_once = GRANULARITY[Scope.CORPUS]
        waits = (wait for wait in before if wait.is_needed and wait.granularity == all_at_once)
        deciding = [wait.stage for wait in waits]
        if deciding:
            return self.waits_for(DECISIONS, f"{', '.join(deciding)} may reject any of them")
        why = f"{BY_ORDER}; none depends on other clips"
        return self.waits_for(DECISIONS, why, is_needed=False)

    @property
    def resources(self) -> Resources:
        """What one worker takes."""
        return Resources()

    def setup(self) -> None:
        """Runs once in a worker, before its first unit: loads models, opens devices."""

    def settings(self) -> dict[str, object]:
        """The settings that results depend on, for the fingerprint."""
        return self.config.model_dump(mode="json", exclude=set(self.results_ignore))

    def models(self) -> tuple[object, ...]:
        """Names or hashes of weights that results depend on, for the fingerprint."""
        return ()

    def fingerprint(self, inputs: Mapping[str, str]) -> str:
        """Fingerprint of the results: name, version, configuration, models and inputs.

        `inputs` are the fingerprints of the tables in `reads`, by name.
        """
        read = {name: inputs[name] for name in self.reads if name not in self.by_content}
        return fingerprint(self.name, self.version, self.settings(), self.models(), read)


class Stage(GraphStage[ConfigT], Generic[ConfigT, UnitT, ResultT]):
    """A stage that workers run, unit by unit.

    Attributes:
        sandboxed: Whether units name untrusted bytes: `process` then runs in a sandbox, where
            only the unit's own source can be opened, and its results are made of the classes that
            the type of `process` names.
        imports: Modules that a sandbox imports before it is locked, so that Python may keep their
            bytecode.
        memory_code: Outcome of a unit that asks for more memory than `limit_bytes`.
        fails_alone: Whether an error of this package fails the unit alone; else it ends the run.
        unit_items: Most items of a unit.
    """

    sandboxed: ClassVar[bool] = False
    imports: ClassVar[tuple[str, ...]] = ()
    memory_code: ClassVar[ErrorCode] = ErrorCode.OUT_OF_MEMORY
    fails_alone: ClassVar[bool] = True
    unit_items: ClassVar[int] = 64

    def __init__(self, config: ConfigT) -> None:
        super().__init__(config)
        self.cpu_s: defaultdict[str, float] = defaultdict(float)
        """CPU-seconds that `process` measured of itself, by name; the worker takes them."""
        self.counts: Counter[str] = Counter()
        """What `process` counted; the worker takes it."""
        self.notes: list[str] = []
        """Warnings for the user, who does not see a worker's log; the worker takes them."""

    @property
    def kinds(self) -> tuple[Resources, ...]:
        """Kinds of workers, the preferred one first; all give the same results."""
        return (self.resources,)

    @property
    def in_flight(self) -> int | None:
        """Requests to a service at a time, which all workers share; None if it asks no service."""
        return None

    def share(self, n_workers: int) -> Self:
        """Returns the stage for one of some workers, with its share of `in_flight`."""
        return self

    def preflight(self) -> None:
        """Runs in the driver before any work, if something is missing: weights, services.

        A service is asked again when it is silent for long. Raises `UsageError` if it cannot work.
        """

    def node_refusal(self) -> str | None:
        """Returns why a node cannot do the work, or None; runs there.

        Nodes are asked for workers with a GPU, and on a cluster for those that ask a service.
        """
        return None

    @property
    def locks(self) -> bool:
        """Whether its sandbox gives up files and network; with a GPU it keeps its devices."""
        return True

    @property
    def limit_bytes(self) -> int | None:
        """Memory that a unit may take in a sandbox; None for no limit."""
        return None

    def files(self) -> tuple[str, ...]:
        """Files and folders that a sandbox must read besides Python packages: model weights."""
        return ()

    def limit_s(self, unit: UnitT, /) -> float | None:
        """CPU-seconds that a unit may take in a sandbox; None for no limit."""
        return None

    @abstractmethod
    def process(self, unit: UnitT, /) -> ResultT:
        """Turns one unit into one result."""

    def failed(self, unit: UnitT, failure: Failure, /) -> ResultT:
        """The result of a unit that could not be processed; a stage that has none ends the run."""
        raise CuratorError(f"{self.name}: {failure.message}")

    def on_cpu(self, note: Note, /) -> Self | None:
        """The same stage for units under which a GPU failed, or None where it needs a GPU.

        It shares `cpu_s` and `counts` with this one, and writes `note` into its results.
        """
        return None

    def video_s(self, result: ResultT, /) -> float:
        """Seconds of video that a result stands for."""
        return 0.0

    def work_s(self, result: ResultT, /) -> float:
        """The same seconds, weighted by what they cost, for the time that is left."""
        return self.video_s(result)

    def release(self) -> None:
        """Runs after a group of units: closes what they had open in common."""

    def close(self) -> None:
        """Ends a stage that works in a thread of the run; `process` raises if it is under way."""


AnyGraphStage = GraphStage[Any]
AnyStage = Stage[Any, Any, Any]


class ItemStage(Stage[ConfigT, UnitT, ResultT]):
    """A stage whose items are done once: their rows are stored, and found again by key.

    Attributes:
        key: Columns whose values, joined by tabs, are the key of a row; an item has attributes of
            these names.
    """

    key: ClassVar[tuple[str, ...]]

    @abstractmethod
    def rows(self, items: Sequence[UnitT], results: Sequence[ResultT], /) -> "pa.Table":
        """Returns a row for each item; runs outside of the sandbox.

        What names an item comes from the item: a sandboxed result may name another one.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipFrames:
    """The frames of a clip on their way into the encoder.

    Attributes:
        fps: Frames per second.
        frames: uint8 [height, width, 3] RGB each, BT.709, upright, in order.
    """

    clip_id: str
    fps: Fraction
    frames: Iterator[NDArray[np.uint8]]


class PixelStage(Stage[ConfigT, ClipFrames, Iterator[NDArray[np.uint8]]]):
    """A custom stage that changes pixels before the encoder.

    `process` yields as many frames as it takes, of the same size. Clips are encoded, never copied.
    """

    phase = Phase.WRITE
    scope = Scope.CLIP
    reads = ("clips",)
    by_content = frozenset({"clips"})


class ClipVectors(Protocol):
    """Vectors of clips of one model, on the local disk where they are many."""

    def known(self, ids: "pa.Array", /) -> NDArray[np.bool_]:
        """Returns which clips have a vector, bool [N]."""

    def matrix(self, ids: "pa.Array", /) -> NDArray[np.float32]:
        """Returns the vectors of clips that all have one, float32 [N, D]."""


class Footage(Protocol):
    """Footage of clips: it can be pickled, and read on workers."""

    def blocks(self) -> Iterator["pa.Table"]:
        """Yields rows of `FOOTAGE_SCHEMA`, some clips at a time."""

    def clips(self, clip_ids: Sequence[str]) -> Mapping[str, Any]:
        """Returns the `ClipFootage` of the clips that it knows, by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Clips that stay whatever is decided, and that have footage of clips to be decided about.

    Attributes:
        key: Changes with the clips.
        reason: Of a clip whose footage one of them has.
        footage: Of its clips and perhaps others.
        clip_ids: string[N], those that count; None for all.
        name: For people; empty where ids of its clips mean nothing to them.
    """

    key: str
    reason: str
    footage: Footage
    clip_ids: "pa.Array | None" = None
    name: str = ""


class Corpus(Protocol):
    """The clips that a stage decides about: those that no stage before it rejected.

    They are in the order of source and time, and numbered from 0 in it. Tables and vectors that
    exceed the memory budget are on the local disk.
    """

    @property
    def num_rows(self) -> int:
        """Number of clips."""

    @property
    def column_names(self) -> list[str]:
        """Columns of `clips`, `meta.*` too."""

    def __getitem__(self, name: str, /) -> "pa.ChunkedArray":
        """A column of all clips; before the rules it is in no order."""

    def blocks(self, names: Sequence[str] | None = None) -> Iterator["pa.Table"]:
        """Yields some columns of all clips, or all columns, some clips at a time."""

    def vectors(self, family: str) -> ClipVectors:
        """Vectors of a table, such as `embeddings`."""

    def footage(self) -> "Footage":
        """What clips are compared by: vectors of pictures, pictures, and luma."""

    def elsewhere(self) -> Sequence["Elsewhere"]:
        """Clips of earlier generations, of other outputs, and those that were removed."""

    def earlier(self, family: str) -> Any:  # noqa: ANN401 - as the stage left it
        """What an earlier generation left of a family; None if no earlier generation counts."""

    def read(self, family: str) -> "pa.Table | None":
        """The table of a family that earlier runs stored; None for none."""

    def marked(
        self, verdict: Literal["keep", "drop"], ids: "pa.ChunkedArray", /
    ) -> NDArray[np.bool_]:
        """Returns which of some clips, by id, people marked so by hand, bool [N]."""


DECISION_COLUMNS = frozenset({
    "reason", "reasons", "reason_detail", "reason_score", "reason_threshold", "tags",
    "duplicate_of", "duplicate_similarity", "duplicate_offset_s", "duplicate_overlap_s",
    "cluster",
})  # fmt: skip
"""Columns of `clips` that a stage may set behind the rules; all others say what a clip is."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """What a stage says of some clips of a `Corpus`.

    Attributes:
        rows: int64 [N], numbers of the clips, each once.
        columns: N rows with values of `DECISION_COLUMNS`, `reason` among them. A clip with a
            `reason` is rejected; one whose `reason` is null stays. A reason is a public name: lower
            case letters, digits and `_`.
    """

    rows: NDArray[np.int64]
    columns: "pa.Table"


@dataclass(frozen=True, slots=True)
class Left:
    """What a stage leaves of a family of scope corpus.

    Attributes:
        family: Its name.
        rows: Values that JSON can hold, for `Corpus.earlier` of later generations; or a table, for
            `Corpus.read` of later runs.
    """

    family: str
    rows: Any


@dataclass(frozen=True, slots=True)
class Remainders:
    """Parts of clips that become clips of their own, scored from tracks and judged by the rules.

    Attributes:
        rows: int64 [N], numbers of the clips.
        start_s: float64 [N], begin of each part, in seconds from the first frame of its clip.
        end_s: float64 [N], its end.
    """

    rows: NDArray[np.int64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]


class Work(Protocol):
    """Runs pure functions over an array and parts of the work, on workers if that is worth it."""

    def __call__(
        self,
        function: Callable[[NDArray[np.float32], PartT], ResultT],
        array: NDArray[np.float32],
        parts: Iterable[PartT],
        *,
        cpu_s: float,
    ) -> Generator[ResultT, None, None]:
        """Yields `function(array, part)` of each part, in any order; closing it cancels the rest.

        Args:
            function: Can be pickled, and has no state.
            array: float32 [N, D], which all parts share.
            parts: Of a few words each.
            cpu_s: CPU-seconds of all parts, about.
        """


class CorpusStage(GraphStage[ConfigT]):
    """A stage that decides about all clips of a generation, in the driver."""

    phase = Phase.DECIDE
    scope = Scope.CORPUS
    reads: ClassVar[tuple[str, ...]] = ("clips",)
    writes: ClassVar[tuple[str, ...]] = ("clips",)

    @property
    def needs_all(self) -> str | None:
        """Why it needs all clips at once.

        None if it decides about each clip alone: it may then be asked about the clips of some
        sources before others are known.
        """
        return None

    @property
    def needs_earlier(self) -> str:
        """What to add to that where earlier generations stay as they are."""
        return ""

    @abstractmethod
    def decide(
        self, corpus: Corpus, work: Work, /
    ) -> Iterator[Decisions | Left | Remainders | str]:
        """Yields decisions, what it leaves for later, parts of clips, and lines to warn with.

        The stage of the rules yields decisions about each block before it reads the next one. All
        others may decide about any clips at any time, about each once.
        """

    def wait(self, before: Sequence[Wait], *, is_growing: bool) -> Wait:
        """Says `needs_all`."""
        if self.needs_all is None:
            why = f"{BY_ORDER}; no decision depends on other clips"
            return self.waits_for(JUDGED, why, is_needed=False)
        return self.waits_for(JUDGED, self.needs_all + (self.needs_earlier if is_growing else ""))


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
    """A custom stage that rejects clips, out of the columns of all kept ones.

    `process` takes the rows of `clips` that are kept so far, all in one table. It runs before
    `select` unless the recipe says otherwise.
    """

    needs_all = "it gets all kept clips in one table"

    @abstractmethod
    def process(self, unit: "pa.Table", /) -> Iterable[Rejection]:
        """Yields a rejection for each clip that it rejects."""

    def decide(self, corpus: Corpus, work: Work, /) -> Iterator[Decisions]:
        """Gives `process` all clips in one table."""
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
    """A written clip, with sizes in pixels, as an annotator sees it.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRequest:
    """Frames of written clips that an annotator wants.

    Attributes:
        at: `all`; so many a second, evenly; or a function of a clip that returns the numbers of
            its frames, from 0, ascending.
        size: (height, width): scaled to cover that, and cropped around the centre. A number: the
            longer side at most, never enlarged. None: as written.
        device: Where `process` finds them: `cpu` for NumPy arrays; `gpu` for tensors of torch, on
            the worker's GPU where it holds one.
    """

    at: Literal["all"] | float | Callable[[ClipFacts], Sequence[int]] = "all"
    size: tuple[int, int] | int | None = None
    device: Literal["cpu", "gpu"] = "cpu"

    def numbers(self, clip: ClipFacts) -> list[int]:
        """Returns the numbers of the frames that it wants of a clip, ascending.

        Raises `ValueError` where the function names frames that the clip does not have.
        """
        if self.at == "all":
            return list(range(clip.n_frames))
        if callable(self.at):
            wanted = sorted(set(self.at(clip)))
            if not wanted or wanted[0] < 0 or wanted[-1] >= clip.n_frames:
                raise ValueError(
                    f"frames {wanted} of a clip of {clip.n_frames} frames; expected some from 0 "
                    "on, and none behind the last"
                )
            return wanted
        step = max(float(clip.fps) / float(self.at), 1.0)
        n_frames = max(1, round(clip.n_frames / step))
        # The middle of equal parts.
        return [int((number + 0.5) * clip.n_frames / n_frames) for number in range(n_frames)]

    def size_of(self, clip: ClipFacts) -> tuple[int, int]:
        """Returns height and width of the frames of a clip."""
        if isinstance(self.size, tuple):
            return self.size
        if self.size is None:
            return clip.height, clip.width
        scale = min(1.0, self.size / max(clip.width, clip.height))
        return max(1, round(clip.height * scale)), max(1, round(clip.width * scale))


Pixels = Any
"""An array of NumPy or a tensor of torch, by the `device` of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedFrames:
    """Frames of a clip for one request, with their numbers in the clip, from 0.

    `pixels` are uint8 [T, H, W, 3] RGB, upright: a NumPy array, or a tensor of torch.
    """

    numbers: tuple[int, ...]
    pixels: Pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledClip:
    """A clip with the frames that an annotator asked for, by request."""

    facts: ClipFacts
    requested: tuple[RequestedFrames, ...]

    @property
    def frames(self) -> Pixels:
        """Frames of the first request, uint8 [T, H, W, 3] RGB."""
        return self.requested[0].pixels


SHORT_CAPTION, EMBEDDING, CLIP_EMBEDDING = NOT_IN_CLIPS = (
    "short_caption", "embedding", "clip_embedding",
)  # fmt: skip
"""What annotators may read as if it were in a column: the short caption by a captioner, and the
vectors of the tables `embeddings` and `clip_embeddings`, float32 [D]; None for a clip without."""


class Annotator(Stage[ConfigT, Sequence[SampledClip], Sequence[Any]]):
    """A stage that makes values of each written clip, such as latents, poses or a depth map.

    A user writes declarations, `setup` and `process`. Values become members of the samples, or
    columns of `clips`.

    Attributes:
        families: What it makes: the value of one family, or a mapping by name where it has several.
        frames: Frames that it wants of each clip; none for one that reads columns alone.
        columns: Columns of `clips` that it reads besides, and of what `NOT_IN_CLIPS` names; a clip
            whose values differ is annotated anew.
        batch: Most clips that `process` gets at a time.
        kinds: As those of `Stage`.
        required: Whether a clip on which it fails is rejected as `<name>_failed`; else the sample
            lacks the value.
    """

    phase = Phase.ANNOTATE
    scope = Scope.CLIP
    reads = ("clips", "cuts")
    by_content = frozenset(reads)
    families: tuple[Family, ...] = ()
    frames: ClassVar[tuple[FrameRequest, ...]] = (FrameRequest(),)
    columns: ClassVar[tuple[str, ...]] = ()
    batch: ClassVar[int] = 1
    kinds: ClassVar[tuple[Resources, ...]] = (Resources(),)
    required: ClassVar[bool] = True

    @property
    def resources(self) -> Resources:
        """The preferred kind of worker."""
        return self.kinds[0]

    @abstractmethod
    def process(self, unit: Sequence[SampledClip], /) -> Sequence[Value | Mapping[str, Value]]:
        """Returns a value for each clip.

        An error fails the clip alone: after one, the clips of the batch are tried one by one.
        """

    def versions(self) -> dict[str, FamilyVersion]:
        """Returns the families with their fingerprints, by name."""
        requests = [(getattr(f.at, "__qualname__", str(f.at)), f.size) for f in self.frames]
        made_by = self.name, self.version, self.settings(), self.models()
        return {
            family.name: FamilyVersion(
                family, fingerprint(*made_by, family.to_json(), requests, self.columns)
            )
            for family in self.families
        }

    def writes_columns(self) -> list[str]:
        """Returns the columns of `clips` that it writes."""
        return [name for family in self.families for name in family.columns]

    def key(self, facts: ClipFacts, mp4_sha256: str) -> str | None:
        """Returns a digest of what the values of a clip are made from; None for no values.

        Clips with the same key share a value.
        """
        columns = {
            name: sha256(value.tobytes()).hexdigest() if isinstance(value, np.ndarray) else value
            for name, value in facts.columns.items()
        }
        return fingerprint(facts.clip_id, mp4_sha256, columns)


AnyAnnotator = Annotator[Any]
