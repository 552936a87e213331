"""Chooses samples among the frames of a source, and looks among the samples, by timestamps."""

from fractions import Fraction
from typing import NamedTuple

from curator.stages.analyze.config import AnalyzeConfig


def steps_of(config: AnalyzeConfig, seconds: float) -> int:
    """Returns the number of steps of the sampling grid in some seconds, rounded, at least 1."""
    return max(1, round(seconds * config.samples_per_s))


class Role(NamedTuple):
    """Role of a frame in sampling."""

    step: int | None = None  # step of the grid, if the frame is a sample
    ends_pair: bool = False  # whether the motion of the sample before it is measured to this frame


class SamplePlan:
    """The sampling grid of one source; steps are counted from `anchor_pts`."""

    def __init__(
        self, config: AnalyzeConfig, time_base: Fraction, anchor_pts: int, first_pts: int
    ) -> None:
        self.anchor_pts = anchor_pts
        self._ticks = max(1, round(1 / config.samples_per_s / time_base))
        self._pair_ticks = max(1, round(config.motion_pair_s / time_base))
        self._next_pts = self._after(first_pts - 1)
        self._pair_pts: int | None = None

    def role(self, pts: int) -> Role:
        """Returns the role of the next frame; frames must come in order."""
        ends_pair = self._pair_pts is not None and pts >= self._pair_pts
        if ends_pair:
            self._pair_pts = None
        if pts < self._next_pts:
            return Role(ends_pair=ends_pair)
        self._next_pts = self._after(pts)
        self._pair_pts = pts + self._pair_ticks
        return Role(step=self.step(pts), ends_pair=ends_pair)

    def step(self, pts: int) -> int:
        """Returns the step of the grid that contains a timestamp."""
        return (pts - self.anchor_pts) // self._ticks

    def _after(self, pts: int) -> int:
        return self.anchor_pts + (self.step(pts) + 1) * self._ticks


class LookGrid:
    """Chooses the samples of looks: the first sample in each block of `every` steps."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._block: int | None = None

    def is_due(self, step: int) -> bool:
        """Returns whether the next sample is a look; samples must come in order."""
        block, is_first = step // self._every, self._block is None
        # A segment may begin within a block, and the previous segment has the look of this block.
        is_due = step % self._every == 0 if is_first else block != self._block
        self._block = block
        return is_due
