"""Frames of a clip, taken on their way or out of the written clip, as annotators ask for them."""

import io
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
import torch
from film_makers import write_video
from film_shots import coloured_edges, moving_texture
from numpy.typing import NDArray
from samples import analyzed

from curator import stage as stage_contract
from curator.cut_requests import cut_request
from curator.errors import CutError
from curator.loading.window_decoder import ClipWindow, decode_window
from curator.media.clip_frames import READ_PX, FrameSampler, Wanted, sample_clip
from curator.records.clips import Span
from curator.records.cuts import SampledFrames
from curator.stage import ClipFacts, FrameRequest
from curator.stages.cut.clip_cutter import ClipCutter
from curator.stages.cut.config import CutConfig
from curator.stages.derive.camera_track import CameraTrack, CameraTrackConfig
from curator.stages.derive.edges import Edges, EdgesConfig

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


@pytest.mark.parametrize("size", [(64, 64), (320, 180), (400, 400), (75, 75)])
def test_annotators_get_the_pixels_that_trainers_get(size: tuple[int, int], tmp_path: Path) -> None:
    """Pins shrinking, the clip's own size and enlarging; chroma of H.264 is left-sited."""
    write_video(tmp_path / "clip.mp4", coloured_edges(), fps=Fraction(10))
    mp4 = (tmp_path / "clip.mp4").read_bytes()
    sampled = sample_clip(mp4, [Wanted(numbers=(0, 1), size=size)], n_frames=2, threads=1)
    loaded_CTHW = torch.empty((3, 2, size[1], size[0]), dtype=torch.uint8)  # noqa: N806
    window = ClipWindow(
        mp4=mp4, wanted=np.arange(2), rate=Fraction(10), decoder_threads=1, scaled=True, name="a"
    )
    decode_window(window, loaded_CTHW)
    loaded_THWC = loaded_CTHW.numpy().transpose(1, 2, 3, 0)  # noqa: N806 - shape letters
    assert np.array_equal(sampled.pixels[0], loaded_THWC)


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


def test_other_pixels_compute_values_of_frames_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that values of other annotators stay valid."""
    stages = Edges(EdgesConfig()), CameraTrack(CameraTrackConfig())
    before = [stage.versions() for stage in stages]
    monkeypatch.setattr(stage_contract, "FRAMES_VERSION", 1)
    after = [stage.versions() for stage in stages]
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_a_function_that_names_other_frames_is_refused() -> None:
    for wrong in ([], [20], [-1, 3]):
        with pytest.raises(ValueError, match="of a clip of 20 frames"):
            FrameRequest(at=lambda clip, wrong=wrong: wrong).numbers(facts())
