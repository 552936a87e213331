#!/usr/bin/env python3
"""Compares the cost of two checkouts: `curate --help`, a video of 5 s, and edited films.

    side_by_side.py BASE NEW --films DIR --out DIR [--runs 5] [--only WHAT ...]

DIR of --films is a folder of edited films; the video of 5 s is the demo's `phone.mov`. BASE and NEW
alternate, and each pair swaps their order, so both see the same load of the machine. CPU-seconds
cover all processes. The ratio is the median of the pairs' ratios; the first pair is a warm-up and
does not count. Memory is the peak of all processes together (PSS) and of the driver alone (RSS),
read a few times a second.
"""

import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import MIB, Cost, arguments, commit, in_checkout, spread, tell

MAKE_DEMO = """
import sys
from pathlib import Path
from curator.tools.footage.demo_films import make_demo
make_demo(Path(sys.argv[1]))
"""
Costs = list[Cost]
MEASURES = {"cpu_s": 1, "wall_s": 1, "peak_pss_bytes": MIB, "driver_peak_bytes": MIB}
"""Compared figures of each run, with their units."""


def pairs(
    checkouts: Sequence[Path], words: Sequence[str], out: Path, runs: int, interval_s: float
) -> tuple[Costs, Costs]:
    """Returns the costs of both checkouts, in the order of the pairs."""
    costs: tuple[Costs, Costs] = ([], [])
    for number in range(runs + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            shutil.rmtree(out, ignore_errors=True)
            command = ["-m", "curator.cli", *words]
            cost = in_checkout(checkouts[which], command, interval_s=interval_s, with_pss=True)
            if number:
                costs[which].append(cost)
    return costs


def compared(costs: tuple[Costs, Costs]) -> dict[str, Any]:
    """Returns medians, all values and ratios of the figures."""
    found: dict[str, Any] = {}
    for name, unit in MEASURES.items():
        base, new = ([round(getattr(cost, name) / unit, 2) for cost in side] for side in costs)
        found[name] = {
            "base": statistics.median(base),
            "new": statistics.median(new),
            "base_all": base,
            "new_all": new,
            "ratio": round(statistics.median(b / a for a, b in zip(base, new, strict=True)), 4),
        }
    return found


def main() -> None:
    """Measures, and prints a table and a line of JSON."""
    parser = arguments(__doc__)
    parser.add_argument("base", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--films", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=("help", "5 s", "films", "encode"))
    args = parser.parse_args()
    checkouts = (args.base.absolute(), args.new.absolute())
    args.out.mkdir(parents=True, exist_ok=True)
    footage, out = args.out.absolute() / "footage", args.out.absolute() / "out"
    if not footage.exists():
        in_checkout(checkouts[0], ["-c", MAKE_DEMO, str(footage)])
    films = str(args.films.absolute())
    what = {
        "help": ["--help"],
        "5 s": ["run", str(footage / "phone.mov"), str(out)],
        "films": ["run", films, str(out), "--max-failed", "1"],
        "encode": ["run", films, str(out), "--max-failed", "1", "--set", "cut.mode=encode"],
    }
    results: dict[str, Any] = {"base": commit(args.base)}
    results |= {"new": commit(args.new), "runs": args.runs}
    print(f"{'':8} {'base CPU s':>18} {'new CPU s':>18} {'ratio':>6} {'wall s':>14} {'ratio':>6}")
    for name, words in what.items():
        if args.only and name not in args.only:
            continue
        interval_s = 0.02 if name == "help" else 0.25
        results[name] = found = compared(pairs(checkouts, words, out, args.runs, interval_s))
        cpu, wall = found["cpu_s"], found["wall_s"]
        print(
            f"{name:8} {spread(cpu['base_all']):>18} {spread(cpu['new_all']):>18} "
            f"{cpu['ratio']:6.3f} {wall['base']:6.2f} {wall['new']:7.2f} {wall['ratio']:6.3f}",
            flush=True,
        )
        for memory in ("peak_pss_bytes", "driver_peak_bytes"):
            base, new = (spread(found[memory][f"{side}_all"], ".0f") for side in ("base", "new"))
            print(f"  {memory}: {base} and {new} MiB, {found[memory]['ratio']:.3f}", flush=True)
    tell(results)


if __name__ == "__main__":
    main()
