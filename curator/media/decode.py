"""Decodes a video stream once, in presentation order, even if the stream is damaged.

A packet that does not decode is counted and skipped. A file that ends early yields the frames that
it holds. Timestamps are exact ticks of the container, repaired only if they are missing or do not
increase. Frames keep FFmpeg's format; nothing is converted at full size.
"""

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import av
from av.packet import Packet
from av.sidedata.sidedata import SideDataContainer, Type

from curator.errors import DecodeError, ErrorCode
from curator.media.audio_level import LevelMeter
from curator.media.container import demuxed, flush_of, quarter_turns_deg
from curator.media.stream_headers import header_sets, is_unambiguous, parameter_sets

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
    n_concealed: int = 0
    n_repaired_pts: int = 0
    ended_early: bool = False
    end_pts: int | None = None
    rotation_deg: int = 0
    is_interlaced: bool = False
    is_hdr: bool = False
    sizes: list[tuple[int, int]] = field(default_factory=list)
    n_frames: int = 0
    n_lost_at_end: int = 0
    """Number of packets among the last ones that gave neither a frame nor an error."""

    @property
    def is_damaged(self) -> bool:
        """Whether frames are missing or concealed; then results depend on decoder threads."""
        return self.ended_early or self.n_errors + self.n_concealed + self.n_lost_at_end > 0


def side_data_of(picture: av.VideoFrame, kind: Type) -> Any:  # noqa: ANN401
    """Returns side data that a decoder attached to a frame; None without it.

    `picture.side_data` would make a reference cycle, which keeps the pixels in memory until garbage
    is collected: 1.3 GB of an 8K film.
    """
    # PyAV's annotations lack its arguments.
    attached: Any = SideDataContainer
    return attached(picture).get(kind)


HDR_TRANSFERS = (16, 18)
"""ITU-T H.273 transfer characteristics: PQ (SMPTE ST 2084) and HLG (ARIB STD-B67)."""

_UNSPECIFIED = 2
_MATRICES = frozenset({0, 1, 2, 4, 5, 6, 7, 9})
_OTHER_MATRICES = frozenset({8, *range(10, 18)})
_PRIMARIES = frozenset({1, 2, *range(4, 13), 22})
_TRANSFERS = frozenset({1, 2, *range(4, 9), *range(11, 19)})
"""ITU-T H.273 code points that FFmpeg's scaler accepts, and matrices that it cannot convert."""

DEFAULT_TIME_BASE = Fraction(1, 90_000)
"""Time base for a stream that names none: MPEG's clock."""

_LAST_TICK = (1 << 63) - 1

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
    """

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
    ) -> None:
        self._audio = audio
        self.container = container
        self.stream = stream
        self.uri = uri
        self.max_pixels = max_pixels
        self.max_frames = max_frames
        self.report = DecodeReport()
        self.time_base = stream.time_base or DEFAULT_TIME_BASE
        self._packets_of: dict[int | None, tuple[int, bool]] = {}
        """Time of a packet -> its bytes, and whether all packets so far were uniform."""
        is_h264 = stream.codec_context.codec.canonical_name == "h264"
        self._extradata = stream.codec_context.extradata
        self._sets = header_sets(self._extradata) if is_h264 else frozenset()
        self._has_uniform_packets = is_h264 and is_unambiguous(self._sets)
        self._last_packet_pts: deque[int] = deque(maxlen=_LAST_PACKETS)
        self._last_pts: int | None = None
        self._last_duration = 0
        self._check_size(stream.width, stream.height)
        if not stream.codec_context.is_open:
            stream.codec_context.thread_type = "AUTO"
            is_racing = with_quantizer and is_h264
            stream.codec_context.thread_count = 1 if is_racing else threads
            options = {} if smooths_all else {"skip_loop_filter": "noref"}
            stream.codec_context.options = options | (DECODER_OPTIONS if with_quantizer else {})

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
                failed_in_a_row += 1
                if failed_in_a_row >= MAX_CONSECUTIVE_ERRORS:
                    self.report.ended_early = True
                    return
                continue
            for picture in pictures:
                failed_in_a_row = 0
                yield self._place(picture)
        self.report.n_lost_at_end = self._lost_at_end()

    def _packets(self) -> Iterator["Packet[Any]"]:
        audio = self._audio
        streams = [self.stream] if audio is None else [self.stream, audio.stream]
        packets = demuxed(self.container, streams)
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
            if packet.pts is not None and packet.size and not packet.is_discard:
                self._packets_of[packet.pts] = packet.size, self._has_uniform_packets
                self._last_packet_pts.append(packet.pts)
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
        if not report.sizes:
            report.rotation_deg = quarter_turns_deg(picture.rotation)
        size = (picture.width, picture.height)
        if size not in report.sizes:
            report.sizes.append(size)
        self._name_colours(picture)
        report.n_concealed += bool(picture.is_corrupt)
        report.is_interlaced |= bool(picture.interlaced_frame)
        report.is_hdr |= int(picture.color_trc) in HDR_TRANSFERS
        place = self._timed(picture.pts, picture.duration or 0)
        index = self._counted(place)
        return DecodedFrame(
            index=index,
            pts=place.pts,
            picture=picture,
            n_bytes=place.n_bytes,
            is_uniform=place.is_uniform and not place.is_repaired and self._is_plain(picture),
        )

    def _is_plain(self, picture: av.VideoFrame) -> bool:
        if picture.is_corrupt or picture.interlaced_frame or picture.format.name != "yuv420p":
            return False
        is_sized = (picture.width, picture.height) == self.report.sizes[0]
        # A mirrored picture has a display matrix, though its rotation is 0.
        return is_sized and side_data_of(picture, Type.DISPLAYMATRIX) is None

    def _name_colours(self, picture: av.video.frame.VideoFrame) -> None:
        """Sets reserved values to unspecified, as players do, because the scaler refuses them."""
        matrix = int(picture.colorspace)
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


def upright_size(
    width: int, height: int, rotation_deg: int, pixel_aspect: Fraction
) -> tuple[int, int]:
    """Returns the size in square pixels after a clockwise rotation, by enlarging one side.

    `pixel_aspect` is width / height of a pixel after rotation.
    """
    if rotation_deg % 180:
        width, height = height, width
    if pixel_aspect > 1:
        width = round(width * pixel_aspect)
    elif pixel_aspect < 1:
        height = round(height / pixel_aspect)
    return max(1, width), max(1, height)
