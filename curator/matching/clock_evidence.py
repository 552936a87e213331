"""Finds the lag between the series of two sources, and how sure it is.

The lag is `time_b - time_a` of one instant, and changes with a drift. Each series that both have
votes by its correlation at each lag, in units of its own standard deviation at lags that are out of
the question. The votes of series are joined as the root of their squares, the *evidence* of a lag.

Three tests tell a real peak from a chance:

- It must exceed the best evidence at impossible lags, many times as many as the searched ones. A
  regular beat, a slow swing or two unrelated films have such peaks there too.
- It must exceed the second peak within the searched range.
- It must stay where it is if blocks of the overlap are drawn anew. A single common flash, or two
  that happen to fit, are left out of a third or a seventh of the draws.

Shape letters: N values of a series, B blocks of the overlap, L lags, R draws of blocks, D drifts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from curator.matching.clock_series import RATE, SOUND, ClockSeries, Floats

LEAST_OVERLAP_S = 20.0
"""Least common length of two sources: less leaves too few impossible lags to compare with."""
_BLOCK_S, _MOST_BLOCKS = 2.0, 180
_FARTHEST_S = 34.0
"""Largest lag that is computed."""
_GUARD_S = 0.5
"""Distance of impossible lags from the searched range."""
_DRIFT_STEP_S = 0.003
"""Largest error at the ends of an overlap by the steps of drifts."""
_FINER, _NEAR_STEPS = 4, 4
"""Steps of drifts near a peak per step of the search, and the reach in steps of the search."""
_LANCZOS = 3
_PEAK_S = 0.3
"""Half width of a peak, beyond which another peak is the second one."""
_NEAR_S = 0.06
"""Largest move of a peak that stays where it is."""
_REFINED_S = 0.1
_SURE_PICTURES = 5.5
"""Evidence of pictures from which on sound does not say where the peak is: sound arrives late."""
_DRAWS = 100
_LATE_SOUND_S = 0.007
"""Standard deviation of the difference of distances to a sound, over the speed of sound: 2.4 m."""
_FRAME_ERROR = 0.07
"""Standard deviation of the time that a frame shows, in frames."""
_CERTAIN_SHARE = 0.95
"""Share of draws within two standard deviations."""
_WIDER = 1.2
"""Factor from the spread of draws to that of lags, by made rigs."""
_STEP_GAIN = 26.0
"""Squared evidence that a step of the lag must add."""
_STEP_DOUBT = 16.0
"""Squared evidence by which a time of a step may be less likely than the likeliest."""
_PIECE_REACH = 3
"""Lags by which that of a piece may change without the blocks near its steps."""
_STEP_S = 0.04
"""Smallest step of the lag that counts as lost frames."""
_MOST_LOST_S = 2.0
"""Most seconds of frames that a source lost, of which a step can tell."""
_LEAST_SHARE, _NEIGHBOURS = 0.3, 2
"""Least evidence of a block with so many neighbours on both sides, relative to the usual."""
_WARY = 4
"""Blocks that do not count next to blocks without support."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagStep:
    """A step of the lag, of a source that lost frames.

    The step is `step_s` at `at_s` by the clock of `a`, or at any time in `[first_s, last_s]`.
    """

    at_s: float
    first_s: float
    last_s: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LagEvidence:
    """The likeliest lag of two sources, and how sure it is.

    `lag = lag_s + drift * (time_a - middle_s)`.
    """

    lag_s: float
    drift: float
    middle_s: float
    overlap_s: float
    peak: float
    """Evidence at the peak, in standard deviations."""
    impossible: float
    """Largest evidence at impossible lags."""
    second: float
    """Largest evidence at other searched lags."""
    stays: float
    """Share of draws in which the peak stays where it is."""
    lag_error_s: float
    """Standard deviation of the lag in the middle of the overlap."""
    drift_error: float
    by_series: Mapping[str, float]
    """Evidence of each series at the peak."""
    steps: tuple[LagStep, ...] = ()
    spans: tuple[tuple[float, float], ...] = ()
    """Spans of time of `a` in which content supports the lag."""

    @property
    def ratio(self) -> float:
        """Evidence of the peak, relative to the best one of any other lag."""
        return self.peak / max(self.impossible, self.second, 1e-9)


