#!/usr/bin/env python3
"""Measures how evenly work and reads are spread if some cells or sources have most of the work.

    skew.py cells [--vectors 10000000] [--workers 16] [--exponent 1.0 1.1]
    skew.py bucket [--vectors 120000] [--exponent 1.0]
    skew.py passes VIDEOS
    skew.py sources [--sources 20000] [--machines 4]

`cells` simulates the search for near vectors. Cells have sizes by Zipf's law, in random order;
centroids are themes plus noise. Units come from `pair_units`, and `Fleet` gives them to workers,
which end units in simulated time: the number of their pairs, times noise (`--noise`, the standard
deviation of its logarithm). Pairs differ from predicted ones, because vectors visit other cells
than their centroid does: `SAMPLES` vectors of each cell say which. The slowest worker's time by the
mean, and the bytes that workers read, are compared with whole cells.

`bucket` searches made vectors of such cells with one worker, stored on a simulated S3 (moto), with
and without cells that stay in memory.
"""

import argparse
import heapq
import logging
import os
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import measure
import numpy as np
import tests_path  # noqa: F401 - adds tests/ to the path
from simulated_workers import Simulated, pool
from werkzeug.serving import WSGIRequestHandler

import curator.api
from curator.executor.corpus_work import CorpusWork
from curator.executor.engine import AHEAD
from curator.executor.fleet import Fleet, FleetCounts, Worker
from curator.executor.unit_times import UnitTimes
from curator.storage import open_store
from curator.storage.base import TRAFFIC
from curator.vectors import neighbour_pairs
from curator.vectors.cells import KEPT_BYTES, CellReader, CellSegment, SegmentFacts
from curator.vectors.k_means import grouped
from curator.vectors.neighbour_pairs import PAIR_S, PROBES, NeighbourSearch, PairUnit, pair_units
from curator.vectors.vector_codes import Projection, length_of
from curator.vectors.vector_index import MERGED_BYTES, IndexSettings, VectorIndex

SAMPLES = 12
MIB = 1 << 20


