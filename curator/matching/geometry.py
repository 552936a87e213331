"""Finds the shift and change of size that map the keypoints of one clip to those of another.

A copy shows the same part of the picture all the time. So matches from several pairs of pictures
vote for one transform. Common edits do not rotate pictures, so rotations are refused, unless the
caller asks for quarter turns.

Shape letters: K keypoints of a picture, N matched keypoints.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from curator.matching.clip_footage import Floats, Keypoints
from curator.media.opencv import cv2

MIN_INLIERS = 8  # fewest inliers of shared footage; source: benchmarks/results/duplicates.md
_MAX_RATIO = 0.85  # of the distances to the nearest and the second nearest descriptor
_TOLERANCE_PX = 4.0
_MAX_SCALE = 5.0
_MAX_TURN_DEG = 8.0
_MIN_MATCHES = 6
_PLACE_PX = 2.0  # keypoints in a square of this side are one place

_LAYOUT = np.arange(128).reshape(4, 4, 8)
MIRRORED_128: NDArray[np.int64] = _LAYOUT[::-1][:, :, (-np.arange(8)) % 8].reshape(-1)
"""Indices that turn a descriptor into the descriptor of the mirrored picture."""
NEGATIVE_128: NDArray[np.int64] = _LAYOUT[::-1, ::-1].reshape(-1)
"""Indices that turn a descriptor into that of the negative picture: each gradient points to the
opposite side, and so does the keypoint's orientation, so that only the places are turned."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Agreement:
    """A transform from pictures of a to pictures of b."""

    n_inliers: int  # distinct places of matched keypoints that the transform explains
    transform_23: NDArray[np.float64]  # float64 [2, 3], in the units of `Keypoints`
    mirrored: bool  # whether pictures of a are mirrored before the transform


def agreement(
    pairs: Sequence[tuple[Keypoints, Keypoints]], *, mirrored: bool, may_turn: bool = False
) -> Agreement | None:
    """Finds the similarity transform with the most matched keypoints.

    `pairs` are pictures of a and b at the same moments. With `may_turn`, b may be a by quarter
    turns, and with `mirrored` also upside down: SIFT descriptors do not change by rotations.

    Returns:
        None for fewer than 6 matches, or if the transform rotates or resizes too much.
    """
    matches = [_matched(_mirrored(a) if mirrored else a, b) for a, b in pairs]
    from_N2, to_N2 = (np.concatenate([m[side] for m in matches]) for side in (0, 1))
    if len(from_N2) < _MIN_MATCHES:
        return None
    fit, is_inlier = cv2.estimateAffinePartial2D(
        from_N2, to_N2, method=cv2.RANSAC, ransacReprojThreshold=_TOLERANCE_PX,
        maxIters=500, confidence=0.99, refineIters=3,
    )  # fmt: skip
    if fit is None:
        return None
    transform_23 = np.asarray(fit, np.float64)
    scale = math.hypot(transform_23[0, 0], transform_23[1, 0])
    turn_deg = math.degrees(math.atan2(transform_23[1, 0], transform_23[0, 0]))
    if may_turn:
        turn_deg -= 90 * round(turn_deg / 90)
    if not 1 / _MAX_SCALE <= scale <= _MAX_SCALE or abs(turn_deg) > _MAX_TURN_DEG:
        return None
    inlier_N = is_inlier.ravel().astype(bool)
    places = [
        {tuple(row) for row in np.round(side[inlier_N] / _PLACE_PX).astype(int).tolist()}
        for side in (from_N2, to_N2)
    ]
    return Agreement(
        n_inliers=min(map(len, places)),
        transform_23=transform_23,
        mirrored=mirrored,
    )


def _mirrored(picture: Keypoints) -> Keypoints:
    return replace(
        picture,
        xy_K2=picture.xy_K2 * np.array([-1, 1], np.float32)
        + np.array([picture.width, 0], np.float32),
        descriptors_KD=picture.descriptors_KD[:, MIRRORED_128],
    )


def _matched(a: Keypoints, b: Keypoints) -> tuple[Floats, Floats]:
    """Returns matched keypoints in a and b: mutual nearest neighbours that pass the ratio test."""
    if len(a.xy_K2) < 2 or len(b.xy_K2) < 2:
        nothing = np.zeros((0, 2), np.float32)
        return nothing, nothing
    of_a, of_b = a.descriptors_KD.astype(np.float32), b.descriptors_KD.astype(np.float32)
    squared = np.sum(of_a * of_a, 1)[:, None] + np.sum(of_b * of_b, 1) - 2 * (of_a @ of_b.T)
    nearest = squared.argmin(1)
    two = np.partition(squared, 1, axis=1)[:, :2]
    is_clear = two[:, 0] < _MAX_RATIO**2 * two[:, 1]
    is_mutual = squared.argmin(0)[nearest] == np.arange(len(of_a))
    at_a = np.flatnonzero(is_clear & is_mutual)
    return a.xy_K2[at_a], b.xy_K2[nearest[at_a]]
