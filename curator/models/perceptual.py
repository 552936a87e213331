"""Describes frames without a network, to find frames that show the same scene.

A frame becomes a small square of luma: uniform borders are removed and the picture is squashed, so
letterboxing and squeezing have no effect. Eleven maps are computed from the square: luma with local
contrast normalised, and at two scales the local strength of the gradient and its orientation
(circular harmonics 2 and 4 of its angle). The lowest spatial frequencies describe each map, under a
window with less weight at the margins, because crops, logos and banners change the margins most.
The descriptor survives re-encoding, rescaling, grading, overlays and moderate crops. It has no
colour, because colour does not survive these edits.

In natural pictures, the spread of these coefficients is nearly a power law of frequency, and the
two scales largely agree. Therefore a formula replaces learned whitening: a gain by frequency, and
the sum and the magnified difference of the scales. Then a signed square root limits the influence
of single coefficients. For 1,000 unrelated photographs (500,000 pairs), the cosine of two frames is
0.02 +- 0.10 and at most 0.61.

A frame without structure (black, a flat colour, a faint gradient) has the zero vector, because it
may belong to any footage.

Shape letters: H, W height and width of a frame, C channels (RGB), D dimensions,
S side of the square, M maps, K frequencies along one axis.
"""
# ruff: noqa: N803, N806 - shape letters

import numpy as np
from numpy.typing import NDArray

from curator.media.opencv import cv2

PERCEPTUAL_MODEL = "curate/perceptual-1"
"""Name and version. Embeddings of different versions are not comparable."""

_Array = NDArray[np.float32]

SIDE = 64
BLURS_PX = (0.8, 1.7)
CONTRAST_SIGMA_PX = SIDE / 5
CONTRAST_FLOOR = 0.02
SCHARR_GAIN = 16
STRENGTH_POWER = 0.25
FLAT_BLUR_PX = 1.5
FLAT_STD = 0.008
"""Spread of smoothed luma (0 to 1) below which a frame has no structure: two levels of 255."""

_MAPS, _LUMA, _SUM, _DIFFERENCE = 11, 0, slice(1, 6), slice(6, 11)
_FREQUENCIES = 5
_MAX_RADIUS_SQUARED = 17
_WINDOW_FLOOR = 0.6
_SMOOTHING = 0.08
_GAIN_EXPONENT = 0.15
_SCALE_CONTRAST = 4.0
_LUMA_WEIGHT = 0.45

_BAR_TOLERANCE = 14
_BAR_DIRTY_SHARE = 0.02
_BAR_EDGE_SHARE = 0.6
_BAR_RINGING_LINES = 6
_BAR_MIN_LINES = 2
_BAR_MAX_SHARE = 0.3
_BAR_MIN_SIDE_PX = 32


def _weights() -> tuple[_Array, NDArray[np.bool_]]:
    """Returns the weights of all coefficients [M, K, K], and which of them are used."""
    u = np.arange(_FREQUENCIES)
    radius_squared = u[:, None] ** 2 + u**2
    weights = np.empty((_MAPS, _FREQUENCIES, _FREQUENCIES), dtype=np.float32)
    weights[_LUMA] = _LUMA_WEIGHT
    weights[1:] = (1 + radius_squared) ** _GAIN_EXPONENT / np.sqrt(2)
    weights[_DIFFERENCE] *= _SCALE_CONTRAST
    kept = np.repeat((radius_squared <= _MAX_RADIUS_SQUARED)[None], _MAPS, axis=0)
    # Drops uninformative means: contrast normalisation fixes the means of luma and of strength, and
    # the mean of the fourth harmonic is similar in all pictures.
    kept[[_LUMA, _SUM.start, _SUM.start + 3, _DIFFERENCE.start], 0, 0] = False
    return weights, kept


def _windowed_cosines() -> _Array:
    """Returns cosines [K, S] under a window with less weight at the margins of the square."""
    u = np.arange(_FREQUENCIES)[:, None]
    x = (np.arange(SIDE) + 0.5) / SIDE
    window = _WINDOW_FLOOR + (1 - _WINDOW_FLOOR) * np.sin(np.pi * x) ** 2
    cosines = np.cos(np.pi * u * x) * np.where(u == 0, 1, np.sqrt(2)) / SIDE
    smoothing = np.exp(-0.5 * (np.pi * _SMOOTHING * u) ** 2)
    return np.asarray(cosines * smoothing * window / window.mean(), dtype=np.float32)


COSINES_KS = _windowed_cosines()
WEIGHTS_MKK, KEPT_MKK = _weights()

DIM = int(KEPT_MKK.sum())
"""Number of dimensions of a frame's descriptor."""


