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
from curator.media.clip_frames import READ_PX, FrameSampler, Wanted, sample_clip
from curator.records.clips import Span
from curator.records.cuts import SampledFrames
from curator.stages.cut.clip_cutter import ClipCutter
from curator.stages.cut.config import CutConfig

WANTED = (0, 7, 19)


def _source(path: Path, form: str) -> None:
    frames = moving_texture(40, width_px=192, height_px=108)
    if form == "rotated":
        write_video(path, frames, rotation=90)
    else:
        write_video(path, frames, gop=10, options={"preset": "veryfast"})


def _wanted(n_frames: int) -> list[Wanted]:
    return [Wanted(numbers=tuple(at for at in WANTED if at < n_frames), size=96, form="jpeg")]


def _sampler(n_frames: int, first: int) -> FrameSampler:
    return FrameSampler(_wanted(n_frames))


def _rgb(jpeg: bytes) -> NDArray[np.float64]:
    picture = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    return picture[:, :, ::-1].astype(np.float64)


def _errors(sampled: SampledFrames, mp4: bytes, at: int) -> list[float]:
    """Mean difference of a picture to each frame of the written clip."""
    picture = _rgb(sampled.jpegs[at])
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
        clip = cutter.cut(request, _sampler)
        before = cutter.look(request, _sampler)
    assert clip.cut_mode == ("copy" if (form, mode) == ("plain", "auto") else "encode")
    assert clip.sampled is not None
    written = sample_clip(clip.mp4, _wanted(clip.n_frames), n_frames=clip.n_frames, threads=1)
    # A copy may end before its span does: what is looked at before has all of it.
    assert (clip.first, before.n_frames) == (0, 22)
    assert clip.sampled.n_frames == written.n_frames == clip.n_frames
    for sampled in (clip.sampled, written, before):
        assert tuple(sampled.jpegs) == WANTED
        for at in WANTED:
            errors = _errors(sampled, clip.mp4, at)
            assert int(np.argmin(errors)) == at
            assert errors[at] < 6
    shape = (96, 54, 3) if form == "rotated" else (54, 96, 3)
    assert _rgb(clip.sampled.jpegs[0]).shape == shape


def test_text_is_read_at_a_size_of_its_own() -> None:
    """Pins what the reader sees, and that nothing is read where nobody asks."""
    sizes: list[tuple[int, ...]] = []

    def reads(rgb: NDArray[np.uint8]) -> tuple[str, ...]:
        sizes.append(rgb.shape)
        return ("EXIT",)

    picture = av.VideoFrame.from_ndarray(np.zeros((1080, 1920, 3), np.uint8), format="rgb24")
    wanted = [
        Wanted(numbers=(1,), size=448, form="jpeg"),
        Wanted(numbers=(1,), size=READ_PX, form="text"),
    ]
    sampler = FrameSampler(wanted, reads)  # type: ignore[arg-type]
    for _ in range(3):
        sampler.see(picture)
    sampled = sampler.sampled()
    assert sizes == [(720, 1280, 3)]
    assert sampled.text == {1: ("EXIT",)}
    assert _rgb(sampled.jpegs[1]).shape == (252, 448, 3)
    assert sampled.n_frames == 3
