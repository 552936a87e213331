"""Finds shot boundaries from features of the shot network and from its small pictures.

For each frame, the head takes features of TransNetV2: a projection of the 1,024 values before its
output heads, and both outputs. It also compares pictures of 48x27 pixels up to 32 frames before and
after the frame: how different they are, as a whole and in each cell, whether the frame is a mixture
of both, and whether each of its pixels comes from one of them. Over 160 frames, it looks for scenes
that return. A short temporal convolution turns these inputs into two probabilities: the middle of a
boundary is at the frame, and the frame is inside of a transition. The head averages several
networks with different seeds. `benchmarks/train_shot_head.py` fits the weights.

All sums are exact in any order, because they are sums of multiples of a step: pictures have 7 bits,
activations are rounded to 1/65536, and weights to 1/4096. Therefore the answers depend neither on
chunks nor on the machine, except through the shot network's arithmetic. Sums of pictures are
float32, all others float64, which is fast enough on a GPU. TF32 would round squares; torch does not
use TF32 for products unless a process enables it.

The head runs in torch on a CPU or a GPU. On a GPU, nothing is copied or waits for the device.

Shape letters: F frames, P pixels, D projections of a network, C channels, M networks.
"""

# ruff: noqa: N803 - shape letters

import hashlib
import math
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

WEIGHTS = Path(__file__).with_name("shot_head.safetensors")

HALF_WIDTHS = (1, 2, 4, 8, 16, 32)
"""Distances, in frames, of the pictures before and after a frame that are compared."""
SIDES = (1, 2, 4, 8, 16)
"""Distances of two pictures on the same side of a frame that are compared."""
DILATIONS = (1, 2, 4, 8, 16)
REACH = sum(DILATIONS)
"""Frames on each side that the convolutions see."""
ANCHORS, RETURNS = range(8, 65, 8), range(24, 161, 8)
"""Distances of frames on one side (anchors) and on the other that show whether a scene returns."""
ANCHORS_SHOWN = (0, 1, 3, 7)
"""Indices of the anchors with separate inputs. The least distance over all anchors is one more."""
LOOK = RETURNS[-1]
"""Frames on each side of a frame that take part in comparisons of pictures."""
STEP_LOOK = 8
"""Frames on each side of a frame that a frame's step is compared with."""
CELLS = (4, 3, 6, 12)
"""A picture's cells: rows, pixels per row, columns, values per column. The last row is unused."""
STEP_RANKS, PAIR_RANKS = range(2, 24, 5), range(4, 24, 8)
"""Ranks of the 24 cells, sorted by a value, at which this value is an input."""
N_CELL_INPUTS = 4 * len(STEP_RANKS) + (2 * (len(HALF_WIDTHS) - 1) + 1) * len(PAIR_RANKS)
N_RETURN_INPUTS = 4 * (len(ANCHORS_SHOWN) + 1)
N_PAIR_INPUTS = (
    2 * len(HALF_WIDTHS) + 3 * (len(HALF_WIDTHS) - 1) + 2 * len(SIDES)
    + N_CELL_INPUTS + N_RETURN_INPUTS + 2
)  # fmt: skip
BLOCK = 128
"""Least frames that are computed together, except at the end; changes no result."""

_GRID, _MOST = 65536, 64
_WEIGHT_GRID = 4096
_LEAST_VARIANCE = 1.0
"""Lower bound for a picture's variance, in levels of 127, because smaller variance is noise."""
_MAX_LOGIT = 8.0


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """Weights of the head.

    Attributes:
        projection: Projects the network's features, float32 [1024, M * D].
        projected: D, the number of projections of one network.
        enter: Weights of the input layer, float64 [M, D + 2 + pair inputs, C].
        enter_bias: float64 [M, 1, C].
        layers: float64 [L, M, 3 * C, C], for the frames a dilation before, at and after a frame.
        layer_biases: float64 [L, M, 1, C].
        leave: Weights of the output layer, float64 [M, C, 2].
        leave_bias: float64 [M, 1, 2].
        calibration: Slope and offset for the log odds of the first answer.
    """

    projection: "Tensor"
    projected: int
    enter: "Tensor"
    enter_bias: "Tensor"
    layers: "Tensor"
    layer_biases: "Tensor"
    leave: "Tensor"
    leave_bias: "Tensor"
    calibration: tuple[float, float]

    def to(self, device: str) -> "HeadWeights":
        """Returns the weights on another device."""
        tensors = {
            field.name: getattr(self, field.name).to(device)
            for field in fields(self)
            if field.name not in ("projected", "calibration")
        }
        return replace(self, **tensors)