def describe(frame_HWC: NDArray[np.uint8]) -> _Array:
    """Describes one upright frame, uint8 RGB [H, W, 3], with about 320 px on the longer side.

    Returns:
        float32 [DIM], L2-normalised; all zeros for a frame without structure.
    """
    gray = cv2.cvtColor(np.ascontiguousarray(frame_HWC), cv2.COLOR_RGB2GRAY)
    top, bottom, left, right = bar_box(np.asarray(gray, dtype=np.uint8))
    square_SS = square(np.asarray(gray, dtype=np.uint8)[top:bottom, left:right])
    if is_flat(square_SS):
        return np.zeros(DIM, dtype=np.float32)
    coefficients = COSINES_KS @ _maps(square_SS) @ COSINES_KS.T
    weighted_D = (coefficients * WEIGHTS_MKK)[KEPT_MKK]
    return _unit(np.sign(weighted_D) * np.sqrt(np.abs(weighted_D)))


def square(luma_HW: NDArray[np.uint8]) -> _Array:
    """Squashes a picture to the small square that is described, float32 [S, S], 0 to 1."""
    shrinks = min(luma_HW.shape) >= SIDE
    squashed = cv2.resize(
        luma_HW, (SIDE, SIDE), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    )
    return np.asarray(squashed, dtype=np.float32) / np.float32(255)


def is_flat(square_SS: _Array) -> bool:
    """Returns whether a square has no structure: black, a flat colour, a faint gradient."""
    return float(blurred(square_SS, FLAT_BLUR_PX).std()) < FLAT_STD


def bar_box(luma_HW: NDArray[np.uint8]) -> tuple[int, int, int, int]:
    """Returns top, bottom, left and right of the picture inside bars: letterbox, pillarbox or both.

    A bar is a run of lines of one luma that ends in an edge along most of its length. Requiring the
    edge protects plain backgrounds, which end at an object in the middle of a line. They would be
    cropped differently in each copy.
    """
    height, width = luma_HW.shape
    if min(luma_HW.shape) < _BAR_MIN_SIDE_PX:
        return 0, height, 0, width
    top, bottom = _bar_lines(luma_HW), height - _bar_lines(luma_HW[::-1])
    inner = luma_HW[top:bottom]
    return top, bottom, _bar_lines(inner.T), width - _bar_lines(inner.T[::-1])


def _bar_lines(luma_HW: NDArray[np.uint8]) -> int:
    lines = luma_HW[: int(len(luma_HW) * _BAR_MAX_SHARE) + 1].astype(np.int16)
    dirty = (np.abs(lines - np.median(lines[0])) > _BAR_TOLERANCE).mean(axis=1)
    edges = np.flatnonzero(dirty >= _BAR_EDGE_SHARE)
    if edges.size == 0 or edges[0] < _BAR_MIN_LINES:
        return 0
    # Compression smears the edge into the bar's last lines, which are not checked.
    clean = dirty[: max(1, edges[0] - _BAR_RINGING_LINES)] <= _BAR_DIRTY_SHARE
    return int(edges[0]) if clean.all() else 0


def _maps(square_SS: _Array) -> _Array:
    """Returns [M, S, S]: luma, and sums and differences of two scales of five gradient maps."""
    detail = square_SS - blurred(square_SS, CONTRAST_SIGMA_PX)
    contrast = np.sqrt(blurred(detail * detail, CONTRAST_SIGMA_PX) + CONTRAST_FLOOR**2)
    luma = detail / contrast
    fine, coarse = (_gradients(square_SS, blur_px) for blur_px in BLURS_PX)
    return np.concatenate([(luma - luma.mean())[None], fine + coarse, fine - coarse])


def _gradients(square_SS: _Array, blur_px: float) -> _Array:
    """Returns the gradient's strength, and its angle's harmonics times the strength, [5, S, S]."""
    smooth = blurred(square_SS, blur_px)
    dx = np.asarray(cv2.Scharr(smooth, cv2.CV_32F, 1, 0))
    dy = np.asarray(cv2.Scharr(smooth, cv2.CV_32F, 0, 1))
    energy = dx * dx + dy * dy
    floor = (SCHARR_GAIN * CONTRAST_FLOOR / blur_px) ** 2
    strength = (energy / (blurred(energy, CONTRAST_SIGMA_PX) + floor)) ** STRENGTH_POWER
    length = np.sqrt(energy) + np.float32(1e-6)
    cos1, sin1 = dx / length, dy / length
    cos2, sin2 = cos1 * cos1 - sin1 * sin1, 2 * cos1 * sin1
    cos4, sin4 = cos2 * cos2 - sin2 * sin2, 2 * cos2 * sin2
    oriented = [strength * harmonic for harmonic in (cos2, sin2, cos4, sin4)]
    return np.stack([strength - strength.mean(), *oriented])


def blurred(square_SS: _Array, sigma_px: float) -> _Array:
    """Blurs a float32 square by a Gaussian."""
    smooth = cv2.GaussianBlur(square_SS, (0, 0), sigma_px, borderType=cv2.BORDER_REFLECT)
    return np.asarray(smooth, dtype=np.float32)


def _unit(vector_D: _Array) -> _Array:
    return np.asarray(vector_D / np.linalg.norm(vector_D), dtype=np.float32)
