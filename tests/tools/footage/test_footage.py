"""Pins the truth that other tests and the demo rely on: spans, frame counts, times and damage."""

import importlib.util
import re
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from curator.errors import UsageError
from curator.installation import install_extra
from curator.tools.footage import scenes
from curator.tools.footage.demo_films import make_demo, phone_pts, studio, tour
from curator.tools.footage.scenes import Edit, ShotSpec

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


def plain(value: int, n_frames: int) -> ShotSpec:
    return ShotSpec(picture=np.full((90, 160, 3), value, np.uint8), n_frames=n_frames, grain=0)


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


def test_demo_films_have_these_cuts() -> None:
    assert tour().spans() == [(0, 150), (150, 270), (270, 402), (420, 552), (552, 702), (702, 882)]
    assert studio().spans() == [(0, 150), (150, 270), (270, 450), (450, 600)]


def test_demo_is_complete_true_and_repeatable(tmp_path: Path) -> None:
    files = {path.name: what for path, what in make_demo(tmp_path / "a", height_px=108)}
    make_demo(tmp_path / "b", height_px=108)
    assert sorted(files) == sorted(path.name for path in (tmp_path / "a").iterdir())
    assert " ".join(sorted(files)) == (
        "broken upload.mp4 café copy.mp4 notes.mp4 phone.mov studio.mkv tour.mp4"
    )
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


def test_demo_refuses_a_height_without_even_sizes_and_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="multiple of 108, not 500"):
        make_demo(tmp_path, height_px=500)
    scenes.photograph.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=re.escape(install_extra("demo"))):
        make_demo(tmp_path)
