"""Measures memory and CPU of the driver by stage, for a large corpus with stored candidates.

`tests/made_corpus.py` writes the probes and candidates that workers would have stored. Each case is
a run in its own process with real decisions: rules with bounds by quantile, duplicates, and a
selection if requested. Listing and cutting are simulated. The driver's own work remains: reading,
filtering, deciding, planning shards, tables, report.

Memory is sampled every 10 ms, and the sampling does not count as CPU. It has two figures: all
resident memory, and the part that no file backs (`anon`). Pages of temporary files are only in
the first; the system can reclaim them.

With `--s3 s3://bucket/prefix`, the root is on the server of AWS_ENDPOINT_URL, behind a proxy that
counts requests and adds `--delay-ms` to each.

With `--unit-clips` and `--picture-bytes`, a child proposes the clips as in a first run: with
pictures, luma and vectors. Their objects are emptied as soon as they are written, because 10^6
clips take 45 GB.

`--grow` adds a run with 1% more sources and a run with another bound; `--cases` picks cases.
`requests` counts the store's calls that would each be a request to S3, with one per
thousand objects of a listing. `dedup_s` is the CPU time of the workers that compare vectors. The
figures of each stage are logged when it ends, so an interrupted run has output too.
"""

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tests_path  # noqa: F401

os.environ.setdefault("OMP_NUM_THREADS", "1")

from fault_proxy import FaultProxy
from measure import Watch, arguments, last_json, tell

CASES = ("run", "more", "bound")
BOUND = "filters.motion.min=0.41"
FEW = ("filters.motion.min=0.4",)
"""Rejects more clips, as recipes for large corpora do: about one clip in twenty is kept."""


