"""Clips of films as people have them: holes, restarts, film on DVDs, trims, changes of size."""

import io
import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from film_makers import b_frames, write_video
from film_shots import moving_texture
from joined_films import join
from made_cuts import cutter_of
from reported_films import reported
from samples import framed
from sound import Sound, Wave, write_film

from curator.cut_requests import crop_within, cut_request
from curator.records.cuts import CutClip, NotCopied
from curator.records.sources import Note
from curator.records.tracks import Track, varies
from curator.stages.cut.config import CutConfig
from curator.stages.propose.clip_spans import propose_clips
from curator.stages.propose.config import ProposeConfig
from curator.stages.propose.shot_boundaries import find_shots

SMALL = {"width_px": 96, "height_px": 64}


def clips_of(path: Path, track: Track | None = None, **settings: object) -> list[CutClip]:
    """All clips of a film of one shot, cut."""
    track = track or framed(path)
    clips = []
    config = CutConfig.model_validate({"preset": "ultrafast", **settings})
    for span in propose_clips(track, find_shots(track, ProposeConfig()), ProposeConfig()):
        request = cut_request(track, "clip", span, crop=crop_within(track, span))
        with cutter_of(path, config) as cutter:
            clips.append(cutter.cut(request))
    return clips


def beeps(*at_s: float, seconds: float = 4) -> Wave:
    wave = np.zeros((1, round(seconds * 48_000)), np.float32)
    tone = 0.8 * np.sin(2 * np.pi * 1000 * np.arange(2400) / 48_000)
    for begin_s in at_s:
        begin = round(begin_s * 48_000)
        wave[0, begin : begin + len(tone)] = tone
    return wave


def heard(clip: CutClip) -> list[float]:
    """Seconds at which beeps begin."""
    with av.open(io.BytesIO(clip.mp4)) as container:
        frames = [np.abs(frame.to_ndarray()).max(axis=0) for frame in container.decode(audio=0)]
        rate = container.streams.audio[0].rate
    loud_s = np.flatnonzero(np.concatenate(frames) > 0.2) / rate
    begins = loud_s[np.diff(loud_s, prepend=-1) > 0.1]
    return [float(begin) for begin in begins]


@pytest.mark.parametrize(
    ("name", "codec", "rate"),
    [
        ("film.avi", "pcm_s16le", 48_000), ("film.avi", "libmp3lame", 44_100),
        ("film.flv", "aac", 44_100), ("film.nut", "mp2", 48_000), ("film.mkv", "aac", 48_000),
    ],
)  # fmt: skip
def test_sound_of_a_clip_at_the_start_is_there(
    name: str, codec: str, rate: int, tmp_path: Path
) -> None:
    """Pins containers whose demuxer refuses a seek to a time before 0."""
    path = tmp_path / name
    write_film(path, [Sound(wave=beeps(0.5, 1.5), codec=codec, rate=rate)], n_frames=100)
    (clip,) = clips_of(path, audio="aac")
    assert clip.audio == "aac"
    # An encoder's delay is kept where the container cannot say how long it is.
    assert heard(clip) == pytest.approx([0.5 * 48_000 / rate, 1.5 * 48_000 / rate], abs=0.06)


def written_twice(path: Path, folder: Path, second_s: float, **settings: object) -> None:
    parts = []
    for number, (start_s, at_s) in enumerate([(70.0, 1.0), (second_s, 3.0)]):
        part = folder / f"{number}{path.suffix}"
        start = Fraction(start_s)
        sound = Sound(wave=beeps(at_s), codec="mp2", start_s=start)
        write_film(part, [sound], n_frames=120, start_s=start)
        parts.append(part.read_bytes())
    path.write_bytes(b"".join(parts))


@pytest.mark.parametrize("second_s", [70.0, 40.0, 1.0, 73.0], ids=str)
def test_sound_moves_with_pictures_where_times_start_again(second_s: float, tmp_path: Path) -> None:
    """Pins times that start at the same time, earlier, before FFmpeg's wrap, and a little back."""
    path = tmp_path / "film.ts"
    written_twice(path, tmp_path, second_s)
    track = framed(path)
    assert Note.TIMES_START_AGAIN in track.notes
    assert not {Note.TRUNCATED, Note.TIMESTAMPS_REPAIRED, Note.AUDIO_TIMESTAMPS} & {*track.notes}
    (clip,) = clips_of(path, track, audio="aac")
    assert clip.n_frames == 240
    assert heard(clip) == pytest.approx([1.0, 7.0], abs=0.03)
    assert np.isfinite(track.audio_rms_db).mean() > 0.95


