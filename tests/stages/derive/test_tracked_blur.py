"""A blur that follows boxes: which frames and places of a clip are blurred."""

from fractions import Fraction

import numpy as np
import pytest

from curator.errors import CutError
from curator.stage import ClipFrames
from curator.stages.derive.tracked_blur import (
    Boxes,
    Frame,
    TrackedBlur,
    TrackedBlurConfig,
    linked,
    with_blur,
    with_missed,
)

SIDE = 40
Places = dict[int, tuple[int, int]]


class BlurDots(TrackedBlur[TrackedBlurConfig]):
    """Finds red; misses it in frames whose first pixel is blue."""

    name, version, config_type = "dots", 1, TrackedBlurConfig
    seen = 0

    def boxes(self, frame_HW3: Frame) -> Boxes:  # noqa: N803 - shape letters
        self.seen += 1
        rows, columns = np.nonzero(frame_HW3[:, :, 0] == 255)
        if not len(rows) or frame_HW3[0, 0, 2]:
            return np.zeros((0, 5), np.float32)
        box = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
        return np.array([[*(np.array(box) / SIDE), 0.9]], np.float32)


def film(n_frames: int, places: Places, *, missed: tuple[int, ...] = ()) -> list[Frame]:
    """Frames with a striped red square of 6 px at the places (left, top) of some frames."""
    frames = []
    for number in range(n_frames):
        frame = np.zeros((SIDE, SIDE, 3), np.uint8)
        frame[..., 1] = 7
        if number in places:
            left, top = places[number]
            frame[top : top + 6, left : left + 6 : 2, 0] = 255
            frame[top : top + 6, left + 5, 0] = 255
        frame[0, 0, 2] = 255 * (number in missed)
        frames.append(frame)
    return frames


def blurred(frames: list[Frame], **config: float) -> list[Frame]:
    stage = BlurDots(TrackedBlurConfig.model_validate(config))
    unit = ClipFrames(clip_id="x", fps=Fraction(25), frames=iter(frames))
    made = list(stage.process(unit))
    assert len(made) == len(frames)
    assert all(frame.shape == (SIDE, SIDE, 3) for frame in made)
    return made


@pytest.mark.parametrize("n_frames", [1, 2, 4, 5, 8, 9, 17, 18])
def test_a_moving_thing_is_blurred_in_every_frame(n_frames: int) -> None:
    """Pins interpolation between samples, and the last frames of clips of all lengths."""
    places = {n: (2 + n, 20 - n) for n in range(n_frames)}
    frames = film(n_frames, places)
    for frame in blurred(frames, every_frames=4):
        assert frame[..., 0].max() < 250
    # Nothing else changes: the corner is far from the square.
    for before, after in zip(frames, blurred(frames, every_frames=4), strict=True):
        np.testing.assert_array_equal(before[30:], after[30:])


def test_a_missed_sample_and_the_frames_around_a_lone_one_are_blurred() -> None:
    """Pins what is found before, in and after a sample in which the detector fails."""
    places = dict.fromkeys(range(13), (10, 10))
    for frame in blurred(film(13, places, missed=(4,)), every_frames=4):
        assert frame[..., 0].max() < 250
    # It appears after sample 4 and is gone before sample 12.
    places = dict.fromkeys(range(5, 12), (10, 10))
    for frame in blurred(film(16, places), every_frames=4):
        assert frame[..., 0].max() < 250


@pytest.mark.parametrize("n_frames", [2, 4, 5, 6])
def test_what_the_last_sample_misses_is_blurred(n_frames: int) -> None:
    places = dict.fromkeys(range(n_frames), (10, 10))
    for frame in blurred(film(n_frames, places, missed=(n_frames - 1,)), every_frames=4):
        assert frame[..., 0].max() < 250


@pytest.mark.parametrize("wrong", [[[np.nan] * 4], [[9, 9, 20, 20]], [[0.5, 0, 0.2, 1]], [0.1] * 4])
def test_what_is_no_box_is_refused(wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that a detector in pixels does not leave frames as they are."""
    monkeypatch.setattr(BlurDots, "boxes", lambda self, frame: np.array(wrong, np.float32))
    with pytest.raises(CutError, match=r"dots.*expected"):
        blurred(film(3, {}))


def test_boxes_beyond_the_picture_change_nothing_else() -> None:
    frame = np.random.default_rng(0).integers(0, 255, (SIDE, SIDE, 3)).astype(np.uint8)
    for beyond in ([-0.5, -0.5, -0.2, -0.2], [1.5, 0, 1.8, 1], [0, -0.9, 1, -0.5]):
        made = with_blur(frame, [np.array(beyond, np.float32)], 0.25)
        np.testing.assert_array_equal(made, frame)


def test_frames_without_a_find_stay_as_they_are() -> None:
    frames = film(20, {17: (5, 5)})
    made = blurred(frames, every_frames=4)
    for number in range(12):
        np.testing.assert_array_equal(made[number], frames[number])
    assert blurred([]) == []


def test_the_detector_sees_every_nth_frame_and_the_last() -> None:
    stage = BlurDots(TrackedBlurConfig(every_frames=4))
    list(stage.process(ClipFrames(clip_id="x", fps=Fraction(25), frames=iter(film(20, {})))))
    assert stage.seen == 6


def test_links_go_to_the_nearest_box_of_about_the_size() -> None:
    first = np.array([[0.1, 0.1, 0.2, 0.2], [0.5, 0.5, 0.7, 0.7]], np.float32)
    second = np.array(
        [[0.52, 0.5, 0.72, 0.7], [0.12, 0.1, 0.22, 0.2], [0.1, 0.1, 0.5, 0.5]], np.float32
    )
    assert sorted(linked(first, second)) == [(0, 1), (1, 0)]
    assert linked(first[:1], second[:1]) == []
    assert linked(first[:0], second) == []
    between = with_missed(first, first[:1], second)
    np.testing.assert_allclose(between, [first[0], [0.51, 0.5, 0.71, 0.7]], atol=1e-6)
