"""Scores of the coded stream: size, shape, rate, compression, damage."""

import math

import numpy as np

from curator.measures.clip_view import ClipView
from curator.measures.measure_contract import OF_TIME, ScoreSpec
from curator.records.clips import Reason


def _n_bits(clip: ClipView) -> int:
    """Returns the compressed bits of the clip's frames; 0 if unknown."""
    return 8 * int(clip.track.frame_bytes[clip.frames].sum())


def _fps(clip: ClipView) -> float:
    track = clip.track
    return clip.span.n_frames / clip.seconds if track.is_vfr else float(track.fps)


SCORES = {
    "short_side_px": ScoreSpec(
        unit="px",
        range="1 and more",
        meaning="shorter side, upright with square pixels",
        low="resolution_too_low",
        high="resolution_too_high",
        of=lambda clip: float(min(clip.size)),
    ),
    "aspect": ScoreSpec(
        unit="width/height",
        range="above 0; below 1 for portrait formats",
        meaning="width / height of the picture, upright with square pixels",
        low="aspect_too_narrow",
        high="aspect_too_wide",
        of=lambda clip: clip.size[0] / clip.size[1],
    ),
    "fps": ScoreSpec(
        unit="1/s",
        range="above 0",
        meaning="frame rate of the source, mean if variable; `written_fps` is that of the MP4",
        of=_fps,
        media=OF_TIME,
    ),
    "duration_s": ScoreSpec(
        unit="s",
        range="above 0",
        meaning="length of the clip",
        low=Reason.TOO_SHORT,
        high=Reason.TOO_LONG,
        of=lambda clip: clip.seconds,
        media=OF_TIME,
    ),
    "bit_rate_kbps": ScoreSpec(
        unit="kbit/s",
        range="0 and more",
        meaning="compressed bits of the clip's frames per second, without audio and container",
        low="bit_rate_too_low",
        high="bit_rate_too_high",
        of=lambda clip: _n_bits(clip) / clip.seconds / 1000 or None,
        media=OF_TIME,
    ),
    "bits_per_pixel": ScoreSpec(
        unit="bit",
        range="0 and more; below 0.02 too few bits (Open-Sora 2.0)",
        meaning="compressed bits of the clip's frames per pixel",
        of=lambda clip: _n_bits(clip) / (math.prod(clip.size) * clip.span.n_frames) or None,
    ),
    "corrupt_fraction": ScoreSpec(
        unit="0 to 1",
        range="0 undamaged to 1",
        meaning="share of frames that are damaged, or depend on damaged or lost ones",
        outside="too_corrupt",
        of=lambda clip: float(np.mean(clip.track.frame_flags[clip.frames] >> 1 & 1)),
        media=OF_TIME,
    ),
    "hdr": ScoreSpec(
        unit="0 or 1",
        range="0 or 1",
        meaning="1 for PQ or HLG transfer, which 8-bit BT.709 clips cannot represent",
        outside=Reason.HIGH_DYNAMIC_RANGE,
        of=lambda clip: float(clip.track.is_hdr),
    ),
    "interlaced": ScoreSpec(
        unit="0 or 1",
        range="0 or 1",
        meaning="1 for a stream that is marked as interlaced; `combing` measures visible combs",
        outside="interlaced",
        of=lambda clip: float(clip.track.is_interlaced),
        media=OF_TIME,
    ),
}