@cache
def shot_head_name() -> str:
    """Returns the name under which probabilities are stored, which depends on the weights."""
    return f"shot_head/{hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()[:16]}"


@cache
def head_weights(path: Path = WEIGHTS) -> HeadWeights:
    """Reads weights from a file, by default the packaged ones."""
    import torch
    from safetensors.torch import load_file

    stored = load_file(path)
    # Integers are multiples of the grid's step.
    double = {
        name: values.double() / (_WEIGHT_GRID if values.dtype == torch.int16 else 1)
        for name, values in stored.items()
    }
    numbers = range(len(DILATIONS))
    slope, offset = double["calibration"].tolist()
    return HeadWeights(
        projection=stored["projection"].float(),
        projected=stored["projection"].shape[1] // len(double["enter"]),
        enter=double["enter"],
        enter_bias=double["enter_bias"],
        layers=torch.stack([double[f"layer_{number}"] for number in numbers]),
        layer_biases=torch.stack([double[f"layer_{number}_bias"] for number in numbers]),
        leave=double["leave"],
        leave_bias=double["leave_bias"],
        calibration=(slope, offset),
    )


@cache
def _tables(device: "torch.device") -> "tuple[Tensor, Tensor, Tensor]":
    """Returns `HALF_WIDTHS` and `SIDES`, int64, and each value's cell as one-hot rows [P, 24]."""
    import torch

    rows, high, columns, wide = CELLS
    cells = torch.eye(rows * columns).view(rows, 1, columns, 1, -1)
    cells = cells.expand(rows, high, columns, wide, -1).reshape(rows * high * columns * wide, -1)
    last_row = torch.zeros(columns * wide, rows * columns)
    widths, sides = torch.tensor(HALF_WIDTHS), torch.tensor(SIDES)
    return widths.to(device), sides.to(device), torch.cat([cells, last_row]).to(device)


def small_pictures(frames_FHWC: "Tensor") -> "Tensor":
    """Shrinks uint8 RGB [F, 27, 48, 3] to half the size in 7 bits, float32 [F, P]."""
    high, wide = frames_FHWC.shape[1] // 2 * 2, frames_FHWC.shape[2] // 2 * 2
    rows = frames_FHWC[:, :high:2].float() + frames_FHWC[:, 1:high:2]
    total = rows[:, :, :wide:2] + rows[:, :, 1:wide:2]
    return total.div_(8).floor_().flatten(1)


