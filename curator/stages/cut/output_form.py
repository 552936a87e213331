"""The size, frame rate and length that a recipe sets for all clips."""

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from curator.buckets import BucketClasses, bucket_of, bucket_size
from curator.cut_requests import frame_plan
from curator.records.cuts import CutRequest
from curator.stages.cut.config import CutConfig

if TYPE_CHECKING:
    import pyarrow as pa


def formed(
    request: CutRequest,
    *,
    size: tuple[int, int] | None = None,
    fps: Fraction | None = None,
    n_frames: int | None = None,
) -> CutRequest:
    """Returns the request with another size, frame rate or length; None keeps the source's.

    The picture is scaled to cover `size` (width and height), and cropped around its centre. The
    clip is cut after `n_frames`, and must not have fewer.
    """
    if fps is not None and fps != request.fps:
        request = replace(request, fps=fps, is_resampled=True)
    if size is not None:
        request = replace(request, size=size)
    return request if n_frames is None else _first_frames(request, n_frames)


def _first_frames(request: CutRequest, n_frames: int) -> CutRequest:
    plan = frame_plan(request)
    if len(plan) < n_frames:
        raise ValueError(f"clip {request.clip_id} has {len(plan)} frames; expected {n_frames}")
    if len(plan) == n_frames:
        return replace(request, min_frames=n_frames)
    n_source = int(plan[n_frames - 1]) + 1
    end_pts = request.end_pts
    if request.is_vfr or request.is_resampled:
        end_pts = int(request.frame_pts[0]) + round(n_frames / (request.fps * request.time_base))
    elif n_source < len(request.frame_pts):
        end_pts = int(request.frame_pts[n_source])
    return replace(
        request,
        frame_pts=request.frame_pts[:n_source],
        frame_luma=request.frame_luma[:n_source],
        end_pts=end_pts,
        min_frames=n_frames,
    )


def as_written(clips: "pa.Table", cut: CutConfig, shard: BucketClasses) -> "pa.Table":
    """Returns candidates with the size, frame rate and number of frames of the written clips.

    Buckets depend on these columns. Scores, which the rules judge, stay those of the source.
    """
    if not cut.has_form:
        return clips
    # A sandbox imports this module without Arrow.
    import pyarrow as pa

    from curator.tables.clip_rows import ClipRows
    from curator.tables.parts import with_column

    columns: dict[str, list[Any]] = {
        name: [] for name in ("width", "height", "n_frames", "written_fps", "fps_fraction")
    }
    for clip in ClipRows(clips, clips.schema):
        rate, n_frames = Fraction(clip.fps_fraction), clip.n_frames
        if cut.rate is not None and cut.rate != rate:
            rate = cut.rate
            ticks = float(1 / (rate * Fraction(clip.time_base)))
            n_frames = max(1, round((clip.end_pts - clip.start_pts) / ticks))
        if cut.length_frames is not None:
            n_frames = min(n_frames, cut.length_frames)
        size = _size(clip.width, clip.height, n_frames, cut, shard)
        written = (*size, n_frames, float(rate), str(rate))
        for values, value in zip(columns.values(), written, strict=True):
            values.append(value)
    for name, values in columns.items():
        clips = with_column(clips, name, pa.array(values, clips.schema.field(name).type))
    return clips


def _size(
    width: int, height: int, n_frames: int, cut: CutConfig, shard: BucketClasses
) -> tuple[int, int]:
    if isinstance(cut.size, tuple):
        return cut.size
    bucket = bucket_of(width, height, n_frames, shard) if cut.size == "bucket" else None
    return (width, height) if bucket is None else bucket_size(bucket)
