"""Decodes a video stream once, in presentation order, even if the stream is damaged.

A packet that does not decode is counted and skipped. A file that ends early yields the frames that
it holds. Timestamps are exact ticks of the container, repaired only if they are missing or do not
increase. Frames keep FFmpeg's format; nothing is converted at full size.
"""

import struct
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import av
import numpy as np
from av.codec.context import Flags
from av.packet import Packet
from av.sidedata.sidedata import SideDataContainer, Type
from numpy.typing import NDArray

from curator.errors import DecodeError, ErrorCode
from curator.media.audio_level import LevelMeter
from curator.media.container import (
    Orientation,
    demuxed,
    flush_of,
    only_dolby_vision,
    orientation_of,
)
from curator.media.damaged_frames import DamagedFrames
from curator.media.still_images import StillImage
from curator.media.stream_headers import FrameNumbers, header_sets, is_unambiguous, parameter_sets

Convert = Callable[[av.VideoFrame, StillImage, str], tuple[av.VideoFrame, bool]]
"""Returns a picture, and whether its file shows the same; arguments as of `as_frame`."""
DECODER_OPTIONS = {"export_side_data": "venc_params"}
"""Makes FFmpeg's decoders attach quantisers to frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedFrame:
    """A frame and its place in the stream."""

    index: int
    """Position in decode output order, from 0 at the first frame that decoded."""
    pts: int
    """Presentation time in the stream's `time_base`; strictly increasing."""
    picture: av.VideoFrame
    n_bytes: int
    """Size of the frame's packet; 0 if unknown."""
    is_uniform: bool = False
    """Whether a copy of the packet decodes to the same picture: see `FrameReader`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePicture:
    """A frame that a device decoded.

    Attributes:
        key_frame: Whether decoding can begin with this frame.
        view: Value that the `device_frames.Program` computed for the frame.
    """

    key_frame: bool
    view: Any
    is_corrupt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFrame:
    """A frame that a device decoded, and its place in the stream."""

    index: int
    pts: int
    picture: DevicePicture
    n_bytes: int
    is_uniform: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTime:
    """The time of a frame, in ticks of its stream, and facts of its packet."""

    pts: int
    end_pts: int
    n_bytes: int
    key_frame: bool = False
    is_repaired: bool = False
    is_uniform: bool = False
    """Whether all packets up to the frame's own need only the header's parameter sets."""


@dataclass(slots=True, kw_only=True)
class DecodeReport:
    """Facts and faults of a stream; filled as frames are consumed."""

    n_errors: int = 0
    damage: DamagedFrames = field(default_factory=DamagedFrames, compare=False)
    n_repaired_pts: int = 0
    shifts_s: list[Fraction] = field(default_factory=list)
    """Seconds by which packets were moved after each point where times start again."""
    ended_early: bool = False
    end_pts: int | None = None
    orientation: Orientation = field(default_factory=Orientation)
    first_aspect: Fraction | None = None
    """Width / height of a coded pixel of the first picture, where only the stream names it."""
    n_bits: int = 8
    """Most bits of a sample in the first picture."""
    aspect_changes: list[tuple[int, Fraction]] = field(default_factory=list)
    """First frame, and width / height of a coded pixel, each time that the stream changes it."""
    is_interlaced: bool = False
    is_hdr: bool = False
    is_converted: bool = False
    """Whether a still image shows other colours than its file says to a program that ignores
    transparency, colour profiles and further bits."""
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """Width and height of each size that occurs, in order of its first frame."""
    resized: list[tuple[int, tuple[int, int]]] = field(default_factory=list)
    """Index and size of each frame, but the first, whose size is not that of the frame before."""
    n_frames: int = 0
    n_lost_at_end: int = 0
    """Number of packets among the last ones that gave neither a frame nor an error."""

    def frame_sizes(self) -> NDArray[np.uint16]:
        """Returns the width and height of each frame, uint16 [F, 2]."""
        begins, sizes = zip((0, self.sizes[0]), *self.resized, strict=True)
        n_each = np.diff([*begins, self.n_frames])
        return np.repeat(np.array(sizes, np.uint16), n_each, axis=0)

    @property
    def rotation_deg(self) -> int:
        """Clockwise rotation to apply, before mirroring."""
        return self.orientation.rotation_deg

    @property
    def n_concealed(self) -> int:
        """Number of frames that are damaged, or depend on damage."""
        return len(self.damage.indices)

    @property
    def is_damaged(self) -> bool:
        """Whether frames are missing or damaged; then results depend on decoder threads."""
        n_faults = self.n_errors + self.n_lost_at_end + self.damage.n_packets
        return self.ended_early or n_faults + len(self.damage.indices) > 0

    @property
    def needs_one_thread(self) -> bool:
        """Whether results depend on the number of decoder threads."""
        return self.is_damaged or bool(self.aspect_changes)


def side_data_of(picture: av.VideoFrame, kind: Type) -> Any:  # noqa: ANN401
    """Returns side data that a decoder attached to a frame; None without it.

    `picture.side_data` would make a reference cycle, which keeps the pixels in memory until garbage
    is collected: 1.3 GB of an 8K film.
    """
    # PyAV's annotations lack its arguments.
    attached: Any = SideDataContainer
    try:
        return attached(picture).get(kind)
    except ValueError:
        # PyAV has no name for EXIF data, and then shows no other side data either.
        return None


def orientation_shown(picture: av.VideoFrame) -> Orientation:
    """Returns how players show a decoded frame, by its display matrix."""
    matrix = side_data_of(picture, Type.DISPLAYMATRIX)
    if matrix is None:
        return Orientation()
    return orientation_of(struct.unpack("9i", bytes(matrix))) or Orientation()


def _is_only_dolby(picture: av.VideoFrame) -> bool:
    """Returns whether the metadata of Dolby Vision belongs to colours that no other decoder shows.

    In FFmpeg's `AVDOVIMetadata`, an offset leads to a header, with the profile of the metadata in
    byte 4, and whether the range is full in byte 10. Profile 5 is 0 with full range.
    """
    attached = side_data_of(picture, Type.DOVI_METADATA)
    data = bytes(attached) if attached is not None else b""
    at = int.from_bytes(data[:8], sys.byteorder)
    header = data[at : at + 11]
    return len(header) == 11 and header[4] == 0 and header[10] == 1


HDR_TRANSFERS = (16, 18)
"""ITU-T H.273 transfer characteristics: PQ (SMPTE ST 2084) and HLG (ARIB STD-B67)."""


class Colours(NamedTuple):
    """Codes of ITU-T H.273, and FFmpeg's code of the range."""

    matrix: int = 2
    primaries: int = 2
    transfer: int = 2
    range: int = 0


