"""A perceptual descriptor of frames and clips that needs no weights, for near-duplicates.

A frame becomes a small square of luma: uniform borders are cut off and the aspect ratio is given
up, so that letterboxing and squeezing vanish. It is described by what survives re-encoding,
rescaling, overlays and moderate crops: locally normalised luma on a coarse grid, and, at two
scales, the local strength and orientation of gradients (circular harmonics 0, 2 and 4 of the
gradient angle) pooled by overlapping Gaussians. A signed square root keeps a banner or a logo from
outweighing the rest. Colour is left out: grading changes it, and structure separates well without.

A frame without structure (black, a flat colour, a faint gradient) has the zero vector: it says
nothing about which footage it belongs to. A clip of nothing but such frames has no embedding.

Shape letters: H, W height and width of a frame, C channels (RGB), N frames of a clip, D
dimensions, S side of the square, G side of a pooling grid.
"""
# ruff: noqa: N803, N806 - shape letters

from functools import cache

import cv2
import numpy as np
from numpy.typing import NDArray

PERCEPTUAL_MODEL = "curate/perceptual-1"
"""Name and version; embeddings of different versions are not comparable."""

_SIDE = 64
_LUMA_GRID, _LUMA_SIGMA = 6, 0.08
_GRADIENT_GRID, _GRADIENT_SIGMA = 5, 0.12
_GRADIENT_BLURS_PX = (0.8, 1.7)
_GRADIENT_POWER = 0.25
_ORIENTED_MEAN_KEPT = 0.3
_CONTRAST_SIGMA_PX = _SIDE / 5
_CONTRAST_FLOOR = 0.02
_FLAT_STD = 0.008

DIM = _LUMA_GRID**2 + len(_GRADIENT_BLURS_PX) * 5 * _GRADIENT_GRID**2
"""Dimensions of a frame's descriptor."""

_BAR_TOLERANCE = 10
_BAR_DIRTY_SHARE = 0.02
_BAR_EDGE_SHARE = 0.6
_BAR_MAX_SHARE = 0.3
_BAR_MIN_SIDE_PX = 32


