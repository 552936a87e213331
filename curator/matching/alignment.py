"""Finds speed and offset between two clips by correlating luma where picture vectors agree.

The pulse of a clip has two series: mean and spread of the luma of its frames. Crops, mirroring and
changes of brightness keep the shape of both series. A band-pass filter removes slow changes and
noise. Each value is then divided by the local strength, so no single cut or fade dominates. A
product in the frequency domain gives the correlations at all offsets for one speed.

Shape letters: F values of a pulse, L offsets, A, B picture vectors of the clips.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from curator.matching.clip_footage import ClipFootage, Floats
from curator.media.opencv import cv2

RATE = 25.0  # values of a pulse per second
OTHER_SPEEDS = (0.8, 1.25, 24 / 25, 25 / 24, 1.2, 1 / 1.2)  # seconds of b per second of a
_SHORT_S, _LONG_S, _STRENGTH_S = 0.05, 0.6, 1.0  # sigmas: band-pass filter, local strength
_FLOOR = 0.0008  # strength of the changes of luma by codecs: 0.2 of 255 levels
_MIN_CORRELATION = 0.25  # moments with a lower correlation count against an offset
_VOTE_REACH_S = 1.2  # largest distance of two similar pictures that vote for an offset
_N_VOTES = 200  # most similar pairs of pictures that vote
_N_TRIED = 48
_APART_S = 0.3  # least distance of two guesses, and reach of `refined`, in seconds of a
_MIN_REFINED = 0.4
_COSINE_WORTH_S = 4.0  # seconds of agreement that weigh as much as a cosine of 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pulse:
    """How luma changes over time."""

    values_2F: Floats  # float32 [2, F], from mean and spread; magnitude about 1 if luma changes
    moving_share: float  # share of time with larger changes of luma than codecs cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """A guess: `time_b = speed * time_a + offset_s`."""

    offset_s: float  # time in b of a's first frame
    speed: float  # seconds of b per second of a
    start_s: float  # time in a at which the pulses begin to agree
    end_s: float  # time in a at which the agreement ends
    agreeing_s: float  # length, weighted by the excess of correlation over `_MIN_CORRELATION`
    cosine: float  # largest cosine of picture vectors at about the same time; -1 without a vote
    voted_s: float  # time in a of the vector with this cosine

    @property
    def rank(self) -> float:
        """Order of guesses, the largest first."""
        return self.agreeing_s + _COSINE_WORTH_S * self.cosine


@lru_cache(maxsize=1024)
def pulse(clip: ClipFootage, speed: float = 1.0) -> Pulse:
    """Returns the pulse of a clip that is played `speed` times as fast."""
    n = max(2, int(clip.duration_s * RATE / speed))
    at = np.arange(n) * (speed / RATE * clip.fps)
    frames = np.arange(len(clip.luma_F))
    series_2F = np.stack(
        [np.interp(at, frames, s) for s in (clip.luma_F, clip.luma_spread_F)]
    ).astype(np.float32)
    band = _smooth(series_2F, _SHORT_S) - _smooth(series_2F, _LONG_S)
    strength = np.sqrt(_smooth(band * band, _STRENGTH_S))
    return Pulse(
        values_2F=np.asarray(band / (strength + _FLOOR), np.float32),
        moving_share=float((strength.max(0) > _FLOOR).mean()),
    )


def cosines(a: ClipFootage, b: ClipFootage) -> Floats:
    """Returns the cosines of all pairs of picture vectors of two clips, float32 [A, B]."""
    of_a, of_b = a.vectors_VD.astype(np.float32), b.vectors_VD.astype(np.float32)
    return np.asarray(of_a @ of_b.T, np.float32)


def alignments(
    a: ClipFootage, b: ClipFootage, *, speeds: Sequence[float], min_cosine: float, most: int
) -> list[Alignment]:
    """Returns at most `most` guesses where b may show a, likeliest first.

    A guess needs pictures with a cosine of `min_cosine`, or the best cosine of its speed. Guesses
    of one speed differ by at least 0.3 s.
    """
    cosines_AB = cosines(a, b)
    guesses = [
        guess for speed in speeds for guess in _at_speed(a, b, speed, cosines_AB, min_cosine, most)
    ]
    return sorted(guesses, key=lambda guess: -guess.rank)[:most]


def refined(
    a: ClipFootage, b: ClipFootage, guess: Alignment, *, span_s: tuple[float, float]
) -> tuple[Alignment, float]:
    """Moves a guess by up to 0.3 s to the best correlation of the pulses in a span of a.

    Returns:
        The guess, unchanged if no correlation reaches `_MIN_REFINED`, and its correlation.
    """
    of_a, of_b = pulse(a).values_2F, pulse(b, guess.speed).values_2F
    middle, reach = round(guess.offset_s / guess.speed * RATE), round(_APART_S * RATE)
    first, last = max(0, int(span_s[0] * RATE)), min(of_a.shape[1], int(span_s[1] * RATE) + 1)
    values = [
        _correlation(of_a, of_b, lag, first, last)
        for lag in range(middle - reach, middle + reach + 1)
    ]
    best = int(np.argmax(values)) if max(values) >= _MIN_REFINED else reach
    if best == reach:
        return guess, values[reach]
    vertex = _vertex(*values[best - 1 : best + 2]) if 0 < best < 2 * reach else 0.0
    lag = middle - reach + best + vertex
    return replace(guess, offset_s=lag / RATE * guess.speed), values[best]


def votes(
    a: ClipFootage, b: ClipFootage, *, most: int, around_s: Sequence[float]
) -> list[Alignment]:
    """Returns guesses at speed 1 from the `most` most similar pairs of pictures alone.

    Each pair gives one guess per shift in `around_s`.
    """
    cosines_AB = cosines(a, b)
    guesses: list[Alignment] = []
    for at in np.argsort(-cosines_AB.ravel())[:most]:
        at_a, at_b = divmod(int(at), len(b.vector_s))
        voted_s = float(a.vector_s[at_a])
        guesses += [
            Alignment(
                offset_s=float(b.vector_s[at_b]) - voted_s + away_s,
                speed=1.0,
                start_s=0.0,
                end_s=a.duration_s,
                agreeing_s=0.0,
                cosine=float(cosines_AB[at_a, at_b]),
                voted_s=voted_s,
            )
            for away_s in around_s
        ]
    return guesses


def _at_speed(
    a: ClipFootage, b: ClipFootage, speed: float, cosines_AB: Floats, min_cosine: float, most: int
) -> list[Alignment]:
    of_a, of_b = pulse(a).values_2F, pulse(b, speed).values_2F
    n_a, n_b = of_a.shape[1], of_b.shape[1]
    lags_L = np.arange(-n_a + 1, n_b)
    cosine_L, voted_L = _votes(a, b, cosines_AB, lags_L / RATE, speed)
    rank_L = _products(of_a, of_b) / (2 * RATE) + _COSINE_WORTH_S * cosine_L
    rank_L[cosine_L < min_cosine] = -np.inf
    tried = np.argsort(-rank_L)[:_N_TRIED]
    tried = tried[rank_L[tried] > -np.inf]
    # Offsets of the best vote are always tried: an insert agrees in a part of the overlap only.
    near = np.flatnonzero(cosine_L >= cosine_L.max() - 1e-6)
    tried = np.union1d(tried, near[:: max(1, len(near) // _N_TRIED)])
    guesses: list[Alignment] = []
    runs = [_run(of_a, of_b, int(lags_L[k])) for k in tried]
    order = np.argsort([-run[2] - _COSINE_WORTH_S * cosine_L[k]
                        for k, run in zip(tried, runs, strict=True)])  # fmt: skip
    for n in order:
        k, (first, last, agreeing_s) = int(tried[n]), runs[n]
        lag = float(lags_L[k])
        if any(abs(g.offset_s / speed - lag / RATE) < _APART_S for g in guesses):
            continue
        around = [_correlation(of_a, of_b, int(lag) + d, first, last) for d in (-1, 0, 1)]
        guesses.append(
            Alignment(
                offset_s=(lag + _vertex(*around)) / RATE * speed,
                speed=speed,
                start_s=first / RATE,
                end_s=last / RATE,
                agreeing_s=agreeing_s,
                cosine=float(cosine_L[k]),
                voted_s=float(voted_L[k]),
            )
        )
        if len(guesses) == most:
            break
    return guesses


def _products(a_2F: Floats, b_2F: Floats) -> NDArray[np.float64]:
    """Returns the sum of products of two pulses at each offset, float64 [L]."""
    n_a, n_b = a_2F.shape[1], b_2F.shape[1]
    size = cv2.getOptimalDFTSize(n_a + n_b)
    spectrum = (np.conj(np.fft.rfft(a_2F, size)) * np.fft.rfft(b_2F, size)).sum(0)
    full = np.fft.irfft(spectrum, size)
    return np.concatenate([full[-n_a + 1 :], full[:n_b]])


def _common(
    a_2F: Floats, b_2F: Floats, lag: int, first: int, last: int
) -> tuple[Floats, Floats, int]:
    first = max(first, -lag)
    last = max(first, min(last, b_2F.shape[1] - lag))
    return a_2F[:, first:last], b_2F[:, first + lag : last + lag], first


def _run(a_2F: Floats, b_2F: Floats, lag: int) -> tuple[int, int, float]:
    """Returns the span of a with the largest agreement, half-open, and `agreeing_s`."""
    x, y, first = _common(a_2F, b_2F, lag, 0, a_2F.shape[1])
    gain = (x * y - 0.5 * _MIN_CORRELATION * (x * x + y * y)).sum(0)
    total = np.concatenate([[0], np.cumsum(gain)])
    above = total - np.minimum.accumulate(total)
    end = int(above.argmax())
    begin = int(total[: end + 1].argmin())
    return first + begin, first + end, float(above[end]) / (2 * RATE)


def _correlation(a_2F: Floats, b_2F: Floats, lag: int, first: int, last: int) -> float:
    x, y, _ = _common(a_2F, b_2F, lag, first, last)
    energy = float((x * x).sum() * (y * y).sum())
    return float((x * y).sum()) / max(energy, 1.0) ** 0.5 if x.size else 0.0


def _votes(
    a: ClipFootage, b: ClipFootage, cosines_AB: Floats, offsets_L: NDArray[np.float64], speed: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns for each offset, in seconds of a, `cosine` and `voted_s` of `Alignment`."""
    order = np.argsort(-cosines_AB.ravel())[:_N_VOTES]
    apart_AB = b.vector_s[None] / speed - a.vector_s[:, None]
    near_LN = np.abs(apart_AB.ravel()[order][None] - offsets_L[:, None]) <= _VOTE_REACH_S
    best_L = order[near_LN.argmax(1)]
    cosine_L = np.where(near_LN.any(1), cosines_AB.ravel()[best_L], -1.0)
    return cosine_L, a.vector_s[best_L // len(b.vector_s)].astype(np.float64)


def _vertex(before: float, here: float, after: float) -> float:
    """Returns the vertex of a parabola through three values, relative to the middle value."""
    bend = before - 2 * here + after
    return 0.0 if bend >= 0 else min(0.5, max(-0.5, 0.5 * (before - after) / bend))


def _smooth(series_2F: Floats, sigma_s: float) -> Floats:
    sigma = sigma_s * RATE
    return np.asarray(
        cv2.GaussianBlur(series_2F, (0, 0), sigmaX=sigma, sigmaY=1e-3,
                         borderType=cv2.BORDER_REPLICATE), np.float32,
    )  # fmt: skip
