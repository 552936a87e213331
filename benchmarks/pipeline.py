#!/usr/bin/env python3
"""Measures `curate run` on films with known answers: decisions, reruns, time.

    pipeline.py --films FILMS --work DIR [--workers N]

FILMS holds edited films and `truth.json`, which lists the shots that are one held still frame and
the shots that repeat an earlier one. First, `ffmpeg` decodes the films. Then `curate run`
makes an output with `cut.mode=encode` (unless --workers is given) and OUT by the defaults, runs
again unchanged, and runs with one changed threshold. CPU times cover all processes. Decisions are
compared with the truth.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from measure import CURATE, Cost, arguments, measured, tell

SAME_FOOTAGE = 0.5
"""Common share of the shorter clip, from which two clips of one file are duplicates."""


def shot_of(clip: dict[str, Any], shots: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the true shot that holds most of a clip."""
    length = clip["end_frame"] - clip["start_frame"]
    for shot in shots:
        common = min(clip["end_frame"], shot["end"]) - max(clip["start_frame"], shot["start"])
        if common > 0.5 * length:
            return shot
    return None


def footage(clip: dict[str, Any], shot: dict[str, Any]) -> tuple[str, float, float]:
    """Returns the file and the seconds that a clip shows, by its true shot (30 frames/s)."""
    start_s = shot["offset_s"] + (clip["start_frame"] - shot["start"]) / 30
    return shot["clip"], start_s, start_s + (clip["end_frame"] - clip["start_frame"]) / 30


def common_share(a: tuple[str, float, float], b: tuple[str, float, float]) -> float:
    """Returns the common part of two stretches, as a share of the shorter one."""
    if a[0] != b[0]:
        return 0.0
    common = min(a[2], b[2]) - max(a[1], b[1])
    return max(0.0, common) / min(a[2] - a[1], b[2] - b[1])


