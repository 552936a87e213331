"""Whether two clips show the same footage: alignment in time, then geometry, then movement."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from curator.matching.alignment import Alignment, alignments, pulse
from curator.matching.clip_footage import ClipFootage
from curator.matching.geometry import MIN_INLIERS, Agreement, agreement
from curator.matching.motion_agreement import MotionAgreement, motion_agreement

__all__ = ["Match", "verify_pair"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The same footage in clips a and b: `time_b = speed * time_a + offset_s`.

    Attributes:
        offset_s: Time in b of a's first frame, in seconds of b; negative where b begins later.
        speed: Seconds of b per second of a: 0.8 where b plays 1.25 times as fast.
        overlap_s: Length of what both show, in seconds of a.
        share_a: Part of a that b shows, 0 to 1.
        share_b: Part of b that a shows, 0 to 1.
        mirrored: One of them is mirrored.
        similarity: Median cosine of picture vectors at the same time of the footage, 0 to 1.
        n_inliers: Keypoints that agree in the best aligned pictures.
    """

    offset_s: float
    speed: float
    overlap_s: float
    share_a: float
    share_b: float
    mirrored: bool
    similarity: float
    n_inliers: int


MIN_COSINE = 0.5
"""Cosine of picture vectors from which a pair is looked at; benchmarks/results/duplicates.md."""
_SAME_MOMENT_S = 0.3
_N_GEOMETRY, _N_MOTION = 3, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a guess rests on; for benchmarks."""

    guess: Alignment
    agreement: Agreement
    motion: MotionAgreement | None
    is_moving: bool
    pairs: int


def verify_pair(a: ClipFootage, b: ClipFootage) -> Match | None:
    """Compares two clips.

    Returns:
        Where they show the same footage; None where they do not, or where nothing in them could
        tell: flat pictures, or a crop of a fixed camera in which nothing moves.
    """
    for found in evidence(a, b):
        if _is_same(found):
            return _match(a, b, found)
    return None


def evidence(a: ClipFootage, b: ClipFootage) -> Iterator[Evidence]:
    """Yields guesses whose geometry agrees, with what else is known of them."""
    moving = min(pulse(a).moving_share, pulse(b).moving_share)
    for guess in alignments(a, b, min_cosine=MIN_COSINE):
        pairs = _same_moments(a, b, guess)
        if not pairs:
            continue
        keypoints = [(a.keypoints(i), b.keypoints(j)) for i, j in pairs[:_N_GEOMETRY]]
        found = agreement(keypoints, mirrored=False)
        if found is None or found.n_inliers < MIN_INLIERS:
            found = agreement(keypoints, mirrored=True)
        if found is None or found.n_inliers < MIN_INLIERS:
            continue
        jpegs = [
            (p, q)
            for p, q in ((a.pictures[i], b.pictures[j]) for i, j in sorted(pairs[:_N_MOTION]))
            if isinstance(p, bytes) and isinstance(q, bytes)
        ]
        motion = (
            motion_agreement(jpegs, found.transform_23, mirrored=found.mirrored) if jpegs else None
        )
        yield Evidence(
            guess=guess, agreement=found, motion=motion, is_moving=moving > 0.1, pairs=len(pairs)
        )


def _same_moments(a: ClipFootage, b: ClipFootage, guess: Alignment) -> list[tuple[int, int]]:
    """Pictures of a and b of the same moments: near the vote first, then by time."""
    wanted_P = guess.speed * a.picture_s + guess.offset_s
    nearest_P = np.abs(b.picture_s[None] - wanted_P[:, None]).argmin(1)
    apart_P = np.abs(b.picture_s[nearest_P] - wanted_P)
    usable = [int(i) for i in np.flatnonzero(apart_P <= _SAME_MOMENT_S)]
    usable.sort(key=lambda i: _place(float(a.picture_s[i]), guess))
    return [(i, int(nearest_P[i])) for i in usable]


def _place(at_s: float, guess: Alignment) -> float:
    outside_s = max(guess.start_s - at_s, at_s - guess.end_s, 0)
    return abs(at_s - guess.voted_s) + 10 * outside_s


def _is_same(found: Evidence) -> bool:
    return True


def _match(a: ClipFootage, b: ClipFootage, found: Evidence) -> Match:
    guess = found.guess
    start_s = max(0.0, -guess.offset_s / guess.speed)
    end_s = min(a.duration_s, (b.duration_s - guess.offset_s) / guess.speed)
    overlap_s = max(0.0, end_s - start_s)
    return Match(
        offset_s=guess.offset_s,
        speed=guess.speed,
        overlap_s=overlap_s,
        share_a=min(1.0, overlap_s / a.duration_s),
        share_b=min(1.0, overlap_s * guess.speed / b.duration_s),
        mirrored=found.agreement.mirrored,
        similarity=max(0.0, min(1.0, guess.cosine)),
        n_inliers=found.agreement.n_inliers,
    )
