"""Which frames of a clip a model is asked about, and which of them it is shown."""

from curator.captions.config import CaptionConfig
from curator.captions.records import Window


def windows_of(n_frames: int, fps: float, config: CaptionConfig) -> list[Window]:
    """Divides a clip into windows.

    Args:
        n_frames: Of the clip as written.
        fps: Its rate.
        config: `window_s`, or `window_frames` and `window_remainder`; `frames` or `frames_per_s`.

    Returns:
        Windows that cover the clip, each frame once: a remainder that is too short for a window of
        its own belongs to the last one.
    """
    length, least = config.window_frames, config.window_remainder
    if config.window_s is not None:
        length = max(1, round(config.window_s * fps))
        least = max(1, length // 2)
    starts = list(range(0, n_frames, length)) or [0]
    if len(starts) > 1 and n_frames - starts[-1] < least:
        starts.pop()
    ends = [*starts[1:], n_frames]
    return [
        Window(index=i, start_frame=start, end_frame=end, shown=_shown(start, end, fps, config))
        for i, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _shown(start: int, end: int, fps: float, config: CaptionConfig) -> tuple[int, ...]:
    """Frames in the middle of as many equal pieces; none twice."""
    n_shown = config.frames
    if config.frames_per_s is not None:
        n_shown = max(1, round((end - start) / fps * config.frames_per_s))
    n_shown = min(n_shown, end - start, config.max_frames)
    return tuple(start + (2 * i + 1) * (end - start) // (2 * n_shown) for i in range(n_shown))
