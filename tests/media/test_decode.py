"""Decoding: every frame once, in order, at its exact time, whatever state the file is in."""

import errno
import io
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any, cast

import av
import film_makers as write
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext
from av.container import InputContainer
from av.packet import Packet
from av.video.stream import VideoStream
from film_makers import made_in, variable_pts, write_video
from film_shots import moving_texture

from curator.errors import DecodeError, ErrorCode
from curator.frame_size import upright_size
from curator.media import decode
from curator.media.container import _Seeking, open_container, video_stream
from curator.media.decode import DecodedFrame, FrameReader
from curator.media.scale import Scaler

N = write.N_FRAMES
Maker = Callable[[str], Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return made_in(tmp_path_factory.mktemp("decode"))


def decoded(path: Path, **options: Any) -> tuple[FrameReader, list[DecodedFrame]]:  # noqa: ANN401
    with (
        path.open("rb") as file,
        open_container(file, path.name, n_bytes=path.stat().st_size) as container,
    ):
        options = {"threads": 1, "max_pixels": 10**7} | options
        frames = FrameReader(container, video_stream(container, path.name), path.name, **options)
        return frames, list(frames)


def times(path: Path) -> list[Fraction]:
    """Time of each frame from the first, in seconds."""
    reader, frames = decoded(path)
    return [(frame.pts - frames[0].pts) * reader.time_base for frame in frames]


CONSTANT = [
    "constant_rate.mp4", "constant_rate.mov", "constant_rate.ts", "constant_rate.avi",
    "b_frames.mp4", "b_frames.mkv", "b_frames.ts", "open_gop.mp4", "open_gop.ts", "interlaced.mp4",
    "ten_bit.mp4", "one_pixel.mp4",
]  # fmt: skip


@pytest.mark.parametrize("name", CONSTANT)
def test_a_constant_rate_gives_every_frame_at_its_exact_time(name: str, made: Maker) -> None:
    """Pins count and times: to the tick, or to the millisecond that Matroska rounds to."""
    reader, frames = decoded(made(name))
    assert [frame.index for frame in frames] == list(range(N))
    tolerance = Fraction(1, 1000) if name.endswith("mkv") else 0
    found = times(made(name))
    assert all(abs(t - Fraction(i, 30)) <= tolerance for i, t in enumerate(found))
    assert reader.report.n_frames == N
    assert not reader.report.is_damaged
    assert reader.report.n_repaired_pts == 0
    assert reader.report.end_pts is not None
    end = (reader.report.end_pts - frames[0].pts) * reader.time_base
    assert abs(end - Fraction(N, 30)) <= tolerance


@pytest.mark.parametrize("name", ["variable_rate.mp4", "variable_rate.mkv"])
def test_a_variable_rate_keeps_every_time(name: str, made: Maker) -> None:
    """Pins the times of frames that no constant rate fits."""
    meant = [Fraction(t, 600) for t in variable_pts(N)]
    tolerance = Fraction(1, 1000) if name.endswith("mkv") else 0
    found = times(made(name))
    assert all(abs(a - b) <= tolerance for a, b in zip(found, meant, strict=True))


def test_frames_come_in_order_by_the_containers_clock_and_its_edits(made: Maker) -> None:
    """Pins that an offset is not taken away: seeks need the container's own ticks."""
    reader, frames = decoded(made("constant_rate.ts"))
    assert reader.time_base == Fraction(1, 90_000)
    assert frames[0].pts > 0
    assert frames[1].pts - frames[0].pts == 3000
    # B-frames are put in order: each picture is most like the one that was filmed.
    _, frames = decoded(made("b_frames.mp4"))
    filmed = np.stack([picture[::4, ::4] for picture in moving_texture(N)]).astype(np.float32)
    for frame in frames:
        shown = frame.picture.to_ndarray(format="rgb24")[::4, ::4]
        assert np.abs(filmed - shown).mean(axis=(1, 2, 3)).argmin() == frame.index
    # Frames before an edit's start are not shown, and that time starts at the edit.
    reader, frames = decoded(made("edited.mp4"))
    assert [frame.pts for frame in frames] == [i * 512 for i in range(N - 5)]
    assert not reader.report.is_damaged


@pytest.mark.parametrize("name", ["constant_rate.mp4", "b_frames.ts", "constant_rate.avi"])
def test_every_frame_has_the_size_of_its_packet(name: str, made: Maker) -> None:
    """Pins bytes per frame: all of them together are all packets."""
    _, frames = decoded(made(name))
    with av.open(str(made(name))) as container:
        sizes = [packet.size for packet in container.demux(video=0) if packet.size]
    assert sorted(frame.n_bytes for frame in frames) == sorted(sizes)
    assert frames[0].n_bytes == max(sizes)


@pytest.mark.parametrize("name", ["b_frames.mp4", "open_gop.ts", "variable_rate.mp4"])
def test_threads_change_nothing_in_a_sound_file(name: str, made: Maker) -> None:
    """Pins times, sizes and pixels for one thread and for four."""
    one, four = (decoded(made(name), threads=threads) for threads in (1, 4))
    assert len(one[1]) == len(four[1])
    for a, b in zip(one[1], four[1], strict=True):
        assert (a.pts, a.n_bytes) == (b.pts, b.n_bytes)
        np.testing.assert_array_equal(a.picture.to_ndarray(), b.picture.to_ndarray())


def test_times_that_go_back_and_a_change_of_size_are_recorded(made: Maker, tmp_path: Path) -> None:
    """Pins two recordings in one file: no frame is lost, and time goes on."""
    once = made("constant_rate.ts").read_bytes()
    path = tmp_path / "twice.ts"
    path.write_bytes(once * 2)
    reader, frames = decoded(path)
    assert len(frames) == 2 * N
    assert reader.report.n_repaired_pts == 0
    assert reader.report.shifts_s == [Fraction(N, 30)]
    steps = np.diff([frame.pts for frame in frames])
    assert steps.min() > 0
    assert np.median(steps) == 3000
    write_video(tmp_path / "small.ts", moving_texture(20, width_px=160, height_px=96))
    path.write_bytes(once + (tmp_path / "small.ts").read_bytes())
    reader, frames = decoded(path)
    assert reader.report.sizes == [(320, 180), (160, 96)]
    assert len(frames) == N + 20
    assert frames[-1].picture.width == 160


def test_a_truncated_or_flipped_file_gives_what_it_holds(made: Maker) -> None:
    """Pins that the frames before the end are whole, and that damage is known with any threads."""
    reader, frames = decoded(made("truncated.mp4"))
    assert 10 < len(frames) < N
    assert reader.report.n_errors + reader.report.n_lost_at_end >= 1
    filmed = list(moving_texture(N))
    for frame in frames:
        shown = frame.picture.to_ndarray(format="rgb24").astype(np.float32)
        assert np.abs(shown - filmed[frame.index]).mean() < 8
    for threads in (1, 2, 4, 8):
        assert decoded(made("truncated.mp4"), threads=threads)[0].report.is_damaged
    # Decoding goes on after packets that do not decode, and counts what it met.
    reader, frames = decoded(made("flipped.mp4"))
    assert N - 10 <= len(frames) <= N
    assert reader.report.n_concealed > 0
    marked = {frame.index for frame in frames if frame.picture.is_corrupt}
    assert marked <= set(reader.report.damage.indices)
    assert np.diff([frame.pts for frame in frames]).min() > 0


def test_a_stream_without_an_end_of_errors_is_given_up(
    made: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that hours of undecodable packets do not take hours."""
    data = bytearray(made("constant_rate.mov").read_bytes())
    place = data.index(b"mdat") + 2000
    data[place : data.index(b"moov") - 4] = bytes(data.index(b"moov") - 4 - place)
    path = tmp_path / "zeros.mov"
    path.write_bytes(data)
    monkeypatch.setattr(decode, "MAX_CONSECUTIVE_ERRORS", 5)
    reader, frames = decoded(path)
    assert reader.report.ended_early
    assert reader.report.n_errors >= 5
    assert len(frames) < N


def test_more_pixels_or_frames_than_allowed_are_refused(made: Maker, tmp_path: Path) -> None:
    """Pins the limits, inclusive, with code, numbers and remedy; and a size that grows later."""
    decoded(made("one_frame.mp4"), max_pixels=320 * 180)
    assert len(decoded(made("constant_rate.mp4"), max_frames=N)[1]) == N
    small = tmp_path / "small.ts"
    write_video(small, moving_texture(20, width_px=160, height_px=96))
    grows = tmp_path / "grows.ts"
    grows.write_bytes(small.read_bytes() + made("constant_rate.ts").read_bytes())
    pixels = r"is 320x180, more than \d+ pixels; raise analyze\.max"
    frames = r"more than 47 frames; raise analyze\.max_frames or split the file"
    for path, limit, code, words in (
        (made("one_frame.mp4"), {"max_pixels": 57599}, ErrorCode.TOO_MANY_PIXELS, pixels),
        (grows, {"max_pixels": 20_000}, ErrorCode.TOO_MANY_PIXELS, pixels),
        (made("constant_rate.mp4"), {"max_frames": N - 1}, ErrorCode.TOO_LONG, frames),
    ):
        with pytest.raises(DecodeError, match=f"{path.name} .*{words}") as caught:
            decoded(path, **limit)
        assert caught.value.code == code


def tagged(path: Path, to: Path, tags: str) -> Path:
    """The same H.264 with other values in its header."""
    with av.open(path) as source, av.open(to, "w") as made:
        stream = source.streams.video[0]
        copy = made.add_stream_from_template(stream)
        written = BitStreamFilterContext(f"h264_metadata={tags}", stream, copy)
        for packet in chain.from_iterable(map(written.filter, [*source.demux(stream), None])):
            packet.stream = copy
            made.mux(packet)
    return to


@pytest.mark.parametrize(
    "tags", ["colour_primaries=0", "transfer_characteristics=9", "matrix_coefficients=3"]
)
def test_colours_without_a_meaning_count_as_unspecified(
    tags: str, made: Maker, tmp_path: Path
) -> None:
    """Pins that the scaler, which refuses such values, makes a picture."""
    path, unspecified = made("constant_rate.mp4"), f"{tags.partition('=')[0]}=2"
    _, plain = decoded(tagged(path, tmp_path / "plain.ts", unspecified))
    _, frames = decoded(tagged(path, tmp_path / "tagged.ts", tags))
    assert len(frames) == len(plain)
    shown = [Scaler(32, 18).rgb_HWC(one.picture) for one in (plain[0], frames[0])]
    np.testing.assert_array_equal(*shown)


def test_colours_that_cannot_be_converted_are_refused(made: Maker, tmp_path: Path) -> None:
    path = tagged(made("constant_rate.mp4"), tmp_path / "tagged.ts", "matrix_coefficients=8")
    with pytest.raises(DecodeError, match=r"tagged.ts has colours by matrix 8 of") as caught:
        decoded(path)
    assert caught.value.code is ErrorCode.UNSUPPORTED_CODEC


def test_time_beyond_what_can_be_stored_is_refused_and_no_frame_is_not(made: Maker) -> None:
    """Pins a last time near 2^63, after which frames without one follow."""
    path = made("constant_rate.mp4")
    with open_container(path.open("rb"), str(path), n_bytes=path.stat().st_size) as container:
        stream = video_stream(container, str(path))
        reader = FrameReader(container, stream, str(path), threads=1, max_pixels=10**9)
        reader._timed((1 << 63) - 512, 256)
        with pytest.raises(DecodeError, match=r"ends after \d+ ticks of .* most 92233") as caught:
            reader._timed(None, 256)
    assert caught.value.code is ErrorCode.TOO_LONG
    # An empty stream ends at once; the stage makes the failure of it.
    reader, frames = decoded(made("zero_frames.mp4"))
    assert frames == []
    assert reader.report.end_pts is None


@pytest.mark.parametrize(
    ("width", "height", "rotation_deg", "aspect", "size"),
    [
        (320, 180, 0, Fraction(1), (320, 180)),
        (320, 180, 90, Fraction(1), (180, 320)),
        (320, 180, 180, Fraction(1), (320, 180)),
        (720, 576, 0, Fraction(16, 15), (768, 576)),
        (720, 480, 0, Fraction(8, 9), (720, 540)),
        (720, 576, 270, Fraction(15, 16), (576, 768)),
        (1, 1, 0, Fraction(1, 8), (1, 8)),
    ],
)
def test_upright_sizes_enlarge_the_shorter_sampled_side(
    width: int, height: int, rotation_deg: int, aspect: Fraction, size: tuple[int, int]
) -> None:
    """Pins that square pixels lose no detail in either direction."""
    assert upright_size(width, height, rotation_deg, aspect) == size


class Refusing(io.BytesIO):
    """Seeks fail as those of a file do, or as those of a disk that is gone."""

    number = errno.EINVAL

    def seek(self, offset: int, whence: int = 0) -> int:
        if offset > 100:
            raise OSError(self.number, "refused")
        return super().seek(offset, whence)


def test_a_seek_to_where_no_file_reaches_is_answered_and_not_raised() -> None:
    """Pins what FFmpeg takes for an error: damaged sizes of boxes lead there."""
    file = Refusing(b"abc")
    reader = _Seeking(file)
    assert (reader.seek(1 << 62), reader.seek(-5)) == (-errno.EINVAL, -errno.EINVAL)
    assert (reader.seek(1), reader.read()) == (1, b"bc")
    file.number = errno.EIO
    with pytest.raises(OSError, match="refused"):
        reader.seek(1 << 62)


class _NewStreams:
    """A container in which further streams appear: PyAV ends its packets with an error then."""

    def __init__(self, container: InputContainer) -> None:
        self._container = container

    def demux(self, streams: list[VideoStream]) -> Iterator["Packet[Any]"]:
        for packet in self._container.demux(streams):
            if packet.size:
                yield packet
        raise IndexError("list index out of range")


def test_a_stream_that_appears_on_the_way_costs_no_frame(made: Maker) -> None:
    path = made("b_frames.mp4")
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        odd = cast(InputContainer, _NewStreams(container))
        reader = FrameReader(odd, stream, str(path), threads=1, max_pixels=10**6)
        assert len(list(reader)) == write.N_FRAMES
        assert not reader.report.is_damaged


@pytest.mark.parametrize(("name", "n_threads"), [("b_frames.mp4", 1), ("constant_rate.webm", 3)])
def test_h264_has_one_thread_where_its_quantiser_is_read(
    name: str, n_threads: int, tmp_path: Path
) -> None:
    """Pins that no thread reads a picture's quantisers while another one is at it."""
    # With several, a frame in twenty of a 1080p film had others in each run, by up to 23 QP.
    path = made_in(tmp_path)(name)
    with path.open("rb") as file, open_container(file, name, n_bytes=path.stat().st_size) as opened:
        stream = video_stream(opened, name)
        FrameReader(opened, stream, name, threads=3, max_pixels=10**7, with_quantizer=True)
        assert stream.codec_context.thread_count == n_threads
