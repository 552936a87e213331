"""Scores of exposure, sharpness and motion."""

from curator.records import Reason
from curator.stages.scores.spec import AGGREGATES, ClipView, ScoreSpec


def _clipped_fraction(clip: ClipView) -> float | None:
    values = clip.signal("dark_fraction") + clip.signal("bright_fraction")
    return AGGREGATES["mean"](values) if len(values) else None


SCORES: dict[str, ScoreSpec] = {
    "luma": ScoreSpec(
        unit="0 to 1",
        range="0 black to 1 white",
        meaning="mean luma over all frames",
        low=Reason.TOO_DARK,
        high=Reason.TOO_BRIGHT,
        of=lambda clip: float(clip.track.luma_mean[clip.frames].mean()),
    ),
    "contrast": ScoreSpec(
        unit="0 to 0.5",
        range="0 flat to 0.5 black and white",
        meaning="mean over frames of the standard deviation of luma",
        low=Reason.CONTRAST_TOO_LOW,
        high=Reason.CONTRAST_TOO_HIGH,
        of=lambda clip: float(clip.track.luma_spread[clip.frames].mean()),
    ),
    "clipped_fraction": ScoreSpec(
        unit="0 to 1",
        range="0 to 1",
        meaning="share of pixels that are black or white, mean over samples",
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