class Corpus:
    """An index whose cells have sizes but no vectors, and the cells that vectors visit."""

    def __init__(self, n_vectors: int, exponent: float, seed: int = 0) -> None:
        rng, settings = np.random.default_rng(seed), IndexSettings()
        dim, n_cells = settings.dim, n_vectors // settings.cell_vectors
        themes = rng.standard_normal((100, dim))
        own = themes[rng.integers(0, len(themes), n_cells)]
        centroids = (own + rng.standard_normal((n_cells, dim))).astype(np.float32)
        centroids *= length_of(dim) / np.linalg.norm(centroids, axis=1, keepdims=True)
        centroids, groups = grouped(np.rint(centroids), seed=seed)
        shares = rng.permutation(np.arange(1, n_cells + 1) ** -float(exponent))
        self.sizes = np.rint(shares / shares.sum() * n_vectors).astype(np.int64)
        self.row_bytes = dim + 16
        share = (np.cumsum(self.sizes) - self.sizes) * self.row_bytes // MERGED_BYTES
        bounds = [*np.flatnonzero(np.diff(share, prepend=-1)).tolist(), n_cells]
        segments = []
        for first, end in pairwise(bounds):
            starts = np.concatenate([[0], np.cumsum(self.sizes[first:end])])
            facts = SegmentFacts(
                n=int(starts[-1]),
                dim=dim,
                first_cell=first,
                n_cells=end - first,
                end_number=n_vectors,
            )
            segments.append(CellSegment(facts, None, starts))
        projection = Projection.of(dim, dim, seed)
        self.index = VectorIndex(settings, projection, centroids, groups, segments)
        vectors = np.repeat(centroids, SAMPLES, axis=0)
        noise = rng.standard_normal(vectors.shape).astype(np.float32) * (length_of(dim) / dim**0.5)
        cells = self.index.centroid_index.nearest(vectors + 0.7 * noise, PROBES)
        n_others = PROBES - 1
        owner = np.repeat(np.arange(n_cells), SAMPLES)
        is_own = cells == owner[:, None]
        # A vector is in its nearest cell: its own cell takes the place of the last one, if missing.
        is_own[:, -1] |= ~is_own.any(axis=1)
        others = cells[~is_own].reshape(n_cells, SAMPLES * n_others)
        self.row_pairs = self.sizes + self.sizes[others].sum(axis=1) / SAMPLES
        self.others = others.reshape(n_cells, SAMPLES, n_others)
        self.visited = [np.unique(some) for some in others]
        """The cells that vectors of each cell visit, besides their own."""
        visitors = np.bincount(
            others.ravel(), np.repeat(self.sizes / SAMPLES, others.shape[1]), minlength=n_cells
        )
        self.visitors = self.sizes + visitors
        """Vectors that visit each cell."""

    def whole_cells(self) -> list[PairUnit]:
        """Returns a unit for each cell, by falling size."""
        units = []
        for at, segment in enumerate(self.index.segments):
            for cell, (begin, end) in enumerate(pairwise(segment.starts.tolist())):
                cost = (end - begin) * self.row_pairs[segment.facts.first_cell + cell]
                units.append(PairUnit(at, begin, end, float(cost)))
        return sorted(units, key=lambda unit: -unit.cost)

    def cells_of(self, unit: PairUnit) -> tuple[range, np.ndarray]:
        """Returns the cells of a unit, and the number of its rows in each of them."""
        segment = self.index.segments[unit.segment]
        first = int(np.searchsorted(segment.starts, unit.begin, side="right")) - 1
        end = int(np.searchsorted(segment.starts, unit.end, side="left"))
        rows = np.diff(segment.starts[first : end + 1].clip(unit.begin, unit.end))
        base = segment.facts.first_cell
        return range(base + first, base + end), rows

    def pairs(self, unit: PairUnit) -> float:
        """Returns the number of pairs that a unit compares."""
        cells, rows = self.cells_of(unit)
        return float(rows @ self.row_pairs[cells.start : cells.stop])

    def reads(self, unit: PairUnit) -> list[int]:
        """Returns the cells that a unit reads, in order: those of its vectors, then the others."""
        cells = self.cells_of(unit)[0]
        return [*cells, *np.unique(np.concatenate([self.visited[at] for at in cells])).tolist()]


def by_fleet(pairs: Sequence[float], n_workers: int) -> list[list[int]]:
    """Returns the numbers of the units of each worker, in order, as `Fleet` gives them."""
    line: dict[Worker, deque[int]] = {}
    given: dict[Worker, list[int]] = {}
    running: list[tuple[float, int, Worker]] = []
    now = 0.0

    def begin(worker: Worker) -> None:
        at = line[worker][0]
        heapq.heappush(running, (now + pairs[at], at, worker))

    def does(worker: Worker, unit: object, n_deaths: int) -> None:
        assert isinstance(unit, int)
        waiting = line.setdefault(worker, deque())
        given.setdefault(worker, []).append(unit)
        waiting.append(unit)
        if len(waiting) == 1:
            begin(worker)

    backend = Simulated(does)
    counts: Any = FleetCounts()
    fleet = Fleet(
        backend,  # type: ignore[arg-type]
        [pool(most=n_workers)],
        counts=counts,
        unit_times=UnitTimes(),
        ahead=AHEAD,
    )
    for at in range(len(pairs)):
        fleet.submit(at)
    fleet.poll()
    while running:
        now, at, worker = heapq.heappop(running)
        line[worker].popleft()
        backend.finish(worker, at)
        if line[worker]:
            begin(worker)
        fleet.poll()
    fleet.close()
    return list(given.values())


def received(corpus: Corpus, units: Sequence[PairUnit], cache_bytes: int) -> tuple[int, int]:
    """Returns the bytes and the requests of a worker with a cache of recently used cells."""
    held: OrderedDict[int, int] = OrderedDict()
    n_held = n_bytes = n_requests = 0
    for unit in units:
        n_bytes += (unit.end - unit.begin) * corpus.row_bytes
        n_requests += 1
        for cell in corpus.reads(unit):
            size = int(corpus.sizes[cell]) * corpus.row_bytes
            if cell in held:
                held.move_to_end(cell)
                continue
            n_bytes, n_requests = n_bytes + size, n_requests + 1
            if size <= cache_bytes:
                held[cell], n_held = size, n_held + size
                while n_held > cache_bytes:
                    n_held -= held.popitem(last=False)[1]
    return n_bytes, n_requests


