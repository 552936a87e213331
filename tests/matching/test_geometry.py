"""Keypoints of edited pictures agree under the transform that made the edit."""

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from curator.matching.clip_footage import Keypoints, keypoints_of
from curator.matching.geometry import MIN_INLIERS, agreement
from curator.tools.footage.scenes import photograph


def keypoints(picture: NDArray[np.uint8]) -> Keypoints:
    return keypoints_of(
        cv2.imencode(".jpg", np.ascontiguousarray(picture[:, :, ::-1]))[1].tobytes()
    )


def small(file: str) -> NDArray[np.uint8]:
    return cv2.resize(photograph(file)[:338, :], (320, 180), interpolation=cv2.INTER_AREA)


def test_a_crop_has_the_transform_that_made_it() -> None:
    whole = small("coffee.png")
    found = agreement([(keypoints(whole), keypoints(whole[36:126, 80:240]))], mirrored=False)
    assert found is not None
    assert found.n_inliers >= MIN_INLIERS
    # The crop's 160 px are 320 units: twice the size, and its corner is at (80, 36).
    assert found.transform_23 == pytest.approx(np.array([[2, 0, -160], [0, 2, -72]]), abs=3)


def test_only_a_mirrored_picture_agrees_mirrored_and_no_other_picture_at_all() -> None:
    whole = small("coffee.png")
    pair = [(keypoints(whole), keypoints(whole[:, ::-1]))]
    found = agreement(pair, mirrored=True)
    assert found is not None
    assert found.n_inliers > 50
    other = agreement(pair, mirrored=False)
    assert other is None or other.n_inliers < MIN_INLIERS
    # Other pictures do not agree.
    pair = [(keypoints(small("coffee.png")), keypoints(small("chelsea.png")))]
    for mirrored in (False, True):
        found = agreement(pair, mirrored=mirrored)
        assert found is None or found.n_inliers < MIN_INLIERS
    # A turned picture is no copy.
    whole = small("coffee.png")
    assert agreement([(keypoints(whole), keypoints(np.rot90(whole, 2)))], mirrored=False) is None
    # Bytes that are no picture are refused.
    with pytest.raises(ValueError, match="cannot decode a picture of 5 bytes"):
        keypoints_of(b"hello")
