"""Turns shots into candidate clips. Arithmetic only."""

import hashlib
from itertools import pairwise
from math import ceil
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from curator.measures.clip_view import duration_s
from curator.records import Shot, Span, Track

MAX_KEY_SHARE = 0.1
"""Share of key frames up to which one at a cut is no coincidence."""


class ProposeConfig(BaseModel):
    """Thresholds of shot detection, and the length rules of clips."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shots: Literal["fused", "network"] = Field(
        "fused",
        description="what finds boundaries: the shot network and all that was measured of change, "
        "fused, or the network alone",
        json_schema_extra={"unit": "name"},
    )
    boundary_threshold: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="fused probability above which there is a boundary",
        json_schema_extra={"unit": "probability"},
    )
    # 0.4: Cosmos WFM platform, arXiv 2501.03575 section 3.1 (the authors of TransNetV2 use 0.5).
    shot_threshold: float = Field(
        0.4,
        gt=0,
        lt=1,
        description="with shots=network: TransNetV2 probability above which a frame ends a shot",
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
    # 0.2 s: a black frame or two between shots is their cut; more is a pause.
    flat_s: float = Field(
        0.2,
        gt=0,
        description="a black or flat stretch at least this long belongs to no shot",
        json_schema_extra={"unit": "s"},
    )
    crop_borders: bool = Field(
        True,
        description="cut away black borders; sizes and buckets are those of the picture inside",
        json_schema_extra={"unit": "true or false"},
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
    """Frames of even pieces; only at a variable rate can one be longer than `max_s`.

    A frame that stands longer than that, as where timestamps jump, is a piece of its own.
    """
    times = np.append(track.frame_pts[start:end], track.pts_of_end(end))
    stands = np.flatnonzero(np.diff(times) * float(track.time_base) > max_s) + start
    edges = sorted({start, end, *stands.tolist(), *(stands + 1).tolist()})
    return [piece for a, b in pairwise(edges) for piece in _even_pieces(track, a, b, max_s)]


def _even_pieces(track: Track, start: int, end: int, max_s: float) -> list[tuple[int, int]]:
    if end - start == 1:
        return [(start, end)]
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


def clip_id(source_id: str, start_pts: int, end_pts: int) -> str:
    """Id of a clip from its source's content and its span: 24 hex digits."""
    return hashlib.sha256(f"{source_id}:{start_pts}:{end_pts}".encode()).hexdigest()[:24]
