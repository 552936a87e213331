"""Makes a candidate clip: span, timing, size, scores."""

from collections.abc import Mapping

from curator.cut_requests import crop_within, cut_request, target_n_frames
from curator.measures.camera import camera_tags
from curator.measures.clip_semantics import content_of
from curator.measures.clip_view import ClipView, How
from curator.measures.score_list import BUILT_IN, Measures
from curator.media.decode import upright_size
from curator.models.embedding_heads import Heads
from curator.records.clips import Candidate, Span
from curator.records.cuts import crop_columns
from curator.records.tracks import Track
from curator.stages.propose.clip_spans import clip_id


def candidate_of(
    track: Track,
    span: Span,
    uri: str,
    *,
    aggregates: Mapping[str, How],
    crop_borders: bool,
    heads: Heads | None = None,
    measures: Measures = BUILT_IN,
) -> Candidate:
    """One candidate clip, before any rule.

    Args:
        track: What was measured.
        span: The candidate.
        uri: Address of its source.
        aggregates: How samples become scores, where not as their `ScoreSpec` says.
        crop_borders: Whether black borders are cut away.
        heads: Reads CLIP embeddings; None for nothing.
        measures: Those of the recipe.
    """
    start_pts = int(track.frame_pts[span.start_frame])
    end_pts = track.pts_of_end(span.end_frame)
    crop = crop_within(track, span) if crop_borders else None
    request = cut_request(track, clip_id(track.source_id, start_pts, end_pts), span, crop=crop)
    own = (track.width, track.height) if crop is None else (crop.width, crop.height)
    width, height = upright_size(*own, 0, track.pixel_aspect)
    scores = measures.score_clip(track, span, aggregates, heads)
    if crop is not None:
        # Rules on size and shape are on what will be written.
        scores |= {"short_side_px": float(min(width, height)), "aspect": width / height}
    view = ClipView(track, span, heads)
    return Candidate(
        clip_id=request.clip_id,
        source_id=track.source_id,
        source_uri=uri,
        shot=span.shot,
        start_frame=span.start_frame,
        end_frame=span.end_frame,
        start_s=track.seconds(start_pts),
        end_s=track.seconds(end_pts),
        start_pts=start_pts,
        end_pts=end_pts,
        time_base=str(track.time_base),
        n_frames=target_n_frames(request),
        fps=float(request.fps),
        fps_fraction=str(request.fps),
        measured_fps=scores["fps"],
        is_vfr=request.is_vfr,
        width=width - width % 2,
        height=height - height % 2,
        scores=scores,
        content_type=content_of(view)[0],
        tags=camera_tags(view),
        seconds=view.seconds,
        **crop_columns(crop),
    )