def decisions(out: Path, truth: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Compares decisions with the truth."""
    sources = pq.read_table(out / "sources").to_pylist()
    names = {row["source_id"]: Path(row["uri"]).name for row in sources}
    clips = pq.read_table(out / "clips").to_pylist()
    placed = {c["clip_id"]: (c, shot_of(c, truth[names[c["source_id"]]])) for c in clips}
    static = {"static": 0, "static_rejected": 0, "static_named_motion": 0, "moving_rejected": 0}
    long_enough = [(c, s) for c, s in placed.values() if s and "too_short" not in c["reasons"]]
    for clip, shot in long_enough:
        still = "motion_too_low" in clip["reasons"]
        if shot["static"]:
            static["static"] += 1
            static["static_rejected"] += still
            static["static_named_motion"] += clip["reason"] == "motion_too_low"
        else:
            static["moving_rejected"] += still
    return {"static_shots": static, "duplicates": _duplicates(placed, truth)}


def _duplicates(
    placed: dict[str, tuple[dict[str, Any], dict[str, Any] | None]],
    truth: dict[str, list[dict[str, Any]]],
) -> dict[str, Any]:
    shots = {f"{film}:{i}": s for film, cut in truth.items() for i, s in enumerate(cut)}
    by_shot: dict[int, list[dict[str, Any]]] = {}
    for clip, shot in placed.values():
        if shot is not None and clip["reason"] in (None, "duplicate"):
            by_shot.setdefault(id(shot), []).append(clip)
    repeats = found = 0
    for shot in shots.values():
        original = shots.get(shot["repeats"] or "")
        if original is None or id(shot) not in by_shot or id(original) not in by_shot:
            continue
        repeats += 1
        pair = by_shot[id(shot)] + by_shot[id(original)]
        found += any(clip["reason"] == "duplicate" for clip in pair)
    right = related = wrong = 0
    for clip, shot in placed.values():
        if clip["reason"] != "duplicate" or shot is None:
            continue
        other, other_shot = placed[clip["duplicate_of"]]
        share = common_share(footage(clip, shot), footage(other, other_shot)) if other_shot else 0.0
        if share >= SAME_FOOTAGE:
            right += 1
        elif other_shot is not None and other_shot["clip"] == shot["clip"]:
            related += 1
        else:
            wrong += 1
    return {
        "repeated_shots": repeats,
        "repeated_found": found,
        "recall": round(found / repeats, 4) if repeats else None,
        "marked_same_footage": right,
        "marked_same_file_other_time": related,
        "marked_other_footage": wrong,
        "precision": round(right / (right + wrong), 4) if right + wrong else None,
    }


def row(name: str, cost: Cost, video_s: float) -> dict[str, Any]:
    """Prints one line of the table; returns its values."""
    print(
        f"{name:34} {cost.wall_s:8.1f} {cost.cpu_s:8.1f} {video_s / cost.wall_s:10.2f} "
        f"{cost.peak_rss_bytes / 2**30:8.2f}"
    )
    return {
        "wall_s": round(cost.wall_s, 2),
        "cpu_s": round(cost.cpu_s, 2),
        "peak_rss_gib": round(cost.peak_rss_bytes / 2**30, 2),
    }


def profile(out: Path) -> dict[str, Any]:
    """Returns the times and cut figures that a run reports."""
    summary = json.loads((out / "summary.json").read_text())
    return {name: summary[name] for name in ("stage_seconds", "cpu_seconds", "cut")}


def main() -> None:
    """Runs the pipeline, compares, and prints."""
    parser = arguments(__doc__)
    parser.add_argument("--films", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="emptied first")
    parser.add_argument("--workers", type=int)
    args = parser.parse_args()
    shutil.rmtree(args.work, ignore_errors=True)
    args.work.mkdir(parents=True)
    truth = json.loads((args.films / "truth.json").read_text())
    films = sorted(str(args.films / name) for name in truth)
    video_s = sum(shots[-1]["end"] for shots in truth.values()) / 30
    out = args.work / "out"
    command = [*CURATE, "run", *films, str(out)]
    if args.workers:
        command += ["--workers", str(args.workers)]
    results: dict[str, Any] = {"films": len(films), "video_s": video_s}
    print(f"{'':34} {'wall s':>8} {'CPU s':>8} {'x realtime':>10} {'peak GiB':>8}")
    if shutil.which("ffmpeg"):
        script = 'for f in "$@"; do ffmpeg -v error -i "$f" -an -f null - || exit 1; done'
        results["ffmpeg_decode"] = row(
            "ffmpeg -f null (decode alone)", measured(["sh", "-c", script, "sh", *films]), video_s
        )
    encode = [*command[:-1], str(args.work / "encoded")] if not args.workers else None
    if encode is not None:
        cost = measured([*encode, "--set", "cut.mode=encode"])
        if cost.code != 0:
            raise SystemExit(cost.output)
        results["encode"] = row("curate run, cut.mode encode", cost, video_s)
        results["encode"] |= profile(args.work / "encoded")
    for key, title, more in (
        ("run", "curate run", []),
        ("rerun", "curate run, again", []),
        ("refilter", "curate run, motion.min 0.1", ["--set", "filters.motion.min=0.1"]),
    ):
        cost = measured(command + more)
        if cost.code != 0:
            raise SystemExit(f"curate failed with {cost.code}:\n{cost.output}")
        results[key] = row(title, cost, video_s)
        summary = json.loads((out / "summary.json").read_text())
        results[key] |= profile(out) | {
            "work": summary["work"],
            "kept": summary["counts"]["kept"],
            "by_reason": summary["counts"]["by_reason"],
        }
        if key == "run":
            results["decisions"] = decisions(out, truth)
    for key, counts in results["decisions"].items():
        print(f"{key}: {json.dumps(counts)}")
    spent = results["run"]["cpu_seconds"]
    print("CPU-seconds of the run: " + ", ".join(f"{name} {s:.1f}" for name, s in spent.items()))
    print(f"cut: {json.dumps(results['run']['cut'])}")
    for key in ("run", "rerun", "refilter"):
        print(f"{key}: {json.dumps(results[key]['work'])}, {results[key]['kept']} clips kept")
    tell(results)


if __name__ == "__main__":
    main()
