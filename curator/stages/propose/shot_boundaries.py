"""Finds the shots in a track, and the frames that belong to no shot.

`curator.models.shot_head` gives each frame two probabilities: that it is the middle of a boundary,
and that it is inside a transition. `curator.measures.boundaries` makes boundaries from both. This
module splits the track at probable boundaries. If the recipe sets `join_similarity`, neighbouring
shots with similar scene vectors are joined.

Shape letters: V pictures with a scene vector.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from curator.measures.boundaries import boundaries
from curator.records.clips import Shot, Transition
from curator.records.tracks import Track
from curator.stages.propose.config import ProposeConfig

Gap = tuple[int, int]  # half-open interval of frames in no shot; an empty gap is a cut
Run = tuple[int, int]  # first and last frame, inclusive, of consecutive frames

FLAT_SPREAD = 0.012  # below it a frame shows nothing: 3 levels of 255, noise of a black frame

BLACK_LUMA, BLACK_SPREAD = 0.02, 0.03  # below both a frame is black; it may have small print


def find_shots(track: Track, config: ProposeConfig) -> list[Shot]:
    """Returns the shots in order.

    Frames of gradual transitions and of black or flat stretches belong to no shot. A film of only
    such frames has no shot.
    """
    is_network = config.shots == "network"
    marked = track.transition_probability if is_network else track.inside_probability
    spans = _runs(marked > config.transition_threshold)
    gaps = _network_gaps(track, config, spans) if is_network else _head_gaps(track, config)
    flat = _flat_gaps(track, config, spans)
    shots = _between([*gaps, *flat], track.n_frames)
    if config.join_similarity is None:
        return shots
    return _joined(track, shots, flat, config.join_similarity)


def _head_gaps(track: Track, config: ProposeConfig) -> list[Gap]:
    """Returns boundaries of the head, each with its frames inside the transition."""
    candidates = boundaries(track, inside=config.transition_threshold)
    return [(b.start, b.end) for b in candidates if b.probability > config.boundary_threshold]


def _network_gaps(track: Track, config: ProposeConfig, spans: list[Run]) -> list[Gap]:
    """Returns transitions that the shot network finds without the head.

    The first output of TransNetV2 peaks on the last frame before a cut, or in the middle of a
    gradual transition. The second output marks all frames of a transition. A gap is a run of the
    first output, widened to the runs of the second output that touch it.
    """
    peaks = _runs(track.shot_probability > config.shot_threshold)
    widened = (_widened(first, last, spans) for first, last in peaks)
    return [(first + 1, last + 1) for first, last in widened]


def _flat_gaps(track: Track, config: ProposeConfig, spans: list[Run]) -> list[Gap]:
    """Returns black and flat stretches, with the fades to and from them."""
    is_black = (track.luma_mean < BLACK_LUMA) & (track.luma_spread < BLACK_SPREAD)
    least_ticks = config.flat_s / float(track.time_base)
    gaps: list[Gap] = []
    for first, last in _runs(is_black | (track.luma_spread < FLAT_SPREAD)):
        if track.pts_of_end(last + 1) - int(track.frame_pts[first]) >= least_ticks:
            start, end = _widened(first, last, spans)
            gaps.append((start, end + 1))
    return gaps


def _widened(first: int, last: int, spans: list[Run]) -> Run:
    """Widens a run of frames to all runs that touch it."""
    touching = [span for span in spans if span[0] <= last + 1 and span[1] >= first - 1]
    firsts, lasts = zip((first, last), *touching, strict=True)
    return min(firsts), max(lasts)


def _between(gaps: list[Gap], n_frames: int) -> list[Shot]:
    """Returns the shots between gaps; gaps may touch and overlap."""
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


def _joined(track: Track, shots: list[Shot], flat: list[Gap], similarity: float) -> list[Shot]:
    """Joins neighbouring shots with similar scene vectors, but not across a flat stretch."""
    joined = shots[:1]
    for before, after in pairwise(shots):
        is_flat = any(before.end_frame <= a and b <= after.start_frame for a, b in flat)
        cosine = None if is_flat else _scene_cosine(track, before, after)
        if cosine is None or cosine < similarity:
            joined.append(after)
        else:
            joined[-1] = replace(
                joined[-1], end_frame=after.end_frame, transition_out=after.transition_out
            )
    return joined


def _scene_cosine(track: Track, before: Shot, after: Shot) -> float | None:
    """Compares a shot's last scene vector with the next shot's first; None if one is missing."""
    frames_V = track.scene_frame
    last = int(np.searchsorted(frames_V, before.end_frame)) - 1
    first = int(np.searchsorted(frames_V, after.start_frame))
    if last < 0 or frames_V[last] < before.start_frame:
        return None
    if first == len(frames_V) or frames_V[first] >= after.end_frame:
        return None
    one, other = track.scene_vector[[last, first]].astype(np.float64)
    return float(one @ other) if one.any() and other.any() else None


def _runs(mask: NDArray[np.bool_]) -> list[Run]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.view(np.int8), [0]))))
    return [(int(a), int(b) - 1) for a, b in edges.reshape(-1, 2)]
