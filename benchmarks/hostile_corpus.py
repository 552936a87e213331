"""Makes files that try to exhaust, deceive or take over the programs that open them.

Each file lists its allowed outcomes: `done`, or codes of `curator.errors.ErrorCode`.
"""

import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import tests_path  # noqa: F401
from av.audio.frame import AudioFrame
from hostile_films import black_png, box, chunk, film, with_fragment

ANY_REFUSAL = frozenset({
    "not_a_video", "no_video_stream", "unused_medium", "no_frames", "unsupported_codec",
    "too_large_to_probe", "too_many_pixels", "too_slow", "too_long", "out_of_memory", "empty_file",
})  # fmt: skip
HARMLESS = ANY_REFUSAL | {"done"}
BOMB_PX = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """A hostile file.

    Attributes:
        name: Name of the file, which may be hostile itself.
        kind: Description of the attack.
        fits: Allowed outcomes.
    """

    name: str | bytes
    kind: str
    data: bytes | Callable[[Path], None]
    fits: frozenset[str] = HARMLESS

    def write(self, folder: Path) -> Path:
        """Writes the file into a folder."""
        path = Path(os.fsdecode(os.path.join(os.fsencode(folder), os.fsencode(self.name))))
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(self.data):
            self.data(path)
        else:
            path.write_bytes(self.data)
        return path


def corpus(work: Path, *, address: str, canary: Path) -> Iterator[Hostile]:
    """Yields all files.

    Args:
        work: Folder for intermediate files.
        address: Address of a listener, such as `127.0.0.1:8000`.
        canary: A file that no process may open.
    """
    film(work / "good.mp4")
    good = (work / "good.mp4").read_bytes()
    yield from _covers()
    yield from _boxes(good, work)
    yield from _matroska(work)
    yield from _others(work)
    yield from _pictures()
    yield from _times(good, work)
    yield from _sounds(work)
    yield from _holes(good)
    yield from _references(good, address, canary)
    yield from _names(good, address)


