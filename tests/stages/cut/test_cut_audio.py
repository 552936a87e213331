"""Audio of clips: what is heard is heard with its picture, in every mode."""

import io
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from film_makers import write_video
from film_shots import moving_texture
from made_cuts import cutter_of, request_of
from samples import framed
from sound import Sound, Wave, write_film

from curator.records.cuts import CutClip
from curator.stages.cut.config import CutConfig

BEEP_S = 2.5


def beep(seconds: float, at_s: float, *, rate: int = 48_000, channels: int = 1) -> Wave:
    """Silence, but for 50 ms of 1 kHz."""
    wave = np.zeros((channels, round(seconds * rate)), np.float32)
    n, begin = round(0.05 * rate), round(at_s * rate)
    wave[:, begin : begin + n] = 0.8 * np.sin(2 * np.pi * 1000 * np.arange(n) / rate)
    return wave


def onset_s(mp4: bytes) -> float:
    """When the beep is heard, by PyAV, which takes audio to begin at its first timestamp."""
    with av.open(io.BytesIO(mp4), mode="r") as container:
        stream = container.streams.audio[0]
        assert stream.start_time == 0
        pieces = [np.abs(frame.to_ndarray()).max(axis=0) for frame in container.decode(stream)]
        return float(np.argmax(np.concatenate(pieces) > 0.2) / stream.rate)


def onset_by_command_s(mp4: bytes, folder: Path) -> float:
    path = folder / "heard.mp4"
    path.write_bytes(mp4)
    command = ["ffmpeg", "-v", "error", "-i", str(path), "-f", "f32le", "-ac", "1", "-ar", "48000"]
    wave = subprocess.run([*command, "-"], capture_output=True, check=True).stdout
    return float(np.argmax(np.abs(np.frombuffer(wave, np.float32)) > 0.2) / 48_000)


def clip_of(
    path: Path, start: int, end: int, *, mode: str = "auto", audio: str = "aac", **more: object
) -> tuple[CutClip, float]:
    """The clip, and when the beep must be heard in it."""
    config = CutConfig.model_validate({"mode": mode, "audio": audio, **more})
    track = framed(path)
    request = request_of(track, start, end)
    with cutter_of(path, config) as cutter:
        clip = cutter.cut(request)
    # MPEG-TS moves all streams so that none begins before 0.
    since = request.frame_pts[clip.first] - track.frame_pts[0]
    return clip, BEEP_S - float(since * request.time_base)


def test_audio_does_not_depend_on_the_clips_before(tmp_path: Path) -> None:
    """Pins bytes for a decoder of AAC, which fills bands with noise of its own generator."""
    path = tmp_path / "film.mp4"
    noise = np.random.default_rng(0).normal(0, 0.1, (1, 4 * 48_000)).astype(np.float32)
    write_film(path, [Sound(wave=noise)], n_frames=120)
    track, config = framed(path), CutConfig(mode="encode", audio="aac")
    requests = [request_of(track, start, start + 40) for start in (10, 40, 70)]
    fresh = [cutter_of(path, config).cut(request).mp4_sha256 for request in requests]
    one = cutter_of(path, config)
    assert [one.cut(request).mp4_sha256 for request in requests] == fresh
    assert [one.cut(request).mp4_sha256 for request in reversed(requests)] == fresh[::-1]


def with_pictures_of(pictures: Path, sounds: Path, out: Path) -> None:
    """Packets of one file's video beside those of another one's audio."""
    with (
        av.open(str(pictures)) as first,
        av.open(str(sounds)) as second,
        av.open(str(out), "w") as output,
    ):
        video, audio = first.streams.video[0], second.streams.audio[0]
        copies = [output.add_stream_from_template(stream) for stream in (video, audio)]
        for stream, copy in zip((video, audio), copies, strict=True):
            for packet in stream.container.demux(stream):
                if packet.size:
                    packet.stream = copy
                    output.mux(packet)


def b_frames(path: Path) -> None:
    """B-frames in fixed groups, and the beep."""
    pictures, sounds = path.with_name("p.mp4"), path.with_name("s.mp4")
    params = "b-adapt=0:keyint=30:scenecut=0"
    write_video(
        pictures, moving_texture(150, width_px=192, height_px=108), fps=Fraction(30), bframes=3,
        options={"x264-params": params},
    )  # fmt: skip
    write_film(sounds, [Sound(wave=beep(5, BEEP_S))], n_frames=150)
    with_pictures_of(pictures, sounds, path)


def plain(path: Path, **more: object) -> None:
    write_film(path, [Sound(wave=beep(5, BEEP_S), **more)], n_frames=150)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [plain, b_frames])
