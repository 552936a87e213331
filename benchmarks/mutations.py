"""Random ways to damage a video file, for `fuzz.py`.

A mutation takes the bytes of a file, another file to splice with, and a random generator. It gives
the changed bytes, or None if it does not apply.
"""

import io
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import av
import av.error

WORDS = (0, 1, 2, 7, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,
         0xFFFFFFFE, 0x01000000, 90_000, 1_000_000_000)  # fmt: skip
"""Values near the limits of integer fields."""
BOXES_OF_BOXES = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"udta", b"mvex",
                  b"dinf", b"moof", b"traf", b"stsd", b"avc1", b"hvc1", b"hev1", b"mp4v",
                  b"av01")  # fmt: skip
ENTRY_BYTES = {b"stsd": 8, b"avc1": 78, b"hvc1": 78, b"hev1": 78, b"mp4v": 78, b"av01": 78}
"""Bytes between a box's content start and its inner boxes."""
EBML = {
    "timecode scale": b"\x2a\xd7\xb1", "duration": b"\x44\x89", "width": b"\xb0", "height": b"\xba",
    "shown width": b"\x54\xb0", "shown height": b"\x54\xba", "cluster time": b"\xe7",
    "default duration": b"\x23\xe3\x83", "track number": b"\xd7", "block": b"\xa3",
    "cue time": b"\xb3", "cue place": b"\xf1", "codec private": b"\x63\xa2", "tracks":
    b"\x16\x54\xae\x6b", "cluster": b"\x1f\x43\xb6\x75", "seek head": b"\x11\x4d\x9b\x74",
}  # fmt: skip
AVI = (b"avih", b"strh", b"strf", b"idx1", b"movi", b"LIST", b"00dc", b"01wb")

Mutation = Callable[[bytes, bytes, random.Random], bytes | None]


@dataclass(frozen=True, slots=True)
class Box:
    """A box of an MP4: kind, start, start of its content, end."""

    kind: bytes
    start: int
    content: int
    end: int


def flipped_bits(data: bytes, _: bytes, draw: random.Random) -> bytes:
    """Flips bits at random positions."""
    changed = bytearray(data)
    for _n in range(draw.choice((1, 3, 20, 200))):
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def flipped_ends(data: bytes, _: bytes, draw: random.Random) -> bytes:
    """Flips bits near the start or end, where headers and indexes are."""
    changed = bytearray(data)
    for _n in range(draw.choice((1, 2, 5, 30))):
        at = min(int(draw.expovariate(1 / 300)), len(data) - 1)
        changed[at if draw.random() < 0.6 else -1 - at] ^= 1 << draw.randrange(8)
    return bytes(changed)


def truncated(data: bytes, _: bytes, draw: random.Random) -> bytes:
    """Cuts off the end at a random position."""
    return data[: draw.randrange(len(data))]


def beheaded(data: bytes, _: bytes, draw: random.Random) -> bytes:
    """Cuts off the start at a random position."""
    return data[draw.randrange(len(data)) :]


