#!/usr/bin/env python3
"""Compares one run with several sizes of clips with a run for each size.

    sizes.py VIDEO ... --work DIR [--sizes 720p 256p] [--windows 121@24 49@16]

Each run starts from nothing. With `--windows`, each size has clips of its own length and rate. CPU
time is that of all processes. Decoded frames are counted by the analysis and by the cut; `spans`
has each frame of a kept clip once. Clips are compared by their bytes.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from measure import CURATE, ROOT, arguments, commit, measured, sets, tell

from curator.frame_size import parsed_size, size_words

Clips = dict[tuple[str, int, int, str], tuple[str, str | None]]
"""SHA-256 of the MP4, or reason, by source, first frame, end frame and written form."""


def clips_of(out: Path) -> Clips:
    """Returns the clips of a run."""
    names = ("source_uri", "start_frame", "end_frame", "width", "height", "n_frames", "mp4_sha256",
             "reason")  # fmt: skip
    rows = pq.read_table(out / "clips", columns=list(names)).to_pylist()
    return {
        (row["source_uri"], row["start_frame"], row["end_frame"],
         f"{row['width']}x{row['height']}, {row['n_frames']} frames"):
            (row["mp4_sha256"] or "", row["reason"])
        for row in rows
    }  # fmt: skip


def frames_in(clips: Clips) -> int:
    """Returns the number of source frames that kept clips show, each once."""
    shown: dict[str, list[int]] = {}
    for (uri, start, end, _), (_, reason) in clips.items():
        if reason is None:
            shown.setdefault(uri, []).extend(range(start, end))
    return sum(len(np.unique(frames)) for frames in shown.values())


def run(videos: list[str], out: Path, changes: list[str]) -> dict[str, Any]:
    """Runs the pipeline; returns its cost and counts."""
    shutil.rmtree(out, ignore_errors=True)
    cost = measured([*CURATE, "run", *videos, str(out), *sets(*changes)])
    if cost.code != 0:
        raise SystemExit(f"{changes}: {cost.code}\n{cost.output}")
    summary = json.loads((out / "summary.json").read_text())
    sources = pq.read_table(out / "sources", columns=["n_frames"])["n_frames"].to_pylist()
    clips = clips_of(out)
    kept = sum(reason is None for _, reason in clips.values())
    return {
        "cpu_s": round(cost.cpu_s, 1), "wall_s": round(cost.wall_s, 1),
        "analysis_frames": sum(n or 0 for n in sources),
        "cut_frames": summary["cut"]["decoded_frames"], "spans": frames_in(clips),
        "coarser": summary["cut"]["encoded_coarser"], "copied": summary["cut"]["copied"],
        "kept": kept, "smaller": sum(r == "smaller_than_size" for _, r in clips.values()),
        "cut_cpu_s": round(summary["cpu_seconds"].get("cut", 0.0), 1),
        "peak_gib": round(cost.peak_rss_bytes / 2**30, 2),
    }  # fmt: skip


def main() -> None:
    """Runs all, and prints costs, counts and differences."""
    parser = arguments(__doc__)
    parser.add_argument("videos", nargs="+")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--sizes", nargs="+", default=["720p", "256p"])
    parser.add_argument("--windows", nargs="+", default=[])
    parser.add_argument("--set", action="append", default=[], dest="changes")
    args = parser.parse_args()
    if args.windows:
        windows = [window.split("@") for window in args.windows]
        pairs = list(zip(windows, args.sizes, strict=True))
        named = {
            size: f"{{frames: {frames}, fps: {fps}, size: {size}}}" for (frames, fps), size in pairs
        }
        cases = {"all": [f"propose.windows=[{', '.join(named.values())}]"]}
        cases |= {
            size: [f"propose.windows=[{frames}@{fps}]", f"cut.size={size}"]
            for (frames, fps), size in pairs
        }
    else:
        cases = {"all": [f"cut.size=[{', '.join(args.sizes)}]"]}
        cases |= {size: [f"cut.size={size}"] for size in args.sizes}
    found = {
        name: run(args.videos, args.work / name, [*changes, *args.changes])
        for name, changes in cases.items()
    }
    columns = list(found["all"])
    print(f"{'':8}", *(f"{name:>15}" for name in columns))
    for name, row in found.items():
        print(f"{name:8}", *(f"{row[column]:>15}" for column in columns))
    every = clips_of(args.work / "all")
    results: dict[str, Any] = {"runs": found, "commit": commit(ROOT)}
    for size in args.sizes:
        single = clips_of(args.work / size)
        form = size_words(parsed_size(size))
        own = {key: clip for key, clip in every.items() if key[3].startswith(f"{form},")}
        equal = sum(own.get(key) == clip for key, clip in single.items())
        results[size] = {"clips": len(single), "equal": equal, "further": len(own.keys() - single)}
        print(f"{size}: {equal} of {len(single)} clips have equal bytes and decisions, "
              f"{results[size]['further']} are further ones")  # fmt: skip
    for column in ("cpu_s", "cut_cpu_s", "analysis_frames", "cut_frames"):
        apart = sum(found[size][column] for size in args.sizes)
        results[f"{column}_ratio"] = round(found["all"][column] / apart, 3)
        print(f"{column}: {results[f'{column}_ratio']} of {apart:.5g}")
    tell(results)


if __name__ == "__main__":
    main()
