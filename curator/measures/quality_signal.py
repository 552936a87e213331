"""Technical quality that shows at full size: noise, blocks, bands, combs and true resolution.

The picture inside its borders is read on strips: some rows of it, and some columns turned into
rows. An eighth of a 1080p picture says as much as the whole.
"""

# ruff: noqa: N803 - shape letters: N lines, L their length

from functools import cache

import cv2
import numpy as np
from numpy.typing import NDArray

from curator.measures.borders_signal import Luma, border_signals, content_of, find_borders
from curator.measures.signal_spec import Signal

SIGNALS = {
    "noise": Signal(
        unit="levels of 255",
        range="0 upwards; below 1 clean, above 5 visibly noisy; NaN where nothing is flat and "
        "unclipped",
        meaning="standard deviation of noise at full size in the flattest tenth of blocks of 8 px, "
        "by Immerkaer's method (Computer Vision and Image Understanding 64, 1996), less where "
        "coarser structure says that it is texture; where two frames have nothing in common but "
        "their noise, as without an aerial, their difference at 320 px says it too",
    ),
    "blocking": Signal(
        unit="ratio",
        range="about 0 without a grid; 0.3 faint, above 1 visible blocks",
        meaning="how much larger steps between neighbours are on the lines of a grid than off it, "
        "each relative to its surroundings; grids of 8 px and of 8 px enlarged by usual factors",
    ),
    "flattening": Signal(
        unit="share",
        range="0 to 1; below 0.05 as a camera gives it, above 0.15 little texture is left; NaN "
        "where hardly anything has contrast",
        meaning="share of places amid contrast where 6 px in a row do not differ, nor those below: "
        "what coarse quantisation leaves of texture, with a loop filter too; drawings have it",
    ),
    "banding": Signal(
        unit="levels^2 per 1000 px",
        range="0 upwards; above 20 visible contours",
        meaning="squared height of steps of at most 24 levels between flat runs of 10 px and more, "
        "off the grid of 8 px",
    ),
    "combing": Signal(
        unit="share",
        range="0 to 1; above 0.01 interlaced",
        meaning="share of stretches of 16 px of a column in which neighbours differ by more than "
        "every other line",
    ),
    "resolution": Signal(
        unit="share of the nominal",
        range="0 to 1; above 0.6 full detail, 0.5 as enlarged by 2 or as soft; 1 where nothing has "
        "detail to judge by; low, or NaN, where noise hides it",
        meaning="frequency below which 95% of the whitened energy of the busiest parts lies, less "
        "noise and steps on a grid of 8 px; the larger of both directions, since motion blurs one",
    ),
}

_Blocks = NDArray[np.float32]
_IMMERKAER = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], np.float32)
_N_STRIPS = 16
_STRIP_PX = 8
_MIN_PX = 32


def native_signals(luma_HW: Luma, *, black: int = 0, white: int = 255) -> dict[str, float]:
    """The signals of this module and of `signals.borders`.

    Args:
        luma_HW: uint8 luma at the source's own size, as coded: not turned, pixels not squared. It
            may lie on a device: a part of its rows and columns is read.
        black: Level of black in it.
        white: Level of white.
    """
    sides = find_borders(luma_HW, black=black, white=white)
    inner = content_of(luma_HW, sides)
    values = border_signals(sides)
    if min(inner.shape) < _MIN_PX:
        return values | dict.fromkeys(SIGNALS, float("nan"))
    rows, columns = strips(inner), strips(inner.T)
    scale = 255 / (white - black)
    noise_level = noise(_every_other_strip(rows), black=black, white=white)
    noise_found = float(np.fmax(noise_level, 0))
    across, down = (resolution(lines, noise_level=noise_found) for lines in (rows, columns))
    return values | {
        "noise": noise_level * scale,
        "blocking": blocking(rows, columns),
        "flattening": flattening(
            _every_other_strip(rows), _every_other_strip(columns), black=black, white=white
        ),
        "banding": (banding(rows) + banding(columns)) / 2 * scale**2,
        "combing": combing(columns),
        "resolution": float(np.fmax(across, down)),
    }


