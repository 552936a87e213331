"""Frames of a clip, taken on their way or out of the written clip, as annotators ask for them."""

import io
from fractions import Fraction
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
from curator.errors import CutError
from curator.media.clip_frames import READ_PX, FrameSampler, Wanted, sample_clip
from curator.records.clips import Span
from curator.records.cuts import SampledFrames
from curator.stage import ClipFacts, FrameRequest
from curator.stages.cut.clip_cutter import ClipCutter
from curator.stages.cut.config import CutConfig

WANTED = (0, 7, 19)


def _wanted(n_frames: int) -> list[Wanted]:
    return [Wanted(numbers=tuple(at for at in WANTED if at < n_frames), size=96, form="jpeg")]


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
    frames = moving_texture(40, width_px=192, height_px=108)
    write_video(path, frames, gop=10, rotation=90 if form == "rotated" else None)
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
        clip = cutter.cut(request)
    assert clip.cut_mode == ("copy" if (form, mode) == ("plain", "auto") else "encode")
    sampled = sample_clip(clip.mp4, _wanted(clip.n_frames), n_frames=clip.n_frames, threads=1)
    assert sampled.n_frames == clip.n_frames
    assert tuple(sampled.jpegs) == WANTED
    for at in WANTED:
        errors = _errors(sampled, clip.mp4, at)
        assert int(np.argmin(errors)) == at
        assert errors[at] < 6
    shape = (96, 54, 3) if form == "rotated" else (54, 96, 3)
    assert _rgb(sampled.jpegs[0]).shape == shape


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


HEIGHT, WIDTH, N_FRAMES = 48, 96, 20


@pytest.fixture
def mp4(tmp_path: Path) -> bytes:
    """Twenty frames whose grey says their number; the left quarter is black."""
    frames = []
    for number in range(N_FRAMES):
        frame = np.full((HEIGHT, WIDTH, 3), 40 + 8 * number, np.uint8)
        frame[:, : WIDTH // 4] = 16
        frames.append(frame)
    write_video(tmp_path / "clip.mp4", iter(frames), fps=Fraction(10))
    return (tmp_path / "clip.mp4").read_bytes()


def facts() -> ClipFacts:
    return ClipFacts(
        clip_id="a", source_id="b", n_frames=N_FRAMES, fps=Fraction(10), width=WIDTH,
        height=HEIGHT, columns={},
    )  # fmt: skip


def test_one_decode_gives_the_frames_of_all_requests_or_an_error(mp4: bytes) -> None:
    wanted = [
        Wanted(numbers=(3, 17), size=(WIDTH, HEIGHT)),
        Wanted(numbers=(2, 5), size=48, form="jpeg"),
        Wanted(numbers=(0,), size=(16, 16)),
    ]
    sampled = sample_clip(mp4, wanted, n_frames=N_FRAMES, threads=1)
    whole, square = sampled.pixels
    assert list(sampled.jpegs) == [2, 5]
    assert sampled.n_frames == N_FRAMES
    assert (whole.shape, square.shape) == ((2, HEIGHT, WIDTH, 3), (1, 16, 16, 3))
    np.testing.assert_allclose(whole[:, :, WIDTH // 2 :].mean((1, 2, 3)), (64, 176), atol=3)
    # The crop is of the middle: none of the black quarter is in it.
    np.testing.assert_allclose(square.mean(), 40, atol=3)
    # A clip with fewer frames than were written is an error.
    late = Wanted(numbers=(N_FRAMES,), size=(16, 16))
    with pytest.raises(CutError, match="of 21 frames decodes to 20"):
        sample_clip(mp4, [late], n_frames=N_FRAMES + 1, threads=1)
    with pytest.raises(CutError, match="does not decode"):
        sample_clip(mp4[:200], [late], n_frames=N_FRAMES, threads=1)


def first_and_last(clip: ClipFacts) -> list[int]:
    return [clip.n_frames - 1, 0, 0]


@pytest.mark.parametrize(
    ("request_", "numbers", "size"),
    [
        (FrameRequest(), list(range(20)), (96, 48)),
        (FrameRequest(at=2.0, size=48), [2, 7, 12, 17], (48, 24)),
        (FrameRequest(at=100.0, size=(32, 32)), list(range(20)), (32, 32)),
        (FrameRequest(at=first_and_last, size=960), [0, 19], (96, 48)),
        (FrameRequest(at=0.01), [10], (96, 48)),
    ],
)
def test_a_request_names_frames_and_their_size(
    request_: FrameRequest, numbers: list[int], size: tuple[int, int]
) -> None:
    assert request_.numbers(facts()) == numbers
    assert request_.size_of(facts()) == size


def test_a_function_that_names_other_frames_is_refused() -> None:
    for wrong in ([], [20], [-1, 3]):
        with pytest.raises(ValueError, match="of a clip of 20 frames"):
            FrameRequest(at=lambda clip, wrong=wrong: wrong).numbers(facts())
