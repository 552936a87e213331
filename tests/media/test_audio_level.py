"""How loud the audio of a source is, tenth of a second by tenth of a second."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.packet import Packet
from samples import analyzed, framed
from sound import Sound, level_db, steps, tone, write_film

from curator.media.audio_level import LevelMeter, Levels, join_levels, level_meter, within
from curator.media.container import open_container, video_stream
from curator.media.decode import FrameReader
from curator.records.sources import Note
from curator.records.tracks import FLOOR_DB
from curator.stages.analyze.config import AnalyzeConfig

Change = Callable[["Packet[Any]", int], None]


def measured(path: Path, change: Change | None = None) -> tuple[int, Levels, set[Note]]:
    """First cell, levels and notes of a file, with its audio packets changed on the way."""
    with path.open("rb") as file, open_container(file, "a", n_bytes=path.stat().st_size) as opened:
        meter = level_meter(opened, video_stream(opened, "a"))
        assert meter is not None
        for number, packet in enumerate(opened.demux(meter.stream)):
            if change is not None and packet.size:
                change(packet, number)
            meter.take(packet)
        return *meter.levels(), meter.notes


@pytest.mark.parametrize(
    ("name", "codec", "tolerance_db"),
    [
        ("s16.mov", "pcm_s16le", 0.01), ("s24.mov", "pcm_s24le", 0.01),
        ("f32.mov", "pcm_f32le", 0.01), ("f64.mkv", "pcm_f64le", 0.03), ("u8.avi", "pcm_u8", 0.1),
        ("flac.mkv", "flac", 0.03), ("aac.mp4", "aac", 0.1), ("opus.webm", "libopus", 0.1),
        ("ac3.ts", "ac3", 0.1), ("7.1.webm", "libopus", 0.2),
    ],
)  # fmt: skip
def test_a_tone_has_the_rms_level_of_all_its_channels_by_power(
    tmp_path: Path, name: str, codec: str, tolerance_db: float
) -> None:
    """Pins dBFS for each sample format; one silent channel of two takes 3 dB."""
    # Of 7.1, PyAV's arrays read a ninth plane that is not there: the process died.
    wave = tone(2, amplitude=0.5, channels=8 if name.startswith("7.1") else 2)
    wave[1:] = 0
    write_film(tmp_path / name, [Sound(wave=wave, codec=codec)])
    track = framed(tmp_path / name)
    assert (track.has_audio_levels, track.notes) == (True, ())
    assert len(track.audio_rms_db) >= 19
    np.testing.assert_allclose(track.audio_rms_db[1:-1], level_db(wave), atol=tolerance_db)


def test_silence_is_not_absence_and_the_default_stream_counts(tmp_path: Path) -> None:
    """Pins that silence is not absence, and that the default stream may stand behind another."""
    wave = np.concatenate([tone(1), np.zeros((1, 48_000), np.float32)], axis=1)
    quiet = Sound(wave=tone(2, amplitude=0.01), is_default=False)
    write_film(tmp_path / "two.mkv", [quiet, Sound(wave=wave, codec="pcm_s16le")])
    levels = framed(tmp_path / "two.mkv").audio_rms_db
    np.testing.assert_allclose(levels[:10], -9.03, atol=0.05)
    np.testing.assert_array_equal(levels[11:20], np.full(9, FLOOR_DB, np.float32))
    # Audio that ends before the video and none at all.
    write_film(tmp_path / "short.mov", [Sound(wave=tone(1.2), codec="pcm_s16le")], n_frames=90)
    track = framed(tmp_path / "short.mov")
    assert (track.audio_rms_first, len(track.audio_rms_db)) == (0, 12)
    write_film(tmp_path / "none.mov", [])
    track = framed(tmp_path / "none.mov")
    assert (track.has_audio_levels, len(track.audio_rms_db), track.notes) == (True, 0, ())
    track = analyzed(tmp_path / "short.mov", config=AnalyzeConfig(audio=False))
    assert (track.has_audio_levels, len(track.audio_rms_db)) == (False, 0)


def test_time_is_the_containers_clock_wherever_audio_begins_or_changes_its_rate(
    tmp_path: Path,
) -> None:
    """Pins when the tone is heard: audio that starts late, early, and a film that starts at 5 s."""
    late = Sound(wave=tone(1), codec="pcm_s16le", start_s=Fraction("0.7"))
    write_film(tmp_path / "late.mkv", [late])
    track = framed(tmp_path / "late.mkv")
    assert (track.audio_rms_first, len(track.audio_rms_db)) == (7, 10)
    early = Sound(wave=tone(6), codec="pcm_s16le", start_s=Fraction(4))
    write_film(tmp_path / "early.mkv", [early], start_s=Fraction(5))
    track = framed(tmp_path / "early.mkv")
    assert float(track.frame_pts[0] * track.time_base) == pytest.approx(5, abs=0.002)
    assert (track.audio_rms_first, len(track.audio_rms_db)) == (50, 20)
    # MP4 says with an edit list that audio begins later.
    write_film(tmp_path / "late.mp4", [Sound(wave=tone(1), start_s=Fraction("0.7"))])
    track = framed(tmp_path / "late.mp4")
    known = track.audio_rms_first + np.flatnonzero(track.audio_rms_db > -20)
    assert (known[0], known[-1]) == (7, 16)
    # Two transport streams in a row, the second at half the rate: a tone in its second second.
    second = np.concatenate([np.zeros((1, 24_000), np.float32), tone(1, rate=24_000)], axis=1)
    write_film(tmp_path / "1.ts", [Sound(wave=tone(2))])
    write_film(
        tmp_path / "2.ts", [Sound(wave=second, rate=24_000, start_s=Fraction(2))],
        start_s=Fraction(2),
    )  # fmt: skip
    both = (tmp_path / "1.ts").read_bytes() + (tmp_path / "2.ts").read_bytes()
    (tmp_path / "both.ts").write_bytes(both)
    track = framed(tmp_path / "both.ts")
    assert track.duration_s == pytest.approx(4, abs=0.05)
    start = int(float(track.frame_pts[0] * track.time_base) * 10)
    middle = [track.audio_rms_db[start - track.audio_rms_first + i] for i in (8, 12, 25, 35)]
    np.testing.assert_allclose(middle[:2], -9.03, atol=0.2)
    assert middle[2] < -60
    np.testing.assert_allclose(middle[3], -9.03, atol=0.2)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seconds of tone in packets of 1024 samples each."""
    path = tmp_path_factory.mktemp("plain") / "a.mov"
    write_film(path, [Sound(wave=tone(2), codec="pcm_s16le")])
    return path


