"""Pins the truth that other tests and the demo rely on: spans, frame counts, times and damage."""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import film_makers as write
import numpy as np
import pytest
from film_shots import PHOTOGRAPHS, pan, photograph, static, texture, zoom

from curator.errors import UsageError
from curator.footage import scenes
from curator.footage.demo_films import make_demo, phone_pts, studio, tour
from curator.footage.scenes import Edit, Picture, ShotSpec, Sprite, View, render_shot

SIZE = {"width_px": 96, "height_px": 54}


def decoded(path: Path) -> list[av.VideoFrame]:
    """Every frame that decodes, as a reader gets them that skips what does not."""
    frames: list[av.VideoFrame] = []
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            try:
                frames += packet.decode()
            except av.FFmpegError:
                continue
    return frames


def times(path: Path) -> list[Fraction]:
    return [frame.pts * frame.time_base for frame in decoded(path)]


def made(maker: Callable[[Path], None], path: Path) -> Path:
    maker(path)
    return path


def plain(value: int, n_frames: int) -> ShotSpec:
    return ShotSpec(picture=np.full((90, 160, 3), value, np.uint8), n_frames=n_frames, grain=0)


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_photographs_are_in_the_wheel(name: str) -> None:
    picture = photograph(name)
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3
    assert min(picture.shape[:2]) >= 300


def test_missing_scikit_image_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    scenes.photograph.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"uv pip install '\.\[demo\]'"):
        photograph("cat")


def test_texture_is_a_function_of_its_seed() -> None:
    assert np.array_equal(texture(3), texture(3))
    assert not np.array_equal(texture(3), texture(4))


def test_static_shot_without_grain_repeats_one_frame() -> None:
    shot = replace(static(texture(0), 5), grain=0.0)
    frames = list(render_shot(shot, **SIZE))
    assert len(frames) == 5
    assert all(np.array_equal(frame, frames[0]) for frame in frames)


def test_grain_has_the_deviation_that_was_asked_for() -> None:
    clean = next(render_shot(plain(128, 1), **SIZE)).astype(float)
    grainy = next(render_shot(replace(plain(128, 1), grain=4.0), **SIZE))
    assert (grainy - clean).std() == pytest.approx(4, rel=0.1)


def test_pan_moves_evenly_by_parts_of_a_pixel() -> None:
    ramp = np.repeat(np.linspace(0, 250, 640)[None, :, None], 360, axis=0).repeat(3, axis=2)
    shot = replace(pan(ramp.astype(np.uint8), 41, span=0.8), grain=0.0)
    means = np.array([frame.mean() for frame in render_shot(shot, **SIZE)])
    steps = np.diff(means)
    assert means[-1] - means[0] == pytest.approx(50, abs=1)
    assert np.allclose(steps, 50 / 40, atol=0.25)


def test_zoom_keeps_its_centre_and_ends_on_the_span() -> None:
    board = np.zeros((360, 640, 3), np.uint8)
    board[90:270, 160:480] = 255
    first, *_, last = render_shot(replace(zoom(board, 9, span=(1, 0.5)), grain=0.0), **SIZE)
    assert first.mean() == pytest.approx(255 / 4, abs=6)
    assert last.mean() > 250


def test_only_films_the_frames_that_are_named() -> None:
    shot = replace(zoom(texture(1), 20), grain=0.0)
    every = list(render_shot(shot, **SIZE))
    some = list(render_shot(shot, only=[0, 3, 19], **SIZE))
    assert all(np.array_equal(a, every[i]) for a, i in zip(some, [0, 3, 19], strict=True))


def test_sprite_crosses_the_frame() -> None:
    coin = np.full((20, 20, 3), 255, np.uint8)
    shot = replace(plain(0, 3), sprites=(Sprite(patch=coin, start=(0.25, 0.5), end=(0.75, 0.5)),))
    columns = [frame[:, :, 0].sum(axis=0) for frame in render_shot(shot, **SIZE)]
    centres = [float((c * (np.arange(96) + 0.5)).sum() / c.sum()) for c in columns]
    assert centres == pytest.approx([24, 48, 72], abs=0.6)


