"""Streams whose pictures change their size, or their coding, in the middle."""

from pathlib import Path

import av


def join(path: Path, *parts: Path) -> None:
    """Puts the packets of files behind each other, as one stream of the first file's header."""
    with av.open(str(path), "w") as output:
        target, shift = None, 0
        for part in parts:
            with av.open(str(part)) as opened:
                stream = opened.streams.video[0]
                if target is None:
                    target = output.add_stream_from_template(stream)
                packets = [packet for packet in opened.demux(stream) if packet.size]
                at = shift - min(packet.dts for packet in packets)
                for packet in packets:
                    packet.pts += at
                    packet.dts += at
                    shift = max(shift, packet.pts + (packet.duration or 1))
                    packet.stream = target
                    output.mux(packet)
