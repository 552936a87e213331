"""The camera's motion per frame and its poses, from the velocities that the analysis measured.

The analysis measures mean velocities over pairs of frames, a few times per second. Between them the
velocity is a cubic spline whose mean over each pair is the measured one, and the motion of a frame
is its integral.

Shape letters: F frames, S samples, N times, C components.
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from curator.measures.motion import CENTRE, GRID_STEP_PX, fit_camera
from curator.media.opencv import cv2

RATES = ("pan_rate", "tilt_rate", "zoom_rate", "roll_rate")
TIMES = ("source_s", "sample_s", "sample_pair_s")
_ROUNDS, _EXACT = 24, 1e-7
"""Most corrections of a spline, and the error of a mean that needs none. If pairs leave no gaps, a
correction takes away at least half of the error."""
_ROUNDING_S = 1e-4  # of times as float32
_SMALL_PX = 320
"""Longer side of the picture in which the analysis measures motion."""
_ANGLES_DEG = np.concatenate([[0.0], np.geomspace(0.01, 20, 40)])
"""Rotations for which the fit's answer is computed."""

Floats = NDArray[np.float64]


def frame_motion(
    signals: Mapping[str, NDArray[np.float32]],
    *,
    focal: float | None = None,
    size: tuple[int, int] = (16, 9),
) -> Floats:
    """Returns the motion of each written frame from the frame before.

    Args:
        signals: `RATES` and times by name, float32 [F] each, as an `Annotator` gets them.
        focal: Focal length of the first frame, in short sides; None without a lens.
        size: Width and height of the picture, of which only the ratio counts.

    Returns:
        Float64 [F, 4]: pan and tilt in short sides, or in degrees with a focal length; the
        logarithm of the scale; roll in degrees. The first frame has 0, as frames have that repeat
        the frame before. NaN for a frame that is far from samples with a known motion.
    """
    shown_s = signals["source_s"].astype(np.float64)
    start_s, first = np.unique(signals["sample_s"].astype(np.float64), return_index=True)
    is_sample = np.isfinite(start_s)
    start_s, first = start_s[is_sample], first[is_sample]
    end_s = signals["sample_pair_s"][first].astype(np.float64)
    rates_S4 = np.stack([signals[name][first] for name in RATES], axis=1).astype(np.float64)
    is_known = np.isfinite(rates_S4).all(axis=1)
    motion_F4 = np.full((len(shown_s), 4), np.nan)
    if not is_known.any():
        return motion_F4
    middle_s = (start_s + end_s) / 2
    # A clip with one sample has no usual distance: half a second, the default of the analysis.
    distance_s = float(np.median(np.diff(middle_s))) if len(middle_s) > 1 else 0.5
    pairs = start_s[is_known], end_s[is_known]
    rates_S4 = rates_S4[is_known]
    if focal is not None:
        zoom = _Velocity(*pairs, rates_S4[:, 2:3])
        scale_S = np.exp(zoom.path(middle_s[is_known]) - zoom.path(shown_s[:1]))[:, 0]
        pair_s, small = pairs[1] - pairs[0], _small_size(*size)
        for axis in (0, 1):
            turn_S = _degrees(rates_S4[:, axis] * pair_s, axis, focal, small)
            rates_S4[:, axis] = turn_S / scale_S / pair_s
    path_F4 = _Velocity(*pairs, rates_S4).path(shown_s)
    motion_F4[1:] = np.diff(path_F4, axis=0)
    motion_F4[0] = 0.0
    known_s = np.concatenate([[-np.inf], middle_s[is_known], [np.inf]])
    after = np.searchsorted(known_s, shown_s)
    gap_F = np.minimum(shown_s - known_s[after - 1], known_s[after] - shown_s)
    # The last sample of a clip may be so far from its end; and one sample may lack texture.
    motion_F4[gap_F > distance_s + (end_s - start_s).max() + _ROUNDING_S] = np.nan
    return motion_F4


