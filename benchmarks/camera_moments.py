"""Measures clips of groups of cameras: made rigs as films, through a run, against their true times.

    python benchmarks/camera_moments.py make FOLDER --groups 2
    curate run FOLDER/rigs.csv FOLDER/out --set cameras.clock=content \
        --set analyze.activity=true --set analyze.text=false --set dedup.enabled=false
    python benchmarks/camera_moments.py score FOLDER

`make` writes a film of each camera, the manifest, and the true time of each frame. `score` reads
`clips` of the output, also rejected ones, and compares clips of one moment: by how much the instant
that both clips state differs, and by how much their first frames do. Seeds are those of no other
benchmark.
"""

import argparse
import csv
import json
import sys
from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from camera_rigs import NEGATIVE, POSITIVE, make_rig
from common_clock import write_film

FIRST_SEED = 700_000
SIZE = 192, 108


def make(folder: Path, groups: int) -> None:
    """Writes the films of `groups` rigs of each kind."""
    folder.mkdir(parents=True, exist_ok=True)
    truth: dict[str, dict[str, object]] = {}
    rows = [("uri", "group", "camera")]
    for number in range(groups):
        for at, kind in enumerate((*POSITIVE, *NEGATIVE)):
            seed = FIRST_SEED + 100 * number + at
            rig = make_rig(seed, kind, length_s=(40.0, 30.0)[number % 2], size=SIZE)
            for film in rig.films:
                name = f"{seed}-{film.name.replace(' ', '')}.mp4"
                write_film(folder / name, film, np.random.default_rng(seed))
                rows.append((name, str(seed), film.name))
                truth[name] = {
                    "kind": kind,
                    "is_one": rig.is_one,
                    "fps": film.fps,
                    "has_lost": bool(film.drops),
                    "true_s": film.true_s.round(6).tolist(),
                }
    with (folder / "rigs.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    (folder / "truth.json").write_text(json.dumps(truth))


def score(folder: Path) -> None:
    """Prints a table of errors, and JSON as the last line."""
    truth = json.loads((folder / "truth.json").read_text())
    summary = json.loads((folder / "out" / "summary.json").read_text())
    moments, clips_of = defaultdict(list), Counter[str]()
    refused = Counter[str]()
    for part in summary["tables"]["clips"]:
        for row in pq.read_table(folder / "out" / part).to_pylist():
            of = truth[Path(row["source_uri"]).name]
            clips_of[of["kind"]] += 1
            refused[of["kind"]] += row["moment_cameras"] == 0
            if row["moment"] is not None:
                moments[row["moment"]].append((row, of))
    n_pairs, n_right, n_wrong = Counter[str](), Counter[str](), Counter[str]()
    n_strange, first_frames = 0, list[float]()
    for shown in moments.values():
        for (a, of_a), (b, of_b) in combinations(shown, 2):
            kind, frame_s = of_a["kind"], 1 / min(of_a["fps"], of_b["fps"])
            n_pairs[kind] += 1
            if not of_a["is_one"]:
                n_strange += 1
                continue
            starts = [of["true_s"][row["start_frame"]] for row, of in ((a, of_a), (b, of_b))]
            stated = [
                start - row["moment_offset_s"] for start, row in zip(starts, (a, b), strict=True)
            ]
            error = abs(stated[0] - stated[1]) / frame_s
            n_right[kind] += error <= 0.5
            n_wrong[kind] += error > 1
            first_frames.append(abs(starts[0] - starts[1]) / frame_s)
    print(
        "| kind | clips | not aligned | pairs of one moment | within half a frame | over a frame |"
    )
    print("|---|---|---|---|---|---|")
    for kind in clips_of:
        print(
            f"| {kind} | {clips_of[kind]} | {refused[kind]} | {n_pairs[kind]} | {n_right[kind]} | "
            f"{n_wrong[kind]} |"
        )
    total = {
        "pairs": n_pairs.total(),
        "right": n_right.total(),
        "wrong": n_wrong.total(),
        "pairs_of_other_events": n_strange,
        "first_frames_p95": round(float(np.percentile(first_frames, 95)), 3)
        if first_frames
        else None,
    }
    print(json.dumps(total))


def main() -> None:
    """Runs a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("make", "score"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--groups", type=int, default=2)
    options = parser.parse_args()
    if options.command == "make":
        make(options.folder, options.groups)
    else:
        score(options.folder)


if __name__ == "__main__":
    main()
