"""A small video tokenizer whose optimum is known in closed form, so that training adds no noise.

The tokenizer is a linear autoencoder of patches: 4 frames of 8 x 8 pixels of luma become up to 64
latents. Its loss is the mean squared error of the patch's DCT coefficients, each multiplied by a
weight that rises with its frequency, because fine detail and motion have little energy, and matter
as much; and each patch is divided by its contrast, so that no clip of high contrast outweighs the
others. The optimum are the leading eigenvectors of the second moments of the training patches. So a
clip enters training and evaluation by its moments alone, and a tokenizer trains in hundredths of a
second: a proof affords hundreds, and compares sets of clips rather than seeds of an optimiser.

Shape letters: T frames, H height, W width, D coefficients, K latents.
"""
# ruff: noqa: N803 - shape letters

from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

PATCH_FRAMES, PATCH_PX = 4, 8
N_COEFFICIENTS = PATCH_FRAMES * PATCH_PX * PATCH_PX - 1
"""Coefficients of a patch without the mean, which any tokenizer keeps."""
LATENTS = (8, 16, 32, 64)
"""Sizes of tokenizers over which results are averaged, so that none of them is a choice."""
LEAST_CONTRAST = 4.0
"""Contrast of a patch, in weighted levels, below which the patch counts less: it is flat."""
_EXACT = 1e-5
"""Loss below which differences are those of single precision."""
_FLAT = 1e-6
"""Energy of patches below which they are flat: black, or of one level but for rounding."""
MOTION = 4.0
"""Weight of frequencies in time relative to those in space. Source: benchmarks/results/prove.md."""


def moments_of(luma_THW: NDArray[np.uint8]) -> Floats:
    """Returns the second moments of a clip's patches, float32 [D, D].

    Args:
        luma_THW: Luma, uint8, of at least one patch; what exceeds whole patches is left out.
    """
    n_frames, height, width = (
        side // patch
        for side, patch in zip(luma_THW.shape, (PATCH_FRAMES, PATCH_PX, PATCH_PX), strict=True)
    )
    whole = luma_THW[: n_frames * PATCH_FRAMES, : height * PATCH_PX, : width * PATCH_PX]
    shape = (n_frames, PATCH_FRAMES, height, PATCH_PX, width, PATCH_PX)
    patches = whole.reshape(shape).transpose(0, 2, 4, 1, 3, 5).reshape(-1, N_COEFFICIENTS + 1)
    weighted = patches.astype(np.float32) @ _transform().T
    contrast = np.sqrt(np.square(weighted).mean(axis=1, keepdims=True) + LEAST_CONTRAST**2)
    weighted /= contrast
    return np.asarray(weighted.T @ weighted / len(weighted), np.float32)


def train(moments_DD: Floats) -> Floats:
    """Returns the basis of the best tokenizer of patches with these moments, float32 [D, K]."""
    vectors = np.linalg.eigh(moments_DD.astype(np.float64))[1]
    return np.ascontiguousarray(vectors[:, ::-1][:, : max(LATENTS)], np.float32)


def losses(basis_DK: Floats, moments_DD: Floats) -> NDArray[np.float64]:
    """Returns the share of the energy of patches that a tokenizer of each size loses, float64.

    Of flat patches, which have no energy, every tokenizer loses equally little.
    """
    kept = np.cumsum(((moments_DD @ basis_DK) * basis_DK).sum(axis=0, dtype=np.float64))
    whole = float(np.trace(moments_DD))
    if whole < _FLAT:
        return np.full(len(LATENTS), _EXACT)
    lost: NDArray[np.float64] = np.maximum(1 - kept[np.array(LATENTS) - 1] / whole, _EXACT)
    return lost


def gain_db(better: NDArray[np.float64], worse: NDArray[np.float64]) -> float:
    """Returns by how many dB losses are lower than others, as a mean over the sizes."""
    return float(np.mean(10 * np.log10(worse / better)))


@cache
def _weights() -> Floats:
    shape = (PATCH_FRAMES, PATCH_PX, PATCH_PX)
    time, down, across = (axis.ravel()[1:] for axis in np.indices(shape))
    times = MOTION * time * (PATCH_PX / PATCH_FRAMES)
    return np.asarray(1 + np.sqrt(times**2 + down**2 + across**2), np.float32)


@cache
def _transform() -> Floats:
    """Returns the weighted DCT without the mean, float32 [D, pixels of a patch]."""
    time, side = dct_rows(PATCH_FRAMES), dct_rows(PATCH_PX)
    whole = np.kron(time, np.kron(side, side))[1:]
    return np.asarray(whole * _weights()[:, None], np.float32)


def dct_rows(n: int) -> NDArray[np.float64]:
    """Returns the orthonormal DCT-II, float64 [n, n], a frequency a row."""
    at = np.arange(n)
    rows = np.cos(np.pi * np.outer(at, at + 0.5) / n) * np.sqrt(2 / n)
    rows[0] /= np.sqrt(2)
    return np.asarray(rows, np.float64)