def pair_inputs(pictures_FP: "Tensor", first: int, last: int) -> "Tensor":
    """Compares the pictures around frames [first, last), float64 [last - first, `N_PAIR_INPUTS`].

    `pictures_FP` are from `small_pictures`. Near the ends, distances are shorter, because repeated
    pictures would look like a still shot. The last picture is compared with itself.
    """
    import torch

    n_frames, n_pixels = pictures_FP.shape
    n = last - first
    device = pictures_FP.device
    widths, sides, cells = _tables(device)
    # Row 0 of `seen` is frame `first - LOOK`; beyond the ends, rows repeat the outermost frame.
    around = torch.arange(first - LOOK, last + LOOK, device=device)
    seen = pictures_FP[around.clamp(0, n_frames - 1)]
    # Includes the frames on both sides with which steps are compared.
    wide = around[LOOK - STEP_LOOK : LOOK + n + STEP_LOOK]
    inner = slice(STEP_LOOK, STEP_LOOK + n)
    room = torch.stack([wide + 1, n_frames - 1 - wide])
    half = torch.minimum(room.amin(0), widths[:, None]).clamp_(min=1)
    here = wide - (first - LOOK)
    a, b = here + 1 - half, here + half
    now, of_cells, places = seen[LOOK : LOOK + n], [], []
    # One distance at a time, so that intermediate values fit into a CPU's cache.
    for left, right in zip(a, b, strict=True):
        one, other = seen.index_select(0, left), seen.index_select(0, right)
        difference = one - other
        of_cells.append(torch.stack([difference @ cells, (difference * difference) @ cells]))
        whole = difference.abs_()[inner].sum(1)
        either = torch.minimum((one[inner] - now).abs_(), (other[inner] - now).abs_()).sum(1)
        places.append(either.double() / (whole.double() + n_pixels / 4))
    cell_values = _cell_inputs(torch.stack(of_cells, dim=1), n)
    left, right = torch.minimum(room[:, None, inner] >> 1, sides[:, None]).clamp_(min=1)
    t, a, b = here[inner], a[:, inner], b[:, inner]
    # Products of 7 bits over fewer than 1,040 values are exact in float32, and so are sums of two.
    near = slice(LOOK - ANCHORS[-1], LOOK + n + ANCHORS[-1])
    squares = seen.square().sum(1)
    gram = seen[near] @ seen.T
    apart = (squares[near, None] - gram) + (squares - gram)
    means = seen.sum(1).double() / n_pixels
    spreads = (squares.double() / n_pixels - means * means).clamp_(min=_LEAST_VARIANCE).sqrt_()
    covariance = gram.double() / n_pixels - means[near, None] * means
    unlike = 1 - covariance / (spreads[near, None] * spreads)
    same = t.expand(len(a) - 1, n)
    i = torch.cat([a, t + 1 - 2 * left, t + right, same, same]) - near.start
    j = torch.cat([b, t + 1 - left, t + 2 * right, a[1:], b[1:]])
    distances = apart[i, j].double()
    n_sides = len(SIDES)
    across, _, to_a, to_b = distances.split([len(a), 2 * n_sides, len(a) - 1, len(a) - 1])
    ab = across[1:] / n_pixels
    # The share of `a` in the mixture of both pictures that is closest to the frame.
    along = (to_b + across[1:] - to_a) / 2 / n_pixels
    share = (along / (ab + 1)).clamp_(-0.5, 1.5)
    rest = (to_b / n_pixels - 2 * share * along + share * share * ab).clamp_(min=0)
    roots = (distances[: len(a) + 2 * n_sides] / n_pixels).sqrt_().sqrt_()
    pairs = unlike[i[: len(a)], b]
    of_pairs = [
        roots[1 : len(a)], pairs[1:], share, (rest / (ab + 1)).sqrt_(),
        torch.stack(places[1:]),
    ]  # fmt: skip
    values = [
        roots[:1], pairs[:1],
        torch.stack(of_pairs, dim=1).flatten(0, 1),
        roots[len(a) :].view(2, n_sides, n).transpose(0, 1).flatten(0, 1),
        cell_values,
        _return_inputs(torch.stack([unlike, apart.double() / n_pixels]), first, n_frames, n),
        means[None, LOOK : LOOK + n] / 32, spreads[None, LOOK : LOOK + n] / 16,
    ]  # fmt: skip
    return torch.cat(values).T


def _return_inputs(distances_2NF: "Tensor", first: int, n_frames: int, n: int) -> "Tensor":
    """Measures whether the scene before a frame returns after it, and vice versa.

    A scene that returns probably never ended: an object passed, or covered the lens. Edited films
    return to shots too; there, other inputs must decide.

    Args:
        distances_2NF: Distances of pictures by two measures. Rows are frames up to the last of
            `ANCHORS` before and after the n frames, columns those up to `LOOK`.
        first: First of the n frames.
        n_frames: Number of all pictures. If no picture is far enough, the last one is compared.
        n: Number of frames.

    Returns:
        Least distances to pictures on the other side, per anchor and overall, float64 [20, n].
    """
    import torch

    n_rows, width = distances_2NF.shape[1:]
    step = RETURNS.step
    # The next frame is one row and one column later.
    sizes = 2, n, len(ANCHORS), len(RETURNS)
    strides = n_rows * width, width + 1, ANCHORS.step * width, step
    t = torch.arange(first, first + n, device=distances_2NF.device)[:, None]
    away = torch.arange(RETURNS.start, RETURNS.stop, step, device=t.device)
    # On both sides, anchors and frames away from them are in order of time.
    after = distances_2NF.as_strided(sizes, strides, width + LOOK + RETURNS.start)
    is_beyond = t + away >= n_frames
    is_beyond[:, 0] = False
    before = distances_2NF.as_strided(sizes, strides, (ANCHORS[-1] + ANCHORS[0]) * width + 1)
    is_before = t + 1 - away.flip(0) < 0
    is_before[:, -1] = False
    least = torch.stack(
        [
            after.masked_fill(is_beyond[:, None], math.inf).amin(3).flip(2),
            before.masked_fill(is_before[:, None], math.inf).amin(3),
        ],
        dim=1,
    )
    shown = [least[..., anchor, None] for anchor in ANCHORS_SHOWN]
    values = torch.cat([*shown, least.amin(3, keepdim=True)], dim=3)
    values[1].sqrt_().sqrt_()
    return values.transpose(2, 3).reshape(-1, n)


