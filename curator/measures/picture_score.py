"""Scores of exposure, sharpness and motion.

Exposure is that of the picture inside black borders: their share of the whole is known and black,
so that it can be taken off the sums over whole frames.
"""

import numpy as np

from curator.measures.borders_score import content_area
from curator.measures.spec import AGGREGATES, ClipView, ScoreSpec
from curator.records import Reason


def _luma(clip: ClipView) -> float:
    return min(1.0, float(clip.track.luma_mean[clip.frames].mean()) / _area(clip))


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
    return max(0.0, AGGREGATES["mean"](values) - (1 - area)) / area


def _area(clip: ClipView) -> float:
    return content_area(clip) or 1.0


SCORES: dict[str, ScoreSpec] = {
    "luma": ScoreSpec(
        unit="0 to 1",
        range="0 black to 1 white",
        meaning="mean luma over all frames, inside black borders",
        low=Reason.TOO_DARK,
        high=Reason.TOO_BRIGHT,
        of=_luma,
    ),
    "contrast": ScoreSpec(
        unit="0 to 0.5",
        range="0 flat to 0.5 black and white",
        meaning="mean over frames of the standard deviation of luma, inside black borders",
        low=Reason.CONTRAST_TOO_LOW,
        high=Reason.CONTRAST_TOO_HIGH,
        of=_contrast,
    ),
    "clipped_fraction": ScoreSpec(
        unit="0 to 1",
        range="0 to 1",
        meaning="share of pixels inside black borders that are black or white, mean over samples",
        low=Reason.TOO_CLIPPED,
        high=Reason.TOO_CLIPPED,
        of=_clipped_fraction,
    ),
    "sharpness": ScoreSpec(
        unit="slope / contrast",
        range="0 soft to 1; about 0.1 out of focus; above 0.3 in focus; 1 where nothing has edges",
        meaning="steepness of the sharpest edges at 640 px",
        low=Reason.SHARPNESS_TOO_LOW,
        high=Reason.SHARPNESS_TOO_HIGH,
        of="sharpness",
        aggregate="median",
    ),
    "noise": ScoreSpec(
        unit="levels of 255",
        range="0 upwards; below 1 clean, above 5 visibly noisy",
        meaning="standard deviation of noise at full size, where the picture is flat",
        low=Reason.NOISE_TOO_LOW,
        high=Reason.NOISE_TOO_HIGH,
        of="noise",
        aggregate="median",
    ),
    "motion": ScoreSpec(
        unit="short sides/s",
        range="0 still upwards; above 4 a blur",
        meaning="mean optical flow over the picture",
        low=Reason.MOTION_TOO_LOW,
        high=Reason.MOTION_TOO_HIGH,
        of="motion",
        aggregate="mean",
    ),
}