@pytest.mark.parametrize("mode", ["auto", "encode"])
@pytest.mark.parametrize("audio", ["copy", "aac"])
def test_a_beep_is_heard_with_its_frame(
    make: object, mode: str, audio: str, tmp_path: Path
) -> None:
    """Pins sync in copies and encoded clips, with and without B-frames, for two readers."""
    path = tmp_path / "film.mp4"
    make(path)  # type: ignore[operator]
    for start, is_near in ((30, True), (60, False)):
        clip, meant_s = clip_of(path, start, start + 61, mode=mode, audio=audio)
        assert clip.cut_mode == ("copy" if mode == "auto" else "encode")
        assert (b"ctts" in clip.mp4) == (make is b_frames and clip.cut_mode == "copy")
        # No packet begins within 3 ms of frame 60, at 5.3 ms.
        assert clip.audio == (audio if is_near else "aac")
        tolerance_s = 0.004 if clip.audio == "copy" else 0.001
        assert onset_s(clip.mp4) == pytest.approx(meant_s, abs=tolerance_s)
        if shutil.which("ffmpeg"):
            assert onset_by_command_s(clip.mp4, tmp_path) == pytest.approx(meant_s, abs=tolerance_s)


@pytest.mark.parametrize("audio", ["copy", "aac"])
@pytest.mark.parametrize("mode", ["auto", "encode"])
def test_audio_changes_nothing_of_the_pictures(mode: str, audio: str, tmp_path: Path) -> None:
    """Pins frames, times and key frames beside audio, no edit list, and the index in front."""
    path = tmp_path / "film.mp4"
    b_frames(path)
    silent, _ = clip_of(path, 30, 91, mode=mode, audio="drop")
    assert silent.audio == "dropped"
    clip, _ = clip_of(path, 30, 91, mode=mode, audio=audio)
    assert b"elst" not in clip.mp4
    assert clip.mp4.index(b"moov") < clip.mp4.index(b"mdat")
    assert video_packets(clip.mp4) == video_packets(silent.mp4)
    (tmp_path / "clip.mp4").write_bytes(clip.mp4)
    video = cv2.VideoCapture(str(tmp_path / "clip.mp4"))
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) == clip.n_frames == 61
    n_read = 0
    while video.read()[0]:
        n_read += 1
    assert n_read == 61
    again, _ = clip_of(path, 30, 91, mode=mode, audio=audio)
    assert again.mp4_sha256 == clip.mp4_sha256


def video_packets(mp4: bytes) -> list[tuple[object, ...]]:
    with av.open(io.BytesIO(mp4), mode="r") as container:
        stream = container.streams.video[0]
        assert stream.start_time == 0
        packets = [packet for packet in container.demux(stream) if packet.size]
        return [
            (p.pts * p.time_base, p.dts * p.time_base, p.is_keyframe, bytes(p))
            for p in packets
            if p.pts is not None and p.dts is not None
        ]


@pytest.mark.parametrize(
    ("name", "sound", "written"),
    [
        ("late.mkv", {"start_s": Fraction(3, 2), "wave": beep(3, 1.0)}, "aac"),
        ("offset.mp4", {"start_s": Fraction(1, 50), "wave": beep(5, 2.48)}, "copy"),
        ("mp3.mkv", {"codec": "libmp3lame", "rate": 44_100,
                     "wave": beep(5, BEEP_S, rate=44_100, channels=2)}, "aac"),
        ("pcm.mov", {"codec": "pcm_s16le", "rate": 8_000,
                     "wave": beep(5, BEEP_S, rate=8_000)}, "aac"),
        ("opus.webm", {"codec": "libopus"}, "aac"),
        ("ac3.ts", {"codec": "ac3"}, "aac"),
        ("aac.ts", {}, "aac"),
        ("behind.mp4", {"behind_s": 3.0}, "copy"),
    ],
)  # fmt: skip
def test_offsets_codecs_and_places_in_the_file(
    name: str, sound: dict[str, object], written: str, tmp_path: Path
) -> None:
    """Pins sync whatever the source's audio is, and that what cannot be copied is encoded."""
    path = tmp_path / name
    write_film(path, [Sound(**({"wave": beep(5, BEEP_S)} | sound))], n_frames=150)  # type: ignore[arg-type]
    clip, meant_s = clip_of(path, 48, 110, audio="copy")
    assert clip.audio == written
    # A copy may be 3 ms off; MPEG-TS and Matroska round times, codecs blur what begins at once.
    assert onset_s(clip.mp4) == pytest.approx(meant_s, abs=0.005)


def test_packets_that_do_not_decode_are_not_copied(tmp_path: Path) -> None:
    """Pins that readers of a clip need no answer to damaged audio: it is encoded, with a gap."""
    path = tmp_path / "film.mp4"
    plain(path)
    assert clip_of(path, 48, 110, audio="copy")[0].audio == "copy"
    damaged = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        packets = list(container.demux(container.streams.audio[0]))
    packet = next(p for p in packets if p.pts is not None and p.pts * p.time_base > 1.7)
    assert packet.pos is not None
    damaged[packet.pos : packet.pos + packet.size] = b"\xff" * packet.size
    path.write_bytes(damaged)
    clip, meant_s = clip_of(path, 48, 110, audio="copy")
    assert clip.audio == "aac"
    assert onset_s(clip.mp4) == pytest.approx(meant_s, abs=0.001)


