"""Opens untrusted containers, with a closed list of demuxers and no access to other files."""

import errno
import io
import math
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, BinaryIO, NamedTuple, Never

import av
from av.packet import Packet
from av.stream import Disposition

from curator.errors import ErrorCode, SourceError
from curator.media.continuous_times import ContinuousPackets
from curator.media.file_kinds import (
    ENCRYPTED,
    HEAD_BYTES,
    INIT_ONLY,
    FileKind,
    OtherMediumError,
    file_kind,
    is_encrypted,
    of_kind,
)
from curator.media.still_images import IMAGE_DEMUXERS, MAX_PICTURE_PIXELS, StillImage
from curator.records.sources import Medium

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
    reader: BinaryIO, uri: str, *, n_bytes: int, still: StillImage | None = None
) -> Iterator[av.container.InputContainer]:
    """Opens a source of `n_bytes` for demuxing, from its start.

    `still` is the source as a still image, as `read_still` returns it. Without it, a still image is
    refused, or opened as an AVIF that `video_stream` refuses.

    Raises:
        SourceError: EMPTY_FILE, TOO_LARGE_TO_PROBE, or NOT_A_VIDEO or a more exact code.
    """
    if n_bytes == 0:
        raise SourceError(
            ErrorCode.EMPTY_FILE, f"{uri} has 0 bytes; expected a video; fetch or copy it again"
        )
    # FFmpeg takes the reader's position as the start of the file.
    reader.seek(0)
    try:
        container = av.open(
            _Seeking(reader if still is None else io.BytesIO(still.coded)),
            mode="r",
            format=None if still is None else IMAGE_DEMUXERS[still.format],
            options={"max_pixels": str(MAX_PICTURE_PIXELS), "codec_whitelist": CODECS},
            container_options={
                "format_whitelist": DEMUXERS if still is None else IMAGE_DEMUXERS[still.format],
                "protocol_whitelist": "none",
                "max_streams": str(MAX_STREAMS),
            },
            metadata_errors="replace",
            buffer_size=BUFFER_BYTES,
            io_open=_refuse_other_files,
        )
    except av.error.MemoryError as error:
        if _is_heif_image(reader, n_bytes):
            # A picture of 48 megapixels has a stream for each of 192 tiles.
            raise OtherMediumError(Medium.IMAGE, uri) from error
        raise SourceError(
            ErrorCode.TOO_LARGE_TO_PROBE,
            f"{uri} ({n_bytes} bytes) has more than {MAX_STREAMS} streams, or an index or pictures "
            "that need more memory than the limit for reading a header; remux its video alone "
            "with ffmpeg, or leave it out",
        ) from error
    except av.error.FFmpegError as error:
        if _is_heif_image(reader, n_bytes):
            raise OtherMediumError(Medium.IMAGE, uri) from error
        # FFmpeg refuses fragments of Common Encryption as invalid data.
        kind = _kind_of(reader, uri, n_bytes)
        if kind is not None:
            raise of_kind(kind, uri, n_bytes) from error
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


def _is_heif_image(reader: BinaryIO, n_bytes: int) -> bool:
    """Returns whether a file that FFmpeg refuses is HEIF or AVIF, by its `meta`, without a film."""
    start, end = next(_boxes(reader, b"meta", 0, n_bytes), (0, 0))
    if not end or next(_boxes(reader, b"moov", 0, n_bytes), None) is not None:
        return False
    reader.seek(start)
    # After version and flags, the box `hdlr` with the type of the handler.
    return reader.read(24)[20:] == b"pict"


_STILL_BRANDS = (
    "avif", "avis", "heic", "heix", "heim", "heis", "hevc", "hevx", "hevm", "hevs", "mif1", "mif2",
    "msf1",
)  # fmt: skip
"""Brands of still images and image sequences in MP4 (ISO/IEC 23008-12, AVIF)."""