def _small_size(width: int, height: int) -> tuple[int, int]:
    """Returns the size of the picture in which the analysis measures the motion."""
    scale = _SMALL_PX / max(width, height)
    return round(width * scale), round(height * scale)


class _Velocity:
    """Velocities over time, a cubic spline whose means over pairs of frames are given.

    Before the first and after the last sample, velocity changes linearly.
    """

    def __init__(self, start_s: Floats, end_s: Floats, mean_SC: Floats) -> None:
        self._knot_s = (start_s + end_s) / 2
        self._values, self._bends = mean_SC, _bends(self._knot_s, mean_SC)
        for _ in range(_ROUNDS):
            mean = (self.path(end_s) - self.path(start_s)) / (end_s - start_s)[:, None]
            missing = mean_SC - mean
            if np.abs(missing).max() < _EXACT:
                break
            self._values = self._values + missing
            self._bends = _bends(self._knot_s, self._values)

    def path(self, times_s: Floats) -> Floats:
        """Returns the integral of the velocity from the first sample to each time, [N, C]."""
        knot_s, values, bends = self._knot_s, self._values, self._bends
        if len(knot_s) == 1:
            steady: Floats = (times_s - knot_s[0])[:, None] * values
            return steady
        step_s = np.diff(knot_s)[:, None]
        slopes = np.diff(values, axis=0) / step_s
        first_slope = slopes - step_s * (2 * bends[:-1] + bends[1:]) / 6
        last_slope = slopes[-1] + step_s[-1] * (bends[-2] + 2 * bends[-1]) / 6
        jerk = np.diff(bends, axis=0) / step_s
        coefficients = (values[:-1], first_slope, bends[:-1], jerk)

        def within(at: NDArray[np.intp], dt: Floats) -> Floats:
            v, a, b, j = (of[at] for of in coefficients)
            integral: Floats = dt * (v + dt * (a / 2 + dt * (b / 6 + dt * j / 24)))
            return integral

        whole = within(np.arange(len(step_s)), step_s)
        reached = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(whole, axis=0)])
        at = np.clip(np.searchsorted(knot_s, times_s, side="right") - 1, 0, len(step_s) - 1)
        path = reached[at] + within(at, (times_s - knot_s[at])[:, None])
        early, late = (times_s - knot_s[0])[:, None], (times_s - knot_s[-1])[:, None]
        path = np.where(early < 0, early * (values[0] + early / 2 * first_slope[0]), path)
        after = reached[-1] + late * (values[-1] + late / 2 * last_slope)
        whole_path: Floats = np.where(late > 0, after, path)
        return whole_path


def _bends(knot_s: Floats, values_SC: Floats) -> Floats:
    """Returns the second derivatives of the spline at its knots, [S, C].

    The first two and the last two pieces are one cubic each ("not-a-knot"), so that a velocity that
    rises and falls is not straightened at the ends of a clip. Two samples give a straight line, and
    three a parabola.
    """
    bends = np.zeros_like(values_SC)
    if len(knot_s) < 3:
        return bends
    step = np.diff(knot_s)
    right = 6 * np.diff(np.diff(values_SC, axis=0) / step[:, None], axis=0)
    if len(knot_s) == 3:
        bends += right / (3 * step.sum())
        return bends
    # A tridiagonal system for the inner knots; the ends follow from their neighbours.
    diagonal, upper, lower = 2 * (step[:-1] + step[1:]), step[1:].copy(), step[:-1].copy()
    first, last = step[0] / step[1], step[-1] / step[-2]
    diagonal[0] += step[0] * (1 + first)
    upper[0] -= step[0] * first
    diagonal[-1] += step[-1] * (1 + last)
    lower[-1] -= step[-1] * last
    for row in range(1, len(diagonal)):
        factor = lower[row] / diagonal[row - 1]
        diagonal[row] -= factor * upper[row - 1]
        right[row] -= factor * right[row - 1]
    bends[-2] = right[-1] / diagonal[-1]
    for row in range(len(diagonal) - 2, -1, -1):
        bends[row + 1] = (right[row] - upper[row] * bends[row + 2]) / diagonal[row]
    bends[0] = (1 + first) * bends[1] - first * bends[2]
    bends[-1] = (1 + last) * bends[-2] - last * bends[-3]
    return bends


