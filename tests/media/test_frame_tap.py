"""Frames taken on their way: those of the clip as written, whichever way they pass."""

import io
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from film_makers import write_video
from film_shots import moving_texture
from numpy.typing import NDArray
from samples import analyzed

from curator.cut_requests import cut_request
from curator.media.frame_tap import Tap, look_at_clip
from curator.records.clips import Span
from curator.records.cuts import Looked
from curator.stages.cut.clip_cutter import ClipCutter
from curator.stages.cut.config import CutConfig

WANTED = (0, 7, 19)


def _source(path: Path, form: str) -> None:
    frames = moving_texture(40, width_px=192, height_px=108)
    if form == "rotated":
        write_video(path, frames, rotation=90)
    else:
        write_video(path, frames, gop=10, options={"preset": "veryfast"})


def _tap(n_frames: int, first: int = 0) -> Tap:
    return Tap([at for at in WANTED if at < n_frames], longest_px=96)


def _rgb(jpeg: bytes) -> NDArray[np.float64]:
    picture = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    return picture[:, :, ::-1].astype(np.float64)


def _errors(looked: Looked, mp4: bytes, at: int) -> list[float]:
    """Mean difference of a picture to each frame of the written clip."""
    picture = _rgb(looked.jpegs[at])
    with av.open(io.BytesIO(mp4)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    size = picture.shape[1], picture.shape[0]
    small = [cv2.resize(frame, size, interpolation=cv2.INTER_AREA) for frame in frames]
    return [float(np.abs(picture - frame).mean()) for frame in small]


@pytest.mark.parametrize(
    ("form", "mode"), [("plain", "auto"), ("plain", "encode"), ("rotated", "auto")]
)
def test_frames_are_those_of_the_written_clip(tmp_path: Path, form: str, mode: str) -> None:
    """Pins number and picture of frames out of a copy, an encode and a turned source."""
    path = tmp_path / "source.mp4"
    _source(path, form)
    track = analyzed(path)
    request = cut_request(track, "a", Span(start_frame=10, end_frame=32, shot=0))
    with ClipCutter(
        io.BytesIO(path.read_bytes()),
        path.name,
        n_bytes=path.stat().st_size,
        config=CutConfig(mode=mode),  # type: ignore[arg-type]
        max_pixels=10**7,
        decoder_threads=1,
    ) as cutter:
        clip = cutter.cut(request, _tap)
        before = cutter.look(request, _tap)
    assert clip.cut_mode == ("copy" if (form, mode) == ("plain", "auto") else "encode")
    assert clip.looked is not None
    written = look_at_clip(clip.mp4, _tap(clip.n_frames), threads=1)
    # A copy may end before its span does: what is looked at before has all of it.
    assert (clip.first, before.n_frames) == (0, 22)
    assert clip.looked.n_frames == written.n_frames == clip.n_frames
    for looked in (clip.looked, written, before):
        assert tuple(looked.jpegs) == WANTED
        for at in WANTED:
            errors = _errors(looked, clip.mp4, at)
            assert int(np.argmin(errors)) == at
            assert errors[at] < 6
    shape = (96, 54, 3) if form == "rotated" else (54, 96, 3)
    assert _rgb(clip.looked.jpegs[0]).shape == shape


def test_text_is_read_at_a_size_of_its_own() -> None:
    """Pins what the reader sees, and that nothing is read where nobody asks."""
    sizes: list[tuple[int, ...]] = []

    def reads(rgb: NDArray[np.uint8]) -> tuple[str, ...]:
        sizes.append(rgb.shape)
        return ("EXIT",)

    picture = av.VideoFrame.from_ndarray(np.zeros((1080, 1920, 3), np.uint8), format="rgb24")
    tap = Tap([1], longest_px=448, reads=reads, read_at=[1, 2])
    for _ in range(3):
        tap.see(picture)
    looked = tap.looked()
    assert sizes == [(720, 1280, 3)]
    assert looked.text == {1: ("EXIT",)}
    assert _rgb(looked.jpegs[1]).shape == (252, 448, 3)
    assert looked.n_frames == 3
