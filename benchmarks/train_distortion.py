#!/usr/bin/env python3
"""Fits the head of the distortion score, `curator/models/distortion_head.safetensors`.

    train_distortion.py SET [--out FILE]

SET is the output of `distortion_set.py`; only its part `train` is read, without the kinds of
`HELD_OUT`, and the table that the script prints is of the part `tune`, of the same kinds.

The target of a damaged picture is the mean of 1 - VMAF/100 and of the root of 1 - SSIM; for
`gamma` and `range`, which VMAF counts as destroyed, 0.4 of it. Clean pictures and looks have the
target 0 and more weight. Besides, of two strengths of a kind, or of a clean and a damaged version
of a clip, the worse must get the higher score. No clean file is free of damage, so these orders
within a clip say more than the targets.

Fitted once with these settings, after trials on `tune` of other widths (128), epochs (60, 120),
weight decays, a linear head, fewer blocks, logarithms of features, and the signals of
`native_signals` as more inputs, none of which was clearly better.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from distortion_figures import Versions, read, score_of, show_kinds
from distortion_set import HELD_OUT
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import Tensor

from curator.models.distortion_network import WEIGHTS, DistortionHead

SEEDS, WIDTHS = (0, 1, 2), (64, 32)
EPOCHS, RATE, DECAY, DROPPED, BATCH = 40, 2e-3, 0.05, 0.3, 6
CLEAN_WEIGHT, LOOK_WEIGHT = 6.0, 3.0
MOST_CROPS = 6


def _pairs(kind: NDArray[np.str_], strength: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Returns the indices of the worse and of the better version of all ordered pairs."""
    same = (kind[:, None] == kind[None]) & (strength[:, None] > strength[None])
    is_clean = (strength[:, None] > 0) & (kind[None] == "clean")
    worse, better = np.nonzero(same | is_clean)
    return torch.from_numpy(worse), torch.from_numpy(better)


def fit(clips: Sequence[Versions], seed: int, mean: Tensor, scale: Tensor) -> torch.nn.Sequential:
    """Fits one network to the kinds that may be seen."""
    torch.manual_seed(seed)
    data = []
    for clip in clips:
        seen = ~np.isin(clip.kind, HELD_OUT)
        crops = np.arange(MOST_CROPS) % clip.features.shape[1]
        inputs = (torch.from_numpy(clip.features[seen][:, crops]) - mean) / scale
        weight = np.where(
            clip.kind == "clean", CLEAN_WEIGHT, np.where(clip.is_look, LOOK_WEIGHT, 1)
        )
        weights = torch.from_numpy(weight[seen]).float()
        pairs = _pairs(clip.kind[seen], clip.strength[seen])
        data.append((inputs, torch.from_numpy(clip.target[seen]), weights, pairs))
    first, second = WIDTHS
    net = torch.nn.Sequential(
        torch.nn.Linear(len(mean), first), torch.nn.ReLU(), torch.nn.Dropout(DROPPED),
        torch.nn.Linear(first, second), torch.nn.ReLU(), torch.nn.Linear(second, 1),
    )  # fmt: skip
    steps = EPOCHS * -(-len(data) // BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    rng = np.random.default_rng(seed)
    for _ in range(EPOCHS):
        order = rng.permutation(len(data))
        for begin in range(0, len(order), BATCH):
            loss = torch.zeros(())
            for number in order[begin : begin + BATCH]:
                inputs, targets, weights, (worse, better) = data[number]
                logits = net(inputs)[..., 0].mean(1)
                error = (weights * (torch.sigmoid(logits) - targets) ** 2).mean()
                margin = logits[worse] - logits[better]
                loss = loss + 4 * error + 0.3 * torch.nn.functional.softplus(-2 * margin).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
            optimizer.step()
            schedule.step()
    return net.eval()


def main() -> None:
    """Fits the head, stores it, and prints how well it does on the tune part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("set", type=Path)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    clips = read(args.set / "train")
    flat = np.concatenate([
        c.features[~np.isin(c.kind, HELD_OUT)].reshape(-1, c.features.shape[2]) for c in clips
    ])  # fmt: skip
    mean, deviation = flat.mean(axis=0), flat.std(axis=0)
    scale = deviation + 0.02 * deviation.mean()
    nets = [fit(clips, seed, torch.from_numpy(mean), torch.from_numpy(scale)) for seed in SEEDS]
    stored = {"mean": mean.astype(np.float32), "scale": scale.astype(np.float32)}
    for number, layer in enumerate((0, 3, 5)):
        weights = [net.get_parameter(f"{layer}.weight").detach().numpy().T for net in nets]
        biases = [net.get_parameter(f"{layer}.bias").detach().numpy()[None] for net in nets]
        stored[f"weight_{number}"] = np.ascontiguousarray(np.stack(weights), np.float16)
        stored[f"bias_{number}"] = np.stack(biases).astype(np.float32)
    path = args.out or WEIGHTS
    save_file(stored, path)
    print(f"{len(clips)} clips; {path.name}: {path.stat().st_size} bytes")
    tune = read(args.set / "tune")
    head = DistortionHead(path)
    show_kinds(tune, [score_of(head, clip) for clip in tune], without=HELD_OUT)


if __name__ == "__main__":
    main()
