"""The head that finds shot boundaries in what the shot network and its small pictures show.

For each frame it takes features of TransNetV2 (a projection of the 1,024 before its own heads, and
both of those), and compares the pictures of 48x27 pixels at distances of up to 32 frames on either
side: how unlike they are, over the picture and cell by cell, whether the frame between is a mixture
of both, whether each of its pixels is of one of the two, and over 160 frames whether a scene comes
back. A short temporal convolution makes two probabilities of these: that the middle of a boundary
is at the frame, and that the frame is inside of a transition. Several networks that differ in their
seeds are averaged. `benchmarks/train_shot_head.py` fits the weights.

Whole numbers are summed: pictures have 7 bits, activations are rounded to 1/65536 and weights to
1/4096, so that every sum is exact in the type that it is computed in, whatever its order. The
answer depends neither on chunks nor on the machine, but for what the shot network's own arithmetic
moves.

Shape letters: F frames, P pixels, D projections of a network, C channels, M networks.
"""

# ruff: noqa: N803, N806 - shape letters

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

WEIGHTS = Path(__file__).with_name("shot_head.safetensors")

HALF_WIDTHS = (1, 2, 4, 8, 16, 32)
"""A frame's pictures are compared across so many frames before and after it."""
SIDES = (1, 2, 4, 8, 16)
"""Across which each side is compared with itself."""
DILATIONS = (1, 2, 4, 8, 16)
REACH = sum(DILATIONS)
"""Frames on each side that the convolutions see."""
ANCHORS, RETURNS = range(8, 65, 8), range(24, 161, 8)
"""Frames on one side of a frame that are compared with frames on the other: does a scene return?"""
ANCHORS_SHOWN = (0, 1, 3, 7)
"""Anchors with an input of their own; the least distance over all anchors is one more."""
LOOK = RETURNS[-1]
"""Frames on each side whose pictures are compared."""
STEP_LOOK = 8
"""Frames on each side whose steps a step is compared with."""
CELLS = (4, 3, 6, 12)
"""Rows, pixels of each, columns, and values of each of a picture's cells; its last row is left."""
STEP_RANKS, PAIR_RANKS = (2, 7, 12, 17, 22), (4, 12, 20)
"""Of the 24 cells, ordered by a value, those whose values are inputs."""
N_CELL_INPUTS = 4 * len(STEP_RANKS) + (2 * (len(HALF_WIDTHS) - 1) + 1) * len(PAIR_RANKS)
N_RETURN_INPUTS = 4 * (len(ANCHORS_SHOWN) + 1)
N_PAIR_INPUTS = (
    2 * len(HALF_WIDTHS) + 3 * (len(HALF_WIDTHS) - 1) + 2 * len(SIDES)
    + N_CELL_INPUTS + N_RETURN_INPUTS + 2
)  # fmt: skip
BLOCK = 128
"""Frames that are computed together; changes no result."""

_GRID, _MOST = 65536, 64
_WEIGHT_GRID = 4096
_LEAST_VARIANCE = 1.0
"""Variance of a picture, in levels of 127, below which it shows nothing: noise is no content."""
_MAX_LOGIT = 8.0

Floats = NDArray[np.float64]
Pictures = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """Weights of the head.

    Attributes:
        projection: float32 [1024, M * D], of the network's features.
        projected: Their number a network, D.
        enter: float64 [M, D + 2 + pair inputs, C], of the inputs.
        enter_bias: float64 [M, 1, C].
        layers: float64 [M, 3 * C, C] each, of the frames a dilation before, at and after.
        layer_biases: float64 [M, 1, C] each.
        leave: float64 [M, C, 2], to both answers.
        leave_bias: float64 [M, 1, 2].
        calibration: Slope and offset that make a probability of the first answer.
    """

    projection: NDArray[np.float32]
    projected: int
    enter: Floats
    enter_bias: Floats
    layers: tuple[Floats, ...]
    layer_biases: tuple[Floats, ...]
    leave: Floats
    leave_bias: Floats
    calibration: tuple[float, float]


