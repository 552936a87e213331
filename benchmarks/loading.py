#!/usr/bin/env python3
"""Trains a small video autoencoder from shards, and measures its waits for batches.

    loading.py [--shards OUT] [--clips 12] [--steps 10] [--rounds 5] [--workers 1] [--ray]

One run compares `curator.loading`, webdataset's own reader and a folder of MP4s. All use PyTorch's
DataLoader with the same number of workers, batch size and frame size. There are two models: a
training step takes longer than the decoding by a worker for one model, and less for the other.
*Stall* is the share of time that the trainer waits for batches. The trainer computes in one thread;
other processes decode.

Without --shards, the clips are synthetic: a camera moves over photographs, 1280x720, H.264 with one
key frame a second. Each clip is in the tars under eight keys. The other readers decode a clip from
its start to the end of the window, as PyAV's examples do, and scale in the same way.

The cores that decoding for a trainer needs are the trainer's samples per CPU-second with a batch at
hand, times the CPU-seconds per sample. CPU time excludes other work on the machine.
"""

import argparse
import io
import os
import random
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import av
import numpy as np
import tests_path  # noqa: F401
import torch
from av.video.reformatter import Interpolation
from film_makers import write_video
from film_shots import PHOTOGRAPHS, pan_zoom, photograph
from made_shards import MadeClip, write_shards
from measure import arguments, spread, tell
from torch import nn

from curator.loading import ClipDataset, ClipLoader, as_unit, ray_clips
from curator.tools.footage.scenes import View, render_shot

FRAMES, SIZE, BATCH = 17, 96, 4
COPIES, CLIP_FRAMES, WARM_UP = 8, 91, 4
BUCKET = "720p_16-9_49f"


class Autoencoder(nn.Module):
    """Compresses a clip 16x in height and width and 4x in time, into 8 channels; decodes it.

    Args:
        width: Channels of the first layer.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        w, deep = width, 16 * width
        self.encoder = nn.Sequential(
            nn.Conv3d(3, w, 3, (1, 2, 2), 1), nn.SiLU(),
            nn.Conv3d(w, 2 * w, 3, 2, 1), nn.SiLU(),
            nn.Conv3d(2 * w, 4 * w, 3, 2, 1), nn.SiLU(),
            nn.Conv3d(4 * w, deep, 3, (1, 2, 2), 1), nn.SiLU(),
            nn.Conv3d(deep, 8, 1),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Conv3d(8, deep, 1), nn.SiLU(), nn.Upsample(scale_factor=(1, 2, 2)),
            nn.Conv3d(deep, 4 * w, 3, 1, 1), nn.SiLU(), nn.Upsample(scale_factor=2),
            nn.Conv3d(4 * w, 2 * w, 3, 1, 1), nn.SiLU(), nn.Upsample(scale_factor=2),
            nn.Conv3d(2 * w, w, 3, 1, 1), nn.SiLU(), nn.Upsample(scale_factor=(1, 2, 2)),
            nn.Conv3d(w, 3, 3, 1, 1),
        )  # fmt: skip

    def forward(self, video: torch.Tensor) -> torch.Tensor:
        """Reconstructs video [B, 3, T, H, W] with values in [-1, 1]."""
        made: torch.Tensor = self.decoder(self.encoder(video))
        return made[:, :, : video.shape[2]]


class Trainer:
    """A model and its optimiser."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        self.model = Autoencoder(width)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)

    def step(self, levels: torch.Tensor) -> float:
        """Trains one step on uint8 [B, 3, T, H, W]; returns the loss."""
        video = as_unit(levels)
        loss = nn.functional.mse_loss(self.model(video), video)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    @property
    def megabytes(self) -> float:
        """Size of the weights in MB."""
        return sum(p.numel() * p.element_size() for p in self.model.parameters()) / 1e6


def make_shards(out: Path, n_clips: int) -> None:
    """Writes tars, indexes, table and manifest as `curate run` does."""
    out.mkdir(parents=True)
    order = random.Random(0)
    names = sorted(PHOTOGRAPHS)
    clips = []
    for number in range(n_clips):
        ends = [
            View(x=order.uniform(0.2, 0.8), y=order.uniform(0.2, 0.8), span=order.uniform(0.5, 0.9))
            for _ in range(2)
        ]
        shot = pan_zoom(
            photograph(names[number % len(names)]), CLIP_FRAMES, start=ends[0], end=ends[1]
        )
        path = out / "made.mp4"
        write_video(path, render_shot(shot, width_px=1280, height_px=720), gop=30, bframes=0)
        clips.append(path.read_bytes())
        path.unlink()
    size: dict[str, Any] = {"n_frames": CLIP_FRAMES, "height": 720, "width": 1280}
    keys = [(f"{order.getrandbits(96):024x}", mp4) for mp4 in clips for _ in range(COPIES)]
    made = [MadeClip(key=key, mp4=mp4, fps=Fraction(30), **size) for key, mp4 in sorted(keys)]
    write_shards(out, [(BUCKET, "train", made[number::4]) for number in range(4)])


