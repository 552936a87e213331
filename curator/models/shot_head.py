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
moves. float32 holds sums of pictures, float64 all else: a GPU has time for it, and its TF32, which
would round squares, is off for products in torch unless a process asks for it.

All of it is torch's, on a CPU and on a GPU, where nothing waits for the device or is copied to it.

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
STEP_RANKS, PAIR_RANKS = range(2, 24, 5), range(4, 24, 8)
"""Of the 24 cells, ordered by a value, those whose values are inputs."""
N_CELL_INPUTS = 4 * len(STEP_RANKS) + (2 * (len(HALF_WIDTHS) - 1) + 1) * len(PAIR_RANKS)
N_RETURN_INPUTS = 4 * (len(ANCHORS_SHOWN) + 1)
N_PAIR_INPUTS = (
    2 * len(HALF_WIDTHS) + 3 * (len(HALF_WIDTHS) - 1) + 2 * len(SIDES)
    + N_CELL_INPUTS + N_RETURN_INPUTS + 2
)  # fmt: skip
BLOCK = 128
"""The fewest frames that are computed together, but at the end; changes no result."""

_GRID, _MOST = 65536, 64
_WEIGHT_GRID = 4096
_LEAST_VARIANCE = 1.0
"""Variance of a picture, in levels of 127, below which it shows nothing: noise is no content."""
_MAX_LOGIT = 8.0


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """Weights of the head.

    Attributes:
        projection: float32 [1024, M * D], of the network's features.
        projected: Their number a network, D.
        enter: float64 [M, D + 2 + pair inputs, C], of the inputs.
        enter_bias: float64 [M, 1, C].
        layers: float64 [L, M, 3 * C, C], of the frames a dilation before, at and after.
        layer_biases: float64 [L, M, 1, C].
        leave: float64 [M, C, 2], to both answers.
        leave_bias: float64 [M, 1, 2].
        calibration: Slope and offset that make a probability of the first answer.
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
        """The same on another device."""
        tensors = {
            field.name: getattr(self, field.name).to(device)
            for field in fields(self)
            if field.name not in ("projected", "calibration")
        }
        return replace(self, **tensors)


@cache
def shot_head_name() -> str:
    """Name under which its probabilities are stored: other weights have another."""
    return f"shot_head/{hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()[:16]}"


@cache
def head_weights(path: Path = WEIGHTS) -> HeadWeights:
    """Reads the weights that the package carries."""
    import torch
    from safetensors.torch import load_file

    stored = load_file(path)
    # Whole numbers are steps of the grid.
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
    """Both kinds of distances, int64, and which cell each value of a picture is in, [P, 24]."""
    import torch

    rows, high, columns, wide = CELLS
    cells = torch.eye(rows * columns).view(rows, 1, columns, 1, -1)
    cells = cells.expand(rows, high, columns, wide, -1).reshape(rows * high * columns * wide, -1)
    last_row = torch.zeros(columns * wide, rows * columns)
    widths, sides = torch.tensor(HALF_WIDTHS), torch.tensor(SIDES)
    return widths.to(device), sides.to(device), torch.cat([cells, last_row]).to(device)


def small_pictures(frames_FHWC: "Tensor") -> "Tensor":
    """Pictures of half the size in 7 bits, float32 [F, P], of uint8 RGB [F, 27, 48, 3]."""
    high, wide = frames_FHWC.shape[1] // 2 * 2, frames_FHWC.shape[2] // 2 * 2
    rows = frames_FHWC[:, :high:2].float() + frames_FHWC[:, 1:high:2]
    total = rows[:, :, :wide:2] + rows[:, :, 1:wide:2]
    return total.div_(8).floor_().flatten(1)


def pair_inputs(pictures_FP: "Tensor", first: int, last: int) -> "Tensor":
    """Compares the pictures around frames [first, last), float64 [last - first, `N_PAIR_INPUTS`].

    Args:
        pictures_FP: From `small_pictures`. Near its ends distances are shorter: repeated pictures
            would look like a still shot. The last one is compared with itself.
        first: First frame.
        last: End.
    """
    import torch

    n_frames, n_pixels = pictures_FP.shape
    n = last - first
    device = pictures_FP.device
    widths, sides, cells = _tables(device)
    # Rows of `seen` are the frames from `first - LOOK`, beyond the ends copies of the outermost.
    around = torch.arange(first - LOOK, last + LOOK, device=device)
    seen = pictures_FP[around.clamp(0, n_frames - 1)]
    # More frames on both sides, with which steps are compared.
    wide = around[LOOK - STEP_LOOK : LOOK + n + STEP_LOOK]
    inner = slice(STEP_LOOK, STEP_LOOK + n)
    room = torch.stack([wide + 1, n_frames - 1 - wide])
    half = torch.minimum(room.amin(0), widths[:, None]).clamp_(min=1)
    here = wide - (first - LOOK)
    a, b = here + 1 - half, here + half
    now, of_cells, places = seen[LOOK : LOOK + n], [], []
    # One distance after the other, so that a CPU's cache holds what is computed.
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
    # The share of `a` with which a mixture of both comes closest to the frame.
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
    """Whether what was before a frame comes back after it, and what is after it was there before.

    A scene that returns was most likely never left: something passed, or was held before the
    lens. Edited films return to shots too; there the other inputs have to tell.

    Args:
        distances_2NF: Of pictures in two measures, of those up to the last of `ANCHORS` frames
            before and after the frames, from those up to `LOOK`.
        first: First of the frames.
        n_frames: Of all pictures; where none is far enough, the last one is compared.
        n: The frames.

    Returns:
        The least distance to pictures of the other side, by anchor and of all, float64 [20, n].
    """
    import torch

    n_rows, width = distances_2NF.shape[1:]
    step = RETURNS.step
    # A frame later is a row and a column later.
    sizes = 2, n, len(ANCHORS), len(RETURNS)
    strides = n_rows * width, width + 1, ANCHORS.step * width, step
    t = torch.arange(first, first + n, device=distances_2NF.device)[:, None]
    away = torch.arange(RETURNS.start, RETURNS.stop, step, device=t.device)
    # On both sides anchors and frames away in the order of the frames that they name.
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
    """How the cells of the picture change, float64 [`N_CELL_INPUTS`, n].

    At some ranks of the cells: how far apart two pictures are there, with the cell's brightness and
    without, and by how many octaves a step exceeds all steps around in the same cell. What a mean
    over the picture does not tell: a cut changes all cells at once, an inset some, and what moves
    through the picture one after the other.

    Args:
        sums_2KFC: Of the differences of two pictures in each cell and of their squares, by
            `HALF_WIDTHS`, float32 [2, 6, n + 2 * `STEP_LOOK`, 24]: exact, 36 squares of 7 bits.
        n: Frames.
    """
    import torch
    from torch.nn.functional import max_pool1d

    n_values = CELLS[1] * CELLS[3]
    mean, square = sums_2KFC.double() / n_values
    # Root of the mean squared difference of each cell, and of its variance, in levels.
    levels = torch.stack([square, (square - mean * mean).clamp_(min=0)], dim=1).sqrt_()

    def highest(values_KFC: "Tensor", gap: int) -> "Tensor":
        """The highest of values at least `gap` frames away, of the inner frames."""
        sides = max_pool1d(values_KFC.transpose(1, 2), STEP_LOOK + 1 - gap, 1)
        after = STEP_LOOK + gap
        return torch.maximum(sides[..., :n], sides[..., after : after + n]).transpose(1, 2)

    inner = levels[:, :, STEP_LOOK : STEP_LOOK + n]
    # Four frames wide, so that a cut whose frames were mixed stands out too.
    around = torch.cat([highest(levels[0], 1), highest(levels[1, :1], 4)])
    # The last bit of a logarithm is the library's, and gone on the grid of the inputs.
    outstanding = ((torch.cat([inner[0], inner[1, :1]]) + 1) / (around + 1)).log2_()
    roots = inner.sqrt()
    steps = torch.stack([roots[0], outstanding[:2]], dim=1).flatten(0, 1)
    ranked = torch.cat([steps, outstanding[2:], roots[1:].flatten(0, 1)]).sort(dim=2).values
    of_steps = ranked[: len(steps), :, STEP_RANKS.start :: STEP_RANKS.step]
    of_pairs = ranked[len(steps) :, :, PAIR_RANKS.start :: PAIR_RANKS.step]
    return torch.cat([part.transpose(1, 2).flatten(0, 1) for part in (of_steps, of_pairs)])


def log_odds(probability: "Tensor") -> "Tensor":
    """Log odds of the network's probabilities, bounded, float64."""
    return probability.double().logit().clamp_(-_MAX_LOGIT, _MAX_LOGIT)


