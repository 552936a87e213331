"""Estimates when a run ends, from its speed so far and from what was expected of it.

Analysis and cutting count their work in one unit, the analysis of a second of 1080p. So the speed
of the analysis tells how long the cut will take, as soon as its work can be foreseen. The time
until the first sign of work, in which workers start and load models, counts for no speed.
Other stages take their expected time, corrected by the pace of the run: the time that stages took
so far, divided by their expected time. A plan gives expected times in seconds. Without a plan, the
last run into the same output gives proportions, or else the declarations of the stages do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PLAN_WEIGHT = 0.1
"""Weight of the expected time in the estimate of the current stage, as a share of its work."""
FIRST_SHARE = 0.1
"""Share of a stage's work after which the stage's own speed is used, if nothing is expected."""
PLAN_S = 20.0
"""Weight of the plan in the pace of the run, in seconds, so that a slow start matters less."""
FORESEEN_SHARE = 0.3
"""Share of the work of a stage after which the work that it foresees for later stages counts as
much as a plan or the last run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressStep:
    """What the display shows of a step of the run, as the step's stages declare it.

    Attributes:
        noun: Noun for an item of the step's work.
        time_share: Typical wall time, relative to other steps; 0 if unknown.
        is_before_decisions: Whether clips are kept only so far, because others are still proposed.
    """

    name: str
    noun: str = "item"
    time_share: float = 0.0
    is_before_decisions: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageState:
    """How far the current stage is.

    Attributes:
        name: Name of the stage; None between stages.
        elapsed_s: Seconds since it began.
        done: Finished share of its work; None if unknown.
        reached_s: Seconds after which this share was reached.
        idle_s: Seconds until its first sign of work.
        idle_done: Share of the work at this sign.
    """

    name: str | None
    elapsed_s: float
    done: float | None
    reached_s: float
    idle_s: float = 0.0
    idle_done: float = 0.0

    def whole_s(self, expected_s: float | None) -> float | None:
        """Estimates the total time of the stage, in seconds; None while it is unknown.

        `expected_s` is its expected time after the first sign of work; None if nothing is expected.
        """
        done = self.done or 0.0
        if expected_s is None:
            if done < FIRST_SHARE:
                return None
            if done - self.idle_done < FIRST_SHARE:
                # The first sign of work was the end of a large unit.
                return max(self.elapsed_s, self.reached_s / done)
        elif not done:
            return max(self.elapsed_s, expected_s)
        weight = 0.0 if expected_s is None else PLAN_WEIGHT
        took_s, done = self.reached_s - self.idle_s, done - self.idle_done
        per_share_s = (took_s + weight * (expected_s or 0.0)) / (done + weight)
        return max(self.elapsed_s, self.idle_s + per_share_s * (1 - self.idle_done))


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The expected times of stages.

    Attributes:
        seconds: Stage -> wall time, of all generations together.
        is_planned: Whether these are seconds of a plan; else only their proportions count.
        is_typical: Whether these are typical proportions, which the run's own work replaces.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    is_planned: bool = False
    is_typical: bool = False

    @classmethod
    def typical(cls, steps: Sequence[ProgressStep]) -> "Expected":
        """Returns the typical proportions of steps, for a run without any other estimate."""
        shares = {step.name: step.time_share for step in steps if step.time_share}
        return cls(seconds=shares, is_typical=True)

    def left(
        self,
        ended: Mapping[str, float],
        now: StageState,
        works: Mapping[str, float] | None = None,
        idle_s: Mapping[str, float] | None = None,
        generations: tuple[int, int] = (1, 1),
    ) -> dict[str, float] | None:
        """Returns the remaining seconds by stage; None while they are unknown.

        Args:
            ended: Seconds that finished stages of this generation took.
            now: The current stage.
            works: Work of stages in one unit: of those that ended or run, and as foreseen.
            idle_s: Part of `ended` until the first sign of work.
            generations: Number of this generation and of the last one.
        """
        number, last = generations
        works, idle_s, stage = works or {}, idle_s or {}, now.name
        expected = {name: seconds / last for name, seconds in self.seconds.items()}
        ended = {name: seconds for name, seconds in ended.items() if name in expected}
        rate = _rate(ended, idle_s, works)
        wanted_s = expected.get(stage or "", 0.0)
        own_s = max(0.0, wanted_s - now.idle_s) if self.is_planned else None
        if rate is not None and stage in works:
            own_s = rate * works[stage or ""]
        whole_s = now.whole_s(own_s)
        if whole_s is None:
            # A short stage may not report its share of work, and matters little.
            if wanted_s >= FIRST_SHARE * sum(self.seconds.values()):
                return None
            whole_s = now.elapsed_s
        measured = dict(ended)
        if stage in expected:
            measured[stage] = whole_s
        prior_s = PLAN_S if self.is_planned else 0.0
        wanted_s = sum(expected[name] for name in measured) + prior_s
        if not wanted_s:
            return None
        pace = (sum(measured.values()) + prior_s) / wanted_s
        names = list(expected)
        begun = names[: names.index(stage) + 1] if stage in expected else measured
        later_s = {name: pace * seconds for name, seconds in expected.items()}
        rate = _rate(measured, {**idle_s, stage or "": now.idle_s}, works)
        for name in works.keys() & later_s.keys() - begun if rate is not None else ():
            trust = 1.0 if self.is_typical or stage not in works else _trust(now.done or 0.0)
            later_s[name] = trust * (rate or 0.0) * works[name] + (1 - trust) * later_s[name]
        left = {n: seconds * (last - number + (n not in begun)) for n, seconds in later_s.items()}
        if stage is not None:
            left[stage] = left.get(stage, 0.0) + max(0.0, whole_s - now.elapsed_s)
        return {name: seconds for name, seconds in left.items() if seconds > 0} or None


def _trust(share: float) -> float:
    return share / (share + FORESEEN_SHARE)


def _rate(
    seconds: Mapping[str, float], idle_s: Mapping[str, float], works: Mapping[str, float]
) -> float | None:
    """Returns the seconds that a unit of work took; None if no work is known."""
    names = [name for name in seconds if works.get(name)]
    if not names:
        return None
    return sum(seconds[n] - idle_s.get(n, 0.0) for n in names) / sum(works[n] for n in names)
