"""Seeks in written clips."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from av.container import InputContainer
from av.packet import Packet
from av.video.stream import VideoStream


def packets_from(
    container: InputContainer, stream: VideoStream, pts: int
) -> "Iterator[Packet[Any]]":
    """Yields packets, beginning with the last key frame that is not shown after `pts`.

    FFmpeg seeks in MP4 by decoding time. If frames are shown later than they are decoded, the seek
    may find a later key frame.
    """
    target = pts
    while True:
        if target > 0:
            container.seek(target, stream=stream, backward=True)
        elif target != pts:
            container.seek(0, stream=stream)
        packets = container.demux(stream)
        first = next(packets)
        is_early = first.pts is None or first.dts is None or first.pts <= pts
        if target <= 0 or is_early:
            return chain([first], packets)
        assert first.dts is not None
        target = min(target, first.dts) - 1
