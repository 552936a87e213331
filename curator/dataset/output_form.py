"""The size, frame rate and length that a recipe sets for all clips."""

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from curator.buckets import BucketClasses, cover_factor, covered_size
from curator.cut_requests import frame_plan
from curator.frame_size import parsed_size
from curator.records.clips import Resized
from curator.records.columns import field_names
from curator.records.cuts import CutRequest
from curator.records.sources import Medium

if TYPE_CHECKING:
    import pyarrow as pa

_OWN = "output_size"


class FormSettings(Protocol):
    """The settings of `cut` on which the form of written clips depends."""

    @property
    def one_size(self) -> tuple[int, int] | Literal["bucket"] | None:
        """Width and height of clips without own sizes, or the largest bucket that each covers."""

    @property
    def rate(self) -> Fraction | None:
        """Frames per second of all clips; None for the source's rate."""

    @property
    def length_frames(self) -> int | None:
        """Frames of all clips; None for all frames."""


def as_output(
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


def as_written(clips: "pa.Table", cut: FormSettings, shard: BucketClasses) -> "pa.Table":
    """Returns candidates with the size, frame rate and number of frames of the written clips.

    Adds the columns `FITTED`, by which clips that `cut.enlarge`, `cut.most_cropped` or
    `cut.most_repeated` forbids are rejected. Buckets depend on the written form; scores, which the
    rules use, stay those of the source. Windows have their rate and frames already.
    """
    may_have_size = _OWN in clips.column_names
    is_sized = cut.one_size is not None or (
        may_have_size and clips[_OWN].null_count < clips.num_rows
    )
    if not (is_sized or may_have_size or cut.rate is not None or cut.length_frames is not None):
        return clips
    # A sandbox imports this module without Arrow.
    import pyarrow as pa
    import pyarrow.compute as pc

    from curator.tables.parts import with_column

    def add(**columns: NDArray[Any]) -> None:
        nonlocal clips
        for name, values in columns.items():
            kind = clips.schema.field(name).type if name in clips.column_names else pa.float64()
            clips = with_column(clips, name, pa.array(values, kind, mask=np.isnan(values)))

    n_frames = np.asarray(clips["n_frames"].to_numpy(), np.int64)
    if is_sized:
        add(**_sizes(clips, cut.one_size, shard))
    elif may_have_size:
        # All blocks of clips have the same columns.
        add(**dict.fromkeys(field_names(Resized), np.full(clips.num_rows, np.nan)))
    if cut.rate is not None:
        n_frames, rates = _frames_at(cut.rate, clips, cut.length_frames)
        is_still = np.asarray(pc.equal(clips["medium"], str(Medium.IMAGE)).fill_null(False))
        # A still image keeps its one frame.
        n_frames = np.where(is_still, 1, n_frames)
        rates = {name: np.where(is_still, np.nan, values) for name, values in rates.items()}
        own = clips["written_fps"].to_numpy()
        add(written_fps=np.where(is_still, own, float(cut.rate)), **rates)
        texts = clips["fps_fraction"].to_pylist()
        text = [old if still else str(cut.rate) for old, still in zip(texts, is_still, strict=True)]
        clips = with_column(clips, "fps_fraction", pa.array(text, pa.string()))
    if cut.length_frames is not None:
        n_frames = np.minimum(n_frames, cut.length_frames)
    add(n_frames=n_frames)
    return clips


def _sizes(
    clips: "pa.Table", size: tuple[int, int] | str | None, shard: BucketClasses
) -> dict[str, NDArray[Any]]:
    """Returns the sizes to write, and how the pictures are scaled and cropped to them.

    Clips without a size of their own get `size`; with None, they keep theirs, and nothing is done.
    """
    pictures = (clips[name].to_pylist() for name in ("width", "height"))
    outputs = clips[_OWN].to_pylist() if _OWN in clips.column_names else [None] * clips.num_rows
    number_of: dict[tuple[int, int, str | None], int] = {}
    kinds = zip(*pictures, outputs, strict=True)
    inverse = np.array([number_of.setdefault(kind, len(number_of)) for kind in kinds], np.int64)
    rows: list[tuple[float, ...]] = []
    for width, height, output in number_of:
        to: tuple[int, int] | None = (width, height)
        if output is not None:
            to = parsed_size(output)
        elif size is None:
            rows.append((width, height, np.nan, np.nan))
            continue
        else:
            to = size if isinstance(size, tuple) else covered_size(width, height, shard)
        to = to or (width, height)
        factor = cover_factor((width, height), to) if min(width, height) > 0 else 0.0
        shown = factor**2 * width * height
        rows.append((*to, factor, max(0.0, 1 - to[0] * to[1] / shown) if shown else 0.0))
    columns = np.array(rows, np.float64).reshape(-1, 4)[inverse].T
    names = ("width", "height", "scale_factor", "cropped_share")
    whole = dict(zip(names, columns, strict=True))
    return whole | {name: whole[name].astype(np.int64) for name in names[:2]}


def _frames_at(
    rate: Fraction, clips: "pa.Table", most: int | None
) -> tuple[NDArray[np.int64], dict[str, NDArray[np.float64]]]:
    """Returns the frames of clips at another rate, and how this repeats the source's frames.

    At a constant rate, these are the repeats of `frame_plan` in the first `most` frames; at a
    variable one, the frames that the whole clip has at least more than the source.
    """
    own, ticks = (clips[name].to_pylist() for name in ("fps_fraction", "time_base"))
    factors = {text: float(rate / Fraction(text)) for text in set(own)}
    factor = np.array([factors[text] for text in own], np.float64)
    of_tick = {text: float(1 / (rate * Fraction(text))) for text in set(ticks)}
    span = np.subtract(*(clips[name].to_numpy() for name in ("end_pts", "start_pts")))
    exact = span / np.array([of_tick[text] for text in ticks], np.float64)
    resampled = np.maximum(1, np.rint(exact))
    n_frames = np.asarray(clips["n_frames"].to_numpy(), np.int64)
    n_frames = np.where(factor == 1, n_frames, resampled.astype(np.int64))
    n_source = np.subtract(*(clips[name].to_numpy() for name in ("end_frame", "start_frame")))
    is_vfr = np.asarray(clips["is_vfr"].to_numpy(zero_copy_only=False), np.bool_)
    counted = n_frames if most is None else np.where(is_vfr, n_frames, np.minimum(n_frames, most))
    # The source's frame a quarter into the last frame, as in `frame_plan`.
    last = np.floor((counted - 0.75) * n_source / exact + 1e-9)
    shown = np.where(is_vfr, n_source, np.minimum(n_source, last + 1))
    shown = np.where((factor == 1) & ~is_vfr, counted, shown)
    repeated = np.maximum(0, counted - shown) / counted
    return n_frames, {"rate_factor": factor, "repeated_share": repeated}
