"""Compares the changes over time in the pictures of two aligned clips.

The background of a fixed camera agrees at any time. So the mean of a clip's pictures is subtracted
from each picture. The differences must agree at the same moments, and less at other moments.

Shape letters: N pairs of pictures, P pixels that both clips show, H, W height and width.
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
_STILL = 1.2  # standard deviation of changes by compression, in 8-bit levels


@dataclass(frozen=True, slots=True, kw_only=True)
class MotionAgreement:
    """Agreement of two clips in the pixels that both show.

    All values come from the pairs `first` to `last`, the longest run with similar pictures.
    """

    aligned: float  # correlation of changes at the same moments, -1 to 1
    others: float  # largest correlation of changes at other moments, for cyclic shifts of b
    change_a: float  # standard deviation of changes in a, in 8-bit levels
    change_b: float  # standard deviation of changes in b, in 8-bit levels
    likeness: float  # median correlation of whole pictures at the same moments
    likeness_others: float  # likewise at other moments: high for a fixed camera
    first: int
    last: int

    @property
    def is_still(self) -> bool:
        """Whether neither clip changes by more than compression explains."""
        return max(self.change_a, self.change_b) < _STILL


def motion_agreement(
    pairs: Sequence[tuple[bytes | Keypoints, bytes | Keypoints]],
    transform_23: NDArray[np.float64],
    *,
    mirrored: bool,
) -> MotionAgreement | None:
    """Compares pictures of a and b at the same moments, in time order; `transform_23` maps a to b.

    Returns:
        None without pairs, if some pictures are keypoints, or if the common part is too small.
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
    """Returns the correlation of the whole pictures of each pair, float64 [N]."""
    pairs = zip(a_NP, b_NP, strict=True)
    return np.array([_cosine(x - x.mean(), y - y.mean()) for x, y in pairs])


def _run(likeness_N: NDArray[np.float64]) -> tuple[int, int]:
    """Returns the longest run of pairs about as alike as the best pair; an insert ends it."""
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
        raise ValueError(f"OpenCV cannot decode a picture of {len(jpeg)} bytes")
    return np.asarray(cv2.GaussianBlur(picture.astype(np.float32), (0, 0), _BLUR_PX), np.float32)


def _in_pixels(
    transform_23: NDArray[np.float64], a_HW: tuple[int, ...], b_HW: tuple[int, ...]
) -> NDArray[np.float64]:
    """Returns the transform in pixels of pictures, instead of units of `Keypoints`."""
    of_a, of_b = max(a_HW) / SIDE_PX, max(b_HW) / SIDE_PX
    return np.concatenate([transform_23[:, :2] * of_b / of_a, transform_23[:, 2:] * of_b], 1)


def _changes(pictures_NP: Floats) -> Floats:
    """Returns differences from the mean picture, without changes of the whole picture's luma."""
    apart = pictures_NP - pictures_NP.mean(0)
    return np.asarray(apart - apart.mean(1, keepdims=True), np.float32)


def _mean_cosine(a_NP: Floats, b_NP: Floats) -> float:
    return _cosine(a_NP.ravel(), b_NP.ravel())


def _cosine(x: Floats, y: Floats) -> float:
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y) + 1e-6))