def video_stream(
    container: av.container.InputContainer, uri: str, *, still: StillImage | None = None
) -> av.VideoStream:
    """Picks the video stream of which clips are made; of the still image `still`, its picture.

    Cover pictures, and streams that no decoder opens, are left out. Of the others, a film comes
    before a still picture, then a stream that the container marks as default, then the larger
    picture, then more frames, and then the first.

    A GIF, HEIF or AVIF, by its brand, is a still image unless a stream has several pictures. Files
    with a brand of still images may have a film, as some programs write, and as sequences do.

    Raises:
        OtherMediumError: The container has a still image that is not `still`, or only sound.
        SourceError: NO_VIDEO_STREAM or UNSUPPORTED_CODEC.
    """
    streams = _pictures_of(container)
    if still is not None and len(streams) > 1:
        raise SourceError(
            ErrorCode.UNSUPPORTED_CODEC,
            f"{uri} is an AVIF of {len(streams)} pictures (tiles, or transparency); expected one: "
            "convert it to PNG or JPEG",
        )
    if not streams and container.streams.audio:
        raise OtherMediumError(Medium.SOUND, uri)
    may_be_still = still is None and (
        container.format.name == "gif" or container.metadata.get("major_brand") in _STILL_BRANDS
    )
    if may_be_still and all(_has_one_picture(stream) for stream in streams):
        raise OtherMediumError(Medium.IMAGE, uri)
    if not streams:
        kinds = ", ".join(sorted({s.type for s in container.streams})) or "no streams"
        raise SourceError(
            ErrorCode.NO_VIDEO_STREAM,
            f"{uri} has no video stream (it has: {kinds}); remove it from the sources",
        )
    usable = [stream for stream in streams if has_decoder(stream)]
    if not usable:
        if any(_is_dolby_tagged(stream) for stream in streams):
            raise only_dolby_vision(uri)
        raise SourceError(
            ErrorCode.UNSUPPORTED_CODEC,
            f"{uri}: no accepted decoder for its video codec; transcode it to H.264, HEVC, VP9 or "
            "AV1",
        )
    return usable[0] if len(usable) == 1 else max(usable, key=_preference)


def has_other_video(container: av.container.InputContainer, stream: av.VideoStream) -> bool:
    """Returns whether a container has footage, more than a still, in another video stream."""
    others = (other for other in _pictures_of(container) if other.index != stream.index)
    return any(not _is_still(other) for other in others)


def _pictures_of(container: av.container.InputContainer) -> list[av.VideoStream]:
    cover = Disposition.attached_pic | Disposition.timed_thumbnails
    return [stream for stream in container.streams.video if not stream.disposition & cover]


def _preference(stream: av.VideoStream) -> tuple[bool, bool, int, float]:
    is_default = bool(stream.disposition & Disposition.default)
    n_pixels = stream.width * stream.height
    return not _is_still(stream), is_default, n_pixels, _claimed_frames(stream) or 0.0


def _is_still(stream: av.VideoStream) -> bool:
    """Returns whether a stream holds at most one picture, or nothing that FFmpeg recognizes."""
    if getattr(stream, "codec_context", None) is None or not stream.width:
        return True
    return bool(stream.disposition & Disposition.still_image) or _has_one_picture(stream)


def _has_one_picture(stream: av.VideoStream) -> bool:
    n_frames = _claimed_frames(stream)
    return n_frames is not None and n_frames < 1.5


def _claimed_frames(stream: av.VideoStream) -> float | None:
    """Returns the number of frames by the header; None if it says nothing."""
    if stream.frames:
        return float(stream.frames)
    tags = {name.upper(): text for name, text in stream.metadata.items()}
    count = tags.get("NUMBER_OF_FRAMES", "")
    if count.isdecimal():
        return float(count)
    seconds = _own_duration_s(stream)
    return seconds and seconds * float(stream.average_rate or stream.guessed_rate or 25)