def _covers() -> Iterator[Hostile]:
    png = black_png(BOMB_PX, BOMB_PX)
    yield Hostile(
        name="covers.mp4",
        kind="5 covers of 256 million pixels",
        fits=frozenset({"done"}),
        data=lambda path: film(path, (png,) * 5),
    )

    def attached(path: Path) -> None:
        with av.open(path, "w") as container:
            stream = container.add_stream("libx264", rate=25)
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            for number in range(5):
                container.add_attachment(f"cover{number}.png", "image/png", png)
            for number in range(50):
                grey = np.full((48, 64, 3), 4 * number, np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
            container.mux(stream.encode())

    yield Hostile(
        name="attachments.mkv", kind="5 attached pictures of 256 million pixels", data=attached
    )


def patched(data: bytes, kind: bytes, at: int, new: bytes) -> bytes:
    """Returns an MP4 with changed bytes at an offset in its first box of a kind."""
    start = data.index(kind) + 4 + at
    return data[:start] + new + data[start + len(new) :]


def _boxes(good: bytes, work: Path) -> Iterator[Hostile]:
    def fragments(path: Path) -> None:
        film(path)
        with_fragment(path, 1 << 26)

    yield Hostile(
        name="trun.mp4",
        kind="fragments of 2.7 billion samples in 6 KB",
        data=fragments,
        fits=frozenset({"too_large_to_probe"}),
    )
    huge = struct.pack(">I", 0xFFFFFFF0)
    boxes = {b"stsz": 8} | dict.fromkeys(
        (b"stco", b"stts", b"stsc", b"stss", b"ctts", b"elst", b"dref", b"stsd"), 4
    )
    for kind, at in boxes.items():
        if kind in good:
            yield Hostile(
                name=f"{kind.decode()}.mp4",
                kind=f"{kind.decode()} of 4 billion entries",
                data=patched(good, kind, at, huge),
            )
    many = patched(good, b"stsz", 4, struct.pack(">II", 1, 0x7FFFFFF0))
    many = patched(many, b"stts", 4, struct.pack(">III", 1, 0x7FFFFFF0, 1))
    many = patched(many, b"stsc", 4, struct.pack(">IIII", 1, 1, 0x7FFFFFF0, 1))
    yield Hostile(
        name="index of 2 billion.mp4", kind="an index of 2 billion samples that agrees", data=many
    )
    for depth in (1_000, 100_000):
        nested = b""
        for _ in range(depth):
            nested = struct.pack(">I4s", 8 + len(nested), b"moov") + nested
        yield Hostile(
            name=f"nested {depth}.mp4",
            kind=f"{depth} boxes in each other",
            data=good[: good.index(b"moov") - 4] + nested,
        )
    head = good.index(b"moov") - 4
    tag = box(b"udta", box(b"\xa9nam", struct.pack(">HH", 0xFFFF, 0), b"A" * (48 << 20)))
    moov = good[head:]
    yield Hostile(
        name="tag of 48 MiB.mp4", kind="one tag of 48 MiB", data=_with_box(good, head, moov, tag)
    )
    item = box(b"\xa9cmt", box(b"data", struct.pack(">II", 1, 0), b"B" * 8))
    tags = box(
        b"udta",
        box(
            b"meta",
            bytes(4),
            box(b"hdlr", bytes(8), b"mdir", bytes(13)),
            box(b"ilst", *[item] * 200_000),
        ),
    )
    yield Hostile(
        name="200000 tags.mp4", kind="200,000 tags", data=_with_box(good, head, moov, tags)
    )
    for size in (1 << 62, (1 << 64) - 1, 8, 15):
        large = struct.pack(">I4sQ", 1, b"moov", size)
        yield Hostile(
            name=f"moov of {size}.mp4",
            kind="a 64-bit size that cannot be",
            data=good[:head] + large + moov[8:],
        )
    offsets = good.replace(b"stco", b"co64")
    yield Hostile(
        name="offsets.mp4",
        kind="64-bit offsets near the end of the world",
        data=patched(offsets, b"co64", 8, b"\x7f" + b"\xff" * 7),
    )
    ps = patched(good, b"avc1", 24, struct.pack(">HH", 0xFFFF, 0xFFFF))
    yield Hostile(name="65535 x 65535.mp4", kind="a header of 4 billion pixels", data=ps)


def _with_box(good: bytes, head: int, moov: bytes, more: bytes) -> bytes:
    size = struct.unpack_from(">I", moov)[0]
    inside, after = moov[8:size], moov[size:]
    return good[:head] + struct.pack(">I4s", size + len(more), b"moov") + inside + more + after


def element(number: bytes, *parts: bytes) -> bytes:
    """Returns an EBML element with its size in 8 bytes."""
    data = b"".join(parts)
    return number + struct.pack(">Q", len(data) | 1 << 56) + data


def _uint(number: bytes, value: int) -> bytes:
    return element(number, value.to_bytes(8, "big"))


EBML = element(b"\x1a\x45\xdf\xa3", element(b"\x42\x82", b"matroska"), _uint(b"\x42\x87", 4))
CLUSTER, TRACKS, SEGMENT, TAGS = (
    b"\x1f\x43\xb6\x75",
    b"\x16\x54\xae\x6b",
    b"\x18\x53\x80\x67",
    b"\x12\x54\xc3\x67",
)


def track(number: int, codec: bytes, *more: bytes, kind: int = 1) -> bytes:
    """Returns a track of a Matroska file."""
    size = element(b"\xe0", _uint(b"\xb0", 64), _uint(b"\xba", 48)) if kind == 1 else b""
    return element(
        b"\xae",
        _uint(b"\xd7", number),
        _uint(b"\x73\xc5", number),
        _uint(b"\x83", kind),
        element(b"\x86", codec),
        size,
        *more,
    )


def block(data: bytes, *, time: int = 0, flags: int = 0x80, number: int = 1) -> bytes:
    """Returns a simple block of a Matroska file."""
    return element(b"\xa3", bytes([0x80 | number]), struct.pack(">hB", time, flags), data)


def _matroska(work: Path) -> Iterator[Hostile]:
    film(work / "good.mkv")
    good = (work / "good.mkv").read_bytes()
    tracks = element(TRACKS, track(1, b"V_MJPEG"))
    for name, inner, outer in (("tags", b"\x67\xc8", TAGS), ("clusters", CLUSTER, CLUSTER)):
        nested = b""
        for _ in range(20_000):
            nested = inner + struct.pack(">Q", len(nested) | 1 << 56) + nested
        yield Hostile(
            name=f"nested {name}.mkv",
            kind=f"20,000 {name} in each other",
            data=EBML + element(SEGMENT, tracks, element(outer, nested)),
        )
    vast = b"\x01" + b"\xff" * 6 + b"\xfe"
    for name, number in (("tags", TAGS), ("private", b"\x63\xa2"), ("block", b"\xa3")):
        yield Hostile(
            name=f"vast {name}.mkv",
            kind="an element of 2^56 bytes",
            data=EBML + SEGMENT + vast + tracks + CLUSTER + vast + number + vast,
        )
    laced = block(b"\xff" + b"\x08\x00\x00\x01" * 255 + b"\0" * 4096, flags=0x86)
    yield Hostile(
        name="laced.mkv",
        kind="2,000 blocks of 256 laced frames each",
        data=EBML + element(SEGMENT, tracks, element(CLUSTER, _uint(b"\xe7", 0), laced * 2000)),
    )
    yield Hostile(
        name="5000 tracks.mkv",
        kind="5,000 tracks",
        data=EBML
        + element(SEGMENT, element(TRACKS, *(track(n + 1, b"V_MJPEG") for n in range(5000)))),
    )
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(bytes(1 << 20)) for _ in range(1500)) + packer.flush()
    packing = element(
        b"\x6d\x80", element(b"\x62\x40", element(b"\x50\x34", _uint(b"\x42\x54", 0)))
    )
    zipped = element(TRACKS, track(1, b"V_MJPEG", packing))
    yield Hostile(
        name="packed block.mkv",
        kind="a block of 1.5 GB in 1.5 MB",
        data=EBML + element(SEGMENT, zipped, element(CLUSTER, _uint(b"\xe7", 0), block(packed))),
    )
    private = element(b"\x63\xa2", packed)
    yield Hostile(
        name="packed private.mkv",
        kind="a codec's header of 1.5 GB in 1.5 MB",
        data=EBML
        + element(
            SEGMENT,
            element(TRACKS, track(1, b"V_MJPEG", private, packing)),
            element(CLUSTER, _uint(b"\xe7", 0), block(b"x" * 64)),
        ),
    )
    cluster = good.index(CLUSTER)
    cue = element(
        b"\xbb", _uint(b"\xb3", 1), element(b"\xb7", _uint(b"\xf7", 1), _uint(b"\xf1", 1))
    )
    yield Hostile(
        name="cues.mkv",
        kind="an index of 200,000 entries before the pictures",
        data=EBML
        + element(SEGMENT, tracks, element(b"\x1c\x53\xbb\x6b", cue * 200_000))
        + good[cluster:],
    )