def describe(frame_HWC: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Describes one frame.

    Args:
        frame_HWC: uint8 [H, W, 3], RGB, upright; about 320 px on the longer side.

    Returns:
        float32 [DIM], L2-normalised, or all zeros for a frame without structure.
    """
    luma = cut_borders(np.asarray(cv2.cvtColor(frame_HWC, cv2.COLOR_RGB2GRAY), dtype=np.uint8))
    shrinks = min(luma.shape) >= _SIDE
    interpolation = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    square = cv2.resize(luma, (_SIDE, _SIDE), interpolation=interpolation)
    square_SS: NDArray[np.float32] = square.astype(np.float32) / np.float32(255)
    if float(cv2.GaussianBlur(square_SS, (0, 0), 1.5).std()) < _FLAT_STD:
        return np.zeros(DIM, dtype=np.float32)
    blocks = [_luma(square_SS)]
    blocks += [_gradients(square_SS, blur_px) for blur_px in _GRADIENT_BLURS_PX]
    return _normalised(
        np.concatenate([_normalised(np.sign(b) * np.sqrt(np.abs(b))) for b in blocks])
    )


def aggregate(descriptors_ND: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """Embeds a clip from the descriptors of frames sampled from it.

    Args:
        descriptors_ND: float32 [N, DIM], from `describe`, in order of time.

    Returns:
        float32 [DIM], L2-normalised, or None when no frame has structure.
    """
    mean = descriptors_ND.sum(axis=0, dtype=np.float64)
    return _normalised(mean).astype(np.float32) if np.any(mean) else None


def cut_borders(luma_HW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Cuts off the bars of a letterboxed, pillarboxed or framed picture.

    A bar is a run of lines of one luma that ends in an edge along most of its length. The edge
    keeps the plain background of a picture, where an object begins in the middle of a line, from
    being cut differently in each copy.

    Args:
        luma_HW: uint8 [H, W].

    Returns:
        A view of the picture inside the bars.
    """
    if min(luma_HW.shape) < _BAR_MIN_SIDE_PX:
        return luma_HW
    top, bottom = _bar_lines(luma_HW), _bar_lines(luma_HW[::-1])
    inner = luma_HW[top : luma_HW.shape[0] - bottom]
    left, right = _bar_lines(inner.T), _bar_lines(inner.T[::-1])
    return inner[:, left : inner.shape[1] - right]


def _bar_lines(luma_HW: NDArray[np.uint8]) -> int:
    limit = int(len(luma_HW) * _BAR_MAX_SHARE)
    lines = luma_HW[: limit + 2].astype(np.int16)
    dirty = (np.abs(lines - np.median(lines[0])) > _BAR_TOLERANCE).mean(axis=1)
    ends = np.flatnonzero(dirty[: limit + 1] > _BAR_DIRTY_SHARE)
    if ends.size == 0 or ends[0] == 0:
        return 0
    # The line after the first one may be half bar, half picture.
    return int(ends[0]) if dirty[ends[0] + 1] >= _BAR_EDGE_SHARE else 0


def _luma(square_SS: NDArray[np.float32]) -> NDArray[np.float32]:
    detail = square_SS - _blur(square_SS)
    contrast = np.sqrt(_blur(detail * detail) + _CONTRAST_FLOOR**2)
    pool = _pool(_LUMA_GRID, _LUMA_SIGMA)
    grid_GG = pool @ (detail / contrast) @ pool.T
    return np.asarray((grid_GG - grid_GG.mean()).ravel(), dtype=np.float32)


def _gradients(square_SS: NDArray[np.float32], blur_px: float) -> NDArray[np.float32]:
    smooth = cv2.GaussianBlur(square_SS, (0, 0), blur_px)
    dx = cv2.Scharr(smooth, cv2.CV_32F, 1, 0)
    dy = cv2.Scharr(smooth, cv2.CV_32F, 0, 1)
    energy = dx * dx + dy * dy
    floor = (16 * _CONTRAST_FLOOR / blur_px) ** 2
    strength = (energy / (_blur(energy) + floor)) ** _GRADIENT_POWER
    size = np.sqrt(energy) + 1e-6
    cos1, sin1 = dx / size, dy / size
    cos2, sin2 = cos1 * cos1 - sin1 * sin1, 2 * cos1 * sin1
    cos4, sin4 = cos2 * cos2 - sin2 * sin2, 2 * cos2 * sin2
    pool = _pool(_GRADIENT_GRID, _GRADIENT_SIGMA)
    grids = [pool @ (strength * h) @ pool.T for h in (cos2, sin2, cos4, sin4)]
    # Every picture has gradients somewhere; only where they are tells pictures apart. Which
    # orientations prevail tells a little.
    grids = [g - (1 - _ORIENTED_MEAN_KEPT) * g.mean() for g in grids]
    plain = pool @ strength @ pool.T
    return np.stack([plain - plain.mean(), *grids]).ravel()


def _blur(square_SS: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(
        cv2.GaussianBlur(square_SS, (0, 0), _CONTRAST_SIGMA_PX, borderType=cv2.BORDER_REFLECT)
    )


@cache
def _pool(grid: int, sigma: float) -> NDArray[np.float32]:
    """Weights [G, S] of Gaussians centred on a grid; each row sums to 1."""
    centres = (np.arange(grid) + 0.5) / grid
    positions = (np.arange(_SIDE) + 0.5) / _SIDE
    weights = np.exp(-0.5 * ((positions[None] - centres[:, None]) / sigma) ** 2)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float32)


def _normalised(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    norm = float(np.linalg.norm(vector))
    return vector / np.float32(norm) if norm > 0 else vector