def declared_colours(stream: av.VideoStream) -> Colours:
    """Returns the colours that a container declares, of a stream that was not decoded yet."""
    context = stream.codec_context
    return Colours(
        int(context.colorspace), int(context.color_primaries), int(context.color_trc),
        int(context.color_range),
    )  # fmt: skip


_UNSPECIFIED = 2
_MATRICES = frozenset({0, 1, 2, 4, 5, 6, 7, 9})
_OTHER_MATRICES = frozenset({8, *range(10, 18)})
_PRIMARIES = frozenset({1, 2, *range(4, 13), 22})
_TRANSFERS = frozenset({1, 2, *range(4, 9), *range(11, 19)})
"""ITU-T H.273 code points that FFmpeg's scaler accepts, and matrices that it cannot convert."""

DEFAULT_TIME_BASE = Fraction(1, 90_000)
"""Time base for a stream that names none: MPEG's clock."""
STILL_TIME_BASE = Fraction(1, 25)
"""Time base of still images, each shown for one tick: that of FFmpeg, which needs some time."""


def time_base_of(stream: av.VideoStream, still: StillImage | None = None) -> Fraction:
    """Returns the seconds per tick of a stream's timestamps; `still` is its still image."""
    if still is not None:
        return STILL_TIME_BASE
    return stream.time_base or DEFAULT_TIME_BASE