def _own_duration_s(stream: av.stream.Stream) -> float | None:
    """Returns the seconds of a stream by the header; None if that only says them of the file."""
    tags = {name.upper(): text for name, text in stream.metadata.items()}
    # Of Matroska, FFmpeg takes the file's duration for that of the first stream. In MP4, the tag
    # is a copy from the file that the stream was taken from.
    is_matroska = "matroska" in stream.container.format.name
    clock = is_matroska and re.fullmatch(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)", tags.get("DURATION", ""))
    if clock:
        hours, minutes, rest = clock.groups()
        seconds = int(hours) * 3600 + int(minutes) * 60 + float(rest)
        # FFmpeg writes the time of the end, and mkvmerge, with its statistics, the length.
        return seconds if "_STATISTICS_TAGS" in tags else max(0.0, seconds - _start_s(stream))
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return None


def _start_s(stream: av.stream.Stream) -> float:
    return float((stream.start_time or 0) * (stream.time_base or 0))


class ClaimedDuration(NamedTuple):
    """Seconds of the video by the header, from its first frame."""

    seconds: float | None
    is_of_file: bool = False
    """Whether this is the time to the end of the file, in which other streams may end later."""


def claimed_duration(
    container: av.container.InputContainer, stream: av.VideoStream
) -> ClaimedDuration:
    """Returns the duration that the header of a container promises for a video stream."""
    # ASF has the duration of the file alone, which FFmpeg gives to each stream.
    own_s = _own_duration_s(stream) if container.format.name != "asf" else None
    if not container.duration or (own_s is not None and not _is_overstated(container)):
        return ClaimedDuration(own_s)
    late_s = max(0.0, _start_s(stream) - (container.start_time or 0) / 1_000_000)
    return ClaimedDuration(max(0.0, container.duration / 1_000_000 - late_s), is_of_file=True)


def _is_overstated(container: av.container.InputContainer) -> bool:
    """Whether the file claims to last longer than each of its streams claims for itself."""
    own_s = [_own_duration_s(stream) for stream in container.streams]
    longest_s = max((seconds for seconds in own_s if seconds is not None), default=0.0)
    file_s = (container.duration or 0) / 1_000_000
    return None not in own_s and file_s > 1 + 1.1 * longest_s


def reaches(reader: BinaryIO, uri: str, *, n_bytes: int, share: float) -> bool:
    """Returns whether packets of any stream reach a share of the duration of a container."""
    with open_container(reader, uri, n_bytes=n_bytes) as container:
        least_s = share * (container.duration or 0) / 1_000_000
        try:
            # FLV without an index of its key frames refuses to seek behind the last one.
            for packet in container.demux():
                at = packet.pts if packet.pts is not None else packet.dts
                if at is not None and (at + (packet.duration or 0)) * packet.time_base >= least_s:
                    return True
        except (av.error.FFmpegError, IndexError):
            return False
    return False


def promised_frames(
    container: av.container.InputContainer, stream: av.VideoStream, n_shown: int | None = None
) -> int | None:
    """Returns the number of frames that the header promises; None if it does not say.

    Frames of an MP4 or MOV that its edit list hides do not count. `n_shown` is the number of
    entries of the index that are not discarded, if it is known.
    """
    if not stream.frames or "mov" not in container.format.name:
        return stream.frames or None
    if n_shown is None:
        n_shown = sum(not entry.is_discard for entry in stream.index_entries)
    return min(stream.frames, n_shown) if n_shown else stream.frames


def has_decoder(stream: av.stream.Stream) -> bool:
    """Returns whether FFmpeg has a decoder for a stream, and it is one of `CODECS`.

    Streams that only Dolby's decoders show in right colours have none.
    """
    context = getattr(stream, "codec_context", None)
    return context is not None and context.codec.name in _CODECS and not _is_dolby_tagged(stream)


_DOLBY_TAGS = frozenset({"dvh1", "dvhe", "dav1"})
"""Sample entries of Dolby Vision without a base layer that other decoders show (ISOBMFF)."""
_DOLBY_ONLY = re.compile(
    # A mapping of Matroska, with type and configuration, or descriptors of MPEG-TS.
    rb"\x41\xe7.{1,8}?dv[cvw]C\x41\xed.{1,8}?[\x01-\x03]\x00..."
    rb"|DOVI.{0,64}?\xb0[\x05-\x20][\x01-\x03]\x00...",
    re.DOTALL,
)


