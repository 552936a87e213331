"""Change from frame to frame: what counts as change, and how far it looks."""

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from curator.measures.change import CHANGES, REACH, ChangeStream

Frames = NDArray[np.uint8]


def picture(seed: int) -> Frames:
    """A soft random picture, 54 x 96, of which films show 27 x 48."""
    noise = np.random.default_rng(seed).integers(0, 256, (54, 96, 3)).astype(np.uint8)
    return np.asarray(cv2.normalize(cv2.blur(noise, (9, 9)), None, 0, 255, cv2.NORM_MINMAX))


def view(source: Frames, x: int = 20, y: int = 10) -> Frames:
    return np.ascontiguousarray(source[y : y + 27, x : x + 48])


def changes(frames: list[Frames]) -> dict[str, NDArray[np.float32]]:
    stream = ChangeStream()
    for frame in frames:
        stream.push(frame)
    return stream.finish()


def test_nothing_changes_in_a_still_film() -> None:
    values = changes([view(picture(1))] * 40)
    assert set(values) == set(CHANGES)
    for column in values.values():
        assert column.dtype == np.float32
        assert column.tolist() == [0.0] * 40


def test_a_cut_is_a_step_at_the_last_frame_before_it() -> None:
    values = changes([view(picture(1))] * 20 + [view(picture(2))] * 20)
    assert np.flatnonzero(values["step"]).tolist() == [19]
    assert np.flatnonzero(values["step_3"]).tolist() == [18, 19, 20]
    assert np.flatnonzero(values["step_13"]).tolist() == list(range(13, 26))
    assert values["net_24"][19] > 0.7


def test_a_pan_of_a_pixel_a_frame_is_hardly_a_step() -> None:
    """Pins that motion is compensated: the same pan, taken as differences, is large."""
    source = picture(3)
    frames = [view(source, x=x) for x in range(40)]
    values = changes(frames)
    plain = np.abs(frames[20].astype(int) - frames[21]).mean()
    assert values["step"].max() < 0.1 * plain


def test_a_flash_does_not_last() -> None:
    """Pins that two white frames step up and back, and that six frames farther nothing differs."""
    frames = [view(picture(4))] * 40
    frames[20:22] = [np.full_like(frames[0], 255)] * 2
    values = changes(frames)
    assert np.flatnonzero(values["step"]).tolist() == [19, 21]
    assert values["step_13"][19:22].tolist() == [0.0, 0.0, 0.0]


def test_a_change_of_exposure_is_no_change_of_contrast() -> None:
    frame = view(picture(5)) // 2
    values = changes([frame] * 30 + [frame * 2] * 30)
    assert values["step"][29] > 10
    assert values["net_24"].max() < 0.05


def test_values_depend_on_frames_within_reach_only() -> None:
    """Pins what joining segments relies on, to the bit."""
    frames = [view(picture(seed)) for seed in range(60)]
    whole, part = changes(frames), changes(frames[10:50])
    for name, column in whole.items():
        np.testing.assert_array_equal(
            column[10 + REACH : 50 - REACH], part[name][REACH:-REACH], err_msg=name
        )


@pytest.mark.parametrize("n_frames", [0, 1, 2, REACH, REACH + 1, 2 * REACH + 2])
def test_every_frame_has_a_value(n_frames: int) -> None:
    values = changes([view(picture(n)) for n in range(n_frames)])
    assert {len(column) for column in values.values()} == {n_frames}
    assert all(np.isfinite(column).all() for column in values.values())
