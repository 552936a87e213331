"""Compares the verdicts of `curate prove` with those of a tokenizer that gradient descent trains.

    python benchmarks/prove_network.py FOOTAGE --part tune

The same clips, damage and rules as in `prove.py`. A convolutional autoencoder of 16 frames learns
from kept clips, and another one from as many rejected clips, with the same seed, the same batches
in number and size, and the same recordings held out. The gain is that of the PSNR on kept clips of
the held-out recordings. Several seeds, each with another third of the recordings held out.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from prove import damaged, half, planted, read_clips, recordings_of, trial, window_of, window_start
from torch import nn

from curator.tools.proof.patch_tokenizer import moments_of
from curator.tools.proof.source_windows import WINDOW_FRAMES

CROP_PX, BATCH = 48, 8
Luma = NDArray[np.uint8]


class Tokenizer(nn.Module):
    """A 3D autoencoder: 4 x 8 x 8 pixels become 12 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv3d(1, 24, (4, 4, 4), (2, 4, 4), (1, 0, 0)), nn.SiLU(),
            nn.Conv3d(24, 48, 3, 1, 1), nn.SiLU(),
            nn.Conv3d(48, 12, (4, 4, 4), (2, 2, 2), (1, 1, 1)),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.ConvTranspose3d(12, 48, (4, 4, 4), (2, 2, 2), (1, 1, 1)), nn.SiLU(),
            nn.Conv3d(48, 24, 3, 1, 1), nn.SiLU(),
            nn.ConvTranspose3d(24, 1, (4, 4, 4), (2, 4, 4), (1, 0, 0)),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the reconstruction of [N, 1, T, H, W]."""
        made: torch.Tensor = self.decoder(self.encoder(x))
        return made


def crops(clips: list[Luma], n: int, rng: np.random.Generator) -> torch.Tensor:
    """Returns random crops of random clips, float32 [n, 1, T, H, W], about -1 to 1."""
    made = []
    for _ in range(n):
        clip = clips[int(rng.integers(len(clips)))]
        top, left = (int(rng.integers(0, side - CROP_PX + 1)) for side in clip.shape[1:])
        made.append(clip[:, top : top + CROP_PX, left : left + CROP_PX])
    return torch.from_numpy(np.stack(made)[:, None].astype(np.float32) / 127.5 - 1)


def psnr_after_training(train: list[Luma], held_out: list[Luma], *, steps: int, seed: int) -> float:
    """Trains, and returns the mean PSNR of crops of held-out clips, in dB."""
    torch.manual_seed(seed)
    network = Tokenizer()
    optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps)
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        batch = crops(train, BATCH, rng)
        loss = (network(batch) - batch).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    rng = np.random.default_rng(99)
    with torch.inference_mode():
        given = torch.cat([crops([clip], 2, rng) for clip in held_out])
        error = (network(given) - given).square().mean((1, 2, 3, 4)) / 4
    return float((-10 * torch.log10(error.clamp_min(1e-8))).mean())


def windows(
    clips: list[Luma], is_kept: NDArray[np.bool_], kind: str | None, strength: float, seed: int
) -> list[Luma]:
    """Returns the window of each clip, those of rejected clips damaged, as in `prove.planted`."""
    made = []
    for number, clip in enumerate(clips):
        own = clip
        if kind is not None and not is_kept[number]:
            rng = np.random.default_rng([seed, number])
            start = window_start(clip, number)
            if kind == "frozen":
                own = damaged(clip, "frozen", strength, rng)
            else:
                shown = damaged(clip[start : start + WINDOW_FRAMES], kind, strength, rng)  # type: ignore[arg-type]
                own = clip.copy()
                own[start : start + WINDOW_FRAMES] = shown
        made.append(window_of(own, number))
    return made


def main() -> None:
    """Prints a row for each rule."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("footage", type=Path)
    parser.add_argument("--part", choices=("tune", "final"), default="tune")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found, sources = read_clips(recordings_of(options.footage, options.part))
    big = [n for n, clip in enumerate(found) if min(clip.shape[1:]) >= CROP_PX + 3]
    clips, sources = [found[n] for n in big], np.unique(sources[big], return_inverse=True)[1]
    clean = np.stack([moments_of(window_of(clip, n)) for n, clip in enumerate(clips)])
    print(f"{len(clips)} clips of {len(set(sources.tolist()))} recordings", flush=True)
    rules: list[tuple[str | None, float]] = [
        (None, 0.0), ("noise", 12.0), ("noise", 30.0), ("blocks", 20.0), ("blocks", 40.0),
        ("frozen", 0.9), ("frozen", 1.0),
    ]  # fmt: skip
    rows = []
    for kind, strength in rules:
        gains, linear = [], []
        begun_s = time.process_time()
        for seed in range(options.seeds):
            is_kept = half(sources, seed, whole=False)
            shown = windows(clips, is_kept, kind, strength, seed)
            held = np.random.default_rng([seed, 8]).permutation(int(sources.max()) + 1)
            is_held = np.isin(sources, held[: len(held) // 3])
            kept = np.flatnonzero(is_kept & ~is_held)
            rejected = np.flatnonzero(~is_kept & ~is_held)
            n = min(len(kept), len(rejected))
            tried = [shown[k] for k in np.flatnonzero(is_kept & is_held)]
            sets = [[shown[k] for k in own[:n]] for own in (kept, rejected)]
            psnr = [psnr_after_training(own, tried, steps=options.steps, seed=seed) for own in sets]
            gains.append(psnr[0] - psnr[1])
            moments = planted(clean, clips, is_kept, kind, strength, seed) if kind else clean  # type: ignore[arg-type]
            linear.append(trial(moments, is_kept, sources, seed, 12)[0].on_kept.db)
        row = {
            "rule": kind or "random", "strength": strength,
            "network_db": [round(g, 2) for g in gains], "linear_db": [round(g, 2) for g in linear],
            "cpu_s": round(time.process_time() - begun_s),
        }  # fmt: skip
        rows.append(row)
        print(row, flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
