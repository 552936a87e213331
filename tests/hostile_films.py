"""Parts of files that are made to exhaust whoever opens them."""

import io
import struct
import zlib
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.stream import Disposition


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def black_png(width: int, height: int) -> bytes:
    """A picture that is a thousand times smaller than its pixels."""
    row, packed = b"\0" * (1 + 3 * width), zlib.compressobj(9)
    rows = b"".join(packed.compress(row) for _ in range(height)) + packed.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def box(kind: bytes, *parts: bytes) -> bytes:
    data = b"".join(parts)
    return struct.pack(">I", 8 + len(data)) + kind + data


def film(path: Path, covers: tuple[bytes, ...] = (), n_streams: int = 1) -> None:
    """Writes two seconds of grey, with cover pictures or further streams."""
    with av.open(path, "w") as container:
        streams = [container.add_stream("libx264", rate=25) for _ in range(n_streams)]
        for stream in streams:
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        shown = []
        for _ in covers:
            cover = container.add_stream("png", rate=1)
            cover.width, cover.height, cover.pix_fmt = 16, 16, "rgb24"
            cover.disposition = Disposition.attached_pic
            shown.append(cover)
        for number in range(50 if n_streams == 1 else 1):
            grey = np.full((48, 64, 3), 4 * number, np.uint8)
            for stream in streams:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        for stream in streams:
            container.mux(stream.encode())
        for cover, png in zip(shown, covers, strict=True):
            packet = av.Packet(png)
            packet.stream, packet.pts, packet.dts = cover, 0, 0
            packet.time_base = Fraction(1, 1)
            container.mux(packet)


def with_fragment(path: Path, n_samples: int) -> None:
    """Appends a fragment of a few bytes that claims samples without giving anything of them."""
    run = box(b"trun", struct.pack(">II", 0, n_samples))
    header = box(b"tfhd", struct.pack(">III", 0x20038, 1, 1) + struct.pack(">II", 10, 0))
    fragment = box(b"moof", box(b"mfhd", bytes(8)), box(b"traf", header, run))
    path.write_bytes(fragmented(path) + fragment * 40 + box(b"mdat", bytes(64)))


def fragmented(path: Path) -> bytes:
    sink = io.BytesIO()
    with (
        av.open(path) as source,
        av.open(
            sink, "w", format="mp4", options={"movflags": "frag_keyframe+empty_moov"}
        ) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    return sink.getvalue()
