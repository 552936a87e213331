"""Chooses the sample of a plan: sources of each codec, size and length, by the hash of their ids.

Strata get seconds of video in proportion to what they hold. Neighbouring strata with few sampled
sources are joined to groups, each of which is extrapolated on its own.
"""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from curator.fingerprints import fingerprint
from curator.records.sources import FULL_HD, SourceRef

Floats = NDArray[np.float64]

SIZES_PX, LENGTHS_S = (480 * 854, 720 * 1280, 1080 * 1920), (10.0, 60.0, 600.0)
LEAST_IN_GROUP = 4
"""Sampled sources of a group; fewer say too little of how sources differ."""
DRAWS, MANY_SOURCES = 64, 2000
"""Samples of which the one is taken whose means are nearest to those of all; of very many sources
any is near."""
SAMPLE_SHARE, SAMPLE_S = 0.01, 1200.0
"""The sample is the larger of a share of the video and these seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSample:
    """The sources of a corpus, in the order of their strata, and those of the sample.

    Attributes:
        sources: All, each content once.
        seconds: Of video by their headers, float64 [N]; where these say nothing, by their bytes.
        chosen: Numbers of the sampled ones, int64 [S].
        group: Number of each source's group, int64 [N].
    """

    sources: Sequence[SourceRef]
    seconds: Floats
    chosen: NDArray[np.int64]
    group: NDArray[np.int64]

    @property
    def uris(self) -> list[str]:
        """Addresses of the sampled sources."""
        return [self.sources[number].uri for number in self.chosen.tolist()]

    @property
    def share(self) -> float:
        """The share of the video that is sampled."""
        return float(self.seconds[self.chosen].sum() / self.seconds.sum())


def choose_sample(sources: Sequence[SourceRef], sample_s: float | None, seed: int) -> PlanSample:
    """Chooses sources of about `sample_s` seconds; None for the default."""
    rates = [s.n_bytes / s.header_duration_s for s in sources if s.header_duration_s]
    rate = max(1.0, float(np.median(rates)) if rates else 1e6)
    seconds = [max(1e-3, s.header_duration_s or s.n_bytes / rate) for s in sources]
    wanted_s = sample_s or max(SAMPLE_S, SAMPLE_SHARE * sum(seconds))
    draws = range(1 if len(sources) > MANY_SOURCES else DRAWS)
    samples = (_draw(sources, seconds, wanted_s, [seed, draw]) for draw in draws)
    return min(samples, key=_imbalance)


def _imbalance(sample: PlanSample) -> float:
    """Returns how far means of the sample are from those of all, for what headers say."""
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
            # The nearer of with and without it; the first of all is always taken.
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
