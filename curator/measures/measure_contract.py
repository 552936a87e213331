"""The contract of a measure: what it declares, and what it measures on one picture.

A user's measure is a class in a file of their own. The recipe names it (`measures:
[my_package.sharp:EdgeShare]`), or an installed package offers it as an entry point of
`curate.measures`. Its scores are columns of `clips`, and rules bound them like any other.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from curator.fingerprints import fingerprint
from curator.measures.clip_view import Aggregate, ClipView, How

Values = NDArray[np.float64]
Full = Literal["rgb", "luma"]
"""Pictures of full size: uint8 RGB [H, W, 3], or luma [H, W] from 0 black to 255 white."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A value of each sample.

    Attributes:
        range: Values it can take, and what the ends mean.
        meaning: What it measures, and by what method or source.
    """

    unit: str
    range: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSpec:
    """A value of each clip, and the reasons of a clip outside its bounds.

    Attributes:
        range: Values it can take, and what the ends mean.
        meaning: What it says of a clip.
        of: The signal that `aggregate` or `below` makes it of, by default that of the score's name,
            or a function that gives such values; without those two, a function that gives the
            score.
        aggregate: How values become the score, if the recipe does not say otherwise.
        below: The score is the share of values below this bound, in their unit, if the recipe does
            not say otherwise.
        low: Reason of a clip below a lower bound.
        high: Reason of a clip above an upper bound.
        outside: One reason for both.
        needs: Key of the recipe that must be on for it to be measured; None if it always is.
        cpu_only: Whether sources that a GPU decodes have no such score.
    """

    unit: str
    range: str
    meaning: str
    of: str | Callable[[ClipView], float | Values | None] | None = None
    aggregate: Aggregate | None = None
    below: float | None = None
    low: str = "{name}_too_low"
    high: str = "{name}_too_high"
    outside: str | None = None
    needs: str | None = None
    cpu_only: bool = False

    @property
    def how(self) -> How | None:
        """How values become the score, if the recipe does not say otherwise."""
        return self.aggregate if self.below is None else self.below


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePictures:
    """One sample of the grid of 2 a second: the same picture in two sizes, upright.

    Attributes:
        picture_HWC: uint8 RGB, the longer side 640 px or the source's own where that is less.
        small_HWC: The same with 320 px.
        seconds: Time of the sample, from the source's first frame.
        full: The picture at the source's own size, upright, as `Measure.full` says; None without.
            Of the sample's frame, or of the first one after it if no other frame refers to it: the
            decoder leaves out its loop filter.
        full_after: The same of the next such frame, before the next sample; None without `pairs`.
        after_s: Time from the one to the other.

    With `Measure.tensors` all pictures are tensors of torch.
    """

    picture_HWC: NDArray[np.uint8]
    small_HWC: NDArray[np.uint8]
    seconds: float
    full: Any = None
    full_after: Any = None
    after_s: float = 0.0


class Measure(ABC):
    """Signals of a sample, and the scores of a clip that are made of them.

    A worker makes one without arguments, calls `setup` once and then `measure` for each sample of
    all of its sources: keep nothing of one source for the next.

    Attributes:
        name: Heading of its scores in the report and in `curate scores`.
        version: Raised when the same picture would give other values: sources are measured again.
        signals: What `measure` gives, by name.
        scores: Scores of a clip, by name: of its own signals, or of any other value of the clip.
        full: The picture of full size that it sees too; None for none.
        pairs: Whether it sees the next picture of full size too.
        batch: Most samples at a time.
        tensors: Whether it sees tensors, on the worker's GPU where it has one, else on the CPU.
        files: Files and folders that it reads, such as weights: it runs in a sandbox, which
            opens no others but Python's packages.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    signals: ClassVar[Mapping[str, Signal]]
    scores: ClassVar[Mapping[str, ScoreSpec]]
    full: ClassVar[Full | None] = None
    pairs: ClassVar[bool] = False
    batch: ClassVar[int] = 1
    tensors: ClassVar[bool] = False
    files: ClassVar[Sequence[str]] = ()

    def setup(self) -> None:  # noqa: B027 - most need none
        """Runs once in a worker, before its first sample: loads models, opens devices."""

    @abstractmethod
    def measure(self, sample: SamplePictures) -> Mapping[str, float]:
        """Values of `signals` for one sample; NaN where one cannot be measured."""

    def measure_batch(self, samples: Sequence[SamplePictures]) -> Sequence[Mapping[str, float]]:
        """Values for each of at most `batch` samples of one source, in order."""
        return [self.measure(sample) for sample in samples]

    def fingerprint(self) -> str:
        """What its stored values depend on."""
        seen = () if self.full is None else (self.full, self.pairs)
        return fingerprint("measure", self.name, self.version, list(self.signals), *seen)