@cache
def shot_head_name() -> str:
    """Name under which its probabilities are stored: other weights have another."""
    return f"shot_head/{hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()[:16]}"


@cache
def head_weights(path: Path = WEIGHTS) -> HeadWeights:
    """Reads the weights that the package carries."""
    from safetensors.numpy import load_file

    stored = load_file(path)
    # Whole numbers are steps of the grid.
    double = {
        name: values.astype(np.float64) / (_WEIGHT_GRID if values.dtype == np.int16 else 1)
        for name, values in stored.items()
    }
    numbers = range(len(DILATIONS))
    slope, offset = double["calibration"].tolist()
    return HeadWeights(
        projection=stored["projection"].astype(np.float32),
        projected=stored["projection"].shape[1] // len(double["enter"]),
        enter=double["enter"],
        enter_bias=double["enter_bias"],
        layers=tuple(double[f"layer_{number}"] for number in numbers),
        layer_biases=tuple(double[f"layer_{number}_bias"] for number in numbers),
        leave=double["leave"],
        leave_bias=double["leave_bias"],
        calibration=(slope, offset),
    )


def small_pictures(frames_FHWC: Pictures) -> NDArray[np.float32]:
    """Pictures of half the size in 7 bits, float32 [F, P], of uint8 RGB [F, 27, 48, 3]."""
    high, wide = frames_FHWC.shape[1] // 2 * 2, frames_FHWC.shape[2] // 2 * 2
    cut = frames_FHWC[:, :high, :wide].astype(np.uint16)
    total = cut[:, ::2, ::2] + cut[:, 1::2, ::2] + cut[:, ::2, 1::2] + cut[:, 1::2, 1::2]
    n_pixels = high * wide * cut.shape[3] // 4
    return np.ascontiguousarray((total >> 3).reshape(len(total), n_pixels), np.float32)


