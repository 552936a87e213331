"""What compression left in the pixels: blocks, texture that is flat now, bands."""

# ruff: noqa: N803 - shape letters: N lines, L their length

from functools import cache

import numpy as np
from numpy.typing import NDArray

from curator.measures.measure_contract import ScoreSpec
from curator.measures.strips import at_most, within
from curator.media.opencv import cv2

FAMILY = "quality"

_ENLARGED = (4 / 3, 1.5, 9 / 4, 8 / 3, 2.5, 3.0, 4.5)
"""Usual factors of enlargement whose grids do not fall onto the grid of 8 px."""
_HARMONICS = 3
_FLAT_PX = 6
_CONTRAST_PX = 17
_CONTRAST = 8  # contrast, in levels, of places where a camera's picture is not flat
_BAND_RUN_PX = 10
_BAND_STEP = 24


def blocking(rows_NL: NDArray[np.uint8], columns_NL: NDArray[np.uint8]) -> float:
    """How much larger steps are on the lines of a grid than off it, relative to their surroundings.

    Grids of 8 px, and of 8 px enlarged by usual factors.
    """
    profiles = [_step_profile(rows_NL), _step_profile(columns_NL)]
    native = float(np.mean([_grid_of_8(profile) for profile in profiles]))
    # A fence is periodic in one direction, a grid of blocks in both.
    enlarged = np.min([_grids(profile) for profile in profiles], axis=0)
    return max(native, float(enlarged.max()))


def _step_profile(lines_NL: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Mean step at each place along the lines, relative to its surroundings, [L - 1]."""
    # Neighbouring lines of a block say the same.
    lines = lines_NL[::2]
    steps = at_most(cv2.absdiff(lines[:, 1:], lines[:, :-1]), 20).astype(np.float32)
    around = cv2.blur(steps, (17, 1)) + 1
    return np.asarray(cv2.divide(steps, around).mean(axis=0, dtype=np.float64))


def _grid_of_8(profile: NDArray[np.float64]) -> float:
    phases = profile[: len(profile) // 8 * 8].reshape(-1, 8).mean(axis=0)
    # Enlarging by 2 alone makes even and odd places differ; so only every other one is compared.
    best = int(phases.argmax())
    others = np.roll(phases, -best)[2::2]
    return float((phases[best] - others.mean()) / (profile.mean() + 0.05))


def _grids(profile: NDArray[np.float64]) -> NDArray[np.float64]:
    """Strength of the grids of `_ENLARGED`, in the unit of `_grid_of_8`."""
    waves = _waves(len(profile))
    amplitude = np.abs((profile - profile.mean()) @ waves).reshape(len(_ENLARGED), _HARMONICS)
    strength = 4 * np.sqrt(np.sum(amplitude**2, axis=1)) / (profile.mean() + 0.05)
    return np.asarray(np.where(strength > 0.2, strength, 0))


@cache
def _waves(length: int) -> NDArray[np.complex128]:
    window = np.hanning(length)
    frequency = np.array([k / (8 * scale) for scale in _ENLARGED for k in range(1, _HARMONICS + 1)])
    waves = np.exp(-2j * np.pi * np.arange(length)[:, None] * frequency[None, :])
    return np.asarray(waves * (window / window.sum())[:, None])


def flattening(
    rows_NL: NDArray[np.uint8], columns_NL: NDArray[np.uint8], *, black: int = 0, white: int = 255
) -> float:
    """Share of places amid contrast where 6 px in a row do not differ, nor those below.

    That is what coarse quantisation leaves of texture. NaN where hardly anything has contrast.
    """
    counts = [_flat_places(lines, black, white) for lines in (rows_NL, columns_NL)]
    flat, all_places = np.sum(counts, axis=0)
    return float(flat / all_places) if all_places >= 200 else float("nan")


def _flat_places(lines_NL: NDArray[np.uint8], black: int, white: int) -> tuple[int, int]:
    """Places amid contrast that are flat in both lines of a pair, and all places amid contrast."""
    run = np.ones((1, _FLAT_PX - 1), np.uint8)
    flat = None
    for lines in (lines_NL[::2], lines_NL[1::2]):
        equal = cv2.erode(cv2.compare(lines[:, 1:], lines[:, :-1], cv2.CMP_EQ), run)
        flat = equal if flat is None else cv2.bitwise_and(flat, equal)
    around = np.ones((1, _CONTRAST_PX), np.uint8)
    lines = np.ascontiguousarray(lines_NL[::2])
    contrast = cv2.subtract(cv2.dilate(lines, around), cv2.erode(lines, around))
    inside = within(lines, black + 5, white - 6)
    counted = cv2.bitwise_and(within(contrast, _CONTRAST, 255), inside)[:, 1:]
    assert flat is not None
    return cv2.countNonZero(cv2.bitwise_and(flat, counted)), cv2.countNonZero(counted)


def banding(lines_NL: NDArray[np.uint8]) -> float:
    """Squared height of small steps between flat runs, in levels^2 per 1000 px.

    Steps of at most 24 levels, between runs of 10 px and more, off the grid of 8 px.
    """
    steps = cv2.absdiff(lines_NL[:, 1:], lines_NL[:, :-1])
    changes = at_most(steps, 1)
    # A step is alone where the run on both sides of it has no other change.
    near = cv2.boxFilter(
        changes,
        cv2.CV_8U,
        (2 * _BAND_RUN_PX + 1, 1),
        normalize=False,
        borderType=cv2.BORDER_REFLECT,
    )
    alone = cv2.bitwise_and(within(near, 1, 1), within(steps, 1, _BAND_STEP))
    places = np.flatnonzero(np.asarray(alone) > 0)
    height = steps.ravel()[places].astype(np.float64)
    # Blocks have all of their steps in one phase of eight, contours have them anywhere.
    phases = np.bincount(places % steps.shape[1] % 8, height**2, 8)
    return float(phases.sum() - phases.max()) * 8 / 7 / lines_NL.size * 1000


SCORES = {
    "blocking": ScoreSpec(
        unit="ratio",
        range="about 0 without a grid; 0.3 faint, above 1 visible blocks",
        meaning="strength of the grid that block-wise compression leaves",
        aggregate="mean",
    ),
    "flattening": ScoreSpec(
        unit="share",
        range="0 to 1; below 0.05 as a camera gives it, above 0.15 little texture is left",
        meaning="texture that compression made flat, with a loop filter too; drawings, screens and "
        "very dark pictures have flat places of their own",
        aggregate="mean",
    ),
    "banding": ScoreSpec(
        unit="levels^2 per 1000 px",
        range="0 upwards; above 20 visible contours",
        meaning="steps in smooth gradients",
        aggregate="median",
    ),
}
