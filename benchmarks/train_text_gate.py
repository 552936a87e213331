"""Fits the gate of the text detector, `curator/models/text_gate.safetensors`.

    python benchmarks/train_text_gate.py FILM ... [--out FILE]

The script takes one picture a second of each film, and adds drawn text to a copy of every second
picture. A weighted sum of the network's inner features learns which cells of 16 px are within the
detected lines. The hash of a film's name assigns it to training or to the report. The script prints
how many pictures of the report's half pass the gate, by kind.
"""

# ruff: noqa: N815 - shape letters

import argparse
import random
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar, NamedTuple

import av
import cv2
import numpy as np
import tests_path  # noqa: F401
import torch
from numpy.typing import NDArray
from overlays import Style, lettering
from safetensors.torch import save_file

from curator.media.scale import Scaler, fit_inside
from curator.models.onnx_network import Gate, OnnxNetwork
from curator.models.text_detector import GATE, GATED, TEXT_WEIGHTS, lines_of, network_size

SIZES_PX = (7, 9, 11, 13, 16, 20, 26, 34, 48)
TEXT = (
    "I told you not to come here. Where were you last night? Behind the hill, over there No. We "
    "have to leave before dawn Nobody knows what happened next Channel 7 @someone EXIT 14 18:42"
)
MOST_PICTURES = 60
LEAST_PX = 64
"""Shortest side of a picture that fits a line of text."""
ROUNDS, HARD = 4, 12
"""Training rounds, and the likeliest cells per picture without text that each round adds."""
MARGIN = 1.0
"""Reduction of the bias, which lets more pictures pass."""


class Seen(NamedTuple):
    """Inner features of a picture, detected lines, and the cells in the cores of the lines."""

    features_HWC: NDArray[np.float32]
    lines: NDArray[np.float32]
    cores_HW: NDArray[np.bool_]
    is_drawn: bool


def pictures(path: Path) -> Iterator[NDArray[np.uint8]]:
    """Yields one picture a second, scaled to 640 px."""
    with av.open(str(path)) as container:
        due_s, scaler = 0.0, None
        for number, frame in enumerate(container.decode(video=0)):
            if scaler is None:
                size = fit_inside(frame.width, frame.height, 640)
                scaler = Scaler(*size, method="area", rotation_deg=0)
            if (frame.time or 0.0) >= due_s or number == 0:
                due_s = (frame.time or 0.0) + 1
                if min(size) >= LEAST_PX:
                    yield scaler.rgb_HWC(frame).copy()
            if due_s > MOST_PICTURES:
                return


def with_text(picture: NDArray[np.uint8], rng: random.Random) -> NDArray[np.uint8]:
    """Draws a line of text at twice the size, so small letters are smooth."""
    height, width = (2 * side for side in picture.shape[:2])
    large = cv2.resize(picture, (width, height), interpolation=cv2.INTER_CUBIC)
    text = " ".join(rng.sample(TEXT.split(), rng.randint(1, 6)))
    style: Style = rng.choice(("outlined", "boxed", "plain"))
    patch = lettering(text, size_px=2 * rng.choice(SIZES_PX), style=style)
    patch = patch[: height - 8, : width - 8]
    h, w = patch.shape[:2]
    x, y = rng.randrange(2, width - w - 4), rng.randrange(2, height - h - 4)
    alpha = patch[..., 3:] / 255 * rng.choice((1, 1, 0.8, 0.5))
    place = large[y : y + h, x : x + w]
    place[:] = place * (1 - alpha) + patch[..., :3] * alpha
    return np.asarray(cv2.resize(large, picture.shape[1::-1], interpolation=cv2.INTER_AREA))


class Watch(Gate):
    """Passes all pictures, and keeps the features."""

    last: ClassVar[list[torch.Tensor]] = []

    def passes(self, inner: torch.Tensor) -> torch.Tensor:
        """Keeps the features."""
        self.last[:] = [inner]
        return torch.ones(())