def _cell_inputs(sums_2KFC: "Tensor", n: int) -> "Tensor":
    """Measures how the cells of the picture change, float64 [`N_CELL_INPUTS`, n].

    The inputs are values at some ranks of the cells: the difference of two pictures in a cell, with
    and without the cell's brightness, and by how many octaves a step exceeds all nearby steps in
    the same cell. Cells distinguish changes that a mean over the picture does not: a cut changes
    all cells at once, an inset some of them, and a moving object one after the other.

    Args:
        sums_2KFC: Sums of differences of two pictures and of their squares, in each cell, by
            `HALF_WIDTHS`, float32 [2, 6, n + 2 * `STEP_LOOK`, 24]; exact, as 36 squares of 7 bits.
        n: Number of frames.
    """
    import torch
    from torch.nn.functional import max_pool1d

    n_values = CELLS[1] * CELLS[3]
    mean, square = sums_2KFC.double() / n_values
    # Root of the mean squared difference of each cell, and of its variance, in levels.
    levels = torch.stack([square, (square - mean * mean).clamp_(min=0)], dim=1).sqrt_()

    def highest(values_KFC: "Tensor", gap: int) -> "Tensor":
        """For each inner frame, returns the highest value at least `gap` frames away."""
        sides = max_pool1d(values_KFC.transpose(1, 2), STEP_LOOK + 1 - gap, 1)
        after = STEP_LOOK + gap
        return torch.maximum(sides[..., :n], sides[..., after : after + n]).transpose(1, 2)

    inner = levels[:, :, STEP_LOOK : STEP_LOOK + n]
    # A gap of 4 frames, so that a cut with blended frames exceeds its surroundings too.
    around = torch.cat([highest(levels[0], 1), highest(levels[1, :1], 4)])
    # The last bit of a logarithm depends on the library; rounding to the grid removes it.
    outstanding = ((torch.cat([inner[0], inner[1, :1]]) + 1) / (around + 1)).log2_()
    roots = inner.sqrt()
    steps = torch.stack([roots[0], outstanding[:2]], dim=1).flatten(0, 1)
    ranked = torch.cat([steps, outstanding[2:], roots[1:].flatten(0, 1)]).sort(dim=2).values
    of_steps = ranked[: len(steps), :, STEP_RANKS.start :: STEP_RANKS.step]
    of_pairs = ranked[len(steps) :, :, PAIR_RANKS.start :: PAIR_RANKS.step]
    return torch.cat([part.transpose(1, 2).flatten(0, 1) for part in (of_steps, of_pairs)])


def log_odds(probability: "Tensor") -> "Tensor":
    """Returns bounded log odds of the network's probabilities, float64."""
    return probability.double().logit().clamp_(-_MAX_LOGIT, _MAX_LOGIT)


