"""Rules that tie the entries of a value to frames of its clip.

An axis of an array is `FRAMES`, `per_second(rate)` or `REQUESTED`, or it has nothing to do with
frames. `Windows` says for which windows of a clip there are values at all. All rules depend only on
a declaration and on the clip's length and rate, so readers apply them without an annotator's code.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator.errors import CuratorError

FRAMES = "frames"
"""Axis with one entry per frame of the clip, in order."""
REQUESTED = "requested"
"""Axis with one entry per frame of the annotator's first request; the value's header has their
numbers."""
_PER_SECOND = "per_second:"


class AxisError(CuratorError):
    """An axis or a window is declared wrongly, or a value does not have its length."""


def per_second(rate: float | str | Fraction) -> str:
    """Returns the axis with `rate` entries per second.

    Entry k covers the seconds from k / rate to (k + 1) / rate of the clip, so a clip of s seconds
    has `ceil(s * rate)` entries.

        Array("f32", (per_second(50), 80))
    """
    return f"{_PER_SECOND}{_exact(rate, f'{rate!r} entries per second')}"


def _exact(rate: float | str | Fraction, named: str) -> Fraction:
    try:
        exact = Fraction(str(rate))
    except (ValueError, ZeroDivisionError):
        exact = Fraction(0)
    if exact <= 0:
        raise AxisError(f"{named}; expected a number above 0, as in per_second(25)")
    return exact


class DrawnFrames(NamedTuple):
    """Frames of a clip that a batch has.

    Attributes:
        numbers: Numbers of the frames in the clip, ascending, int64 [T].
        n_frames: Frames of the clip.
        fps: Frames per second of the clip.
        name: Name of the clip in messages.
    """

    numbers: NDArray[np.int64]
    n_frames: int
    fps: Fraction
    name: str


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """The axis of an array that follows the time of its clip.

    Attributes:
        place: Number of the axis in the array.
        rate: Entries per second; None for an entry per frame.
        is_requested: Whether there are entries for some frames only.
    """

    place: int
    rate: Fraction | None = None
    is_requested: bool = False

    @classmethod
    def of(cls, axes: Sequence[str | int]) -> "TimeAxis | None":
        """Returns the axis of time among the axes of an array, or None.

        Raises:
            AxisError: There are several, or a rate is no number.
        """
        found = []
        for place, axis in enumerate(axes):
            if axis == FRAMES:
                found.append(cls(place))
            elif axis == REQUESTED:
                found.append(cls(place, is_requested=True))
            elif isinstance(axis, str) and axis.startswith(_PER_SECOND):
                rate = axis.removeprefix(_PER_SECOND)
                found.append(cls(place, rate=_exact(rate, f"axis {axis!r}")))
        if len(found) > 1:
            raise AxisError(f"axes {list(axes)}; expected at most one axis of time")
        return found[0] if found else None

    def check(self, shape: Sequence[int], n_frames: int, fps: Fraction, n_requested: int) -> None:
        """Raises `AxisError` if an array does not have the length that its clip gives.

        `n_requested` is the number of frames that its header names.
        """
        length = shape[self.place]
        if self.is_requested:
            expected, why = n_requested, "one entry for each frame that was requested"
        elif self.rate is None:
            expected, why = n_frames, "one entry for each frame of the clip"
        else:
            seconds = n_frames / fps
            expected = ceil(seconds * self.rate)
            why = f"{self.rate} entries per second for {float(seconds):g} s"
        if length != expected:
            of = "entries" if self.rate is not None or self.is_requested else "frames"
            raise AxisError(f"a value of {length} {of}; expected {expected}, {why}")

    def entries(self, drawn: DrawnFrames, requested: Sequence[int] = ()) -> NDArray[np.int64]:
        """Returns the numbers of the entries that belong to the frames of a batch.

        `requested` are the frames that the value's header names.
        """
        numbers = drawn.numbers
        if self.is_requested:
            frames = np.asarray(requested, np.int64)
            inside = (frames >= numbers[0]) & (frames <= numbers[-1])
            return np.flatnonzero(inside)
        if self.rate is None:
            return numbers
        begin = Fraction(int(numbers[0])) / drawn.fps
        # Windows of equally many frames have equally many entries, wherever they begin.
        span = Fraction(int(numbers[-1]) + 1 - int(numbers[0])) / drawn.fps
        first = floor(begin * self.rate)
        return np.arange(first, first + ceil(span * self.rate))


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a clip for which an annotator computes values.

        windows = Windows(frames=17, every=34, most=4)

    Attributes:
        frames: Frames of a window.
        every: Distance between the starts of windows, in frames; None lets each window begin where
            the last one ends.
        most: Maximum number of windows of a clip, spread evenly over it; None for no maximum.
        stride: A window takes every `stride`-th frame.
    """

    frames: int
    every: int | None = None
    most: int | None = None
    stride: int = 1

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            is_given = value is not None or name in ("frames", "stride")
            if is_given and not (isinstance(value, int) and value >= 1):
                raise AxisError(f"windows: {name} {value!r}; expected a whole number from 1")

    @property
    def span(self) -> int:
        """Frames from the first to the last frame of a window, with those that are left out."""
        return (self.frames - 1) * self.stride + 1

    def starts(self, n_frames: int) -> tuple[int, ...]:
        """Returns the numbers of the first frames; none for a clip shorter than a window."""
        possible = range(0, n_frames - self.span + 1, self.every or self.span)
        if self.most is None or len(possible) <= self.most:
            return tuple(possible)
        if self.most == 1:
            return (possible[(len(possible) - 1) // 2],)
        last = len(possible) - 1
        return tuple(possible[i * last // (self.most - 1)] for i in range(self.most))

    def numbers(self, start: int) -> tuple[int, ...]:
        """Returns the numbers of the frames of a window."""
        return tuple(range(start, start + self.span, self.stride))

    def to_json(self) -> dict[str, Any]:
        """Returns the rule for JSON."""
        return asdict(self)
