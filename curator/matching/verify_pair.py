"""Verifies whether two clips show the same footage, by alignment in time, geometry and motion.

Shape letters: A, B picture vectors of the clips.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from curator.matching.alignment import (
    OTHER_SPEEDS,
    Alignment,
    alignments,
    cosines,
    pulse,
    refined,
    votes,
)
from curator.matching.clip_footage import SIDE_PX, ClipFootage, Keypoints
from curator.matching.edited_footage import backward, negative, without_bars
from curator.matching.geometry import MIN_INLIERS, Agreement, agreement
from curator.matching.motion_agreement import MotionAgreement, motion_agreement


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Footage that clips a and b share: `time_b = speed * time_a + offset_s`."""

    offset_s: float  # time in b of a's first frame, in seconds of b; negative if b begins later
    speed: float  # seconds of b per second of a; 0.8 if b plays 1.25 times as fast
    start_s: float  # begin of the shared footage in a
    overlap_s: float  # length of the shared footage, in seconds of a
    share_a: float  # share of a that b shows, 0 to 1
    share_b: float  # share of b that a shows, 0 to 1
    mirrored: bool  # whether one clip is a mirror image
    similarity: float  # largest cosine of picture vectors at about the same time, 0 to 1
    n_inliers: int  # keypoints that agree, in up to three pairs of pictures


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """The edits, besides crops, mirroring and changes of colour, that clip a may be of clip b."""

    speeds: tuple[float, ...] = OTHER_SPEEDS  # seconds of b per second of a, besides 1
    turned: bool = False  # by quarter turns, or upside down
    boxed: bool = False  # with bars, whose share of the luma is taken out
    negative: bool = False
    backward: bool = False
    short_luma: float = -1.0  # least correlation of luma over less than `_MIN_SPAN_S`


