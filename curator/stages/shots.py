"""Finds shots in a track: where boundaries are, and which frames belong to none.

The shot network alone misses what colour and layout show plainly (jump cuts, changes of a slide,
wipes) and fires on flashes and jumps of exposure. So candidates from the network and from the
changes between frames are judged together, by a logistic model of a dozen terms. Its weights were
fitted by `benchmarks/fit_shots.py` on films made by code, none of which scores the result.
"""

# ruff: noqa: N803 - shape letters

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from curator.records import Shot, Track, Transition
from curator.stages.propose import ProposeConfig

Floats = NDArray[np.float64]
Gap = tuple[int, int]
"""Half-open span of frames in no shot; empty at a cut, where only the position counts."""

TERMS: dict[str, float] = {
    "constant": 0.0,
    "shot_near": 0.0,
    "transition_near": 0.0,
    "shot_wide": 0.0,
    "transition_wide": 0.0,
    "lasting": 0.0,
    "contrast": 0.0,
    "step_13": 0.0,
    "colour_13": 0.0,
    "net_24": 0.0,
    "replaced": 0.0,
    "around": 0.0,
}
"""Terms of the model with their weights; see `_terms`. Positive speaks for a boundary."""

NEAR_FRAMES = 6
"""Two candidates within so many frames are one; the likelier stands."""

FLAT_SPREAD = 0.012
"""Spread of luma below which a frame shows nothing: 3 levels of 255, the noise of a black frame."""


def find_shots(track: Track, config: ProposeConfig) -> list[Shot]:
    """Shots between boundaries.

    Args:
        track: What was measured.
        config: Thresholds.

    Returns:
        Shots in order. Frames of gradual transitions and of black or flat stretches belong to none;
        a film that is flat throughout has no shot.
    """
    if config.shots == "network":
        gaps = _network_gaps(track.shot_probability, track.transition_probability, config)
    else:
        gaps = _fused_gaps(track, config)
    return _between([*gaps, *_flat_gaps(track, config)], track.n_frames)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Places that may be boundaries.

    Attributes:
        frames: int64 [K], the last frame before each.
        terms: float64 [K, T], the terms of `TERMS`.
        contrast: float64 [K], how much the step there stands out from those around it; above 1
            the boundary is sharp.
    """

    frames: NDArray[np.int64]
    terms: Floats
    contrast: Floats


def find_candidates(
    shot_probability: NDArray[np.float32],
    transition_probability: NDArray[np.float32],
    change_values: Mapping[str, NDArray[np.float32]],
) -> Candidates:
    """Places where the network or the pictures hint at a boundary, and all that speaks for it.

    Args:
        shot_probability: float32 [F], the network's first head.
        transition_probability: float32 [F], its second.
        change_values: float32 [F] each, by the names of `signals.change.CHANGES`.
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
    around = _highest_beside(step, 8)
    contrast = lasting / (0.3 + around)
    terms = np.stack(
        [
            np.ones_like(step),
            _logit(_highest(single, 2)),
            _logit(_highest(many, 2)),
            _logit(_highest(single, 10)),
            _logit(_highest(many, 10)),
            np.log(lasting + 0.1),
            np.log(contrast + 0.05),
            np.log(changes["step_13"] + 0.1),
            changes["colour_13"],
            np.minimum(changes["net_24"], 1.5),
            changes["replaced"],
            np.log(around + 0.1),
        ],
        axis=1,
    )
    frames = _candidate_frames(single, lasting, contrast, changes)
    return Candidates(frames, terms[frames], contrast[frames])


def boundary_probability(candidates: Candidates) -> Floats:
    """The model's probability for each candidate, float64 [K]."""
    score = candidates.terms @ np.array(list(TERMS.values()))
    return np.asarray(1 / (1 + np.exp(-score)), np.float64)


def _candidate_frames(
    single: Floats, lasting: Floats, contrast: Floats, changes: dict[str, Floats]
) -> NDArray[np.int64]:
    stepped = _is_peak(lasting, 3) & (contrast > 1) & (lasting > 0.5)
    # Wipes and slow dissolves: other contrasts and other colours a second later.
    slow = changes["net_24"] * (0.2 + changes["colour_13"])
    unlike = _is_peak(slow, 8) & (slow > 0.2)
    found = set(np.flatnonzero(stepped | unlike).tolist())
    for frame in np.flatnonzero(_is_peak(single, 3) & (single > 0.05)).tolist():
        # The network may be off by a frame or two; a step says where the cut is.
        first = max(0, frame - 2)
        sharpest = first + int(np.argmax(lasting[first : frame + 3]))
        found.add(sharpest if contrast[sharpest] > 0.7 else frame)
    return np.array(sorted(found), np.int64)


