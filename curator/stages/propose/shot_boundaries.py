"""Finds shots in a track: where boundaries are, and which frames belong to none.

The shot network alone misses what pictures show plainly (jump cuts, changes of a slide) and fires
on flashes and jumps of exposure. Two models look for boundaries, each logistic in a few terms: one
weighs a peak of the network by what is different on its two sides, the other finds steps that stand
out from all around them, whatever the network says. Their weights were fitted by
`benchmarks/fit_shots.py` on films made by code, none of which scores the result.
"""

# ruff: noqa: N803 - shape letters

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from curator.records.clips import Shot, Transition
from curator.records.tracks import Track
from curator.stages.propose.config import ProposeConfig

Floats = NDArray[np.float64]
Gap = tuple[int, int]
"""Half-open span of frames in no shot; empty at a cut, where only the position counts."""
Run = tuple[int, int]
"""First and last frame, inclusive, of neighbours that have something in common."""

NETWORK_TERMS: dict[str, float] = {
    "constant": -4.423,
    "heads": 1.024,
    "contrast": 1.111,
    "colour_13": 1.504,
    "net_24": 4.089,
}
"""Weights of the model of the network's peaks: mean log odds of its two heads within two frames,
logarithm of the contrast of the step there, and how colours and contrast differ farther out. They
are an earlier fit's: one with the films of today finds no more (benchmarks/results/shots.md)."""

STEP_TERMS: dict[str, float] = {"constant": 1.447, "change_beside": -0.643}
"""Weights of the model of steps: logarithm of how much the picture changes on either side of the
step over as many frames as `step_13` has. Where all moves anyway, lost frames make steps."""

NEAR_FRAMES = 6
"""Two candidates within so many frames are one; the likelier stands."""

LEAST_PEAK, LEAST_STEP = 0.2, 0.5
"""What a candidate must exceed: the network's probability, and levels of a step."""

LEAST_CONTRAST = 4.0
"""What a step's contrast must exceed. Of the made films' steps below 5 levels that the network does
not see, 7 of 49 between 2 and 3 are boundaries, 6 of 15 between 3 and 4, and 13 of 20 above."""

NOISE_LEVELS = 0.3
"""Step of a still film, in levels: what a step's contrast is measured against at least."""

FLAT_SPREAD = 0.012
"""Spread of luma below which a frame shows nothing: 3 levels of 255, the noise of a black frame."""

BLACK_LUMA, BLACK_SPREAD = 0.02, 0.03
"""Mean and spread of luma below which a frame is black, with a line of small print at most."""


