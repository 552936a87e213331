"""The contract of stages: what a stage declares, and what it does with one unit of work.

A stage knows neither Ray, nor retries, nor progress, nor where results are stored: those are the
executor's and the tables'. `curator/pipeline.py` lists the stages in their order.

    class Blurred(Stage[BlurConfig, ClipFrames, ClipFrames]):
        name, version, scope = "blur", 1, Scope.CLIP
        reads, writes = ("clips",), ()

        def process(self, unit: ClipFrames) -> ClipFrames: ...
"""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from curator.errors import CuratorError, ErrorCode
from curator.fingerprints import fingerprint
from curator.records.sources import Failure, Note

if TYPE_CHECKING:
    import pyarrow as pa  # noqa: F401 - named in a string: decoder boxes need no Arrow

WORKER_BYTES = 2 << 30
"""Memory that a worker may need: torch and the network 1.0 GB, with 1080p 1.4, with 8K 1.7."""


class Scope(StrEnum):
    """What one unit of a stage is."""

    SOURCE = "source"
    CLIP = "clip"
    CORPUS = "corpus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one worker of a stage takes."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory_bytes: int = WORKER_BYTES


class StageConfig(BaseModel):
    """Settings of a stage: unknown keys are refused, values are fixed."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def setting(default: Any = ..., *, unit: str, **checks: Any) -> Any:  # noqa: ANN401 - as `Field`
    """A field of a `StageConfig` with a unit, for people, and the checks that `Field` takes."""
    return Field(default, json_schema_extra={"unit": unit}, **checks)


ConfigT = TypeVar("ConfigT", bound=BaseModel)
UnitT = TypeVar("UnitT")
ResultT = TypeVar("ResultT")


class Stage(ABC, Generic[ConfigT, UnitT, ResultT]):
    """One stage of the graph.

    Attributes:
        name: Its name in the graph, and its section of the recipe.
        version: Version of its meaning: raised when the same unit and configuration would give
            another result.
        scope: What a unit is.
        reads: Tables it reads; their fingerprints go into its own.
        writes: Tables it writes.
        by_content: Tables of `reads` whose rows are named by their content: their fingerprints are
            not in this stage's own.
        config_type: Model of its section of the recipe.
        results_ignore: Keys of the configuration that change no result, and are in no fingerprint.
        boxed: Whether units name bytes of strangers: `process` then runs in a decoder box, where
            only the unit's own source can be opened, and its results are made of the classes that
            the type of `process` names.
        imports: Modules that a box imports before it is locked, so that Python may keep their
            bytecode.
        memory_code: Outcome of a unit that asks for more memory than `limit_bytes`.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    scope: ClassVar[Scope]
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    by_content: ClassVar[frozenset[str]] = frozenset()
    results_ignore: ClassVar[frozenset[str]] = frozenset()
    config_type: ClassVar[type[BaseModel]] = StageConfig
    boxed: ClassVar[bool] = False
    imports: ClassVar[tuple[str, ...]] = ()
    memory_code: ClassVar[ErrorCode] = ErrorCode.OUT_OF_MEMORY

    def __init__(self, config: ConfigT) -> None:
        self.config = config
        self.cpu_s: defaultdict[str, float] = defaultdict(float)
        """CPU-seconds that `process` measured of itself, by name; the worker takes them."""
        self.counts: Counter[str] = Counter()
        """What `process` counted; the worker takes it."""

    @property
    def resources(self) -> Resources:
        """What one worker takes."""
        return Resources()

    @property
    def locks(self) -> bool:
        """Whether its box gives up files and network; one that holds a GPU keeps its devices."""
        return True

    @property
    def limit_bytes(self) -> int | None:
        """Memory that a unit may take in a box; None for no limit."""
        return None

    def files(self) -> tuple[str, ...]:
        """Files and folders that a box must read, besides Python packages: weights of models."""
        return ()

    def limit_s(self, unit: UnitT, /) -> float | None:
        """CPU-seconds that a unit may take in a box; None for no limit."""
        return None

    def setup(self) -> None:
        """Runs once in a worker, before its first unit: loads models, opens devices."""

    @abstractmethod
    def process(self, unit: UnitT, /) -> ResultT:
        """Turns one unit into one result."""

    def failed(self, unit: UnitT, failure: Failure, /) -> ResultT:
        """The result of a unit that could not be processed.

        Raises:
            CuratorError: The stage has no such result, and the run ends.
        """
        raise CuratorError(f"{self.name}: {failure.message}")

    def on_cpu(self, note: Note, /) -> Self | None:
        """The same stage for units under which a GPU failed, or None where it needs a GPU.

        It shares `cpu_s` and `counts` with this one, and writes `note` into its results.
        """
        return None

    def video_s(self, result: ResultT, /) -> float:
        """Seconds of video that a result stands for."""
        return 0.0

    def release(self) -> None:
        """Runs after a group of units: closes what they had open in common."""

    def settings(self) -> dict[str, object]:
        """The settings that results depend on, for the fingerprint."""
        return self.config.model_dump(mode="json", exclude=set(self.results_ignore))

    def models(self) -> tuple[object, ...]:
        """Names or hashes of weights that results depend on, for the fingerprint."""
        return ()

    def fingerprint(self, inputs: Mapping[str, str]) -> str:
        """Fingerprint of the results: name, version, configuration, models and inputs.

        Args:
            inputs: Fingerprint of each table in `reads`, by name.

        Raises:
            KeyError: The fingerprint of a table that is read is missing.
        """
        read = {name: inputs[name] for name in self.reads if name not in self.by_content}
        return fingerprint(self.name, self.version, self.settings(), self.models(), read)


AnyStage = Stage[Any, Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipFrames:
    """The frames of a clip on their way into the encoder.

    Attributes:
        clip_id: Its id.
        fps: Frames per second.
        frames: uint8 [height, width, 3] RGB each, BT.709, upright, in order.
    """

    clip_id: str
    fps: Fraction
    frames: Iterator[NDArray[np.uint8]]


class PixelStage(Stage[ConfigT, ClipFrames, Iterator[NDArray[np.uint8]]]):
    """A stage of a user's own that changes pixels before the encoder.

    `process` yields as many frames as it takes, of the same size. Clips are encoded, never copied.
    """

    scope = Scope.CLIP
    reads = ("clips",)
    by_content = frozenset({"clips"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A clip that a `ClipFilter` rejects.

    Attributes:
        clip_id: Its id.
        reason: Public name of the fact, such as `on_blocklist`.
        detail: One line for people.
    """

    clip_id: str
    reason: str
    detail: str | None = None


class ClipFilter(Stage[ConfigT, "pa.Table", Iterable[Rejection]]):
    """A stage of a user's own that rejects clips, out of the columns of all kept ones.

    `process` takes the rows of `clips` that are kept so far, all in one table. It runs before
    `select` unless the recipe says otherwise.
    """

    scope = Scope.CORPUS
    reads = ("clips",)
    writes = ("clips",)