def main() -> None:
    """Runs the measurement; the last line is JSON."""
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path, help="folder of output roots; reused if they exist")
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--memory", help="budget of the run, such as 1GiB")
    parser.add_argument(
        "--unit-clips", type=int, help="clips per unit of workers, as in a first run"
    )
    parser.add_argument(
        "--picture-bytes",
        type=int,
        help="with --unit-clips: clips have pictures of this size, vectors and luma; 6100 is usual",
    )
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument(
        "--in-order", action="store_true", help="stored parts hold sources of one generation"
    )
    parser.add_argument("--s3", help="prefix of the output root, in place of FOLDER")
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--grow", action="store_true", help="add the cases `more` and `bound`")
    parser.add_argument("--cases", nargs="+", choices=CASES, help="cases to run, in this order")
    parser.add_argument("--case", choices=("make", *CASES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    n_all = options.clips + (options.clips // 100 if options.grow else 0)
    root: Path = options.folder / f"out-{n_all}{'-in-order' if options.in_order else ''}"
    out = f"{options.s3}/run" if options.s3 else str(root.with_name("run"))
    if options.case:
        print(json.dumps(_case(options, root, out, n_all)))
        return
    cases = options.cases or (CASES if options.grow else CASES[:1])
    found = {}
    if not options.s3 and not root.exists():
        _child("make")
    for case, one in _behind_a_proxy(options, cases) if options.s3 else _here(cases):
        found[case] = one
        print(case, {name: value for name, value in one.items() if name != "stages"})
        for stage, values in one["stages"].items():
            each = values["cpu_s"] * 1e6 / options.clips
            print(
                f"{stage:<10}{values['rss_mib']:>9,.0f} MiB {values['anon_mib']:>9,.0f} MiB anon"
                f"{values['cpu_s']:>9.2f} CPU-s{each:>9.2f} CPU-us/clip{values['wall_s']:>9.2f} s",
                flush=True,
            )
    if not options.s3:
        shutil.rmtree(out)
    tell({"clips": options.clips, **found})


def _here(cases: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for case in cases:
        yield case, _child(case)


def _behind_a_proxy(
    options: argparse.Namespace, cases: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    server = os.environ["AWS_ENDPOINT_URL"]
    _child("make")
    with FaultProxy(server=server, share=0.0, delay_s=options.delay_ms / 1000) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        for case in cases:
            before = proxy.counts["requests"]
            yield case, _child(case) | {"requests": proxy.counts["requests"] - before}
    os.environ["AWS_ENDPOINT_URL"] = server


def _requests() -> Counter[str]:
    """Starts counting the calls of stores in this process."""
    from curator.storage.local_store import LocalStore

    counts: Counter[str] = Counter()
    inner = threading.local()

    def counted(name: str) -> None:
        whole = getattr(LocalStore, name)

        @functools.wraps(whole)
        def call(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - as the method
            if getattr(inner, "is_within", False):
                return whole(*args, **options)
            inner.is_within = True
            try:
                if name == "list":
                    found = list(whole(*args, **options))
                    counts[name] += 1 + len(found) // 1000
                    return iter(found)
                counts[name] += 1
                return whole(*args, **options)
            finally:
                inner.is_within = False

        setattr(LocalStore, name, call)

    for name in (
        "list", "read", "open", "read_range", "write", "read_versioned", "write_new", "replace",
        "create", "delete", "exists", "find", "copy",
    ):  # fmt: skip
        counted(name)
    return counts


def _empty_large_candidates(out: str) -> None:
    """Empties objects of vectors once they are written: a run does not read them."""
    from curator.storage.local_store import LocalStore
    from curator.tables.candidate_store import Candidates

    write = LocalStore.write

    def and_empty(self: LocalStore, name: str, data: bytes) -> None:
        write(self, name, data)
        if name.startswith("candidates/vectors/"):
            os.truncate(Path(out, name), 0)

    LocalStore.write = and_empty  # type: ignore[method-assign,assignment]
    Candidates.pictures = lambda *_: {}  # type: ignore[method-assign]


def _tars(out: str) -> set[str]:
    from curator.storage import open_store

    return {info.key for info in open_store(out).list("shards/") if info.key.endswith(".tar")}


def _case(options: argparse.Namespace, root: Path, out: str, n_all: int) -> dict[str, Any]:
    import made_corpus as made

    made.Ids.in_order = options.in_order
    overrides = [*options.overrides, *([BOUND] if options.case == "bound" else [])]
    recipe = made.recipe_of([*made.SETTINGS, *FEW, *overrides])
    if options.case == "make":
        made.make(out if options.s3 else root, n_all, recipe)
        return {}
    if options.case == "run" and not options.s3:
        shutil.rmtree(out, ignore_errors=True)
        subprocess.run(["cp", "-al", str(root), out], check=True)
    before = _tars(out)
    requests = _requests()
    own: dict[str, Any] = {}
    if options.memory:
        from curator.tools.commands.arguments import memory_size

        own["memory_bytes"] = memory_size(options.memory)
    watch = Watch()
    n_sources = -(-(options.clips if options.case == "run" else n_all) // made.PER_SOURCE)
    own |= {"unit_clips": options.unit_clips} if options.unit_clips else {}
    if options.picture_bytes:
        own["picture_bytes"] = options.picture_bytes
        _empty_large_candidates(out)
    summary = made.execute(out, recipe, n_sources, stage=watch.stage, **own)
    stages = watch.result()
    tars = _tars(out)
    return {
        "kept": summary["counts"]["kept"],
        "requests": sum(requests.values()),
        "by_kind": dict(requests.most_common()),
        "tars": len(summary["shards"]),
        "new_tars": len(tars - before),
        "gone_tars": len(before - tars),
        "dedup_s": summary["cpu_seconds"].get("dedup", 0.0),
        "cpu_s": round(sum(stage["cpu_s"] for stage in stages.values()), 2),
        "peak_mib": max(stage["rss_mib"] for stage in stages.values()),
        "memory": options.memory,
        "stages": stages,
    }


def _child(case: str) -> dict[str, Any]:
    return last_json(sys.executable, *sys.argv, "--case", case)


if __name__ == "__main__":
    main()
