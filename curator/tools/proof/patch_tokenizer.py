"""A small video tokenizer whose optimum is known in closed form, so that training adds no noise.

The tokenizer is a linear autoencoder of patches: 4 frames of 8 x 8 pixels of luma become up to 64
latents. Its loss is the mean squared error of the patch's DCT coefficients, each multiplied by
1 + its frequency, because fine detail and motion have little energy, and matter as much. The
optimum are the leading eigenvectors of the second moments of its training patches. So a clip enters
training and evaluation by its moments alone, and one tokenizer trains in a hundredth of a second:
a proof affords hundreds, and compares sets of clips rather than seeds of an optimiser.

Shape letters: N clips, T frames, H height, W width, D coefficients, K latents.
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
FLOOR = 1 / 12
"""Variance of rounding to 8 bits, in squared levels. Errors below it are invisible, and are not
worth a decibel."""
LEAST_CONTRAST = 4.0
"""Contrast of a patch, in weighted levels, below which the patch counts less: it is flat."""
_FINE = 3
"""Sum of the spatial frequencies above which a coefficient is fine detail."""


def moments_of(luma_THW: NDArray[np.uint8]) -> Floats:
    """Returns second moments of a clip's patches, float32 [2, D, D], in weighted squared levels.

    The first ones are for training: each patch is divided by its contrast, so that no clip of high
    contrast outweighs the others. The second ones, of the patches as they are, are for evaluation.

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
    both = (weighted / contrast, weighted)
    return np.stack([own.T @ own / len(own) for own in both])


def train(moments_DD: Floats) -> Floats:
    """Returns the basis of the best tokenizer of patches with these moments, float32 [D, K]."""
    vectors = np.linalg.eigh(moments_DD.astype(np.float64))[1]
    return np.ascontiguousarray(vectors[:, ::-1][:, : max(LATENTS)], np.float32)


def fidelity_db(basis_DK: Floats, moments_NDD: Floats) -> NDArray[np.float64]:
    """Returns how well a tokenizer reconstructs clips, in dB, float64 [N].

    It is the mean, over sizes of the tokenizer and over four bands of frequencies (still or moving,
    coarse or fine), of minus the logarithm of the mean squared error in levels. So each band counts
    alike, whatever its energy.
    """
    total = np.zeros(len(moments_NDD))
    projected = moments_NDD @ basis_DK
    latent = basis_DK.T @ projected
    energy = np.einsum("njj->nj", moments_NDD)
    for n in LATENTS:
        basis = basis_DK[:, :n]
        # The diagonal of (1 - B B') M (1 - B B').
        both = ((basis @ latent[:, :n, :n]) * basis).sum(axis=2)
        error = energy - 2 * (projected[:, :, :n] * basis).sum(axis=2) + both
        in_bands = (np.maximum(error, 0) / _weights() ** 2) @ _bands() + FLOOR
        total -= 10 * np.log10(in_bands).mean(axis=1)
    return total / len(LATENTS)


@cache
def _frequencies() -> tuple[NDArray[np.int64], ...]:
    """Returns the frequency in time, down and across of each coefficient, int64 [D] each."""
    shape = (PATCH_FRAMES, PATCH_PX, PATCH_PX)
    return tuple(axis.ravel()[1:] for axis in np.indices(shape))


@cache
def _weights() -> Floats:
    time, down, across = _frequencies()
    times = time * (PATCH_PX / PATCH_FRAMES)
    return np.asarray(1 + np.sqrt(times**2 + down**2 + across**2), np.float32)


@cache
def _bands() -> Floats:
    """Returns weights that average coefficients in each of four bands, float32 [D, 4]."""
    time, down, across = _frequencies()
    band = 2 * (time > 0) + (down + across > _FINE)
    members = np.equal.outer(band, np.arange(4)).astype(np.float32)
    return np.asarray(members / members.sum(axis=0), np.float32)


@cache
def _transform() -> Floats:
    """Returns the weighted DCT without the mean, float32 [D, pixels of a patch]."""
    time, side = _dct(PATCH_FRAMES), _dct(PATCH_PX)
    whole = np.kron(time, np.kron(side, side))[1:]
    return np.asarray(whole * _weights()[:, None], np.float32)


def _dct(n: int) -> NDArray[np.float64]:
    """Returns the orthonormal DCT-II, float64 [n, n], a frequency a row."""
    at = np.arange(n)
    rows = np.cos(np.pi * np.outer(at, at + 0.5) / n) * np.sqrt(2 / n)
    rows[0] /= np.sqrt(2)
    return np.asarray(rows, np.float64)
