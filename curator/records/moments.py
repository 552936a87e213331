"""Moments: the instants at which the clips of all cameras of a group are cut."""

from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from curator.records.time_spans import TimeSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment as one camera shows it.

    Attributes:
        at: Its span in seconds from the source's first frame.
        name: Name of the moment, the same for all cameras; None if this camera cannot be aligned
            there.
        length_s: Its length in common time, the same for all cameras.
        n_cameras: Number of cameras that show it; 0 if this camera cannot be aligned there.
        residual_s: Bound of the error of the common clock in the span, in seconds (95%); None for
            clocks that the manifest gives.
        size: Frames and rate of the window of the recipe; None for other clips.
        output_px: Width and height of the window, if the recipe sets them.
    """

    at: TimeSpan
    length_s: float
    name: str | None
    n_cameras: int
    residual_s: float | None = None
    size: tuple[int, Fraction | None] | None = None
    output_px: tuple[int, int] | None = None

    def columns(self, first_frame_s: float) -> dict[str, Any]:
        """Returns the columns of `records.clips.InMoment`; gets the time of the first frame."""
        return {
            "moment": self.name,
            "moment_cameras": self.n_cameras,
            "moment_offset_s": None if self.name is None else first_frame_s - self.at.start_s,
            "moment_residual_s": self.residual_s,
        }


UNALIGNED = Moment(at=TimeSpan(0.0, 0.0), length_s=0.0, name=None, n_cameras=0)
"""The moment of clips of a source that has no common clock with its group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """What a source is in its group of cameras.

    Attributes:
        moments: The clips to make of it, in order.
        spans: Its spans that are of groups of cameras; clips of its other spans are made as of
            other sources. Empty for the whole source.
        clock: Its clock as JSON, for the column `clock` of `sources`.
        refusal: Why it has no common clock with the others; None if it has.
    """

    moments: tuple[Moment, ...] = ()
    spans: tuple[TimeSpan, ...] = ()
    clock: str
    refusal: str | None = None

    def key(self) -> list[Any]:
        """Returns values that are equal for equal clips."""
        return [
            self.clock,
            self.refusal is None,
            self.spans,
            *(list(asdict(moment).values()) for moment in self.moments),
        ]