def test_letterbox_is_black_outside_the_active_picture() -> None:
    shot = replace(plain(200, 1), picture_aspect=Fraction(239, 100))
    frame = next(render_shot(shot, width_px=960, height_px=540))
    assert frame[:68].max() == 0
    assert frame[470:].max() == 0
    assert frame[68:470].min() >= 199


def test_edit_truth_and_every_frame_agree() -> None:
    shots = [plain(100, 10), plain(180, 12), plain(60, 14), plain(220, 9)]
    edit = Edit(shots=shots, dissolves=[0, 4, 0], **SIZE)
    assert edit.spans() == [(0, 10), (10, 18), (22, 32), (32, 41)]
    levels = [round(float(frame.mean())) for frame in edit.frames()]
    assert levels[:10] == [100] * 10
    assert levels[10:18] == [180] * 8
    assert levels[18:22] == [156, 132, 108, 84]
    assert levels[22:32] == [60] * 10
    assert levels[32:] == [220] * 9


def test_edit_refuses_what_has_no_truth() -> None:
    shots = [plain(1, 10), plain(2, 4)]
    with pytest.raises(ValueError, match="2 shots need 1 dissolves or zeros, not 0"):
        Edit(shots=shots, dissolves=[])
    with pytest.raises(ValueError, match="shot 1 is all transition"):
        Edit(shots=shots, dissolves=[4])
    with pytest.raises(ValueError, match="must be in"):
        View(x=1.2)


def test_demo_films_have_these_cuts() -> None:
    assert tour().spans() == [(0, 150), (150, 270), (270, 402), (420, 552), (552, 702), (702, 882)]
    assert studio().spans() == [(0, 150), (150, 270), (270, 450), (450, 600)]


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv", ".webm", ".ts", ".avi"])
def test_constant_rate_in_each_container(tmp_path: Path, suffix: str) -> None:
    at = times(made(write.constant_rate, tmp_path / f"film{suffix}"))
    unit = {".mkv": Fraction(1, 1000), ".webm": Fraction(1, 1000)}.get(suffix, Fraction(0))
    assert len(at) == write.N_FRAMES
    assert all(abs(t - at[0] - Fraction(i, 30)) <= unit for i, t in enumerate(at))


@pytest.mark.parametrize("suffix", [".mp4", ".mov"])
def test_variable_times_are_exact(tmp_path: Path, suffix: str) -> None:
    at = times(made(write.variable_rate, tmp_path / f"film{suffix}"))
    pts = write.variable_pts(write.N_FRAMES)
    assert at == [t * write.VARIABLE_TIME_BASE for t in pts]
    assert {b - a for a, b in pairwise(pts)} == {10, 15, 20, 35}


def test_pts_and_frames_must_match(tmp_path: Path) -> None:
    frames = list(write.moving_texture(3))
    with pytest.raises(ValueError, match="more frames than the 2 pts"):
        write.write_video(tmp_path / "a.mp4", frames, pts=[0, 1], time_base=Fraction(1, 30))
    with pytest.raises(ValueError, match="3 frames and 4 pts"):
        write.write_video(tmp_path / "b.mp4", frames, pts=[0, 1, 2, 3], time_base=Fraction(1, 30))
    with pytest.raises(ValueError, match="go together"):
        write.write_video(tmp_path / "c.mp4", frames, pts=[0, 1, 2])
    with pytest.raises(ValueError, match="suffix must be one of"):
        write.write_video(tmp_path / "d.gif", frames)
    with pytest.raises(ValueError, match="no frames"):
        write.write_video(tmp_path / "e.mp4", [])


