"""Requests to write clips: the frames, frame rate and crop of a clip, and its final length."""

from dataclasses import replace
from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import NDArray

from curator.buckets import BucketClasses, bucket_of
from curator.errors import CuratorError
from curator.measures.borders import crop_of
from curator.measures.clip_view import ClipView
from curator.records.clips import Span
from curator.records.cuts import Crop, CutRequest
from curator.records.sources import Note
from curator.records.tracks import UNIFORM, SourceFrames, Track, nominal_fps, varies
from curator.stage import PLACE_IN_SOURCE, ClipFacts

MAX_VARIABLE_FPS = Fraction(1000)
"""Highest frame rate at which a source with a variable rate is written. Cameras film at up to 960
frames/s, and an absurd time base must not cause millions of frames."""
_MICROS = 1_000_000


def target_n_frames(request: CutRequest) -> int:
    """Returns the number of frames of the written clip."""
    return len(frame_plan(request))


def frame_plan(request: CutRequest) -> NDArray[np.int64]:
    """Returns, for each written frame, the index of the source frame on screen at that time.

    If the source's rate is variable or differs from the output's, frames are repeated or dropped.
    """
    n_source = len(request.frame_pts)
    if not (request.is_vfr or request.is_resampled):
        return np.arange(n_source)
    ticks = float(1 / (request.fps * request.time_base))
    span = request.end_pts - int(request.frame_pts[0])
    n_frames = request.n_written or max(1, round(span / ticks))
    times = request.frame_pts[0] + (np.arange(n_frames) + 0.25) * ticks
    plan = np.searchsorted(request.frame_pts, times, side="right") - 1
    within: NDArray[np.int64] = np.clip(plan, 0, n_source - 1)
    return within


def picture_delay(request: CutRequest) -> Fraction:
    """Returns how much later than in the source pictures are shown in the written clip, in seconds.

    A constant rate moves frames of a variable rate to its grid, by up to 3/4 of a frame. Sound
    moves with them, by the median over all frames.
    """
    if not (request.is_vfr or request.is_resampled):
        return Fraction(0)
    plan = frame_plan(request)
    written = np.flatnonzero(np.diff(plan, prepend=-1))
    source_s = (request.frame_pts[plan[written]] - request.frame_pts[0]) * float(request.time_base)
    delay_s = float(np.median(written / float(request.fps) - source_s))
    return Fraction(round(delay_s * _MICROS), _MICROS)


def source_frames(track: SourceFrames, clip: ClipFacts) -> NDArray[np.int64]:
    """Returns, for each frame of a written clip, the index of the source's frame that it shows.

    The columns of `clip` are those of `PLACE_IN_SOURCE`.

    Raises:
        CuratorError: The track has other frames than the source that the clip was cut from.
    """
    start, end, is_vfr, rate_factor, window_frames = (clip.columns[n] for n in PLACE_IN_SOURCE)
    request = cut_request(track, clip.clip_id, Span(start_frame=start, end_frame=end, shot=0))
    if window_frames is not None:
        request = windowed(request, fps=clip.fps, n_frames=clip.n_frames)
    else:
        # The span may be a part of the proposed one, whose rate and regularity decided.
        is_resampled = rate_factor is not None and rate_factor != 1
        request = replace(
            request, fps=clip.fps, is_vfr=is_vfr, is_resampled=is_resampled, n_written=clip.n_frames
        )
    plan = frame_plan(request)
    if len(plan) != clip.n_frames:
        raise CuratorError(
            f"clip {clip.clip_id} has {clip.n_frames} frames, and the track of its source "
            f"{clip.source_id} gives {len(plan)}; delete OUT/tracks to measure all sources again"
        )
    shown: NDArray[np.int64] = start + plan
    return shown


