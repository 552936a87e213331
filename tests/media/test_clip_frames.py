"""Frames of a written clip, as annotators ask for them."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from film_makers import write_video

from curator.errors import CutError
from curator.media.clip_frames import Wanted, sample_clip
from curator.stage import ClipFacts, FrameRequest

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


def test_one_decode_gives_the_frames_of_all_requests(mp4: bytes) -> None:
    wanted = [
        Wanted(numbers=(3, 17), size=(HEIGHT, WIDTH)),
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


def test_a_clip_with_fewer_frames_than_were_written_is_an_error(mp4: bytes) -> None:
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
        (FrameRequest(), list(range(20)), (48, 96)),
        (FrameRequest(at=2.0, size=48), [2, 7, 12, 17], (24, 48)),
        (FrameRequest(at=100.0, size=(32, 32)), list(range(20)), (32, 32)),
        (FrameRequest(at=first_and_last, size=960), [0, 19], (48, 96)),
        (FrameRequest(at=0.01), [10], (48, 96)),
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
