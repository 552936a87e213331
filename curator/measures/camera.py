"""Measures the motion of the camera and of objects, and tags clips with the camera's movements.

All values describe the camera, which moves opposite to its picture: if a camera pans right, its
picture moves left.

Shape letters: S samples, W windows of samples, L length of a window.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from curator.measures.clip_view import ClipView
from curator.measures.measure_contract import OF_TIME, ScoreSpec
from curator.measures.motion import CameraFit

SIGNALS = (
    "pan_rate", "tilt_rate", "zoom_rate", "roll_rate", "camera_motion", "object_motion",
    "camera_share",
)  # fmt: skip
"""Names of the signals, in the units of the scores with these names. The first four apply to the
picture's centre: right, up, in and clockwise are positive."""
MIN_CAMERA_SHARE = 0.3
"""Smallest share of the textured places that follow the model. This share remains if objects with
stronger texture cover 40% of the picture."""
WINDOW_SAMPLES = 4  # length of a window in which a movement must last: 2 s at 2 samples/s
CERTAIN = 2.5  # a window's median rate must differ from 0 by this many standard errors
LEAST_SHARE = 0.25  # smallest share of a clip's windows with the movement
LEAST_PART = 0.2  # smallest speed of a movement, as a share of the camera's mean speed
KNOWN_SHARE = 0.5  # smallest share of samples with known motion of the camera
STILL = 0.02
"""Smallest speed of pans and tilts, in short sides/s. A camera on a tripod measures below 0.005. At
0.02, the picture takes 50 s to leave the frame."""
ZOOM_LEAST = 0.02
"""Smallest speed of zooms, in 1/s. At 0.04, places half a short side from the centre move by
`STILL`; the bound is half of this."""
ROLL_LEAST = 2.4  # smallest speed of rolls, in degrees/s
HANDHELD = 0.02  # smallest jitter of a hand-held camera, in short sides/s
HANDHELD_PART = 0.06  # and as a share of the camera's speed: a pan that accelerates is not shaking
SHAKY = 0.15  # smallest jitter of disturbing shaking, in short sides/s


def camera_signals(fit: CameraFit | None, seconds: float) -> dict[str, float]:
    """Returns the values of `SIGNALS`; all are NaN without texture.

    All but `camera_share` are NaN if too few places follow the model. `fit` is of two pictures,
    `seconds` apart. Places without texture count as places that follow the model.
    """
    values = dict.fromkeys(SIGNALS, float("nan"))
    if fit is None:
        return values
    values["camera_share"] = fit.share
    if fit.share >= MIN_CAMERA_SHARE:
        values |= {
            "pan_rate": -fit.shift.real / seconds,
            "tilt_rate": fit.shift.imag / seconds,
            "zoom_rate": math.log(max(abs(1 + fit.turn), 1e-3)) / seconds,
            "roll_rate": -math.degrees(math.atan2(fit.turn.imag, 1 + fit.turn.real)) / seconds,
            "camera_motion": fit.mean_speed / seconds,
            "object_motion": fit.mean_rest / seconds,
        }
    return values


Rates = Mapping[str, NDArray[np.float64]]
"""`RATES` of the samples of a clip, float64 [S] each; NaN in samples without a fit."""
RATES = ("pan_rate", "tilt_rate", "zoom_rate", "roll_rate", "camera_motion")


def _rates(clip: ClipView) -> Rates:
    return {name: clip.track.signals[name][clip.samples].astype(np.float64) for name in RATES}


def _unevenness(values_S: NDArray[np.complex128] | NDArray[np.float64]) -> float | None:
    """Returns the standard deviation of a series from a linear course; complex is for two axes.

    The estimate uses the median magnitude of second differences. If values are normally
    distributed, second differences have six times their variance. The median ignores a few samples
    with wrong flow. A series of two values has only their difference.
    """
    differences, n_fold = values_S[:-2] - 2 * values_S[1:-1] + values_S[2:], 6
    if not np.isfinite(differences).any():
        differences, n_fold = np.diff(values_S), 2
    sizes = np.abs(differences[np.isfinite(differences)])
    if len(sizes) == 0:
        return None
    # Medians of the Rayleigh and of the half-normal distribution with mean square 1.
    of_one = math.sqrt(math.log(2)) if np.iscomplexobj(values_S) else 0.6745
    return float(np.median(sizes)) / of_one / math.sqrt(n_fold)


def _jitter(rates: Rates) -> float | None:
    return _unevenness(rates["pan_rate"] + 1j * rates["tilt_rate"])


def camera_jitter(clip: ClipView) -> float | None:
    """Returns the unevenness of the camera's motion, in short sides/s.

    The value is the standard deviation of velocity from a course that changes evenly from sample to
    sample; a steady pan has 0 at any speed. A sample has the mean velocity of 0.1 s, so shaking
    above the rate of 2 samples per second counts in full. None with fewer than two samples.
    """
    return _jitter(_rates(clip))


def camera_tags(clip: ClipView) -> list[str]:
    """Returns the `movement_tags` of a clip."""
    return movement_tags(_rates(clip))