def test_colours_survive(tmp_path: Path) -> None:
    picture: Picture = np.empty((180, 320, 3), np.uint8)
    picture[:] = (200, 60, 40)
    write.write_video(tmp_path / "film.mp4", [picture] * 3)
    shown = decoded(tmp_path / "film.mp4")[0].to_ndarray(format="rgb24")
    assert np.abs(shown.mean(axis=(0, 1)) - (200, 60, 40)).max() < 4


@pytest.mark.parametrize("name", write.MAKERS)
def test_makers_repeat_their_bytes(tmp_path: Path, name: str) -> None:
    first, second = tmp_path / name, tmp_path / f"again_{name}"
    assert made(write.MAKERS[name], first).read_bytes() == (
        made(write.MAKERS[name], second).read_bytes()
    )


@pytest.mark.parametrize("name", ["empty.mp4", "text.mp4", "index_missing.mp4"])
def test_files_that_do_not_open(tmp_path: Path, name: str) -> None:
    path = made(write.MAKERS[name], tmp_path / name)
    with pytest.raises(av.InvalidDataError):
        av.open(str(path))


def test_files_without_frames(tmp_path: Path) -> None:
    with av.open(str(made(write.audio_only, tmp_path / "a.mp4"))) as container:
        assert [stream.type for stream in container.streams] == ["audio"]
    path = made(write.zero_frames, tmp_path / "z.mp4")
    with av.open(str(path)) as container:
        assert [stream.type for stream in container.streams] == ["video"]
    assert decoded(path) == []


def test_png_is_not_a_video_container(tmp_path: Path) -> None:
    with av.open(str(made(write.png_file, tmp_path / "png.mp4"))) as container:
        assert container.format.name == "png_pipe"


def test_small_files(tmp_path: Path) -> None:
    assert len(decoded(made(write.one_frame, tmp_path / "one.mp4"))) == 1
    frames = decoded(made(write.one_pixel, tmp_path / "pixel.mp4"))
    assert len(frames) == write.N_FRAMES
    assert (frames[0].width, frames[0].height) == (1, 1)


def test_truncated_film_keeps_some_frames(tmp_path: Path) -> None:
    path = made(write.truncated, tmp_path / "film.mp4")
    with av.open(str(path)) as container:
        assert container.streams.video[0].frames == write.N_FRAMES
    assert 5 < len(decoded(path)) < write.N_FRAMES - 5


def test_flip_bytes_changes_exactly_n_after_the_start(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(1000))
    write.flip_bytes(path, 40, seed=5, start_fraction=0.5)
    changed = [i for i, byte in enumerate(path.read_bytes()) if byte != 0]
    assert len(changed) == 40
    assert min(changed) >= 500


