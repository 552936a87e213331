"""Copies the packets of a span of a source into an MP4, without decoding.

The copy begins at an IDR picture. It ends where no packet that follows has a frame shown earlier,
or is needed to decode one. So every frame of the copy decodes to the same bits as in the source.

The key-frame marks of a container do not suffice. With open groups of pictures and gradual refresh,
decoding cannot begin cleanly at each mark. MPEG-TS may have no marks at all. An IDR picture (ITU-T
H.264, 7.4.1.2.4) resets the decoder: no later picture refers to an earlier one.

With B-frames, packets and frames differ in order. `negative_cts_offsets` puts the first frame at
time 0 without an edit list; docs/design/clips.md says how readers handle this.
"""

import io
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TypeAlias, cast

import av
import numpy as np
from av.packet import Packet
from numpy.typing import NDArray

from curator.media.encode import MP4_OPTIONS
from curator.media.stream_headers import (
    header_sets,
    is_idr,
    joined_header,
    nal_units,
    parameter_sets,
    with_lengths,
)
from curator.records.cuts import NotCopied
from curator.storage.scratch import unnamed_file

VideoPacket: TypeAlias = "Packet[av.VideoStream]"
COPY_OPTIONS = MP4_OPTIONS | {"movflags": MP4_OPTIONS["movflags"] + "+negative_cts_offsets"}
PROFILES = ("Baseline", "Constrained Baseline", "Main", "High")
"""H.264 profiles that hardware decoders support."""

_LIMITED_RANGES = (0, 1)
"""FFmpeg's codes of colour range: unspecified, which counts as limited, and limited."""


class CannotCopyError(Exception):
    """A span must be encoded; `n_frames`: frames of the copy, if the copy would be too short."""

    def __init__(self, reason: NotCopied, *, n_frames: int | None = None) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.n_frames = n_frames


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketSpan:
    """Packets of frames `[first, end)` of a span, in decode order."""

    first: int
    end: int
    packets: list[VideoPacket]
    positions: list[int]
    """Position of each packet's frame in presentation order, counted from `first`."""

    @property
    def n_frames(self) -> int:
        """Number of frames, which is the number of packets."""
        return self.end - self.first

    def longest_gap(self, extradata: bytes | None) -> int:
        """Returns the most frames from a key frame to the next one, or to the end."""
        placed = zip(self.positions, self.packets, strict=True)
        keys = sorted(at for at, packet in placed if is_idr(bytes(packet), extradata))
        return max(b - a for a, b in pairwise([*keys, self.n_frames]))


def refuse_stream(stream: av.VideoStream, codecs: Iterable[str]) -> None:
    """Refuses a stream if its header rules out a copy, or if its codec is not in `codecs`.

    Raises:
        CannotCopyError: CODEC, CHROMA or SHAPE.
    """
    context = stream.codec_context
    if context.name not in codecs or context.profile not in PROFILES:
        raise CannotCopyError(NotCopied.CODEC)
    if context.pix_fmt != "yuv420p" or int(context.color_range) not in _LIMITED_RANGES:
        raise CannotCopyError(NotCopied.CHROMA)
    if context.width % 2 or context.height % 2:
        raise CannotCopyError(NotCopied.SHAPE)


def packets_of_span(
    packets: Iterable[VideoPacket],
    *,
    frame_pts: NDArray[np.int64],
    end_pts: int,
    give_up_ticks: int,
    extradata: bytes | None,
    any_start: bool = False,
) -> PacketSpan:
    """Picks the packets of the longest part of a span that decodes by itself.

    Args:
        packets: Packets in decode order, which begin at or before the span.
        frame_pts: [n] times of the span's frames.
        end_pts: End of the last frame.
        give_up_ticks: Most time that a copy may omit at start and end together.
        extradata: Extradata of the stream, which determines the form of packets.
        any_start: Whether the copy may begin anywhere, because frames before it are encoded;
            `give_up_ticks` is for the end then.

    Raises:
        CannotCopyError: KEY_FRAME_TOO_FAR, END_TOO_FAR, TIMESTAMPS or DAMAGED.
    """
    index = {int(pts): i for i, pts in enumerate(frame_pts)}
    last_entry_pts = end_pts if any_start else int(frame_pts[0]) + give_up_ticks
    first: int | None = None
    taken: list[VideoPacket] = []
    positions: list[int] = []
    n_closed = highest = 0
    for packet in packets:
        if not packet.size:
            continue
        if packet.pts is None:
            raise CannotCopyError(NotCopied.TIMESTAMPS)
        if first is None:
            if packet.pts > last_entry_pts:
                raise CannotCopyError(NotCopied.KEY_FRAME_TOO_FAR)
            if packet.is_discard or not is_idr(bytes(packet), extradata):
                continue
            # Decoding can begin with this packet, if it belongs to the span.
            first = index.get(packet.pts)
            if first is None:
                continue
        if packet.pts >= end_pts:
            break
        position = index.pop(packet.pts, -1) - first
        if position < 0:
            raise CannotCopyError(NotCopied.TIMESTAMPS)
        if packet.is_corrupt or packet.is_discard or packet.has_sidedata("new_extradata"):
            raise CannotCopyError(NotCopied.DAMAGED)
        taken.append(packet)
        positions.append(position)
        highest = max(highest, position)
        if highest + 1 == len(taken):
            n_closed = len(taken)
        if first + n_closed == len(frame_pts):
            break
    if first is None:
        raise CannotCopyError(NotCopied.KEY_FRAME_TOO_FAR)
    end = first + n_closed
    given_up = 0 if any_start else int(frame_pts[first] - frame_pts[0])
    if end < len(frame_pts):
        given_up += end_pts - int(frame_pts[end])
    if given_up > give_up_ticks:
        raise CannotCopyError(NotCopied.END_TOO_FAR)
    return PacketSpan(
        first=first, end=end, packets=taken[:n_closed], positions=positions[:n_closed]
    )


