"""Agreement of what changes in the pictures of two aligned clips.

The background of a fixed camera agrees at any time. So the mean of a clip's pictures is subtracted
from each picture. The differences must agree at the same moments, and less at other moments.

Shape letters: N pairs of pictures, H, W height and width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from curator.matching.clip_footage import SIDE_PX, Floats, Keypoints
from curator.media.opencv import cv2

_BLUR_PX = 1.2
_MIN_LIKENESS, _LIKENESS_RANGE = 0.3, 0.4
_STILL = 1.2  # spread of what changes, of 255 levels, that compression makes


@dataclass(frozen=True, slots=True, kw_only=True)
class MotionAgreement:
    """What changes in the common part of two clips."""

    aligned: float  # correlation at the same moments, -1 to 1
    # The largest mean correlation when the pictures of b are rotated among each other.
    others: float
    change_a: float  # spread of what changes in a, of 255 levels
    change_b: float  # spread of what changes in b
    likeness: float  # median correlation of whole pictures at the same moments
    # The same, with pictures of b from other moments: high for a fixed camera.
    likeness_others: float
    first: int  # first of the pairs that the values are of: a run in which whole pictures agree
    last: int  # the run's last pair

    @property
    def is_still(self) -> bool:
        """Nothing changes in either clip."""
        return max(self.change_a, self.change_b) < _STILL


def motion_agreement(
    pairs: Sequence[tuple[bytes | Keypoints, bytes | Keypoints]],
    transform_23: NDArray[np.float64],
    *,
    mirrored: bool,
) -> MotionAgreement | None:
    """Compares JPEGs of a and b of the same moments, in order of time.

    Returns:
        None where they have no part in common, or where there are keypoints only.
    """
    jpegs = [(p, q) for p, q in pairs if isinstance(p, bytes) and isinstance(q, bytes)]
    if not jpegs or len(jpegs) < len(pairs):
        return None
    of_a, of_b = [_luma(p) for p, _ in jpegs], [_luma(q) for _, q in jpegs]
    if mirrored:
        of_a = [np.ascontiguousarray(p[:, ::-1]) for p in of_a]
    height, width = of_b[0].shape
    matrix = _in_pixels(transform_23, of_a[0].shape, of_b[0].shape)
    inner = cv2.warpAffine(np.ones_like(of_a[0]), matrix, (width, height)) > 0.99
    if int(inner.sum()) < 40:
        return None
    warped = [cv2.warpAffine(p, matrix, (width, height), flags=cv2.INTER_AREA) for p in of_a]
    a_NP = np.stack([p[inner] for p in warped]).astype(np.float32)
    b_NP = np.stack([p[inner] for p in of_b]).astype(np.float32)
    likeness_N = _likeness(a_NP, b_NP)
    first, last = _run(likeness_N)
    moving_a, moving_b = (_changes(x[first : last + 1]) for x in (a_NP, b_NP))
    n = last - first + 1
    others = [_mean_cosine(moving_a, np.roll(moving_b, shift, 0)) for shift in range(1, n)]
    return MotionAgreement(
        aligned=_mean_cosine(moving_a, moving_b),
        others=max(others, default=0.0),
        change_a=float(moving_a.std()),
        change_b=float(moving_b.std()),
        likeness=float(np.median(likeness_N[first : last + 1])),
        likeness_others=float(
            np.median(_likeness(a_NP[first : last + 1], np.roll(b_NP[first : last + 1], n // 2, 0)))
        ),
        first=first,
        last=last,
    )


def _likeness(a_NP: Floats, b_NP: Floats) -> NDArray[np.float64]:
    """Correlation of whole pictures, pair by pair."""
    pairs = zip(a_NP, b_NP, strict=True)
    return np.array([_cosine(x - x.mean(), y - y.mean()) for x, y in pairs])


def _run(likeness_N: NDArray[np.float64]) -> tuple[int, int]:
    """The longest run of pairs that are about as alike as the best: an insert ends somewhere."""
    is_alike = likeness_N >= max(_MIN_LIKENESS, float(likeness_N.max()) - _LIKENESS_RANGE)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_alike.astype(np.int8), [0]])))
    if not edges.size:
        best = int(likeness_N.argmax())
        return best, best
    begins, ends = edges[::2], edges[1::2]
    longest = int((ends - begins).argmax())
    return int(begins[longest]), int(ends[longest]) - 1


@lru_cache(maxsize=2048)
def _luma(jpeg: bytes) -> Floats:
    picture = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_REDUCED_GRAYSCALE_4)
    if picture is None:
        raise ValueError(f"{len(jpeg)} bytes are no picture that OpenCV reads")
    return np.asarray(cv2.GaussianBlur(picture.astype(np.float32), (0, 0), _BLUR_PX), np.float32)


def _in_pixels(
    transform_23: NDArray[np.float64], a_HW: tuple[int, ...], b_HW: tuple[int, ...]
) -> NDArray[np.float64]:
    """The transform between pictures of other sizes than 320."""
    of_a, of_b = max(a_HW) / SIDE_PX, max(b_HW) / SIDE_PX
    return np.concatenate([transform_23[:, :2] * of_b / of_a, transform_23[:, 2:] * of_b], 1)


def _changes(pictures_NP: Floats) -> Floats:
    """What differs from the clip's mean picture, without changes of the whole picture's luma."""
    apart = pictures_NP - pictures_NP.mean(0)
    return np.asarray(apart - apart.mean(1, keepdims=True), np.float32)


def _mean_cosine(a_NP: Floats, b_NP: Floats) -> float:
    return _cosine(a_NP.ravel(), b_NP.ravel())


def _cosine(x: Floats, y: Floats) -> float:
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y) + 1e-6))
