"""What the camera does, what moves apart from it, and tags that say it in words.

All values say what the camera does, which is the opposite of what the picture does: a camera that
pans right sees its picture move left.

Shape letters: S samples, W windows of them, L their length.
"""

import math

import numpy as np
from numpy.typing import NDArray

from curator.measures.clip_view import ClipView
from curator.measures.measure_contract import ScoreSpec
from curator.measures.motion import CameraFit

SIGNALS = (
    "pan_rate", "tilt_rate", "zoom_rate", "roll_rate", "camera_motion", "object_motion",
    "camera_share",
)  # fmt: skip
"""In the units of the scores of these names. The first four are of the picture's centre: right, up,
in and clockwise are positive."""
MIN_CAMERA_SHARE = 0.3
"""Share of the textured places that must follow the model; objects of 40% of the picture, with the
more texture, leave so many."""
WINDOW_SAMPLES = 4  # 2 s at the usual rate, over which a movement must hold; or the whole clip
CERTAIN = 2.5  # standard errors by which a window's median rate must differ from nothing
LEAST_SHARE = 0.25  # share of a clip's windows in which a movement must be seen
LEAST_PART = 0.2  # share of the faster movement's speed from which a slower one counts too
KNOWN_SHARE = 0.5  # share of the samples in which the camera's motion must be known
STILL = 0.02
"""Short sides per second: slower pans and tilts are none. A camera on a tripod measures below
0.005; at 0.02 the picture takes 50 s to leave the frame."""
ZOOM_LEAST = 0.02
"""1/s: slower zooms are none; it is what `STILL` is to places half a short side off the centre,
rounded down."""
ROLL_LEAST = 2.4  # degrees per second: slower rolls are none
HANDHELD = 0.02  # jitter in short sides per second of a camera in hands, or one that moves as if
HANDHELD_PART = 0.06  # the same, of the camera's speed: a pan that gathers speed is not shaking
SHAKY = 0.15  # jitter in short sides per second from which shaking disturbs


