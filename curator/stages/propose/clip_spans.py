"""Divides shots into the spans of candidate clips: equal parts, or windows."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil

import numpy as np

from curator.cut_requests import usual_rate
from curator.frame_size import size_words
from curator.measures.clip_view import duration_s
from curator.records.clips import Shot, Span, Window
from curator.records.time_spans import TimeSpan
from curator.records.tracks import Track, varies
from curator.stages.propose.config import ProposeConfig, WindowConfig

_EPSILON_S = 1e-4
_SHORTER_S = 1e-6  # by which a clip may be shorter than `min_s`, as in the filter
MAX_KEY_SHARE = 0.1  # with a larger share of key frames, a key frame at a cut proves nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipPart:
    """A part of a clip, in seconds from the clip's first frame."""

    clip: Span
    start_s: float
    end_s: float
    within: TimeSpan | None = None
    """The span of the manifest in which the clip lies."""
    output_px: tuple[int, int] | None = None
    """The clip's width and height, if it is one of several sizes."""

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
    long as `config.min_s` of a take remains, or the shortest window. Splits long takes evenly, or
    into windows. Keeps clips that are too short, which the filter rejects.
    """
    spans: list[Span] = []
    breaks = track.breaks()
    constant = None if track.is_vfr else track.fps
    fps = constant or track.fps
    shortest_s = [config.min_s, *(float(w.frames / (w.rate or fps)) for w in config.windows)]
    for number, shot in enumerate(shots):
        first, last = shot.start_frame, shot.end_frame
        is_guarded = shot.transition_in != "none" and not _is_confirmed(track, shot)
        begin = first + (config.guard_frames if is_guarded else 0)
        stop = last - (config.guard_frames if shot.transition_out != "none" else 0)
        inner = breaks[(breaks > first) & (breaks < last)].tolist()
        for start, end in pairwise([first, *inner, last]):
            before, behind = max(0, begin - start), max(0, end - stop)
            take = _guarded(track, start, end, before=before, behind=behind, min_s=min(shortest_s))
            pieces = list(_without_stills(track, *take, config.max_s))
            for window in config.windows:
                for a, b in pieces:
                    spans += _Take(track, a, b, window, constant).windows(number)
            if not config.windows:
                pieces = [p for a, b in pieces for p in _even_pieces(track, a, b, config.max_s)]
                spans += [Span(start_frame=a, end_frame=b, shot=number) for a, b in pieces]
    return spans


class _Take:
    """A take of which windows of one size are made.

    At the source's own constant rate, output frames are source frames. Otherwise they have times,
    and a window has the source frames from its first one until its end.
    """

    def __init__(
        self,
        track: Track,
        start: int,
        end: int,
        window: WindowConfig,
        constant_fps: Fraction | None,
    ) -> None:
        own = usual_rate(track, start, end) if constant_fps is None else constant_fps
        self._start, self._end, self._window = start, end, window
        self._fps = own if window.rate is None else window.rate
        self._pts, self._end_pts = track.frame_pts, track.pts_of_end(end)
        may_vary = constant_fps is None
        is_vfr = may_vary and varies(track.frame_pts[start:end], track.time_base)
        self._is_counted = self._fps == own and not is_vfr
        self._ticks = float(1 / (self._fps * track.time_base))
        # Containers round times: a frame counts as late only by a quarter of an interval.
        self._slack = min(self._ticks, float(1 / (own * track.time_base))) / 4

    def windows(self, shot: int) -> list[Span]:
        """Returns the windows in order, and the frames at the end that no window has."""
        window, n = self._window, self._window.frames
        spans: list[tuple[int, int, int]] = []
        at = covered = self._start
        while self._n_from(at) >= n:
            covered = self._after(at, n)
            spans.append((at, covered, n))
            at = max(at + 1, self._after(at, window.stride or n))
        if covered < self._end and window.remainder == "overlap":
            last = self._last_start(n)
            if last > (spans[-1][0] if spans else self._start - 1):
                covered = self._after(last, n)
                spans.append((last, covered, n))
        if covered < self._end:
            spans.append((covered, self._end, min(n - 1, self._n_from(covered))))
        return [
            Window(
                start_frame=first,
                end_frame=end,
                shot=shot,
                size=(n, window.rate),
                n_written=n_written,
                fps=self._fps,
                output_px=window.size,
            )
            for first, end, n_written in spans
        ]

    def _n_from(self, first: int) -> int:
        """Returns the number of output frames from a source frame to the end of the take."""
        if first >= self._end or self._is_counted:
            return max(0, self._end - first)
        return max(1, round((self._end_pts - int(self._pts[first])) / self._ticks))

    def _after(self, first: int, n: int) -> int:
        """Returns the first source frame after `n` output frames from a source frame."""
        if self._is_counted:
            return min(first + n, self._end)
        end_pts = int(self._pts[first]) + n * self._ticks - self._slack
        after = first + int(np.searchsorted(self._pts[first : self._end], end_pts))
        return max(first + 1, after)

    def _last_start(self, n: int) -> int:
        """Returns the last source frame from which `n` output frames fit; -1 if none fit."""
        at = self._end - n
        if not self._is_counted:
            start_pts = self._end_pts - (n - 0.5) * self._ticks
            at = int(np.searchsorted(self._pts[: self._end], start_pts, "right"))
        at = min(at, self._end - 1)
        while at >= self._start and self._n_from(at) < n:
            at -= 1
        return at if at >= self._start else -1


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


def _without_stills(track: Track, start: int, end: int, max_s: float) -> Iterator[tuple[int, int]]:
    """Divides frames where a frame is shown for longer than `max_s`, which is its own piece."""
    times = np.append(track.frame_pts[start:end], track.pts_of_end(end))
    gaps = np.flatnonzero(np.diff(times) * float(track.time_base) > max_s) + start
    yield from pairwise(sorted({start, end, *gaps.tolist(), *(gaps + 1).tolist()}))


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


def clip_id(
    source_id: str,
    start_pts: int,
    end_pts: int,
    size: tuple[int, Fraction | None] | None = None,
    output_px: tuple[int, int] | None = None,
) -> str:
    """Returns the id of a clip, 24 hex digits.

    It is made from source id, span, size of the window, and output size if there are several.
    """
    window = "" if size is None else f":{size[0]}@{size[1]}"
    window += "" if output_px is None else f":{size_words(output_px)}"
    text = f"{source_id}:{start_pts}:{end_pts}{window}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]
