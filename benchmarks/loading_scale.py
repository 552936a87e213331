#!/usr/bin/env python3
"""Several workers, several ranks, Ray Data and the start of an epoch, in `curator.loading`.

    loading_scale.py [--shards OUT] [--rounds 3]

Without --shards, clips are made as by `loading.py`. Nothing is trained: batches are taken as fast
as they come. A measurement is a run of its own in new processes; CPU-seconds are of all of them,
and what a sample costs is the difference of a run of three epochs and one of one epoch, so that
starting up (torch, Ray) is apart. Ranks are processes under torch.distributed with gloo, whose
samples are gathered and compared: none twice, none missing, as many batches on each.
"""

import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loading import BATCH, FRAMES, SIZE, make_shards
from measure import arguments, measured, tell

RUNS = {
    "in this process": ("loader", 0, 1),
    "1 worker": ("loader", 1, 1),
    "2 workers": ("loader", 2, 1),
    "4 workers": ("loader", 4, 1),
    "1 spawned worker": ("spawn", 1, 1),
    "Ray Data, 1 core": ("ray", 1, 1),
    "Ray Data, 2 cores": ("ray", 2, 1),
    "2 ranks of 1 worker": ("loader", 1, 2),
    "4 ranks of 1 worker": ("loader", 1, 4),
}
EPOCHS = 1, 3


def dataset_of(out: str, drop_last: bool) -> Any:  # noqa: ANN401
    """What is read."""
    from curator.loading import ClipDataset

    return ClipDataset(out, batch_size=BATCH, frames=FRAMES, size=(SIZE, SIZE), drop_last=drop_last)


def taken(kind: str, workers: int, out: str, epochs: int, ranks: int) -> dict[str, Any]:
    """Takes all batches of some epochs, and says when they came and what they held."""
    dataset = dataset_of(out, drop_last=ranks > 1 or kind == "ray")
    waits, keys, begun_s = [], [], time.perf_counter()
    n_samples, first_s = 0, 0.0
    for epoch, batches in enumerate(passes(kind, workers, dataset, epochs)):
        asked_s = time.perf_counter()
        for number, batch_keys in enumerate(batches):
            if number == 0:
                waits.append(time.perf_counter() - asked_s)
            if not n_samples:
                first_s = time.perf_counter()
            n_samples += len(batch_keys)
            if epoch == 0:
                keys += [*batch_keys]
    now_s = time.perf_counter()
    return {
        "samples": n_samples,
        "start_s": first_s - begun_s,
        "samples_per_s": (n_samples - BATCH) / (now_s - first_s),
        "first_batch_s": waits[1:],
        "keys": keys,
        "steps": dataset.steps,
    }


def passes(kind: str, workers: int, dataset: Any, epochs: int) -> Iterator[Iterator[Any]]:  # noqa: ANN401
    """Keys of the batches of each epoch."""
    if kind == "ray":
        from curator.loading import ray_clips

        ray_of(workers)
        for epoch in range(epochs):
            made = ray_clips(dataset, epoch=epoch).select_columns(["video", "key"])
            batches = made.iter_batches(batch_size=BATCH)
            yield ([str(key) for key in batch["key"]] for batch in batches)
        return
    from curator.loading import ClipLoader

    context = "spawn" if kind == "spawn" else None
    loader = ClipLoader(dataset, num_workers=workers, multiprocessing_context=context)
    for _ in range(epochs):
        yield (batch["key"] for batch in loader)


def ray_of(cores: int) -> None:
    """Starts Ray on this machine."""
    import ray

    ray.init(address="local", num_cpus=cores, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False


def one_rank(kind: str, workers: int, out: str, epochs: int, ranks: int) -> None:
    """A process of a run; the first rank prints what all took."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    if ranks > 1:
        distributed.init_process_group("gloo")
    own = taken(kind, workers, out, epochs, ranks)
    every: list[Any] = [own]
    if ranks > 1:
        every = [None] * ranks
        distributed.all_gather_object(every, own)
        distributed.destroy_process_group()
    if rank == 0:
        keys = list(itertools.chain.from_iterable(other["keys"] for other in every))
        print(
            json.dumps(
                {
                    "samples": sum(other["samples"] for other in every),
                    "start_s": max(other["start_s"] for other in every),
                    "samples_per_s": sum(other["samples_per_s"] for other in every),
                    "first_batch_s": [wait for other in every for wait in other["first_batch_s"]],
                    "twice": len(keys) - len(set(keys)),
                    "different": len(set(keys)),
                    "equal_steps": len({other["steps"] for other in every}) == 1,
                }
            )
        )


def command(name: str, out: str, epochs: int) -> list[str]:
    """What runs a measurement."""
    kind, workers, ranks = RUNS[name]
    own = [__file__, "run", kind, str(workers), out, str(epochs), str(ranks)]
    if ranks == 1:
        return [sys.executable, *own]
    return [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", *own]


def one(name: str, out: str) -> dict[str, Any]:
    """A run of one epoch and one of three."""
    costs: list[float] = []
    told: list[dict[str, Any]] = []
    for epochs in EPOCHS:
        cost = measured(command(name, out, epochs), interval_s=0.1)
        if cost.code:
            raise SystemExit(f"{name} ended with {cost.code}:\n{cost.output[-3000:]}")
        costs.append(cost.cpu_s)
        lines = [line for line in cost.output.splitlines() if line.startswith("{")]
        told.append(json.loads(lines[-1]))
    more = told[1]["samples"] - told[0]["samples"]
    return told[1] | {
        "cpu_ms_per_sample": 1e3 * (costs[1] - costs[0]) / more,
        "start_cpu_s": costs[0] - told[0]["samples"] * (costs[1] - costs[0]) / more,
    }


def main() -> None:
    """Measures in turns, and prints a table and a line of JSON."""
    if sys.argv[1:2] == ["run"]:
        kind, workers, shards, epochs, ranks = sys.argv[2:]
        one_rank(kind, int(workers), shards, int(epochs), int(ranks))
        return
    parser = arguments(__doc__)
    parser.add_argument("--shards", type=Path, help="output of `curate run`; else made by code")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        out = args.shards or Path(made) / "out"
        if args.shards is None:
            make_shards(out, 12)
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in RUNS}
        for number in range(args.rounds):
            for name in RUNS:
                rows[name].append(one(name, str(out)))
                print(number, name, rows[name][-1], f"load {os.getloadavg()[0]:.1f}", flush=True)
    columns = "cpu_ms_per_sample", "samples_per_s", "start_s", "start_cpu_s"
    heads = (*columns, "next epoch's first batch s")
    result: dict[str, Any] = {}
    print(f"\n{'':<22}" + "".join(f"{column:>26}" for column in heads))
    for name, found in rows.items():
        cells = {key: [row[key] for row in found] for key in columns}
        cells[heads[-1]] = [wait for row in found for wait in row["first_batch_s"]]
        result[name] = {key: [statistics.median(v), min(v), max(v)] for key, v in cells.items()} | {
            key: [row[key] for row in found] for key in ("twice", "different", "equal_steps")
        }
        print(
            f"{name:<22}"
            + "".join(f"{'{:.2f} ({:.2f}-{:.2f})'.format(*result[name][key]):>26}" for key in heads)
        )
        shown = {key: sorted({str(row[key]) for row in found}) for key in ("twice", "different")}
        print(f"{'':<22}  samples twice {shown['twice']}, different {shown['different']}")
    tell({"runs": result})


if __name__ == "__main__":
    main()
