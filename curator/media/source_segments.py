"""Divides a long source at key frames, by its container's index, without decoding it.

A segment is decoded from its key frame to some frames past the next segment's key frame. The frames
that two segments share give context to measurements at the border, and prove that the seek found
the right frames.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import ceil
from typing import BinaryIO

import av
import numpy as np
from av.video.stream import VideoStream

from curator.media.container import demuxed, open_container, video_stream
from curator.media.decode import FrameReader

INDEXED = ("mov", "matroska", "avi")
"""Demuxers of containers with an index of the whole file."""
LEAST_FRAMES = 900
"""Least frames of a segment, so that overlaps are a small part of decoding."""
EVEN_BEYOND = 4
"""Above this number, the number of segments is a multiple of it, to divide evenly among workers."""
_PROBED_PACKETS = 40
"""Packets after a key frame that are checked for an open GOP: more than any decoder reorders."""


class WholeReason(StrEnum):
    """Why a long source is not analyzed in segments. Public: counted in `summary.json`."""

    NO_INDEX = "no_index"
    """The container has no index (MPEG-TS), or an index that does not reach the end."""
    NO_KEY_FRAMES = "no_key_frames"
    """There are fewer than two key frames that are far enough apart."""
    OPEN_GOP = "open_gop"
    """Frames that follow a key frame are shown before it."""
    INDEX_LIES = "index_lies"
    """A seek finds other frames than the index promises."""
    NO_TIMESTAMPS = "no_timestamps"
    """Timestamps are missing or go backward."""
    DAMAGED = "damaged"
    """Frames are missing or concealed, so decoded frames depend on where decoding began."""
    TOO_MANY_FRAMES = "too_many_frames"
    """The index has more frames than the time limit by bytes and pixels allows."""
    FAILED = "failed"
    """A segment could not be analyzed at all."""


class NotInSegmentsError(Exception):
    """A source must be analyzed whole."""

    def __init__(self, reason: WholeReason) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a source that is decoded independently."""

    number: int
    n_segments: int
    anchor_pts: int
    """Timestamp of the source's first frame, the origin of the sampling grid."""
    start_pts: int
    """Timestamp of the segment's first key frame."""
    end_pts: int | None
    """Timestamp of the next segment's first key frame; None for the last."""
    end_byte: int | None = None
    """Approximate byte position of the segment's last frame; None for the end of the file."""

    @property
    def key(self) -> str:
        """Name of this segment within its source."""
        return f"{self.start_pts}-{'end' if self.end_pts is None else self.end_pts}"


def plan_segments(
    reader: BinaryIO,
    uri: str,
    *,
    n_bytes: int,
    limit_s: float,
    shared_frames: int,
    max_pixels: int,
    max_frames: int | None = None,
) -> list[Segment]:
    """Plans the segments of a source; decodes only its first frame.

    Args:
        reader: The source, seekable.
        uri: Name for messages.
        n_bytes: Size of the source.
        limit_s: Longest time between the starts of two segments, as far as key frames allow.
        shared_frames: Number of frames that two neighbours will both decode.
        max_pixels: Largest frame, in pixels.
        max_frames: Most frames in the index; None for any number.

    Returns:
        At least two segments, in order.

    Raises:
        NotInSegmentsError: The source must be analyzed whole.
        SourceError: The source cannot be read.
    """
    with open_container(reader, uri, n_bytes=n_bytes) as container:
        stream = video_stream(container, uri)
        if container.format.name.partition(",")[0] not in INDEXED:
            raise NotInSegmentsError(WholeReason.NO_INDEX)
        anchor_pts = _first_pts(container, stream, uri, max_pixels)
        wanted = list(_wanted(_key_times(container, stream), stream, limit_s))
        if max_frames is not None and len(stream.index_entries) > max_frames:
            raise NotInSegmentsError(WholeReason.TOO_MANY_FRAMES)
        borders = [_key_pts(container, stream, time) for time in wanted]
        end_bytes = [_position_after(stream, time, shared_frames) for time in wanted]
    starts = [anchor_pts, *borders]
    if len(starts) < 2:
        raise NotInSegmentsError(WholeReason.NO_KEY_FRAMES)
    if any(b <= a for a, b in pairwise(starts)):
        raise NotInSegmentsError(WholeReason.INDEX_LIES)
    parts = zip(starts, [*borders, None], [*end_bytes, None], strict=True)
    return [
        Segment(
            number=number, n_segments=len(starts), anchor_pts=anchor_pts, start_pts=start,
            end_pts=end, end_byte=end_byte,
        )
        for number, (start, end, end_byte) in enumerate(parts)
    ]  # fmt: skip