def spliced(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Joins the start of one file to the end of another."""
    share = draw.random()
    return data[: int(len(data) * share)] + other[int(len(other) * draw.choice((share, 0.0))) :]


def zeroed(data: bytes, _: bytes, draw: random.Random) -> bytes:
    """Fills a range with zeros."""
    start, end = _range(data, draw)
    return data[:start] + bytes(end - start) + data[end:]


def noise(data: bytes, _: bytes, draw: random.Random) -> bytes:
    """Fills a range with random bytes."""
    start, end = _range(data, draw)
    return data[:start] + draw.randbytes(end - start) + data[end:]


def doubled(data: bytes, _: bytes, draw: random.Random) -> bytes:
    """Repeats a range once or five times."""
    start, end = _range(data, draw)
    return data[:end] + data[start:end] * draw.choice((1, 1, 5)) + data[end:]


def removed(data: bytes, _: bytes, draw: random.Random) -> bytes:
    """Removes a range."""
    start, end = _range(data, draw)
    return data[:start] + data[end:]


def swapped(data: bytes, _: bytes, draw: random.Random) -> bytes:
    """Swaps two neighbouring ranges."""
    a, b, c = sorted(draw.randrange(len(data)) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def box_field(data: bytes, _: bytes, draw: random.Random) -> bytes | None:
    """Sets fields of one index box to extreme values."""
    boxes = [b for b in index_boxes(data) if b.end - b.content >= 4]
    if not boxes:
        return None
    kinds = sorted({b.kind for b in boxes})
    kind = draw.choice(kinds)
    box = draw.choice([b for b in boxes if b.kind == kind])
    changed = bytearray(data)
    for _n in range(draw.choice((1, 1, 2, 4))):
        # The first fields hold versions, counts, timescales and sizes.
        length = box.end - box.content
        at = min(int(draw.expovariate(1 / 24)), length - 4)
        at = box.content + (at // 4 * 4 if draw.random() < 0.7 else at)
        before = struct.unpack_from(">I", data, at)[0]
        value = draw.choice((*WORDS, before + 1, before - 1, 2 * before, before // 2,
                             draw.getrandbits(32)))  # fmt: skip
        struct.pack_into(">I", changed, at, value & 0xFFFFFFFF)
    return bytes(changed)


def box_size(data: bytes, _: bytes, draw: random.Random) -> bytes | None:
    """Changes the size or kind of a box."""
    boxes = list(index_boxes(data))
    if not boxes:
        return None
    box, changed = draw.choice(boxes), bytearray(data)
    if draw.random() < 0.5:
        size = draw.choice((0, 1, 7, 8, box.end - box.start + draw.choice((-4, 4, 100)), *WORDS))
        struct.pack_into(">I", changed, box.start, size & 0xFFFFFFFF)
    else:
        other = draw.choice([b"free", b"moov", b"cmov", b"\0\0\0\0", *(b.kind for b in boxes)])
        changed[box.start + 4 : box.start + 8] = other
    return bytes(changed)


def boxes_repeated(data: bytes, _: bytes, draw: random.Random) -> bytes | None:
    """Repeats or removes an index box; corrects the sizes of the boxes around it."""
    boxes = [b for b in index_boxes(data) if b.kind != b"moov"]
    if not boxes:
        return None
    box = draw.choice([b for b in boxes if b.kind == b"trak"] + boxes)
    times = draw.choice((0, 0, 2, 3, 300 if box.end - box.start < 4000 else 20))
    changed = bytearray(data)
    grown = (times - 1) * (box.end - box.start)
    for outer in index_boxes(data):
        if outer.content <= box.start and box.end <= outer.end:
            size = struct.unpack_from(">I", data, outer.start)[0] + grown
            struct.pack_into(">I", changed, outer.start, size & 0xFFFFFFFF)
    inner = bytes(changed[box.start : box.end])
    return bytes(changed[: box.start]) + inner * times + bytes(changed[box.end :])


def element_value(data: bytes, _: bytes, draw: random.Random) -> bytes | None:
    """Sets a Matroska value to an extreme."""
    if not data.startswith(b"\x1aE\xdf\xa3"):
        return None
    changed = bytearray(data)
    for _n in range(draw.choice((1, 1, 3))):
        mark = EBML[draw.choice(sorted(EBML))]
        places = _places(data, mark)
        if not places:
            continue
        at = draw.choice(places[:50]) + len(mark)
        if draw.random() < 0.2:
            changed[at] = draw.randrange(256)
            continue
        length = min(data[at] & 0x7F, 8, len(data) - at - 1) if data[at] & 0x80 else 4
        value = draw.choice((*WORDS, draw.getrandbits(63)))
        changed[at + 1 : at + 1 + length] = value.to_bytes(8, "big")[8 - length :]
    return bytes(changed)


def stream_packets(data: bytes, other: bytes, draw: random.Random) -> bytes | None:
    """Drops, repeats, swaps, re-marks or replaces MPEG-TS packets."""
    if data[:1] != b"G" or len(data) % 188:
        return None
    packets = [data[at : at + 188] for at in range(0, len(data), 188)]
    for _n in range(draw.choice((1, 5, 40))):
        at, to = draw.randrange(len(packets)), draw.randrange(len(packets))
        what = draw.randrange(6)
        if what == 0 and len(packets) > 1:
            packets.pop(at)
        elif what == 1:
            packets.insert(to, packets[at])
        elif what == 2:
            packets[at], packets[to] = packets[to], packets[at]
        elif what == 3:
            packets[at] = packets[at][:1] + draw.randbytes(3) + packets[at][4:]
        elif what == 4:
            # The timestamps are five bytes after the header of a PES packet.
            begin = packets[at].find(b"\0\0\1\xe0")
            if 0 <= begin < 170:
                time = begin + 9
                packets[at] = packets[at][:time] + draw.randbytes(5) + packets[at][time + 5 :]
        elif other[:1] == b"G" and len(other) >= 188:
            start = draw.randrange(len(other) // 188) * 188
            packets.insert(to, other[start : start + 188])
    return b"".join(packets)


def chunk_field(data: bytes, _: bytes, draw: random.Random) -> bytes | None:
    """Changes a field in the headers or index of an AVI."""
    if data[:4] != b"RIFF":
        return None
    places = _places(data, draw.choice(AVI))
    if not places:
        return None
    at = draw.choice(places[:20]) + 4 + 4 * min(int(draw.expovariate(1 / 6)), 20)
    if at + 4 > len(data):
        return None
    return data[:at] + struct.pack("<I", draw.choice(WORDS)) + data[at + 4 :]


def display(data: bytes, _: bytes, draw: random.Random) -> bytes | None:
    """Changes display matrix, display size or pixel aspect."""
    changed = bytearray(data)
    for box in index_boxes(data):
        if box.kind == b"tkhd" and box.end - box.content >= 84:
            at = box.content + 40
            for number in range(draw.choice((1, 4, 11))):
                value = draw.choice((0, 1, 1 << 16, -(1 << 16), 46341, draw.getrandbits(31)))
                place = at + 4 * draw.randrange(11) if number else at
                struct.pack_into(">i", changed, place, value)
        elif box.kind == b"pasp" and box.end - box.content >= 8:
            pair = (draw.choice(WORDS), draw.choice(WORDS))
            struct.pack_into(">II", changed, box.content, *pair)
    return bytes(changed) if changed != data else None


def edit_list(data: bytes, _: bytes, draw: random.Random) -> bytes | None:
    """Replaces a track's edit list with absurd entries, or adds one."""
    traks = [b for b in index_boxes(data) if b.kind == b"trak"]
    if not traks:
        return None
    trak = draw.choice(traks)
    entries = [
        struct.pack(">IiI", draw.choice(WORDS), _signed(draw.choice(WORDS)),
                    draw.choice((0x10000, 0, 0x20000, 0xFFFF0000)))
        for _n in range(draw.choice((1, 2, 5, 200)))
    ]  # fmt: skip
    body = struct.pack(">II", 0, len(entries)) + b"".join(entries)
    elst = struct.pack(">I4s", 8 + len(body), b"elst") + body
    edts = struct.pack(">I4s", 8 + len(elst), b"edts") + elst
    own = next((b for b in index_boxes(data) if b.kind == b"edts" and b.start > trak.start), None)
    start, end = (
        (own.start, own.end) if own is not None and own.end <= trak.end else (trak.end,) * 2
    )
    return _replaced(data, start, end, edts)


def times(data: bytes, other: bytes, draw: random.Random) -> bytes | None:
    """Changes packet times: negative, repeated, backward, far away, or with packets lost."""

    def change(number: int, pts: int, dts: int) -> tuple[int, int] | None:
        return changes[kind](number, pts, dts)

    far = draw.choice((1 << 20, 1 << 31, 1 << 33, 1 << 40, 1 << 61))
    at = draw.randrange(40)
    step = draw.choice((2, 3, 7))
    changes: dict[str, Callable[[int, int, int], tuple[int, int] | None]] = {
        "negative": lambda n, p, d: (p - far, d - far),
        "repeated": lambda n, p, d: (p // step * step, d),
        "jump": lambda n, p, d: (p + far, d + far) if n >= at else (p, d),
        "gap": lambda n, p, d: (p + 50 * step, d + 50 * step) if n >= at else (p, d),
        "backward": lambda n, p, d: (p - 20 * step, d) if n >= at else (p, d),
        "random": lambda n, p, d: (draw.randrange(1 << 16), d),
        "lost": lambda n, p, d: None if n % step == 1 else (p, d),
        "lost key": lambda n, p, d: None if n == 0 else (p, d),
        "stretched": lambda n, p, d: (p * (n % step + 1), d * (n % step + 1)),
    }
    kind = draw.choice(sorted(changes))
    return _remuxed(data, draw, change)


def order(data: bytes, other: bytes, draw: random.Random) -> bytes | None:
    """Swaps, repeats or damages payloads of packets, or takes them from another file."""
    packets = _payloads(data)
    foreign = _payloads(other) if draw.random() < 0.3 else []
    if len(packets) < 2:
        return None
    for _n in range(draw.choice((1, 3, 20))):
        at, to = draw.randrange(len(packets)), draw.randrange(len(packets))
        what = draw.randrange(4)
        if what == 0:
            packets[at], packets[to] = packets[to], packets[at]
        elif what == 1:
            packets[at] = packets[to]
        elif what == 2 and len(packets[at]) > 8:
            packets[at] = flipped_bits(packets[at], b"", draw)
        elif foreign:
            packets[at] = draw.choice(foreign)
    return _remuxed(data, draw, lambda n, p, d: (p, d), packets)


MUTATIONS: dict[str, tuple[Mutation, int]] = {
    "flipped bits": (flipped_bits, 3), "flipped ends": (flipped_ends, 3),
    "truncated": (truncated, 2), "beheaded": (beheaded, 1), "spliced": (spliced, 2),
    "zeroed": (zeroed, 2), "noise": (noise, 2), "doubled": (doubled, 2), "removed": (removed, 2),
    "swapped": (swapped, 1), "box field": (box_field, 10), "box size": (box_size, 3),
    "boxes repeated": (boxes_repeated, 3), "element value": (element_value, 10),
    "stream packets": (stream_packets, 10), "chunk field": (chunk_field, 8),
    "display": (display, 2), "edit list": (edit_list, 3), "times": (times, 6), "order": (order, 4),
}  # fmt: skip
"""Mutations by name, with weights; mutations for a single format apply less often."""
REMUXED = frozenset({"stream packets", "display", "edit list", "times", "order"})


def mutated(
    data: bytes, other: bytes, draw: random.Random, *, remuxes: bool = True
) -> tuple[str, bytes]:
    """Applies one or two mutations to a file; returns their names, and the bytes.

    `remuxes` allows mutations that write packets again, which can abort FFmpeg's muxers.
    """
    known = sorted(name for name in MUTATIONS if remuxes or name not in REMUXED)
    names = []
    for _n in range(draw.choice((1, 1, 1, 2))):
        for _n in range(20):
            name = draw.choices(known, [MUTATIONS[kind][1] for kind in known])[0]
            changed = MUTATIONS[name][0](data, other, draw) if data else None
            if changed is not None and len(changed) <= 4 << 20:
                data = changed
                names.append(name)
                break
    return " + ".join(names) or "as it was", data


def index_boxes(data: bytes) -> Iterator[Box]:
    """Yields the boxes of an MP4's index at every depth; yields nothing for other files."""
    if data[4:8] not in (b"ftyp", b"moov", b"wide", b"free", b"mdat", b"skip"):
        return
    for box in _boxes(data, 0, len(data)):
        if box.kind in (b"moov", b"moof", b"sidx", b"mfra"):
            yield box
            yield from _within(data, box)


def _within(data: bytes, box: Box) -> Iterator[Box]:
    if box.kind not in BOXES_OF_BOXES:
        return
    for inner in _boxes(data, box.content + ENTRY_BYTES.get(box.kind, 0), box.end):
        yield inner
        yield from _within(data, inner)


def _boxes(data: bytes, start: int, end: int) -> Iterator[Box]:
    while start + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, start)
        if size < 8 or start + size > end:
            return
        yield Box(kind, start, start + 8, start + size)
        start += size


def _replaced(data: bytes, start: int, end: int, inner: bytes) -> bytes:
    """Replaces a range of the index, and corrects the sizes of the boxes around it."""
    changed = bytearray(data)
    for outer in index_boxes(data):
        if outer.content <= start and end <= outer.end:
            size = outer.end - outer.start + len(inner) - (end - start)
            struct.pack_into(">I", changed, outer.start, size)
    return bytes(changed[:start]) + inner + bytes(changed[end:])


def _range(data: bytes, draw: random.Random) -> tuple[int, int]:
    start = draw.randrange(len(data))
    length = draw.choice((4, 64, 1000, len(data) // 4 or 1))
    return start, min(len(data), start + draw.randint(1, max(1, length)))


def _places(data: bytes, mark: bytes) -> list[int]:
    places: list[int] = []
    at = data.find(mark)
    while 0 <= at < len(data) - len(mark) - 9 and len(places) < 200:
        places.append(at)
        at = data.find(mark, at + 1)
    return places


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def _payloads(data: bytes) -> list[bytes]:
    try:
        with av.open(io.BytesIO(data), mode="r") as source:
            return [bytes(p) for p in source.demux(source.streams.video[0]) if p.size]
    except (av.error.FFmpegError, IndexError, ValueError):
        return []


def _remuxed(
    data: bytes,
    draw: random.Random,
    change: Callable[[int, int, int], tuple[int, int] | None],
    payloads: list[bytes] | None = None,
) -> bytes | None:
    """Muxes the video's packets again, in any format, with changed times or payloads."""
    kinds = ["mp4", "mov", "matroska", "mpegts", "avi", "nut", "flv"]
    form = draw.choice(kinds)
    options = draw.choice(
        (
            {},
            {"movflags": "faststart"},
            {"movflags": "frag_keyframe+empty_moov"},
            {"use_editlist": "0"},
        )
        if form in ("mp4", "mov")
        else ({},)
    )
    written = io.BytesIO()
    try:
        with (
            av.open(io.BytesIO(data), mode="r") as source,
            av.open(
                written, "w", format=form, options={"fflags": "+bitexact", **options}
            ) as output,
        ):
            stream = source.streams.video[0]
            copied = output.add_stream_from_template(stream, opaque=True)
            tick = stream.time_base or Fraction(1, 90_000)
            unit = max(1, round(1 / (tick * (stream.average_rate or 25))))
            number = -1
            for packet in source.demux(stream):
                if not packet.size:
                    continue
                number += 1
                pts, dts = packet.pts or 0, packet.dts if packet.dts is not None else 0
                times = change(number, pts // unit, dts // unit)
                if times is None:
                    continue
                made = av.Packet(payloads[number]) if payloads is not None else packet
                limit = 1 << 62
                made.pts = max(-limit, min(limit, times[0] * unit))
                made.dts = max(-limit, min(limit, times[1] * unit))
                made.time_base, made.stream = tick, copied
                made.is_keyframe = packet.is_keyframe
                try:
                    output.mux(made)
                except (av.error.FFmpegError, ValueError):
                    # Muxers refuse times that go back, but the packets before form a file.
                    continue
    except (av.error.FFmpegError, IndexError, ValueError, OverflowError):
        pass
    return written.getvalue() or None
