"""Extrapolates from a sample to a corpus: ratio estimates by group, with 90% intervals.

Sources are divided into strata by codec, size and length. Each stratum is sampled in proportion to
its seconds of video, in the order of hashes of source ids. Neighbouring strata with few sampled
sources are joined into groups, and each group is extrapolated separately.

A quantity of a source, such as the CPU-seconds of its decoding, is about proportional to a value
from its header, such as its pixels. The ratio in a group's sample is applied to the other sources
of the group. The spread around this ratio gives the interval.
"""

import math
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from curator.fingerprints import fingerprint
from curator.records.sources import FULL_HD, SourceRef

Floats = NDArray[np.float64]

SIZES_PX, LENGTHS_S = (480 * 854, 720 * 1280, 1080 * 1920), (10.0, 60.0, 600.0)
LEAST_IN_GROUP = 4
"""Fewest sampled sources of a group. With fewer, the spread between sources is unknown."""
DRAWS, MANY_SOURCES = 64, 2000
"""Number of drawn samples. The sample whose means are nearest to the corpus is used. For more than
`MANY_SOURCES`, one draw suffices."""
SAMPLE_SHARE, SAMPLE_S, MOST_SHARE = 0.01, 1200.0, 0.15
"""The sample has this share of the video or these seconds, whichever is more, but not more than the
last share: the plan of a small corpus would cost as much as its run."""
NORMAL = 1.645
"""Quantile of the normal distribution for a two-sided interval of 90%."""
USUAL_SOURCES = 6
"""Weight of the usual spread, in sources, when it is averaged with the sample's spread."""
ANALYSIS_DIFFERS, CUT_DIFFERS, CLIPS_DIFFER = 0.15, 0.7, 0.6
"""Usual relative spread between sources. Source: benchmarks/results/plan.md."""
H264_ENCODED = 0.4
"""Share of H.264 clips that are encoded although clips may be copied. Same source."""
NOISE = 0.05
"""Relative standard deviation of CPU-seconds between two equal runs. Same source."""
CODEC_COST = {"vp9": 1.1, "av1": 1.5, "mpeg4": 0.4, "mpeg2video": 0.4}
"""Cost of decoding a pixel, relative to H.264; 1 for other codecs. Same source."""
PIXEL_SHARE = {"decode": 0.9, "scale": 0.9, "measure": 0.6, "overlay": 0.3, "scenes": 0.3}
"""Share of the cost of a 1080p frame that grows with pixels. The rest is constant per frame."""


Estimate = dict[str, float]
"""A `value`, and the ends `low` and `high` of its 90% interval."""