def find_shots(track: Track, config: ProposeConfig) -> list[Shot]:
    """Shots in order.

    Frames of gradual transitions and of black or flat stretches belong to none; a film that is flat
    throughout has no shot.
    """
    spans = _runs(track.transition_probability > config.transition_threshold)
    find = _network_gaps if config.shots == "network" else _fused_gaps
    gaps = [*find(track, config, spans), *_flat_gaps(track, config, spans)]
    return _between(gaps, track.n_frames)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Places that may be boundaries.

    Attributes:
        frames: int64 [K], the last frame before each.
        is_peak: bool [K], whether the network has a peak there.
        network_terms: float64 [K, T], in the order of `NETWORK_TERMS`.
        is_step: bool [K], whether the pictures step there.
        step_terms: float64 [K, T], in the order of `STEP_TERMS`.
        contrast: float64 [K], how much the step stands out from those around it; above 1 the
            boundary is sharp.
    """

    frames: NDArray[np.int64]
    is_peak: NDArray[np.bool_]
    network_terms: Floats
    is_step: NDArray[np.bool_]
    step_terms: Floats
    contrast: Floats


def find_candidates(
    shot_probability: NDArray[np.float32],
    transition_probability: NDArray[np.float32],
    change_values: Mapping[str, NDArray[np.float32]],
) -> Candidates:
    """Peaks of the network, and steps of the pictures, with what the models need.

    Args:
        shot_probability: float32 [F], the network's first head.
        transition_probability: float32 [F], its second.
        change_values: float32 [F] each, by the names of `CHANGES`.
    """
    changes = {name: values.astype(np.float64) for name, values in change_values.items()}
    single = shot_probability.astype(np.float64)
    many = transition_probability.astype(np.float64)
    step = changes["step"].copy()
    step[-1] = 0.0
    # A flash steps up and back: what lasts is what is still there one, and six, frames farther out.
    lasting = np.minimum.reduce(
        [step, -_highest(-changes["step_3"], 1), -_highest(-changes["step_13"], 5)]
    )
    contrast = lasting / (NOISE_LEVELS + _highest_beside(step, 8))
    is_step = (lasting >= _highest(lasting, 3)) & (contrast > LEAST_CONTRAST)
    is_step &= lasting > LEAST_STEP
    is_peak = np.zeros(len(step), np.bool_)
    for frame in np.flatnonzero((single >= _highest(single, 3)) & (single > LEAST_PEAK)).tolist():
        # The network may be off by a frame or two; a step says where the cut is.
        first = max(0, frame - 2)
        sharpest = first + int(np.argmax(lasting[first : frame + 3]))
        is_peak[sharpest if contrast[sharpest] > 0.7 else frame] = True
    ones = np.ones_like(step)
    network_terms = np.stack(
        [
            ones,
            (_logit(_highest(single, 2)) + _logit(_highest(many, 2))) / 2,
            np.clip(np.log(_highest(contrast, 2) + 0.05), -1, 1.5),
            changes["colour_13"],
            np.minimum(changes["net_24"], 1.5),
        ],
        axis=1,
    )
    # Seven frames away, thirteen frames reach up to the step and not over it.
    step_terms = np.stack([ones, np.log(_mean_of_two(changes["step_13"], 7) + 1)], axis=1)
    frames = np.flatnonzero(is_peak | is_step)
    return Candidates(
        frames,
        is_peak[frames],
        network_terms[frames],
        is_step[frames],
        step_terms[frames],
        contrast[frames],
    )


def boundary_probability(
    candidates: Candidates, network_weights: Floats, step_weights: Floats
) -> Floats:
    """Probability of each candidate, float64 [K]: of the model that is surer of it."""
    by_network = _logistic(candidates.network_terms @ network_weights) * candidates.is_peak
    by_step = _logistic(candidates.step_terms @ step_weights) * candidates.is_step
    return np.asarray(np.maximum(by_network, by_step))


def likeliest(frames: NDArray[np.int64], probability: Floats, threshold: float) -> list[int]:
    """Indices of candidates above a threshold, of several close ones the likeliest.

    Args:
        frames: int64 [K], increasing.
        probability: float64 [K].
        threshold: What a probability must exceed.
    """
    taken: list[int] = []
    used = np.zeros(int(frames[-1]) + 2 * NEAR_FRAMES + 1 if len(frames) else 0, np.bool_)
    for index in np.argsort(-probability, kind="stable").tolist():
        if probability[index] <= threshold:
            break
        if not used[frames[index] : frames[index] + 2 * NEAR_FRAMES + 1].any():
            used[frames[index] + NEAR_FRAMES] = True
            taken.append(index)
    return taken


def _fused_gaps(track: Track, config: ProposeConfig, spans: list[Run]) -> list[Gap]:
    """Transitions by both models: the frames that the network's second head marks around each."""
    candidates = find_candidates(
        track.shot_probability, track.transition_probability, track.changes
    )
    probability = boundary_probability(
        candidates, np.array(list(NETWORK_TERMS.values())), np.array(list(STEP_TERMS.values()))
    )
    # Around a cut the second head marks a frame or two.
    wide = [(first, last) for first, last in spans if last - first > 3]
    gaps: list[Gap] = []
    for index in likeliest(candidates.frames, probability, config.boundary_threshold):
        frame = int(candidates.frames[index])
        first, last = _widened(frame, frame, wide if candidates.contrast[index] > 1 else spans)
        gaps.append((first + 1, last + 1))
    return gaps