def sent_to_cells(corpus: Corpus, dealt: np.ndarray, n_workers: int) -> dict[str, Any]:
    """Returns the numbers of workers that hold the cells, and compare the vectors sent to them."""
    loads = np.bincount(dealt, corpus.sizes * corpus.visitors, n_workers)
    others = np.sort(dealt[corpus.others], axis=2)
    is_sent = others != dealt[:, None, None]
    is_sent[:, :, 1:] &= others[:, :, 1:] != others[:, :, :-1]
    n_sent = corpus.sizes @ is_sent.sum(axis=2).mean(axis=1)
    n_bytes = (corpus.sizes.sum() + n_sent) * corpus.row_bytes
    return {
        "way": "cells by hash, vectors sent to them",
        "units": len(dealt),
        "slowest_by_mean": round(float(loads.max() / loads.mean()), 3),
        "longest_s": round(float((corpus.sizes * corpus.visitors).max() * PAIR_S), 1),
        "moved_gb": round(float(n_bytes) / 1e9, 1),
        "requests": None,
    }


def row(
    name: str,
    corpus: Corpus,
    units: Sequence[PairUnit],
    work: np.ndarray,
    shares: list[list[int]],
    cache_bytes: int = 0,
) -> dict[str, Any]:
    """Returns the numbers of one way to give units of some work to workers."""
    loads = np.array([work[share].sum() for share in shares])
    moved = [received(corpus, [units[at] for at in share], cache_bytes) for share in shares]
    n_bytes, n_requests = map(sum, zip(*moved, strict=True))
    return {
        "way": name,
        "units": len(units),
        "slowest_by_mean": round(float(loads.max() / loads.mean()), 3),
        "longest_s": round(float(work.max() * PAIR_S), 1),
        "moved_gb": round(n_bytes / 1e9, 1),
        "requests": n_requests,
    }


def cells(args: argparse.Namespace) -> None:
    """Prints a row for each way, then all rows as JSON."""
    rows = []
    for exponent in args.exponent:
        corpus, rng = Corpus(args.vectors, exponent), np.random.default_rng(1)
        whole = corpus.whole_cells()
        units = pair_units(corpus.index, since=0, probes=PROBES)
        works = []
        for some in (whole, units):
            noise = np.exp(rng.normal(0, args.noise, len(some)))
            works.append(np.array([corpus.pairs(unit) for unit in some]) * noise)
        predicted = np.array([corpus.pairs(unit) / unit.cost for unit in units])
        dealt = rng.integers(0, args.workers, len(corpus.sizes))
        shares = by_fleet(works[1].tolist(), args.workers)
        hashed = [
            [at for at, unit in enumerate(whole) if dealt[corpus.cells_of(unit)[0].start] == worker]
            for worker in range(args.workers)
        ]
        dealt_whole = by_fleet(works[0].tolist(), args.workers)
        found = [
            sent_to_cells(corpus, dealt, args.workers),
            row("whole cells, by hash", corpus, whole, works[0], hashed),
            row("whole cells, largest first", corpus, whole, works[0], dealt_whole),
        ]
        for mib in args.cache_mib:
            name = f"units, {mib} MiB of cells kept"
            found.append(row(name, corpus, units, works[1], shares, mib * MIB))
        quantiles = np.quantile(predicted, [0, 0.05, 0.5, 0.95, 1]).round(2).tolist()
        print(f"exponent {exponent}: largest cell {corpus.sizes.max()}, real by predicted pairs "
              f"{quantiles}")  # fmt: skip
        for one in found:
            print(*one.values(), sep=" | ", flush=True)
            rows.append({"exponent": exponent} | one)
    measure.tell({"vectors": args.vectors, "workers": args.workers, "rows": rows})


