"""Divides clips into windows, and chooses the frames of each window for a model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from curator.media.clip_frames import READ_PX, Wanted
from curator.stages.caption.caption_records import Window
from curator.stages.caption.config import CaptionConfig

# Absorbs float rounding, so that a frame's exact time maps to that frame.
_SLACK_FRAMES = 1e-6
READ_FRAMES = 4
"""Frames of a clip in which OCR reads text; a few suffice, because subtitles stay for seconds."""

Moment = tuple[float, float]
"""Start and end of an event, in seconds from the source's first frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFrames:
    """Chooses the frames of one written clip for captions."""

    config: CaptionConfig
    clip_id: str
    fps: float
    """Frame rate of the written clip."""
    reads_text: bool = False
    """Whether to read text in the frames."""
    moments: tuple[Moment, ...] = ()
    """Events of the source, around which more frames are needed."""

    def wanted(self, n_frames: int, start_s: float) -> tuple[Wanted, ...]:
        """Returns the frames of all windows, and a few of these frames for OCR.

        Args:
            n_frames: Number of the clip's frames.
            start_s: Start of the clip, in seconds from the source's first frame.
        """
        windows = windows_of(n_frames, self.fps, self.config, self.moments, start_s)
        shown = sorted({frame for window in windows for frame in window.shown})
        wanted = [Wanted(numbers=tuple(shown), size=self.config.frame_px, form="jpeg")]
        if self.reads_text:
            n_read = min(READ_FRAMES, len(shown))
            read = (shown[(2 * i + 1) * len(shown) // (2 * n_read)] for i in range(n_read))
            wanted.append(Wanted(numbers=tuple(read), size=READ_PX, form="text"))
        return tuple(wanted)


def windows_of(
    n_frames: int,
    fps: float,
    config: CaptionConfig,
    moments: Sequence[Moment] = (),
    start_s: float = 0.0,
) -> list[Window]:
    """Divides a clip into windows by the settings of a recipe.

    Args:
        n_frames: Frames of the clip.
        fps: Frame rate of the clip.
        config: The settings.
        moments: Events of the source; events outside the clip are ignored.
        start_s: Start of the clip, in seconds from the source's first frame.

    Returns:
        Windows that cover each frame of the clip once; a short remainder joins the last window. In
        clips with events, event windows replace these or follow them, sorted by start and end.
    """
    around = _around(n_frames, fps, config, moments, start_s)
    is_instead = around and config.event_windows == "instead"
    spans = [] if is_instead else _even(n_frames, fps, config)
    return [
        Window(
            index=i,
            start_frame=start,
            end_frame=end,
            shown=_shown(start, end, fps, config),
            is_event=i >= len(spans),
        )
        for i, (start, end) in enumerate([*spans, *around])
    ]


def frames_of(moment: Moment, fps: float, start_s: float) -> tuple[int, int]:
    """Returns the half-open frames of an event, at least one, which may be outside the clip."""
    first, last = (math.floor((at - start_s) * fps + _SLACK_FRAMES) for at in moment)
    return first, last + 1


def _even(n_frames: int, fps: float, config: CaptionConfig) -> list[tuple[int, int]]:
    length, least = config.window_frames, config.window_remainder
    if config.window_s is not None:
        length = max(1, round(config.window_s * fps))
        least = max(1, length // 2)
    starts = list(range(0, n_frames, length)) or [0]
    if len(starts) > 1 and n_frames - starts[-1] < least:
        starts.pop()
    return list(zip(starts, [*starts[1:], n_frames], strict=True))


def _around(
    n_frames: int, fps: float, config: CaptionConfig, moments: Sequence[Moment], start_s: float
) -> list[tuple[int, int]]:
    if config.event_window_s is None:
        return []
    half = max(1, round(config.event_window_s * fps / 2))
    spans = set()
    for moment in moments:
        first, end = frames_of(moment, fps, start_s)
        if first < n_frames and end > 0:
            spans.add((max(0, first - half), min(n_frames, end - 1 + half)))
    return sorted(spans)


def _shown(start: int, end: int, fps: float, config: CaptionConfig) -> tuple[int, ...]:
    """Divides a span into equal pieces, and returns the middle frame of each."""
    n_shown = config.frames
    if config.frames_per_s is not None:
        n_shown = max(1, round((end - start) / fps * config.frames_per_s))
    n_shown = min(n_shown, end - start, config.max_frames)
    return tuple(start + (2 * i + 1) * (end - start) // (2 * n_shown) for i in range(n_shown))