def windowed(request: CutRequest, *, fps: Fraction, n_frames: int) -> CutRequest:
    """Returns the request to write a span as exactly `n_frames` at the rate `fps`.

    If the span has as many frames at this rate, they are written one by one, and may be copied.
    """
    is_same = fps == request.fps and n_frames == len(request.frame_pts) and not request.is_vfr
    return replace(
        request, fps=fps, is_resampled=not is_same, n_written=n_frames, min_frames=n_frames
    )


def usual_rate(track: SourceFrames, start: int, end: int) -> Fraction:
    """Returns the rate with which frames `[start, end)` of a variable rate are written."""
    end_pts = track.pts_of_end(end)
    return min(nominal_fps(track.frame_pts[start:end], end_pts, track.time_base), MAX_VARIABLE_FPS)


def crop_within(track: Track, span: Span) -> Crop | None:
    """Returns the picture inside the black borders of a span; None for the whole picture."""
    has_one_size = Note.SIZE_CHANGES not in track.notes
    return crop_of(ClipView(track, span)) if has_one_size else None


def cut_request(
    track: SourceFrames, name: str, span: Span, *, crop: Crop | None = None, min_frames: int = 1
) -> CutRequest:
    """Returns the request to write a span, with its timestamps and output frame rate.

    `crop` is the picture inside the borders, or None for the whole picture. A copied clip must have
    at least `min_frames`.
    """
    frame_pts = track.frame_pts[span.start_frame : span.end_frame]
    end_pts = track.pts_of_end(span.end_frame)
    may_vary = track.is_vfr
    is_vfr = may_vary and varies(frame_pts, track.time_base)
    fps = usual_rate(track, span.start_frame, span.end_frame) if may_vary else track.fps
    return CutRequest(
        clip_id=name,
        start_pts=int(frame_pts[0]),
        end_pts=end_pts,
        frame_pts=frame_pts,
        frame_luma=track.luma_mean[span.start_frame : span.end_frame],
        time_base=track.time_base,
        fps=fps,
        is_vfr=is_vfr,
        rotation_deg=track.rotation_deg,
        is_mirrored=track.is_mirrored,
        pixel_aspect=track.aspect_at(span.start_frame),
        crop=crop,
        is_interlaced=track.is_interlaced,
        is_hdr=track.is_hdr,
        min_frames=min_frames,
        source_size=track.size_at(span.start_frame) if len(track.frame_size) else None,
        is_seekable=Note.TIMES_START_AGAIN not in track.notes,
        source_bits_per_pixel=_bits_per_pixel(track, span, crop),
        packet_bytes=_known_packets(track, span),
    )


def _known_packets(track: SourceFrames, span: Span) -> NDArray[np.int32] | None:
    frames = slice(span.start_frame, span.end_frame)
    is_known = bool(track.block_hashes) and bool((track.frame_flags[frames] & UNIFORM).all())
    return track.frame_bytes[frames] if is_known else None


def _bits_per_pixel(track: SourceFrames, span: Span, crop: Crop | None) -> float | None:
    """Returns the bits per kept pixel; borders need almost no bits."""
    n_bytes = track.frame_bytes[span.start_frame : span.end_frame]
    if not n_bytes.all():
        return None
    own = track.size_at(span.start_frame)
    width, height = own if crop is None else (crop.width, crop.height)
    return 8 * int(n_bytes.sum(dtype=np.int64)) / (len(n_bytes) * width * height)


def least_frames(
    width: int, height: int, n_frames: int, fps: str, *, min_s: float, shard: BucketClasses
) -> int:
    """Returns the fewest frames with which a proposed clip keeps `min_s` and its bucket.

    `fps` is a fraction, as in the column `fps_fraction`.
    """
    bucket = bucket_of(width, height, n_frames, shard)
    in_bucket = bucket.min_frames if bucket is not None else 1
    long_enough = ceil(Fraction(fps) * Fraction(min_s) - Fraction(1, 1000))
    return min(max(in_bucket, long_enough), n_frames)