def _fused_gaps(track: Track, config: ProposeConfig) -> list[Gap]:
    candidates = find_candidates(
        track.shot_probability, track.transition_probability, track.changes
    )
    probability = boundary_probability(candidates)
    frames = candidates.frames
    taken: list[int] = []
    used = np.zeros(track.n_frames + 2 * NEAR_FRAMES + 1, np.bool_)
    for index in np.argsort(-probability, kind="stable").tolist():
        if probability[index] <= config.boundary_threshold:
            break
        if not used[frames[index] : frames[index] + 2 * NEAR_FRAMES + 1].any():
            used[frames[index] + NEAR_FRAMES] = True
            taken.append(index)
    runs = _runs(track.transition_probability > config.transition_threshold)
    return [_gap_at(track, int(frames[i]), bool(candidates.contrast[i] > 1), runs) for i in taken]


def _gap_at(track: Track, frame: int, is_sharp: bool, runs: list[tuple[int, int]]) -> Gap:
    """The frames of a transition: of the network's run if it saw one, else by what changed."""
    touching = [run for run in runs if run[0] <= frame + 1 and run[1] >= frame - 1]
    if is_sharp:
        # Around a cut the second head marks a frame or two.
        touching = [run for run in touching if run[1] - run[0] > 3]
    elif not touching:
        touching = [_changing_run(track, frame)]
    start = min([frame, *(run[0] for run in touching)]) + 1
    end = max([frame, *(run[1] for run in touching)]) + 1
    return start, end


def _changing_run(track: Track, frame: int) -> tuple[int, int]:
    """First and last frame of a slow change: the wide step is above half where it spans some."""
    wide = track.changes["step_13"]
    is_high = wide >= wide[frame] / 2
    first, last = frame, frame
    while first > 0 and is_high[first - 1] and frame - first < 30:
        first -= 1
    while last < len(wide) - 1 and is_high[last + 1] and last - frame < 30:
        last += 1
    # It looks from six frames before to seven after.
    return min(first + 6, frame), max(last - 6, frame)


def _flat_gaps(track: Track, config: ProposeConfig) -> list[Gap]:
    runs = _runs(track.luma_spread < FLAT_SPREAD)
    least_ticks = config.flat_s / float(track.time_base)
    return [
        (first, last + 1)
        for first, last in runs
        if track.pts_of_end(last + 1) - int(track.frame_pts[first]) >= least_ticks
    ]


def _network_gaps(
    single: NDArray[np.float32], many: NDArray[np.float32], config: ProposeConfig
) -> list[Gap]:
    """Transitions by the network alone.

    The first head of TransNetV2 peaks on the last frame before a cut, or in the middle of a gradual
    transition; the second marks all frames of a transition. A transition is a run of the first
    head widened to the run of the second that it touches.
    """
    spans = _runs(many > config.transition_threshold)
    gaps: list[Gap] = []
    for first, last in _runs(single > config.shot_threshold):
        touching = [s for s in spans if s[0] <= last + 1 and s[1] >= first - 1]
        start = min([first, *(s[0] for s in touching)]) + 1
        end = max([last, *(s[1] for s in touching)]) + 1
        gaps.append((start, end))
    return gaps


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
            shots.append(
                Shot(
                    start_frame=start,
                    end_frame=gap_start,
                    transition_in=kind_in,
                    transition_out=kind_out,
                )
            )
        start, kind_in = gap_end, kind_out
    return shots


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and last index (inclusive) of each run of true."""
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


def _is_peak(values_F: Floats, reach: int) -> NDArray[np.bool_]:
    return np.asarray(values_F >= _highest(values_F, reach))


def _logit(probability_F: Floats) -> Floats:
    clipped = np.clip(probability_F, 1e-3, 1 - 1e-3)
    return np.asarray(np.log(clipped / (1 - clipped)))
