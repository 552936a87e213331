"""Makes the row of a candidate clip: span, timing, size, scores; and what cutting it needs."""

from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.measures.borders_score import crop_of
from curator.measures.scores import ClipView, How, score_clip, tag_clip
from curator.measures.semantic_score import content_of
from curator.media.decode import upright_size
from curator.models.embedding_heads import Heads
from curator.records import Crop, CutRequest, Note, Span, Track, nominal_fps
from curator.stages.cut.output_form import target_n_frames
from curator.stages.propose.clip_spans import clip_id, duration_s
from curator.stages.shard.config import ShardConfig
from curator.stages.shard.shard_plan import bucket_of
from curator.tables.schemas import crop_columns, score_column

MAX_VARIABLE_FPS = Fraction(1000)
"""Highest rate at which a variable one is written: cameras film at up to 960 frames/s, and an
absurd unit of time must not ask for millions of frames."""


def candidate_row(
    track: Track,
    span: Span,
    uri: str,
    *,
    aggregates: Mapping[str, How],
    crop_borders: bool,
    heads: Heads | None = None,
) -> dict[str, Any]:
    """Row for one candidate clip, before any rule.

    Args:
        track: What was measured.
        span: The candidate.
        uri: Its source.
        aggregates: How samples become scores, where not as `SCORES` says.
        crop_borders: Whether black borders are cut away.
        heads: What reads CLIP embeddings; None for nothing.

    Returns:
        Columns of `CANDIDATES_SCHEMA`; `n_frames`, `fps`, `width` and `height` are those that the
        clip would be written with.
    """
    start_pts = int(track.frame_pts[span.start_frame])
    end_pts = track.pts_of_end(span.end_frame)
    name = clip_id(track.source_id, start_pts, end_pts)
    request = cut_request(track, name, span, crop_borders=crop_borders)
    crop = request.crop
    own = (track.width, track.height) if crop is None else (crop.width, crop.height)
    width, height = upright_size(*own, 0, track.pixel_aspect)
    scores = score_clip(track, span, aggregates, heads)
    if crop is not None:
        # Rules on size and shape are on what will be written.
        scores |= {"short_side_px": float(min(width, height)), "aspect": width / height}
    content_type, _ = content_of(ClipView(track, span, heads))
    return {
        "clip_id": request.clip_id,
        "source_id": track.source_id,
        "source_uri": uri,
        "shot": span.shot,
        "start_frame": span.start_frame,
        "end_frame": span.end_frame,
        "start_s": track.seconds(start_pts),
        "end_s": track.seconds(end_pts),
        "start_pts": start_pts,
        "end_pts": end_pts,
        "time_base": str(track.time_base),
        "n_frames": target_n_frames(request),
        "fps_fraction": str(request.fps),
        "is_vfr": request.is_vfr,
        "width": width - width % 2,
        "height": height - height % 2,
        **crop_columns(crop),
        **{score_column(name): value for name, value in scores.items()},
        "content_type": content_type,
        "fps": float(request.fps),
        "tags": tag_clip(track, span),
        "seconds": duration_s(track, span.start_frame, span.end_frame),
    }


def cut_request(
    track: Track, name: str, span: Span, *, crop_borders: bool, min_frames: int = 1
) -> CutRequest:
    """What is needed to write a span: its timestamps, and the rate it is written at.

    Args:
        track: What was measured.
        name: The clip's id.
        span: Its frames.
        crop_borders: Whether black borders are cut away.
        min_frames: Fewest frames that a copy may have.
    """
    has_one_size = Note.SIZE_CHANGES not in track.notes
    frame_pts = track.frame_pts[span.start_frame : span.end_frame]
    end_pts = track.pts_of_end(span.end_frame)
    is_vfr = track.is_vfr and _varies(frame_pts, track.time_base)
    fps = track.fps
    if track.is_vfr:
        fps = min(nominal_fps(frame_pts, end_pts, track.time_base), MAX_VARIABLE_FPS)
    crop = crop_of(ClipView(track, span)) if crop_borders and has_one_size else None
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
        crop=crop,
        is_interlaced=track.is_interlaced,
        is_hdr=track.is_hdr,
        min_frames=min_frames,
        source_bits_per_pixel=_bits_per_pixel(track, span, crop),
    )


def _bits_per_pixel(track: Track, span: Span, crop: Crop | None) -> float | None:
    """Of what is kept: borders take next to none."""
    n_bytes = track.frame_bytes[span.start_frame : span.end_frame]
    if not n_bytes.all():
        return None
    width, height = (track.width, track.height) if crop is None else (crop.width, crop.height)
    return 8 * int(n_bytes.sum(dtype=np.int64)) / (len(n_bytes) * width * height)


def least_frames(clip: Mapping[str, Any], *, min_s: float, shard: ShardConfig) -> int:
    """Fewest frames with which a clip stays as long as clips must be, and in its bucket.

    Args:
        clip: Row of `clips` as proposed.
        min_s: Shortest clip, in seconds.
        shard: Buckets.
    """
    bucket = bucket_of(clip["width"], clip["height"], clip["n_frames"], shard)
    in_bucket = bucket.min_frames + 1 if bucket is not None else 1
    long_enough = ceil(Fraction(clip["fps_fraction"]) * Fraction(min_s) - Fraction(1, 1000))
    return min(max(in_bucket, long_enough), int(clip["n_frames"]))


def _varies(frame_pts: NDArray[np.int64], time_base: Fraction) -> bool:
    if len(frame_pts) < 3:
        return False
    intervals = np.diff(frame_pts)
    tolerance = max(0.002, 2 * float(time_base)) / float(time_base)
    return bool(np.max(np.abs(intervals - np.median(intervals))) > tolerance)
