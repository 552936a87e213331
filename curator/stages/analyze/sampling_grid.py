"""Which frames of a source are measured as samples, by their timestamps alone."""

from dataclasses import dataclass
from fractions import Fraction

from curator.stages.analyze.config import AnalyzeConfig


@dataclass(frozen=True, slots=True)
class Role:
    """What a frame is for the samples."""

    # Step of the sampling grid that begins with this frame; None if it is no sample.
    step: int | None = None
    ends_pair: bool = False  # whether the motion of the sample before it is measured to this frame


class SamplePlan:
    """The grid of samples over the frames of one source, given in order.

    Args:
        config: Settings with the grid.
        time_base: Seconds per tick.
        anchor_pts: Where the grid begins.
        first_pts: The first frame's timestamp.
    """

    def __init__(
        self, config: AnalyzeConfig, time_base: Fraction, anchor_pts: int, first_pts: int
    ) -> None:
        self.ticks = max(1, round(1 / config.samples_per_s / time_base))
        """From one sample to the next."""
        self.anchor_pts = anchor_pts
        self._pair_ticks = max(1, round(config.motion_pair_s / time_base))
        self._next_pts = self._after(first_pts - 1)
        self._pair_pts: int | None = None

    def role(self, pts: int) -> Role:
        """The role of the next frame."""
        ends_pair = self._pair_pts is not None and pts >= self._pair_pts
        if ends_pair:
            self._pair_pts = None
        if pts < self._next_pts:
            return Role(ends_pair=ends_pair)
        self._next_pts = self._after(pts)
        self._pair_pts = pts + self._pair_ticks
        return Role(step=self.step(pts), ends_pair=ends_pair)

    def step(self, pts: int) -> int:
        """The step of the grid within which a timestamp lies."""
        return (pts - self.anchor_pts) // self.ticks

    def _after(self, pts: int) -> int:
        return self.anchor_pts + (self.step(pts) + 1) * self.ticks