def _degrees(moved_S: Floats, axis: int, focal: float, size: tuple[int, int]) -> Floats:
    """Returns the rotations that a fit shows as shifts of the picture's centre, in degrees.

    If a camera turns, the picture's edges move faster than its centre, and the fit is between them.
    So the fit's answers for some rotations are computed and inverted.
    """
    shifts = _fitted_shifts(axis, focal, size)
    degrees: Floats = np.sign(moved_S) * np.interp(np.abs(moved_S), shifts, _ANGLES_DEG)
    return degrees


@lru_cache(maxsize=64)
def _fitted_shifts(axis: int, focal: float, size: tuple[int, int]) -> Floats:
    """Returns the shifts in short sides that the fit finds for rotations by `_ANGLES_DEG`.

    `axis` is 0 for a turn to the right, and 1 for a turn upwards.
    """
    width, height = size
    y, x = np.mgrid[:height, :width]
    short = min(size)
    places = np.stack([(x - (width - 1) / 2) / short, (y - (height - 1) / 2) / short], axis=-1)
    rays = np.concatenate([places / focal, np.ones((height, width, 1))], axis=-1)
    grid = [np.arange(GRID_STEP_PX // 2, length, GRID_STEP_PX) for length in (height, width)]
    down, right = (
        np.abs(at / length - 0.5) for at, length in zip(grid, (height, width), strict=True)
    )
    # The weights of a picture with the same texture everywhere, as `place_texture` gives them.
    weights = CENTRE + (1 - CENTRE) * 2 * np.maximum(down[:, None], right[None, :])
    shifts = [0.0]
    for degrees in _ANGLES_DEG[1:]:
        pan_deg, tilt_deg = (degrees, 0.0) if axis == 0 else (0.0, degrees)
        seen = rays @ turned(pan_deg, tilt_deg, 0.0).T
        flow = (seen[..., :2] / seen[..., 2:] * focal - places) * short
        fit = fit_camera(flow.astype(np.float32), weights.ravel().astype(np.float32))
        assert fit is not None
        shifts.append(-fit.shift.real if axis == 0 else fit.shift.imag)
    return np.maximum.accumulate(np.array(shifts))


def turned(pan_deg: float, tilt_deg: float, roll_deg: float) -> Floats:
    """Returns the matrix from a camera's axes (right, down, forward) to those after a turn."""
    # What a camera sees moves to the left if it turns to the right.
    matrix, _ = cv2.Rodrigues(-np.radians([tilt_deg, pan_deg, roll_deg]))
    return np.asarray(matrix, np.float64)


def camera_poses(motion_F4: Floats, focal: float) -> Floats:
    """Returns the pose of each frame, from its motion in degrees.

    Returns:
        Float64 [F, 4]: the rotation from the frame's axes (right, down, forward) to those of the
        first frame, as an axis times radians, and the focal length in short sides. NaN from the
        first frame without a known motion on.
    """
    poses_F4 = np.full_like(motion_F4, np.nan)
    to_first = np.eye(3)
    for frame, (pan, tilt, zoom, roll) in enumerate(motion_F4.tolist()):
        if not np.isfinite([pan, tilt, zoom, roll]).all():
            break
        to_first = to_first @ turned(pan, tilt, roll).T
        focal *= np.exp(zoom)
        vector, _ = cv2.Rodrigues(to_first)
        poses_F4[frame] = (*vector[:, 0], focal)
    return poses_F4
