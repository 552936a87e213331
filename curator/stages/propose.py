"""Turns a track into shots, and shots into candidate clips. Arithmetic only."""

import hashlib
from itertools import pairwise
from math import ceil

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from curator.records import Shot, Span, Track, Transition

MAX_KEY_SHARE = 0.1
"""Share of key frames up to which one at a cut is no coincidence."""


class ProposeConfig(BaseModel):
    """Thresholds of shot detection, and the length rules of clips."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # 0.4: Cosmos WFM platform, arXiv 2501.03575 section 3.1 (the authors of TransNetV2 use 0.5).
    shot_threshold: float = Field(
        0.4,
        gt=0,
        lt=1,
        description="TransNetV2 probability above which a frame ends a shot",
        json_schema_extra={"unit": "probability"},
    )
    # 0.5: the network's second head is trained with 0 and 1 for each frame of a transition.
    transition_threshold: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="probability of the second head above which a frame belongs to a transition",
        json_schema_extra={"unit": "probability"},
    )
    # 2 s and 60 s: Cosmos WFM platform, arXiv 2501.03575 section 3.1.
    min_s: float = Field(
        2.0,
        gt=0,
        description="shortest clip; a shorter shot is rejected as too_short",
        json_schema_extra={"unit": "s"},
    )
    max_s: float = Field(
        60.0,
        gt=0,
        description="longest clip; a longer shot is split evenly",
        json_schema_extra={"unit": "s"},
    )
    # 3 frames: Step-Video-T2V trims three at each end of a shot (arXiv 2502.10248).
    guard_frames: int = Field(
        3,
        ge=0,
        description="frames given up beside each transition, so that none of it leaks in; none "
        "after a cut at which the source's encoder saw the scene change too, and put a key frame",
        json_schema_extra={"unit": "frames"},
    )

    @model_validator(mode="after")
    def _ordered(self) -> "ProposeConfig":
        if self.max_s < 2 * self.min_s:
            raise ValueError(
                f"max_s is {self.max_s} and min_s {self.min_s}; max_s must be at least twice "
                "min_s, or the halves of a split shot would be too short"
            )
        return self


def find_shots(
    shot_probability: NDArray[np.float32],
    transition_probability: NDArray[np.float32],
    config: ProposeConfig,
) -> list[Shot]:
    """Shots between transitions.

    The first head of TransNetV2 peaks on the last frame before a cut, or in the middle of a gradual
    transition; the second marks all frames of a transition. A transition is a run of the first
    head widened to the run of the second that it touches. The frames of a gradual transition
    belong to no shot.

    Args:
        shot_probability: float32 [F], first head.
        transition_probability: float32 [F], second head.
        config: Thresholds.

    Returns:
        Shots in order, at least one unless F is 0. The convention of "last frame before" is turned
        into half-open spans here.
    """
    n_frames = len(shot_probability)
    if n_frames == 0:
        return []
    gaps = _gaps(shot_probability, transition_probability, config)
    shots: list[Shot] = []
    start = 0
    kind_in: Transition = "none"
    for gap_start, gap_end in [*gaps, (n_frames, n_frames)]:
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


def _gaps(
    single: NDArray[np.float32], many: NDArray[np.float32], config: ProposeConfig
) -> list[tuple[int, int]]:
    """Half-open spans of frames in no shot; empty at a cut, where only the position counts."""
    spans = _runs(many > config.transition_threshold)
    gaps: list[tuple[int, int]] = []
    for first, last in _runs(single > config.shot_threshold):
        touching = [s for s in spans if s[0] <= last + 1 and s[1] >= first - 1]
        start = min([first, *(s[0] for s in touching)]) + 1
        end = max([last, *(s[1] for s in touching)]) + 1
        if gaps and start <= gaps[-1][1]:
            gaps[-1] = (gaps[-1][0], max(end, gaps[-1][1]))
        elif start < len(single):
            gaps.append((start, min(end, len(single))))
    return gaps


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and last index (inclusive) of each run of true."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.view(np.int8), [0]))))
    return [(int(a), int(b) - 1) for a, b in edges.reshape(-1, 2)]


def propose_clips(track: Track, shots: list[Shot], config: ProposeConfig) -> list[Span]:
    """Candidate clips of each shot: guarded, and split evenly where too long.

    Args:
        track: Timestamps.
        shots: Shots of the track.
        config: Length rules.

    Returns:
        Spans in order; those shorter than `config.min_s` are among them, for the filter to reject.
        A shot that its guards use up gives its whole span.
    """
    spans = []
    for number, shot in enumerate(shots):
        is_guarded = shot.transition_in != "none" and not _is_confirmed(track, shot)
        start = shot.start_frame + (config.guard_frames if is_guarded else 0)
        end = shot.end_frame - (config.guard_frames if shot.transition_out != "none" else 0)
        if end <= start:
            start, end = shot.start_frame, shot.end_frame
        spans += [
            Span(start_frame=a, end_frame=b, shot=number)
            for a, b in _pieces(track, start, end, config.max_s)
        ]
    return spans


def _is_confirmed(track: Track, shot: Shot) -> bool:
    """Whether a shot begins with a cut at a key frame, in a source where these are rare.

    Encoders put key frames where the picture changes. So the cut stands where it was found, to the
    frame, and the clip can be copied from there.
    """
    is_key = track.frame_flags & 1
    is_rare = np.count_nonzero(is_key) <= MAX_KEY_SHARE * track.n_frames
    return shot.transition_in == "cut" and bool(is_key[shot.start_frame]) and bool(is_rare)


def _pieces(track: Track, start: int, end: int, max_s: float) -> list[tuple[int, int]]:
    """Frames of even pieces; only at a variable rate can one be longer than `max_s`."""
    n_pieces = max(1, ceil(duration_s(track, start, end) / max_s - 1e-9))
    edges = _even_edges(track, start, end, n_pieces)
    if any(duration_s(track, a, b) > max_s + 1e-6 for a, b in pairwise(edges)):
        # An edge that moved to the next frame made a piece too long.
        edges = _even_edges(track, start, end, n_pieces + 1)
    return [(a, b) for a, b in pairwise(edges) if b > a]


def _even_edges(track: Track, start: int, end: int, pieces: int) -> list[int]:
    if pieces == 1:
        return [start, end]
    first, last = int(track.frame_pts[start]), track.pts_of_end(end)
    ideal = [first + round((last - first) * i / pieces) for i in range(1, pieces)]
    inner = np.searchsorted(track.frame_pts[start:end], ideal) + start
    return [start, *(int(i) for i in inner), end]


def duration_s(track: Track, start_frame: int, end_frame: int) -> float:
    """Presentation time of a span, in seconds."""
    ticks = track.pts_of_end(end_frame) - int(track.frame_pts[start_frame])
    return float(ticks * track.time_base)


def clip_id(source_id: str, start_pts: int, end_pts: int) -> str:
    """Id of a clip from its source's content and its span: 24 hex digits."""
    return hashlib.sha256(f"{source_id}:{start_pts}:{end_pts}".encode()).hexdigest()[:24]