def camera_signals(fit: CameraFit | None, seconds: float) -> dict[str, float]:
    """Values of `SIGNALS`, NaN where no motion model fits; without texture all of them.

    `fit` is of pictures that are `seconds` apart. Places without texture count as following it.
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


def _rate(clip: ClipView, name: str) -> NDArray[np.float64]:
    """A signal in the clip, float64 [S]; NaN where no model fitted."""
    return clip.track.signals[name][clip.samples].astype(np.float64)


def _unevenness(values_S: NDArray[np.complex128] | NDArray[np.float64]) -> float | None:
    """Standard deviation of a series, complex for two axes, about a course that changes evenly.

    From the median magnitude of second differences, as if they were normally distributed: their
    variance is six times that of the series. The median, because a few samples whose flow went
    wrong do not make a shaking camera. A series of two has only their difference.
    """
    differences, n_fold = values_S[:-2] - 2 * values_S[1:-1] + values_S[2:], 6
    if not np.isfinite(differences).any():
        differences, n_fold = np.diff(values_S), 2
    sizes = np.abs(differences[np.isfinite(differences)])
    if len(sizes) == 0:
        return None
    # Medians of the Rayleigh and of the half-normal distribution, of unit mean square.
    of_one = math.sqrt(math.log(2)) if np.iscomplexobj(values_S) else 0.6745
    return float(np.median(sizes)) / of_one / math.sqrt(n_fold)


def camera_jitter(clip: ClipView) -> float | None:
    """How unevenly the camera moves, in short sides per second; None with fewer than two samples.

    The standard deviation of its velocity, averaged over a pair's 0.1 s, about a course that
    changes evenly from sample to sample: a steady pan has none, however fast. Faster shaking than
    the samples' two a second counts in full, because velocities are sampled and not places.
    """
    return _unevenness(_rate(clip, "pan_rate") + 1j * _rate(clip, "tilt_rate"))


def camera_tags(clip: ClipView) -> list[str]:
    """What the camera does, in words; several may hold.

    `static`: it stands still (things may move before it). `pan_left`, `pan_right`, `tilt_up`,
    `tilt_down`, `zoom_in`, `zoom_out`, `roll`: it does so over `WINDOW_SAMPLES`, in at least
    `LEAST_SHARE` of the clip, and more surely than shaking would by chance. `handheld`,
    `shaky`: it moves unevenly; of the two only one holds. In this order; none where the camera's
    motion is not known in half of the samples.
    """
    speed_S = _rate(clip, "camera_motion")
    if len(speed_S) == 0 or np.mean(np.isfinite(speed_S)) < KNOWN_SHARE:
        return []
    tags = _movements(clip, float(np.nanmean(speed_S)))
    jitter = camera_jitter(clip)
    speed = float(np.nanmedian(speed_S))
    if jitter is not None and jitter >= max(HANDHELD, HANDHELD_PART * speed):
        tags.append("shaky" if jitter >= SHAKY else "handheld")
    if not tags and speed < STILL:
        tags.append("static")
    return tags


def _movements(clip: ClipView, speed: float) -> list[str]:
    movements = set()
    for signal, least, to_speed, names in (
        ("pan_rate", STILL, 1.0, ("pan_right", "pan_left")),
        ("tilt_rate", STILL, 1.0, ("tilt_up", "tilt_down")),
        ("zoom_rate", ZOOM_LEAST, 0.5, ("zoom_in", "zoom_out")),
        ("roll_rate", ROLL_LEAST, math.radians(0.5), ("roll", "roll")),
    ):
        rate_S, least = _rate(clip, signal), max(least, LEAST_PART * speed / to_speed)
        unevenness = _unevenness(rate_S) or 0.0
        for length in {min(WINDOW_SAMPLES, len(rate_S)), len(rate_S)}:
            steady_W = _steady(rate_S, length, unevenness)
            for sign, name in zip((1, -1), names, strict=True):
                if np.mean(sign * steady_W >= least) >= LEAST_SHARE:
                    movements.add(name)
    order = ("pan_left", "pan_right", "tilt_up", "tilt_down", "zoom_in", "zoom_out", "roll")
    return [name for name in order if name in movements]


def _steady(rate_S: NDArray[np.float64], length: int, unevenness: float) -> NDArray[np.float64]:
    """Median rate in each window of some samples, 0 where not certain; float64 [W], W >= 1."""
    windows_WL = np.lib.stride_tricks.sliding_window_view(rate_S, length)
    windows_WL = windows_WL[np.isfinite(windows_WL).any(axis=1)]
    medians_W = np.nanmedian(windows_WL, axis=1)
    # The standard error of a median is 1.25 times that of a mean.
    error_W = 1.25 * unevenness / np.sqrt(np.isfinite(windows_WL).sum(axis=1))
    steady_W: NDArray[np.float64] = np.where(np.abs(medians_W) >= CERTAIN * error_W, medians_W, 0.0)
    return steady_W


_RATES = (
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
        range="0 tripod; about 0.05 held in hands; above 1 whip pans",
        meaning="speed of the picture through the camera's motion alone, mean over its places, "
        "median over samples",
        low="camera_too_still",
        high="camera_too_violent",
        aggregate="median",
    ),
    "camera_jitter": ScoreSpec(
        unit="short sides/s",
        range=f"0 tripod or gimbal; {HANDHELD} to {SHAKY} held in hands; above, shaking",
        meaning="standard deviation of the camera's velocity about an even course",
        low="jitter_too_low",
        high="camera_too_shaky",
        of=camera_jitter,
    ),
    "camera_share": ScoreSpec(
        unit="share",
        range="0 to 1; below 0.3 the camera's motion is not known",
        meaning="part of the textured picture that follows one motion; low where motion is too "
        "violent for optical flow",
        low="camera_unclear",
        high="camera_too_clear",
        aggregate="median",
    ),
    "object_motion": ScoreSpec(
        unit="short sides/s",
        range="0 nothing moves but the camera upwards",
        meaning="mean speed over the picture of what moves apart from the camera",
        aggregate="mean",
    ),
    **{
        name: ScoreSpec(
            unit=unit, range=f"positive: {way}", meaning=meaning, outside=reason, aggregate="median"
        )
        for name, unit, way, meaning, reason in _RATES
    },
}
