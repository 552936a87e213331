"""Makes the rows of a candidate clip: span, timing, size, scores, and data to find duplicates."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.cut_requests import (
    crop_within,
    cut_request,
    frame_plan,
    target_n_frames,
    windowed,
)
from curator.frame_size import size_words, upright_size
from curator.measures.camera import camera_tags
from curator.measures.clip_semantics import content_of
from curator.measures.clip_view import ClipView, How
from curator.measures.score_list import BUILT_IN, Measures
from curator.models.embedding_heads import Heads
from curator.records.clips import IN_MOMENT, SPANNED, WINDOWED, Candidate, Retimed, Span, Window
from curator.records.columns import field_names
from curator.records.cuts import CutRequest, crop_columns
from curator.records.moments import Moment
from curator.records.sources import Medium
from curator.records.time_spans import TimeSpan
from curator.records.tracks import Track
from curator.stages.propose.clip_spans import clip_id
from curator.tables.schemas import LUMA_HZ


def candidate_of(
    track: Track,
    span: Span,
    uri: str,
    *,
    aggregates: Mapping[str, How],
    crop_borders: bool,
    heads: Heads | None = None,
    measures: Measures = BUILT_IN,
    medium: Medium = Medium.VIDEO,
    within: TimeSpan | None = None,
    moment: Moment | None = None,
    output_px: tuple[int, int] | None = None,
) -> Candidate:
    """Returns a candidate clip with its scores; no rule was applied to it yet.

    `aggregates` overrides, by score, how a `ScoreSpec` combines samples. `heads` makes scores from
    CLIP embeddings. With `crop_borders`, the clip gets a crop without black borders. `within` is
    the span of the manifest in which the clip lies, and `moment` the moment that it shows.
    `output_px` is the width and height of the clip, if it is one of several sizes; the row has the
    size of the picture.
    """
    start_pts = int(track.frame_pts[span.start_frame])
    end_pts = track.pts_of_end(span.end_frame)
    crop = crop_within(track, span) if crop_borders else None
    size = span.size if isinstance(span, Window) else None
    name = clip_id(track.source_id, start_pts, end_pts, size, output_px)
    request = cut_request(track, name, span, crop=crop)
    further: dict[str, Any] = dict.fromkeys(
        (*WINDOWED, *field_names(Retimed), *SPANNED, *IN_MOMENT)
    )
    further |= crop_columns(crop)
    if within is not None:
        further |= within.columns()
    if moment is not None:
        further |= moment.columns(track.seconds(start_pts))
    if isinstance(span, Window):
        further |= _in_window(span, request)
        request = windowed(request, fps=span.fps, n_frames=span.n_written)
    own = track.size_at(span.start_frame) if crop is None else (crop.width, crop.height)
    width, height = upright_size(*own, 0, request.pixel_aspect)
    scores = measures.score_clip(track, span, aggregates, heads, medium)
    if crop is not None:
        # Rules on size and aspect ratio apply to the cropped picture.
        scores |= {"short_side_px": float(min(width, height)), "aspect": width / height}
    view, is_still = ClipView(track, span, heads), medium == Medium.IMAGE
    return Candidate(
        clip_id=request.clip_id,
        source_id=track.source_id,
        source_uri=uri,
        medium=medium,
        shot=span.shot,
        start_frame=span.start_frame,
        end_frame=span.end_frame,
        start_s=track.seconds(start_pts),
        end_s=track.seconds(end_pts),
        start_pts=start_pts,
        end_pts=end_pts,
        time_base=str(track.time_base),
        n_frames=target_n_frames(request),
        written_fps=float(request.fps),
        fps_fraction=str(request.fps),
        is_vfr=request.is_vfr,
        width=width if is_still else width - width % 2,
        height=height if is_still else height - height % 2,
        scores=scores,
        content_type=content_of(view)[0],
        tags=camera_tags(view),
        seconds=view.seconds,
        output_size=None if output_px is None else size_words(output_px),
        **further,
    )


def _in_window(span: Window, own: CutRequest) -> dict[str, Any]:
    """Returns the columns of `Windowed`, and those of `Retimed` if the window sets a rate."""
    frames, fps = span.size
    columns = dict(zip(WINDOWED, (frames, None if fps is None else float(fps)), strict=True))
    if fps is None:
        return columns
    n_frames = span.n_written
    plan = frame_plan(windowed(own, fps=span.fps, n_frames=n_frames))
    repeated_share = 1 - len(np.unique(plan)) / n_frames
    return columns | {"rate_factor": float(fps / own.fps), "repeated_share": repeated_share}


def footage_row(view: ClipView) -> dict[str, Any]:
    """Returns the columns of `FOOTAGE_SCHEMA` except the id; leaves out vectors of only zeros."""
    track = view.track
    shown = np.flatnonzero(view.holds(track.scene_frame))
    shown = shown[np.any(track.scene_vector[shown] != 0, axis=1)]
    return {
        "second": _seconds(view, track.scene_frame[shown]).astype(np.float32),
        "vector": track.scene_vector[shown].astype(np.float16).ravel(),
    }


def pictures_row(view: ClipView) -> dict[str, Any]:
    """Returns the columns of `PICTURES_SCHEMA` except the id."""
    track = view.track
    shown = np.flatnonzero(view.holds(track.thumbnail_frame))
    frames = np.arange(view.span.start_frame, view.span.end_frame)
    at_s = _seconds(view, frames)
    grid_s = np.arange(0.0, max(view.seconds, 1 / LUMA_HZ), 1 / LUMA_HZ)

    def at_rate(values: NDArray[np.float32]) -> NDArray[np.float16]:
        if len(values) != track.n_frames:
            return np.zeros(0, np.float16)
        resampled: NDArray[np.float16] = np.interp(grid_s, at_s, values[view.frames]).astype("f2")
        return resampled

    return {
        "duration_s": view.seconds,
        "second": _seconds(view, track.thumbnail_frame[shown]).astype(np.float32),
        "jpeg": [track.thumbnails[number] for number in shown.tolist()],
        "luma_mean": at_rate(track.luma_mean),
        "luma_spread": at_rate(track.luma_spread),
    }


def _seconds(view: ClipView, frames: NDArray[Any]) -> NDArray[np.float64]:
    pts = view.track.frame_pts[frames] - view.track.frame_pts[view.span.start_frame]
    seconds: NDArray[np.float64] = pts.astype(np.float64) * float(view.track.time_base)
    return seconds