COMMON_EDITS = Edits()
ALL_EDITS = Edits(
    speeds=(*OTHER_SPEEDS, 1.5, 1 / 1.5),
    short_luma=0.9,
    turned=True,
    boxed=True,
    negative=True,
    backward=True,
)
# 98% of negatives in benchmarks/results/removed.md have a higher cosine, other footage rarely has.
_NEGATIVE_COSINE = 0.6
MIN_COSINE = 0.2  # clips whose picture vectors all have a lower cosine never match
_VOTES_BELOW = 0.15  # guesses may have a cosine this much below that of the vote
_N_VOTED = 5  # picture vectors of a whose keypoints are compared for the vote
_MIN_VOTED_INLIERS = 6
_SAME_MOMENT_S = 0.3  # largest distance of pictures of one moment, unless pictures are rarer
_FIXED_PX = 6.0  # largest difference of two transforms with a fixed background
_MARGIN_S, _EDGE_S = 0.25, 0.6
_PICTURE_S = 0.2  # footage that is shorter is a still image: of one value of luma
_N_GEOMETRY, _N_MOTION = 3, 8  # most pairs of pictures for geometry and for motion
_N_GUESSES, _N_OTHER_SPEEDS = 6, 3  # most guesses at speed 1 and at other speeds
_N_VOTE_PAIRS, _AROUND_S = 2, (0.0, -0.4, 0.4, -0.8, 0.8)  # for `votes`
_DECISIVE = 1.6  # from this strength on, the other guesses of a list are not tried
# Thresholds fit one half of the recordings of benchmarks/duplicates.py; the other half tests them.
_MIN_PAIRS, _MIN_SPAN_S, _MIN_SPAN_SHARE, _LONG_SPAN_S = 2, 2.0, 0.7, 3.0
_STILL_SHARE, _STILL_LIKENESS, _STILL_LIKENESS_RICH = 0.1, 0.9, 0.6
_LUMA_LONGEST, _LUMA_LONG, _LUMA_CLOSE, _LUMA_MOVING = 0.85, 0.9, 0.965, 0.5
_LONGEST_SPAN_S = 5.0
# Luma of copies at a rare speed or backward has 0.92 or more in the half `tune` of removed footage.
_RARE_LUMA = 0.85
_MOTION, _MOTION_FIXED, _MOTION_AHEAD = 0.55, 0.75, 0.3
_BOTH, _BOTH_FIXED, _BOTH_OTHER_SPEED = 1.0, 1.3, 1.6
_FIXED_LIKENESS = 0.8
_MIN_AGREEING_S = 0.3
_SHORT_SPAN_S, _MANY_INLIERS, _CLEARLY, _MORE_AGREEING = 2.0, 20, 0.1, 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Whether pictures of a are mirrored, and may be turned, to be those of b."""

    mirrored: bool
    may_turn: bool

    def agreement(self, pairs: Sequence[tuple[Keypoints, Keypoints]]) -> Agreement | None:
        """Returns the transform from pictures of a to those of b."""
        return agreement(pairs, mirrored=self.mirrored, may_turn=self.may_turn)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """Evidence for a guess; times are in seconds of a."""

    guess: Alignment
    agreement: Agreement
    motion: MotionAgreement | None  # None if `motion_agreement` cannot compare the pictures
    moving_share: float  # the smaller one of both clips
    start_s: float  # begin of the span that agrees
    end_s: float  # its end
    correlation: float  # of the pulses, -1 to 1
    is_background_fixed: bool  # False if `motion` is not None
    shorter_s: float  # length of the shorter clip

    @property
    def span_s(self) -> float:
        """Length of the span that agrees."""
        return self.end_s - self.start_s

    @property
    def strength(self) -> float:
        """Sum of the correlations of luma and of changes in pictures, -2 to 2."""
        return self.correlation + (0.0 if self.motion is None else self.motion.aligned)

    @property
    def is_close(self) -> bool:
        """Whether other guesses need no trial: nothing moves, or luma agrees closely."""
        is_still = self.motion is not None and self.motion.is_still
        return is_still or self.correlation >= _LUMA_CLOSE


def verify_pair(a: ClipFootage, b: ClipFootage, edits: Edits = COMMON_EDITS) -> Match | None:
    """Finds the footage that two clips share.

    `edits` are tried after the common ones: each costs time if the clips differ. `Match` has the
    times of b as it is played backward if only this agrees.

    Returns:
        None without evidence of shared footage. Flat pictures, and a crop of a fixed camera in
        which nothing moves, give no evidence.
    """
    best = _as_it_is(a, b, edits)
    if best is None and edits.negative and cosines(a, b).max(initial=-1) >= _NEGATIVE_COSINE:
        b = negative(b)
        best = _as_it_is(a, b, edits)
    return None if best is None else _match(a, b, best)


def _as_it_is(a: ClipFootage, b: ClipFootage, edits: Edits) -> "Evidence | None":
    voted = _voted(a, b, may_turn=edits.turned)
    if voted is None:
        return None
    best = _in_time(a, b, *voted, edits.speeds, short_luma=edits.short_luma)
    rare = partial(_in_time, speeds=(), least_luma=_RARE_LUMA, short_luma=edits.short_luma)
    if best is None and edits.backward:
        best = rare(a, backward(b), *voted)
    if best is None and edits.boxed and (inner := without_bars(a)) is not None:
        best = rare(inner, b, *voted)
    return best


def _in_time(
    a: ClipFootage,
    b: ClipFootage,
    cosine: float,
    frame: Frame,
    speeds: Sequence[float],
    least_luma: float = -1.0,
    short_luma: float = -1.0,
) -> "Evidence | None":
    prove = partial(_best, a, b, frame=frame, least_luma=least_luma, short_luma=short_luma)
    # Guesses need pictures about as alike as the pair that voted.
    near = partial(alignments, a, b, min_cosine=cosine - _VOTES_BELOW)
    best = prove(near(speeds=(1.0,), most=_N_GUESSES))
    if best is None:
        best = prove(votes(a, b, most=_N_VOTE_PAIRS, around_s=_AROUND_S))
    if speeds and (best is None or not best.is_close):
        least_s = 0.0 if best is None else _MORE_AGREEING * best.guess.agreeing_s
        guesses = near(speeds=speeds, most=_N_OTHER_SPEEDS)
        other = prove([g for g in guesses if g.agreeing_s > least_s])
        if other is not None and (best is None or other.strength > best.strength + _CLEARLY):
            best = other
    return best


def _best(
    a: ClipFootage,
    b: ClipFootage,
    guesses: Sequence[Alignment],
    *,
    frame: Frame,
    least_luma: float,
    short_luma: float,
) -> Evidence | None:
    """Returns the strongest evidence that proves shared footage, or the first decisive one."""
    best: Evidence | None = None
    for candidate in _evidence(a, b, guesses, frame):
        is_rare = candidate.guess.speed not in (1.0, *OTHER_SPEEDS)
        least = _RARE_LUMA if is_rare else least_luma
        if candidate.span_s < _MIN_SPAN_S and not (is_picture(a) or is_picture(b)):
            least = max(least, short_luma)
        if candidate.correlation < least:
            continue
        if _is_same(candidate) and (best is None or candidate.strength > best.strength):
            best = candidate
            if best.is_close or best.strength >= _DECISIVE:
                break
    return best


def _evidence(
    a: ClipFootage, b: ClipFootage, guesses: Sequence[Alignment], frame: Frame
) -> Iterator[Evidence]:
    """Yields the evidence for each guess whose geometry agrees."""
    moving_share = min(pulse(a).moving_share, pulse(b).moving_share)
    for guess in guesses:
        pairs = _same_moments(a, b, guess)
        keypoints = [(a.keypoints(i), b.keypoints(j)) for i, j in pairs[:_N_GEOMETRY]]
        geometry = frame.agreement(keypoints) if keypoints else None
        if geometry is None or geometry.n_inliers < MIN_INLIERS:
            continue
        # In order of time, because `motion_agreement` looks for a run.
        near = sorted(pairs[:_N_MOTION])
        jpegs = [(a.pictures[i], b.pictures[j]) for i, j in near]
        motion = motion_agreement(jpegs, geometry.transform_23, mirrored=frame.mirrored)
        start_s, end_s = _overlap(a, b, guess)
        if motion is not None:
            if motion.first > 0:
                start_s = max(start_s, float(a.picture_s[near[motion.first][0]]) - _MARGIN_S)
            if motion.last < len(near) - 1:
                end_s = min(end_s, float(a.picture_s[near[motion.last][0]]) + _MARGIN_S)
        moved, correlation = refined(a, b, guess, span_s=_overlap(a, b, guess))
        if correlation >= _LUMA_LONG:
            # The run of pictures is too short if the camera moves fast; luma counts instead.
            start_s, end_s = _overlap(a, b, moved)
        else:
            moved, correlation = refined(a, b, guess, span_s=(start_s, end_s))
        yield Evidence(
            guess=moved,
            agreement=geometry,
            motion=motion,
            moving_share=moving_share,
            start_s=start_s,
            end_s=end_s,
            correlation=correlation,
            shorter_s=min(a.duration_s, b.duration_s / guess.speed),
            is_background_fixed=motion is None
            and _is_background_fixed(a, b, near, geometry, frame),
        )


def _is_background_fixed(
    a: ClipFootage,
    b: ClipFootage,
    pairs: Sequence[tuple[int, int]],
    geometry: Agreement,
    frame: Frame,
) -> bool:
    """Whether the transform also fits pictures of different moments, if there are two pairs."""
    (i, _), (_, j) = pairs[0], pairs[-1]
    other = frame.agreement([(a.keypoints(i), b.keypoints(j))])
    if other is None or len(pairs) < _MIN_PAIRS:
        return other is not None
    middle = np.array([SIDE_PX / 2, SIDE_PX / 3, 1])
    away_px = float(np.abs((other.transform_23 - geometry.transform_23) @ middle).max())
    return away_px < _FIXED_PX


def is_picture(clip: ClipFootage) -> bool:
    """Whether footage is a still image, whose luma over time says nothing."""
    return clip.duration_s < _PICTURE_S


def _overlap(a: ClipFootage, b: ClipFootage, guess: Alignment) -> tuple[float, float]:
    """Returns begin and end of the part of a that overlaps with b."""
    start_s = max(0.0, -guess.offset_s / guess.speed)
    return start_s, min(a.duration_s, (b.duration_s - guess.offset_s) / guess.speed)


def _voted(a: ClipFootage, b: ClipFootage, *, may_turn: bool) -> tuple[float, Frame] | None:
    """Returns the cosine of the most alike pictures with agreeing keypoints, and how they agree."""
    cosines_AB = cosines(a, b)
    # A clip may have vectors without pictures.
    if not (cosines_AB.size and len(a.picture_s) and len(b.picture_s)):
        return None
    best_A = cosines_AB.argmax(1)
    order = np.argsort(-cosines_AB.max(1))[:_N_VOTED]
    for at in order:
        cosine = float(cosines_AB[at, best_A[at]])
        if cosine < MIN_COSINE:
            return None
        i = int(np.abs(a.picture_s - float(a.vector_s[at])).argmin())
        j = int(np.abs(b.picture_s - float(b.vector_s[best_A[at]])).argmin())
        pair = [(a.keypoints(i), b.keypoints(j))]
        for mirrored in (False, True):
            frame = Frame(mirrored=mirrored, may_turn=may_turn)
            geometry = frame.agreement(pair)
            if geometry is not None and geometry.n_inliers >= _MIN_VOTED_INLIERS:
                return cosine, frame
    return None


def _same_moments(a: ClipFootage, b: ClipFootage, guess: Alignment) -> list[tuple[int, int]]:
    """Returns pairs of pictures at the same moments, by distance in time from the vote."""
    wanted = guess.speed * a.picture_s + guess.offset_s
    nearest = np.abs(b.picture_s[None] - wanted[:, None]).argmin(1)
    apart = np.abs(b.picture_s[nearest] - wanted)
    spacing_s = float(np.median(np.diff(b.picture_s))) if len(b.picture_s) > 1 else 0.0
    reach_s = max(_SAME_MOMENT_S, 0.51 * spacing_s)

    def place(i: int) -> float:
        at_s, is_run = float(a.picture_s[i]), guess.agreeing_s > 0.1
        outside_s = max(guess.start_s - at_s, at_s - guess.end_s, 0) if is_run else 0
        return abs(at_s - guess.voted_s) + 10 * outside_s

    usable = sorted(np.flatnonzero(apart <= reach_s).tolist(), key=place)
    return [(i, int(nearest[i])) for i in usable]


def _is_same(candidate: Evidence) -> bool:
    """Whether evidence proves shared footage.

    Luma, changes in pictures, or their sum must agree for long enough. Thresholds are higher for a
    short agreement and for another speed. If nothing moves, the pictures' likeness decides.
    """
    motion, luma = candidate.motion, candidate.correlation
    is_own_speed = candidate.guess.speed == 1
    if candidate.span_s < min(_MIN_SPAN_S, _MIN_SPAN_SHARE * candidate.shorter_s):
        return False
    is_still = candidate.moving_share < _STILL_SHARE
    is_long = candidate.span_s >= _LONG_SPAN_S
    least_luma = _LUMA_LONG if is_long and is_own_speed else _LUMA_CLOSE
    if candidate.span_s >= _LONGEST_SPAN_S and is_own_speed:
        least_luma = _LUMA_LONGEST
    if motion is None:
        proof = least_luma if candidate.is_background_fixed else _LUMA_MOVING
        return luma >= proof or (is_still and is_own_speed)
    if is_still and motion.is_still:
        is_rich = candidate.agreement.n_inliers >= _MANY_INLIERS
        return is_own_speed and motion.likeness >= (
            _STILL_LIKENESS_RICH if is_rich else _STILL_LIKENESS
        )
    if luma >= least_luma:
        return True
    # With a fixed camera the background always agrees, and similar movements occur twice.
    is_fixed = motion.likeness_others >= _FIXED_LIKENESS
    ahead = motion.aligned - motion.others
    least = _MOTION_FIXED if is_fixed else _MOTION
    if motion.aligned >= least and ahead >= _MOTION_AHEAD and is_own_speed:
        return True
    if candidate.span_s >= _SHORT_SPAN_S and is_own_speed and not is_fixed:
        return candidate.strength >= _BOTH
    least = _BOTH_FIXED if is_long and is_own_speed else _BOTH_OTHER_SPEED
    return (is_long or is_own_speed) and candidate.strength >= least


def _match(a: ClipFootage, b: ClipFootage, candidate: Evidence) -> Match:
    guess = candidate.guess
    start_s, end_s = candidate.start_s, candidate.end_s
    if guess.agreeing_s >= _MIN_AGREEING_S:
        start_s, end_s = min(start_s, guess.start_s), max(end_s, guess.end_s)
    first_s, last_s = _overlap(a, b, guess)
    start_s = first_s if start_s - first_s < _EDGE_S else start_s
    end_s = last_s if last_s - end_s < _EDGE_S else end_s
    overlap_s = max(0.0, end_s - start_s)
    return Match(
        offset_s=guess.offset_s,
        speed=guess.speed,
        start_s=start_s,
        overlap_s=overlap_s,
        share_a=min(1.0, overlap_s / a.duration_s),
        share_b=min(1.0, overlap_s * guess.speed / b.duration_s),
        mirrored=candidate.agreement.mirrored,
        similarity=max(0.0, min(1.0, guess.cosine)),
        n_inliers=candidate.agreement.n_inliers,
    )