@dataclass(frozen=True, slots=True)
class _Votes:
    """Products of the series of two sources, by block and lag.

    Attributes:
        products: Name -> sums of products, [B, L].
        counts: Number of products in each sum, [B, L].
        middle_s: Middle of each block by the clock of `a`, [B].
        lag_s: Lags, [L].
        centre_s: Middle of the overlap by the clock of `a`.
        overlap_s: Length of the overlap.
    """

    products: Mapping[str, Floats]
    counts: Floats
    middle_s: Floats
    lag_s: Floats
    centre_s: float
    overlap_s: float

    @property
    def since_B(self) -> Floats:  # noqa: N802
        """Values of a series from the middle of the overlap to that of each block."""
        return np.asarray((self.middle_s - self.centre_s) * RATE)


@dataclass(frozen=True, slots=True)
class _Peak:
    """The likeliest lag on the grid.

    Attributes:
        lag_s: The lag in the middle of the overlap.
        drift: Its drift.
        evidence_L: Evidence of all lags with this drift, [L].
        impossible: Largest evidence at impossible lags, with any drift.
        scale: Standard deviation of each series' votes at impossible lags.
        by_series: Votes of each series for the lag.
    """

    lag_s: float
    drift: float
    evidence_L: Floats
    impossible: float
    scale: Mapping[str, float]
    by_series: Mapping[str, float]


def lag_evidence(
    a: ClockSeries,
    b: ClockSeries,
    *,
    start_s: tuple[float, float],
    max_offset_s: float,
    max_drift: float,
    seed: int = 0,
) -> LagEvidence | None:
    """Returns the likeliest lag of two sources; None without a common series or overlap.

    Args:
        a: Series of the first source.
        b: Series of the second source.
        start_s: Nominal times at which the sources begin; lags are sought around their difference.
        max_offset_s: Largest deviation from the nominal lag.
        max_drift: Largest drift of the lag, in seconds per second.
        seed: Of the draws of blocks.
    """
    votes = _votes(a, b, start_s)
    if votes is None:
        return None
    nominal_s = start_s[0] - start_s[1]
    away_L = votes.lag_s - nominal_s
    is_searched = np.abs(away_L) <= max_offset_s + 1 / RATE
    is_impossible = np.abs(away_L) >= max_offset_s + _GUARD_S
    if not is_impossible.any():
        return None
    peak = _peak(votes, _drifts(max_drift, votes.overlap_s), is_searched, is_impossible)
    drawn_RB = _draws(len(votes.middle_s), seed)
    finer = _drifts(max_drift, votes.overlap_s, _FINER, near=peak.drift)
    local = _refined(votes, peak, finer, drawn_RB)
    # A frame says what it shows to a part of its length.
    frame_error_s = _FRAME_ERROR * float(np.hypot(a.frame_s, b.frame_s))
    is_other = is_searched & (np.abs(votes.lag_s - peak.lag_s) > _PEAK_S)
    found = LagEvidence(
        lag_s=local.lag_s,
        drift=local.drift,
        middle_s=votes.centre_s,
        overlap_s=votes.overlap_s,
        peak=float(peak.evidence_L[is_searched].max()),
        impossible=peak.impossible,
        second=float(peak.evidence_L[is_other].max(initial=0.0)),
        stays=_stays(votes, peak, is_searched, drawn_RB),
        lag_error_s=float(np.hypot(local.lag_error_s, frame_error_s)),
        drift_error=local.drift_error,
        by_series=peak.by_series,
    )
    return _along(votes, peak.scale, found, nominal_s, max_offset_s)


def _votes(a: ClockSeries, b: ClockSeries, start_s: tuple[float, float]) -> _Votes | None:
    names = [name for name in a.values if name in b.values]
    # Both begin where the later one begins, by the nominal clocks.
    later_s = max(start_s)
    skips = [round((later_s - own) * RATE) for own in start_s]
    lengths = [int(s.duration_s * RATE) - skip for s, skip in zip((a, b), skips, strict=True)]
    overlap = min(lengths)
    if not names or overlap < LEAST_OVERLAP_S * RATE:
        return None
    reach = int(min(_FARTHEST_S, overlap / RATE / 2) * RATE)
    n_blocks = int(max(4, min(_MOST_BLOCKS, overlap / RATE / _BLOCK_S)))
    edges = np.linspace(0, overlap, n_blocks + 1).astype(int)
    products: dict[str, Floats] = {}
    of_a, of_b = skips
    for name in names:
        products[name] = _products(
            a.values[name][of_a : of_a + overlap], b.values[name], of_b, edges, reach
        )
    n_b = len(b.values[names[0]])
    counts = _products(np.ones(overlap), np.ones(n_b), of_b, edges, reach)
    lag_s = np.arange(-reach, reach + 1) / RATE + (of_b - of_a) / RATE
    middle_s = (edges[:-1] + edges[1:]) / 2 / RATE + of_a / RATE
    first_s = of_a / RATE
    return _Votes(products, counts, middle_s, lag_s, first_s + overlap / RATE / 2, overlap / RATE)


