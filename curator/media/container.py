"""Opens untrusted containers: a closed list of demuxers, and no way to reach another file."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, BinaryIO, Never

import av
import av.container
import av.error
import av.stream
import av.video.stream
from av.packet import Packet
from av.stream import Disposition

from curator.errors import ErrorCode, SourceError

DEMUXERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,live_flv,asf,ogg,gif,ivf,"
    "h264,hevc,m4v,mxf,nut,yuv4mpegpipe,rm,dv,obu,wtv,av1,vc1,gxf,apng,nsv"
)
"""Containers of video, without playlists that name other files (hls, dash, concat), image readers,
raw formats without a signature, and devices."""

BUFFER_BYTES = 1 << 18
"""Read size between FFmpeg and Python: about one call per frame, instead of one per 32 KiB."""


def _refuse_other_files(url: str, _flags: int, _options: dict[str, str]) -> Never:
    raise PermissionError(f"a container asked to open {url!r}; sources are single files")


class _Seeking:
    """A reader that refuses impossible seeks as FFmpeg expects, without raising."""

    def __init__(self, reader: BinaryIO) -> None:
        self.read, self.tell = reader.read, reader.tell
        self._seek = reader.seek

    def seek(self, offset: int, whence: int = 0) -> int:
        """The new position, or a negative number."""
        try:
            return self._seek(offset, whence)
        except (ValueError, OverflowError):
            return -errno.EINVAL
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return -errno.EINVAL

    def seekable(self) -> bool:
        """True."""
        return True

    def readable(self) -> bool:
        """True."""
        return True


@contextmanager
def open_container(
    reader: BinaryIO, uri: str, *, n_bytes: int
) -> Iterator[av.container.InputContainer]:
    """Opens a source for demuxing.

    Args:
        reader: Seekable binary file, at any position; it is read from its start.
        uri: Name for messages.
        n_bytes: Size of the file.

    Raises:
        SourceError: EMPTY_FILE or NOT_A_VIDEO.
    """
    if n_bytes == 0:
        raise SourceError(
            ErrorCode.EMPTY_FILE, f"{uri} has 0 bytes; expected a video; fetch or copy it again"
        )
    # FFmpeg takes the reader's position as the start of the file.
    reader.seek(0)
    try:
        container = av.open(
            _Seeking(reader),
            mode="r",
            container_options={"format_whitelist": DEMUXERS, "protocol_whitelist": "none"},
            metadata_errors="replace",
            buffer_size=BUFFER_BYTES,
            io_open=_refuse_other_files,
        )
    except av.error.FFmpegError as error:
        raise SourceError(
            ErrorCode.NOT_A_VIDEO,
            f"{uri} ({n_bytes} bytes) is in none of the accepted video containers, or the part of "
            f"it that indexes the frames is missing ({_words(error)}); check how it was made or "
            "copied, or remux it with ffmpeg",
        ) from error
    try:
        yield container
    finally:
        container.close()


def _words(error: av.error.FFmpegError) -> str:
    return (error.strerror or type(error).__name__).lower()


def video_stream(container: av.container.InputContainer, uri: str) -> av.video.stream.VideoStream:
    """Picks the first video stream that is not a cover picture.

    Raises:
        SourceError: NO_VIDEO_STREAM or UNSUPPORTED_CODEC.
    """
    cover = Disposition.attached_pic | Disposition.timed_thumbnails
    streams = [s for s in container.streams.video if not s.disposition & cover]
    if not streams:
        kinds = ", ".join(sorted({s.type for s in container.streams})) or "no streams"
        raise SourceError(
            ErrorCode.NO_VIDEO_STREAM,
            f"{uri} has no video stream (it has: {kinds}); remove it from the sources",
        )
    stream = streams[0]
    context = getattr(stream, "codec_context", None)
    if context is None:
        raise SourceError(
            ErrorCode.UNSUPPORTED_CODEC,
            f"{uri}: no decoder for its video codec; transcode it to H.264, HEVC, VP9 or AV1",
        )
    return stream


def demuxed(
    container: av.container.InputContainer, streams: Sequence[av.stream.Stream]
) -> Iterator["Packet[Any]"]:
    """Packets of some streams, and at the end an empty one of each, which flushes its decoder.

    If further streams appear within the file, PyAV ends with an `IndexError` instead of empty
    packets.
    """
    flushed = set()
    try:
        for packet in container.demux(list(streams)):
            if not packet.size:
                flushed.add(packet.stream.index)
            yield packet
    except IndexError:
        for stream in streams:
            if stream.index not in flushed:
                flush: Packet[Any] = Packet()
                flush.stream = stream
                yield flush


def quarter_turns_deg(frame_rotation: float) -> int:
    """Clockwise degrees (0, 90, 180 or 270) that turn a picture upright, by FFmpeg's rotation."""
    return round(-frame_rotation / 90) * 90 % 360


def pixel_aspect_of(stream: av.video.stream.VideoStream, rotation_deg: int) -> Fraction:
    """Width of a pixel by its height, in the orientation after rotation; 1 if unknown."""
    aspect = stream.sample_aspect_ratio
    if aspect is None or aspect <= 0:
        return Fraction(1)
    aspect = Fraction(aspect)
    if not Fraction(1, 8) <= aspect <= 8:
        return Fraction(1)
    return 1 / aspect if rotation_deg % 180 else aspect