def _network_gaps(track: Track, config: ProposeConfig, spans: list[Run]) -> list[Gap]:
    """Transitions by the network alone.

    The first head of TransNetV2 peaks on the last frame before a cut, or in the middle of a gradual
    transition; the second marks all frames of a transition. A transition is a run of the first
    head widened to the run of the second that it touches.
    """
    peaks = _runs(track.shot_probability > config.shot_threshold)
    widened = (_widened(first, last, spans) for first, last in peaks)
    return [(first + 1, last + 1) for first, last in widened]


def _flat_gaps(track: Track, config: ProposeConfig, spans: list[Run]) -> list[Gap]:
    """Black and flat stretches, with the fades to and from them."""
    is_black = (track.luma_mean < BLACK_LUMA) & (track.luma_spread < BLACK_SPREAD)
    least_ticks = config.flat_s / float(track.time_base)
    gaps: list[Gap] = []
    for first, last in _runs(is_black | (track.luma_spread < FLAT_SPREAD)):
        if track.pts_of_end(last + 1) - int(track.frame_pts[first]) >= least_ticks:
            start, end = _widened(first, last, spans)
            gaps.append((start, end + 1))
    return gaps


def _widened(first: int, last: int, spans: list[Run]) -> Run:
    """A run of frames together with those that touch it."""
    touching = [span for span in spans if span[0] <= last + 1 and span[1] >= first - 1]
    firsts, lasts = zip((first, last), *touching, strict=True)
    return min(firsts), max(lasts)


def _between(gaps: list[Gap], n_frames: int) -> list[Shot]:
    """Shots between gaps, which may touch and overlap."""
    merged: list[Gap] = []
    for start, end in sorted(gaps):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif start < n_frames:
            merged.append((start, min(end, n_frames)))
    shots: list[Shot] = []
    start = 0
    kind_in: Transition = "none"
    for gap_start, gap_end in [*merged, (n_frames, n_frames)]:
        at_end = gap_start >= n_frames
        kind_out: Transition = "none" if at_end else "cut" if gap_start == gap_end else "gradual"
        if gap_start > start:
            span = {"start_frame": start, "end_frame": gap_start}
            shots.append(Shot(**span, transition_in=kind_in, transition_out=kind_out))
        start, kind_in = gap_end, kind_out
    return shots


def _runs(mask: NDArray[np.bool_]) -> list[Run]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.view(np.int8), [0]))))
    return [(int(a), int(b) - 1) for a, b in edges.reshape(-1, 2)]


def _highest(values_F: Floats, reach: int) -> Floats:
    """Highest value within so many frames on either side, float64 [F]."""
    padded = np.pad(values_F, reach, constant_values=-np.inf)
    return np.asarray(sliding_window_view(padded, 2 * reach + 1).max(axis=1))


def _highest_beside(values_F: Floats, reach: int) -> Floats:
    """The same without the frame itself; 0 where there is no other."""
    padded = np.pad(values_F, reach + 1, constant_values=0.0)
    windows = sliding_window_view(padded, reach).max(axis=1)
    n_frames = len(values_F)
    return np.asarray(np.maximum(windows[1 : n_frames + 1], windows[reach + 2 :][:n_frames]))


def _mean_of_two(values_F: Floats, away: int) -> Floats:
    """Mean of the values so many frames before and after, which are 0 beyond the ends."""
    padded = np.pad(values_F, away, constant_values=0.0)
    return np.asarray((padded[: len(values_F)] + padded[2 * away :]) / 2)


def _logistic(score_K: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-score_K)))


def _logit(probability_F: Floats) -> Floats:
    clipped = np.clip(probability_F, 1e-3, 1 - 1e-3)
    return np.asarray(np.log(clipped / (1 - clipped)))