def test_flipped_film_opens_and_differs(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.mp4", tmp_path / "bad.mp4"
    write.write_video(
        good, write.moving_texture(write.N_FRAMES), mux_options={"movflags": "faststart"}
    )
    write.flipped(bad)
    pictures = [[f.to_ndarray(format="gray") for f in decoded(p)] for p in (good, bad)]
    assert len(pictures[1]) > 0
    assert len(pictures[0]) != len(pictures[1]) or not np.array_equal(pictures[0], pictures[1])


@pytest.mark.parametrize(
    ("name", "stated_s"),
    [
        ("constant_rate.mp4", 1.6),
        ("duration_too_short.mp4", 0.4),
        ("duration_too_long.mkv", 16.0),
        ("audio_outlasts_video.mp4", 4.0),
    ],
)
def test_stated_durations(tmp_path: Path, name: str, stated_s: float) -> None:
    path = made(write.MAKERS[name], tmp_path / name)
    with av.open(str(path)) as container:
        assert container.duration is not None
        assert container.duration / av.time_base == pytest.approx(stated_s, abs=0.03)
    assert len(decoded(path)) == write.N_FRAMES


def test_header_promises_too_much_in_mp4(tmp_path: Path) -> None:
    true, lying = (tmp_path / name for name in ("true.mp4", "lying.mp4"))
    write.constant_rate(true)
    write.duration_too_long(lying)
    differing = sum(a != b for a, b in zip(true.read_bytes(), lying.read_bytes(), strict=True))
    assert 3 <= differing <= 12
    assert len(decoded(lying)) == write.N_FRAMES


@pytest.mark.parametrize("degrees", [90, 180, 270])
@pytest.mark.parametrize("suffix", [".mp4", ".mov"])
def test_rotation_reads_back(tmp_path: Path, suffix: str, degrees: int) -> None:
    path = tmp_path / f"film{suffix}"
    write.write_video(path, write.moving_texture(2), rotation=degrees, audio_tone_s=0.1)
    counter_clockwise = decoded(path)[0].rotation
    assert (-counter_clockwise) % 360 == degrees


def test_interlaced_frames_say_so(tmp_path: Path) -> None:
    frames = decoded(made(write.interlaced, tmp_path / "film.mp4"))
    assert len(frames) == write.N_FRAMES
    assert all(frame.interlaced_frame for frame in frames)


def test_ten_bit_pixel_format(tmp_path: Path) -> None:
    frames = decoded(made(write.ten_bit, tmp_path / "film.mp4"))
    assert frames[0].format.name == "yuv420p10le"


def test_b_frames_are_hidden_by_an_edit_list(tmp_path: Path) -> None:
    path = made(write.b_frames, tmp_path / "film.mp4")
    with av.open(str(path)) as container:
        packets = [p for p in container.demux(video=0) if p.pts is not None]
    assert any(p.pts != p.dts for p in packets)
    assert min(p.dts for p in packets) < 0
    assert times(path)[0] == 0
    assert b"elst" in path.read_bytes()


def test_open_gop_has_leading_pictures(tmp_path: Path) -> None:
    path = made(write.open_gop, tmp_path / "film.mp4")
    with av.open(str(path)) as container:
        packets = [p for p in container.demux(video=0) if p.pts is not None]
    later_keys = [i for i, p in enumerate(packets) if p.is_keyframe and i > 0]
    assert len(later_keys) >= 2
    assert all(packets[i + 1].pts < packets[i].pts for i in later_keys)


def test_gop_and_b_frame_settings_hold(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    options = {"sc_threshold": "0"}
    write.write_video(path, write.moving_texture(40), gop=8, bframes=0, options=options)
    with av.open(str(path)) as container:
        packets = [p for p in container.demux(video=0) if p.pts is not None]
    assert [i for i, p in enumerate(packets) if p.is_keyframe] == [0, 8, 16, 24, 32]
    assert all(p.pts == p.dts for p in packets)


def test_demo_is_complete_true_and_repeatable(tmp_path: Path) -> None:
    files = {path.name: what for path, what in make_demo(tmp_path / "a", height_px=108)}
    make_demo(tmp_path / "b", height_px=108)
    assert sorted(files) == sorted(path.name for path in (tmp_path / "a").iterdir())
    assert set(files) == {
        "tour.mp4",
        "café copy.mp4",
        "studio.mkv",
        "phone.mov",
        "broken upload.mp4",
        "notes.mp4",
    }
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    n_frames = {name: len(decoded(tmp_path / "a" / name)) for name in files if name != "notes.mp4"}
    assert n_frames["tour.mp4"] == tour().spans()[-1][1] == 882
    assert n_frames["studio.mkv"] == studio().spans()[-1][1] == 600
    assert n_frames["café copy.mp4"] == 120
    assert times(tmp_path / "a" / "phone.mov") == [Fraction(t, 60) for t in phone_pts(300)]
    assert 30 < n_frames["broken upload.mp4"] < 150
    broken = f"the header says 150 frames and {n_frames['broken upload.mp4']} are there"
    assert files["broken upload.mp4"].endswith(broken)
    with pytest.raises(av.InvalidDataError):
        av.open(str(tmp_path / "a" / "notes.mp4"))


def test_demo_refuses_a_height_without_even_sizes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="multiple of 108, not 500"):
        make_demo(tmp_path, height_px=500)