def unpack(out: Path, folder: Path) -> None:
    """Extracts the samples into a folder of MP4s."""
    for path in sorted((out / "shards").rglob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.endswith(".mp4"):
                    tar.extract(member, folder, filter="data")


def from_start(file: Any) -> torch.Tensor:  # noqa: ANN401
    """Reads a random window as PyAV's examples do; returns uint8 [3, T, H, W]."""
    kept = []
    with av.open(file) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        start = random.randrange(stream.frames - FRAMES + 1)
        for number, frame in enumerate(container.decode(stream)):
            if number < start:
                continue
            factor = SIZE / min(frame.height, frame.width)
            rgb = frame.reformat(
                width=round(frame.width * factor),
                height=round(frame.height * factor),
                format="rgb24",
                interpolation=Interpolation.AREA,
                threads=1,
            ).to_ndarray()
            top, left = (rgb.shape[0] - SIZE) // 2, (rgb.shape[1] - SIZE) // 2
            kept.append(rgb[top : top + SIZE, left : left + SIZE])
            if len(kept) == FRAMES:
                break
    return torch.from_numpy(np.stack(kept)).permute(3, 0, 1, 2).contiguous()


def from_sample(sample: dict[str, Any]) -> torch.Tensor:
    """Reads a random window of a webdataset sample."""
    return from_start(io.BytesIO(sample["mp4"]))


class Mp4Folder(torch.utils.data.Dataset[torch.Tensor]):
    """A folder with one file per clip."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.mp4"))

    def __len__(self) -> int:
        """Returns the number of files."""
        return len(self.paths)

    def __getitem__(self, number: int) -> torch.Tensor:
        """Returns a random window of a file."""
        return from_start(str(self.paths[number]))


Batches = Iterator[torch.Tensor]


def readers(out: Path, folder: Path, workers: int) -> dict[str, Callable[[], Batches]]:
    """Returns functions that yield batches without end, by reader."""
    import webdataset

    tars = [str(path) for path in sorted((out / "shards").rglob("*.tar"))]
    options: dict[str, Any] = {"batch_size": BATCH, "num_workers": workers, "drop_last": True}

    def curate() -> Batches:
        loader = ClipLoader(clips(out), num_workers=workers)
        while True:
            yield from (batch["video"] for batch in loader)

    def plain() -> Batches:
        source = webdataset.WebDataset(tars, shardshuffle=len(tars), seed=0, empty_check=False)
        loader = torch.utils.data.DataLoader(source.shuffle(64).map(from_sample), **options)
        while True:
            yield from loader

    def files() -> Batches:
        loader = torch.utils.data.DataLoader(Mp4Folder(folder), shuffle=True, **options)
        while True:
            yield from loader

    return {"curator.loading": curate, "webdataset": plain, "folder of MP4s": files}


def clips(out: Path) -> ClipDataset:
    """Returns the measured dataset."""
    return ClipDataset(str(out), batch_size=BATCH, frames=FRAMES, size=(SIZE, SIZE), drop_last=True)


def ray_batches(out: Path) -> Batches:
    """Yields batches that Ray's processes decode."""
    made = ray_clips(clips(out)).select_columns(["video"])
    return (rows["video"] for rows in made.iter_torch_batches(batch_size=BATCH))


def train(trainer: Trainer, batches: Iterable[torch.Tensor], steps: int) -> dict[str, float]:
    """Trains after a warm-up; returns the rate, the stall and the loss."""
    source = iter(batches)
    for batch in islice(source, WARM_UP):
        trainer.step(batch)
    waited_s, begun_s, loss = 0.0, time.perf_counter(), 0.0
    for _ in range(steps):
        asked_s = time.perf_counter()
        batch = next(source)
        waited_s += time.perf_counter() - asked_s
        loss = trainer.step(batch)
    total_s = time.perf_counter() - begun_s
    return {
        "samples_per_s": steps * BATCH / total_s,
        "stall": waited_s / total_s,
        "loss": loss,
    }


def cpu_seconds(take: Callable[[], object], n: int) -> float:
    """Returns CPU-seconds of this process per call, over n calls."""
    take()
    begun_s = time.process_time()
    for _ in range(n):
        take()
    return (time.process_time() - begun_s) / n


def cost_of_samples(out: Path, folder: Path) -> dict[str, float]:
    """Returns CPU-seconds per sample, in one process without workers."""
    dataset = clips(out)
    ours = (batch for _ in repeat(None) for batch in dataset)
    files = Mp4Folder(folder)
    order = random.Random(0)
    return {
        "curator.loading": cpu_seconds(lambda: next(ours), 20) / BATCH,
        "folder of MP4s": cpu_seconds(lambda: files[order.randrange(len(files))], 40),
    }


def measure(args: argparse.Namespace, out: Path, folder: Path) -> dict[str, Any]:
    """Measures all readers with both models."""
    sources = readers(out, folder, args.workers)
    if args.ray:
        import ray

        ray.init(
            address="local", num_cpus=args.workers, include_dashboard=False, log_to_driver=False
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        sources["Ray Data"] = lambda: ray_batches(out)
    result: dict[str, Any] = {"cpu_s_per_sample": cost_of_samples(out, folder), "models": {}}
    held = next(iter(clips(out)))["video"]
    for name, width in (("large", args.large), ("small", args.small)):
        trainer = Trainer(width)
        trainer.step(held)
        times = []
        for _ in range(10):
            begun_s = time.process_time()
            trainer.step(held)
            times.append(time.process_time() - begun_s)
        rows: dict[str, list[dict[str, float]]] = {reader: [] for reader in sources}
        first_loss = Trainer(width).step(held)
        for number in range(args.rounds):
            for reader, make in sources.items():
                rows[reader].append(train(trainer, make(), args.steps))
                print(f"{name} {number} {reader} {rows[reader][-1]} load {os.getloadavg()[0]:.1f}")
        alone = BATCH / statistics.median(times)
        result["models"][name] = {
            "width": width,
            "megabytes": trainer.megabytes,
            "samples_per_s_with_a_batch_at_hand": alone,
            "cores_for_decoding": {
                reader: alone * cost for reader, cost in result["cpu_s_per_sample"].items()
            },
            "loss": [first_loss, rows["curator.loading"][-1]["loss"]],
            "readers": {
                reader: {key: [r[key] for r in runs] for key in ("samples_per_s", "stall")}
                for reader, runs in rows.items()
            },
        }
    return result


def show(result: dict[str, Any]) -> None:
    """Prints the tables."""
    for reader, cost in result["cpu_s_per_sample"].items():
        print(f"{reader}: {cost * 1e3:.1f} CPU-ms a sample, {1 / cost:.1f} samples/s per core")
    for name, model in result["models"].items():
        alone = model["samples_per_s_with_a_batch_at_hand"]
        cores = model["cores_for_decoding"]["curator.loading"]
        print(
            f"\n{name}: {model['megabytes']:.1f} MB of weights, {alone:.2f} samples/s with a batch "
            f"at hand, which takes {cores:.2f} cores of decoding; loss {model['loss'][0]:.3f} to "
            f"{model['loss'][1]:.3f}"
        )
        print(f"{'':<18}{'samples/s':>24}{'stall %':>24}")
        for reader, row in model["readers"].items():
            stall = [100 * share for share in row["stall"]]
            print(f"{reader:<18}{spread(row['samples_per_s']):>24}{spread(stall):>24}")


def main() -> None:
    """Makes missing clips, measures, and prints a table and a line of JSON."""
    parser = arguments(__doc__)
    parser.add_argument("--shards", type=Path, help="output of `curate run`; else synthetic clips")
    parser.add_argument("--clips", type=int, default=12, help="clips to make, 8 samples each")
    parser.add_argument("--steps", type=int, default=10, help="measured steps per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--large", type=int, default=16, help="channels of the larger model")
    parser.add_argument("--small", type=int, default=2, help="channels of the smaller model")
    parser.add_argument("--ray", action="store_true", help="also Ray Data, with as many workers")
    args = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0)
    with tempfile.TemporaryDirectory() as made:
        out, folder = args.shards or Path(made) / "out", Path(made) / "mp4"
        folder.mkdir()
        if args.shards is None:
            make_shards(out, args.clips)
        unpack(out, folder)
        result = measure(args, out, folder)
    show(result)
    options = {key: str(value) for key, value in vars(args).items()}
    tell({"options": options, **result})


if __name__ == "__main__":
    main()