def _peak(
    votes: _Votes,
    drifts: Sequence[float],
    is_searched: NDArray[np.bool_],
    is_impossible: NDArray[np.bool_],
) -> _Peak:
    root_L = np.sqrt(np.maximum(votes.counts.sum(axis=0), 1))
    scale = {
        name: max(1e-9, float(np.sqrt(np.mean((p.sum(axis=0) / root_L)[is_impossible] ** 2))))
        for name, p in votes.products.items()
    }
    best: tuple[float, float, int] = -1.0, 0.0, 0
    best_L, impossible = np.zeros(len(root_L)), 0.0
    by_series: dict[str, Floats] = {}
    for drift in drifts:
        votes_of = {
            name: _shifted(p, drift * votes.since_B).sum(axis=0) / root_L / scale[name]
            for name, p in votes.products.items()
        }
        evidence_L = np.sqrt(sum(map(_positive, votes_of.values())))
        impossible = max(impossible, float(evidence_L[is_impossible].max()))
        at = int(np.argmax(np.where(is_searched, evidence_L, -1)))
        if evidence_L[at] > best[0]:
            best, best_L, by_series = (float(evidence_L[at]), drift, at), evidence_L, votes_of
    _, drift, at = best
    return _Peak(
        lag_s=float(votes.lag_s[at]),
        drift=drift,
        evidence_L=best_L,
        impossible=impossible,
        scale=scale,
        by_series={name: float(values[at]) for name, values in by_series.items()},
    )


def _products(x_N: Floats, y_N: Floats, skip: int, edges: NDArray[np.int_], reach: int) -> Floats:
    """Returns sums of products of each block of x with y at lags up to `reach`, [B, L]."""
    longest = int(np.diff(edges).max())
    size = _fast_size(2 * (longest + reach))
    padded = np.pad(y_N, (reach + longest, reach + longest))
    sums = []
    for begin, end in pairwise(edges):
        first = skip + begin + longest
        part = padded[first : first + longest + 2 * reach]
        spectrum = np.conj(np.fft.rfft(x_N[begin:end], size)) * np.fft.rfft(part, size)
        sums.append(np.fft.irfft(spectrum, size)[: 2 * reach + 1])
    return np.stack(sums)