def mux_copy(
    stream: av.VideoStream, span: PacketSpan, fps: Fraction, *, header: bytes | None = None
) -> bytes:
    """Writes packets as an MP4 at a constant rate, first frame at time 0.

    `header` replaces the extradata of the stream.

    Raises:
        CannotCopyError: DAMAGED, because the muxer refuses packets.
    """
    extradata = header or stream.codec_context.extradata
    try:
        with unnamed_file(".mp4") as (path, file):
            with av.open(path, "w", format="mp4", container_options=COPY_OPTIONS) as output:
                copied = output.add_stream_from_template(stream, opaque=True)
                copied.codec_context.extradata = extradata
                copied.time_base = 1 / fps
                delay = max(number - position for number, position in enumerate(span.positions))
                for number, packet in enumerate(span.packets):
                    packet.time_base, packet.duration = 1 / fps, 1
                    packet.pts, packet.dts = span.positions[number], number - delay
                    # Readers seek to key frames: mark only frames where decoding can begin.
                    packet.is_keyframe = is_idr(bytes(packet), extradata)
                    packet.stream = copied
                    output.mux(packet)
            file.seek(0)
            return file.read()
    except (av.error.FFmpegError, ValueError) as error:
        raise CannotCopyError(NotCopied.DAMAGED) from error


def sets_of(mp4: bytes) -> frozenset[bytes]:
    """Returns the parameter sets of a clip: in the header, and between its pictures."""
    with av.open(io.BytesIO(mp4), mode="r") as container:
        extradata = container.streams.video[0].codec_context.extradata
        within = (parameter_sets(bytes(packet), extradata) for packet in container.demux(video=0))
        return header_sets(extradata).union(*within)


def joined(head: bytes, tail: bytes, fps: Fraction) -> tuple[bytes, PacketSpan, bytes]:
    """Joins two clips of H.264 into one, whose header has the parameter sets of both.

    Args:
        head: MP4 whose parameter sets have other numbers than those of `tail`.
        tail: MP4 of the same size and rate, which begins with an IDR picture.
        fps: Rate of both.

    Returns:
        The MP4, the packets that it must have, and the extradata by which `nal_units` reads them.

    Raises:
        CannotCopyError: DAMAGED, because the muxer refuses packets.
    """
    packets: list[VideoPacket] = []
    positions: list[int] = []
    headers: list[bytes] = []
    with ExitStack() as opened:
        for mp4 in (head, tail):
            container = opened.enter_context(av.open(io.BytesIO(mp4), mode="r"))
            stream = container.streams.video[0]
            header, n_before = bytes(stream.codec_context.extradata or b""), len(packets)
            headers.append(header)
            assert stream.time_base is not None
            tick = 1 / (fps * stream.time_base)
            for packet in container.demux(stream):
                if packet.size:
                    assert packet.pts is not None
                    units = nal_units(bytes(packet), header)
                    packets.append(cast("VideoPacket", Packet(with_lengths(units))))
                    positions.append(n_before + round(packet.pts / tick))
        span = PacketSpan(first=0, end=len(packets), packets=packets, positions=positions)
        # The copied part gives the template: FFmpeg takes profile and sampling from its header.
        header = joined_header(*reversed(headers))
        return mux_copy(stream, span, fps, header=header), span, header