def run_head(weights: HeadWeights, answers_FD: "Tensor", pair_FD: "Tensor") -> "Tensor":
    """Answers for a span of frames, of which the outer `REACH` hold only at the ends of a film.

    Args:
        weights: The weights.
        answers_FD: float32 [F, 2 + M * D], the network's two probabilities and its projection.
        pair_FD: float64 [F, `N_PAIR_INPUTS`].

    Returns:
        float64 [F, 2], in log odds: the middle of a boundary, and inside of a transition.
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
        # A sum of two on the grid is on it.
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
    """Runs the head while frames and the network's answers come, in bounded memory.

    Tensors are replaced, never written to: a copy of a stream keeps the state of that moment.
    """

    def __init__(self, weights: HeadWeights) -> None:
        self._weights = weights
        self._pictures: tuple[Tensor, ...] = ()
        self._answers: tuple[Tensor, ...] = ()
        self._pair: tuple[Tensor, ...] = ()
        self._n_pictures = self._n_answers = self._n_compared = self._n_done = 0
        """Frames of the film that came, that `_pair` ends with, and that the head is done with."""

    def push(self, frames_FHWC: "Tensor") -> None:
        """Takes the next frames, uint8 RGB [F, 27, 48, 3], on the device of the weights."""
        self._pictures += (small_pictures(frames_FHWC),)
        self._n_pictures += len(frames_FHWC)

    def answer(self, answers_FD: "Tensor", *, is_last: bool = False) -> "Tensor":
        """Takes the network's answers on the next frames, float32 [F, 2 + M * D].

        Returns:
            float64 [N, 4], of the next frames whose surroundings are known, of all that are left
            where these are the last: the network's two probabilities; that the middle of a
            boundary is at the frame (a cut's is the last before it); and that the frame is inside
            of a transition.
        """
        self._answers += (answers_FD,)
        self._n_answers += len(answers_FD)
        seen = self._n_answers if is_last else min(self._n_answers, self._n_pictures - LOOK)
        end = seen if is_last else seen - REACH
        if end - self._n_done < BLOCK and not is_last:
            return answers_FD.new_zeros((0, 4)).double()
        return self._run(end, seen)

    def _run(self, end: int, seen: int) -> "Tensor":
        """Answers for the frames up to `end`, of which those up to `seen` are needed."""
        import torch

        pictures, answers = torch.cat(self._pictures), torch.cat(self._answers)
        # Of the film's frames, those that pictures and answers begin with.
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
