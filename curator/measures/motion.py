"""Measures motion between two pictures: dense optical flow, and the camera's motion fitted to it.

Shape letters: H, W height and width, P places of the grid on which flow is read.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from curator.measures.measure_contract import OF_TIME, ScoreSpec
from curator.media.hardware_flow import HardwareFlow
from curator.media.opencv import cv2

MIN_SIDE_PX = 16  # smallest side that DIS optical flow accepts
GRID_STEP_PX = 10  # distance of the places on the grid: 32 x 18 places in 320 x 180 px
TEXTURE_LEVELS = 0.4  # a place counts half at this gradient of its weaker direction, levels/px
NOISE_LEVELS = 1.0
"""Largest part of this gradient that noise causes; the picture's flattest tenth gives the part."""
CENTRE = 0.5  # weight of the picture's centre; its edges have weight 1
MIN_TEXTURE_SHARE = 0.01  # textured share of the picture below which no motion is fitted
SURE_SHARE = 0.6  # the first flow is accepted if this share of the textured places follows the fit
TOLERANCE_PX = 0.2  # error of flow at a place that follows the model, without motion
TOLERANCE_SHARE = 0.05  # additional error, as a share of motion: lenses deviate from the model
STILL_BONUS = 1.15  # prior of a camera that stands still, relative to any other motion
UNUSUAL_TURN = 0.3  # a rotation in radians, or change of magnification, half as likely as none
_SHRINK = 0.002
"""Weight of the prior for no zoom and no roll, relative to the variance of textured places in
squared short sides (0.35 for a picture with texture everywhere)."""
_HYPOTHESES = 64
_DRAWS = np.random.default_rng(20240607).uniform(size=(2, _HYPOTHESES))
_REFINEMENTS = 4

Complexes = NDArray[np.complex128]


class DenseFlow:
    """Dense optical flow between pictures of one size."""

    def __init__(self) -> None:
        self._flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)

    def between(
        self, before_HW: NDArray[np.uint8], after_HW: NDArray[np.uint8]
    ) -> NDArray[np.float32] | None:
        """Returns the motion of each pixel, float32 [H, W, 2] in px (x, y); None if too small."""
        if min(before_HW.shape) < MIN_SIDE_PX:
            return None
        flow = self._flow.calc(before_HW, after_HW, None)  # type: ignore[call-overload]
        return np.asarray(flow, np.float32)


Flow = DenseFlow | HardwareFlow


def motion_signals(
    before_HW: NDArray[np.uint8],
    after_HW: NDArray[np.uint8],
    flow_HW2: NDArray[np.float32] | None,
    seconds: float,
) -> dict[str, float]:
    """Returns `motion`, mean flow in short sides/s; without flow, 0 for equal pictures or NaN."""
    if flow_HW2 is None:
        return {"motion": 0.0 if np.array_equal(before_HW, after_HW) else float("nan")}
    pixels = float(np.mean(np.hypot(flow_HW2[..., 0], flow_HW2[..., 1])))
    return {"motion": pixels / int(min(before_HW.shape)) / seconds}


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraFit:
    """The camera's motion between two pictures, by the model `flow = turn * place + shift`.

    Places and flow are complex numbers (x + iy), in short sides from the picture's centre.
    """

    turn: complex  # change of magnification (real) and rotation (imaginary)
    shift: complex  # flow at the centre
    share: float  # share of the textured places that follow the model
    mean_speed: float  # mean magnitude of the model's flow over all places
    mean_rest: float  # mean magnitude of the residual flow over all places


def fitted_flow(
    dense: Flow, before_HW: NDArray[np.uint8], after_HW: NDArray[np.uint8]
) -> tuple[NDArray[np.float32] | None, CameraFit | None]:
    """Returns dense flow between two pictures, and the camera's motion that fits the flow.

    Flow fails if pictures moved by a quarter of their size. If less than `SURE_SHARE` of the
    picture follows the fit, flow is computed again from the shift that phase correlation finds; the
    result is the flow with the larger share.

    Returns:
        Flow, float32 [H, W, 2] in pixels, None for tiny pictures; the fit, None without texture.
    """
    flow = dense.between(before_HW, after_HW)
    if flow is None:
        return None, None
    texture_P = place_texture(before_HW)
    fit = fit_camera(flow, texture_P)
    if fit is None or fit.share >= SURE_SHARE:
        return flow, fit
    x, y = _whole_shift_px(before_HW, after_HW)
    moved_back = np.array([[1, 0, -x], [0, 1, -y]], np.float32)
    size, edges = after_HW.shape[::-1], cv2.BORDER_REPLICATE
    nearer = cv2.warpAffine(after_HW, moved_back, size, flags=cv2.INTER_NEAREST, borderMode=edges)
    again = dense.between(before_HW, np.asarray(nearer, np.uint8))
    assert again is not None
    again += np.array([x, y], np.float32)
    fit_again = fit_camera(again, texture_P)
    if fit_again is None or fit_again.share <= fit.share:
        return flow, fit
    return again, fit_again