def test_a_variable_rate_keeps_its_sound(tmp_path: Path) -> None:
    """Pins sync where frames are repeated to a constant rate."""
    pictures, sounds, path = (tmp_path / name for name in ("p.mp4", "s.mp4", "film.mp4"))
    base = Fraction(1, 600)
    ticks = np.cumsum([20, 20, 40, 20, 60, 20, 20, 40] * 15).tolist()
    ticks = [tick - ticks[0] for tick in ticks]
    film = moving_texture(len(ticks), width_px=192, height_px=108)
    write_video(pictures, film, pts=ticks, time_base=base)
    write_film(sounds, [Sound(wave=beep(6, BEEP_S))], n_frames=150)
    with_pictures_of(pictures, sounds, path)
    clip, meant_s = clip_of(path, 16, 90)
    assert clip.cut_mode == "encode"
    assert onset_s(clip.mp4) == pytest.approx(meant_s, abs=0.001)


@pytest.mark.parametrize("late_ticks", [9, 13, 27])
def test_sound_moves_with_pictures_that_a_grid_moves(late_ticks: int, tmp_path: Path) -> None:
    """Pins a rate that is constant but for one interval: no frame after it is on the grid."""
    pictures, sounds, path = (tmp_path / name for name in ("p.mp4", "s.mp4", "film.mp4"))
    ticks = [0, *range(20 + late_ticks, 2000 + late_ticks, 20)]
    film = list(moving_texture(len(ticks), width_px=192, height_px=108))
    film[40:] = [np.full_like(film[0], 255)] * len(film[40:])
    write_video(pictures, film, pts=ticks, time_base=Fraction(1, 600))
    write_film(sounds, [Sound(wave=beep(4, ticks[40] / 600))], n_frames=100)
    with_pictures_of(pictures, sounds, path)
    clip, _ = clip_of(path, 0, 90)
    assert clip.cut_mode == "encode"
    with av.open(io.BytesIO(clip.mp4), mode="r") as container:
        shown = [frame.to_ndarray(format="gray").mean() for frame in container.decode(video=0)]
    bright_s = float(np.argmax(np.array(shown) > 240) / clip.fps)
    assert abs(bright_s - ticks[40] / 600) > 0.005
    assert onset_s(clip.mp4) == pytest.approx(bright_s, abs=0.001)


def test_where_audio_is_missing_or_ends_the_clip_says_so_or_is_silent(tmp_path: Path) -> None:
    """Pins `none` for sources without audio and for times at which there is none."""
    mute, short = tmp_path / "mute.mp4", tmp_path / "short.mp4"
    write_film(mute, [], n_frames=60)
    assert clip_of(mute, 5, 50)[0].audio == "none"
    write_film(short, [Sound(wave=beep(1, 0.5))], n_frames=150)
    clip, _ = clip_of(short, 90, 150)
    assert clip.audio == "none"
    with av.open(io.BytesIO(clip.mp4), mode="r") as container:
        assert not container.streams.audio
    # The audio track lasts as long as the pictures.
    path = tmp_path / "short.mp4"
    write_film(path, [Sound(wave=beep(3, BEEP_S))], n_frames=150)
    clip, meant_s = clip_of(path, 30, 150, audio="copy")
    assert clip.audio == "aac"
    assert onset_s(clip.mp4) == pytest.approx(meant_s, abs=0.001)
    with av.open(io.BytesIO(clip.mp4), mode="r") as container:
        stream = container.streams.audio[0]
        assert stream.duration is not None
        assert stream.time_base is not None
        extra_s = stream.duration * stream.time_base - Fraction(clip.n_frames) / clip.fps
    assert 0 <= extra_s < Fraction(1024, 48_000)


def test_borders_are_cut_with_the_sound_kept(tmp_path: Path) -> None:
    """Pins sync beside a crop and another frame rate."""
    pictures, sounds, path = (tmp_path / name for name in ("p.mp4", "s.mp4", "film.mp4"))

    def boxed(frame: np.ndarray) -> np.ndarray:
        frame = frame.copy()
        frame[:24], frame[-24:] = 0, 0
        return frame

    film = (boxed(frame) for frame in moving_texture(150, width_px=320, height_px=180))
    write_video(pictures, film, fps=Fraction(30))
    write_film(sounds, [Sound(wave=beep(5, BEEP_S))], n_frames=150)
    with_pictures_of(pictures, sounds, path)
    clip, meant_s = clip_of(path, 40, 110)
    assert (clip.width, clip.height) == (320, 132)
    assert onset_s(clip.mp4) == pytest.approx(meant_s, abs=0.001)
