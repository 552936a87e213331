#!/usr/bin/env python3
"""Measures the ranges of the shot network's activations on training films, for 8-bit storage.

    shot_ranges.py --footage FOOTAGE [--out FILE]

The ranges are the largest values of the float32 network over the first `N_FRAMES` of each film
(`shot_films.py`).
"""

from dataclasses import replace
from pathlib import Path

import torch
from measure import arguments
from safetensors.torch import save_file
from shot_films import Style, Takes, make_film

from curator.models.shot_layers import RANGES, Block, Convolve, Layer
from curator.models.transnet import ShotNetwork

N_FRAMES = 200
SEEDS: dict[Style, range] = {
    "edited": range(8), "by_hand": range(1000, 1003), "studio": range(2000, 2003),
    "short": range(3000, 3008), "held": range(9000, 9006), "returns": range(11000, 11004),
}  # fmt: skip

Largest = dict[str, torch.Tensor]


def main() -> None:
    """Makes films, records the activations, and writes the ranges."""
    parser = arguments(__doc__)
    parser.add_argument("--footage", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=RANGES)
    args = parser.parse_args()
    torch.set_num_threads(1)
    network = ShotNetwork(precision="float32")
    largest: Largest = {}
    network.blocks = [
        _watched(block, number, largest) for number, block in enumerate(network.blocks)
    ]
    takes = Takes(args.footage, "train")
    for style, seeds in SEEDS.items():
        for seed in seeds:
            stream = network.stream()
            stream.push_batch(torch.from_numpy(make_film(takes, seed, style).frames[:N_FRAMES]))
            stream.finish()
            print(style, seed, flush=True)
    ranges = {name: largest[name] for name in largest if name.startswith("spatial")}
    for name in ("blocks", "pooled"):
        parts = [largest[f"{name}_{number}"].max() for number in range(len(network.blocks))]
        ranges[name] = torch.stack(parts)
    save_file(ranges, args.out)


def _note(values: torch.Tensor, name: str, largest: Largest) -> torch.Tensor:
    of_channels = values.abs().amax((0, 2, 3))
    earlier = largest.get(name, of_channels)
    largest[name] = torch.maximum(of_channels, earlier)
    return values


def _watched(block: Block, number: int, largest: Largest) -> Block:
    def watch(convolve: Convolve, name: str) -> Convolve:
        return lambda values: _note(convolve(values), name, largest)

    def layer(of: Layer, at: int) -> Layer:
        temporal = [watch(convolve, f"blocks_{number}") for convolve in of.temporal]
        spatial = watch(of.spatial, f"spatial_{2 * number + at}")
        return replace(of, spatial=spatial, temporal=tuple(temporal))

    def pool(outer: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
        return _note(block.pool(outer, inner), f"pooled_{number}", largest)

    first, second = block.layers
    return Block((layer(first, 0), layer(second, 1)), pool)


if __name__ == "__main__":
    main()