_ORIENTATIONS = (
    Orientation(),
    Orientation(0, True),
    Orientation(180, False),
    Orientation(180, True),
    Orientation(90, True),
    Orientation(90, False),
    Orientation(270, True),
    Orientation(270, False),
)
"""Of the orientations 1 to 8 of EXIF."""


def exif_orientation_of(still: StillImage) -> Orientation:
    """Returns how a still image is shown by its EXIF data; upright for an AVIF."""
    return _ORIENTATIONS[still.exif_orientation - 1]


_LAST_TICK = (1 << 63) - 1
_UNTIMED, _UNTIMED_END = -(1 << 62), -(1 << 61)
"""Times that mark packets without a time, so that their frames are known."""

_WITHOUT_ASPECT = frozenset({"mpegts", "mpeg", "mpegvideo", "h264", "hevc", "m4v", "obu", "vc1"})
"""Containers that say nothing of the shape of pixels, so that the stream may change it."""

MAX_CONSECUTIVE_ERRORS = 1000
"""Errors in a row after which decoding stops."""

_LAST_PACKETS = 64
"""More packets than any decoder delays. A flush can lose the errors of these packets."""


class FrameReader:
    """Iterates over the decoded frames of a stream.

    A frame of H.264 is *uniform* if a copy of its packet gives the same picture, provided that the
    copy begins where decoding can begin. This holds if its packet and all earlier ones need only
    the parameter sets in the stream's header, with at most one of each kind, and if the frame is
    undamaged, progressive, 8-bit 4:2:0, of the first picture's size, without a display matrix, and
    its timestamp was not repaired.

    Args:
        container: Opened for reading.
        stream: The container's video stream.
        uri: Name for messages.
        threads: Decoder threads, unless the stream's decoder is already open. More than one thread
            changes the pictures of a damaged stream from run to run, and loses frames near the
            damage or the end; see `DecodeReport.is_damaged`.
        max_pixels: Largest frame, in pixels.
        max_frames: Most frames; None for no limit.
        smooths_all: False skips the loop filter of frames that no other frame refers to, if the
            codec supports it. This saves a seventh of H.264's decoding time, but edges of blocks
            are visible at full size.
        with_quantizer: Attaches quantisers to frames. H.264 then uses one thread, because with
            several, one thread reads quantisers while another decodes the picture, and values
            differ between runs.
        audio: Gets the packets of its audio stream; does not affect frames.
        colours: Colours that the container declares; None if the stream was not decoded yet. They
            count where the frames name none.
        shows_damaged: Whether frames without their references are decoded, and count as damaged.
            FFmpeg's decoder of HEVC drops them otherwise.
        still: The container as a still image, of which damage that FFmpeg finds fails the image.
        convert: Makes of the picture of a still image one that is opaque, in sRGB, of 8 bits:
            `still_pictures.as_frame`. None leaves the picture as it is.
    """

    marks_untimed = True
    """Whether packets without a time get one, by which their frames are known."""

    def __init__(
        self,
        container: av.container.InputContainer,
        stream: av.VideoStream,
        uri: str,
        *,
        threads: int,
        max_pixels: int,
        max_frames: int | None = None,
        smooths_all: bool = True,
        with_quantizer: bool = False,
        audio: LevelMeter | None = None,
        colours: Colours | None = None,
        shows_damaged: bool = False,
        still: StillImage | None = None,
        convert: Convert | None = None,
    ) -> None:
        self._still, self._convert = still, convert
        self._audio = audio
        self._declared = declared_colours(stream) if colours is None else colours
        self.container = container
        self.stream = stream
        self.uri = uri
        self.max_pixels = max_pixels
        self.max_frames = max_frames
        self.time_base = time_base_of(stream, still)
        self._packets_of: dict[int | None, tuple[int, bool]] = {}
        """Time of a packet -> its bytes, and whether all packets so far were uniform."""
        codec = stream.codec_context.codec.canonical_name
        is_h264 = codec == "h264"
        self._extradata = stream.codec_context.extradata
        self._sets = header_sets(self._extradata) if is_h264 else frozenset()
        self._has_uniform_packets = is_h264 and is_unambiguous(self._sets)
        numbers = FrameNumbers(self._extradata) if is_h264 else None
        is_mpegts = stream.container.format.name == "mpegts"
        sees_holes = codec == "hevc" and bytes(self._extradata or b"")[:1] == b"\x01"
        damage = DamagedFrames(numbers, is_mpegts=is_mpegts, sees_holes=sees_holes)
        self.report = DecodeReport(damage=damage)
        # Otherwise the container names the shape of pixels, and the stream's changes do not count.
        self._has_own_aspect = stream.container.format.name in _WITHOUT_ASPECT
        self._aspect: Fraction | None = None
        self._next_aspect: tuple[int | None, Fraction] | None = None
        """Time of the packet from which on another shape counts, and the shape."""
        self._key_pts: int | None = None
        self._n_untimed = 0
        self._size: tuple[int, int] | None = None
        self._last_packet_pts: deque[int] = deque(maxlen=_LAST_PACKETS)
        self._last_pts: int | None = None
        self._last_duration = 0
        self._check_size(stream.width, stream.height)
        if not stream.codec_context.is_open:
            stream.codec_context.thread_type = "AUTO"
            is_racing = with_quantizer and is_h264
            stream.codec_context.thread_count = 1 if is_racing else threads
            options = {} if smooths_all else {"skip_loop_filter": "noref"}
            if still is not None:
                stream.codec_context.thread_count = 1
                options = {"err_detect": "crccheck+bitstream+buffer+explode"}
            stream.codec_context.options = options | (DECODER_OPTIONS if with_quantizer else {})
            if shows_damaged and codec in ("hevc", "vvc"):
                stream.codec_context.flags |= Flags.output_corrupt

    def __iter__(self) -> Generator[DecodedFrame]:
        """Yields frames in presentation order.

        Raises:
            DecodeError: TOO_MANY_PIXELS, TOO_LONG, or UNSUPPORTED_CODEC because of colours.
            SourceError: Raised by the reader.
        """
        failed_in_a_row = 0
        for packet in self._packets():
            try:
                pictures = packet.decode()
            except av.error.FFmpegError:
                self.report.n_errors += 1
                self.report.damage.failed()
                failed_in_a_row += 1
                if failed_in_a_row >= MAX_CONSECUTIVE_ERRORS:
                    self.report.ended_early = True
                    return
                continue
            if self._has_own_aspect:
                self._see_aspect(packet)
            for picture in pictures:
                failed_in_a_row = 0
                yield self._place(picture)
                if self._still is not None:
                    return
        self.report.n_lost_at_end = self._lost_at_end()

    def _packets(self) -> Iterator["Packet[Any]"]:
        audio = self._audio
        streams = [self.stream] if audio is None else [self.stream, audio.stream]
        packets = demuxed(self.container, streams, self.report.shifts_s)
        while True:
            try:
                packet = next(packets, None)
            except av.error.EOFError:
                packet = None
            except av.error.FFmpegError:
                self.report.ended_early = True
                self.report.n_errors += 1
                if audio is not None:
                    audio.end()
                yield flush_of(self.stream)
                return
            if packet is None:
                return
            if audio is not None and packet.stream is audio.stream:
                audio.take(packet)
                continue
            if self._has_uniform_packets and packet.size:
                # The packet has no parameter sets that the header lacks.
                self._has_uniform_packets = not packet.has_sidedata("new_extradata") and (
                    parameter_sets(bytes(packet), self._extradata) <= self._sets
                )
            if packet.size:
                # Damage knows no marks: of packets without a time, the order of frames decides.
                self.report.damage.sent(packet)
            if packet.size and not packet.is_discard:
                if packet.pts is None and self.marks_untimed:
                    # Decoders give a frame the time of its packet: here only a mark.
                    self._n_untimed += 1
                    packet.pts = _UNTIMED + self._n_untimed
                elif packet.pts is not None:
                    self._last_packet_pts.append(packet.pts)
                if packet.pts is not None:
                    self._packets_of[packet.pts] = packet.size, self._has_uniform_packets
                if len(self._packets_of) > 4096:
                    # Another thread may remove the entry in between.
                    self._packets_of.pop(next(iter(self._packets_of)), None)
            yield packet

    def _lost_at_end(self) -> int:
        # VP8 has separate packets of reference frames that are not shown.
        if self.stream.codec_context.name in ("vp8", "libvpx"):
            return 0
        return sum(pts in self._packets_of for pts in self._last_packet_pts)

    def _place(self, picture: av.VideoFrame) -> DecodedFrame:
        self._check_size(picture.width, picture.height)
        report = self.report
        self._name_colours(picture)
        if not report.sizes:
            self._see_first(picture)
        if self._still is not None and self._convert is not None:
            picture, is_same = self._convert(picture, self._still, self.uri)
            report.is_converted = not is_same
        size = (picture.width, picture.height)
        if size != self._size:
            self._size = size
            if report.sizes:
                report.resized.append((report.n_frames, size))
            if size not in report.sizes:
                report.sizes.append(size)
        report.is_interlaced |= bool(picture.interlaced_frame)
        report.is_hdr |= int(picture.color_trc) in HDR_TRANSFERS
        shown_pts, key_frame = picture.pts, bool(picture.key_frame)
        is_timed = shown_pts is not None and shown_pts >= _UNTIMED_END
        is_damaged = report.damage.shown(
            report.n_frames,
            shown_pts if is_timed else None,
            key_frame=key_frame,
            is_corrupt=bool(picture.is_corrupt),
        )
        if self._next_aspect is not None and key_frame:
            self._change_aspect(shown_pts)
        place = self._timed(shown_pts, picture.duration or 0)
        index = self._counted(place)
        is_uniform = place.is_uniform and not (place.is_repaired or is_damaged)
        return DecodedFrame(
            index=index,
            pts=place.pts,
            picture=picture,
            n_bytes=place.n_bytes,
            is_uniform=is_uniform and self._is_plain(picture),
        )

    def _see_first(self, picture: av.VideoFrame) -> None:
        """Reads what holds for all frames: orientation, depth, and HDR."""
        report = self.report
        if _is_only_dolby(picture):
            error = only_dolby_vision(self.uri)
            raise DecodeError(error.code, error.message)
        still = self._still
        report.orientation = orientation_shown(picture)
        if still is not None and still.format != "avif":
            report.orientation = exif_orientation_of(still)
        report.n_bits = max((part.bits for part in picture.format.components), default=8)
        report.is_hdr = int(picture.color_trc) in HDR_TRANSFERS

    def _see_aspect(self, packet: "Packet[Any]") -> None:
        """Sees whether a packet changed the shape of pixels; the decoder knows it before frames."""
        if packet.is_keyframe:
            self._key_pts = packet.pts
        aspect = self.stream.codec_context.sample_aspect_ratio
        if aspect != self._aspect:
            if self._aspect is not None and aspect is not None:
                self._next_aspect = self._key_pts, aspect
            self._aspect = aspect or self._aspect
            self.report.first_aspect = self.report.first_aspect or aspect

    def _change_aspect(self, pts: int | None) -> None:
        """Counts a change of shape from this key frame on, unless an earlier one is shown."""
        assert self._next_aspect is not None
        from_pts, aspect = self._next_aspect
        if from_pts is None or pts is None or pts >= from_pts:
            self.report.aspect_changes.append((self.report.n_frames, aspect))
            self._next_aspect = None

    def _is_plain(self, picture: av.VideoFrame) -> bool:
        if picture.is_corrupt or picture.interlaced_frame or picture.format.name != "yuv420p":
            return False
        is_sized = (picture.width, picture.height) == self.report.sizes[0]
        # A mirrored picture has a display matrix, though its rotation is 0.
        return is_sized and side_data_of(picture, Type.DISPLAYMATRIX) is None

    def _name_colours(self, picture: av.video.frame.VideoFrame) -> None:
        """Sets reserved values to unspecified, as players do, because the scaler refuses them."""
        matrix, declared = int(picture.colorspace), self._declared
        if matrix == _UNSPECIFIED != declared.matrix and not picture.format.is_rgb:
            picture.colorspace = matrix = declared.matrix
        if int(picture.color_primaries) == _UNSPECIFIED != declared.primaries:
            picture.color_primaries = declared.primaries
        if int(picture.color_trc) == _UNSPECIFIED != declared.transfer:
            picture.color_trc = declared.transfer
        if int(picture.color_range) == 0 != declared.range:
            picture.color_range = declared.range
        if matrix in _OTHER_MATRICES:
            raise DecodeError(
                ErrorCode.UNSUPPORTED_CODEC,
                f"{self.uri} has colours by matrix {matrix} of ITU-T H.273 (such as YCgCo or "
                "ICtCp); expected RGB, BT.709, BT.601, SMPTE 240M, FCC or BT.2020: convert it",
            )
        if matrix not in _MATRICES:
            picture.colorspace = _UNSPECIFIED
        if int(picture.color_primaries) not in _PRIMARIES:
            picture.color_primaries = _UNSPECIFIED
        if int(picture.color_trc) not in _TRANSFERS:
            picture.color_trc = _UNSPECIFIED

    def _timed(self, pts: int | None, duration: int, *, key_frame: bool = False) -> FrameTime:
        """Returns the time of the next frame; repairs a timestamp that does not increase."""
        n_bytes, is_uniform = self._packets_of.pop(pts, (0, False))
        if pts is not None and pts < _UNTIMED_END:
            pts = None
        is_repaired = pts is None or (self._last_pts is not None and pts <= self._last_pts)
        if pts is None or is_repaired:
            pts = 0 if self._last_pts is None else self._last_pts + max(1, self._last_duration)
        if duration <= 0 and self._last_pts is not None:
            duration = pts - self._last_pts
        self._last_pts, self._last_duration = pts, max(1, duration)
        end_pts = pts + self._last_duration
        if end_pts > _LAST_TICK:
            raise DecodeError(
                ErrorCode.TOO_LONG,
                f"{self.uri} ends after {end_pts} ticks of {self.time_base} s; expected "
                f"at most {_LAST_TICK}: rewrite its timestamps",
            )
        return FrameTime(
            pts=pts,
            end_pts=end_pts,
            n_bytes=n_bytes,
            key_frame=key_frame,
            is_repaired=is_repaired,
            is_uniform=is_uniform,
        )

    def _counted(self, place: FrameTime) -> int:
        """Adds the next frame to the report; returns its index."""
        report = self.report
        report.n_repaired_pts += place.is_repaired
        report.end_pts = place.end_pts
        index = report.n_frames
        report.n_frames += 1
        if self.max_frames is not None and report.n_frames > self.max_frames:
            raise DecodeError(
                ErrorCode.TOO_LONG,
                f"{self.uri} has more than {self.max_frames} frames; raise analyze.max_frames or "
                "split the file",
            )
        return index

    def _check_size(self, width: int, height: int) -> None:
        if width * height > self.max_pixels:
            raise DecodeError(
                ErrorCode.TOO_MANY_PIXELS,
                f"{self.uri} is {width}x{height}, more than {self.max_pixels} pixels; raise "
                "analyze.max_pixels if memory allows",
            )
