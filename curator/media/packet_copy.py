"""Copies the packets of a span of a source into an MP4, without decoding.

The copy begins at an IDR picture and ends where no omitted packet is shown or needed before the
end, so every frame in it decodes to the same bits as in the source.

Containers mark more key frames than are safe to begin at: open groups of pictures, streams that
are refreshed piece by piece, MPEG-TS without marks. An IDR picture (ITU-T H.264, 7.4.1.2.4) empties
the decoder: nothing after it refers to anything before it.

B-frames: their packets are in another order than their frames. With `negative_cts_offsets` the
first frame is at time 0 all the same, without an edit list; docs/design/clips.md says what readers
make of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import av
import numpy as np
from av.packet import Packet
from numpy.typing import NDArray

from curator.media.encode import MP4_OPTIONS
from curator.media.stream_headers import is_idr
from curator.records.cuts import NotCopied
from curator.storage.scratch import unnamed_file

VideoPacket: TypeAlias = "Packet[av.VideoStream]"
COPY_OPTIONS = MP4_OPTIONS | {"movflags": MP4_OPTIONS["movflags"] + "+negative_cts_offsets"}
PROFILES = ("Baseline", "Constrained Baseline", "Main", "High")
"""H.264 profiles that hardware decoders take."""

_LIMITED_RANGES = (0, 1)
"""Codes of FFmpeg's colour range: unspecified, taken as limited, and limited."""


class CannotCopyError(Exception):
    """A span must be encoded; `n_frames` are those that a copy would have, if they are too few."""

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
    """For each packet its frame's position from `first`, in presentation order."""

    @property
    def n_frames(self) -> int:
        """Number of frames, and of packets."""
        return self.end - self.first


def refuse_stream(stream: av.VideoStream, codecs: Iterable[str]) -> None:
    """Checks the stream's header; `codecs` may be copied.

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
) -> PacketSpan:
    """Picks the packets of the longest part of a span that decodes by itself.

    Args:
        packets: Demuxed from at or before the span, in decode order.
        frame_pts: [n] times of the span's frames.
        end_pts: End of the last one.
        give_up_ticks: Most time that may be left out at start and end together.
        extradata: The stream's, which gives the form of packets.

    Raises:
        CannotCopyError: KEY_FRAME_TOO_FAR, END_TOO_FAR, TIMESTAMPS or DAMAGED.
    """
    index = {int(pts): i for i, pts in enumerate(frame_pts)}
    last_entry_pts = int(frame_pts[0]) + give_up_ticks
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
            # Decoding can begin with it, if it is of the span.
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
    given_up = int(frame_pts[first] - frame_pts[0])
    if end < len(frame_pts):
        given_up += end_pts - int(frame_pts[end])
    if given_up > give_up_ticks:
        raise CannotCopyError(NotCopied.END_TOO_FAR)
    return PacketSpan(
        first=first, end=end, packets=taken[:n_closed], positions=positions[:n_closed]
    )


def mux_copy(stream: av.VideoStream, span: PacketSpan, fps: Fraction) -> bytes:
    """Writes packets as an MP4 at a constant rate, first frame at time 0.

    Raises:
        CannotCopyError: TIMESTAMPS or DAMAGED; the muxer refuses packets.
    """
    extradata = stream.codec_context.extradata
    try:
        with unnamed_file(".mp4") as (path, file):
            with av.open(path, "w", format="mp4", container_options=COPY_OPTIONS) as output:
                copied = output.add_stream_from_template(stream, opaque=True)
                copied.time_base = 1 / fps
                delay = max(number - position for number, position in enumerate(span.positions))
                for number, packet in enumerate(span.packets):
                    packet.time_base, packet.duration = 1 / fps, 1
                    packet.pts, packet.dts = span.positions[number], number - delay
                    # Readers seek to key frames: only those where decoding can begin are marked.
                    packet.is_keyframe = is_idr(bytes(packet), extradata)
                    packet.stream = copied
                    output.mux(packet)
            file.seek(0)
            return file.read()
    except (av.error.FFmpegError, ValueError) as error:
        raise CannotCopyError(NotCopied.DAMAGED) from error
