"""Whether two clips show the same footage: alignment in time, then geometry, then movement."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from curator.matching.alignment import Alignment, alignments, cosines, pulse
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


MIN_COSINE = 0.2
"""Cosine of the best picture vectors below which a pair is not looked at."""
_VOTES_BELOW = 0.15
_N_VOTED = 3
_MIN_VOTED_INLIERS = 8
_SAME_MOMENT_S = 0.3
_N_GEOMETRY, _N_MOTION = 3, 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """What a guess rests on: alignment, geometry and, where there are pictures, movement."""

    guess: Alignment
    agreement: Agreement
    motion: MotionAgreement | None
    moving_share: float
    n_pairs: int


def verify_pair(a: ClipFootage, b: ClipFootage) -> Match | None:
    """Compares two clips.

    Returns:
        Where they show the same footage; None where they do not, or where nothing in them could
        tell: flat pictures, or a crop of a fixed camera in which nothing moves.
    """
    found = next((e for e in evidence(a, b) if is_same(e)), None)
    return None if found is None else _match(a, b, found)


def evidence(a: ClipFootage, b: ClipFootage) -> Iterator[Evidence]:
    """Yields alignments whose geometry agrees, likeliest first, with what else is known of them."""
    voted = _voted(a, b)
    if voted is None:
        return
    cosine, mirrored = voted
    moving_share = min(pulse(a).moving_share, pulse(b).moving_share)
    for guess in alignments(a, b, min_cosine=cosine - _VOTES_BELOW):
        pairs = _same_moments(a, b, guess)
        keypoints = [(a.keypoints(i), b.keypoints(j)) for i, j in pairs[:_N_GEOMETRY]]
        found = agreement(keypoints, mirrored=mirrored) if keypoints else None
        if found is None or found.n_inliers < MIN_INLIERS:
            continue
        jpegs = [
            (p, q)
            for p, q in ((a.pictures[i], b.pictures[j]) for i, j in sorted(pairs[:_N_MOTION]))
            if isinstance(p, bytes) and isinstance(q, bytes)
        ]
        motion = motion_agreement(jpegs, found.transform_23, mirrored=mirrored) if jpegs else None
        yield Evidence(
            guess=guess,
            agreement=found,
            motion=motion,
            moving_share=moving_share,
            n_pairs=len(pairs),
        )


def _voted(a: ClipFootage, b: ClipFootage) -> tuple[float, bool] | None:
    """Cosine of the first of the most alike pictures whose keypoints agree; whether mirrored."""
    cosines_AB = cosines(a, b)
    if not cosines_AB.size:
        return None
    best_A = cosines_AB.argmax(1)
    order = np.argsort(-cosines_AB.max(1))[:_N_VOTED]
    for at in order:
        cosine = float(cosines_AB[at, best_A[at]])
        if cosine < MIN_COSINE:
            return None
        i = _picture_at(a, float(a.vector_s[at]))
        j = _picture_at(b, float(b.vector_s[best_A[at]]))
        pair = [(a.keypoints(i), b.keypoints(j))]
        for mirrored in (False, True):
            found = agreement(pair, mirrored=mirrored)
            if found is not None and found.n_inliers >= _MIN_VOTED_INLIERS:
                return cosine, mirrored
    return None


def _picture_at(clip: ClipFootage, at_s: float) -> int:
    return int(np.abs(clip.picture_s - at_s).argmin())


def _same_moments(a: ClipFootage, b: ClipFootage, guess: Alignment) -> list[tuple[int, int]]:
    """Pictures of a and b of the same moments: near the vote first, then by time."""
    wanted = guess.speed * a.picture_s + guess.offset_s
    nearest = np.abs(b.picture_s[None] - wanted[:, None]).argmin(1)
    apart = np.abs(b.picture_s[nearest] - wanted)
    usable = [int(i) for i in np.flatnonzero(apart <= _SAME_MOMENT_S)]
    usable.sort(key=lambda i: _place(float(a.picture_s[i]), guess))
    return [(i, int(nearest[i])) for i in usable]


def _place(at_s: float, guess: Alignment) -> float:
    outside_s = max(guess.start_s - at_s, at_s - guess.end_s, 0) if guess.agreeing_s > 0.1 else 0
    return abs(at_s - guess.voted_s) + 10 * outside_s


def is_same(found: Evidence) -> bool:
    """Whether evidence proves the same footage."""
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