def _riff(kind: bytes, *parts: bytes) -> bytes:
    data = b"".join(parts)
    return kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def _others(work: Path) -> Iterator[Hostile]:
    """Yields AVI and MPEG-TS files."""
    with av.open(work / "good.avi", "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for number in range(25):
            grey = np.full((48, 64, 3), 10 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(stream.encode())
    avi = (work / "good.avi").read_bytes()
    index = avi.index(b"idx1")
    entry = avi[index + 8 : index + 24]
    yield Hostile(
        name="index.avi",
        kind="an index of 2 million entries for one picture",
        data=avi[:index] + _riff(b"idx1", entry * 2_000_000),
    )
    length = avi.index(b"strh") + 8 + 32
    yield Hostile(
        name="length.avi",
        kind="4 billion frames, by the header",
        data=avi[:length] + b"\xff" * 4 + avi[length + 4 :],
    )
    super_index = _riff(
        b"indx",
        struct.pack("<HBBI4s12x", 4, 0, 0, 0x7FFFFFFF, b"00dc"),
        struct.pack("<QII", 100, 1 << 30, 1) * 4,
    )
    at = avi.index(b"strf")
    at += 8 + struct.unpack_from("<I", avi, at + 4)[0]
    yield Hostile(
        name="super index.avi",
        kind="an index of 2 billion indexes",
        data=avi[:at] + super_index + avi[at:],
    )
    start = avi.index(b"00dc") + 8
    sizes = avi.index(b"\xff\xc0", start) + 5
    for name, side in (("8K", 8192), ("60000", 60_000)):
        at = avi.index(b"\xff\xc0", avi.index(b"00dc", start + 2000)) + 5
        large = avi[:at] + struct.pack(">HH", side, side) + avi[at + 4 :]
        yield Hostile(
            name=f"change to {name}.avi",
            kind=f"a picture of {side} px after small ones",
            data=large,
        )
        first = avi[:sizes] + struct.pack(">HH", side, side) + avi[sizes + 4 :]
        yield Hostile(
            name=f"first {name}.avi", kind=f"a picture of {side} px before small ones", data=first
        )
    programs = [(n % 0xFFFE + 1, 0x20 + n % 0x1F00) for n in range(250)]
    tables = b"".join(_table(0, number, programs) for number in range(64))
    streams = [(0x02, 0x100 + n % 0x1E00) for n in range(200)]
    maps = b"".join(_map(pid, number, streams) for number, pid in programs)
    yield Hostile(
        name="programs.ts", kind="16,000 programs of 200 streams", data=(tables + maps) * 4
    )


def _packet(pid: int, payload: bytes, *, starts: bool = True) -> bytes:
    head = struct.pack(">BHB", 0x47, pid | (0x4000 if starts else 0), 0x10)
    return head + payload + b"\xff" * (184 - len(payload))


def _section(pid: int, table: int, number: int, part: int, body: bytes) -> bytes:
    """Returns the packets of one MPEG-TS table."""
    head = struct.pack(">BHHBBB", table, 0xB000 | (len(body) + 9), number, 0xC1, part, 255)
    data = b"\0" + head + body
    data += struct.pack(">I", _crc(data[1:]))
    parts = [data[at : at + 184] for at in range(0, len(data), 184)]
    return b"".join(_packet(pid, part, starts=at == 0) for at, part in enumerate(parts))


def _crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C11DB7 if crc & 0x80000000 else 0)) & 0xFFFFFFFF
    return crc


