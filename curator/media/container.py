"""Opens untrusted containers, with a closed list of demuxers and no access to other files."""

import errno
import io
import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, BinaryIO, Never

import av
from av.packet import Packet
from av.stream import Disposition

from curator.errors import ErrorCode, SourceError

DEMUXERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,live_flv,asf,ogg,gif,ivf,"
    "h264,hevc,m4v,mxf,nut,yuv4mpegpipe,rm,dv,obu,wtv,av1,vc1,gxf,apng,nsv"
)
"""Containers of video. The list has no playlists, which name other files (hls, dash, concat), and
no image readers, raw formats without a signature, or devices."""

CODECS = (
    "h264,hevc,vvc,libdav1d,av1,libvpx,libvpx-vp9,vp3,vp6,vp6a,vp6f,vp8,vp9,mpeg1video,mpeg2video,"
    "mpegvideo,mpeg4,msmpeg4v1,msmpeg4v2,msmpeg4,h261,h263,h263i,h263p,flv,wmv1,wmv2,wmv3,vc1,mjpeg,"
    "mjpegb,prores,prores_raw,dnxhd,cfhd,dvvideo,theora,rv10,rv20,rv30,rv40,svq1,svq3,cinepak,indeo2,"
    "indeo3,indeo4,indeo5,ffv1,ffvhuff,huffyuv,utvideo,magicyuv,hap,qtrle,rpza,smc,8bps,rawvideo,v210,"
    "v308,v408,v410,r210,png,apng,gif,jpeg2000,webp,bmp,tiff,zmbv,flashsv,flashsv2,"
    "aac,aac_fixed,aac_latm,ac3,eac3,alac,amrnb,amrwb,ape,cook,dca,flac,g723_1,g729,gsm,gsm_ms,mlp,"
    "truehd,mp1,mp1float,mp2,mp2float,mp3,mp3float,mp3adu,mp3on4,nellymoser,opus,libopus,qcelp,ralf,sipr,speex,vorbis,wavpack,wmalossless,wmapro,wmav1,wmav2,wmavoice,"
    "pcm_alaw,pcm_mulaw,pcm_bluray,pcm_dvd,pcm_lxf,pcm_f32be,pcm_f32le,pcm_f64be,pcm_f64le,pcm_s8,"
    "pcm_s16be,pcm_s16le,pcm_s24be,pcm_s24le,pcm_s32be,pcm_s32le,pcm_u8,pcm_u16be,pcm_u16le,pcm_u24be,"
    "pcm_u24le,pcm_u32be,pcm_u32le,adpcm_ima_qt,adpcm_ima_wav,adpcm_ms,adpcm_swf,adpcm_yamaha,"
    "mov_text,subrip,srt,ass,ssa,webvtt,dvbsub,dvdsub,pgssub"
)
"""Decoders of codecs that cameras, editors and web sites use, without codecs of games."""
_CODECS = frozenset(CODECS.split(","))
MAX_PICTURE_PIXELS = 1 << 26
"""Largest picture that FFmpeg decodes while it probes a container; 8K has half as many pixels. This
also limits cover pictures, which probing decodes before it recognizes them."""
MAX_STREAMS = 100
"""Most streams in a container. A camera with 8 lenses, sound and telemetry has about 30."""

MAX_MOOV_BYTES = 256 << 20
"""Largest index that is read to learn the rotation. For a larger one, decoding finds it later."""
_MOST_BOXES = 10_000
BUFFER_BYTES = 1 << 18
"""Read size between FFmpeg and Python: about one call per frame, instead of one per 32 KiB."""


def _refuse_other_files(url: str, _flags: int, _options: dict[str, str]) -> Never:
    raise PermissionError(f"a container refers to {url!r}; sources are single files")


class _Seeking:
    """A reader that answers impossible seeks with a negative number, as FFmpeg expects."""

    def __init__(self, reader: BinaryIO) -> None:
        self.read, self.tell = reader.read, reader.tell
        self._seek = reader.seek

    def seek(self, offset: int, whence: int = 0) -> int:
        """Returns the new position, or a negative number."""
        try:
            return self._seek(offset, whence)
        except (ValueError, OverflowError):
            return -errno.EINVAL
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return -errno.EINVAL

    def seekable(self) -> bool:
        """Returns True."""
        return True

    readable = seekable


