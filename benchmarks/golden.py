"""Compares what two versions of the code make of the same sources, by table, tar and clip.

    python benchmarks/golden.py make SOURCE... FOLDER [--python PATH] [--only CASE...]
    python benchmarks/golden.py compare FOLDER OTHER

`make` runs each case into an output root of its own with the package of an interpreter, so that a
checkout of an older commit is measured by the same script, and stores digests in
`FOLDER/golden.json`. `compare` prints what differs: outcomes, decisions, reasons, captions, hashes
of MP4s, names of tars. What was found: benchmarks/results/golden.md.
"""

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from measure import machine, measured

KEYS = {"clips": "clip_id", "sources": "uri", "shots": "source_id", "annotations": "clip_id"}
"""Tables that are compared row by row, and the column that names a row."""
VOLATILE = frozenset({"version", "mtime_ns"})
"""Columns that differ between two runs of the same code."""

Case = tuple[str, list[list[str]]]


def cases(sources: Sequence[str]) -> Iterator[Case]:
    """Yields the name of each case, and the arguments of its commands; `OUT` is its root."""
    run = ["run", *sources, "OUT"]
    yield "quickstart", [run]
    yield "cosmos", [[*run, "--recipe", "cosmos", "--set", "analyze.clip=null"]]
    half = len(sources) // 2 or 1
    growing = ["--set", "run.mode=growing", "--set", "run.generation_hours=0.02"]
    yield "growing", [["run", *sources[:half], "OUT", *growing], [*run, *growing], [*run, *growing]]
    yield "rerun", [run, [*run, "--set", "filters.motion.min=0.05"]]
    yield "recaption", [run, ["recaption", "OUT", "--set", "caption.enabled=false"]]


def make(options: argparse.Namespace) -> None:
    """Runs all cases, and stores their digests after each."""
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"machine": machine(), "cases": {}}
    for name, commands in cases(options.sources):
        if options.only and name not in options.only:
            continue
        out = folder / name
        cpu_s, begun = 0.0, time.monotonic()
        for arguments in commands:
            given = [str(out) if argument == "OUT" else argument for argument in arguments]
            cost = measured([options.python, "-P", "-m", "curator.cli", *given])
            cpu_s += cost.cpu_s
            if cost.code:
                sys.exit(f"{name}: {' '.join(given)} ended with {cost.code}\n{cost.output[-2000:]}")
        found["cases"][name] = digests(out) | {"cpu_s": round(cpu_s, 2)}
        print(f"{name}: {cpu_s:.1f} CPU-s, {time.monotonic() - begun:.1f} s", flush=True)
        (folder / "golden.json").write_text(json.dumps(found, indent=1))


def digests(out: Path) -> dict[str, Any]:
    """Returns what a root holds: rows by key and column, tars, counts."""
    summary = json.loads((out / "summary.json").read_text())
    manifest = json.loads((out / "shards" / "manifest.json").read_text())
    tables = {
        name: rows_of(pa.concat_tables([pq.read_table(out / part) for part in parts]), KEYS[name])
        for name, parts in summary["tables"].items()
        if name in KEYS
    }
    return {
        "counts": summary["counts"],
        "tars": {shard["name"]: shard["sha256"] for shard in manifest["shards"]},
        "tables": tables,
    }


def rows_of(table: pa.Table, key: str) -> dict[str, dict[str, str]]:
    """Returns a short hash of each value, by row and column; rows of one key are numbered."""
    rows: dict[str, dict[str, str]] = {}
    seen: Counter[str] = Counter()
    for row in table.to_pylist():
        seen[str(row[key])] += 1
        rows[f"{row[key]} {seen[str(row[key])]}"] = {
            name: hashlib.sha256(repr(value).encode()).hexdigest()[:8]
            for name, value in row.items()
            if name not in VOLATILE and value is not None
        }
    return rows


def compare(options: argparse.Namespace) -> None:
    """Prints what differs; ends with 1 if anything does."""
    one, other = (
        json.loads((Path(folder) / "golden.json").read_text())["cases"]
        for folder in (options.folder, options.other)
    )
    n_different = 0
    for name in one.keys() & other.keys():
        lines = list(differences(one[name], other[name]))
        n_different += len(lines)
        ratio = other[name]["cpu_s"] / max(one[name]["cpu_s"], 0.01)
        n_clips = len(one[name]["tables"].get("clips", ()))
        print(f"{name}: {n_clips} clips, {len(one[name]['tars'])} tars, CPU x {ratio:.3f}: "
              f"{'the same' if not lines else 'different'}")  # fmt: skip
        for line in lines:
            print(f"  {line}")
    print(json.dumps({"cases": sorted(one.keys() & other.keys()), "differences": n_different}))
    sys.exit(1 if n_different else 0)


def differences(one: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    """Yields what differs between two roots, in words."""
    for name in sorted({*one["counts"], *other["counts"]}):
        if (a := one["counts"].get(name)) != (b := other["counts"].get(name)):
            yield f"counts.{name}: {a} and {b}"
    tars = {*one["tars"].items()} ^ {*other["tars"].items()}
    if tars:
        yield f"tars: {len(tars)} in one alone, such as {min(tars)[0]}"
    for table in sorted({*one["tables"], *other["tables"]}):
        rows, others = one["tables"].get(table, {}), other["tables"].get(table, {})
        if alone := rows.keys() ^ others.keys():
            yield f"{table}: {len(alone)} rows in one alone, such as {min(alone)}"
        changed: Counter[str] = Counter()
        for key in rows.keys() & others.keys():
            a, b = rows[key], others[key]
            changed.update(n for n in {*a, *b} if a.get(n) != b.get(n))
        for column, n_rows in sorted(changed.items()):
            yield f"{table}.{column}: {n_rows} of {len(rows)} rows"


def main() -> None:
    """Runs one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("make", help="run the cases and store digests")
    making.add_argument("sources", nargs="+")
    making.add_argument("folder")
    making.add_argument("--python", default=sys.executable)
    making.add_argument("--only", nargs="*")
    making.set_defaults(run=make)
    comparing = commands.add_parser("compare", help="print what differs")
    comparing.add_argument("folder")
    comparing.add_argument("other")
    comparing.set_defaults(run=compare)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
