"""The contract of a measure: what it declares, and what it measures on one picture.

A user's measure is a class in a file of their own. The recipe names it (`measures:
[my_package.sharp:EdgeShare]`), or an installed package offers it as an entry point of
`curate.measures`. Its scores are columns of `clips`, and rules can bound them as any other's.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from curator.fingerprints import fingerprint
from curator.measures.signal_spec import Signal
from curator.measures.spec import ScoreSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePictures:
    """One sample of the grid of 2 a second: the same picture in two sizes, upright.

    Attributes:
        picture_HWC: uint8 RGB, the longer side 640 px or the source's own where that is less.
        small_HWC: The same with 320 px.
        seconds: Time of the sample, from the source's first frame.
    """

    picture_HWC: NDArray[np.uint8]  # noqa: N815 - shape letters
    small_HWC: NDArray[np.uint8]  # noqa: N815
    seconds: float


class Measure(ABC):
    """Signals of a sample, and the scores of a clip that are made of them.

    A worker makes one with no arguments, calls `setup` once and then `measure` for each sample of
    all of its sources, so that nothing of one source may be kept for the next.

    Attributes:
        name: Heading of its scores in the report and in `curate scores`.
        version: Raised when the same picture would give other values: sources are measured again.
        signals: What `measure` gives, by name.
        scores: What a clip has, by name; made of its own signals, or of any of the clip's values.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    signals: ClassVar[Mapping[str, Signal]]
    scores: ClassVar[Mapping[str, ScoreSpec]]

    def setup(self) -> None:  # noqa: B027 - most need none
        """Runs once in a worker, before its first sample: loads models, opens devices."""

    @abstractmethod
    def measure(self, sample: SamplePictures) -> Mapping[str, float]:
        """Values of `signals` for one sample; NaN where one cannot be measured."""

    def fingerprint(self) -> str:
        """What its stored values depend on."""
        return fingerprint("measure", self.name, self.version, list(self.signals))


_registered: tuple[Measure, ...] = ()


def register(measures: Sequence[Measure]) -> None:
    """Sets the measures of this process; `scores.use_measures` checks them before."""
    global _registered
    _registered = tuple(measures)


def registered_measures() -> tuple[Measure, ...]:
    """Users' measures of this process, in the recipe's order."""
    return _registered