def earlier(packet: "Packet[Any]", _: int) -> None:
    packet.pts -= 48_000 * 3 // 2


def bare(packet: "Packet[Any]", number: int) -> None:
    if number > 10:
        packet.pts = packet.dts = None


def all_bare(packet: "Packet[Any]", _: int) -> None:
    packet.pts = packet.dts = None


def reset(packet: "Packet[Any]", _: int) -> None:
    """Half of the tone claims the time of the other half."""
    if packet.pts >= 48_000:
        packet.pts -= 48_000


def far(packet: "Packet[Any]", number: int) -> None:
    if 20 <= number < 25:
        packet.pts = 1 << 62


def corrupt(packet: "Packet[Any]", number: int) -> None:
    if 30 <= number < 45:
        packet.is_corrupt = True


@pytest.mark.parametrize(
    ("change", "first", "n_cells", "note", "holes"),
    [
        (earlier, -15, 20, None, set()),
        (bare, 0, 20, Note.AUDIO_TIMESTAMPS, set()),
        (all_bare, 0, 0, Note.AUDIO_TIMESTAMPS, set()),
        (reset, 0, 0, Note.AUDIO_TIMESTAMPS, set()),
        (far, 0, 20, Note.AUDIO_TIMESTAMPS, {4, 5}),
        (corrupt, 0, 20, Note.AUDIO_ERRORS, {6, 7, 8, 9}),
    ],
)
def test_packets_that_are_odd_leave_holes_and_a_note(
    plain: Path, change: Change, first: int, n_cells: int, note: Note | None, holes: set[int]
) -> None:
    """Times below zero, missing, claimed twice and absurd, and what a demuxer calls corrupt."""
    # Audio without timestamps follows on what was before it.
    found, levels, notes = measured(plain, change)
    assert notes == ({note} if note is not None else set())
    missing = set(np.flatnonzero(np.isnan(levels)).tolist())
    assert missing <= holes
    assert bool(missing) == bool(holes)
    if change is reset:
        assert np.isfinite(levels).sum() <= 1
    else:
        assert (found, len(levels)) == (first, n_cells)
        np.testing.assert_allclose(levels[np.isfinite(levels)], -9.03, atol=0.02)


def test_audio_without_a_decoder_is_noted_and_fails_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.mov"
    write_film(path, [Sound(wave=tone(2), codec="pcm_s16le")])
    data = path.read_bytes()
    assert data.count(b"sowt") == 1
    path.write_bytes(data.replace(b"sowt", b"zzzz"))
    track = framed(path)
    assert (track.n_frames, len(track.audio_rms_db)) == (60, 0)
    assert track.notes == (Note.AUDIO_NOT_DECODED,)