@cache
def watched() -> tuple[OnnxNetwork, Watch]:
    """Returns the network and its gate."""
    gate = Watch(name=GATED, weight=torch.zeros(1), bias=torch.zeros(()))
    weights = TEXT_WEIGHTS.read()
    return OnnxNetwork(weights, device="cpu", dtype=torch.bfloat16, gate=gate), gate


def seen(picture: NDArray[np.uint8], *, is_drawn: bool) -> Seen:
    """Returns features and detected lines of a picture."""
    network, gate = watched()
    scaled = cv2.resize(picture, network_size(*picture.shape[1::-1]))
    rgb = torch.from_numpy(scaled.transpose(2, 0, 1)[None].copy())
    found = (network(rgb.flip(1) / 127.5 - 1)[0, 0] * 255).round().to(torch.uint8).numpy()
    features = gate.last[0][0].float().permute(1, 2, 0).numpy()
    height, width = features.shape[:2]
    likely = found.reshape(height, 16, width, 16).max((1, 3)) > 127
    lines = lines_of(found)
    within = np.zeros((height, width), bool)
    for x0, y0, x1, y1 in (lines[:, :4] * (width, height, width, height)).tolist():
        within[int(y0) : int(np.ceil(y1)), int(x0) : int(np.ceil(x1))] = True
    return Seen(features, lines, likely & within, is_drawn)


def fit(
    model: torch.Tensor, given: torch.Tensor, wanted: torch.Tensor, share: torch.Tensor
) -> None:
    """Fits weights and bias (the last of `model`) to rows, each weighted in the loss."""
    optimizer = torch.optim.LBFGS([model], max_iter=40)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        logits = given @ model[:-1] + model[-1]
        cost = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, wanted, weight=share, reduction="sum"
        )
        cost = cost + 1e-4 * (model[:-1] ** 2).sum()
        cost.backward()
        return cost

    optimizer.step(loss)


def fitted(some: Sequence[Seen]) -> tuple[NDArray[np.float32], float]:
    """Returns weights and bias."""
    rng = np.random.default_rng(0)
    text = np.concatenate([one.features_HWC[one.cores_HW] for one in some])
    plain = [one.features_HWC.reshape(-1, text.shape[1]) for one in some if not len(one.lines)]
    other = np.concatenate([rows[rng.choice(len(rows), 60)] for rows in plain])
    mean, spread = other.mean(0), other.std(0) + 1e-6
    model = torch.zeros(text.shape[1] + 1, requires_grad=True)
    for _ in range(ROUNDS):
        given = torch.from_numpy((np.concatenate([text, other]) - mean) / spread)
        wanted = torch.cat([torch.ones(len(text)), torch.zeros(len(other))])
        share = torch.where(wanted > 0, 0.5 / len(text), 0.5 / len(other))
        fit(model, given, wanted, share)
        weight = model[:-1].detach().numpy() / spread
        bias = float(model[-1].detach()) - float(weight @ mean)
        hard = [rows[np.argsort(-(rows @ weight))[:HARD]] for rows in plain]
        other = np.concatenate([other, *hard])
    return weight.astype(np.float32), bias - MARGIN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("films", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=GATE)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(7)
    halves: tuple[list[Seen], list[Seen]] = [], []
    for path in args.films:
        half = halves[zlib.crc32(path.name.encode()) % 2]
        for number, picture in enumerate(pictures(path)):
            half.append(seen(picture, is_drawn=False))
            if number % 2 == 0:
                half.append(seen(with_text(picture, rng), is_drawn=True))
    weight, bias = fitted(halves[0])
    for name, is_drawn in (("drawn text", True), ("real text", False), ("no text", False)):
        sums = [
            (one.features_HWC @ weight + bias).max()
            for one in halves[1]
            if (len(one.lines) > 0) == (name != "no text") and one.is_drawn == is_drawn
        ]
        print(f"{name}: {len(sums)} pictures, {sum(total > 0 for total in sums)} pass")
    tensors = {"weight": torch.from_numpy(weight), "bias": torch.tensor(bias)}
    save_file(tensors, args.out)


if __name__ == "__main__":
    main()