def _is_dolby_tagged(stream: av.stream.Stream) -> bool:
    context = getattr(stream, "codec_context", None)
    try:
        return context is not None and context.codec_tag in _DOLBY_TAGS
    except UnicodeDecodeError:
        # A tag is a number, such as AVI's 0xff of AAC; PyAV reads it as text.
        return False


def only_dolby_vision(uri: str) -> SourceError:
    """Returns the error for Dolby Vision of a profile whose base layer is in no common colours."""
    return SourceError(
        ErrorCode.UNSUPPORTED_CODEC,
        f"{uri} is Dolby Vision of a profile (5, 10.0) whose colours only Dolby's decoders show; "
        "convert it to HDR10, HLG or BT.709 with a tool that applies its metadata (such as "
        "libplacebo), or leave it out",
    )


def demuxed(
    container: av.container.InputContainer,
    streams: Sequence[av.stream.Stream],
    shifts_s: list[Fraction] | None = None,
) -> Iterator["Packet[Any]"]:
    """Yields the packets of some streams, and then an empty packet of each to flush its decoder.

    If the times of the video start again, later packets are moved behind earlier ones, and
    `shifts_s` gets the seconds.
    """
    packets = _flushed(container, streams)
    return iter(ContinuousPackets(packets, streams, [] if shifts_s is None else shifts_s))