def seek_to(container: av.container.InputContainer, stream: VideoStream, pts: int) -> None:
    """Seeks to the last key frame of the index at or before a timestamp.

    Raises:
        NotInSegmentsError: INDEX_LIES, because the seek fails.
    """
    try:
        container.seek(pts, stream=stream, backward=True)
    except av.error.FFmpegError as error:
        raise NotInSegmentsError(WholeReason.INDEX_LIES) from error


def _first_pts(
    container: av.container.InputContainer, stream: VideoStream, uri: str, max_pixels: int
) -> int:
    frames = FrameReader(container, stream, uri, threads=1, max_pixels=max_pixels)
    first = next(iter(frames), None)
    if first is None or frames.report.is_damaged:
        raise NotInSegmentsError(WholeReason.DAMAGED)
    if frames.report.n_repaired_pts:
        raise NotInSegmentsError(WholeReason.NO_TIMESTAMPS)
    return first.pts


def _key_times(container: av.container.InputContainer, stream: VideoStream) -> list[int]:
    """Returns sorted times of key frames in the index; some containers give decoding times."""
    # Matroska's index is at the end of the file, and FFmpeg reads it at the first seek.
    seek_to(container, stream, _end_pts(container, stream) // 2)
    return sorted({e.timestamp for e in stream.index_entries if e.is_keyframe and not e.is_discard})


def _end_pts(container: av.container.InputContainer, stream: VideoStream) -> int:
    ticks = stream.duration
    if not ticks and container.duration and stream.time_base:
        ticks = round(container.duration / 1_000_000 / stream.time_base)
    if not ticks or not stream.time_base:
        raise NotInSegmentsError(WholeReason.NO_INDEX)
    return (stream.start_time or 0) + ticks


def _wanted(key_times: list[int], stream: VideoStream, limit_s: float) -> Iterator[int]:
    """Yields the times of the key frames nearest to evenly spaced borders."""
    if len(key_times) < 2:
        raise NotInSegmentsError(WholeReason.NO_KEY_FRAMES)
    assert stream.time_base is not None
    fps = float(stream.average_rate or 30)
    limit_ticks = max(limit_s, LEAST_FRAMES / max(fps, 0.01)) / float(stream.time_base)
    start = key_times[0]
    length = int(stream.duration or key_times[-1] - start)
    # An index that ends early is wrong, or its file was truncated.
    if key_times[-1] - start < length / 2:
        raise NotInSegmentsError(
            WholeReason.NO_INDEX if len(key_times) < 4 else WholeReason.INDEX_LIES
        )
    n_segments = ceil(length / limit_ticks)
    if n_segments > EVEN_BEYOND:
        n_segments += -n_segments % EVEN_BEYOND
    times = np.array(key_times, np.int64)
    ideal = start + np.arange(1, n_segments) * (length / n_segments)
    nearest = times[np.abs(times[None] - ideal[:, None]).argmin(axis=1)]
    yield from (int(t) for t in np.unique(nearest) if t > start)


def _position_after(stream: VideoStream, time: int, n_frames: int) -> int | None:
    """Returns the byte position of the first key frame at least `n_frames` after a time."""
    if stream.time_base is None:
        return None
    end = time + n_frames / float(stream.average_rate or 30) / float(stream.time_base)
    later = [e.pos for e in stream.index_entries if e.is_keyframe and e.timestamp >= end]
    return min(later, default=None)


def _key_pts(container: av.container.InputContainer, stream: VideoStream, time: int) -> int:
    """Returns the timestamp of the key frame at a time of the index; reads a few packets."""
    seek_to(container, stream, time)
    first: int | None = None
    try:
        for number, packet in enumerate(demuxed(container, [stream])):
            if packet.size == 0 or number > _PROBED_PACKETS:
                break
            if packet.pts is None:
                raise NotInSegmentsError(WholeReason.NO_TIMESTAMPS)
            if first is None:
                dts = packet.dts if packet.dts is not None else time
                if not packet.is_keyframe or dts > time:
                    raise NotInSegmentsError(WholeReason.INDEX_LIES)
                first = packet.pts
            elif packet.pts < first:
                raise NotInSegmentsError(WholeReason.OPEN_GOP)
            elif packet.is_keyframe:
                break
    except av.error.FFmpegError as error:
        raise NotInSegmentsError(WholeReason.DAMAGED) from error
    if first is None:
        raise NotInSegmentsError(WholeReason.INDEX_LIES)
    return first