def with_hole(n_before: int, n_behind: int, hole_s: float, fps: int = 25) -> list[int]:
    """Times in ms; the hole is the time without a frame."""
    times = [1000 * n // fps for n in range(n_before + n_behind)]
    return [t + (round(hole_s * 1000) if n >= n_before else 0) for n, t in enumerate(times)]


@pytest.mark.parametrize(
    ("name", "pts", "lengths"),
    [
        ("a.mkv", with_hole(60, 70, 3), [60, 70]),
        ("a.mp4", with_hole(60, 70, 0.6), [60, 70]),
        ("a.ts", with_hole(60, 70, 100), [60, 70]),
        ("a.mkv", with_hole(60, 1, 3), [60, 1]),
        ("a.mkv", with_hole(60, 70, 0.3), [130]),
    ],
)
def test_a_take_ends_at_a_hole_in_time(
    name: str, pts: Sequence[int], lengths: list[int], tmp_path: Path
) -> None:
    path = tmp_path / name
    film = moving_texture(len(pts), **SMALL)
    write_video(path, film, pts=pts, time_base=Fraction(1, 1000), fps=Fraction(25), bframes=0)
    track = framed(path)
    clips = clips_of(path, track)
    if len(lengths) == 1:
        # The frame before a short gap is repeated.
        assert [clip.n_frames for clip in clips] == [138]
        return
    assert [clip.n_frames for clip in clips] == lengths
    assert {clip.fps for clip in clips} == {25} or lengths[-1] == 1
    end_s = track.seconds(track.pts_of_end(lengths[0]))
    assert end_s == pytest.approx(lengths[0] / 25, abs=0.002)


@pytest.mark.parametrize("cadence", [(3, 2), (2, 3, 3, 2), (3, 2, 3, 2, 2)], ids=str)
@pytest.mark.parametrize("name", ["film.mkv", "film.ts"])
def test_film_on_a_dvd_keeps_its_frames_and_its_rate(
    cadence: tuple[int, ...], name: str, tmp_path: Path
) -> None:
    """Pins frames of two and three fields, also with a break of the cadence, and other rates."""
    path = tmp_path / name
    pts = np.cumsum([0, *(cadence * 60)][:101]).tolist()
    write_video(path, moving_texture(101, **SMALL), pts=pts, time_base=Fraction(1001, 60_000))
    track = framed(path)
    is_film = cadence != (3, 2, 3, 2, 2)
    assert track.is_vfr is not is_film
    if is_film:
        assert track.fps == Fraction(24_000, 1001)
        (clip,) = clips_of(path, track)
        assert (clip.n_frames, clip.fps) == (101, Fraction(24_000, 1001))


def test_a_take_ends_where_the_size_changes(tmp_path: Path) -> None:
    """Pins frames, sizes and scores of each part, and that no part is copied at another size."""
    codec = {"codec": "libvpx", "options": {"deadline": "realtime", "cpu-used": "8"}}
    parts = []
    for number, (width, height) in enumerate([(96, 64), (192, 128), (96, 64)]):
        parts.append(tmp_path / f"{number}.webm")
        film = moving_texture(30 + number, width_px=width, height_px=height, seed=number)
        write_video(parts[-1], film, **codec)  # type: ignore[arg-type]
    path = tmp_path / "film.webm"
    join(path, *parts)
    track = framed(path)
    clips = clips_of(path, track)
    sizes = [(clip.n_frames, clip.width, clip.height) for clip in clips]
    assert sizes == [(30, 96, 64), (31, 192, 128), (32, 96, 64)]
    assert [track.size_at(frame) for frame in (0, 29, 30, 60, 61)] == [
        (96, 64), (96, 64), (192, 128), (192, 128), (96, 64),
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", [".h264", ".m2v"])
def test_frames_of_raw_streams_have_the_sizes_of_their_packets(suffix: str, tmp_path: Path) -> None:
    """Pins B-frames, which are shown in another order than their packets are in."""
    part, path = tmp_path / "part.ts", tmp_path / f"film{suffix}"
    codec = "libx264" if suffix == ".h264" else "mpeg2video"
    write_video(part, moving_texture(40, **SMALL), codec=codec, bframes=2)
    with (
        av.open(str(part)) as source,
        av.open(str(path), "w", format=suffix[1:].replace("m2v", "mpeg2video")) as raw,
    ):
        stream = raw.add_stream_from_template(source.streams.video[0])
        packets = [packet for packet in source.demux(video=0) if packet.size]
        # Of each packet of the timed stream, by the time of its frame.
        sizes = [p.size for p in sorted(packets, key=lambda p: p.pts or 0)]
        for packet in packets:
            packet.stream = stream
            raw.mux(packet)
    track = framed(path)
    assert track.n_frames == 40
    # A raw stream ends a packet where the next begins; MPEG-TS adds a delimiter of 6 bytes.
    assert np.abs(track.frame_bytes - np.array(sizes)).max() <= 12
    assert Note.TRUNCATED not in track.notes


@pytest.mark.parametrize("hidden", [20, 30])
def test_what_an_edit_list_hides_is_not_missing(hidden: int, tmp_path: Path) -> None:
    path = tmp_path / "trimmed.mp4"
    b_frames(path)
    data = bytearray(path.read_bytes())
    place = data.index(b"elst") + 4 + 8
    duration, media_time = struct.unpack_from(">Ii", data, place)
    moved = media_time + hidden * 512
    struct.pack_into(">Ii", data, place, duration * (48 - hidden) // 48, moved)
    path.write_bytes(data)
    track = framed(path)
    assert track.n_frames == 48 - hidden
    assert track.notes == ()
    # What is cut off is still missing.
    write_video(path, moving_texture(48, **SMALL), mux_options={"movflags": "faststart"})
    path.write_bytes(path.read_bytes()[:-2000])
    assert Note.TRUNCATED in framed(path).notes


@pytest.mark.parametrize(("longest_s", "mode"), [(2.0, "encode"), (2.4, "copy"), (None, "copy")])
def test_clips_with_rare_key_frames_are_encoded(
    longest_s: float | None, mode: str, tmp_path: Path
) -> None:
    """Pins the distance to the next key frame and to the clip's end, and the counted reason."""
    path = tmp_path / "film.mp4"
    params = "keyint=60:min-keyint=60:scenecut=0"
    options = {"x264-params": params}
    write_video(path, moving_texture(132, **SMALL), fps=Fraction(25), options=options)
    (clip,) = clips_of(path, copy_max_gap_s=longest_s)
    assert clip.cut_mode == mode
    assert clip.not_copied == (NotCopied.KEY_FRAMES_TOO_RARE if mode == "encode" else None)


@pytest.mark.needs_media
@pytest.mark.long
def test_reported_films() -> None:
    """Pins the films of public reports, if they are there."""
    for name in ("k02_beep.avi", "k02_real_canon.AVI", "k02_pass_beep.mp4"):
        (clip,) = clips_of(reported(name), audio="aac")
        assert clip.audio == "aac"
    (clip,) = clips_of(reported("k08_times_start_again.ts"), audio="aac")
    assert len(heard(clip)) == 16
    for name in ("k09_gap_3s.ts", "k09_gap_20s.ts"):
        assert [clip.n_frames for clip in clips_of(reported(name))] == [100, 100]
    (clip,) = clips_of(reported("k10_film_dvd.vob"))
    assert (clip.n_frames, clip.fps) == (144, Fraction(24_000, 1001))
    clips = clips_of(reported("k11_webrtc_180p_then_720p.webm"))
    assert [(clip.width, clip.n_frames) for clip in clips] == [(320, 25), (1280, 125)]
    assert framed(reported("k13_camera.h264")).frame_bytes.all()
    assert framed(reported("k14_trimmed_without_encoding.mp4")).notes == ()


@pytest.mark.parametrize("suffix", [".mkv", ".flv", ".avi", ".wmv", ".webm", ".nut"])
@pytest.mark.parametrize("start_s", [0, 1], ids=["sound_is_longer", "pictures_begin_late"])
def test_a_whole_file_is_not_truncated(suffix: str, start_s: int, tmp_path: Path) -> None:
    """Pins headers that have the duration of the file alone, and AVI's count of empty frames."""
    path = tmp_path / f"film{suffix}"
    codec = {".webm": "libopus", ".avi": "pcm_s16le", ".wmv": "libmp3lame", ".nut": "mp2"}.get(
        suffix
    )
    rate = 44_100 if suffix == ".flv" else 48_000
    sound = Sound(wave=beeps(1.0, seconds=4), codec=codec or "aac", rate=rate)
    write_film(path, [sound], n_frames=60, start_s=Fraction(start_s))
    track = framed(path)
    assert track.n_frames == 60
    assert not {Note.TRUNCATED, Note.DURATION_DIFFERS} & {*track.notes}


@pytest.mark.parametrize("suffix", [".mkv", ".flv", ".avi"])
def test_a_file_that_ends_early_is_truncated(suffix: str, tmp_path: Path) -> None:
    """Pins that a duration of the file counts if no stream reaches it."""
    path = tmp_path / f"film{suffix}"
    sound = Sound(
        wave=beeps(1.0, seconds=2), codec="pcm_s16le" if suffix == ".avi" else "aac", rate=44_100
    )
    write_film(path, [sound], n_frames=60)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 7 // 10])
    assert Note.TRUNCATED in framed(path).notes


@pytest.mark.parametrize(
    ("pts", "time_base", "expected"),
    [
        ([0, *range(2, 40)], Fraction(1, 30), True),
        ([0, *range(4, 80, 2)], Fraction(1, 60), True),
        (list(range(40)), Fraction(1, 30), False),
        ([round(1000 * n / 24) for n in range(40)], Fraction(1, 1000), False),
        ([round(1000 * n / 240) for n in range(40)], Fraction(1, 1000), False),
        ([round(1000 * n / 960) for n in range(200)], Fraction(1, 1000), False),
    ],
)
def test_a_lost_frame_is_no_rounding_of_times(
    pts: list[int], time_base: Fraction, expected: bool
) -> None:
    """Pins AVI, which counts frames: without it, pictures are early after a lost frame."""
    assert varies(np.array(pts, np.int64), time_base) is expected
