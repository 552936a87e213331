"""Measures on strips of full-size luma: blocks, flat texture, bands, combs, and true resolution.

Strips are rows of the picture inside its borders, and columns as rows. An eighth of a 1080p picture
gives the same values as the whole picture. `noise` also reads strips.

Shape letters: N lines, L length of a line.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from curator.measures.measure_contract import OF_TIME, ScoreSpec
from curator.media.opencv import cv2

STRIP_PX = 8
_N_STRIPS = 16


def strips(luma_HW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns evenly spaced strips of 8 rows, uint8 [N, L]; N is a multiple of 8."""
    height = luma_HW.shape[0]
    n = min(_N_STRIPS, height // STRIP_PX)
    starts = np.linspace(0, height - STRIP_PX, n).astype(int)
    rows = starts[:, None] + np.arange(STRIP_PX)
    return np.asarray(luma_HW[rows.ravel()])


def every_other_strip(lines_NL: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns half of the strips, uint8 [N / 2, L]."""
    halves = lines_NL.reshape(-1, STRIP_PX, lines_NL.shape[1])[::2]
    return halves.reshape(-1, lines_NL.shape[1])


def at_most(lines_NL: "cv2.typing.MatLike", level: int) -> NDArray[np.uint8]:
    """Returns the levels, capped at `level`."""
    return np.asarray(cv2.threshold(lines_NL, level, level, cv2.THRESH_TRUNC)[1], np.uint8)


def within(lines_NL: "cv2.typing.MatLike", low: int, high: int) -> NDArray[np.uint8]:
    """Returns 255 for levels from `low` to `high`, both included, and 0 for others."""
    return np.asarray(cv2.inRange(lines_NL, np.array([low]), np.array([high])), np.uint8)


_ENLARGED = (4 / 3, 1.5, 9 / 4, 8 / 3, 2.5, 3.0, 4.5)  # common factors of enlarged grids
_HARMONICS = 3
_FLAT_PX = 6
_CONTRAST_PX = 17
_CONTRAST = 8  # smallest contrast, in levels, of places where a camera's picture is not flat
_BAND_RUN_PX = 10
_BAND_STEP = 24


def blocking(rows_NL: NDArray[np.uint8], columns_NL: NDArray[np.uint8]) -> float:
    """Returns how much larger steps are on a grid than off it, relative to their surroundings.

    Grids are those of 8 px, and of 8 px enlarged by the factors `_ENLARGED`.
    """
    profiles = [_step_profile(rows_NL), _step_profile(columns_NL)]
    native = float(np.mean([_grid_of_8(profile) for profile in profiles]))
    # A grid of blocks is periodic in both directions, a fence only in one.
    enlarged = np.min([_grids(profile) for profile in profiles], axis=0)
    return max(native, float(enlarged.max()))


def _step_profile(lines_NL: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Returns the mean step at each place along lines, relative to its surroundings, [L - 1]."""
    # Neighbouring lines of a block have the same steps, so every other line is enough.
    lines = lines_NL[::2]
    steps = at_most(cv2.absdiff(lines[:, 1:], lines[:, :-1]), 20).astype(np.float32)
    around = cv2.blur(steps, (17, 1)) + 1
    return np.asarray(cv2.divide(steps, around).mean(axis=0, dtype=np.float64))


def _grid_of_8(profile: NDArray[np.float64]) -> float:
    phases = profile[: len(profile) // 8 * 8].reshape(-1, 8).mean(axis=0)
    # Enlargement by 2 makes even and odd places differ, so only every other place is compared.
    best = int(phases.argmax())
    others = np.roll(phases, -best)[2::2]
    return float((phases[best] - others.mean()) / (profile.mean() + 0.05))


def _grids(profile: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the strength of the grids of `_ENLARGED`, in the unit of `_grid_of_8`."""
    waves = _waves(len(profile))
    # Real columns, because numpy would convert the profile to complex numbers at each call.
    products = ((profile - profile.mean()) @ waves.view(np.float64)).view(np.complex128)
    amplitude = np.abs(products).reshape(len(_ENLARGED), _HARMONICS)
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
    """Returns the share of flat places amid contrast, which coarse quantisation causes.

    A place is flat if 6 px in a row are equal, in its line and in the next line. NaN with fewer
    than 200 places amid contrast.
    """
    counts = [_flat_places(lines, black, white) for lines in (rows_NL, columns_NL)]
    flat, all_places = np.sum(counts, axis=0)
    return float(flat / all_places) if all_places >= 200 else float("nan")


def _flat_places(lines_NL: NDArray[np.uint8], black: int, white: int) -> tuple[int, int]:
    """Returns the numbers of flat places, in both lines of a pair, and of places amid contrast."""
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
    """Returns the squared height of small steps between flat runs, in levels^2 per 1000 px.

    Counts steps of at most 24 levels between runs of at least 10 px, without the strongest phase of
    the grid of 8 px.
    """
    steps = cv2.absdiff(lines_NL[:, 1:], lines_NL[:, :-1])
    changes = at_most(steps, 1)
    # A step is alone if the runs on both sides have no other change.
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
    # Blocks have all steps in one of eight phases; contours have steps in all phases.
    phases = np.bincount(places % steps.shape[1] % 8, height**2, 8)
    return float(phases.sum() - phases.max()) * 8 / 7 / lines_NL.size * 1000


_COMB_PX = 16
_COMB_STEP = 6  # smallest mean step of a comb, in levels


def combing(columns_NL: NDArray[np.uint8]) -> float:
    """Returns the share of combs among stretches of 16 px of columns.

    In a comb, a line differs from the next line more than twice as much as from the line after it.
    """
    lines = columns_NL[::2]
    next_line = cv2.absdiff(lines[:, 2:], lines[:, 1:-1])
    every_other = cv2.absdiff(lines[:, 2:], lines[:, :-2])
    n = next_line.shape[1] // _COMB_PX
    if n == 0:
        return 0.0
    near, far = (
        cv2.resize(
            change[:, : n * _COMB_PX].astype(np.float32),
            (n, len(lines)),
            interpolation=cv2.INTER_AREA,
        )
        for change in (next_line, every_other)
    )
    return float(np.mean((near > 2 * far) & (near > _COMB_STEP)))


_SEGMENT_PX = 64
_BUSIEST = 0.25
_DETAIL = 6.0  # smallest standard deviation of a segment with enough detail, in levels
_MOST_ENERGY = 0.95
_WHITENING = 1.5  # exponent of frequency in the weight of energy; 2 would amplify rounding
_ROUNDING = 1.0  # standard deviation of rounding and fine quantisation, in levels
_ABOVE_NOISE = 2.0
_FLATTEST = 1.6  # mean power of noise, relative to the flattest segments
_LOUDEST = 1.2  # largest noise relative to the measured noise, which texture hides in part


def resolution(lines_NL: NDArray[np.uint8], *, noise_level: float = 0.0) -> float:
    """Returns the highest frequency with detail, as a share of the highest possible frequency.

    95% of the whitened energy of the busiest quarter of segments is below this frequency, without
    noise and steps on a grid of 8 px. Noise is in all segments, detail is not: so the energy of the
    flattest quarter counts as noise, up to the measured noise.

    Returns:
        1 without busy segments; NaN if busy segments have only noise.
    """
    size = min(_SEGMENT_PX, lines_NL.shape[1] // STRIP_PX * STRIP_PX)
    n = lines_NL.shape[1] // size
    lines = np.ascontiguousarray(lines_NL[::4])
    segments = lines[:, : n * size].reshape(-1, size).astype(np.float32)
    spread = np.asarray(cv2.reduce(segments, 1, cv2.REDUCE_SUM2))[:, 0] / size
    spread = np.sqrt(np.maximum(0, spread - segments.mean(axis=1) ** 2))
    order = np.argsort(spread)
    busy = order[-max(1, int(len(order) * _BUSIEST)) :]
    busy = busy[spread[busy] >= _DETAIL]
    if len(busy) < 8:
        return 1.0
    # The phase of the grid of 8 px: its steps have the largest mean.
    steps = at_most(cv2.absdiff(lines[:, 1:], lines[:, :-1]), 20).mean(axis=0)
    phase = int(steps[: len(steps) // 8 * 8].reshape(-1, 8).mean(axis=0).argmax())
    power = _mean_power(_smooth_steps(segments[busy], phase))
    rounding = np.full_like(power, _ROUNDING**2)
    if noise_level > 0:
        flat = order[: max(8, int(len(order) * _BUSIEST))]
        everywhere = _FLATTEST * _mean_power(_smooth_steps(segments[flat], phase))
        hidden = np.minimum(everywhere, (_LOUDEST * noise_level) ** 2)
        power = np.where(power > _ABOVE_NOISE * hidden, power - hidden, 0)
    frequency = np.arange(size // 2 + 1) / (size // 2)
    white = np.cumsum(np.maximum(0, power - rounding) * frequency**_WHITENING)
    if white[-1] <= 0:
        return float("nan")
    place = float(np.interp(_MOST_ENERGY * white[-1], white, frequency))
    return min(1.0, place / _MOST_ENERGY)


def _smooth_steps(segments_NL: NDArray[np.float32], phase: int) -> NDArray[np.float32]:
    """Returns steps between neighbours, float32 [N, L]; spreads steps of the grid over blocks."""
    steps = np.zeros_like(segments_NL)
    np.subtract(segments_NL[:, 1:], segments_NL[:, :-1], out=steps[:, :-1])
    places = np.arange(phase or 8, steps.shape[1] - 2, 8)
    jumps = np.zeros_like(steps)
    jumps[:, places] = steps[:, places] - (steps[:, places - 1] + steps[:, places + 1]) / 2
    spread = np.asarray(cv2.blur(jumps, (STRIP_PX + 1, 1)), np.float32)
    return np.asarray(steps - jumps + spread, np.float32)


def _mean_power(steps_NL: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns the mean power spectrum of lines, from their steps; of white noise, the variance."""
    size = steps_NL.shape[1]
    window, of_steps = _window(size)
    power = (np.abs(np.fft.rfft(steps_NL * window, axis=1)) ** 2).mean(axis=0)
    return np.asarray(power / of_steps, np.float64)


@cache
def _window(size: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Returns a window, and the power in it of the steps of white noise with variance 1."""
    window = np.hanning(size).astype(np.float32)
    step_power = 4 * np.sin(np.pi * np.arange(size // 2 + 1) / size) ** 2
    # Steps have mean 0, so power at frequency 0 only leaks from the window.
    step_power[0] = np.inf
    return window, step_power * float((window**2).sum())


SCORES = {
    "blocking": ScoreSpec(
        unit="ratio",
        range="about 0 without a grid; 0.3 faint blocks, above 1 visible blocks",
        meaning="strength of the grid of blocks from compression",
        aggregate="mean",
    ),
    "flattening": ScoreSpec(
        unit="share",
        range="0 to 1; below 0.05 as from a camera, above 0.15 little texture is left",
        meaning="texture that compression made flat, also by codecs with a loop filter; drawings, "
        "screens and very dark pictures are also flat",
        aggregate="mean",
    ),
    "banding": ScoreSpec(
        unit="levels^2 per 1000 px",
        range="0 and more; above 20 visible contours",
        meaning="strength of steps in smooth gradients",
        aggregate="median",
    ),
    "combing": ScoreSpec(
        unit="share",
        range="0 to 1; above 0.01 interlaced",
        meaning="share of combs in moving parts: lines of two moments in one frame",
        outside="interlaced",
        aggregate="p75",
        media=OF_TIME,
    ),
    "true_resolution": ScoreSpec(
        unit="share of the nominal",
        range="0 to 1; above 0.6 full detail, 0.5 as if enlarged by 2, or as soft",
        meaning="finest detail of the picture, relative to the finest detail that its size allows; "
        "noise and blocks on the grid of 8 px are not detail",
        outside="upscaled",
        of="resolution",
        aggregate="p75",
    ),
}