def estimate(value: float, deviation: float) -> Estimate:
    """Returns an estimate with a symmetric interval; negative numbers become 0."""
    ends = {"value": value, "low": value - deviation, "high": value + deviation}
    return {name: max(0.0, end) for name, end in ends.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSample:
    """The sources of a corpus, ordered by stratum, and the sampled sources.

    Attributes:
        sources: All sources; sources with equal content count once.
        seconds: Seconds of video from headers, float64 [N]; estimated from bytes if unknown.
        chosen: Indices of the sampled sources, int64 [S].
        group: Index of each source's group, int64 [N].
    """

    sources: Sequence[SourceRef]
    seconds: Floats
    chosen: NDArray[np.int64]
    group: NDArray[np.int64]

    @property
    def uris(self) -> list[str]:
        """URIs of the sampled sources."""
        return [self.sources[number].uri for number in self.chosen.tolist()]

    @property
    def share(self) -> float:
        """The share of the video that is sampled."""
        return float(self.seconds[self.chosen].sum() / self.seconds.sum())


def choose_sample(sources: Sequence[SourceRef], sample_s: float | None, seed: int) -> PlanSample:
    """Chooses sources with about `sample_s` seconds of video; None for the default."""
    rates = [s.n_bytes / s.header_duration_s for s in sources if s.header_duration_s]
    rate = max(1.0, float(np.median(rates)) if rates else 1e6)
    seconds = [max(1e-3, s.header_duration_s or s.n_bytes / rate) for s in sources]
    wanted_s = sample_s or min(
        max(SAMPLE_S, SAMPLE_SHARE * sum(seconds)), MOST_SHARE * sum(seconds)
    )
    draws = range(1 if len(sources) > MANY_SOURCES else DRAWS)
    samples = (_draw(sources, seconds, wanted_s, [seed, draw]) for draw in draws)
    return min(samples, key=_imbalance)


def _imbalance(sample: PlanSample) -> float:
    """Returns the distance between the means of header values in the sample and in the corpus."""
    rows = [(s.weight, s.weight * (s.n_pixels or FULL_HD), s.n_bytes, 1) for s in sample.sources]
    facts = np.array(rows, np.float64)
    means = facts[sample.chosen].sum(axis=0) / facts.sum(axis=0) / sample.share
    return float(np.abs(np.log(np.maximum(means, 1e-9))).sum())


def _draw(
    sources: Sequence[SourceRef], all_seconds: Sequence[float], wanted_s: float, seed: object
) -> PlanSample:
    strata = [
        (s.codec or "", bisect(SIZES_PX, (s.n_pixels or 0) - 1), bisect(LENGTHS_S, seconds))
        for s, seconds in zip(sources, all_seconds, strict=True)
    ]
    hashes = [fingerprint([seed, str(source.source_id)]) for source in sources]
    order = sorted(range(len(sources)), key=lambda n: (strata[n], hashes[n]))
    seconds, share = np.array(all_seconds)[order], min(1.0, wanted_s / sum(all_seconds))
    chosen: list[int] = []
    bounds, due_s, taken_s = [0], 0.0, 0.0
    ends = [n for n in range(1, len(order)) if strata[order[n]] != strata[order[n - 1]]]
    for start, end in zip([0, *ends], [*ends, len(order)], strict=True):
        due_s += share * float(seconds[start:end].sum())
        for number in range(start, end):
            # Take a source if the sum gets nearer to the target. The first source is always taken.
            if chosen and due_s - taken_s < seconds[number] / 2:
                break
            chosen.append(number)
            taken_s += float(seconds[number])
    for end in ends:
        n_inside, n_after = (
            sum(bounds[-1] <= n < end for n in chosen),
            sum(n >= end for n in chosen),
        )
        if min(n_inside, n_after) >= LEAST_IN_GROUP:
            bounds.append(end)
    return PlanSample(
        sources=[sources[number] for number in order],
        seconds=seconds,
        chosen=np.array(chosen, np.int64),
        group=np.searchsorted(bounds, np.arange(len(order)), side="right") - 1,
    )


class Extrapolation:
    """Extrapolates quantities of the sampled sources."""

    def __init__(self, sample: PlanSample, *, can_copy: bool = True) -> None:
        self._sample, self.seconds = sample, sample.seconds
        sources = sample.sources
        self._pixels = np.array([(s.n_pixels or FULL_HD) / FULL_HD for s in sources])
        frames = np.array([s.header_n_frames or 0.0 for s in sources])
        self._frames = np.where(frames > 0, frames, 30.0 * sample.seconds)
        self._codec = np.array([CODEC_COST.get(s.codec or "", 1.0) for s in sources])
        encoded = [H264_ENCODED if s.codec == "h264" and can_copy else 1.0 for s in sources]
        self._cut: Floats = self.seconds * self._pixels * np.array(encoded)
        self._is_other = ~np.isin(np.arange(len(sources)), sample.chosen)

    def regressor(self, part: str) -> Floats:
        """Returns the regressor of a part of the CPU-seconds: a value per source, float64 [N]."""
        if part == "cut":
            return self._cut
        by_frame = part in ("decode", "scale", "shot_network")
        frames = self._frames if by_frame else self.seconds
        if part == "decode":
            frames = frames * self._codec
        sized = PIXEL_SHARE.get(part, 0.0)
        costs: Floats = frames * (1 - sized + sized * self._pixels)
        return costs

    def total(
        self, sampled: Floats, regressor: Floats, *, differs: float, is_count: bool = False
    ) -> tuple[float, float]:
        """Returns the sum over all sources, and half the width of its 90% interval.

        Args:
            sampled: Quantity of each sampled source, float64 [S].
            regressor: Regressor of each source, float64 [N].
            differs: Usual relative spread of sources around the ratio.
            is_count: Whether the quantity is a count, which adds the variance of a Poisson process.
        """
        chosen, group = self._sample.chosen, self._sample.group
        x, of = regressor[chosen], group[chosen]
        n_groups = int(group.max()) + 1
        x_sampled = np.maximum(np.bincount(of, x, n_groups), 1e-9)
        x_other = np.bincount(group[self._is_other], regressor[self._is_other], n_groups)
        whole = max(float(x.sum()), 1e-9)
        ratio = np.bincount(of, sampled, n_groups) / x_sampled
        usual = (differs * sampled.sum() / whole) ** 2 * float((x**2).sum()) / whole
        if is_count:
            # The variance of a Poisson process, with one more event than was observed.
            usual += (sampled.sum() + 1) / whole
        freedom = USUAL_SOURCES + len(chosen) - n_groups
        spread = float(((sampled - ratio[of] * x) ** 2 / np.maximum(x, 1e-9)).sum())
        variance = (USUAL_SOURCES * usual + spread) / freedom
        error = math.sqrt(variance * float((x_other + x_other**2 / x_sampled).sum()))
        # Approximates the quantile of Student's t for a two-sided interval of 90%.
        deviation = error * (NORMAL + 1.7 / freedom)
        return float(sampled.sum() + (ratio * x_other).sum()), deviation

    def cost(self, parts: Mapping[str, Floats]) -> tuple[dict[str, float], float]:
        """Extrapolates CPU-seconds, float64 [S] by part.

        Returns the total of each part, and half the width of the interval of their sum.
        """
        totals: dict[str, float] = {}
        expected, spent = np.zeros(len(self.seconds)), np.zeros(len(self._sample.chosen))
        for name in parts.keys() - {"cut"}:
            x, sampled = self.regressor(name), parts[name]
            totals[name] = self.total(sampled, x, differs=ANALYSIS_DIFFERS)[0]
            expected += x * sampled.sum() / max(x[self._sample.chosen].sum(), 1e-9)
            spent += sampled
        cut = self.regressor("cut")
        totals["cut"], deviation = self.total(parts["cut"], cut, differs=CUT_DIFFERS)
        others = self.total(spent, expected, differs=ANALYSIS_DIFFERS)[1]
        return totals, math.hypot(deviation, others, NORMAL * NOISE * sum(totals.values()))
