"""Analyzes a long source in segments, and joins their tracks into the track of the whole source.

The decode of a segment begins at its first key frame, and ends after at least `OVERLAP` frames of
the next segment. The track of a segment is used from its own frame `CONTEXT` (the first segment:
from frame 0) to frame `CONTEXT` of the next segment. So the shot network has its context on both
sides, and the last sample has the frame to which its motion is measured. Both decodes of an overlap
must give the same frames, which proves that the seek reached the position in the index.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, BinaryIO, Unpack

import numpy as np
from numpy.typing import NDArray

from curator.media.audio_level import end_cell, first_cell, join_levels, within
from curator.media.container import open_container
from curator.media.source_segments import NotInSegmentsError, Segment, WholeReason, seek_to
from curator.models.transnet import CONTEXT
from curator.records.sources import Note
from curator.records.tracks import FRAME_SIGNALS, UNIFORM, Track
from curator.stages.analyze.decode_source import (
    AnalysisOptions,
    HeaderClaims,
    SourceDecode,
    with_cpu_to_fall_back_on,
)
from curator.stages.analyze.measurer import AnalysisModels
from curator.storage import NO_HASHES, ContentHashes, expect_end

OVERLAP = 2 * CONTEXT  # frames that two neighbouring segments both decode

_LUMA_TOLERANCE = 1e-4  # of a frame's mean and spread, because a GPU scales frames in batches

_REORDERED = 16  # maximum number of reordered frames in H.264 (ITU-T H.264, A.3.1)
_SIGNAL = "signals."
_PLACED = {
    "sample_frame": ("sample_pair_frame",),
    "thumbnail_frame": (),
    "look_frame": ("look_next_frame", "look_edges", "look_boxes", "look_standing", "look_moved"),
    "text_frame": ("text_line",),
    "clip_frame": ("clip_embedding",),
    "scene_frame": ("scene_vector",),
}
"""Columns with a row per sample, thumbnail, look and so on, by the column of frame numbers."""
_FRAMES = ("frame_pts", "frame_bytes", "frame_flags", "frame_size", *FRAME_SIGNALS)


def analyze_segment(
    reader: BinaryIO, uri: str, segment: Segment, **options: Unpack[AnalysisOptions]
) -> Track:
    """Decodes and measures one segment, and the frames that it shares with the next segment.

    Reads only the part of `reader` with the segment. For `options`, see `AnalysisOptions`.

    Returns:
        A track of the frames from `segment.start_pts` on, without hashes.

    Raises:
        NotInSegmentsError: INDEX_LIES, NO_TIMESTAMPS or DAMAGED.
        SourceError: The source cannot be read.
    """
    config, threads = options["config"], options["decoder_threads"]
    # So many seconds after a frame, a sample on it is complete.
    settled_s = 1 / config.samples_per_s + 2 * config.motion_pair_s

    def measured(models: AnalysisModels) -> Track:
        if segment.end_byte is not None:
            expect_end(reader, segment.end_byte)
        with open_container(reader, uri, n_bytes=options["n_bytes"]) as container:
            measuring = SourceDecode(
                container, uri, models, options, threads=threads, segment=segment
            )
            if segment.number > 0:
                seek_to(container, measuring.stream, segment.start_pts)
            n_shared = last_pts = 0
            settled_ticks = settled_s / measuring.frames.time_base
            report = measuring.frames.report
            with measuring.decoding() as frames:
                for frame in frames:
                    if frame.index == 0 and frame.pts != segment.start_pts:
                        raise NotInSegmentsError(WholeReason.INDEX_LIES)
                    if report.needs_one_thread:
                        break
                    measuring.take(frame)
                    n_shared += segment.end_pts is not None and frame.pts >= segment.end_pts
                    if n_shared == CONTEXT:
                        last_pts = frame.pts
                    if n_shared >= OVERLAP and frame.pts > last_pts + settled_ticks:
                        break
            if report.needs_one_thread:
                raise NotInSegmentsError(WholeReason.DAMAGED)
            if report.n_repaired_pts or report.shifts_s:
                raise NotInSegmentsError(WholeReason.NO_TIMESTAMPS)
            if measuring.measurer is None:
                raise NotInSegmentsError(WholeReason.INDEX_LIES)
            track = measuring.track(NO_HASHES)
            measuring.account()
            return track

    return with_cpu_to_fall_back_on(options["analysis_models"], measured)


def join_segments(tracks: Sequence[Track], hashes: ContentHashes, header: HeaderClaims) -> Track:
    """Joins the tracks of all segments of a source, in order.

    Returns:
        The track of `analyze_source`, except that probabilities may differ by 0.0005.

    Raises:
        NotInSegmentsError: INDEX_LIES, if two neighbours decoded different frames.
    """
    if any(len(track.frame_size) for track in tracks):
        tracks = [_with_sizes(track) for track in tracks]
    first, last = tracks[0], tracks[-1]
    begins = list(accumulate((_shared_from(*pair) for pair in pairwise(tracks)), initial=0))
    n_frames = begins[-1] + last.n_frames
    ends = [*(min(begin + CONTEXT, n_frames) for begin in begins[1:]), n_frames]
    owned = [(begins[0], ends[0]), *pairwise(ends)]
    pieces = list(map(_piece, tracks, begins, owned))
    columns: dict[str, Any] = {
        name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]
    }
    columns["frame_flags"] = _uniform_in_all(columns["frame_flags"], ends)
    names = [name for name in columns if name.startswith(_SIGNAL)]
    signals = {name.removeprefix(_SIGNAL): columns.pop(name) for name in names}
    audio_first, levels, is_proved = join_levels(
        [(track.audio_rms_first, track.audio_rms_db) for track in tracks]
    )
    # The track of a source has only the audio during its frames.
    start = first_cell(int(first.frame_pts[0]) * first.time_base)
    audio_rms_first, audio_rms_db = within(
        audio_first, levels, start, end_cell(last.end_pts * first.time_base)
    )
    notes = {note for track in tracks for note in track.notes}
    if not is_proved:
        notes.add(Note.AUDIO_UNPROVEN)
    joined = replace(
        first,
        sha256=hashes.sha256,
        block_hashes=hashes.blocks,
        end_pts=last.end_pts,
        is_interlaced=any(track.is_interlaced for track in tracks),
        is_hdr=any(track.is_hdr for track in tracks),
        notes=tuple(note for note in Note if note in notes),
        audio_rms_first=audio_rms_first,
        audio_rms_db=audio_rms_db,
        thumbnails=tuple(
            jpeg
            for track, begin, (start, end) in zip(tracks, begins, owned, strict=True)
            for frame, jpeg in zip(track.thumbnail_frame.tolist(), track.thumbnails, strict=True)
            if start <= frame + begin < end
        ),
        signals=signals,
        **columns,
    )
    return replace(joined, notes=header.notes(joined))


def _shared_from(left: Track, right: Track) -> int:
    """Returns the right track's first frame as an index of the left; checks the shared frames."""
    start = int(np.searchsorted(left.frame_pts, right.frame_pts[0]))
    n_shared = left.n_frames - start
    if n_shared < min(OVERLAP, right.n_frames) or n_shared > right.n_frames:
        raise NotInSegmentsError(WholeReason.INDEX_LIES)
    same = np.array_equal(left.frame_pts[start:], right.frame_pts[:n_shared])
    for name in ("luma_mean", "luma_spread"):
        difference = getattr(left, name)[start:] - getattr(right, name)[:n_shared]
        same = same and bool(np.abs(difference).max(initial=0.0) <= _LUMA_TOLERANCE)
    sized = (left.width, left.height, left.rotation_deg, left.time_base)
    if not same or sized != (right.width, right.height, right.rotation_deg, right.time_base):
        raise NotInSegmentsError(WholeReason.INDEX_LIES)
    return start