def _table(pid: int, part: int, programs: list[tuple[int, int]]) -> bytes:
    body = b"".join(
        struct.pack(">HH", (number + 250 * part) & 0xFFFF, 0xE000 | pid) for number, pid in programs
    )
    return _section(pid, 0, 1, part, body)


def _map(pid: int, number: int, streams: list[tuple[int, int]]) -> bytes:
    body = struct.pack(">HH", 0xE100, 0xF000)
    body += b"".join(struct.pack(">BHH", kind, 0xE000 | own, 0xF000) for kind, own in streams)
    return _section(pid, 2, number, 0, body)


def _pictures() -> Iterator[Hostile]:
    """Yields files with many pixels in few bytes."""
    yield Hostile(
        name="black 8K.webm",
        kind="600 black pictures of 8K in 100 KB",
        data=lambda path: black_film(path, 7680, 4320, 600),
    )
    yield Hostile(
        name="black small.webm",
        kind="20,000 black pictures of 64 x 64",
        data=lambda path: black_film(path, 64, 64, 20_000),
    )
    png = black_png(8000, 8000)
    head, rest = png[:33], png[33:-12]
    control = chunk(b"acTL", struct.pack(">II", 0x7FFFFFFF, 0))
    place = struct.pack(">IIIIHHBB", 8000, 8000, 0, 0, 1, 25, 0, 0)
    frames = b"".join(
        chunk(b"fcTL", struct.pack(">I", 2 * n + 1) + place)
        + chunk(b"fdAT", struct.pack(">I", 2 * n + 2) + rest[8:-4])
        for n in range(60)
    )
    first = chunk(b"fcTL", struct.pack(">I", 0) + place)
    yield Hostile(
        name="pictures.apng",
        kind="60 pictures of 64 million pixels",
        data=head + control + first + rest + frames + chunk(b"IEND", b""),
    )
    yield Hostile(
        name="picture.apng",
        kind="an animated PNG of 2^31 pixels a side",
        data=head[:16]
        + struct.pack(">II", 0x7FFFFFFF, 0x7FFFFFFF)
        + head[24:]
        + control
        + first
        + rest
        + chunk(b"IEND", b""),
    )
    for side in (8_000, 65_535):
        screen = b"GIF89a" + struct.pack("<HHBBB", side, side, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
        picture = b"!\xf9\x04\x04\x01\x00\x00\x00," + struct.pack("<HHHHB", 0, 0, side, side, 0)
        yield Hostile(
            name=f"gif {side}.gif",
            kind=f"5,000 pictures of {side} px a side",
            data=screen + (picture + b"\x02\x02\x4c\x01\x00") * 5000 + b";",
        )


def black_film(path: Path, width: int, height: int, count: int) -> None:
    """Writes a film of one black picture and many pictures without changes."""
    with av.open(path, "w") as container:
        stream = container.add_stream("libvpx-vp9", rate=30)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {
            "deadline": "realtime",
            "cpu-used": "8",
            "lag-in-frames": "0",
            "auto-alt-ref": "0",
        }
        packets = []
        for _ in range(3):
            frame = av.VideoFrame(width, height, "yuv420p")
            for plane, value in zip(frame.planes, (16, 128, 128), strict=True):
                plane.update(bytes([value]) * plane.buffer_size)
            packets += stream.encode(frame)
        packets += stream.encode()
        for number in range(count):
            packet = av.Packet(bytes(packets[min(number, 2)]))
            packet.stream, packet.pts, packet.dts = stream, number, number
            packet.time_base, packet.is_keyframe = Fraction(1, 30), number == 0
            container.mux(packet)


def _times(good: bytes, work: Path) -> Iterator[Hostile]:
    late = patched(good, b"stts", 4, struct.pack(">III", 1, 50, 0x7FFFFFFF))
    yield Hostile(name="slow.mp4", kind="frames that stand for days", data=late)
    yield Hostile(
        name="never.mp4",
        kind="a duration of 2^32 seconds",
        data=patched(good, b"mvhd", 12, struct.pack(">II", 1, 0xFFFFFFFF)),
    )
    yield Hostile(
        name="ticks.mp4",
        kind="a clock of one tick a second",
        data=patched(good, b"mdhd", 12, struct.pack(">II", 1, 0xFFFFFFFF)),
    )
    data = (work / "good.mkv").read_bytes()
    cluster = data.index(CLUSTER)
    rest = data[cluster:]
    time = rest.index(b"\xe7")
    n = rest[time + 1] & 0x7F
    for name, value in (("2^63", (1 << 63) - 1), ("2^62", 1 << 62), ("-1", (1 << 64) - 1)):
        changed = rest[:time] + b"\xe7\x88" + struct.pack(">Q", value) + rest[time + 2 + n :]
        yield Hostile(
            name=f"time {name}.mkv",
            kind=f"times at {name}",
            data=data[:cluster] + CLUSTER + b"\x01" + b"\xff" * 7 + changed[12:],
        )
    scale = data.index(b"\x2a\xd7\xb1")
    n = data[scale + 3] & 0x7F
    for value in (0, 1, (1 << 8 * n) - 1):
        yield Hostile(
            name=f"scale {value}.mkv",
            kind="ticks of nothing, or of hours",
            data=data[: scale + 4] + value.to_bytes(n, "big") + data[scale + 4 + n :],
        )


def _sounds(work: Path) -> Iterator[Hostile]:
    with av.open(work / "sound.mov", "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        sound = container.add_stream("pcm_s16le", rate=48_000)
        for number in range(50):
            grey = np.full((48, 64, 3), 4 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
            wave = AudioFrame.from_ndarray(np.zeros((1, 1920 * 2), np.int16), "s16", "stereo")
            wave.rate = 48_000
            container.mux(sound.encode(wave))
        container.mux(stream.encode())
        container.mux(sound.encode())
    data = (work / "sound.mov").read_bytes()
    at = data.index(b"sowt") + 4 if b"sowt" in data else data.index(b"lpcm") + 4
    for name, place, new in (
        ("channels", 20, b"\xff\xff"),
        ("bits", 22, b"\xff\xff"),
        ("rate", 28, b"\xff\xff\xff\xff"),
    ):
        yield Hostile(
            name=f"{name}.mov",
            kind=f"sound of 65,535 {name}",
            data=data[: at + place - 4] + new + data[at + place - 4 + len(new) :],
        )
    huge = (1 << 24) - 1
    audio = element(
        b"\xe1",
        _uint(b"\x9f", 65_535),
        element(b"\xb5", struct.pack(">d", 1e15)),
        _uint(b"\x62\x64", 32),
    )
    tracks = element(TRACKS, track(1, b"V_MJPEG"), track(2, b"A_PCM/INT/LIT", audio, kind=2))
    yield Hostile(
        name="65535 channels.mkv",
        kind="sound of 65,535 channels in blocks of 16 MB",
        data=EBML
        + element(
            SEGMENT,
            tracks,
            element(CLUSTER, _uint(b"\xe7", 0), block(bytes(huge), number=2) * 2, block(b"x" * 64)),
        ),
    )


def _holes(good: bytes) -> Iterator[Hostile]:
    def sparse(n_bytes: int, start: bytes) -> Callable[[Path], None]:
        def make(path: Path) -> None:
            path.write_bytes(start)
            os.truncate(path, n_bytes)

        return make

    yield Hostile(
        name="holes 128 GiB.mp4",
        kind="a film, and 128 GiB of holes",
        data=sparse(128 << 30, good),
        fits=frozenset({"too_large_to_probe"}),
    )
    yield Hostile(
        name="holes 1 GiB.mp4", kind="a film, and 1 GiB of holes", data=sparse(1 << 30, good)
    )
    for suffix in ("mkv", "ts", "avi", "h264"):
        yield Hostile(
            name=f"only holes.{suffix}",
            kind="512 MiB of holes",
            data=sparse(512 << 20, b""),
            fits=ANY_REFUSAL,
        )


def _references(good: bytes, address: str, canary: Path) -> Iterator[Hostile]:
    """Yields files that refer to a listener or to a file of the user."""
    targets = [
        f"http://{address}/seen",
        f"tcp://{address}",
        canary.as_uri(),
        str(canary),
        f"{os.path.relpath(canary, canary.parent.parent / 'corpus')}",
    ]
    forms = {
        "m3u8": "#EXTM3U\n#EXT-X-VERSION:4\n#EXT-X-TARGETDURATION:5\n"
        '#EXT-X-KEY:METHOD=AES-128,URI="{0}"\n#EXTINF:5,\n{0}\n#EXT-X-ENDLIST\n',
        "ffconcat": "ffconcat version 1.0\nfile '{0}'\nduration 5\n",
        "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\na=tool:{0}\n"
        "m=video 5004 RTP/AVP 96\na=rtpmap:96 H264/90000\n",
        "mpd": '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e SYSTEM "{0}">]>'
        '<MPD xmlns="urn:mpeg:dash:schema:mpd:2011"'
        ' type="static"><Period><AdaptationSet mimeType="video/mp4"><Representation id="1">'
        "<BaseURL>{0}</BaseURL></Representation></AdaptationSet></Period>&e;</MPD>",
        "svg": '<svg xmlns="http://www.w3.org/2000/svg"><image href="{0}"/></svg>',
        "asx": '<asx version="3.0"><entry><ref href="{0}"/></entry></asx>',
        "pls": "[playlist]\nFile1={0}\nNumberOfEntries=1\n",
        "idx": "# VobSub index file, v7\nid: en\ntimestamp: 00:00:00:000, filepos: 0\n{0}",
        "srt": "1\n00:00:00,000 --> 00:00:05,000\n<img src='{0}'>\n",
        "ass": "[Script Info]\n[Fonts]\nfontname: {0}\n",
        "avs": 'AviSource("{0}")\n',
        "rtsp": "[Reference]\nRef1={0}\n",
        "imf": '<?xml version="1.0"?><CompositionPlaylist><Path>{0}</Path></CompositionPlaylist>',
        "raw": "{0}\n",
    }
    for form, text in forms.items():
        for number, target in enumerate(targets):
            yield Hostile(
                name=f"{form} {number}.mp4",
                kind=f"a {form} that names another file",
                data=text.format(target).encode(),
                fits=ANY_REFUSAL,
            )
    for number, target in enumerate(targets):
        url = box(
            b"rdrf", struct.pack(">I4sI", 0, b"url ", len(target) + 1), target.encode(), b"\0"
        )
        movie = box(b"moov", box(b"rmra", box(b"rmda", url)))
        yield Hostile(
            name=f"rdrf {number}.mov",
            kind="a film that refers to another",
            data=box(b"ftyp", b"qt  \0\0\0\0") + movie,
            fits=ANY_REFUSAL,
        )
        at = good.index(b"dref") - 4
        size = struct.unpack_from(">I", good, at)[0]
        for kind, body in (
            (b"url ", bytes(4) + target.encode() + b"\0"),
            (b"alis", bytes(4) + _alias(target)),
        ):
            entry = box(b"dref", struct.pack(">II", 0, 1), box(kind, body))
            yield Hostile(
                name=f"dref {kind.decode().strip()} {number}.mp4",
                kind="pictures in another file",
                data=_replaced(good, at, size, entry),
            )


def _alias(target: str) -> bytes:
    """Returns a Macintosh alias, with its path as FFmpeg reads it."""
    path = target.encode()
    words = struct.pack(">HH", 2, len(path)) + path + b"\0" * (len(path) % 2)
    words += struct.pack(">HH", 18, len(path)) + path + b"\0" * (len(path) % 2)
    volume = b"\x04disk".ljust(28, b"\0")
    name = b"\x04film".ljust(64, b"\0")
    start = bytes(4) + struct.pack(">HHH", 150 + len(words), 2, 0) + volume + bytes(12) + name
    middle = bytes(16) + struct.pack(">HH", 1, 1) + bytes(16)
    return start + middle + words + b"\xff\xff\0\0"


def _replaced(data: bytes, at: int, size: int, new: bytes) -> bytes:
    """Replaces a box of an MP4, and corrects the sizes of the boxes around it."""
    changed = bytearray(data[:at] + new + data[at + size :])
    for kind in (b"moov", b"trak", b"mdia", b"minf", b"dinf"):
        start = data.index(kind) - 4
        own = struct.unpack_from(">I", data, start)[0]
        struct.pack_into(">I", changed, start, own + len(new) - size)
    return bytes(changed)


def _names(good: bytes, address: str) -> Iterator[Hostile]:
    done = frozenset({"done"})
    for name in (
        "new\nline.mp4",
        "\u202egpj.mp4",
        "$(touch owned).mp4",
        "; touch owned;.mp4",
        "-rf.mp4",
        "`touch owned`.mp4",
        "'\"<script>alert(1)</script>.mp4".replace("/", "\u2215"),
        "%05d.mp4",
        "concat:a|b.mp4",
        "data:text,x.mp4",
        f"http:/{address}/x.mp4",
        "\x1b[2J\x07.mp4",
        "n" * 251 + ".mp4",
        b"\xff\xfe bytes.mp4",
        "tab\t.mp4",
        "..mp4.mp4",
        "{0.__class__}.mp4",
    ):
        kind = f"a film named {name!r:.40}"
        yield Hostile(name=name, kind=kind, data=good + os.urandom(16), fits=done)


def sidecars(folder: Path, secret: Path) -> None:
    """Writes good films with hostile sidecars."""
    film(folder / "seed.mp4")
    good = (folder / "seed.mp4").read_bytes()
    (folder / "seed.mp4").unlink()
    bodies = (
        b"[" * 100_000,
        b'{"a":' * 60 + b"1" + b"}" * 60,
        b'{"a": "' + b"x" * (8 << 20) + b'"}',
        b'{"n": ' + b"9" * 100_000 + b"}",
        b'{"a": 1e999}',
        b"\xff\xfe{",
        b'{"__class__": "os"}',
    )
    for number, body in enumerate(bodies):
        (folder / f"{number}.mp4").write_bytes(good + bytes([number]))
        (folder / f"{number}.json").write_bytes(body)
    (folder / "link.mp4").write_bytes(good + b"link")
    (folder / "link.json").symlink_to(secret)


def aliases() -> str:
    """Returns a recipe of a few lines that expands to gigabytes."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for name, before in zip("bcdefghij", "abcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]")
    return "\n".join(lines) + "\n"


def long_manifest() -> bytes:
    """Returns a Parquet file of 0.7 MB with 200 million rows of one address."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    one = pa.DictionaryArray.from_arrays(pa.array(np.zeros(5_000_000, np.int8)), ["/none.mp4"])
    with pq.ParquetWriter(sink, pa.schema([("uri", one.type)])) as writer:
        for _ in range(40):
            writer.write_table(pa.table({"uri": one}))
    return sink.getvalue()