def test_damaged_audio_is_absent_where_it_is_and_changes_no_picture(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    write_film(path, [Sound(wave=tone(4))], n_frames=120)
    sound = framed(path)
    with av.open(str(path)) as container:
        audio = container.streams.audio[0]
        spots = [
            (packet.pos, packet.size)
            for packet in container.demux(audio)
            if packet.size and 1.5 <= packet.pts * packet.time_base < 2.5
        ]
    data = bytearray(path.read_bytes())
    for position, size in spots:
        data[position : position + size] = b"\xff" * size
    path.write_bytes(bytes(data))
    damaged = framed(path)
    assert (sound.notes, damaged.notes) == ((), (Note.AUDIO_ERRORS,))
    hole = np.flatnonzero(np.isnan(damaged.audio_rms_db))
    assert set(range(16, 24)) <= set(hole) <= set(range(14, 26))
    rest = np.setdiff1d(np.arange(1, 39), np.arange(14, 26))
    np.testing.assert_allclose(damaged.audio_rms_db[rest], sound.audio_rms_db[rest], atol=0.1)
    for name in ("frame_pts", "luma_mean", "frame_flags", "descriptor"):
        np.testing.assert_array_equal(getattr(damaged, name), getattr(sound, name), err_msg=name)
    assert damaged.n_decode_errors == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_frames_are_the_same_with_and_without_audio(tmp_path: Path, threads: int) -> None:
    path = tmp_path / "a.mp4"
    write_film(path, [Sound(wave=steps(3), behind_s=1e6)], n_frames=90)

    def frames(*, hears: bool) -> list[tuple[int, int, bytes]]:
        size = path.stat().st_size
        with path.open("rb") as file, open_container(file, "a", n_bytes=size) as opened:
            video = video_stream(opened, "a")
            meter = level_meter(opened, video) if hears else None
            reader = FrameReader(
                opened, video, "a", threads=threads, max_pixels=10**6, audio=meter
            )  # fmt: skip
            found = [(f.pts, f.n_bytes, f.picture.to_ndarray().tobytes()) for f in reader]
            assert meter is None or len(meter.levels()[1]) >= 30
            return found

    assert frames(hears=True) == frames(hears=False)


def levels_of(*values: float) -> Levels:
    return np.array(values, np.float32)


SECOND = np.full(20, -20, np.float32)


@pytest.mark.parametrize(
    ("pieces", "start", "length", "holes", "is_proved"),
    [
        ([(100, SECOND), (118, levels_of(*[-20] * 30))], 100, 48, range(19, 24), False),
        ([(100, SECOND), (117, levels_of(*[-30] * 3))], 100, 20, range(0), True),
        (
            [(0, SECOND[:0]), (100, SECOND), (0, SECOND[:0]), (140, levels_of(*[-20] * 30))],
            100, 70, range(20, 40), True,
        ),
    ],
    ids=["not settled", "ends where they meet", "gap"],
)  # fmt: skip
def test_pieces_leave_holes_where_nothing_is_proved(
    pieces: list[tuple[int, Levels]], start: int, length: int, holes: range, is_proved: bool
) -> None:
    """Pins that a piece behind a gap counts from its start: its decoder began there in any case."""
    first, joined, proved = join_levels(pieces)
    assert (first, len(joined), proved) == (start, length, is_proved)
    assert np.flatnonzero(np.isnan(joined)).tolist() == list(holes)
    assert set(joined[np.isfinite(joined)].tolist()) == {-20}


def test_pieces_are_joined_where_the_second_has_settled_or_contradict_each_other() -> None:
    first = levels_of(*range(-40, -21), -50)
    second = levels_of(*[-99] * 6, *range(-24, -10))
    start, joined, is_proved = join_levels([(100, first), (110, second)])
    assert (start, is_proved) == (100, True)
    np.testing.assert_array_equal(joined, np.arange(-40, -10))
    for wrong in (np.float32(3), np.float32(np.nan)):
        second = np.arange(-30, -10, dtype=np.float32) + wrong
        start, joined, is_proved = join_levels([(100, levels_of(*range(-40, -20))), (110, second)])
        assert (start, len(joined), is_proved) == (0, 0, False)
    # Levels of a stretch of time.
    start, levels = within(100, levels_of(1, np.nan, 3, 4), 101, 110)
    assert (start, levels.tolist()) == (102, [3, 4])
    assert len(within(100, levels_of(1, 2), 102, 110)[1]) == 0


@pytest.mark.parametrize("begins_within", [True, False])
def test_only_a_decoder_that_begins_in_the_middle_may_fail_at_first(
    tmp_path: Path, begins_within: bool
) -> None:
    """Pins that errors count from half a second after the first packet, or at once."""
    path = tmp_path / "a.mp4"
    write_film(path, [Sound(wave=tone(3))], n_frames=90)

    def notes(*damaged: int) -> set[Note]:
        with av.open(str(path)) as container:
            meter = LevelMeter(container.streams.audio[0], begins_within=begins_within)
            for number, packet in enumerate(container.demux(meter.stream)):
                given: Packet[Any] = packet
                if number in damaged:
                    given = Packet(b"\xff" * 100)
                    given.stream, given.pts, given.dts = packet.stream, packet.pts, packet.dts
                    given.time_base = packet.time_base
                meter.take(given)
            assert len(meter.levels()[1]) >= 29
            return meter.notes

    assert notes() == set()
    assert notes(2, 3, 20) == (set() if begins_within else {Note.AUDIO_ERRORS})
    assert notes(40) == {Note.AUDIO_ERRORS}