def _with_sizes(track: Track) -> Track:
    sizes = np.array([track.size_at(frame) for frame in range(track.n_frames)], np.uint16)
    return replace(track, frame_size=sizes)


def _piece(track: Track, begin: int, span: tuple[int, int]) -> dict[str, NDArray[Any]]:
    """Returns the columns of frames [start, end) of the source; `begin` is the track's first."""
    start, end = span
    frames = slice(start - begin, end - begin)
    # Columns that were not measured are empty, and stay empty.
    piece = {name: getattr(track, name)[frames] for name in _FRAMES}
    for placed_by, others in _PLACED.items():
        frame = getattr(track, placed_by) + begin
        own = (frame >= start) & (frame < end)
        piece |= {name: getattr(track, name)[own] for name in others}
        piece[placed_by] = frame[own]
        if placed_by == "sample_frame":
            measured = {"descriptor": track.descriptor} if len(track.descriptor) else {}
            measured |= {f"{_SIGNAL}{name}": values for name, values in track.signals.items()}
            piece |= {name: values[own] for name, values in measured.items()}
            piece["sample_pair_frame"] += begin
    next_frame = piece["look_next_frame"]
    piece["look_next_frame"] = np.where(next_frame < 0, -1, next_frame + begin)
    return piece


def _uniform_in_all(flags: NDArray[np.uint8], ends: Sequence[int]) -> NDArray[np.uint8]:
    """Clears the uniform flag after the first segment whose last frames are not all uniform."""
    is_uniform = (flags & UNIFORM).astype(bool)
    lasts = ((end, is_uniform[max(0, end - _REORDERED) : end]) for end in ends)
    last = next((end for end, frames in lasts if not frames.all()), len(flags))
    return np.where(np.arange(len(flags)) < last, flags, flags & ~np.uint8(UNIFORM))
