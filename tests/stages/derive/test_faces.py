"""`faces` and `blur_faces` on a photograph: columns, and what the detector finds afterwards."""

from fractions import Fraction

import numpy as np
import pytest
from skimage import data

from curator.stage import ClipFacts, ClipFrames, RequestedFrames, SampledClip
from curator.stages.derive.blur_faces import BlurFaces, BlurFacesConfig
from curator.stages.derive.faces import Faces, FacesConfig


def clip(*frames: np.ndarray) -> SampledClip:
    facts = ClipFacts(
        clip_id="0" * 24, source_id="0" * 32, n_frames=len(frames), fps=Fraction(1),
        width=512, height=512, columns={},
    )  # fmt: skip
    shown = RequestedFrames(numbers=tuple(range(len(frames))), pixels=np.stack(frames))
    return SampledClip(facts=facts, requested=(shown,))


def test_columns_say_number_area_and_height() -> None:
    stage = Faces(FacesConfig())
    stage.preflight()
    stage.setup()
    picture, nothing = data.astronaut(), np.zeros((512, 512, 3), np.uint8)
    twice = np.tile(picture[:256, 64:320], (2, 2, 1))
    one, none, four = stage.process([clip(picture, nothing), clip(nothing), clip(twice)])
    assert none == {"face_count": 0, "face_area": 0.0, "face_height": 0.0}
    assert one["face_count"] == 1
    assert 0.15 < one["face_height"] < 0.28
    # The mean of a frame with a face and one without.
    assert one["face_area"] == pytest.approx(0.5 * one["face_height"] * 0.14, rel=0.35)
    assert four["face_count"] == 4


def test_a_blurred_face_is_not_found_again() -> None:
    stage = BlurFaces(BlurFacesConfig())
    stage.preflight()
    stage.setup()
    picture = data.astronaut()
    frames = [np.roll(picture, 3 * n, axis=1) for n in range(6)]
    assert all(len(stage.boxes(frame)) == 1 for frame in frames)
    unit = ClipFrames(clip_id="x", fps=Fraction(25), frames=iter(frames))
    made = list(stage.process(unit))
    assert [len(stage.boxes(frame)) for frame in made] == [0] * 6
    # The rest of the picture is as it was.
    np.testing.assert_array_equal(made[0][300:], frames[0][300:])
