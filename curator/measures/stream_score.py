"""Scores of the stream: size, shape, rate, compression, damage."""

import numpy as np

from curator.measures.spec import ClipView, ScoreSpec
from curator.records import Reason


def _bits_per_pixel(clip: ClipView) -> float | None:
    width, height = clip.size
    n_bytes = int(clip.track.frame_bytes[clip.frames].sum())
    return 8 * n_bytes / (width * height * clip.span.n_frames) if n_bytes else None


def _bit_rate_kbps(clip: ClipView) -> float | None:
    n_bytes = int(clip.track.frame_bytes[clip.frames].sum())
    return 8 * n_bytes / clip.seconds / 1000 if n_bytes else None


def _fps(clip: ClipView) -> float:
    track = clip.track
    return clip.span.n_frames / clip.seconds if track.is_vfr else float(track.fps)


SCORES: dict[str, ScoreSpec] = {
    "short_side_px": ScoreSpec(
        unit="px",
        range="1 upwards",
        meaning="shorter side, upright with square pixels",
        low=Reason.RESOLUTION_TOO_LOW,
        high=Reason.RESOLUTION_TOO_HIGH,
        of=lambda clip: float(min(clip.size)),
    ),
    "aspect": ScoreSpec(
        unit="width/height",
        range="above 0; below 1 for portraits",
        meaning="shape of the picture, upright with square pixels",
        low=Reason.ASPECT_TOO_NARROW,
        high=Reason.ASPECT_TOO_WIDE,
        of=lambda clip: clip.size[0] / clip.size[1],
    ),
    "fps": ScoreSpec(
        unit="1/s",
        range="above 0",
        meaning="nominal frame rate",
        low=Reason.FPS_TOO_LOW,
        high=Reason.FPS_TOO_HIGH,
        of=_fps,
    ),
    "duration_s": ScoreSpec(
        unit="s",
        range="above 0",
        meaning="length of the span that was proposed",
        low=Reason.TOO_SHORT,
        high=Reason.TOO_LONG,
        of=lambda clip: clip.seconds,
    ),
    "hdr": ScoreSpec(
        unit="0 or 1",
        range="0 or 1",
        meaning="1 for PQ and HLG transfer, which 8-bit BT.709 clips cannot hold",
        low=Reason.HIGH_DYNAMIC_RANGE,
        high=Reason.HIGH_DYNAMIC_RANGE,
        of=lambda clip: float(clip.track.is_hdr),
    ),
    "bits_per_pixel": ScoreSpec(
        unit="bit",
        range="0 upwards; below 0.02 is starved (Open-Sora 2.0)",
        meaning="compressed bits of the clip's frames per pixel",
        low=Reason.BITS_PER_PIXEL_TOO_LOW,
        high=Reason.BITS_PER_PIXEL_TOO_HIGH,
        of=_bits_per_pixel,
    ),
    "bit_rate_kbps": ScoreSpec(
        unit="kbit/s",
        range="0 upwards",
        meaning="compressed bits of the clip's frames per second, without sound and container",
        low=Reason.BIT_RATE_TOO_LOW,
        high=Reason.BIT_RATE_TOO_HIGH,
        of=_bit_rate_kbps,
    ),
    "interlaced": ScoreSpec(
        unit="0 or 1",
        range="0 or 1",
        meaning="1 for a stream that says it is interlaced; `combing` says what can be seen of it",
        low=Reason.INTERLACED,
        high=Reason.INTERLACED,
        of=lambda clip: float(clip.track.is_interlaced),
    ),
    "corrupt_fraction": ScoreSpec(
        unit="0 to 1",
        range="0 sound to 1",
        meaning="share of frames in which the decoder concealed damage",
        low=Reason.TOO_CORRUPT,
        high=Reason.TOO_CORRUPT,
        of=lambda clip: float(np.mean(clip.track.frame_flags[clip.frames] >> 1 & 1)),
    ),
}
