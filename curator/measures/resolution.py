"""True resolution: the finest detail there is, against the finest that the size could hold."""

# ruff: noqa: N803 - shape letters: N lines, L their length

from functools import cache

import numpy as np
from numpy.typing import NDArray

from curator.measures.measure_contract import ScoreSpec
from curator.measures.strips import STRIP_PX, at_most
from curator.media.opencv import cv2

FAMILY = "quality"

_SEGMENT_PX = 64
_BUSIEST = 0.25
_DETAIL = 6.0
"""Standard deviation of a segment, in levels, below which it has no detail to judge by."""
_MOST_ENERGY = 0.95
_WHITENING = 1.5
"""Power of frequency that weights energy; 2 would make an edge white, and rounding loud."""
_ROUNDING = 1.0  # standard deviation of what rounding and fine quantisation add, in levels
_ABOVE_NOISE = 2.0
_FLATTEST = 1.6  # how much more noise there is in the mean than where it happens to be least
_LOUDEST = 1.2  # how much larger noise may be than measured: a texture hides some of it


def resolution(lines_NL: NDArray[np.uint8], *, noise_level: float = 0.0) -> float:
    """Highest frequency at which there is detail, as a share of what the pixels could hold.

    Below it is 95% of the whitened energy of the busiest parts, less noise and steps on a grid of
    8 px. Noise is everywhere, detail is not: energy that the flattest quarter of the segments has
    too is no detail, as far as it is no more than the noise that was measured.

    Returns:
        1 where nothing is busy, NaN where all that is busy is noise.
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
    size = at_most(cv2.absdiff(lines_NL[:, 1:], lines_NL[:, :-1]), 20).mean(axis=0)
    return int(size[: len(size) // 8 * 8].reshape(-1, 8).mean(axis=0).argmax())


def _smooth_steps(segments_NL: NDArray[np.float32], phase: int) -> NDArray[np.float32]:
    """Steps between neighbours, those on a grid of 8 px spread over the block, float32 [N, L].

    Segments begin at multiples of 8; the last step of each is 0.
    """
    steps = np.zeros_like(segments_NL)
    np.subtract(segments_NL[:, 1:], segments_NL[:, :-1], out=steps[:, :-1])
    places = np.arange(phase or 8, steps.shape[1] - 2, 8)
    jumps = np.zeros_like(steps)
    jumps[:, places] = steps[:, places] - (steps[:, places - 1] + steps[:, places + 1]) / 2
    spread = np.asarray(cv2.blur(jumps, (STRIP_PX + 1, 1)), np.float32)
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


SCORES = {
    "true_resolution": ScoreSpec(
        unit="share of the nominal",
        range="0 to 1; above 0.6 full detail, 0.5 as enlarged by 2 or as soft",
        meaning="finest detail that there is against the finest that the size could hold; neither "
        "noise nor blocks on the grid of 8 px count as detail",
        outside="upscaled",
        of="resolution",
        aggregate="p75",
    )
}
