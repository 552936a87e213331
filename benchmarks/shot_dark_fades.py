"""Dims shots, and joins them by fades through black, for training films.

Shape letters: F frames, H, W height and width.
"""

import cv2
import numpy as np
from numpy.typing import NDArray
from shot_transitions import HEIGHT, WIDTH, Clip, Rng, noise_map


def dimmed(rng: Rng, clip: Clip) -> Clip:
    """Returns a shot as at night: dark but for some lights, with noise and a cast."""
    gain = float(np.exp(rng.uniform(np.log(0.06), np.log(0.6))))
    cast = np.exp(rng.normal(0, 0.2, 3)).astype(np.float32)
    gamma, noise = rng.uniform(0.8, 1.8), float(rng.choice([0, 0, 1, 3]))
    lamp = np.ones((HEIGHT, WIDTH, 1), np.float32)
    if rng.random() < 0.4:
        lamp += (noise_map(rng, 3) ** 4)[:, :, None] * np.float32(rng.uniform(0, 2))
    levels = (np.linspace(0, 1, 256) ** gamma * 255).astype(np.float32)
    out = np.empty_like(clip)
    for i, frame in enumerate(clip):
        lit = cv2.LUT(frame, levels) * lamp * cast * np.float32(gain)
        if noise:
            lit = lit + rng.normal(0, noise, lit.shape)
        out[i] = np.clip(lit, 0, 255)
    return out


def dark_fade(rng: Rng, A: Clip, B: Clip) -> Clip:  # noqa: N803
    """Fades the first shot to black and the second from it; most frames may be nearly black.

    Either side takes its own share of the time and follows its own curve. A partial dip does not
    reach black; the change is then a cut or a short dissolve in the darkest frames.
    """
    n = len(A)
    black = float(rng.choice([0.0, 0.0, rng.uniform(0, 0.7)]))
    out_share = float(rng.choice([0.0, 0.5, rng.uniform(0.1, 0.9), 1.0], p=[0.1, 0.3, 0.5, 0.1]))
    n_out = round(n * (1 - black) * out_share)
    n_in = n - round(n * black) - n_out
    low = float(rng.choice([0.0, rng.uniform(0, 0.3)], p=[0.75, 0.25]))
    powers = np.exp(rng.uniform(-0.8, 1.4, 2))
    falls = low + (1 - low) * np.linspace(1, 0, n_out + 2)[1:-1] ** powers[0]
    rises = low + (1 - low) * np.linspace(0, 1, n_in + 2)[1:-1] ** powers[1]
    level = np.concatenate([falls, np.full(n - n_out - n_in, low), rises])
    change, mixes = n_out + (n - n_out - n_in) / 2, float(rng.choice([0.01, 0.01, 6.0]))
    share = np.clip((np.arange(n) + 0.5 - change) / mixes + 0.5, 0, 1)
    floor = float(rng.choice([0.0, 0.0, rng.uniform(0, 12)]))
    out = np.empty_like(A)
    for i in range(n):
        mixed = A[i] * (1 - share[i]) + B[i] * share[i]
        out[i] = np.clip(mixed * level[i] + floor * (1 - level[i]), 0, 255)
    return out


def dipped(rng: Rng, clip: Clip) -> Clip:
    """Dims the light within a shot and brings it back: no boundary, as the scene goes on."""
    n = len(clip)
    at, half = int(rng.integers(6, n - 6)), float(np.exp(rng.uniform(np.log(2), np.log(20))))
    low = float(rng.uniform(0.03, 0.6))
    near = np.clip(1.5 - np.abs(np.arange(n) - at) / half, 0, 1)
    level: NDArray[np.float64] = 1 - (1 - low) * near
    return np.asarray((clip * level[:, None, None, None].astype(np.float32)).astype(np.uint8))


def slowed(clip: Clip, n: int) -> Clip:
    """Returns `n` frames of a clip that has fewer, in slow motion."""
    return np.asarray(clip[np.linspace(0, len(clip) - 1, n).round().astype(int)])
