"""Containers that are made to exhaust whoever opens them: each ends soon, small, with its code."""

import io
import os
import struct
import time
import zlib
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.stream import Disposition

from curator.errors import ErrorCode
from curator.executor.decoder_box import process_box
from curator.executor.unit_worker import UnitWorker
from curator.records.sources import SourceRef
from curator.stages.scan.config import ScanConfig
from curator.stages.scan.stage import MAX_PROBE_BYTES, ScanStage
from curator.storage import stat_source

MOST_BYTES = 1 << 30
COVER_PX = 16_000


@pytest.fixture(autouse=True, scope="module")
def _own_box() -> None:
    """Ends the box of other tests, whose memory would count here."""
    process_box().stop()


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


def probed(path: Path) -> dict[str, object]:
    """Scans a file in a box, and checks the most memory that its box took."""
    size, version = stat_source(str(path))
    worker = UnitWorker(stage=ScanStage(ScanConfig()))
    source = SourceRef(uri=str(path), n_bytes=size, version=version)
    row: dict[str, object] = worker([source]).results[0]
    process = process_box()._process
    assert process is not None
    status = Path(f"/proc/{process.pid}/status").read_text()
    peak = next(int(line.split()[1]) << 10 for line in status.splitlines() if "VmHWM" in line)
    process_box().stop()
    assert peak < MOST_BYTES
    return row


def test_covers_are_not_decoded_to_open_a_container(tmp_path: Path) -> None:
    """Pins five covers of 256 million pixels beside a film: they cost no memory, and it is good."""
    path = tmp_path / "covers.mp4"
    film(path, (black_png(COVER_PX, COVER_PX),) * 5)
    assert path.stat().st_size < 10 << 20
    row = probed(path)
    assert row.get("error_code") is None
    assert (row["width"], row["height"]) == (64, 48)


def test_a_fragment_that_claims_samples_exhausts_nothing(tmp_path: Path) -> None:
    """Pins an index of 2.7 billion entries in 6 KB: refused before 1 GB is used."""
    path = tmp_path / "fragment.mp4"
    film(path)
    with_fragment(path, 1 << 26)
    row = probed(path)
    assert row["error_code"] == ErrorCode.TOO_LARGE_TO_PROBE
    assert MAX_PROBE_BYTES < MOST_BYTES


def test_streams_are_counted(tmp_path: Path) -> None:
    """Pins that a container of very many streams is refused before they are looked into."""
    path = tmp_path / "streams.mp4"
    film(path, n_streams=101)
    row = probed(path)
    assert row["error_code"] == ErrorCode.TOO_LARGE_TO_PROBE
    assert "streams" in str(row["error_message"])


def test_a_film_and_128_gib_of_holes_end_at_once(tmp_path: Path) -> None:
    """Pins that holes, which an incomplete download has, are neither searched nor hashed."""
    path = tmp_path / "holes.mp4"
    film(path)
    os.truncate(path, 128 << 30)
    begun = time.monotonic()
    row = probed(path)
    assert row["error_code"] == ErrorCode.TOO_LARGE_TO_PROBE
    assert "incomplete download" in str(row["error_message"])
    assert time.monotonic() - begun < 30
    small = tmp_path / "few holes.mp4"
    film(small)
    os.truncate(small, 1 << 20)
    assert probed(small).get("error_code") is None