def run_head(weights: HeadWeights, answers_FD: "Tensor", pair_FD: "Tensor") -> "Tensor":
    """Computes the head for a span of frames.

    Except at the ends of a film, the answers of the outer `REACH` frames are not valid.

    Args:
        weights: Weights of the head.
        answers_FD: The network's two probabilities and its projection, float32 [F, 2 + M * D].
        pair_FD: Returned by `pair_inputs`, float64 [F, `N_PAIR_INPUTS`].

    Returns:
        Log odds, float64 [F, 2]: the middle of a boundary, and inside of a transition.
    """
    import torch
    from torch.nn.functional import pad

    n_frames, n_networks = len(answers_FD), len(weights.enter)
    projected = answers_FD[:, 2:].view(n_frames, n_networks, weights.projected)
    common = torch.cat([log_odds(answers_FD[:, :2]), pair_FD], dim=1)
    x = torch.cat([projected.transpose(0, 1), common.expand(n_networks, *common.shape)], dim=2)
    h = _rounded(torch.baddbmm(weights.enter_bias, _on_grid(x), weights.enter))
    for layer, bias, dilation in zip(weights.layers, weights.layer_biases, DILATIONS, strict=True):
        padded = pad(h, (0, 0, dilation, dilation))
        seen = torch.cat([padded[:, :n_frames], h, padded[:, 2 * dilation :]], dim=2)
        # The sum of two values on the grid is on the grid.
        h = (_rounded(torch.baddbmm(bias, seen, layer)) + h).clamp_(max=_MOST)
    both = torch.baddbmm(weights.leave_bias, h, weights.leave).sum(0) / n_networks
    slope, offset = weights.calibration
    both[:, 0].mul_(slope).add_(offset)
    return both


def _on_grid(values: "Tensor") -> "Tensor":
    return values.clamp(-_MOST, _MOST).mul_(_GRID).round_().div_(_GRID)


def _rounded(values: "Tensor") -> "Tensor":
    return values.clamp_(0, _MOST).mul_(_GRID).round_().div_(_GRID)


class HeadStream:
    """Runs the head while frames and the network's answers arrive, in bounded memory.

    Tensors are replaced, never modified, so a shallow copy of a stream keeps its state.
    """

    def __init__(self, weights: HeadWeights) -> None:
        self._weights = weights
        self._pictures: tuple[Tensor, ...] = ()
        self._answers: tuple[Tensor, ...] = ()
        self._pair: tuple[Tensor, ...] = ()
        self._n_pictures = self._n_answers = self._n_compared = self._n_done = 0
        """Numbers of the film's frames with pictures, with answers, with pair inputs, and done."""

    def push(self, frames_FHWC: "Tensor") -> None:
        """Takes the next frames, uint8 RGB [F, 27, 48, 3], on the device of the weights."""
        self._pictures += (small_pictures(frames_FHWC),)
        self._n_pictures += len(frames_FHWC)

    def answer(self, answers_FD: "Tensor", *, is_last: bool = False) -> "Tensor":
        """Takes the network's answers on the next frames, float32 [F, 2 + M * D].

        Returns:
            float64 [N, 4], for the next frames with all neighbours known, or for all remaining
            frames if `is_last`: the network's two probabilities; the probability that the middle of
            a boundary is at the frame (for a cut, the last frame before it); and the probability
            that the frame is inside of a transition.
        """
        self._answers += (answers_FD,)
        self._n_answers += len(answers_FD)
        seen = self._n_answers if is_last else min(self._n_answers, self._n_pictures - LOOK)
        end = seen if is_last else seen - REACH
        if end - self._n_done < BLOCK and not is_last:
            return answers_FD.new_zeros((0, 4)).double()
        return self._run(end, seen)

    def _run(self, end: int, seen: int) -> "Tensor":
        """Computes answers for the frames up to `end`, from the frames up to `seen`."""
        import torch

        pictures, answers = torch.cat(self._pictures), torch.cat(self._answers)
        # Frame numbers at which pictures and answers begin.
        shown, first = self._n_pictures - len(pictures), self._n_answers - len(answers)
        new = pair_inputs(pictures, self._n_compared - shown, seen - shown)
        pair = torch.cat([*self._pair, new])
        inner = slice(self._n_done - first, end - first)
        odds = run_head(self._weights, answers[: len(pair)], pair)[inner]
        self._pictures = (pictures[max(0, seen - LOOK - shown) :],)
        drop = max(0, end - REACH - first)
        self._answers, self._pair = (answers[drop:],), (pair[drop:],)
        self._n_compared, self._n_done = seen, end
        return torch.cat([answers[inner, :2], odds.sigmoid()], dim=1)
