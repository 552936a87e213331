"""Finds one clock for several cameras of one event, from what they saw and heard.

Each pair of sources has a lag and a drift (`clock_evidence`). Pairs that pass its tests join
sources to a group; the clocks of a group are the least squares of its pairs. A source whose
pairs contradict each other, or that no pair joins, is refused.

A source that lost frames without a trace in its timestamps shows as a step of the lag. The sign
tells which source it was: a clock only falls behind.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations

import numpy as np

from curator.matching.clock_evidence import LEAST_OVERLAP_S, LagEvidence, LagStep, lag_evidence
from curator.matching.clock_series import ClockSeries, Floats

LEAST_RATIO = 1.35
"""Least evidence of a lag, relative to the best one of any other lag."""
LEAST_STAYS = 0.75
"""Least share of draws of the overlap in which the lag is the same."""
LEAST_PEAK = 4.5
"""Least evidence of a lag, in standard deviations."""
_STEPS_RATIO = 1.1
"""Least ratio of a pair of which steps are believed: its parts are weaker than the whole."""
_FRAMES = 0.5
"""Largest error of a lag, in frames of the slower source."""
_ROUNDS = 3
_CERTAIN = 2.0
"""Standard deviations of a residual."""
_EXTENDED_S = 1.0
"""Seconds before and after its support for which a lag still counts."""
_DRIFT_FLOOR = 3e-6


class ClockReason(StrEnum):
    """Why a source has no common clock."""

    NO_SERIES = "no_common_series"
    """The sources overlap too little, or have no series that varies in both."""
    NO_EVIDENCE = "no_common_content"
    """No lag has more evidence than impossible lags have."""
    AMBIGUOUS = "ambiguous"
    """Several lags are about as likely, as of regular motion."""
    UNSTABLE = "unstable"
    """The lag depends on few moments."""
    IMPRECISE = "imprecise"
    """The lag is not known within half a frame."""
    UNSTEADY = "unsteady"
    """The lag steps, and lost frames of one source do not explain it."""
    CONTRADICTION = "contradiction"
    """Pairs of a group contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRefusal:
    """A pair of sources that cannot be aligned.

    Attributes:
        reason: Why.
        pair: The source, and the one that was nearest to being aligned with it.
        value: What was measured.
        bound: What it had to reach, or must not exceed.
    """

    reason: ClockReason
    pair: tuple[str, str]
    value: float
    bound: float

    def __str__(self) -> str:
        """Names the pair and the number."""
        a, b = self.pair
        told = {
            ClockReason.NO_SERIES: "common seconds with a varying series",
            ClockReason.NO_EVIDENCE: "evidence relative to impossible lags",
            ClockReason.AMBIGUOUS: "evidence relative to another lag",
            ClockReason.UNSTABLE: "share of draws with the same lag",
            ClockReason.IMPRECISE: "seconds of error",
            ClockReason.UNSTEADY: "seconds by which the lag steps",
            ClockReason.CONTRADICTION: "seconds of contradiction",
        }[self.reason]
        return (
            f"{a} and {b} have no common clock, {self.reason}: {told} {self.value:.3g}, "
            f"expected {self.bound:.3g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LostFrames:
    """Frames that are missing without a trace in the timestamps.

    `lost_s` seconds are missing at `at_s` by the source's clock, or at any time in
    `[first_s, last_s]`.
    """

    at_s: float
    lost_s: float
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Maps times of a source, in seconds from its first frame, to the group's common time.

    With the seconds of `lost` inserted, the source's time is
    `common + offset_s + drift * (common - middle_s)`.
    """

    offset_s: float
    drift: float
    middle_s: float
    offset_error_s: float
    drift_error: float
    spans: tuple[tuple[float, float], ...]
    """Spans of source time in which content supports the clock; they may overlap."""
    lost: tuple[LostFrames, ...] = ()

    def common_s(self, source_s: Floats) -> Floats:
        """Returns the common time of source times; works for any shape."""
        whole_s = source_s + _lost_before(self.lost, np.asarray(source_s))
        shifted_s = whole_s - self.offset_s + self.drift * self.middle_s
        return np.asarray(shifted_s / (1 + self.drift))

    def source_s(self, common_s: Floats) -> Floats:
        """Returns the source time of common times; of lost frames, that of the loss."""
        common_s = np.asarray(common_s, np.float64)
        whole_s = common_s + self.offset_s + self.drift * (common_s - self.middle_s)
        return _without_losses(self.lost, whole_s)

    def residual_at(self, start_s: float, end_s: float) -> float:
        """Returns the bound of the error in a span of source time, in seconds (95%).

        Infinite where content does not support the clock, and near a loss of frames, whose moment
        is known to a few seconds only.
        """
        if not any(
            first - _EXTENDED_S <= start_s and end_s <= last + _EXTENDED_S
            for first, last in self.spans
        ):
            return math.inf
        if any(start_s < loss.last_s and end_s > loss.first_s for loss in self.lost):
            return math.inf
        common = self.common_s(np.array([start_s, end_s]))
        reach_s = float(np.abs(common - self.middle_s).max())
        return _CERTAIN * math.hypot(self.offset_error_s, self.drift_error * reach_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupClock:
    """Clocks of the sources that have a common one, and refusals of the others."""

    clocks: Mapping[str, Clock]
    refusals: Mapping[str, ClockRefusal]
    pairs: Mapping[tuple[str, str], LagEvidence]
    """What was found for each pair that could be compared."""

    def residual_at(self, start_s: float, end_s: float, sources: Collection[str]) -> float:
        """Returns the bound of the error between any two sources in a span of common time (95%).

        Args:
            start_s: Begin of the span by the common clock.
            end_s: Its end.
            sources: Sources with a clock that have the span.

        Returns:
            Seconds; infinite as in `Clock.residual_at`.

        Raises:
            KeyError: A source has no clock.
        """
        span = np.array([start_s, end_s])
        each = sorted(
            self.clocks[name].residual_at(*self.clocks[name].source_s(span).tolist())
            for name in sources
        )
        return math.hypot(*each[-2:])


def common_clock(
    sources: Mapping[str, ClockSeries],
    *,
    start_s: Mapping[str, float] | None = None,
    max_offset_s: float = 2.0,
    max_drift_ppm: float = 100.0,
) -> GroupClock:
    """Returns one clock for the sources of a group.

    Args:
        sources: Series by source, of `clock_series`; at least two. The result depends on neither
            their order nor anything random.
        start_s: Nominal time at which each source begins, by any one clock, such as timecodes; the
            same for all by default.
        max_offset_s: Largest deviation of two sources from their nominal times.
        max_drift_ppm: Largest difference of the rates of two clocks, in millionths.

    Raises:
        ValueError: Fewer than two sources.
    """
    if len(sources) < 2:
        raise ValueError(f"a common clock needs at least two sources, not {len(sources)}")
    names = sorted(sources)
    starts = dict.fromkeys(names, 0.0) if start_s is None else start_s
    losses: dict[str, list[LostFrames]] = {name: [] for name in names}
    whole = {name: sources[name] for name in names}
    found: dict[tuple[str, str], LagEvidence] = {}
    stale = set(names)
    for _ in range(_ROUNDS):
        for a, b in combinations(names, 2):
            if a not in stale and b not in stale:
                continue
            pair = lag_evidence(
                whole[a], whole[b], start_s=(starts[a], starts[b]), max_offset_s=max_offset_s,
                max_drift=max_drift_ppm * 1e-6,
            )  # fmt: skip
            if pair is not None:
                found[a, b] = pair
        stale = _add_losses(losses, found, {n: sources[n].frame_s for n in names})
        if not stale:
            break
        for name in stale:
            whole[name] = sources[name].with_losses([(of.at_s, of.lost_s) for of in losses[name]])
    frame_s = {name: sources[name].frame_s for name in names}
    return _joined(names, found, frame_s, losses)


def _add_losses(
    losses: dict[str, list[LostFrames]],
    found: Mapping[tuple[str, str], LagEvidence],
    frame_s: Mapping[str, float],
) -> set[str]:
    """Adds the lost frames of each source, by its surest pair; returns sources with new ones."""
    added: set[str] = set()
    believed = {
        p: pair
        for p, pair in found.items()
        if pair.ratio >= _STEPS_RATIO and pair.peak >= LEAST_PEAK
    }
    for name in losses:
        own = [p for p in believed if name in p]
        if not own:
            continue
        surest = max(own, key=lambda p: believed[p].ratio)
        pair, is_b = believed[surest], name == surest[1]
        # The lag is `time_b - time_a`: it shrinks if b loses time.
        steps = [step for step in pair.steps if (step.step_s < 0) == is_b]
        known = list(losses[name])
        new = [_loss(step, pair.lag_s if is_b else 0.0, frame_s[name]) for step in steps]
        if new:
            moved = [_by_source(loss, known) for loss in new]
            losses[name] = sorted([*known, *moved], key=lambda loss: loss.at_s)
            added.add(name)
    return added


def _loss(step: LagStep, later_s: float, frame_s: float) -> LostFrames:
    """Returns the loss of a source whose clock is `later_s` ahead; whole frames are lost."""
    return LostFrames(
        at_s=step.at_s + later_s, lost_s=max(1, round(abs(step.step_s) / frame_s)) * frame_s,
        first_s=step.first_s + later_s, last_s=step.last_s + later_s,
    )  # fmt: skip


def _by_source(loss: LostFrames, known: Sequence[LostFrames]) -> LostFrames:
    """Returns a loss of which the times had the known losses inserted."""
    whole_s = np.array([loss.at_s, loss.first_s, loss.last_s])
    at_s, first_s, last_s = _without_losses(known, whole_s).tolist()
    return replace(loss, at_s=at_s, first_s=first_s, last_s=last_s)


def _lost_before(lost: Sequence[LostFrames], source_s: Floats) -> Floats:
    """Returns the seconds that a source lost up to its times."""
    at_s = np.array([loss.at_s for loss in lost])
    total_s = np.concatenate([[0.0], np.cumsum([loss.lost_s for loss in lost])])
    return np.asarray(total_s[np.searchsorted(at_s, source_s, side="right")])


def _without_losses(lost: Sequence[LostFrames], whole_s: Floats) -> Floats:
    """Returns the times of a source for times in which lost ones are inserted."""
    source_s = np.array(whole_s, np.float64)
    for loss in lost:
        is_after = source_s > loss.at_s
        source_s = np.where(is_after, np.maximum(loss.at_s, source_s - loss.lost_s), source_s)
    return source_s


def _refusal(
    pair: LagEvidence | None, names: tuple[str, str], frame_s: Mapping[str, float]
) -> ClockRefusal | None:
    """Returns why a pair does not join its sources; None if it does."""
    if pair is None:
        reason, value, bound = ClockReason.NO_SERIES, 0.0, LEAST_OVERLAP_S
        return ClockRefusal(reason=reason, pair=names, value=value, bound=bound)
    over_impossible = pair.peak / max(pair.impossible, 1e-9)
    over_second = pair.peak / max(pair.second, 1e-9)
    most_s = _FRAMES * max(frame_s[name] for name in names)
    error_s = _CERTAIN * pair.lag_error_s
    for reason, value, bound in (
        (ClockReason.NO_EVIDENCE, pair.peak / LEAST_PEAK * LEAST_RATIO, LEAST_RATIO),
        (ClockReason.NO_EVIDENCE, over_impossible, LEAST_RATIO),
        (ClockReason.AMBIGUOUS, over_second, LEAST_RATIO),
        (ClockReason.UNSTABLE, pair.stays, LEAST_STAYS),
        (ClockReason.IMPRECISE, -error_s, -most_s),
        (ClockReason.UNSTEADY, -max((abs(s.step_s) for s in pair.steps), default=0.0), 0.0),
    ):
        if value < bound:
            return ClockRefusal(reason=reason, pair=names, value=abs(value), bound=abs(bound))
    return None


def _joined(
    names: Sequence[str],
    found: Mapping[tuple[str, str], LagEvidence],
    frame_s: Mapping[str, float],
    losses: Mapping[str, Sequence[LostFrames]],
) -> GroupClock:
    refusals = {p: _refusal(found.get(p), p, frame_s) for p in combinations(names, 2)}
    joins = {p: found[p] for p, refusal in refusals.items() if refusal is None}
    refused: dict[str, ClockRefusal] = {}
    while True:
        group = _largest(names, joins)
        if len(group) < 2:
            group = []
            break
        own = {p: pair for p, pair in joins.items() if p[0] in group}
        solution, worst, misfit_s = _solved(group, own)
        most_s = _FRAMES * max(frame_s[name] for name in worst)
        if misfit_s <= most_s:
            break
        # Of the two, the one that the rest of the group supports less.
        weight = {n: sum(pair.peak for p, pair in own.items() if n in p) for n in worst}
        out = min(worst, key=lambda name: weight[name])
        refused[out] = ClockRefusal(
            reason=ClockReason.CONTRADICTION, pair=worst, value=misfit_s, bound=most_s
        )
        joins = {p: pair for p, pair in joins.items() if out not in p}
    clocks = {}
    if group:
        for name in group:
            offset_s, drift, offset_error_s, drift_error, middle_s = solution[name]
            lost = tuple(losses[name])
            spans = _without_losses(lost, np.array(_spans(name, own))).tolist()
            clocks[name] = Clock(
                offset_s=offset_s,
                drift=drift,
                middle_s=middle_s,
                offset_error_s=offset_error_s,
                drift_error=drift_error,
                spans=tuple((first, last) for first, last in spans),
                lost=lost,
            )
    for name in names:
        if name not in clocks and name not in refused:
            refused[name] = _nearest(name, refusals, found)
    return GroupClock(clocks=clocks, refusals=refused, pairs=dict(found))


def _largest(names: Sequence[str], joins: Mapping[tuple[str, str], LagEvidence]) -> list[str]:
    """Returns the largest set of joined sources; of equal ones, that with more evidence."""
    group_of = {name: {name} for name in names}
    for a, b in joins:
        if group_of[a] is not group_of[b]:
            group_of[a] |= group_of[b]
            for name in group_of[b]:
                group_of[name] = group_of[a]

    def weight(name: str) -> tuple[int, float]:
        group = group_of[name]
        return len(group), sum(pair.peak for p, pair in joins.items() if p[0] in group)

    return sorted(group_of[max(names, key=weight)])


_Solution = Mapping[str, tuple[float, float, float, float, float]]


def _solved(
    group: Sequence[str], joins: Mapping[tuple[str, str], LagEvidence]
) -> tuple[_Solution, tuple[str, str], float]:
    """Returns the least squares of the pairs of a group, by its first source's clock.

    Returns:
        Per source its offset, drift, their errors and the middle of all overlaps; the pair that
        fits worst, and by how many seconds.
    """
    place = {name: 2 * (number - 1) for number, name in enumerate(group)}
    n = 2 * (len(group) - 1)
    middle_s = float(np.mean([pair.middle_s for pair in joins.values()]))
    rows, values = [], []
    for (a, b), pair in joins.items():
        lag, drift = np.zeros(n), np.zeros(n)
        for name, sign in ((b, 1.0), (a, -1.0)):
            if place[name] >= 0:
                lag[place[name]], drift[place[name] + 1] = sign, sign
                lag[place[name] + 1] = sign * (pair.middle_s - middle_s)
        error = math.hypot(pair.drift_error, _DRIFT_FLOOR)
        rows += [lag / pair.lag_error_s, drift / error]
        values += [pair.lag_s / pair.lag_error_s, pair.drift / error]
    design, wanted = np.stack(rows), np.array(values)
    # Millionths keep the normal equations well conditioned.
    unit = np.tile([1.0, 1e-6], n // 2)
    normal = np.linalg.inv((design * unit).T @ (design * unit))
    answer = unit * (normal @ ((design * unit).T @ wanted))
    errors = unit * np.sqrt(np.diag(normal))
    misfit = np.abs(design @ answer - wanted)[::2] * [p.lag_error_s for p in joins.values()]
    worst = int(np.argmax(misfit))
    solution = {group[0]: (0.0, 0.0, 0.0, 0.0, middle_s)}
    for name in group[1:]:
        at = place[name]
        solution[name] = (float(answer[at]), float(answer[at + 1]), float(errors[at]),
                          float(errors[at + 1]), middle_s)  # fmt: skip
    return solution, list(joins)[worst], float(misfit[worst])


def _spans(name: str, joins: Mapping[tuple[str, str], LagEvidence]) -> list[tuple[float, float]]:
    """Returns spans in which a pair supports the clock of a source, losses inserted."""
    spans = []
    for (a, b), pair in joins.items():
        if name in (a, b):
            later_s = 0.0 if name == a else pair.lag_s
            spans += [(first + later_s, last + later_s) for first, last in pair.spans]
    return sorted(spans)


def _nearest(
    name: str,
    refusals: Mapping[tuple[str, str], ClockRefusal | None],
    found: Mapping[tuple[str, str], LagEvidence],
) -> ClockRefusal:
    """Returns the refusal of the pair that was nearest to joining a source."""
    own = [(p, refusal) for p, refusal in refusals.items() if name in p and refusal is not None]
    ratio = {p: found[p].ratio if p in found else -1.0 for p, _ in own}
    return max(own, key=lambda each: ratio[each[0]])[1]