def _whole_shift_px(before_HW: NDArray[np.uint8], after_HW: NDArray[np.uint8]) -> tuple[int, int]:
    """Returns the shift (x, y) of the whole picture, by phase correlation at half the size."""
    height, width = before_HW.shape
    size = (max(2, width // 2), max(2, height // 2))
    before, after = (
        cv2.resize(picture, size, interpolation=cv2.INTER_AREA).astype(np.float32)
        for picture in (before_HW, after_HW)
    )
    (x, y), _ = cv2.phaseCorrelate(before, after, cv2.createHanningWindow(size, cv2.CV_32F))
    return round(x * width / size[0]), round(y * height / size[1])


def place_texture(gray_HW: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Returns the weight of each place of the grid for the fit, 0 to 1, float32 [P].

    The weight comes from the weaker eigenvalue of the structure tensor, because motion along a
    straight edge is invisible. Half the size averages noise out. Places near the frame's edges
    weigh more, because moving subjects are mostly in the middle.
    """
    height, width = gray_HW.shape
    half = cv2.resize(
        gray_HW, (max(1, width // 2), max(1, height // 2)), interpolation=cv2.INTER_AREA
    )
    weaker = cv2.cornerMinEigenVal(half, 5) * (255**2 / 4)
    top, left = _grid(height), _grid(width)
    at = np.ix_(np.minimum(top // 2, half.shape[0] - 1), np.minimum(left // 2, half.shape[1] - 1))
    squares = np.maximum(weaker[at].astype(np.float32), 0)
    floor = min(float(np.quantile(squares, 0.1)), NOISE_LEVELS**2)
    squares = np.maximum(squares - floor, 0)
    strength = squares / (squares + np.float32(TEXTURE_LEVELS**2))
    from_centre = np.maximum(
        np.abs(top / height - 0.5)[:, None], np.abs(left / width - 0.5)[None, :]
    )
    texture = strength * (CENTRE + (1 - CENTRE) * 2 * from_centre)
    return np.asarray(texture.ravel(), np.float32)


def _grid(length: int) -> NDArray[np.int64]:
    return np.arange(GRID_STEP_PX // 2, length, GRID_STEP_PX)


def fit_camera(flow_HW2: NDArray[np.float32], texture_P: NDArray[np.float32]) -> CameraFit | None:
    """Fits the camera's motion to flow; returns None without texture."""
    height, width = flow_HW2.shape[:2]
    short = min(height, width)
    top, left = _grid(height), _grid(width)
    places = (
        (left[None, :] - (width - 1) / 2) + 1j * (top[:, None] - (height - 1) / 2)
    ).ravel() / short
    sampled = flow_HW2[np.ix_(top, left)].reshape(-1, 2) / np.float32(short)
    flow = sampled[:, 0] + 1j * sampled[:, 1]
    seen = texture_P > 0.1
    if np.mean(texture_P > 0.25) < MIN_TEXTURE_SHARE or np.count_nonzero(seen) < 4:
        return None
    z, f, w = places[seen], flow[seen], texture_P[seen].astype(np.float64)
    tolerance = (TOLERANCE_PX / short) + TOLERANCE_SHARE * float(np.median(np.abs(f)))
    turn, shift = _best_of_pairs(z, f, w, tolerance)
    for _ in range(_REFINEMENTS):
        nearness = 1 / (1 + np.abs(f - turn * z - shift) ** 2 / tolerance**2)
        turn, shift = _least_squares(z, f, w * nearness**2)
    rest = np.abs(f - turn * z - shift)
    follows = rest < 3 * tolerance
    return CameraFit(
        turn=complex(turn),
        shift=complex(shift),
        share=float(w[follows].sum() / w.sum()),
        mean_speed=float(np.mean(np.abs(turn * places + shift))),
        mean_rest=float(np.sum((w * rest)[~follows]) / len(places)),
    )


def _best_of_pairs(
    z: Complexes, f: Complexes, w: NDArray[np.float64], tolerance: float
) -> tuple[complex, complex]:
    """Returns the motion that most places support: none, or that of one place or of two places."""
    ranks = np.cumsum(w)
    one, other = np.minimum(np.searchsorted(ranks, _DRAWS * ranks[-1]), len(w) - 1)
    apart = z[one] - z[other]
    useful = np.abs(apart) > 0.2
    turns = np.zeros(_HYPOTHESES, np.complex128)
    turns[useful] = (f[one] - f[other])[useful] / apart[useful]
    shifts = f[one] - turns * z[one]
    turns = np.concatenate([np.zeros(1), np.zeros(_HYPOTHESES), turns])
    shifts = np.concatenate([np.zeros(1), f[one], shifts])
    rest = (f - turns[:, None] * z - shifts[:, None]).astype(np.complex64)
    votes = (w / (1 + (rest.real**2 + rest.imag**2) / tolerance**2)).sum(axis=1)
    votes[0] *= STILL_BONUS
    votes /= 1 + (np.abs(turns) / UNUSUAL_TURN) ** 2
    best = int(np.argmax(votes))
    return complex(turns[best]), complex(shifts[best])


def _least_squares(z: Complexes, f: Complexes, w: NDArray[np.float64]) -> tuple[complex, complex]:
    total = w.sum()
    z_mean, f_mean = (w * z).sum() / total, (w * f).sum() / total
    from_mean = z - z_mean
    spread = (w * np.abs(from_mean) ** 2).sum()
    turn = (w * np.conj(from_mean) * (f - f_mean)).sum() / (spread + _SHRINK * total)
    return complex(turn), complex(f_mean - turn * z_mean)


SCORES = {
    "motion": ScoreSpec(
        unit="short sides/s",
        range="0 still and more; above 4 blurred",
        meaning="mean magnitude of optical flow over the picture",
        aggregate="mean",
        media=OF_TIME,
    )
}
