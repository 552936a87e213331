#!/usr/bin/env python3
"""Measures the analyze stage against what it cannot do without: decoding, and the shot network.

    analyze.py limit FILM...             CPU-seconds beside the limit
    analyze.py workers FILM... --work D  wall time of `curate run` with 1, 2, ... workers
    analyze.py long FILM... --work D     one film of all films beside the films, in wall time

All variants of one call run after each other on the same films. CPU-seconds are those of all
processes; starting a worker (importing torch, loading the network) is given by itself.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from measure import CURATE, Cost, arguments, last_json, measured, tell


def child(what: str, films: list[Path], threads: int = 1) -> dict[str, Any]:
    """Runs a part of this script in a process of its own; returns what it measured."""
    command = [sys.executable, __file__, "--threads", str(threads), "child", what, *map(str, films)]
    return last_json(*command)


def run_child(what: str, films: list[Path], threads: int) -> None:
    """The part that runs in a process of its own: `network` or `analyze`."""
    import cv2

    from curator.models.scene_network import SceneNetwork
    from curator.models.transnet import ShotNetwork
    from curator.stages.analyze.config import AnalyzeConfig
    from curator.stages.analyze.decode_source import analyze_source
    from curator.stages.analyze.measurer import AnalysisModels

    cv2.setNumThreads(1)
    network = ShotNetwork()
    models = AnalysisModels(network=network, scenes=SceneNetwork())
    start_up_s = time.process_time()
    spent: dict[str, float] = {}
    n_frames = n_shots = 0
    if what == "network":
        import av

        from curator.media.scale import Scaler
        from curator.models.transnet import HEIGHT, WIDTH

        scaler, frames = Scaler(WIDTH, HEIGHT), []
        for path in films:
            with av.open(str(path)) as container:
                frames.append([scaler.rgb_HWC(frame) for frame in container.decode(video=0)])
        n_frames = sum(map(len, frames))
        begun = time.process_time()
        for film in frames:
            stream = network.stream()
            for frame in film:
                stream.push(frame)
            n_shots += int((stream.finish()[0] > 0.5).sum())
    else:
        begun = time.process_time()
        for path in films:
            with path.open("rb") as reader:
                track = analyze_source(
                    reader,
                    str(path),
                    source_id=path.name,
                    n_bytes=path.stat().st_size,
                    analysis_models=models,
                    config=AnalyzeConfig(),
                    decoder_threads=threads,
                    spent=spent,
                )
            n_frames += track.n_frames
    cpu_s = time.process_time() - begun
    spent["decode"] = cpu_s - sum(spent.values()) if spent else 0.0
    print(json.dumps({
        "start_up_s": round(start_up_s, 2), "cpu_s": round(cpu_s, 2), "frames": n_frames,
        "spent_s": {name: round(seconds, 2) for name, seconds in spent.items()},
        "precision": network.precision,
        "peak_rss_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3),
    }))  # fmt: skip


def limit(films: list[Path]) -> dict[str, Any]:
    """Decoding alone, the network alone, and analyze."""
    names = list(map(str, films))
    loop = 'for f in "$@"; do ffmpeg -v error {} -i "$f" -an -f null - || exit 1; done'
    decode_1 = measured(["sh", "-c", loop.format("-threads 1"), "sh", *names])
    decode = measured(["sh", "-c", loop.format(""), "sh", *names])
    network = child("network", films)
    ours = child("analyze", films)
    limit_s = decode.cpu_s + network["cpu_s"]
    n_frames = ours["frames"]
    print(f"{'':44} {'CPU s':>8} {'ms/frame':>9}")
    for name, seconds in (
        ("ffmpeg -f null, one thread", decode_1.cpu_s),
        ("ffmpeg -f null", decode.cpu_s),
        ("shot network alone", network["cpu_s"]),
        ("limit: ffmpeg + network", limit_s),
        ("analyze, all measurements", ours["cpu_s"]),
        ("  start of a worker, beside that", ours["start_up_s"]),
    ):
        print(f"{name:44} {seconds:8.1f} {seconds / n_frames * 1e3:9.2f}")
    print(f"analyze / limit {ours['cpu_s'] / limit_s:.3f}")
    print("analyze: " + ", ".join(f"{name} {s:.1f}" for name, s in ours["spent_s"].items()))
    return {
        "ffmpeg_1_thread_s": round(decode_1.cpu_s, 2), "ffmpeg_s": round(decode.cpu_s, 2),
        "network": network, "analyze": ours, "limit_s": round(limit_s, 2),
        "ratio": round(ours["cpu_s"] / limit_s, 4),
    }  # fmt: skip


def curated(sources: list[Path], out: Path, *options: str) -> tuple[Cost, dict[str, Any]]:
    """Runs the pipeline from nothing without cutting anything: no clip passes a rule."""
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
    """Wall time by number of workers. The start of the cluster is measured by a run on little."""
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
        # One worker of a machine with more cores has threads for the others: cores count.
        work_s = sum(spent[name] for name in ("decode", "scale", "shot_network", "measure"))
        efficiency = work_s / (len(os.sched_getaffinity(0)) * net_s)
        rows[-1]["efficiency"] = round(efficiency, 3)
        print(f"{count:8d} {wall_s:10.1f} {start_s:8.1f} {net_s:8.1f} {efficiency:10.3f} "
              f"{cost.cpu_s:8.1f}")  # fmt: skip
    return {"workers": rows}


def long(films: list[Path], work: Path, minutes: int) -> dict[str, Any]:
    """One long film, joined from the films without re-encoding, beside the films one by one."""
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
    """Copies of the films that differ in their bytes, and all of them joined into one file."""
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
    """Runs one measurement, prints a table and a line of JSON."""
    parser = arguments(__doc__)
    parser.add_argument("what", choices=("limit", "workers", "long", "child"))
    parser.add_argument("films", nargs="+")
    parser.add_argument("--work", type=Path, help="folder for outputs, emptied first")
    parser.add_argument("--minutes", type=int, default=30, help="films in the long one")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.what == "child":
        run_child(args.films[0], [Path(film) for film in args.films[1:]], args.threads)
        return
    films = [Path(film).resolve() for film in args.films]
    if args.what != "limit":
        if args.work is None:
            raise SystemExit(f"{args.what} needs --work")
        shutil.rmtree(args.work, ignore_errors=True)
        args.work.mkdir(parents=True)
    match args.what:
        case "limit":
            found = limit(films)
        case "workers":
            found = workers(films, args.work)
        case _:
            found = long(films, args.work, args.minutes)
    tell({"what": args.what, **found})


if __name__ == "__main__":
    main()
