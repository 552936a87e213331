"""Written windows: each frame is the one that FFmpeg's own filter shows at that time."""

from pathlib import Path

import pytest
from made_cuts import cutter_of, pictures
from numbered_films import number_of, numbered_film, shown_by_ffmpeg, windows_of

from curator.cut_requests import cut_request, windowed
from curator.stages.cut.config import CutConfig


@pytest.mark.parametrize(
    ("rate", "suffix", "window"),
    [("30000/1001", ".mp4", "33@16"), ("vfr", ".mkv", "33@24"), ("25", ".mkv", "33")],
)
def test_a_window_has_the_frames_that_ffmpeg_shows(
    rate: str, suffix: str, window: str, tmp_path: Path
) -> None:
    path = tmp_path / f"film{suffix}"
    track = numbered_film(path, rate, 130)
    made = windows_of(track, window)
    assert sum(w.n_written == 33 for w in made) >= 2
    cutter = cutter_of(path, CutConfig(preset="ultrafast"))
    for w in made[:2]:
        request = windowed(cut_request(track, "clip", w), fps=w.fps, n_frames=w.n_written)
        clip = cutter.cut(request)
        assert (clip.n_frames, clip.fps) == (33, w.fps)
        numbers = [number_of(picture) for picture in pictures(clip.mp4)]
        start_pts = int(track.frame_pts[w.start_frame])
        assert numbers == shown_by_ffmpeg(path, start_pts, w.fps, 33)
        assert numbers[0] == w.start_frame


@pytest.mark.parametrize(("gop", "mode"), [(33, "copy"), (32, "encode_head")])
def test_a_window_on_key_frames_is_copied_and_any_other_is_whole(
    gop: int, mode: str, tmp_path: Path
) -> None:
    """Pins that no copy of a window leaves a frame out."""
    path = tmp_path / "film.mp4"
    track = numbered_film(path, "25", 100, gop)
    w = windows_of(track, "33")[1]
    request = windowed(cut_request(track, "clip", w), fps=w.fps, n_frames=w.n_written)
    clip = cutter_of(path, CutConfig(preset="ultrafast")).cut(request)
    assert (clip.cut_mode, clip.n_frames) == (mode, 33), clip.not_copied
    assert [number_of(picture) for picture in pictures(clip.mp4)] == list(range(33, 66))