def simulated_s3() -> Any:  # noqa: ANN401 - moto has no types
    """Starts a server with the bucket `skew`, which the environment then names."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    host, port = server.get_host_and_port()
    place = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ |= place | {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    from curator.storage.s3_client import client

    client().create_bucket(Bucket="skew")
    return server


def bucket(args: argparse.Namespace) -> None:
    """Prints what a search of a stored index receives, then the same as JSON."""
    server = simulated_s3()
    corpus, rng = Corpus(args.vectors, args.exponent[0]), np.random.default_rng(2)
    index, dim = corpus.index, IndexSettings().dim
    own = rng.permutation(np.repeat(np.arange(len(corpus.sizes)), corpus.sizes))
    vectors = index.centroids_CE[own] / length_of(dim)
    vectors += (0.7 / dim**0.5) * rng.standard_normal(vectors.shape).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = VectorIndex(index.settings, index.projection, index.centroids_CE, index.groups_GE)
    index.add(vectors @ np.linalg.pinv(index.projection.matrix), np.arange(len(own)))
    store = open_store("s3://skew/out")
    listed = index.stored(store, "vectors")
    rows, keys = [], []
    for kept_bytes in (0, KEPT_BYTES):
        neighbour_pairs.CellReader = partial(CellReader, kept_bytes=kept_bytes)  # type: ignore
        opened = VectorIndex.of_stored(store, listed)
        TRAFFIC.clear()
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        search = NeighbourSearch(index=opened, least=0.45, k=16)
        keys.append(search.owners(CorpusWork("benchmark")))
        rows.append(
            {
                "kept_mib": kept_bytes // MIB,
                "units": len(pair_units(opened, since=0, probes=PROBES)),
                "received_mb": round(TRAFFIC["received_bytes"] / 1e6, 1),
                "requests": TRAFFIC["requests"],
                "s": round(time.perf_counter() - begun_s, 1),
                "cpu_s_with_server": round(time.process_time() - begun_cpu_s, 1),
                "peak_mib": measure.peak_bytes() // MIB,
            }
        )
        print(rows[-1], flush=True)
    assert np.array_equal(keys[0], keys[1]), "results differ"
    sizes = opened.cell_sizes()
    server.stop()
    measure.tell({"rows": rows, "largest_cell": int(sizes.max()), "pairs": len(keys[0])})


def passes(args: argparse.Namespace) -> None:
    """Prints what each stage receives of each source, then the same as JSON.

    Requests count for the stage that the progress shows, which is shown twice a second.
    """
    server = simulated_s3()
    from curator.storage.s3_client import client

    files = sorted(path for path in args.videos.iterdir() if path.is_file())
    for file in files:
        client().upload_file(str(file), "skew", f"in/{file.name}")
    moved: Counter[tuple[str, str]] = Counter()
    requests: Counter[str] = Counter()
    sizes = {file.name: file.stat().st_size for file in files}
    now = {"stage": "scan"}

    def counted(self: WSGIRequestHandler, *rest: object) -> None:
        name = self.path.partition("?")[0].rpartition("/")[2]
        if self.command == "GET" and self.path.startswith("/skew/in/") and name in sizes:
            begin, end = self.headers["Range"].removeprefix("bytes=").split("-")
            moved[now["stage"], name] += min(int(end or sizes[name] - 1), sizes[name] - 1) + 1
            moved[now["stage"], name] -= int(begin)
            requests[now["stage"]] += 1

    WSGIRequestHandler.log_request = counted  # type: ignore
    overrides = {"stages": [{"use": "edges"}]} | dict(one.split("=") for one in args.set)
    curator.api.run("s3://skew/in/", "s3://skew/out", "quickstart", overrides, progress=now.update)
    table = curator.api.read_clips("s3://skew/out").to_arrow(rejected=True)
    server.stop()
    kept = Counter[str]()
    for row in table.select(["source_uri", "decision", "duration_s"]).to_pylist():
        is_kept = row["decision"] == "kept"
        kept[row["source_uri"].rpartition("/")[2]] += row["duration_s"] if is_kept else 0
    stages = sorted(requests)
    rows = []
    for file in files:
        by_stage = {stage: round(moved[stage, file.name] / 1e6, 2) for stage in stages}
        size_mb = round(file.stat().st_size / 1e6, 2)
        rows.append(
            {"source": file.name, "mb": size_mb, "kept_s": round(kept[file.name], 1)} | by_stage
        )
        print(*rows[-1].values(), sep=" | ")
    total = {stage: round(sum(row[stage] for row in rows), 2) for stage in stages}
    print("total", sum(row["mb"] for row in rows), total, dict(requests))
    measure.tell({"rows": rows, "total_mb": total, "requests": dict(requests)})


def sources(args: argparse.Namespace) -> None:
    """Prints the bytes that each way to keep sources saves, then the same as JSON."""
    rng, n = np.random.default_rng(0), args.sources
    sizes = rng.lognormal(np.log(150e6), 1.2, n)
    shares = rng.permutation(np.arange(1, n + 1) ** -0.5)
    shares = np.minimum(1.0, shares * (args.kept * n / shares.sum()))
    shares[rng.random(n) < 0.5] = 0
    again = sizes * shares
    analyzed_on, cut_on = rng.integers(0, args.machines, (2, n))
    ways = {
        "whole sources, last used": (sizes, np.arange(n)),
        "whole sources, by predicted reuse": (sizes, shares),
        "ranges of kept clips": (again, (shares > 0).astype(float)),
    }
    rows = []
    for part in args.cache:
        room = part * sizes.sum() / args.machines
        for way, (on_disk, worth) in ways.items():
            is_cached = np.zeros(n, np.bool_)
            for machine in range(args.machines):
                own = np.flatnonzero((analyzed_on == machine) & (worth > 0))
                own = own[np.argsort(-worth[own], kind="stable")]
                is_cached[own[np.cumsum(on_disk[own]) <= room]] = True
            for is_placed in (False, True):
                is_hit = is_cached & (is_placed | (analyzed_on == cut_on))
                read = sizes.sum() + again[~is_hit].sum()
                rows.append(
                    {
                        "cache_share": part,
                        "way": way,
                        "cut_where_cached": is_placed,
                        "saved": round(float(again[is_hit].sum() / (sizes.sum() + again.sum())), 3),
                        "read_by_source_bytes": round(float(read / sizes.sum()), 3),
                        "disk_by_source_bytes": round(
                            float(on_disk[is_cached].sum() / sizes.sum()), 3
                        ),
                    }
                )
                print(*rows[-1].values(), sep=" | ")
    facts = {
        "source_tb": round(float(sizes.sum() / 1e12), 2),
        "read_again_share": round(float(again.sum() / sizes.sum()), 3),
        "sources_with_kept_clips": round(float((shares > 0).mean()), 3),
    }
    measure.tell(facts | {"machines": args.machines, "rows": rows})


def main() -> None:
    """Runs a measurement."""
    parser = measure.arguments(__doc__)
    commands = parser.add_subparsers(required=True)
    for measured, n_vectors, exponents in ((cells, 10**7, [1.0, 1.1]), (bucket, 120_000, [1.0])):
        command = commands.add_parser(measured.__name__)
        command.add_argument("--vectors", type=int, default=n_vectors)
        command.add_argument("--exponent", type=float, nargs="+", default=exponents)
        command.set_defaults(measured=measured)
    command = commands.choices["cells"]
    command.add_argument("--workers", type=int, default=16)
    command.add_argument("--noise", type=float, default=0.2)
    command.add_argument("--cache-mib", type=int, nargs="+", default=[0, 128, 256, 512])
    command = commands.add_parser("passes")
    command.add_argument("videos", type=Path, metavar="VIDEOS")
    command.add_argument("--set", nargs="*", default=[])
    command.set_defaults(measured=passes)
    command = commands.add_parser("sources")
    command.add_argument("--sources", type=int, default=20_000)
    command.add_argument("--machines", type=int, default=4)
    kept = "mean share of kept bytes, before half of the sources lose theirs"
    command.add_argument("--kept", type=float, default=0.4, help=kept)
    room = "disk of all machines by bytes of sources"
    command.add_argument("--cache", type=float, nargs="+", default=[0.02, 0.1, 0.5], help=room)
    command.set_defaults(measured=sources)
    args = parser.parse_args()
    args.measured(args)


if __name__ == "__main__":
    main()
