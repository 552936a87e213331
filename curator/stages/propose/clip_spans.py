"""Divides shots into the spans of candidate clips."""

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np

from curator.measures.clip_view import duration_s
from curator.records.clips import Shot, Span
from curator.records.tracks import Track
from curator.stages.propose.config import ProposeConfig

_EPSILON_S = 1e-4
_SHORTER_S = 1e-6  # by which a clip may be shorter than `min_s`, as in the filter
MAX_KEY_SHARE = 0.1  # with a larger share of key frames, a key frame at a cut proves nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipPart:
    """A part of a clip, in seconds from the clip's first frame."""

    clip: Span
    start_s: float
    end_s: float

    def span(self, track: Track) -> Span:
        """Returns all frames on screen at some time in the part, even if they begin earlier."""
        first = self.clip.start_frame
        pts = track.frame_pts[first : self.clip.end_frame]
        at_s = (pts - pts[0]).astype(np.float64) * float(track.time_base)
        start = np.searchsorted(at_s, self.start_s + _EPSILON_S, "right") - 1
        end = np.searchsorted(at_s, self.end_s - _EPSILON_S, "left")
        return Span(
            start_frame=first + max(0, int(start)),
            end_frame=first + max(int(end), int(start) + 1),
            shot=self.clip.shot,
        )


def propose_clips(track: Track, shots: list[Shot], config: ProposeConfig) -> list[Span]:
    """Returns the spans of the candidate clips of all shots, in order.

    Divides shots into takes where `Track.breaks` says. Drops guard frames next to transitions, as
    long as `config.min_s` of a take remains. Splits long takes evenly. Keeps clips shorter than
    `config.min_s`, which the filter rejects.
    """
    spans = []
    breaks = track.breaks()
    for number, shot in enumerate(shots):
        first, last = shot.start_frame, shot.end_frame
        is_guarded = shot.transition_in != "none" and not _is_confirmed(track, shot)
        begin = first + (config.guard_frames if is_guarded else 0)
        stop = last - (config.guard_frames if shot.transition_out != "none" else 0)
        inner = breaks[(breaks > first) & (breaks < last)].tolist()
        for start, end in pairwise([first, *inner, last]):
            before, behind = max(0, begin - start), max(0, end - stop)
            take = _guarded(track, start, end, before=before, behind=behind, min_s=config.min_s)
            pieces = _pieces(track, *take, config.max_s)
            spans += [Span(start_frame=a, end_frame=b, shot=number) for a, b in pieces]
    return spans


def _guarded(
    track: Track, start: int, end: int, *, before: int, behind: int, min_s: float
) -> tuple[int, int]:
    """Drops guard frames at both ends, but fewer if a take would become shorter than `min_s`."""
    while before or behind:
        own = start + before, end - behind
        if own[0] < own[1] and duration_s(track, *own) >= min_s - _SHORTER_S:
            return own
        # The larger guard gives way first.
        before, behind = (before - 1, behind) if before > behind else (before, behind - 1)
    return start, end


def _is_confirmed(track: Track, shot: Shot) -> bool:
    """Whether a shot begins with a cut at a key frame: the source's encoder also found the cut."""
    is_key = track.frame_flags & 1
    is_rare = np.count_nonzero(is_key) <= MAX_KEY_SHARE * track.n_frames
    return shot.transition_in == "cut" and bool(is_key[shot.start_frame]) and bool(is_rare)


def _pieces(track: Track, start: int, end: int, max_s: float) -> list[tuple[int, int]]:
    """Splits frames into equal pieces; a frame shown for longer than `max_s` is its own piece."""
    times = np.append(track.frame_pts[start:end], track.pts_of_end(end))
    gaps = np.flatnonzero(np.diff(times) * float(track.time_base) > max_s) + start
    edges = sorted({start, end, *gaps.tolist(), *(gaps + 1).tolist()})
    return [piece for a, b in pairwise(edges) for piece in _even_pieces(track, a, b, max_s)]


def _even_pieces(track: Track, start: int, end: int, max_s: float) -> list[tuple[int, int]]:
    if end - start == 1:
        return [(start, end)]
    n_pieces = max(1, ceil(duration_s(track, start, end) / max_s - 1e-9))
    edges = _even_edges(track, start, end, n_pieces)
    if any(duration_s(track, a, b) > max_s + 1e-6 for a, b in pairwise(edges)):
        # Edges move to the next frame, which can make a piece too long.
        edges = _even_edges(track, start, end, n_pieces + 1)
    return [(a, b) for a, b in pairwise(edges) if b > a]


def _even_edges(track: Track, start: int, end: int, pieces: int) -> list[int]:
    first, last = int(track.frame_pts[start]), track.pts_of_end(end)
    ideal = [first + round((last - first) * i / pieces) for i in range(1, pieces)]
    inner = np.searchsorted(track.frame_pts[start:end], ideal) + start
    return [start, *(int(i) for i in inner), end]


def clip_id(source_id: str, start_pts: int, end_pts: int) -> str:
    """Returns the id of a clip, 24 hex digits, made from the source id and the span."""
    return hashlib.sha256(f"{source_id}:{start_pts}:{end_pts}".encode()).hexdigest()[:24]