def _flushed(
    container: av.container.InputContainer, streams: Sequence[av.stream.Stream]
) -> Iterator["Packet[Any]"]:
    """Yields packets, and empty ones at the end, even if further streams appear within the file.

    PyAV then raises `IndexError` instead.
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


class Orientation(NamedTuple):
    """How players show a picture: rotated clockwise, and then mirrored left to right."""

    rotation_deg: int = 0  # 0, 90, 180 or 270
    is_mirrored: bool = False


def orientation_of(matrix: Sequence[int]) -> Orientation | None:
    """Returns the nearest of the eight orientations to a display matrix; None if it has none.

    `matrix` begins with a, b, u, c, d: a pixel at (x, y) is shown at (a x + c y, b x + d y).
    """
    a, b, _, c, d = matrix[:5]
    if a == 0 and b == 0:
        return None
    is_mirrored = a * d - b * c < 0
    turn = math.degrees(math.atan2(b, -a if is_mirrored else a))
    return Orientation(round(turn / 90) * 90 % 360, is_mirrored)


def pixel_aspect_of(stream: av.VideoStream, rotation_deg: int) -> Fraction:
    """Returns width / height of a pixel after rotation; 1 if unknown or outside of 1/8 to 8."""
    return shown_aspect(stream.sample_aspect_ratio, rotation_deg)


def shown_aspect(coded: Fraction | None, rotation_deg: int) -> Fraction:
    """Returns width / height of a pixel after rotation, from that of a coded pixel."""
    aspect = Fraction(coded or 1)
    if not Fraction(1, 8) <= aspect <= 8:
        return Fraction(1)
    return 1 / aspect if rotation_deg % 180 else aspect


class HeaderTrack(NamedTuple):
    """Facts of a video track that PyAV has only for decoded frames, or not at all."""

    orientation: Orientation | None = None  # None if it is unknown
    is_only_dolby: bool = False  # Dolby Vision without colours that other decoders show
    kind: FileKind | None = None  # why its frames cannot be read


def header_track(reader: BinaryIO, n_bytes: int, track_id: int | None) -> HeaderTrack:
    """Returns facts of a track from the header of MP4 or MOV.

    The track has the id `track_id`, or is the first encrypted video if that is None. A scan decodes
    nothing. The display matrix of a track is nine 32-bit numbers in its `tkhd` box
    (ISO/IEC 14496-12, 8.3.2). Of other containers, only Dolby Vision and encryption are found.
    """
    start, end = next(_boxes(reader, b"moov", 0, n_bytes), (0, 0))
    if not 0 < end - start <= MAX_MOOV_BYTES:
        reader.seek(0)
        head = reader.read(HEAD_BYTES)
        found = _DOLBY_ONLY.search(head)
        return HeaderTrack(
            is_only_dolby=found is not None and _is_only_dolby(found[0][-3:]),
            kind=ENCRYPTED if is_encrypted(head) else None,
        )
    reader.seek(start)
    moov = io.BytesIO(reader.read(end - start))
    for track in _boxes(moov, b"trak", 0, end - start):
        header = next(_contents(moov, b"tkhd", *track), b"")
        offset = 20 if header[:1] == b"\x01" else 12
        entries = list(_sample_entries(moov, track))
        is_chosen = int.from_bytes(header[offset : offset + 4], "big") == track_id
        is_unreadable = any(name in _ENCRYPTED_ENTRIES for name, _, _ in entries)
        if is_chosen or (track_id is None and is_unreadable):
            return HeaderTrack(
                _orientation(header),
                any(_has_only_dolby(moov, *places) for _, *places in entries),
                _kind_of_entries(reader, n_bytes, moov, entries),
            )
    return HeaderTrack()


def unreadable_kind(reader: BinaryIO, uri: str, n_bytes: int) -> FileKind | None:
    """Returns why no video stream of a container can be read; None if the bytes do not say."""
    kind = _kind_of(reader, uri, n_bytes)
    return kind if kind is not None and kind.is_footage else None


def _kind_of(reader: BinaryIO, uri: str, n_bytes: int) -> FileKind | None:
    kind = header_track(reader, n_bytes, None).kind
    if kind is None:
        reader.seek(0)
        kind = file_kind(reader.read(HEAD_BYTES), uri=uri, n_bytes=n_bytes)
    return kind


_ENCRYPTED_ENTRIES = frozenset({b"encv", b"drmi"})
"""Types of sample entries of encrypted video: Common Encryption, and FairPlay of old."""


def _kind_of_entries(
    reader: BinaryIO, n_bytes: int, moov: BinaryIO, entries: Sequence[tuple[bytes, int, int]]
) -> FileKind | None:
    if entries and all(name in _ENCRYPTED_ENTRIES for name, _, _ in entries):
        return ENCRYPTED
    is_small = n_bytes <= HEAD_BYTES and next(_boxes(moov, b"mvex", 0, n_bytes), None) is not None
    has_frames = is_small and any(
        next(_boxes(reader, name, 0, n_bytes), None) for name in (b"moof", b"mdat")
    )
    return INIT_ONLY if is_small and not has_frames else None


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


def _orientation(header: bytes) -> Orientation | None:
    offset = 52 if header[:1] == b"\x01" else 40
    if len(header) < offset + 36:
        return None
    return orientation_of(struct.unpack_from(">9i", header, offset))


def _sample_entries(moov: BinaryIO, track: tuple[int, int]) -> Iterator[tuple[bytes, int, int]]:
    """Yields type, begin and end of the sample entries of a track."""
    for kind in (b"mdia", b"minf", b"stbl", b"stsd"):
        track = next(_boxes(moov, kind, *track), (0, 0))
    start, end = track
    # After version and count.
    start += 8
    while start + 16 <= end:
        moov.seek(start)
        n_bytes, name = struct.unpack(">I4s", moov.read(8))
        yield name, start, min(start + n_bytes, end)
        if n_bytes < 8:
            return
        start += n_bytes


def _has_only_dolby(moov: BinaryIO, start: int, end: int) -> bool:
    """Returns whether a sample entry has a configuration of Dolby Vision alone.

    An entry of video has 86 bytes, and then boxes.
    """
    return any(
        _is_only_dolby(data[2:5])
        for kind in (b"dvcC", b"dvvC", b"dvwC")
        for data in _contents(moov, kind, start + 86, end)
    )


def _is_only_dolby(configuration: bytes) -> bool:
    """Returns whether the base layer is in no common colours, from bytes 2 to 4 of `dvcC`.

    7 bits of profile, 6 of level, 3 flags (metadata, enhancement layer, base layer), 4 of the
    compatibility: 0 is none (Dolby Vision Streams Within the ISO Base Media File Format, 2.1.2).
    """
    if len(configuration) < 3 or not configuration[1] & 1:
        return False
    return configuration[0] >> 1 > 3 and configuration[2] >> 4 == 0
