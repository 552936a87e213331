"""Finds shots in a track: where boundaries are, and which frames belong to none.

The head of `curator.models.shot_head` gives each frame the probability that the middle of a
boundary is at it, and that it is inside of a transition; `curator.measures.boundaries` makes
boundaries of both, and here the likely ones part shots. Where the recipe says so, shots are joined
whose pictures next to their boundary show one scene.

Shape letters: V pictures that have a scene vector.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from curator.measures.boundaries import boundaries
from curator.records.clips import Shot, Transition
from curator.records.tracks import Track
from curator.stages.propose.config import ProposeConfig

Gap = tuple[int, int]  # half-open frames in no shot; of an empty one, a cut, the place counts
Run = tuple[int, int]  # first and last frame, inclusive, of neighbours

FLAT_SPREAD = 0.012  # of a frame that shows nothing: 3 levels of 255, noise of a black frame

BLACK_LUMA, BLACK_SPREAD = 0.02, 0.03  # of a black frame, with a line of small print


def find_shots(track: Track, config: ProposeConfig) -> list[Shot]:
    """Shots in order.

    Frames of gradual transitions and of black or flat stretches belong to none; a film that is flat
    throughout has no shot.
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
    """Boundaries of the head, each with the frames that it marks as inside of a transition."""
    candidates = boundaries(track, inside=config.transition_threshold)
    return [(b.start, b.end) for b in candidates if b.probability > config.boundary_threshold]


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


def _joined(track: Track, shots: list[Shot], flat: list[Gap], similarity: float) -> list[Shot]:
    """Shots without the boundaries at which both sides have vectors that show one scene."""
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
    """Cosine of the last scene vector of a shot and the first of the next; None without both."""
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
