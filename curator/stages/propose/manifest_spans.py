"""Cuts at given times: spans that a manifest names, and moments of a group of cameras."""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from curator.records.clips import Shot, Span, Window
from curator.records.moments import Moment
from curator.records.time_spans import TimeSpan
from curator.records.tracks import Track

SLACK_FRAMES = 2
"""A cut this near to a border is the border: encoders and lists round times of frames."""
_ROUNDING_S = 1e-6
"""Largest error of a border by rounding; cuts at 60 frames/s lie in the middles of frames at 30."""
_LACKING = 0.1
"""Part of its last frame that a moment may lack, because clocks drift and times are rounded."""


def frames_of(track: Track, spans: Sequence[TimeSpan]) -> list[tuple[int, int]]:
    """Returns the half-open interval of frames of each span, empty behind the last frame.

    A border is at the frame that begins nearest to it, so spans that touch share no frame, and
    leave out none. A border in the middle between two frames is at the first of them.
    """
    times = np.append(track.frame_pts, track.pts_of_end(track.n_frames)).astype(np.float64)
    middle_s = ((times[:-1] + times[1:]) / 2 - times[0]) * float(track.time_base) + _ROUNDING_S
    return [
        (int(np.searchsorted(middle_s, s)), int(np.searchsorted(middle_s, e))) for s, e in spans
    ]


def moment_spans(
    track: Track, shots: Sequence[Shot], moments: Sequence[Moment]
) -> dict[Span, Moment]:
    """Returns the spans of frames of moments.

    A span begins at the frame nearest to its moment. Spans of sources with a constant rate have as
    many frames as fit the moment's length in common time, so cameras of one rate have equally many.
    A part of a frame does not count: rounded up, a clip would reach into the next moment.
    """
    frames = frames_of(track, [moment.at for moment in moments])
    starts = [shot.start_frame for shot in shots]
    made: dict[Span, Moment] = {}
    for (start, end), moment in zip(frames, moments, strict=True):
        if not track.is_vfr:
            n_frames = math.floor(moment.length_s * float(track.fps) + _LACKING)
            end = min(track.n_frames, start + max(1, n_frames))
        if start >= end:
            continue
        shot = max(0, int(np.searchsorted(starts, start, "right")) - 1)
        span = Span(start_frame=start, end_frame=end, shot=shot)
        if moment.size is not None:
            n_written, rate = moment.size
            span = Window(
                **asdict(span),
                size=moment.size,
                n_written=n_written,
                fps=rate or track.fps,
                output_px=moment.output_px,
            )
        made[span] = moment
    return made


def divided(
    track: Track, shots: Sequence[Shot], spans: Sequence[TimeSpan]
) -> tuple[list[Shot], list[TimeSpan | None]]:
    """Divides shots at the borders of spans.

    A cut within `SLACK_FRAMES` of a border gives way to it. Shots outside of spans stay shots.

    Returns:
        The shots, and the span of each; None for shots of which no clip is made.
    """
    if not spans:
        return list(shots), [None] * len(shots)
    intervals = frames_of(track, spans)
    borders = np.unique(intervals)
    made: list[Shot] = []
    for shot in _moved(shots, borders):
        inner = borders[(borders > shot.start_frame) & (borders < shot.end_frame)].tolist()
        for start, end in pairwise([shot.start_frame, *inner, shot.end_frame]):
            made.append(
                Shot(
                    start_frame=start,
                    end_frame=end,
                    transition_in="none" if start in borders else shot.transition_in,
                    transition_out="none" if end in borders else shot.transition_out,
                )
            )
    place = np.searchsorted([a for a, _ in intervals], [s.start_frame for s in made], "right") - 1
    return made, [
        spans[at] if at >= 0 and shot.start_frame < intervals[at][1] else None
        for at, shot in zip(place.tolist(), made, strict=True)
    ]


def _moved(shots: Sequence[Shot], borders: NDArray[np.int64]) -> list[Shot]:
    """Moves cuts, and gaps of a few frames, to the nearest border if it is near enough."""
    moved = list(shots)
    for at, (before, after) in enumerate(pairwise(shots)):
        first, last = before.end_frame - SLACK_FRAMES, after.start_frame + SLACK_FRAMES
        near = borders[(borders >= first) & (borders <= last)]
        if len(near) and last - first <= 4 * SLACK_FRAMES:
            middle = (before.end_frame + after.start_frame) / 2
            border = int(near[np.argmin(np.abs(near - middle))])
            if moved[at].start_frame < border < after.end_frame:
                moved[at] = replace(moved[at], end_frame=border)
                moved[at + 1] = replace(after, start_frame=border)
    return moved