@contextmanager
def open_container(
    reader: BinaryIO, uri: str, *, n_bytes: int
) -> Iterator[av.container.InputContainer]:
    """Opens a source of `n_bytes` for demuxing, from its start.

    Raises:
        SourceError: EMPTY_FILE, NOT_A_VIDEO or TOO_LARGE_TO_PROBE.
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
            options={"max_pixels": str(MAX_PICTURE_PIXELS), "codec_whitelist": CODECS},
            container_options={
                "format_whitelist": DEMUXERS,
                "protocol_whitelist": "none",
                "max_streams": str(MAX_STREAMS),
            },
            metadata_errors="replace",
            buffer_size=BUFFER_BYTES,
            io_open=_refuse_other_files,
        )
    except av.error.MemoryError as error:
        raise SourceError(
            ErrorCode.TOO_LARGE_TO_PROBE,
            f"{uri} ({n_bytes} bytes) has more than {MAX_STREAMS} streams, or an index or pictures "
            "that need more memory than the limit for reading a header; remux its video alone "
            "with ffmpeg, or leave it out",
        ) from error
    except av.error.FFmpegError as error:
        raise SourceError(
            ErrorCode.NOT_A_VIDEO,
            f"{uri} ({n_bytes} bytes) is in none of the accepted video containers, or its index "
            f"of frames is missing ({(error.strerror or 'no reason').lower()}); "
            "check how it was made or copied, or remux it with ffmpeg",
        ) from error
    try:
        yield container
    finally:
        container.close()


def video_stream(container: av.container.InputContainer, uri: str) -> av.VideoStream:
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
    if not has_decoder(stream):
        raise SourceError(
            ErrorCode.UNSUPPORTED_CODEC,
            f"{uri}: no accepted decoder for its video codec; transcode it to H.264, HEVC, VP9 or "
            "AV1",
        )
    return stream


def has_decoder(stream: av.stream.Stream) -> bool:
    """Returns whether FFmpeg has a decoder for a stream, and it is one of `CODECS`."""
    context = getattr(stream, "codec_context", None)
    return context is not None and context.codec.name in _CODECS


def demuxed(
    container: av.container.InputContainer, streams: Sequence[av.stream.Stream]
) -> Iterator["Packet[Any]"]:
    """Yields the packets of some streams, and then an empty packet of each to flush its decoder.

    It also yields the empty packets if further streams appear within the file. PyAV then raises
    `IndexError` instead.
    """
    flushed = set()
    try:
        for packet in container.demux(list(streams)):
            if not packet.size:
                flushed.add(packet.stream.index)
            yield packet
    except IndexError:
        yield from (flush_of(stream) for stream in streams if stream.index not in flushed)


def flush_of(stream: av.stream.Stream) -> "Packet[Any]":
    """Returns the empty packet that flushes a stream's decoder."""
    flush: Packet[Any] = Packet()
    flush.stream = stream
    return flush


def quarter_turns_deg(frame_rotation: float) -> int:
    """Returns the clockwise rotation (0, 90, 180 or 270) that makes a picture upright."""
    return round(-frame_rotation / 90) * 90 % 360


def pixel_aspect_of(stream: av.VideoStream, rotation_deg: int) -> Fraction:
    """Returns width / height of a pixel after rotation; 1 if unknown or outside of 1/8 to 8."""
    aspect = Fraction(stream.sample_aspect_ratio or 1)
    if not Fraction(1, 8) <= aspect <= 8:
        return Fraction(1)
    return 1 / aspect if rotation_deg % 180 else aspect


def header_rotation_deg(reader: BinaryIO, n_bytes: int) -> int | None:
    """Returns the clockwise rotation (0, 90, 180, 270) that makes the first video track upright.

    None if it is unknown. PyAV has the display matrix only for decoded frames, and a scan decodes
    nothing. The matrix of a video track of MP4 or MOV is nine 32-bit numbers in its `tkhd` box
    (ISO/IEC 14496-12, 8.3.2).
    """
    start, end = next(_boxes(reader, b"moov", 0, n_bytes), (0, 0))
    if not 0 < end - start <= MAX_MOOV_BYTES:
        return None
    reader.seek(start)
    moov = io.BytesIO(reader.read(end - start))
    for track in _boxes(moov, b"trak", 0, end - start):
        media = next(_boxes(moov, b"mdia", *track), (0, 0))
        if next(_contents(moov, b"hdlr", *media), b"")[8:12] == b"vide":
            return _rotation(next(_contents(moov, b"tkhd", *track), b""))
    return None


def _boxes(data: BinaryIO, kind: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields begin and end of the contents of boxes of a kind, between two positions."""
    for _ in range(_MOST_BOXES):
        if start + 8 > end:
            return
        data.seek(start)
        head = data.read(min(16, end - start))
        if len(head) < 8:
            return
        size, name = struct.unpack_from(">I4s", head)
        skip = 8
        if size == 1 and len(head) == 16:
            size, skip = struct.unpack_from(">Q", head, 8)[0], 16
        elif size == 0:
            size = end - start
        if size < skip:
            return
        if name == kind:
            # A box ends with its parent at the latest: else each track might contain all others.
            yield start + skip, min(start + size, end)
        start += size


def _contents(data: BinaryIO, kind: bytes, start: int, end: int) -> Iterator[bytes]:
    for begin, stop in _boxes(data, kind, start, end):
        data.seek(begin)
        yield data.read(stop - begin)


def _rotation(header: bytes) -> int | None:
    offset = 52 if header[:1] == b"\x01" else 40
    if len(header) < offset + 36:
        return None
    a, b = struct.unpack_from(">2i", header, offset)
    if a == 0 and b == 0:
        return None
    return round(math.degrees(math.atan2(b, a)) / 90) * 90 % 360
