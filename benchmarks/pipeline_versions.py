#!/usr/bin/env python3
"""Compares the cost and the decisions of `curate run` in two checkouts, on the same videos.

    pipeline_versions.py --films FILMS --work DIR [--base CHECKOUT] [--splitter PYTHON] [--rounds N]

Each round runs, in turn: `ffmpeg` decoding the videos, this checkout, the other checkout (--base),
and what people script otherwise: `scenedetect` finds the shots, and `ffmpeg` encodes each
(--splitter names a Python that has `scenedetect`). CPU-seconds are those of all processes; for
each checkout also by purpose, as medians, because other work on the machine changes the cost of
decoding by more than small gains. Then each clip whose bounds or decision differ between the two
checkouts is listed.
"""

import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from measure import ROOT, Cost, arguments, commit, in_checkout, measured, tell

SPLIT = """
import subprocess, sys
from pathlib import Path
from scenedetect import AdaptiveDetector, detect
folder = Path(sys.argv[1])
folder.mkdir()
for film in sys.argv[2:]:
    for number, (start, end) in enumerate(detect(film, AdaptiveDetector())):
        length_s = end.get_seconds() - start.get_seconds()
        subprocess.run(
            ["ffmpeg", "-v", "error", "-ss", str(start.get_seconds()), "-i", film, "-t",
             str(length_s), "-c:v", "libx264", "-preset", "veryfast", "-crf", "23", "-an",
             str(folder / f"{Path(film).stem}-{number:03d}.mp4")],
            check=True,
        )
"""
DECODE = 'for f in "$@"; do ffmpeg -v error -i "$f" -an -f null - || exit 1; done'
VIDEOS = (".mp4", ".mkv", ".mov", ".webm", ".avi", ".ts")

Decision = tuple[str | None, str | None]
"""Reason of the rejection, or None, and the name of the duplicate's original."""


def decisions(out: Path) -> dict[str, Decision]:
    """Returns the decision of each clip, by source and frames."""
    sources = pq.read_table(out / "sources").to_pylist()
    name_of = {row["source_id"]: Path(row["uri"]).name for row in sources}
    clips = pq.read_table(out / "clips").to_pylist()
    place_of = {
        clip["clip_id"]: f"{name_of[clip['source_id']]}:{clip['start_frame']}-{clip['end_frame']}"
        for clip in clips
    }
    found: dict[str, Decision] = {
        place_of[clip["clip_id"]]: (clip["reason"], place_of.get(clip["duplicate_of"]))
        for clip in clips
    }
    # A source without clips counts too.
    return found | {name_of[row["source_id"]]: (row.get("error_code"), None) for row in sources}


def run_in(checkout: Path, films: list[str], out: Path) -> Cost:
    """Runs the pipeline of a checkout."""
    shutil.rmtree(out, ignore_errors=True)
    return in_checkout(checkout, ["-m", "curator.cli", "run", *films, str(out)])


def main() -> None:
    """Runs the rounds, and prints costs and differences."""
    parser = arguments(__doc__)
    parser.add_argument("--films", type=Path, required=True, help="folder of videos")
    parser.add_argument("--work", type=Path, required=True, help="emptied first")
    parser.add_argument("--base", type=Path, help="another checkout")
    parser.add_argument("--splitter", type=Path, help="a Python with scenedetect")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    shutil.rmtree(args.work, ignore_errors=True)
    args.work.mkdir(parents=True)
    films = sorted(str(path) for path in args.films.iterdir() if path.suffix in VIDEOS)
    cases: dict[str, Callable[[], Cost]] = {
        "decode": lambda: measured(["sh", "-c", DECODE, "sh", *films]),
        "here": lambda: run_in(ROOT, films, args.work / "here"),
    }
    if args.base is not None:
        cases["base"] = lambda: run_in(args.base, films, args.work / "base")
    if args.splitter is not None:
        scenes = args.work / "scenes"

        def split() -> Cost:
            shutil.rmtree(scenes, ignore_errors=True)
            return measured([str(args.splitter), "-c", SPLIT, str(scenes), *films])

        cases["script"] = split
    costs: dict[str, list[Cost]] = {name: [] for name in cases}
    parts: dict[str, dict[str, list[float]]] = {name: {} for name in cases}
    print(f"{'':10} {'wall s':>8} {'CPU s':>8} {'peak GiB':>8}")
    for _ in range(args.rounds):
        for name, run in cases.items():
            cost = run()
            if cost.code != 0:
                raise SystemExit(f"{name}: {cost.code}\n{cost.output}")
            costs[name].append(cost)
            if name in ("here", "base"):
                summary = json.loads((args.work / name / "summary.json").read_text())
                for part, spent_s in summary["cpu_seconds"].items():
                    parts[name].setdefault(part, []).append(spent_s)
            peak_gib = cost.peak_rss_bytes / 2**30
            print(f"{name:10} {cost.wall_s:8.1f} {cost.cpu_s:8.1f} {peak_gib:8.2f}", flush=True)
    results: dict[str, Any] = {
        name: {
            "cpu_s": [round(cost.cpu_s, 1) for cost in found],
            "wall_s": [round(cost.wall_s, 1) for cost in found],
            "peak_gib": [round(cost.peak_rss_bytes / 2**30, 2) for cost in found],
        }
        for name, found in costs.items()
    }
    here_s = [cost.cpu_s for cost in costs["here"]]
    for name in cases:
        ratios = [a / b.cpu_s for a, b in zip(here_s, costs[name], strict=True)]
        results[name]["here_by_this"] = round(statistics.median(ratios), 3)
        print(f"here / {name}: {statistics.median(ratios):.3f}")
    for name in {"here", "base"} & set(cases):
        summary = json.loads((args.work / name / "summary.json").read_text())
        results[name] |= {"cpu_seconds": parts[name], "cut": summary["cut"]}
        medians = {part: statistics.median(rounds) for part, rounds in parts[name].items()}
        spent = ", ".join(f"{part} {s:.1f}" for part, s in medians.items())
        print(f"{name} {commit(ROOT if name == 'here' else args.base)}: {spent}")
        print(f"{name}: {json.dumps(summary['cut'])}")
    if "base" in cases:
        here, base = decisions(args.work / "here"), decisions(args.work / "base")
        differences = [
            (place, base.get(place, "absent"), here.get(place, "absent"))
            for place in sorted(here.keys() | base.keys())
            if here.get(place, "absent") != base.get(place, "absent")
        ]
        for place, before, after in differences:
            print(f"{place}: {before} -> {after}")
        results["decisions"], results["differences"] = len(here), len(differences)
        print(f"{len(differences)} of {len(here)} decisions differ")
    tell(results)


if __name__ == "__main__":
    main()
