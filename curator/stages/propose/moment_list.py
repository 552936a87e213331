"""Makes the moments of a group: the instants at which clips of all its cameras are cut.

The takes of each camera, without guard frames of its cuts, are spans of common time. All their ends
divide common time, so a moment has no cut in any camera, and each of its cameras shows all of it.
Ends that are a few frames apart count as one, and the time between them is left out.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from curator.frame_size import size_words
from curator.matching.common_clock import Clock
from curator.records.clips import Shot
from curator.records.moments import Moment
from curator.records.time_spans import TimeSpan
from curator.records.tracks import Track
from curator.stages.propose.clip_spans import propose_clips
from curator.stages.propose.config import ProposeConfig, WindowConfig

_SLACK = 2.0
"""Frames of the slowest camera within which ends of takes are one border."""
_RESIDUAL = 0.5
"""Largest bound of a clock's error in a moment, in frames of the slowest camera."""
_NAME_DIGITS = 24
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Camera:
    """A camera of a group.

    Attributes:
        track: Its source's track.
        shots: The shots of which clips may be made.
        clock: Its common clock; None if its span begins with the group's common time.
        start_s: Second of the source at which common time begins, if it has no `clock`.
    """

    track: Track
    shots: Sequence[Shot]
    clock: Clock | None = None
    start_s: float = 0.0

    @property
    def frame_s(self) -> float:
        """Usual interval of its frames."""
        return float(1 / self.track.fps)

    def common_s(self, source_s: Floats) -> Floats:
        """Returns common times of times of the source."""
        return source_s - self.start_s if self.clock is None else self.clock.common_s(source_s)

    def span(self, start_s: float, end_s: float) -> TimeSpan:
        """Returns the span of the source in a span of common time."""
        common = np.array([start_s, end_s])
        own = common + self.start_s if self.clock is None else self.clock.source_s(common)
        return TimeSpan(*own.tolist())

    def residual_s(self, at: TimeSpan) -> float:
        """Returns the bound of its clock's error in a span of the source; 0 if it is given."""
        return 0.0 if self.clock is None else self.clock.residual_at(*at)

    def takes(self, config: ProposeConfig) -> list[tuple[float, float]]:
        """Returns its takes as spans of common time."""
        whole = config.model_copy(update={"windows": (), "max_s": math.inf})
        track, tick_s = self.track, float(self.track.time_base)
        spans = propose_clips(track, list(self.shots), whole)
        pts = np.array(
            [[int(track.frame_pts[s.start_frame]), track.pts_of_end(s.end_frame)] for s in spans],
            np.float64,
        ).reshape(-1, 2)
        times = self.common_s((pts - float(track.frame_pts[0])) * tick_s)
        return [(float(a), float(b)) for a, b in times]


def moments_of(
    group: str, cameras: Mapping[str, Camera], config: ProposeConfig
) -> dict[str, list[Moment]]:
    """Returns the moments of each camera of a group, in order of time.

    Example:
        Two cameras of 25 frames/s, of which the second begins 1 s later and has a cut at its
        second 3, have moments at the seconds 0 to 1 (only of the first), 1 to 4, and from 4 on.
    """
    takes = {name: camera.takes(config) for name, camera in cameras.items()}
    slack_s = _SLACK * max(camera.frame_s for camera in cameras.values())
    made: dict[str, list[Moment]] = {name: [] for name in cameras}
    for start_s, end_s in _between(takes.values(), slack_s):
        shown_by = [
            name
            for name, own in takes.items()
            if any(a <= start_s + slack_s / 2 and b >= end_s - slack_s / 2 for a, b in own)
        ]
        for part in _parts(start_s, end_s, config) if shown_by else ():
            for name, moment in _moment(group, part, {n: cameras[n] for n in shown_by}):
                made[name].append(moment)
    return {name: sorted(own, key=lambda moment: moment.at) for name, own in made.items()}


def _bound_s(residuals: Iterable[float]) -> float:
    """Returns the bound of the error between any two cameras."""
    return math.hypot(*sorted(residuals)[-2:])


_Part = tuple[float, float, WindowConfig | None]
"""A span of common time, and the window that it is."""


def _between(
    takes: Iterable[Sequence[tuple[float, float]]], slack_s: float
) -> Iterator[tuple[float, float]]:
    """Yields the spans between borders; borders nearer than `slack_s` are one."""
    ends = np.unique([end for own in takes for take in own for end in take])
    if not len(ends):
        return
    borders = np.split(ends, np.flatnonzero(np.diff(ends) > slack_s) + 1)
    for before, after in pairwise(borders):
        yield float(before[-1]), float(after[0])


def _parts(start_s: float, end_s: float, config: ProposeConfig) -> Iterator[_Part]:
    """Yields the clips of a span: equal parts of at most `max_s`, or windows."""
    if not config.windows:
        n = max(1, math.ceil((end_s - start_s) / config.max_s - 1e-9))
        for a, b in pairwise(np.linspace(start_s, end_s, n + 1).tolist()):
            yield a, b, None
    for window in config.windows:
        assert window.rate is not None, "the recipe refuses windows without a rate"
        length_s = float(window.frames / window.rate)
        step_s = float((window.stride or window.frames) / window.rate)
        n = max(0, math.floor((end_s - start_s - length_s) / step_s + 1e-6) + 1)
        starts = [start_s + number * step_s for number in range(n)]
        if window.remainder == "overlap" and starts and end_s - starts[-1] - length_s > 1e-3:
            starts.append(end_s - length_s)
        for a in starts:
            yield a, a + length_s, window


def _moment(group: str, part: _Part, cameras: Mapping[str, Camera]) -> Iterator[tuple[str, Moment]]:
    start_s, end_s, window = part
    size = None if window is None else (window.frames, window.rate)
    output_px = None if window is None else window.size
    spans = {name: camera.span(start_s, end_s) for name, camera in cameras.items()}
    residuals = {name: cameras[name].residual_s(at) for name, at in spans.items()}
    aligned = sorted(cameras, key=lambda name: residuals[name])
    most_s = _RESIDUAL * max(camera.frame_s for camera in cameras.values())
    while len(aligned) > 1 and _bound_s(residuals[name] for name in aligned) > most_s:
        aligned.pop()
    is_given = len(aligned) == 1 or all(camera.clock is None for camera in cameras.values())
    residual_s = None if is_given else _bound_s(residuals[name] for name in aligned)
    ids = ",".join(sorted(cameras[name].track.source_id for name in aligned))
    text = f"{group}:{ids}:{start_s:.6f}:{end_s:.6f}:{size}"
    text += "" if output_px is None else f":{size_words(output_px)}"
    moment = hashlib.sha256(text.encode()).hexdigest()[:_NAME_DIGITS]
    for name, at in spans.items():
        is_aligned = name in aligned
        yield (
            name,
            Moment(
                at=at,
                length_s=end_s - start_s,
                name=moment if is_aligned else None,
                n_cameras=len(aligned) if is_aligned else 0,
                residual_s=residual_s if is_aligned else None,
                size=size,
                output_px=output_px,
            ),
        )
