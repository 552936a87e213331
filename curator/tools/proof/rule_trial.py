"""Measures what a rule does to a tokenizer: training on kept, on random, and on rejected clips.

Sources are split into three parts, several times. Tokenizers learn from clips of two parts, and the
clips of the third part evaluate them, so no recording is on both sides. All training sets of a rule
have the same number of clips.

*Null controls* are random rules: the decisions of the rule, shuffled within each source, and laid
over the clips with the sources in another order. So a control keeps as many clips, and where
the rule keeps or rejects whole recordings, the control does so, too. Controls repeat everything:
sets, training, evaluation. The effect is the gain of the rule minus the mean gain of the controls.
The interval is that of one more control around it, by Student's t: it covers the draw of clips,
recordings and parts.

Shape letters: N clips, D coefficients of a patch, S parts of sources (splits), C null controls.
"""
# ruff: noqa: N815 - shape letters

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import numpy as np
from numpy.typing import NDArray

from curator.errors import UsageError
from curator.tools.proof.patch_tokenizer import gain_db, losses, train

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

CONFIDENCE = 0.99
"""Of the interval that decides. A rule without effect then gets a verdict in 1 of 100 proofs."""
PARTS, REPEATS = 3, 2
"""Parts of the sources, each held out once, and how often the sources are split anew."""
CONTROLS, LEAST_CONTROLS = 40, 12
LEAST_CLIPS, LEAST_SOURCES = 20, 6
"""Least kept and rejected clips, and least sources of either, for a proof."""
WIDEST_DB = 1.0
"""Half of the widest interval that may say `no effect`; a wider one says `too few clips`."""


_TRIES = 50
_CLUSTERED = (
    "the sources cannot be divided so that each part has kept and rejected clips: too few sources "
    "have clips of both kinds; prove the rule on an output of more sources"
)


class Verdict(StrEnum):
    """What a proof says about a rule. Public: in `proofs/` and in the output of the command."""

    HELPS = "helps"
    NO_EFFECT = "no effect"
    HARMS = "harms"
    TOO_FEW = "too few clips"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialClips:
    """The clips of a trial, in the order of their sources and times.

    Attributes:
        moments_NDD: Second moments of their patches, float32 (`patch_tokenizer.moments_of`).
        is_kept: Whether the rule keeps each clip, bool [N].
        sources: Number of each clip's source, int64 [N]; equal numbers are adjacent.
    """

    moments_NDD: NDArray[np.float32]
    is_kept: Mask
    sources: NDArray[np.int64]

    def counts(self, *, kept: bool) -> tuple[int, int]:
        """Returns the number of kept or rejected clips, and of their sources."""
        own = self.is_kept == kept
        return int(own.sum()), len(np.unique(self.sources[own]))

    def lacks(self) -> str | None:
        """Says what the trial has too little of, and what it needs; None if it has enough."""
        for kept, word in ((True, "kept"), (False, "rejected")):
            n_clips, n_sources = self.counts(kept=kept)
            if n_clips < LEAST_CLIPS or n_sources < LEAST_SOURCES:
                return (
                    f"{n_clips} {word} clips of {n_sources} sources; a verdict needs "
                    f"{LEAST_CLIPS} of {LEAST_SOURCES} sources"
                )
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A difference in dB, and the ends of its interval."""

    db: float
    low_db: float
    high_db: float

    @classmethod
    def of(cls, observed_db: float, controls_db: Floats) -> "Effect":
        """Compares the gain of a rule with the gains of null controls, float64 [C]."""
        n = len(controls_db)
        middle = observed_db - float(controls_db.mean())
        spread = float(controls_db.std(ddof=1)) * np.sqrt(1 + 1 / n)
        half = t_quantile(0.5 + CONFIDENCE / 2, n - 1) * spread
        return cls(db=middle, low_db=float(middle - half), high_db=float(middle + half))

    @property
    def half_db(self) -> float:
        """Half of the width of the interval."""
        return (self.high_db - self.low_db) / 2

    def verdict(self) -> Verdict:
        """Returns what the interval says."""
        if self.low_db > 0:
            return Verdict.HELPS
        if self.high_db < 0:
            return Verdict.HARMS
        return Verdict.NO_EFFECT if self.half_db <= WIDEST_DB else Verdict.TOO_FEW

    def clips_needed(self, n_clips: int) -> int:
        """Returns about how many clips would make the interval narrow enough for a verdict."""
        return int(np.ceil(n_clips * max(1.0, self.half_db / WIDEST_DB) ** 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The results of a trial; differences of fidelity, in dB.

    Attributes:
        on_kept: Training on kept in place of rejected clips, evaluated on kept clips.
        over_random: Training on kept in place of random clips, evaluated on kept clips.
        on_rejected: Training on kept in place of rejected clips, evaluated on rejected clips.
        controls_db: The first difference of each null control, float64 [C].
    """

    on_kept: Effect
    over_random: Effect
    on_rejected: Effect
    controls_db: Floats


