"""The contract of a measure: its declarations, and its values of one picture.

A custom measure is a class in a user's package. The recipe names the class (`measures:
[my_package.sharp:EdgeShare]`), or an installed package offers it as an entry point of
`curate.measures`. Scores of custom measures are columns of `clips`, and rules can bound them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from curator.fingerprints import fingerprint
from curator.measures.clip_view import Aggregate, ClipView, How
from curator.records.sources import Medium

Values = NDArray[np.float64]
PICTURED, OF_TIME = frozenset({Medium.VIDEO, Medium.IMAGE}), frozenset({Medium.VIDEO})
"""Media of scores: of pictures, and of scores that need time or several frames."""
Full = Literal["rgb", "luma"]
"""Full-size pictures: uint8 RGB [H, W, 3], or luma [H, W] from 0 (black) to 255 (white)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """The declaration of a value that a measure gives for each sample.

    Attributes:
        range: Possible values, and the meaning of both ends.
        meaning: The measured property, with method or source.
    """

    unit: str
    range: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSpec:
    """The declaration of a score of clips, with the reasons for clips outside its bounds.

    Attributes:
        range: Possible values, and the meaning of both ends.
        meaning: The property of the clip.
        of: The signal that `aggregate` or `below` turns into the score, or a function that returns
            such values; by default the signal with the score's name. Without `aggregate` and
            `below`, a function that returns the score.
        aggregate: Function that turns values into the score, unless the recipe sets another.
        below: The score is the share of values below this bound, unless the recipe sets another
            bound. The bound has the unit of the values.
        low: Reason for a clip below a lower bound.
        high: Reason for a clip above an upper bound.
        outside: One reason that replaces `low` and `high`.
        needs: Recipe key that must be on for this score; None if the score needs no key.
        cpu_only: Whether the score is missing for sources that a GPU decodes.
        media: Media of clips that have the score. Clips of others have null, and no rule on the
            score rejects them.
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
    media: frozenset[Medium] = PICTURED

    @property
    def how(self) -> How | None:
        """The default aggregate or bound; None if a function returns the score."""
        return self.aggregate if self.below is None else self.below


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePictures:
    """One sample (2 per second): the same upright picture in two sizes or more.

    Attributes:
        picture_HWC: uint8 RGB; the longer side has 640 px, or fewer in a smaller source.
        small_HWC: The same picture with 320 px.
        seconds: Time of the sample, from the source's first frame.
        full: The upright picture in the source's size, in the format `Measure.full`; None without
            `Measure.full`. If the decoder may have skipped the loop filter of the sample's frame,
            because no other frame refers to it, `full` is the first later frame that is filtered.
        full_after: The next filtered frame before the next sample; None without `Measure.pairs`.
        after_s: Time from `full` to `full_after`.

    With `Measure.tensors`, all pictures are torch tensors.
    """

    picture_HWC: NDArray[np.uint8]
    small_HWC: NDArray[np.uint8]
    seconds: float
    full: Any = None
    full_after: Any = None
    after_s: float = 0.0


class Measure(ABC):
    """Computes signals of samples, and declares the scores of clips made of them.

    A worker constructs the measure without arguments, calls `setup` once, then calls
    `measure_batch` with the samples of its sources. Keep no state from one source to the next.

    Attributes:
        name: Heading of the scores in the report and in `curate scores`.
        version: Raise it when the same picture gives other values: sources are measured again.
        signals: Declarations of the values that `measure` returns, by name.
        scores: Scores of a clip, by name, from these signals or from any other value of the clip.
        full: Format of the full-size picture in a sample; None for samples without.
        pairs: Whether a sample also has the next full-size picture.
        batch: Largest number of samples per call of `measure_batch`.
        tensors: Whether pictures are tensors, on the worker's GPU if it has one, or on the CPU.
        files: Files and folders that the measure reads, such as weights. The sandbox allows only
            these files and Python's packages.
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
        """Loads models and opens devices, once per worker, before the first sample."""

    @abstractmethod
    def measure(self, sample: SamplePictures) -> Mapping[str, float]:
        """Returns the values of `signals` for one sample; NaN if a value cannot be measured."""

    def measure_batch(self, samples: Sequence[SamplePictures]) -> Sequence[Mapping[str, float]]:
        """Returns the values of each sample, in order: of one source, at most `batch` samples."""
        return [self.measure(sample) for sample in samples]

    def fingerprint(self) -> str:
        """Returns the fingerprint of the declarations on which stored values depend."""
        seen = () if self.full is None else (self.full, self.pairs)
        return fingerprint("measure", self.name, self.version, list(self.signals), *seen)
