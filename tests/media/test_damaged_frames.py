"""Damaged and lost packets: all frames that depend on them count as damaged, and no others."""

import io
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import av
import numpy as np
import pytest
from av.packet import Packet
from film_makers import write_video
from film_shots import moving_texture
from samples import analyzed

from curator.media.container import open_container, video_stream
from curator.media.damaged_frames import DamagedFrames
from curator.media.decode import FrameReader
from curator.media.stream_headers import FrameNumbers
from curator.records.clips import Shot
from curator.records.sources import Note
from curator.records.tracks import DAMAGED
from curator.stages.propose.clip_spans import propose_clips
from curator.stages.propose.config import ProposeConfig
from curator.tools.footage.scenes import Picture

N, GOP = 45, 15
OPTIONS = {
    "libx264": {"x264-params": f"keyint={GOP}:min-keyint={GOP}:scenecut=0:b-adapt=0"},
    "libx265": {"x265-params": f"keyint={GOP}:min-keyint={GOP}:scenecut=0:open-gop=0:log-level=0"},
    "mpeg2video": {"b": "8000000"},
    "mpeg4": {"b": "4000000"},
}


def noisy(n_frames: int) -> Iterator[Picture]:
    """Pictures that take many packets of MPEG-TS, and in which any loss shows."""
    rng = np.random.default_rng(1)
    for picture in moving_texture(n_frames, width_px=128, height_px=80):
        noise = rng.integers(-30, 31, picture.shape)
        yield np.clip(picture + noise, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("damage")
    made = {}
    for codec, options in OPTIONS.items():
        made[codec] = folder / f"{codec}.ts"
        write_video(
            made[codec], noisy(N), codec=codec, options=options, gop=GOP, bframes=2,
            fps=Fraction(25),
        )  # fmt: skip
    return made


def read(path: Path) -> tuple[FrameReader, list[tuple[int, Picture]]]:
    """The reader, and time and luma of each frame."""
    with path.open("rb") as file, open_container(file, "a", n_bytes=path.stat().st_size) as opened:
        stream = video_stream(opened, "a")
        reader = FrameReader(opened, stream, "a", threads=1, max_pixels=10**6, shows_damaged=True)
        frames = [(f.pts, f.picture.to_ndarray(format="gray").astype(int)) for f in reader]
    return reader, frames


def check(path: Path, sound: Path, *, least: int) -> list[int]:
    """Returns the frames that count as damaged; all that differ from the sound film must."""
    meant = dict(read(sound)[1])
    reader, frames = read(path)
    differ = {
        index for index, (pts, luma) in enumerate(frames)
        if pts in meant and np.abs(luma - meant[pts]).max() > 0
    }  # fmt: skip
    damaged = sorted(reader.report.damage.indices)
    assert len(set(damaged)) == len(damaged) == reader.report.n_concealed
    assert differ <= set(damaged)
    assert len(differ) >= least
    assert reader.report.is_damaged
    return damaged


def pids_of(data: bytes) -> list[tuple[bytes, bool, bool]]:
    """Packets of MPEG-TS; whether they are of the video, and whether a picture begins there."""
    packets = [data[at : at + 188] for at in range(0, len(data), 188)]
    video = [(packet[1] & 31) << 8 | packet[2] == 256 for packet in packets]
    return [(p, is_v, is_v and bool(p[1] & 64)) for p, is_v in zip(packets, video, strict=True)]


LOSSES = [
    (codec, lost, place)
    for codec in ("libx264", "libx265", "mpeg2video")
    for lost in ("begin", "middle", "end", "all")
    for place in (17, 18, 30)
]
SAMPLE = [
    ("libx264", "all", 18), ("libx264", "middle", 30), ("libx265", "middle", 18),
    ("libx265", "all", 18), ("mpeg2video", "middle", 18), ("mpeg2video", "all", 30),
]  # fmt: skip


@pytest.mark.parametrize(
    ("codec", "lost", "place"),
    [pytest.param(*case, marks=[] if case in SAMPLE else pytest.mark.long) for case in LOSSES],
)
def test_a_lost_packet_of_mpegts_damages_frames_up_to_the_next_entry(
    codec: str, lost: str, place: int, films: dict[str, Path], tmp_path: Path
) -> None:
    """Pins each part of a picture, in a frame that others need and in a key frame."""
    packets = pids_of(films[codec].read_bytes())
    starts = [i for i, (_, _, begins) in enumerate(packets) if begins]
    own = [i for i in range(starts[place], starts[place + 1]) if packets[i][1]]
    gone = {"begin": own[:1], "middle": own[len(own) // 2 :][:1], "end": own[-1:], "all": own}[lost]
    path = tmp_path / "lost.ts"
    path.write_bytes(b"".join(p for i, (p, _, _) in enumerate(packets) if i not in gone))
    damaged = check(path, films[codec], least=0)
    # Nothing before the group of pictures with the loss counts, nor after it.
    low, high = (GOP, 2 * GOP) if place < 30 else (2 * GOP - 3, N)
    assert low - 3 <= min(damaged, default=low)
    assert max(damaged, default=low) < high


def counted(data: bytes) -> bytes:
    """Gives the packets of MPEG-TS continuous counters, so that no packet seems lost."""
    counted, counters = bytearray(data), dict[int, int]()
    for at in range(0, len(data), 188):
        pid, has_payload = (data[at + 1] & 31) << 8 | data[at + 2], data[at + 3] >> 4 & 1
        counters[pid] = counters.get(pid, 0) + has_payload
        counted[at + 3] = data[at + 3] & 0xF0 | counters[pid] & 15
    return bytes(counted)


@pytest.mark.parametrize("codec", ["libx264", "libx265", "mpeg2video"])
def test_damage_is_found_on_both_sides_of_times_that_start_again(
    codec: str, films: dict[str, Path], tmp_path: Path
) -> None:
    """Pins that damage is found by the times that frames have, after parts were moved."""
    data = films[codec].read_bytes()
    packets = pids_of(counted(data + data))
    starts = [i for i, (_, _, begins) in enumerate(packets) if begins]
    gone = set()
    for number in (18, N + 18):
        own = [i for i in range(starts[number], starts[number + 1]) if packets[i][1]]
        gone.add(own[len(own) // 2])
    path = tmp_path / "twice.ts"
    path.write_bytes(b"".join(p for i, (p, _, _) in enumerate(packets) if i not in gone))
    reader, frames = read(path)
    assert len(frames) == 2 * N
    assert len(reader.report.shifts_s) == 1
    damaged = sorted(reader.report.damage.indices)
    one = damaged[: len(damaged) // 2]
    assert GOP <= one[0] < one[-1] == 2 * GOP - 1
    assert damaged == [*one, *(index + N for index in one)]


def without(source: Path, path: Path, gone: Iterable[int]) -> Path:
    """Copies packets except some, so that the container knows of no loss."""
    with av.open(str(source)) as read, av.open(str(path), "w") as made:
        stream = read.streams.video[0]
        copy = made.add_stream_from_template(stream, opaque=True)
        packets = (packet for packet in read.demux(stream) if packet.size)
        for number, packet in enumerate(packets):
            if number not in gone:
                packet.stream = copy
                made.mux(packet)
    return path


@pytest.mark.parametrize(("codec", "suffix"), [
    ("libx264", ".mp4"), ("libx264", ".mkv"), ("libx265", ".mp4"),
])  # fmt: skip
def test_a_frame_that_nobody_knows_is_missing_damages_those_that_need_it(
    codec: str, suffix: str, films: dict[str, Path], tmp_path: Path
) -> None:
    """Pins numbers of H.264's reference frames, and HEVC's frames that decoders drop."""
    whole = without(films[codec], tmp_path / f"whole{suffix}", ())
    assert not read(whole)[0].report.is_damaged
    path = without(whole, tmp_path / f"lost{suffix}", {16})
    damaged = check(path, whole, least=5)
    assert (damaged[0], damaged[-1]) in [(16, 28), (15, 28)]
    assert len(damaged) >= 13
    # A frame to which no other refers is only missing.
    with av.open(str(whole)) as opened:
        order = [packet.pts for packet in opened.demux(video=0) if packet.size]
    leaf = next(i for i in range(GOP, N) if order[i] < order[i - 1] and order[i + 1] > order[i])
    assert leaf > GOP


@pytest.mark.parametrize("codec", ["libx264", "mpeg4", "libx265"])
def test_zeros_in_a_file_divide_clips_and_are_rejected(
    codec: str, films: dict[str, Path], tmp_path: Path
) -> None:
    """Pins the whole way: flags of the track, its notes, and spans that hold all or no damage."""
    whole = without(films[codec], tmp_path / "whole.mp4", ())
    with av.open(str(whole)) as opened:
        packets = [(p.pos, p.size) for p in opened.demux(video=0) if p.size]
    data = bytearray(whole.read_bytes())
    at, size = packets[18]
    data[at + size // 3 : at + size] = bytes(size - size // 3)
    path = tmp_path / "zeros.mp4"
    path.write_bytes(data)
    check(path, whole, least=1)
    track, again = analyzed(path), analyzed(path, threads=3)
    assert np.array_equal(track.frame_flags, again.frame_flags)
    assert Note.CORRUPT_FRAMES in track.notes
    is_damaged = (track.frame_flags & DAMAGED).astype(bool)
    begin, end = np.flatnonzero(is_damaged)[[0, -1]] + [0, 1]
    assert is_damaged[begin:end].all()
    shot = Shot(
        start_frame=0, end_frame=track.n_frames, transition_in="none", transition_out="none"
    )
    spans = propose_clips(track, [shot], ProposeConfig())
    assert [(span.start_frame, span.end_frame) for span in spans] == [
        (0, begin), (begin, end), (end, track.n_frames),
    ]  # fmt: skip


def packet(pts: int, *, is_corrupt: bool = False, is_key: bool = False) -> "Packet[Any]":
    # Packets of PyAV cannot be marked.
    made = SimpleNamespace(pts=pts, is_corrupt=is_corrupt, is_keyframe=is_key)
    return cast("Packet[Any]", made)


def test_frames_between_damage_and_a_key_frame_count_in_the_order_of_decoding() -> None:
    """Pins frames shown before a damaged one that refer to it, and those before an entry."""
    frames = DamagedFrames()
    # Decoded I0 P3 B1 B2 I6 B4 B5 P9, of which the decoder marks P3.
    for pts in (0, 3, 1, 2, 6, 4, 5, 9):
        frames.sent(packet(pts, is_key=pts % 6 == 0))
    shown = [
        frames.shown(index, pts, key_frame=pts % 6 == 0, is_corrupt=pts == 3)
        for index, pts in enumerate((0, 1, 2, 3, 4, 5, 6, 9))
    ]
    assert shown == [False, False, False, True, True, True, False, False]
    assert sorted(frames.indices) == [1, 2, 3, 4, 5]
    # A key frame that is damaged itself is no entry, and a leading frame damages no key frame.
    frames = DamagedFrames()
    for pts, key, corrupt in (
        (0, True, True),
        (1, False, False),
        (5, True, False),
        (3, False, True),
    ):
        frames.sent(packet(pts, is_key=key, is_corrupt=corrupt))
    for index, pts in enumerate((0, 1, 3, 5)):
        frames.shown(index, pts, key_frame=pts in (0, 5), is_corrupt=False)
    assert sorted(frames.indices) == [0, 1, 2]


def test_numbers_of_h264_are_read_with_their_gaps(films: dict[str, Path], tmp_path: Path) -> None:
    """Pins both forms of packets, and that a sound stream has no gap."""
    for path in (films["libx264"], without(films["libx264"], tmp_path / "a.mp4", ())):
        with av.open(str(path)) as opened:
            stream = opened.streams.video[0]
            packets = [packet for packet in opened.demux(stream) if packet.size]
            extradata = stream.codec_context.extradata
        numbers = FrameNumbers(extradata)
        assert [numbers.skips(packet) for packet in packets] == [False] * N
        numbers = FrameNumbers(extradata)
        lost = [numbers.skips(packet) for i, packet in enumerate(packets) if i != GOP + 1]
        assert lost == [i == GOP + 1 for i in range(N - 1)]
        # Bytes without a meaning have no numbers.
        assert not FrameNumbers(b"\1" * 9).skips(packets[3])
        assert not FrameNumbers(None).skips(Packet(b"\0\0\1\x41"))
        assert not numbers.skips(Packet(io.BytesIO(bytes(99)).read()))