def run_trial(
    clips: TrialClips,
    *,
    seed: int = 0,
    n_controls: int = CONTROLS,
    ends_s: float | None = None,
    on_step: Callable[[int, int], None] = lambda done, of: None,
) -> Trial:
    """Measures the effect of a rule.

    Args:
        clips: Clips for which `lacks` is None.
        seed: Seeds the splits, the draws and the controls; the result depends on nothing else.
        n_controls: Number of null controls.
        ends_s: Time of `time.monotonic` after which no control begins, but for the least number.
        on_step: Called with the number of finished rules, the rule and its controls, and of all.
    """
    splits = _splits(clips, seed)
    rng = np.random.default_rng([seed, 1])

    def gains_of(is_kept: Mask) -> Floats:
        mean: Floats = np.array([split.gains(is_kept) for split in splits]).mean(axis=0)
        return mean

    gains = [gains_of(clips.is_kept)]
    on_step(1, n_controls + 1)
    for _ in range(_TRIES * n_controls):
        is_late = ends_s is not None and time.monotonic() > ends_s
        if len(gains) > (min(LEAST_CONTROLS, n_controls) if is_late else n_controls):
            break
        is_kept = null_rule(clips, rng)
        if all(split.is_usable(is_kept) for split in splits):
            gains.append(gains_of(is_kept))
            on_step(len(gains), n_controls + 1)
    if len(gains) <= min(LEAST_CONTROLS, n_controls):
        raise UsageError(_CLUSTERED)
    observed, controls = gains[0], np.array(gains[1:])
    effects = [Effect.of(float(observed[k]), controls[:, k]) for k in range(3)]
    return Trial(
        on_kept=effects[0],
        over_random=effects[1],
        on_rejected=effects[2],
        controls_db=controls[:, 0],
    )


def null_rule(clips: TrialClips, rng: np.random.Generator) -> Mask:
    """Returns the decisions of a null control, bool [N].

    The decisions about a source stay together, in a random order: a rule that rejects the first
    clip of each source would otherwise be its own control.
    """
    places = [np.flatnonzero(clips.sources == number) for number in np.unique(clips.sources)]
    decisions = [rng.permutation(clips.is_kept[own]) for own in places]
    order = np.concatenate([places[k] for k in rng.permutation(len(places))])
    is_kept = np.empty_like(clips.is_kept)
    is_kept[order] = np.roll(np.concatenate(decisions), rng.integers(len(order)))
    return is_kept


class _Split:
    """Sources to train on, and sources to evaluate on."""

    def __init__(self, clips: TrialClips, is_held_out: Mask, rng: np.random.Generator) -> None:
        self._moments, self._held_out = clips.moments_NDD, np.flatnonzero(is_held_out)
        # One order for all rules: their sets share as many clips as they can, which adds no noise.
        self._order = rng.permutation(np.flatnonzero(~is_held_out))
        self._of_random: dict[int, NDArray[np.float32]] = {}

    def is_usable(self, is_kept: Mask) -> bool:
        """Returns whether both sides have kept and rejected clips."""
        sides = (is_kept[self._order], is_kept[self._held_out])
        return all(side.any() and not side.all() for side in sides)

    def gains(self, is_kept: Mask) -> tuple[float, float, float]:
        """Returns the differences of `Trial` in their order, for any rule."""
        is_own = is_kept[self._order]
        kept, rejected = self._order[is_own], self._order[~is_own]
        n = min(len(kept), len(rejected))
        of_kept, of_rejected = self._trained(kept[:n]), self._trained(rejected[:n])
        if n not in self._of_random:
            self._of_random[n] = self._trained(self._order[:n])
        is_own = is_kept[self._held_out]
        on_kept, on_rejected = (self._mean(self._held_out[own]) for own in (is_own, ~is_own))
        best = losses(of_kept, on_kept)
        return (
            gain_db(best, losses(of_rejected, on_kept)),
            gain_db(best, losses(self._of_random[n], on_kept)),
            gain_db(losses(of_kept, on_rejected), losses(of_rejected, on_rejected)),
        )

    def _trained(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return train(self._mean(rows))

    def _mean(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Returns the mean moments of clips, float32 [D, D]."""
        shares = np.bincount(rows, minlength=len(self._moments)).astype(np.float32) / len(rows)
        return np.asarray(np.tensordot(shares, self._moments, axes=1), np.float32)


def _splits(clips: TrialClips, seed: int) -> list[_Split]:
    """Returns splits that hold out each source once per repeat, all usable for the rule."""
    rng = np.random.default_rng([seed, 0])
    numbers, splits = np.unique(clips.sources), list[_Split]()
    for _ in range(_TRIES * REPEATS):
        parts = np.array_split(rng.permutation(numbers), PARTS)
        drawn = [_Split(clips, np.isin(clips.sources, part), rng) for part in parts]
        if all(split.is_usable(clips.is_kept) for split in drawn):
            splits += drawn
        if len(splits) == PARTS * REPEATS:
            return splits
    raise UsageError(_CLUSTERED)


@cache
def t_quantile(probability: float, n_free: int) -> float:
    """Returns a quantile, of a probability from 0.5, of Student's t with `n_free` degrees."""
    log_scale = math.lgamma((n_free + 1) / 2) - math.lgamma(n_free / 2)
    scale = math.exp(log_scale) / math.sqrt(n_free * math.pi)
    at = np.linspace(0, 100, 200_001)
    density = scale * (1 + at**2 / n_free) ** (-(n_free + 1) / 2)
    below = 0.5 + np.append(0, np.cumsum((density[1:] + density[:-1]) / 2)) * (at[1] - at[0])
    return float(np.interp(probability, below, at))
