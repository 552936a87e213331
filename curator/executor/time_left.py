"""Estimates how long a run still takes, by stage.

The time that stages took so far, divided by the time that was expected of them, is the pace of
this run. A plan gives the expected times in seconds. Without a plan, the last run into the same
output or the defaults give proportions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULTS = {
    "analyze": 100.0, "filter": 0.2, "dedup": 4.0, "cluster": 0.1, "select": 0.1, "caption": 0.5,
    "cut": 25.0, "annotate": 0.1, "shard": 1.0, "commit": 2.0,
}  # fmt: skip
"""Proportions of wall time on CPUs with measured captions: benchmarks/results/plan.md."""
PLAN_WEIGHT = 0.1
"""Share of a stage's work that counts as done at the speed of the plan."""
FIRST_SHARE = 0.1
"""Share of a stage's work after which it says how fast it is, without a plan."""
PLAN_S = 20.0
"""Seconds of work that count as done at the speed of the plan: a slow start decides less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What stages are expected to take.

    Attributes:
        seconds: Wall time by stage, of all generations together.
        is_planned: Whether the seconds are meant as such; else as proportions.
    """

    seconds: Mapping[str, float] = field(default_factory=lambda: DEFAULTS)
    is_planned: bool = False

    def left(
        self,
        ended: Mapping[str, float],
        stage: str | None,
        elapsed_s: float,
        done: float | None,
        reached_s: float,
        generations: tuple[int, int] = (1, 1),
    ) -> dict[str, float] | None:
        """Returns the seconds that are left, by stage; None while that is not known.

        Args:
            ended: Seconds that finished stages of this generation took.
            stage: The stage that works.
            elapsed_s: Seconds since it began.
            done: Share of its work that is done; None if unknown.
            reached_s: When it was; units that work since then say nothing yet.
            generations: Number of this generation and of the last one.
        """
        number, last = generations
        expected = {name: seconds / last for name, seconds in self.seconds.items()}
        whole_s = self._whole(expected.get(stage or "", 0.0), elapsed_s, done, reached_s)
        if whole_s is None:
            return None
        measured = {name: seconds for name, seconds in ended.items() if name in expected}
        if stage in expected:
            measured[stage] = whole_s
        wanted_s = sum(expected[name] for name in measured)
        prior_s = PLAN_S if self.is_planned else 0.0
        if not wanted_s + prior_s:
            return None
        pace = (sum(measured.values()) + prior_s) / (wanted_s + prior_s)
        names = list(expected)
        begun = names[: names.index(stage) + 1] if stage in expected else measured
        left = {
            name: pace * seconds * (last - number + (name not in begun))
            for name, seconds in expected.items()
        }
        if stage is not None:
            left[stage] = left.get(stage, 0.0) + max(0.0, whole_s - elapsed_s)
        return {name: seconds for name, seconds in left.items() if seconds > 0}

    def _whole(
        self, expected_s: float, elapsed_s: float, done: float | None, reached_s: float
    ) -> float | None:
        """Returns the seconds of the stage that works, from its beginning to its end."""
        if self.is_planned:
            if not done:
                return max(elapsed_s, expected_s)
            whole_s = (reached_s + PLAN_WEIGHT * expected_s) / (done + PLAN_WEIGHT)
            return max(elapsed_s, whole_s)
        if done is not None and done >= FIRST_SHARE:
            return max(elapsed_s, reached_s / done)
        # A short stage may say nothing of its work, and changes little.
        return None if expected_s >= FIRST_SHARE * sum(self.seconds.values()) else elapsed_s