def movement_tags(rates: Rates) -> list[str]:
    """Returns tags for the camera's movements; empty if half of the samples have no known motion.

    `pan_left`, `pan_right`, `tilt_up`, `tilt_down`, `zoom_in`, `zoom_out`, `roll`: the movement
    lasts over `WINDOW_SAMPLES` in at least `LEAST_SHARE` of the windows, or over the whole clip,
    and shaking does not explain it. `handheld` or `shaky`: the camera moves unevenly.
    `camera_static`: the camera stands still, and no other tag applies; objects may move.
    """
    speed_S = rates["camera_motion"]
    if len(speed_S) == 0 or np.mean(np.isfinite(speed_S)) < KNOWN_SHARE:
        return []
    tags = _movements(rates, float(np.nanmean(speed_S)))
    jitter = _jitter(rates)
    speed = float(np.nanmedian(speed_S))
    if jitter is not None and jitter >= max(HANDHELD, HANDHELD_PART * speed):
        tags.append("shaky" if jitter >= SHAKY else "handheld")
    if not tags and speed < STILL:
        tags.append("camera_static")
    return tags


def _movements(rates: Rates, speed: float) -> list[str]:
    movements = set()
    for signal, least, to_speed, names in (
        ("pan_rate", STILL, 1.0, ("pan_right", "pan_left")),
        ("tilt_rate", STILL, 1.0, ("tilt_up", "tilt_down")),
        ("zoom_rate", ZOOM_LEAST, 0.5, ("zoom_in", "zoom_out")),
        ("roll_rate", ROLL_LEAST, math.radians(0.5), ("roll", "roll")),
    ):
        rate_S, least = rates[signal], max(least, LEAST_PART * speed / to_speed)
        unevenness = _unevenness(rate_S) or 0.0
        for length in {min(WINDOW_SAMPLES, len(rate_S)), len(rate_S)}:
            steady_W = _steady(rate_S, length, unevenness)
            for sign, name in zip((1, -1), names, strict=True):
                if np.mean(sign * steady_W >= least) >= LEAST_SHARE:
                    movements.add(name)
    order = ("pan_left", "pan_right", "tilt_up", "tilt_down", "zoom_in", "zoom_out", "roll")
    return [name for name in order if name in movements]


def _steady(rate_S: NDArray[np.float64], length: int, unevenness: float) -> NDArray[np.float64]:
    """Returns the median rate in each window of `length` samples, float64 [W]; 0 if uncertain."""
    windows_WL = np.lib.stride_tricks.sliding_window_view(rate_S, length)
    windows_WL = windows_WL[np.isfinite(windows_WL).any(axis=1)]
    medians_W = np.nanmedian(windows_WL, axis=1)
    # The standard error of a median is 1.25 times the standard error of a mean.
    error_W = 1.25 * unevenness / np.sqrt(np.isfinite(windows_WL).sum(axis=1))
    steady_W: NDArray[np.float64] = np.where(np.abs(medians_W) >= CERTAIN * error_W, medians_W, 0.0)
    return steady_W


_RATE_SCORES = (
    ("pan_rate", "short sides/s", "to the right", "median speed of the camera to the right",
     "pan_too_fast"),
    ("tilt_rate", "short sides/s", "up", "median speed of the camera upwards", "tilt_too_fast"),
    ("zoom_rate", "1/s", "in", "median change of the logarithm of the magnification",
     "zoom_too_fast"),
    ("roll_rate", "degrees/s", "the camera turns clockwise",
     "median rotation about the line of sight", "roll_too_fast"),
)  # fmt: skip
SCORES = {
    "camera_motion": ScoreSpec(
        unit="short sides/s",
        range="0 tripod; about 0.05 hand-held; above 1 whip pans",
        meaning="speed of the picture that the camera's motion causes, mean over the picture, "
        "median over samples",
        low="camera_too_still",
        high="camera_too_violent",
        aggregate="median",
        media=OF_TIME,
    ),
    "camera_jitter": ScoreSpec(
        unit="short sides/s",
        range=f"0 tripod or gimbal; {HANDHELD} to {SHAKY} hand-held; above, shaking",
        meaning="standard deviation of the camera's velocity from an even course",
        low="jitter_too_low",
        high="camera_too_shaky",
        of=camera_jitter,
        media=OF_TIME,
    ),
    "camera_share": ScoreSpec(
        unit="share",
        range="0 to 1; below 0.3 the camera's motion is unknown",
        meaning="share of the textured picture that follows one motion; low if motion is too "
        "fast for optical flow",
        low="camera_unclear",
        high="camera_too_clear",
        aggregate="median",
        media=OF_TIME,
    ),
    "object_motion": ScoreSpec(
        unit="short sides/s",
        range="0 and more; 0 if only the camera moves",
        meaning="mean speed over the picture of motion that the camera does not cause",
        aggregate="mean",
        media=OF_TIME,
    ),
    **{
        name: ScoreSpec(
            unit=unit,
            range=f"positive: {way}",
            meaning=meaning,
            outside=reason,
            aggregate="median",
            media=OF_TIME,
        )
        for name, unit, way, meaning, reason in _RATE_SCORES
    },
}