def pair_inputs(pictures_FP: NDArray[np.float32], first: int, last: int) -> Floats:
    """Compares the pictures around frames [first, last), float64 [last - first, `N_PAIR_INPUTS`].

    Args:
        pictures_FP: From `small_pictures`. Near its ends distances are shorter: repeated pictures
            would look like a still shot. The last one is compared with itself.
        first: First frame.
        last: End.
    """
    n_frames, n_pixels = pictures_FP.shape
    # Products of 7 bits over fewer than 1,040 values are exact in float32. Rows are the frames
    # near `first` to `last`, with which all others are compared.
    near = max(0, first - ANCHORS[-1])
    gram = (pictures_FP[near : last + ANCHORS[-1]] @ pictures_FP.T).astype(np.float64)
    means = pictures_FP.sum(axis=1, dtype=np.float64) / n_pixels
    squares = np.square(pictures_FP).sum(axis=1, dtype=np.float64)
    variances = np.maximum(squares / n_pixels - means * means, _LEAST_VARIANCE)
    spreads = np.sqrt(variances)
    t = np.arange(first, last)
    before, after = t + 1, n_frames - 1 - t  # how many frames there are on each side

    def at(frame: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.clip(frame, 0, n_frames - 1)

    def within(distance: int, room: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.clip(room, 1, distance)

    def apart(i: NDArray[np.int64], j: NDArray[np.int64]) -> Floats:
        """Mean squared difference of two pictures, the first one near."""
        return np.asarray((squares[i] + squares[j] - 2 * gram[i - near, j]) / n_pixels)

    def unlike(i: NDArray[np.int64], j: NDArray[np.int64]) -> Floats:
        """One less their correlation."""
        covariance = gram[i - near, j] / n_pixels - means[i] * means[j]
        return np.asarray(1 - covariance / (spreads[i] * spreads[j]))

    values: list[Floats] = []
    as_bytes = pictures_FP.astype(np.uint8)
    now = as_bytes[t]
    for distance in HALF_WIDTHS:
        half = within(distance, np.minimum(before, after))
        a, b = at(t + 1 - half), at(t + half)
        ab = apart(a, b)
        values += [np.sqrt(np.sqrt(ab)), unlike(a, b)]
        if distance == 1:
            continue
        # The share of `a` with which a mixture of both comes closest to the frame.
        along = gram[t - near, a] - gram[t - near, b] - gram[a - near, b] + squares[b]
        along /= n_pixels
        share = np.clip(along / (ab + 1), -0.5, 1.5)
        left = np.maximum(apart(t, b) - 2 * share * along + share * share * ab, 0)
        one, other = as_bytes[a], as_bytes[b]
        either = _levels(np.minimum(_distance(now, one), _distance(now, other)))
        whole = _levels(_distance(one, other))
        values += [share, np.sqrt(left / (ab + 1)), either / (whole + n_pixels / 4)]
    for distance in SIDES:
        left_half, right_half = within(distance, before // 2), within(distance, after // 2)
        left_pair = at(t + 1 - 2 * left_half), at(t + 1 - left_half)
        right_pair = at(t + right_half), at(t + 2 * right_half)
        values += [np.sqrt(np.sqrt(apart(*pair))) for pair in (left_pair, right_pair)]
    values += _cell_inputs(pictures_FP, first, last)
    values += _return_inputs(t, n_frames, unlike)
    values += [np.sqrt(np.sqrt(value)) for value in _return_inputs(t, n_frames, apart)]
    values += [means[t] / 32, spreads[t] / 16]
    return np.stack(values, axis=1)


def _return_inputs(
    t: NDArray[np.int64], n_frames: int, distance: Callable[..., Floats]
) -> list[Floats]:
    """Whether what was before a frame comes back after it, and what is after it was there before.

    A scene that returns was most likely never left: something passed, or was held before the
    lens. Edited films return to shots too; there the other inputs have to tell.

    Args:
        t: Frames, int64 [F].
        n_frames: Of all pictures; where none is far enough, the last one is compared.
        distance: Of pictures, by their frames, the first one near.

    Returns:
        The least distance to pictures of the other side, by anchor and of all, float64 [F] each.
    """
    values: list[Floats] = []
    anchors, away = np.array(ANCHORS), np.array(RETURNS)
    for near, far in ((t[:, None] + 1 - anchors, t[:, None] + away),
                      (t[:, None] + anchors, t[:, None] + 1 - away)):  # fmt: skip
        is_there = (far >= 0) & (far < n_frames)
        is_there[:, 0] = True
        near, far = (np.clip(frames, 0, n_frames - 1) for frames in (near, far))
        apart = np.where(is_there[:, None], distance(near[:, :, None], far[:, None]), np.inf)
        least = apart.min(axis=2)
        values += [*least[:, ANCHORS_SHOWN].T, least.min(axis=1)]
    return values


def _cell_inputs(pictures_FP: NDArray[np.float32], first: int, last: int) -> list[Floats]:
    """How the cells of the picture change, float64 [last - first] each.

    At some ranks of the cells: how far apart two pictures are there, with the cell's brightness and
    without, and by how many octaves a step exceeds all steps around in the same cell. What a mean
    over the picture does not tell: a cut changes all cells at once, an inset some, and what moves
    through the picture one after the other.
    """
    n_frames, cells_PC = len(pictures_FP), _cell_sums()
    cut = pictures_FP[:, : len(cells_PC)]
    n_values = CELLS[1] * CELLS[3]
    t = np.arange(first - STEP_LOOK, last + STEP_LOOK)
    is_step = ((t >= 0) & (t < n_frames - 1))[:, None]
    inner = slice(STEP_LOOK, len(t) - STEP_LOOK)

    def apart(before: NDArray[np.int64], after: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Root of the mean squared difference of each cell, and of its variance, in levels."""
        i, j = (np.clip(frames, 0, n_frames - 1) for frames in (before, after))
        difference = cut[i] - cut[j]
        # Exact: sums of 36 squares of 7 bits.
        mean = (difference @ cells_PC).astype(np.float64) / n_values
        square = ((difference * difference) @ cells_PC).astype(np.float64) / n_values
        return np.sqrt(square), np.sqrt(np.maximum(square - mean * mean, 0))

    def outstanding(values_FC: Floats, gap: int) -> Floats:
        """Octaves above the highest of values at least `gap` frames away, of the inner frames.

        The last bit of a logarithm is the library's, and gone on the grid of the inputs.
        """
        seen = np.lib.stride_tricks.sliding_window_view(values_FC, 2 * STEP_LOOK + 1, axis=0)
        sides = seen[:, :, : STEP_LOOK + 1 - gap], seen[:, :, STEP_LOOK + gap :]
        around = np.maximum(*(side.max(axis=2) for side in sides))
        return np.asarray(np.log2((seen[:, :, STEP_LOOK] + 1) / (around + 1)))

    def ranked(values_FC: Floats, ranks: tuple[int, ...]) -> list[Floats]:
        return list(np.sort(values_FC, axis=1)[:, ranks].T)

    values: list[Floats] = []
    for levels in apart(t, t + 1):
        steps = levels * is_step
        values += ranked(np.sqrt(steps[inner]), STEP_RANKS)
        values += ranked(outstanding(steps, 1), STEP_RANKS)
    for distance in HALF_WIDTHS[1:]:
        half = np.clip(np.minimum(t + 1, n_frames - 1 - t), 1, distance)
        if distance == 2:
            # Four frames wide, so that a cut whose frames were mixed stands out too.
            wide, _ = apart(t + 1 - half, t + half)
            values += ranked(outstanding(wide * is_step, 4), PAIR_RANKS)
        for levels in apart((t + 1 - half)[inner], (t + half)[inner]):
            values += ranked(np.sqrt(levels), PAIR_RANKS)
    return values


@cache
def _cell_sums() -> NDArray[np.float32]:
    """Which cell each value of a picture is in, float32 [P, 24]."""
    rows, _, columns, _ = CELLS
    number = np.arange(rows)[:, None, None, None] * columns + np.arange(columns)[:, None]
    number = np.broadcast_to(number, CELLS).ravel()
    return np.asarray(number[:, None] == np.arange(rows * columns), np.float32)


def _distance(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.asarray(np.maximum(one, other) - np.minimum(one, other))


def _levels(values_FP: NDArray[np.uint8]) -> Floats:
    return np.asarray(values_FP.sum(axis=1, dtype=np.float64))


def log_odds(probability: NDArray[np.floating]) -> Floats:
    """Log odds of the network's probabilities, bounded."""
    least = 1 / (1 + np.exp(_MAX_LOGIT))
    clipped = np.clip(probability.astype(np.float64), least, 1 - least)
    return np.asarray(np.log(clipped / (1 - clipped)))


def run_head(
    weights: HeadWeights, answers_FD: NDArray[np.float32], pair_FD: Floats
) -> tuple[Floats, Floats]:
    """Answers for a span of frames, of which the outer `REACH` hold only at the ends of a film.

    Args:
        weights: The weights.
        answers_FD: float32 [F, 2 + M * D], the network's two probabilities and its projection.
        pair_FD: float64 [F, `N_PAIR_INPUTS`].

    Returns:
        float64 [F] each, in log odds: the middle of a boundary, and inside of a transition.
    """
    n_frames, n_networks = len(answers_FD), len(weights.enter)
    projected = answers_FD[:, 2:].reshape(n_frames, n_networks, weights.projected)
    common = np.concatenate([log_odds(answers_FD[:, :2]), pair_FD], axis=1)
    x = np.concatenate(
        [projected.transpose(1, 0, 2), np.broadcast_to(common, (n_networks, *common.shape))], axis=2
    )
    h = _rounded(_on_grid(x) @ weights.enter + weights.enter_bias)
    for layer, bias, dilation in zip(weights.layers, weights.layer_biases, DILATIONS, strict=True):
        padded = np.pad(h, ((0, 0), (dilation, dilation), (0, 0)))
        seen = [padded[:, :n_frames], h, padded[:, 2 * dilation :]]
        h = _on_grid(h + _rounded(np.concatenate(seen, axis=2) @ layer + bias))
    middle, inside = np.moveaxis((h @ weights.leave + weights.leave_bias).sum(axis=0), 1, 0)
    slope, offset = weights.calibration
    return np.asarray(middle / n_networks * slope + offset), np.asarray(inside / n_networks)


def _on_grid(values: Floats) -> Floats:
    return np.asarray(np.round(np.clip(values, -_MOST, _MOST) * _GRID) / _GRID)


def _rounded(values: Floats) -> Floats:
    return _on_grid(np.maximum(values, 0))


class HeadStream:
    """Runs the head while frames and the network's answers come, in bounded memory."""

    def __init__(self, weights: HeadWeights) -> None:
        self._weights = weights
        self._pictures: list[NDArray[np.float32]] = []
        self._answers: list[NDArray[np.float32]] = []
        self._first_picture = self._first_answer = 0
        """Frames of the film that the lists begin with."""
        self._n_done = 0
        self._done: list[Floats] = []

    def push(self, frames_FHWC: Pictures) -> None:
        """Takes the next frames, uint8 RGB [F, 27, 48, 3]."""
        self._pictures += list(small_pictures(frames_FHWC))

    def answer(self, answers_FD: NDArray[np.float32]) -> None:
        """Takes the network's answers on the next frames, float32 [F, 2 + M * D]."""
        self._answers += list(answers_FD)
        n_pictures = self._first_picture + len(self._pictures)
        n_answers = self._first_answer + len(self._answers)
        while self._n_done + BLOCK + REACH <= min(n_answers, n_pictures - LOOK):
            self._run(self._n_done + BLOCK, self._n_done + BLOCK + REACH)

    def finish(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Ends the film.

        Returns:
            float32 [F] each, rounded to 0.0001: the probability that the middle of a boundary is at
            a frame (a cut's is the last before it), and that a frame is inside of a transition.
        """
        n_frames = self._first_answer + len(self._answers)
        while self._n_done < n_frames:
            end = min(self._n_done + BLOCK, n_frames)
            self._run(end, min(end + REACH, n_frames))
        both = np.concatenate(self._done, axis=1) if self._done else np.zeros((2, 0))
        middle, inside = np.round(1 / (1 + np.exp(-both)), 4).astype(np.float32)
        return np.ascontiguousarray(middle), np.ascontiguousarray(inside)

    def _run(self, end: int, seen: int) -> None:
        """Answers for the frames up to `end`, of which those up to `seen` are needed."""
        first = max(0, self._n_done - REACH)
        of, to = first - self._first_picture, seen - self._first_picture
        low = max(0, of - LOOK)
        pictures = np.stack(self._pictures[low : to + LOOK])
        pair = pair_inputs(pictures, of - low, to - low)
        answers = np.stack(self._answers[first - self._first_answer : seen - self._first_answer])
        middle, inside = run_head(self._weights, answers, pair)
        found = np.stack([middle, inside])[:, self._n_done - first : end - first]
        self._done.append(found)
        self._n_done = end
        drop = max(0, end - REACH - LOOK - self._first_picture)
        del self._pictures[:drop]
        self._first_picture += drop
        drop = max(0, end - REACH - self._first_answer)
        del self._answers[:drop]
        self._first_answer += drop
