#!/usr/bin/env python3
"""Measures the vector index on synthetic vectors: recall, CPU time, memory and latency.

    vector_index.py features MEDIA... --out FEATURES.npz
    vector_index.py pairs FEATURES.npz --clips 10000 100000 [--probes 4 8 16]

FEATURES.npz holds vectors of real pictures and of three edits of each: half size with JPEG quality
30, a crop to 80%, and a mirrored crop to 70%. A synthetic clip has four vectors. Its centre mixes
three real pictures (the first drawn by Zipf's law) and noise with the covariance of real pictures;
its vectors are the centre plus half as much noise. One clip in twenty is a copy: the vectors of
another clip of its block plus noise with the covariance of the real edits, at a cosine uniform from
0.75 to 0.98. `--made-dim` projects pictures before making clips, which is cheaper. Exact results
compare all codes. A pair is found if a vector of either clip leads to the other clip.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from curator.executor.corpus_work import CorpusWork
from curator.vectors.cells import CellSearch, CellVectors
from curator.vectors.k_means import has_gpu
from curator.vectors.neighbour_pairs import (
    NeighbourSearch,
    pair_units,
)
from curator.vectors.vector_codes import Projection
from curator.vectors.vector_index import IndexSettings, VectorIndex

PER_CLIP, BLOCK_CLIPS, COPIES, FACTORS = 4, 10_000, 20, 200
LEAST, K = 0.7, 8
ResultT = TypeVar("ResultT")
EDITS = ("half_size", "crop_80", "mirrored_70")


class MadeClips:
    """Vectors of synthetic clips in blocks; equal block numbers give equal vectors."""

    def __init__(self, features: Path, dim: int | None, seed: int = 0) -> None:
        held = {name: array.astype(np.float32) for name, array in np.load(features).items()}
        if dim is not None:
            matrix = Projection.of(held["picture"].shape[1], dim, seed).matrix
            held = {name: array @ matrix for name, array in held.items() if array.ndim > 1}
            held = {name: self._unit(array) for name, array in held.items()}
        self.pictures = held["picture"]
        edits = np.concatenate([held[name] - held["picture"] for name in EDITS])
        self.spread = self._factor(self.pictures - self.pictures.mean(axis=0))
        self.edit_spread = self._factor(edits)
        shares = 1 / np.arange(1, len(self.pictures) + 1)
        rng = np.random.default_rng(seed)
        self.shares, self.seed = rng.permutation(shares / shares.sum()), seed

    def block(self, number: int, n: int = BLOCK_CLIPS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns vectors [4n, D], and the clip and the source of each copy, in the block."""
        rng = np.random.default_rng((self.seed, number))
        first = rng.choice(len(self.pictures), n, p=self.shares)
        others = rng.integers(0, len(self.pictures), (2, n))
        weights = rng.dirichlet((2, 1, 1), n).T[:, :, None].astype(np.float32)
        mixed = sum(w * self.pictures[at] for w, at in zip(weights, (first, *others), strict=True))
        centres = self._unit(mixed + 0.7 * self._noise(self.spread, n, rng))
        vectors = np.repeat(centres, PER_CLIP, axis=0)
        vectors = self._unit(vectors + 0.35 * self._noise(self.spread, len(vectors), rng))
        copies = np.arange(n - n // COPIES, n)
        sources = rng.integers(0, n - n // COPIES, len(copies))
        rows = (sources[:, None] * PER_CLIP + np.arange(PER_CLIP)).ravel()
        noise = self._unit(self._noise(self.edit_spread, len(rows), rng))
        cosine = np.repeat(rng.uniform(0.75, 0.98, len(copies)), PER_CLIP)[:, None]
        noise -= (noise * vectors[rows]).sum(axis=1, keepdims=True) * vectors[rows]
        moved = cosine * vectors[rows] + np.sqrt(1 - cosine**2) * self._unit(noise)
        vectors[copies[0] * PER_CLIP :] = moved
        return vectors, copies, sources

    @staticmethod
    def _factor(rows: np.ndarray) -> np.ndarray:
        sizes, directions = np.linalg.svd(rows, full_matrices=False)[1:]
        some = (sizes[:FACTORS, None] / np.sqrt(len(rows))) * directions[:FACTORS]
        factor: np.ndarray = some.astype(np.float32)
        return factor

    @staticmethod
    def _noise(factor: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
        noise: np.ndarray = rng.standard_normal((n, len(factor)), np.float32) @ factor
        return noise

    @staticmethod
    def _unit(vectors: np.ndarray) -> np.ndarray:
        units: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return units


class Timed:
    """Sums CPU time and wall time by name, in seconds."""

    def __init__(self) -> None:
        self.cpu_s: dict[str, float] = {}
        self.s: dict[str, float] = {}

    def __call__(self, name: str, function: Callable[..., ResultT], *args: object) -> ResultT:
        begun_cpu, begun = time.process_time(), time.perf_counter()
        result = function(*args)
        self.cpu_s[name] = self.cpu_s.get(name, 0.0) + time.process_time() - begun_cpu
        self.s[name] = self.s.get(name, 0.0) + time.perf_counter() - begun
        return result


def build(
    made: MadeClips, n_clips: int, timed: Timed, settings: IndexSettings
) -> tuple[VectorIndex, np.ndarray]:
    """Returns the index of synthetic clips, and the pairs of copies and sources."""
    n = n_clips * PER_CLIP
    n_cells = 1 if n < settings.flat_below else n // settings.cell_vectors
    n_blocks = max(1, n_clips // BLOCK_CLIPS)
    per_block = n_clips // n_blocks
    want = min(settings.sample_per_cell * n_cells, n) // n_blocks + 1
    sample = np.concatenate(
        [
            made.block(at, per_block)[0][:: max(1, per_block * PER_CLIP // want)].astype(np.float16)
            for at in range(n_blocks)
        ]
    )
    index = timed("train", VectorIndex.trained, sample, n, settings)
    pairs = []
    for at in range(n_blocks):
        vectors, copies, sources = made.block(at, per_block)
        owners = np.repeat(np.arange(per_block), PER_CLIP) + at * per_block
        timed("add", index.add, vectors, owners)
        pairs.append(np.stack([sources, copies], axis=1) + at * per_block)
    timed("sort", lambda: index.segments)
    return index, np.concatenate(pairs)


def pair_keys(pairs: np.ndarray, n: int) -> np.ndarray:
    """Returns the unique numbers of pairs of clips."""
    return np.unique(pairs.min(axis=1) * n + pairs.max(axis=1))


def exact_keys(index: VectorIndex, clips: np.ndarray, n: int) -> np.ndarray:
    """Returns the pairs of some clips that a comparison with all codes finds."""
    everything = CellVectors.joined([one.rows(0, one.facts.n) for one in index.segments])
    own = everything.at(np.isin(everything.owners, clips))
    search = CellSearch(own.codes, k=K, least=LEAST, own_Q=own.owners)
    search.visit(np.zeros((len(own.codes), 1), np.int64), lambda cells: [everything])
    hits = search.best()
    return pair_keys(np.stack([own.owners[hits.queries], hits.owners], axis=1), n)


def pairs(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures recall of copies, CPU time and memory by size and probes."""
    rows = []
    for n in args.clips:
        timed = Timed()
        settings = IndexSettings(cell_vectors=args.cell, flat_below=args.flat, dim=args.dim)
        index, planted = build(MadeClips(args.features, args.made_dim), n, timed, settings)
        some = planted[np.linspace(0, len(planted) - 1, min(len(planted), args.exact)).astype(int)]
        exact = timed("exact", exact_keys, index, np.unique(some), n)
        verified = np.intersect1d(exact, pair_keys(some, n))
        for probes in args.probes:
            timed.cpu_s.pop("pairs", None)
            timed.s.pop("pairs", None)
            units = pair_units(index, since=0, probes=probes)
            search = NeighbourSearch(index=index, least=LEAST, k=K, probes=probes)
            found = pair_keys(timed("pairs", search.owners, CorpusWork("benchmark")), n)
            rows.append(
                {
                    "clips": n,
                    "vectors": index.n_vectors,
                    "cells": len(index.centroids_CE),
                    "probes": probes,
                    "recall_verified": float(np.isin(verified, found).mean()),
                    "n_verified": len(verified),
                    "exact_finds_planted": len(verified) / len(some),
                    "recall_all_exact": float(np.isin(exact, found).mean()),
                    "pairs_of_clips": len(found),
                    "cost_pairs": sum(unit.cost for unit in units),
                    "units": len(units),
                    **{f"{name}_cpu_s": round(s, 2) for name, s in timed.cpu_s.items()},
                    **{f"{name}_s": round(s, 2) for name, s in timed.s.items()},
                    "gpu": has_gpu(),
                    "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


def features(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Stores vectors of up to 20 pictures per video, 1.5 s apart, and of their edits."""
    import cv2

    from curator.models.scene_network import SceneNetwork, scene_picture

    network = SceneNetwork()
    held: dict[str, list[Any]] = {name: [] for name in ("picture", *EDITS, "recording")}
    files = sorted(path for folder in args.media for path in folder.rglob("*.*"))
    for number, file in enumerate(files):
        video = cv2.VideoCapture(str(file))
        fps = video.get(cv2.CAP_PROP_FPS)
        step = max(1, round(1.5 * (fps if 1 <= fps <= 200 else 25)))
        for at in range(20 * step):
            if not video.grab():
                break
            picture = video.retrieve()[1] if at % step == 0 else None
            if picture is None:
                continue
            found = network.embed([scene_picture(one[:, :, ::-1]) for one in edited(picture)])
            if found.any(axis=1).all():
                for name, vector in zip(("picture", *EDITS), found, strict=True):
                    held[name].append(vector)
                held["recording"].append(number)
    arrays: dict[str, Any] = {
        name: np.array(values, np.int32 if name == "recording" else np.float16)
        for name, values in held.items()
    }
    np.savez(args.out, **arrays)
    return [{"pictures": len(held["picture"]), "recordings": len(set(held["recording"]))}]


def edited(picture: np.ndarray) -> Iterator[np.ndarray]:
    """Yields a picture of 320 px, and its edits."""
    import cv2

    height, width = picture.shape[:2]
    scale = 320 / max(height, width)
    picture = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    height, width = picture.shape[:2]
    yield picture
    small = cv2.resize(picture, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    coded = cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, 30])[1]
    yield np.asarray(cv2.imdecode(coded, 1))
    for share, turn in ((0.1, 1), (0.15, -1)):
        top, left = int(height * share), int(width * share)
        yield picture[top : height - top, left : width - left][:, ::turn]


def main() -> None:
    """Runs one measurement, and prints its rows as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("features")
    command.add_argument("media", type=Path, nargs="+")
    command.add_argument("--out", type=Path, required=True)
    command.set_defaults(measure=features)
    command = commands.add_parser("pairs")
    command.add_argument("features", type=Path)
    command.add_argument("--clips", type=int, nargs="+", default=[10_000])
    command.add_argument("--probes", type=int, nargs="+", default=[16])
    command.add_argument("--cell", type=int, default=IndexSettings().cell_vectors)
    command.add_argument("--flat", type=int, default=IndexSettings().flat_below)
    command.add_argument("--dim", type=int, default=IndexSettings().dim)
    command.add_argument("--made-dim", type=int, help="project pictures to this dimension first")
    command.add_argument("--exact", type=int, default=1000, help="copies to compare with all codes")
    command.set_defaults(measure=pairs)
    args = parser.parse_args()
    print(json.dumps(args.measure(args)))


if __name__ == "__main__":
    main()
