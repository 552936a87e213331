"""The scores `distortion`, of damaged pictures, and `repeated_fraction`, of repeated frames."""

import numpy as np
from numpy.typing import NDArray

from curator.measures.clip_view import ClipView
from curator.measures.measure_contract import OF_TIME, ScoreSpec, Values

DISTORTION = "distortion"
"""Name of the signal, of the score and of the family."""

_AROUND = 8
"""Frames on each side of a frame that say how fast the picture changes."""
_USUAL = 0.7
"""Quantile of the changes around a frame that counts as usual. With up to two of three frames
repeated, it is still the change of a frame that is no repeat."""
_LEAST_CHANGE = 0.0004
"""Smallest usual change of luma, 0 to 1, of a picture that moves: encoders cause less."""
_REPEATED = 0.06
"""A frame repeats the one before if it changes by less than this share of the usual change."""


def repeated_frames(luma_mean: NDArray[np.float32], luma_spread: NDArray[np.float32]) -> float:
    """Returns the share of frames that repeat the frame before while the picture moves.

    Args:
        luma_mean: Mean luma of each frame, 0 to 1, float32 [F].
        luma_spread: Standard deviation of luma, float32 [F].

    Returns:
        0 to 1; NaN with fewer than 12 frames.
    """
    luma = np.stack([luma_mean, luma_spread]).astype(np.float64)
    change = np.abs(np.diff(luma, axis=1)).sum(axis=0)
    if len(change) < 11:
        return float("nan")
    padded = np.pad(change, _AROUND, mode="reflect")
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * _AROUND + 1)
    usual = np.quantile(around, _USUAL, axis=1)
    is_repeat = (usual > _LEAST_CHANGE) & (change < _REPEATED * usual)
    return float(is_repeat.mean())


def _distortion(clip: ClipView) -> Values | None:
    is_measured = DISTORTION in clip.track.signals
    return clip.signal(DISTORTION) if is_measured else None


def _repeated_fraction(clip: ClipView) -> float:
    track = clip.track
    return repeated_frames(track.luma_mean[clip.frames], track.luma_spread[clip.frames])


SCORES = {
    DISTORTION: ScoreSpec(
        unit="0 to 1",
        range="0 clean to 1 destroyed; 95% of clean pictures have below 0.3; a bound of 0.4 is "
        "recommended",
        meaning="damage of the picture by codecs, blur, noise, enlarging or interlacing, as a "
        "network sees it in full-size luma; learned from made damage, not from opinions of people",
        of=_distortion,
        aggregate="mean",
        needs="analyze.distortion",
    ),
    "repeated_fraction": ScoreSpec(
        unit="share",
        range="0 to 1; above 0.03 a visible stutter, 0.5 for animation that holds each drawing "
        "for two frames",
        meaning="share of frames that repeat the frame before while the picture moves",
        of=_repeated_fraction,
        media=OF_TIME,
        outside="repeated_frames",
    ),
}
