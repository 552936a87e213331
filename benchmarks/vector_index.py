#!/usr/bin/env python3
"""Measures the vector index on made vectors: recall, CPU-seconds, memory and latency.

    vector_index.py features MEDIA... --out FEATURES.npz
    vector_index.py pairs FEATURES.npz --clips 10000 100000 [--probes 4 8 16]
    vector_index.py search FEATURES.npz --clips 1000000
    vector_index.py driver FEATURES.npz --clips 1000000

FEATURES.npz holds vectors of real pictures and of three edits of each: half size with JPEG quality
30, a crop to 80%, and a mirrored crop to 70%. A made clip has four vectors. Its centre is a mixture
of three real pictures, the first of them drawn by Zipf's law, and noise with the covariance of real
pictures; its vectors are the centre and half of such noise. One clip in twenty is a copy: of an
earlier clip's vectors, with noise of the covariance of the real edits, scaled to a cosine that is
even from 0.75 to 0.98. With `--made-dim` pictures are projected before clips are made of
them, which is cheaper. Exact results are those of all codes; a pair counts as found if one of the
copy's vectors leads to the other clip or the reverse.
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from curator.executor.corpus_work import CorpusWork
from curator.storage import open_store
from curator.tables.footage_index import FootageIndex
from curator.tables.footage_store import FootageStore, footage_object
from curator.tables.parts import to_parquet
from curator.tables.schemas import FOOTAGE_SCHEMA
from curator.vectors.cell_search import CellSearch
from curator.vectors.cell_segments import CellVectors
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
    """Vectors of made clips, block by block; the same for the same block."""

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
        """Returns vectors [4n, 1280], and the clip and the source of each copy, in the block."""
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
    """Adds CPU-seconds by name."""

    def __init__(self) -> None:
        self.cpu_s: dict[str, float] = {}

    def __call__(self, name: str, function: Callable[..., ResultT], *args: object) -> ResultT:
        begun = time.process_time()
        result = function(*args)
        self.cpu_s[name] = self.cpu_s.get(name, 0.0) + time.process_time() - begun
        return result


def build(
    made: MadeClips, n_clips: int, timed: Timed, settings: IndexSettings
) -> tuple[VectorIndex, np.ndarray]:
    """Returns the index of made clips, and the pairs of copies and sources."""
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
    """Returns one number for each pair of clips."""
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
    """Recall of copies, CPU-seconds and memory by size and probes."""
    rows = []
    for n in args.clips:
        timed = Timed()
        settings = IndexSettings(cell_vectors=args.cell, flat_below=args.flat, dim=args.dim)
        index, planted = build(MadeClips(args.features, args.made_dim), n, timed, settings)
        some = planted[np.linspace(0, len(planted) - 1, min(len(planted), args.exact)).astype(int)]
        exact = exact_keys(index, np.unique(some), n)
        verified = np.intersect1d(exact, pair_keys(some, n))
        for probes in args.probes:
            timed.cpu_s.pop("pairs", None)
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
                    "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


def search(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Latency and recall of queries, from memory-mapped cells."""
    (n,) = args.clips
    timed = Timed()
    made = MadeClips(args.features, args.made_dim)
    index = build(made, n, timed, IndexSettings(cell_vectors=args.cell))[0]
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        store = open_store(folder)
        listed = timed("write", index.stored, store, "index")
        del index
        opened = VectorIndex.of_stored(store, listed)
        rows = []
        for cosine in (0.95, 0.85):
            frames, clips = [], []
            for at in rng.integers(0, max(1, n // BLOCK_CLIPS), 10):
                vectors = made.block(int(at), min(n, BLOCK_CLIPS))[0]
                chosen = rng.integers(0, len(vectors), args.queries // 10)
                frames.append(vectors[chosen])
                clips.append(chosen // PER_CLIP + int(at) * BLOCK_CLIPS)
            originals, owners = np.concatenate(frames), np.concatenate(clips)
            noise = made._unit(made._noise(made.edit_spread, len(originals), rng))
            noise -= (noise * originals).sum(axis=1, keepdims=True) * originals
            queries = cosine * originals + np.sqrt(1 - cosine**2) * made._unit(noise)
            for probes in args.probes:
                opened.search(queries[:3], 10, probes=probes)
                took_ms, cpu_ms, n_found = [], [], 0
                for query, owner in zip(queries, owners, strict=True):
                    begun, cpu_begun = time.perf_counter(), time.process_time()
                    found = opened.search(query[None], 10, probes=probes)
                    cpu_ms.append((time.process_time() - cpu_begun) * 1000)
                    took_ms.append((time.perf_counter() - begun) * 1000)
                    n_found += owner in found.owners[0]
                rows.append(
                    {
                        "clips": n,
                        "vectors": opened.n_vectors,
                        "cosine": cosine,
                        "probes": probes,
                        "in_top_10": n_found / len(queries),
                        "p50_ms": float(np.percentile(took_ms, 50)),
                        "p95_ms": float(np.percentile(took_ms, 95)),
                        "p50_cpu_ms": float(np.percentile(cpu_ms, 50)),
                        "p95_cpu_ms": float(np.percentile(cpu_ms, 95)),
                        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
                        "queries": len(queries),
                    }
                )
                print(json.dumps(rows[-1]), flush=True)
    return rows


class InOneWorker:
    """Work of a stage in another process, so that the driver's memory shows."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"))

    def __call__(
        self, function: Callable[..., Any], array: np.ndarray, parts: Iterable[Any], *, cpu_s: float
    ) -> Generator[Any, None, None]:
        del cpu_s
        for part in parts:
            yield self._pool.submit(function, array, part).result()

    def cpu_s(self) -> float:
        """What the worker has spent."""
        return self._pool.submit(time.process_time).result()


def driver(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Memory and CPU of a driver that stores an index of made clips and proposes their pairs."""
    (n,) = args.clips
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        write_parts(MadeClips(args.features, None), n, folder)
        rows = []
        for name, begin in (("all clips", 0), ("the last part alone asks", n - BLOCK_CLIPS)):
            # A process that has done nothing else.
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                rows.append({"run": name, "clips": n} | pool.submit(drive, folder, begin).result())
            print(json.dumps(rows[-1]), flush=True)
    return rows


def write_parts(made: MadeClips, n: int, folder: str) -> None:
    """Writes parts of `candidates/footage` with the vectors of made clips."""
    store = open_store(folder)
    for block in range(max(1, n // BLOCK_CLIPS)):
        vectors, _, _ = made.block(block, min(n, BLOCK_CLIPS))
        ends = np.arange(min(n, BLOCK_CLIPS) + 1, dtype=np.int32) * PER_CLIP
        seconds = pa.array(np.tile(np.arange(PER_CLIP, dtype=np.float32), len(ends) - 1))
        flat = pa.array(vectors.astype(np.float16).ravel())
        ids = [f"{block * BLOCK_CLIPS + at:024x}" for at in range(len(ends) - 1)]
        table = pa.table(
            [
                pa.array(ids),
                pa.ListArray.from_arrays(pa.array(ends), seconds),
                pa.ListArray.from_arrays(pa.array(ends * vectors.shape[1]), flat),
            ],
            schema=FOOTAGE_SCHEMA,
        )
        key = footage_object(f"{block:016x}-{block:016x}.parquet")
        store.write(key, to_parquet(table, key, rows_per_group=64))


def drive(folder: str, begin: int) -> dict[str, Any]:
    """Does what the stage `dedup` does up to verification; clips from `begin` on ask."""
    store, work = open_store(folder), InOneWorker()
    parts = tuple(sorted(info.key.split("/")[-1] for info in store.list("candidates/footage/")))
    base_mb = peak_mb()
    begun = time.process_time()
    footage = FootageStore(store, parts, writes_index=True)
    indexed = FootageIndex([footage], work, n_clips=BLOCK_CLIPS * len(parts))
    assert indexed.index is not None
    index_s, asking = time.process_time() - begun, indexed.mask(0, None)
    asking[:begin] = False
    begun = time.process_time()
    since = indexed.first_number(asking)
    search = NeighbourSearch(index=indexed.index, least=0.45, k=16, since=since, asking=asking)
    pairs = search.owners(work)
    return {
        "vectors": indexed.index.n_vectors,
        "pairs": len(pairs),
        "index_driver_cpu_s": round(index_s, 1),
        "pairs_driver_cpu_s": round(time.process_time() - begun, 1),
        "workers_cpu_s": round(work.cpu_s(), 1),
        "driver_mb": peak_mb(),
        "driver_mb_at_the_start": base_mb,
    }


def peak_mb() -> int:
    """Most memory of this process; that of `getrusage` begins with its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1000 for line in lines if line.startswith("VmHWM"))


def features(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Stores vectors of up to 20 pictures a video, 1.5 s apart, and of their edits."""
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
    arrays: dict[str, Any] = {name: np.array(values) for name, values in held.items()}
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
    """Runs one measurement and prints its rows as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("features")
    command.add_argument("media", type=Path, nargs="+")
    command.add_argument("--out", type=Path, required=True)
    command.set_defaults(measure=features)
    for measure in (pairs, search, driver):
        command = commands.add_parser(measure.__name__)
        command.add_argument("features", type=Path)
        command.add_argument("--clips", type=int, nargs="+", default=[10_000])
        command.add_argument("--probes", type=int, nargs="+", default=[16])
        command.add_argument("--cell", type=int, default=IndexSettings().cell_vectors)
        command.add_argument("--flat", type=int, default=IndexSettings().flat_below)
        command.add_argument("--dim", type=int, default=IndexSettings().dim)
        command.add_argument("--made-dim", type=int, help="project pictures to it at once")
        command.add_argument("--exact", type=int, default=1000, help="copies compared with all")
        command.add_argument("--queries", type=int, default=500)
        command.add_argument("--folder", type=Path, help="where `search` and `driver` store")
        command.set_defaults(measure=measure)
    args = parser.parse_args()
    print(json.dumps(args.measure(args)))


if __name__ == "__main__":
    main()
