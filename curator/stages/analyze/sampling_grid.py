"""Which frames of a source are samples, and which samples are looked at: by timestamps alone."""

from fractions import Fraction
from typing import NamedTuple

from curator.stages.analyze.config import AnalyzeConfig


def steps_of(config: AnalyzeConfig, seconds: float) -> int:
    """Steps of the sampling grid, whole ones, in a number of seconds."""
    return max(1, round(seconds * config.samples_per_s))


class Role(NamedTuple):
    """What a frame is for the samples."""

    step: int | None = None  # step of the grid that begins with this frame; None if it is no sample
    ends_pair: bool = False  # whether the motion of the sample before it is measured to this frame


class SamplePlan:
    """The grid of samples, from an anchor on, over the frames of one source, given in order."""

    def __init__(
        self, config: AnalyzeConfig, time_base: Fraction, anchor_pts: int, first_pts: int
    ) -> None:
        self.anchor_pts = anchor_pts
        self._ticks = max(1, round(1 / config.samples_per_s / time_base))
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
        return (pts - self.anchor_pts) // self._ticks

    def _after(self, pts: int) -> int:
        return self.anchor_pts + (self.step(pts) + 1) * self._ticks


class LookGrid:
    """Says which steps of the sampling grid, given in order, are looked at: one for so many."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._block: int | None = None

    def is_due(self, step: int) -> bool:
        """Whether there is a look at the next sample."""
        block, is_first = step // self._every, self._block is None
        # A segment may begin within a step, which its neighbour has looked at.
        is_due = step % self._every == 0 if is_first else block != self._block
        self._block = block
        return is_due
