"""Exposure: luma, contrast, clipped pixels, black frames.

Luma, contrast and clipped pixels are those of the picture inside black borders. The area of the
borders is known and their luma is 0, so the sums over whole frames are corrected for them.
"""

import numpy as np
from numpy.typing import NDArray

from curator.measures.borders import content_area
from curator.measures.clip_view import ClipView
from curator.measures.measure_contract import ScoreSpec

BLACK_LUMA = 0.05  # largest mean of a black frame: half of the bound of FFmpeg's `blackdetect`
BLACK_SPREAD = 0.03  # largest standard deviation of a black frame; night scenes with lights: more


def exposure_signals(gray_HW: NDArray[np.uint8]) -> dict[str, float]:
    """Returns the shares of pixels of at most 16, and of at least 250, of 255."""
    return {
        "dark_fraction": float(np.mean(gray_HW <= 16)),
        "bright_fraction": float(np.mean(gray_HW >= 250)),
    }


def _contrast(clip: ClipView) -> float:
    area = _area(clip)
    mean = clip.track.luma_mean[clip.frames].astype(np.float64)
    spread = clip.track.luma_spread[clip.frames].astype(np.float64)
    variance = (spread**2 + mean**2) / area - (mean / area) ** 2
    return float(np.sqrt(np.maximum(variance, 0)).mean())


def _clipped_fraction(clip: ClipView) -> float | None:
    values = clip.signal("dark_fraction") + clip.signal("bright_fraction")
    if not len(values):
        return None
    area = _area(clip)
    return max(0.0, float(np.mean(values)) - (1 - area)) / area


def _area(clip: ClipView) -> float:
    return content_area(clip) or 1.0


def _black_fraction(clip: ClipView) -> float:
    luma, spread = clip.track.luma_mean[clip.frames], clip.track.luma_spread[clip.frames]
    return float(np.mean((luma < BLACK_LUMA) & (spread < BLACK_SPREAD)))


SCORES = {
    "luma": ScoreSpec(
        unit="0 to 1",
        range="0 black to 1 white",
        meaning="mean luma over all frames, inside black borders",
        low="too_dark",
        high="too_bright",
        of=lambda clip: min(1.0, float(clip.track.luma_mean[clip.frames].mean()) / _area(clip)),
    ),
    "contrast": ScoreSpec(
        unit="0 to 0.5",
        range="0 flat to 0.5 black and white",
        meaning="mean over frames of the standard deviation of luma, inside black borders",
        of=_contrast,
    ),
    "clipped_fraction": ScoreSpec(
        unit="0 to 1",
        range="0 to 1",
        meaning="share of pixels inside black borders that are black or white, mean over samples",
        outside="too_clipped",
        of=_clipped_fraction,
    ),
    "black_fraction": ScoreSpec(
        unit="0 to 1",
        range="0 to 1",
        meaning="share of frames that are completely black",
        outside="black",
        of=_black_fraction,
    ),
}