def strips(luma_HW: Luma) -> NDArray[np.uint8]:
    """Rows of the picture in strips of 8 that lie evenly, uint8 [N, L] with N a multiple of 8.

    Args:
        luma_HW: uint8 luma of at least 8 rows.
    """
    height = luma_HW.shape[0]
    n = min(_N_STRIPS, height // _STRIP_PX)
    starts = np.linspace(0, height - _STRIP_PX, n).astype(int)
    rows = starts[:, None] + np.arange(_STRIP_PX)
    return np.asarray(luma_HW[rows.ravel()])


def _every_other_strip(lines_NL: NDArray[np.uint8]) -> NDArray[np.uint8]:
    halves = lines_NL.reshape(-1, _STRIP_PX, lines_NL.shape[1])[::2]
    return halves.reshape(-1, lines_NL.shape[1])


def noise(rows_NL: NDArray[np.uint8], *, black: int = 0, white: int = 255) -> float:
    """Standard deviation of noise, in levels; NaN where too little is flat and unclipped.

    Args:
        rows_NL: From `strips`.
        black: Level of black.
        white: Level of white.
    """
    n_blocks = rows_NL.shape[1] // _STRIP_PX
    rows = np.ascontiguousarray(rows_NL[:, : n_blocks * _STRIP_PX])
    response = cv2.filter2D(rows, cv2.CV_16S, _IMMERKAER)
    size = np.asarray(cv2.convertScaleAbs(response), np.uint8)
    size = size.reshape(-1, _STRIP_PX, rows.shape[1])
    # The first and last row of a strip have another strip beside them.
    fine = _block_means(size[:, 1:-1].reshape(-1, rows.shape[1]), _STRIP_PX - 2)
    fine *= (np.pi / 2) ** 0.5 / 6
    mean, coarse = _plane_residual(rows.astype(np.float32))
    margin = 0.02 * (white - black)
    usable = (mean > black + margin) & (mean < white - margin)
    if usable.sum() < 32:
        return float("nan")
    fine, coarse = fine[usable], coarse[usable]
    flat = np.argpartition(coarse, len(coarse) // 10)[: max(8, len(coarse) // 10)]
    # White noise has a ratio of 1 and less where the flattest of its blocks are chosen; a clean
    # texture has most of its energy at coarser scales.
    level, total = float(np.mean(fine[flat])), float(np.mean(coarse[flat]))
    is_noise = float(np.clip((level / max(total, 0.3) - 0.4) / 0.4, 0, 1))
    return level / 0.9 * is_noise


def _plane_residual(rows_NL: NDArray[np.float32]) -> tuple[_Blocks, _Blocks]:
    """Mean of blocks, and the standard deviation around the best plane, float32 [N / 8, L / 8]."""
    ramp = np.arange(_STRIP_PX, dtype=np.float32) - (_STRIP_PX - 1) / 2
    power = float((ramp**2).mean())
    along = np.tile(ramp, rows_NL.shape[1] // _STRIP_PX)[None, :]
    down = np.tile(ramp, rows_NL.shape[0] // _STRIP_PX)[:, None]
    # Levels around the middle, because 32 bits are few for a difference of squares.
    middle = rows_NL - 128
    mean, square = _block_means(middle), _block_means(middle * middle)
    tilt, slope = _block_means(middle * along), _block_means(middle * down)
    variance = square - mean**2 - (tilt**2 + slope**2) / power
    # 61 of 64 degrees of freedom are left by a plane.
    return mean + 128, np.sqrt(np.maximum(variance, 0) * (64 / 61)).astype(np.float32)


def _block_means(rows_NL: NDArray[np.uint8] | NDArray[np.float32], height: int = 8) -> _Blocks:
    """Means of blocks 8 wide, float32 [N / height, L / 8]."""
    n, length = rows_NL.shape
    size = length // _STRIP_PX, n // height
    floats = rows_NL.astype(np.float32, copy=False)
    return np.asarray(cv2.resize(floats, size, interpolation=cv2.INTER_AREA), np.float32)


_ENLARGED = (4 / 3, 1.5, 9 / 4, 8 / 3, 2.5, 3.0, 4.5)
"""Usual factors of enlargement whose grids do not fall onto the grid of 8 px."""
_HARMONICS = 3


def blocking(rows_NL: NDArray[np.uint8], columns_NL: NDArray[np.uint8]) -> float:
    """How much larger steps are on the lines of a grid than off it.

    Args:
        rows_NL: From `strips`.
        columns_NL: From `strips` of the turned picture.
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
    steps = _at_most(cv2.absdiff(lines[:, 1:], lines[:, :-1]), 20).astype(np.float32)
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


_FLAT_PX = 6
_CONTRAST_PX = 17
_CONTRAST = 8
"""Contrast, in levels, of places where a camera's picture is not flat."""


def flattening(
    rows_NL: NDArray[np.uint8],
    columns_NL: NDArray[np.uint8],
    *,
    black: int = 0,
    white: int = 255,
) -> float:
    """Share of places amid contrast that are flat to the level; NaN with hardly any contrast.

    Args:
        rows_NL: From `strips`.
        columns_NL: From `strips` of the turned picture.
        black: Level of black; what is clipped does not count.
        white: Level of white.
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
    inside = _within(lines, black + 5, white - 6)
    counted = cv2.bitwise_and(_within(contrast, _CONTRAST, 255), inside)[:, 1:]
    assert flat is not None
    return cv2.countNonZero(cv2.bitwise_and(flat, counted)), cv2.countNonZero(counted)


def _at_most(lines_NL: cv2.typing.MatLike, level: int) -> NDArray[np.uint8]:
    return np.asarray(cv2.threshold(lines_NL, level, level, cv2.THRESH_TRUNC)[1], np.uint8)


def _within(lines_NL: cv2.typing.MatLike, low: int, high: int) -> NDArray[np.uint8]:
    """255 where a level lies between two, both of them included, else 0."""
    return np.asarray(cv2.inRange(lines_NL, np.array([low]), np.array([high])), np.uint8)


_BAND_RUN_PX = 10
_BAND_STEP = 24


def banding(lines_NL: NDArray[np.uint8]) -> float:
    """Squared height of small steps between flat runs, in levels^2 per 1000 px.

    Args:
        lines_NL: From `strips`.
    """
    steps = cv2.absdiff(lines_NL[:, 1:], lines_NL[:, :-1])
    changes = _at_most(steps, 1)
    # A step is alone where the run on both sides of it has no other change.
    near = cv2.boxFilter(
        changes,
        cv2.CV_8U,
        (2 * _BAND_RUN_PX + 1, 1),
        normalize=False,
        borderType=cv2.BORDER_REFLECT,
    )
    alone = cv2.bitwise_and(_within(near, 1, 1), _within(steps, 1, _BAND_STEP))
    places = np.flatnonzero(np.asarray(alone) > 0)
    height = steps.ravel()[places].astype(np.float64)
    # Blocks have all of their steps in one phase of eight, contours have them anywhere.
    phases = np.bincount(places % steps.shape[1] % 8, height**2, 8)
    return float(phases.sum() - phases.max()) * 8 / 7 / lines_NL.size * 1000


_COMB_PX = 16
_COMB_STEP = 6
"""Mean step of a comb, in levels."""


def combing(columns_NL: NDArray[np.uint8]) -> float:
    """Share of stretches of columns in which the lines of two moments alternate.

    Args:
        columns_NL: From `strips` of the turned picture.
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
_DETAIL = 6.0
"""Standard deviation of a segment, in levels, below which it has no detail to judge by."""
_MOST_ENERGY = 0.95
_WHITENING = 1.5
"""Power of frequency that weights energy; 2 would make an edge white, and rounding loud."""
_ROUNDING = 1.0
"""Standard deviation of what rounding and fine quantisation add, in levels."""


_ABOVE_NOISE = 2.0
_FLATTEST = 1.6
"""How much more noise there is in the mean than where it happens to be least."""
_LOUDEST = 1.2
"""How much larger noise may be than measured: a texture hides some of it."""


def resolution(lines_NL: NDArray[np.uint8], *, noise_level: float = 0.0) -> float:
    """Highest frequency at which there is detail, as a share of what the pixels could hold.

    Noise is everywhere, detail is not: energy that the flattest quarter of the segments has too is
    no detail, as far as it is no more than the noise that was measured.

    Args:
        lines_NL: From `strips`.
        noise_level: Standard deviation of noise, in levels.

    Returns:
        1 where nothing is busy, NaN where all that is busy is noise.
    """
    size = min(_SEGMENT_PX, lines_NL.shape[1] // _STRIP_PX * _STRIP_PX)
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
    phase = _phase_of_grid(lines)
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


def _phase_of_grid(lines_NL: NDArray[np.uint8]) -> int:
    """Place of the strongest grid of 8 px: steps there are the largest in the mean."""
    size = _at_most(cv2.absdiff(lines_NL[:, 1:], lines_NL[:, :-1]), 20).mean(axis=0)
    return int(size[: len(size) // 8 * 8].reshape(-1, 8).mean(axis=0).argmax())


def _smooth_steps(segments_NL: NDArray[np.float32], phase: int) -> NDArray[np.float32]:
    """Steps between neighbours, those on a grid of 8 px spread over the block.

    Args:
        segments_NL: Levels, from places that are multiples of 8.
        phase: From `_phase_of_grid`.

    Returns:
        float32 [N, L], the last of each segment 0.
    """
    steps = np.zeros_like(segments_NL)
    np.subtract(segments_NL[:, 1:], segments_NL[:, :-1], out=steps[:, :-1])
    places = np.arange(phase or 8, steps.shape[1] - 2, 8)
    jumps = np.zeros_like(steps)
    jumps[:, places] = steps[:, places] - (steps[:, places - 1] + steps[:, places + 1]) / 2
    spread = np.asarray(cv2.blur(jumps, (_STRIP_PX + 1, 1)), np.float32)
    return np.asarray(steps - jumps + spread, np.float32)


def _mean_power(steps_NL: NDArray[np.float32]) -> NDArray[np.float64]:
    """Mean power spectrum of lines whose steps are given; that of white noise is its variance."""
    size = steps_NL.shape[1]
    window, of_steps = _window(size)
    power = (np.abs(np.fft.rfft(steps_NL * window, axis=1)) ** 2).mean(axis=0)
    return np.asarray(power / of_steps, np.float64)


@cache
def _window(size: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """A window, and the power that the steps of white noise of variance 1 have in it."""
    window = np.hanning(size).astype(np.float32)
    step_power = 4 * np.sin(np.pi * np.arange(size // 2 + 1) / size) ** 2
    # Steps have no mean; what a window leaks there is of no frequency.
    step_power[0] = np.inf
    return window, step_power * float((window**2).sum())
