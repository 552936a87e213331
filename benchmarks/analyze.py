#!/usr/bin/env python3
"""Measures how the analyze stage scales: with workers, and over the segments of a long source.

    analyze.py workers FILM... --work D  wall time of `curate run` with 1, 2, ... workers
    analyze.py long FILM... --work D     wall time of one long film, and of its parts alone

One call runs all variants in sequence on the same films. CPU-seconds cover all processes.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from measure import CURATE, Cost, arguments, measured, tell


def curated(sources: list[Path], out: Path, *options: str) -> tuple[Cost, dict[str, Any]]:
    """Runs the pipeline from scratch; the filters reject every clip, so nothing is cut."""
    shutil.rmtree(out, ignore_errors=True)
    nothing = ["--set", "filters.motion.min=1000", "--set", "filters.motion.max=1001"]
    cost = measured(
        [*CURATE, "run", *map(str, sources), str(out), *nothing,
         *options]
    )  # fmt: skip
    if cost.code:
        raise SystemExit(cost.output)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return cost, summary


def workers(films: list[Path], work: Path) -> dict[str, Any]:
    """Measures wall time by number of workers. A run on tiny films gives the start time."""
    rows = []
    tiny = films[0]
    print(f"{'workers':>8} {'analyze s':>10} {'start s':>8} {'net s':>8} {'efficiency':>10} "
          f"{'CPU s':>8}")  # fmt: skip
    for count in sorted({1, 2, min(4, max(2, os.cpu_count() or 1)), os.cpu_count() or 1}):
        if count > len(os.sched_getaffinity(0)):
            continue
        option = ("--workers", str(count))
        short = work / "short.mp4"
        subprocess.run(
            ["ffmpeg", "-v", "error", "-y", "-i", str(tiny), "-t", "0.2", "-an", str(short)],
            check=True,
        )
        shorts = [short]
        for number in range(1, count):
            shorts.append(work / f"short{number}.mp4")
            shorts[-1].write_bytes(short.read_bytes() + bytes(number))
        _, started = curated(shorts, work / "out", *option)
        cost, summary = curated(films, work / "out", *option)
        start_s = started["stage_seconds"]["analyze"]
        wall_s = summary["stage_seconds"]["analyze"]
        spent = summary["cpu_seconds"]
        rows.append({"workers": count, "analyze_s": wall_s, "start_s": start_s,
                     "cpu_s": round(cost.cpu_s, 1), "cpu_seconds": spent})  # fmt: skip
        net_s = wall_s - start_s
        # One worker of a machine with more cores still uses threads, so efficiency is per core.
        work_s = sum(spent[name] for name in ("decode", "scale", "shot_network", "measure"))
        efficiency = work_s / (len(os.sched_getaffinity(0)) * net_s)
        rows[-1]["efficiency"] = round(efficiency, 3)
        print(f"{count:8d} {wall_s:10.1f} {start_s:8.1f} {net_s:8.1f} {efficiency:10.3f} "
              f"{cost.cpu_s:8.1f}")  # fmt: skip
    return {"workers": rows}


def long(films: list[Path], work: Path, minutes: int) -> dict[str, Any]:
    """Compares one long film, joined without re-encoding, with its parts as separate films."""
    copies, joined = repeated(films, work, minutes)
    many, many_summary = curated(copies, work / "out")
    one, one_summary = curated([joined], work / "out")
    wall = {
        "many_s": many_summary["stage_seconds"]["analyze"],
        "one_s": one_summary["stage_seconds"]["analyze"],
    }
    n_segments = one_summary["work"]["segments_analyzed"]
    print(f"{len(copies)} films: analyze {wall['many_s']:.1f} s; one film of "
          f"{one_summary['video_s'] / 60:.1f} min in {n_segments} segments: {wall['one_s']:.1f} s, "
          f"ratio {wall['one_s'] / wall['many_s']:.3f}")  # fmt: skip
    return {
        **wall, "ratio": round(wall["one_s"] / wall["many_s"], 4), "films": len(copies),
        "segments": n_segments,
        "cpu_many_s": round(many.cpu_s, 1), "cpu_one_s": round(one.cpu_s, 1),
        "video_s": one_summary["video_s"],
        "whole": one_summary["long_sources_analyzed_whole"],
    }  # fmt: skip


def repeated(films: list[Path], work: Path, minutes: int) -> tuple[list[Path], Path]:
    """Makes copies of the films that differ in their bytes, and one film of all copies joined."""
    copies = []
    for number in range(minutes):
        path = work / f"film_{number:03d}.mp4"
        path.write_bytes(films[number % len(films)].read_bytes() + bytes(number + 1))
        copies.append(path)
    listed = work / "list.txt"
    listed.write_text("".join(f"file '{path}'\n" for path in copies))
    joined = work / "long.mp4"
    subprocess.run(
        ["ffmpeg", "-v", "error", "-y", "-f", "concat", "-safe", "0", "-i", str(listed), "-c",
         "copy", "-an", str(joined)],
        check=True,
    )  # fmt: skip
    return copies, joined


def main() -> None:
    """Runs one measurement; prints a table and a line of JSON."""
    parser = arguments(__doc__)
    parser.add_argument("what", choices=("workers", "long"))
    parser.add_argument("films", nargs="+")
    parser.add_argument("--work", type=Path, required=True, help="folder for outputs; is emptied")
    parser.add_argument("--minutes", type=int, default=30, help="number of copies to join")
    args = parser.parse_args()
    films = [Path(film).resolve() for film in args.films]
    shutil.rmtree(args.work, ignore_errors=True)
    args.work.mkdir(parents=True)
    if args.what == "workers":
        tell({"what": args.what, **workers(films, args.work)})
    else:
        tell({"what": args.what, **long(films, args.work, args.minutes)})


if __name__ == "__main__":
    main()