def _fast_size(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _drifts(
    max_drift: float, overlap_s: float, density: int = 1, *, near: float | None = None
) -> list[float]:
    """Returns drifts to try; with `near`, only those a few steps of density 1 around it."""
    n = int(np.ceil(max_drift * overlap_s / (4 * _DRIFT_STEP_S)))
    drifts = [float(d) for d in np.linspace(-max_drift, max_drift, 2 * n * density + 1)]
    if near is None:
        return drifts
    reach = _NEAR_STEPS * max_drift / max(1, n)
    return [drift for drift in drifts if abs(drift - near) <= reach + 1e-12]


def _shifted(values_BL: Floats, shift_B: Floats) -> Floats:
    """Returns values [B, L] at lags that are `shift_B` steps later.

    Lanczos' kernel keeps the strength of all frequencies of a series. A line or a cubic weakens
    fast ones between the lags of the grid, and would draw drifts to 0.
    """
    whole = np.floor(shift_B).astype(int)
    part_B1 = (shift_B - whole)[:, None]
    if not part_B1.any() and not whole.any():
        return values_BL
    n_lags = values_BL.shape[1]
    at = np.arange(n_lags)[None] + whole[:, None]
    taps = range(1 - _LANCZOS, _LANCZOS + 1)
    weights = [np.sinc(part_B1 - tap) * np.sinc((part_B1 - tap) / _LANCZOS) for tap in taps]
    total = sum(weights)
    shifted = np.zeros_like(values_BL)
    for tap, weight in zip(taps, weights, strict=True):
        near = np.clip(at + tap, 0, n_lags - 1)
        shifted += weight / total * np.take_along_axis(values_BL, near, 1)
    return shifted


def _positive(votes: Floats) -> Floats:
    return np.asarray(np.maximum(votes, 0) ** 2)


def _draws(n_blocks: int, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    return rng.multinomial(n_blocks, np.full(n_blocks, 1 / n_blocks), size=_DRAWS).astype(float)


def _stays(votes: _Votes, peak: _Peak, is_searched: NDArray[np.bool_], drawn_RB: Floats) -> float:
    count = np.maximum(drawn_RB @ votes.counts[:, is_searched], 1)
    evidence = np.zeros_like(count)
    for name, product in votes.products.items():
        sums = drawn_RB @ _shifted(product, peak.drift * votes.since_B)[:, is_searched]
        evidence += _positive(sums / np.sqrt(count) / peak.scale[name])
    found_s = votes.lag_s[is_searched][np.argmax(evidence, axis=1)]
    return float(np.mean(np.abs(found_s - peak.lag_s) < _NEAR_S))


@dataclass(frozen=True, slots=True)
class _Local:
    lag_s: float
    drift: float
    lag_error_s: float
    drift_error: float


def _refined(votes: _Votes, peak: _Peak, drifts: Sequence[float], drawn_RB: Floats) -> _Local:
    """Returns lag and drift near a peak, from the series that say where it is, and their errors."""
    since_B, lag_s = votes.since_B, peak.lag_s
    is_near = np.abs(votes.lag_s - lag_s) <= _REFINED_S
    near_s = votes.lag_s[is_near]
    pictures = [name for name in votes.products if name != SOUND]
    seen = np.sqrt(sum(max(0.0, peak.by_series[name]) ** 2 for name in pictures))
    names = pictures if seen >= _SURE_PICTURES else list(votes.products)
    all_RB = np.vstack([np.ones(len(since_B)), drawn_RB])
    best_R, lag_R, drift_R = (np.full(len(all_RB), value) for value in (-1.0, lag_s, 0.0))
    rows = np.arange(len(all_RB))
    reach = int(np.ceil(np.abs(since_B).max() * max(map(abs, drifts)))) + 2
    wide = np.flatnonzero(is_near)
    low, high = max(0, wide[0] - reach), wide[-1] + reach + 1
    parts = {name: votes.products[name][:, low:high] / peak.scale[name] for name in names}
    inner = slice(wide[0] - low, wide[-1] - low + 1)
    for drift in drifts:
        squared = np.zeros((len(all_RB), len(near_s)))
        for part in parts.values():
            squared += _positive(all_RB @ _shifted(part, drift * since_B)[:, inner])
        evidence = np.sqrt(squared)
        at = evidence.argmax(axis=1)
        top = evidence[rows, at]
        better = top > best_R
        before, after = (evidence[rows, np.clip(at + d, 0, len(near_s) - 1)] for d in (-1, 1))
        bend = before - 2 * top + after
        with np.errstate(divide="ignore", invalid="ignore"):
            vertex = np.where(bend < 0, np.clip(0.5 * (before - after) / bend, -0.5, 0.5), 0.0)
        best_R[better], drift_R[better] = top[better], drift
        lag_R[better] = (near_s[at] + vertex / RATE)[better]
    error_s = float(np.quantile(np.abs(lag_R[1:] - lag_R[0]), _CERTAIN_SHARE)) / 2
    sound_s = _LATE_SOUND_S if names != pictures and peak.by_series.get(SOUND, 0.0) > seen else 0.0
    return _Local(
        lag_s=float(lag_R[0]), drift=float(drift_R[0]),
        lag_error_s=float(np.hypot(_WIDER * error_s, sound_s)),
        drift_error=_WIDER * float(np.std(drift_R[1:])),
    )  # fmt: skip


def _along(
    votes: _Votes,
    scale: Mapping[str, float],
    found: LagEvidence,
    nominal_s: float,
    max_offset_s: float,
) -> LagEvidence:
    """Returns the evidence with its steps and its span, by the likeliest path through the lags.

    A source may have lost frames since it began, so lags beyond the searched range count, too.
    """
    names = [name for name in votes.products if name != SOUND] or list(votes.products)
    inside = np.abs(votes.lag_s - nominal_s) <= max_offset_s + _MOST_LOST_S
    lag_L = votes.lag_s[inside]
    count = np.sqrt(max(1.0, float(votes.counts.sum(axis=0)[inside].max())))
    since_B = votes.since_B
    gain_BL = np.zeros((len(since_B), len(lag_L)))
    for name in names:
        weight = max(0.0, found.by_series[name])
        product = _shifted(votes.products[name], found.drift * since_B)[:, inside]
        gain_BL += weight * product / count / scale[name]
    path = _path(gain_BL)
    steps = []
    block_s = float(np.diff(votes.middle_s).max())
    edges = np.concatenate([[0], np.flatnonzero(np.diff(path)) + 1, [len(path)]])
    doubts: list[NDArray[np.int_]] = []
    for begin, at, end in zip(edges[:-2], edges[1:-1], edges[2:], strict=True):
        # Where the step may be: the time between two steps is evidence for neither lag.
        before_B, after_B = gain_BL[begin:end, path[at - 1]], gain_BL[begin:end, path[at]]
        excess = np.cumsum(before_B - after_B)
        doubts.append(begin + np.flatnonzero(excess >= excess.max() - _STEP_DOUBT))
    is_sure = np.ones(len(path), np.bool_)
    for doubt in doubts:
        is_sure[doubt[0] : doubt[-1] + 2] = False
    piece_s = [
        _piece_lag(gain_BL, slice(begin, end), is_sure, int(path[begin]), lag_L)
        for begin, end in pairwise(edges)
    ]
    for place, (at, doubt) in enumerate(zip(edges[1:-1], doubts, strict=True)):
        step_s = piece_s[place + 1] - piece_s[place]
        if abs(step_s) >= _STEP_S:
            steps.append(
                LagStep(
                    at_s=float(votes.middle_s[at]) - block_s / 2,
                    first_s=float(votes.middle_s[doubt[0]]) - block_s,
                    last_s=float(votes.middle_s[doubt[-1]]) + 2 * block_s,
                    step_s=step_s,
                )
            )
    spans = [
        (float(votes.middle_s[first]) - block_s / 2, float(votes.middle_s[last]) + block_s / 2)
        for first, last in _supported(gain_BL[np.arange(len(path)), path])
    ]
    return replace(found, steps=tuple(steps), spans=tuple(spans))


def _piece_lag(
    gain_BL: Floats, piece: slice, is_sure: NDArray[np.bool_], at: int, lag_L: Floats
) -> float:
    """Returns the lag of a piece between two steps, by its blocks without a doubt, if any."""
    sure_B = is_sure[piece]
    total_L = gain_BL[piece][sure_B if sure_B.any() else slice(None)].sum(axis=0)
    low = max(0, at - _PIECE_REACH)
    best = low + int(total_L[low : at + _PIECE_REACH + 1].argmax())
    return float(lag_L[best]) + _vertex(total_L, best) / RATE


def _vertex(values_L: Floats, at: int) -> float:
    """Returns the vertex of the parabola through three values, relative to the middle one."""
    before, here, after = values_L[np.clip([at - 1, at, at + 1], 0, len(values_L) - 1)].tolist()
    bend = before - 2 * here + after
    return min(0.5, max(-0.5, 0.5 * (before - after) / bend)) if bend < 0 else 0.0


def _supported(gain_B: Floats) -> list[tuple[int, int]]:
    """Returns the first and last block of each run of blocks that support the lag.

    A block does if it and its neighbours have a share of the usual gain: where frames are lost and
    no step was found, they have none.
    """
    near = np.ones(2 * _NEIGHBOURS + 1)
    mean_B = np.convolve(gain_B, near, "same") / np.convolve(np.ones(len(gain_B)), near, "same")
    is_supported = mean_B >= _LEAST_SHARE * gain_B.mean()
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_supported.astype(np.int8), [0]])))
    runs = []
    for begin, end in edges.reshape(-1, 2).tolist():
        # Where support ends before the overlap does, the loss may be some blocks within.
        first = begin + _WARY if begin > 0 else 0
        last = end - 1 - _WARY if end < len(gain_B) else end - 1
        if first <= last:
            runs.append((first, last))
    return runs


def _path(gain_BL: Floats) -> NDArray[np.int_]:
    """Returns the lag of each block, of the path with the largest gain less that of its steps."""
    total = gain_BL[0].copy()
    came = np.zeros(gain_BL.shape, int)
    stay = np.arange(gain_BL.shape[1])
    most = int(_MOST_LOST_S * RATE)
    for block in range(1, len(gain_BL)):
        top = int(total.argmax())
        jumps = (total[top] - _STEP_GAIN > total) & (np.abs(stay - top) <= most)
        came[block] = np.where(jumps, top, stay)
        total = np.where(jumps, total[top] - _STEP_GAIN, total) + gain_BL[block]
    path = np.zeros(len(gain_BL), int)
    path[-1] = int(total.argmax())
    for block in range(len(gain_BL) - 1, 0, -1):
        path[block - 1] = came[block, path[block]]
    return path
