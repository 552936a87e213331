"""Finds shot boundaries in a track, by the shot head and by the similarity of both sides.

The pictures on both sides of a boundary have little in common: the cosine of their perceptual
descriptors is below 0.4 at 19 of 20 boundaries, and below 0.7 at 11 of 16 cuts within a take. Both
sides of a flash, a banner, an inset or a jump of exposure are similar, because they are one take;
after a jump of exposure, one side is brighter. The bounds and slopes of the odds were chosen by
hand, on the half `tune` of the footage and on development media (`benchmarks/results/shots.md`).

The score `shot_doubt` is the probability that a clip contains a boundary. It always uses
transitions at a probability of 0.5, not the recipe's bound. If a recipe finds shots with the
network alone, each boundary of the head inside the clip counts.

Shape letters: F frames, K boundaries.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator.measures.clip_view import ClipView
from curator.measures.measure_contract import OF_TIME, ScoreSpec
from curator.records.tracks import Track

NEAR_FRAMES = 6  # peaks within this many frames are one boundary, at the highest peak
INSIDE, LEAST = 0.5, 0.01  # lower bounds: of frames inside a transition; of peaks
COMMON_COSINE, ODDS_SLOPE = 0.5, 8.0  # above this cosine, log odds fall by the slope per unit
EXPOSURE_COSINE, EXPOSURE_STEP, EXPOSURE_ODDS = 0.7, 0.06, 3.0
"""Above this cosine and this difference in mean luma (0 to 1), log odds fall by `EXPOSURE_ODDS`."""
REACH_S = 1.0  # largest distance of a sample that is compared

_UNLIKE_COSINE, _UNLIKE_ODDS = 0.2, 1.5
"""Below this cosine, both sides have nothing in common, and the log odds of a doubt rise.

Pictures before and after a pan also have nothing in common. So only doubts rise: no shot ends.
"""


class Boundary(NamedTuple):
    """A possible boundary."""

    frame: int  # the last frame before a cut, or the middle of a gradual transition
    start: int  # first frame inside the transition; at a cut, the first frame after it
    end: int  # first frame after the transition; equal to `start` at a cut
    probability: float  # probability of a boundary, given the similarity of both sides
    likeness: float | None  # cosine of both sides; None without samples close to it


def boundary_peaks(values_F: NDArray[np.floating], least: float = 0.0) -> NDArray[np.int64]:
    """Returns the frames of peaks above `least`, in order, int64 [K]; of near peaks the highest."""
    likely = np.flatnonzero(values_F > least)
    is_near = np.zeros(len(values_F) + NEAR_FRAMES, np.bool_)
    peaks: list[int] = []
    for frame in likely[np.argsort(-values_F[likely], kind="stable")].tolist():
        if not is_near[frame]:
            is_near[max(0, frame - NEAR_FRAMES) : frame + NEAR_FRAMES + 1] = True
            peaks.append(frame)
    return np.array(sorted(peaks), np.int64)


def boundaries(
    track: Track, span: slice = slice(None), *, inside: float = INSIDE
) -> list[Boundary]:
    """Returns the boundaries in a span of frames, at peaks above `LEAST`, in order.

    `inside` is the probability above which a frame is inside a transition.
    """
    first, end, _ = span.indices(track.n_frames)
    low, high = _independent(track.boundary_probability, first, end)
    peaks = boundary_peaks(track.boundary_probability[low:high], LEAST) + low
    frames = peaks[(peaks >= first) & (peaks < end)]
    # The frames outside transitions that are next to each peak, before and after.
    outside = np.flatnonzero(track.inside_probability <= inside)
    place = np.searchsorted(outside, frames, side="right")
    bounded = np.concatenate([[-1], outside, [track.n_frames]])
    extents = zip(
        frames.tolist(), bounded[place].tolist(), bounded[place + 1].tolist(), strict=True
    )
    return [_weighed(track, frame, low + 1, high) for frame, low, high in extents]


def _independent(probability_F: NDArray[np.float32], first: int, end: int) -> tuple[int, int]:
    """Returns the smallest span that includes [first, end) and whole chains of near peaks."""
    likely = np.flatnonzero(probability_F > LEAST)
    parted = np.flatnonzero(np.diff(likely) > NEAR_FRAMES) + 1
    firsts = likely[np.concatenate([[0], parted])] if len(likely) else likely
    lasts = likely[np.concatenate([parted - 1, [-1]])] if len(likely) else likely
    low, high = firsts[lasts >= first], lasts[firsts < end]
    return min(first, int(low[0]) if len(low) else first), max(
        end, int(high[-1]) + 1 if len(high) else end
    )


def _weighed(track: Track, frame: int, first: int, last: int) -> Boundary:
    """Returns the boundary at a peak; [first, last) are frames inside its transition, if any."""
    # A peak is near the middle of its transition: one side has at most twice the frames of the
    # other, plus one. Further frames are a fast movement after a cut.
    before, after = frame + 1 - first, last - frame - 1
    start, end = frame + 1 - min(before, 2 * after + 1), frame + 1 + min(after, 2 * before + 1)
    probability = float(track.boundary_probability[frame])
    likeness = _likeness(track, start, end)
    if likeness is not None and likeness > COMMON_COSINE:
        odds = ODDS_SLOPE * (likeness - COMMON_COSINE)
        luma = track.luma_mean[[start - 1, end]]
        if likeness > EXPOSURE_COSINE and abs(float(luma[1] - luma[0])) > EXPOSURE_STEP:
            odds += EXPOSURE_ODDS
        probability = raised(probability, -odds)
    return Boundary(frame, start, end, probability, likeness)


def raised(probability: float, log_odds: float) -> float:
    """Returns a probability with log odds increased by `log_odds`."""
    odds = probability / max(1 - probability, 1e-4) * math.exp(log_odds)
    return odds / (1 + odds)


def _likeness(track: Track, start: int, end: int) -> float | None:
    """Returns the cosine of the descriptors next to a transition; None without near samples."""
    before = int(np.searchsorted(track.sample_frame, start)) - 1
    after = int(np.searchsorted(track.sample_frame, end))
    if before < 0 or after >= len(track.descriptor):
        return None
    pts, limit = track.frame_pts, REACH_S / float(track.time_base)
    one, other = int(track.sample_frame[before]), int(track.sample_frame[after])
    if pts[min(start, len(pts) - 1)] - pts[one] > limit or pts[other] - pts[end - 1] > limit:
        return None
    pair = track.descriptor[[before, after]].astype(np.float64)
    return float(pair[0] @ pair[1]) if pair.any(axis=1).all() else None


def _shot_doubt(clip: ClipView) -> float | None:
    if not len(clip.track.boundary_probability):
        return None
    start, end = clip.span.start_frame, clip.span.end_frame
    # A boundary at the last frame is the clip's own end.
    inner = boundaries(clip.track, slice(start, end - 1))
    unlike = [b.likeness is not None and b.likeness < _UNLIKE_COSINE for b in inner]
    pairs = zip(inner, unlike, strict=True)
    doubts = (raised(b.probability, _UNLIKE_ODDS) if is_so else b.probability for b, is_so in pairs)
    return max(doubts, default=0.0)


SCORES = {
    "shot_doubt": ScoreSpec(
        unit="probability",
        range="0 to 1",
        meaning="highest probability of a shot boundary inside the clip; higher if both sides have "
        "nothing in common; `max: 0.2` keeps only clips without a doubtful boundary",
        outside="shot_doubt",
        of=_shot_doubt,
        media=OF_TIME,
    )
}
