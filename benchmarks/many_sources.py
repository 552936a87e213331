"""Measures the fixed cost of a source: memory of the driver, and time.

Each of the three cases is a run of `curate`:

- `listed`: a manifest of paths that do not exist. Every line becomes a failed source.
- `probed`: hard links to a few files, with probes in parts of `scan`, as an earlier run stores
  them. The probes say that no file is a video, so the run ends after the scan, with a row for each.
- `clips`: short clips that differ in a few bytes; they are listed, probed and analyzed. The fixed
  cost is all CPU time except decoding, measuring and the shot network.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tests_path  # noqa: F401
from measure import CURATE, arguments, measured, peak_bytes, tell

PART_SOURCES = 256
LINKS_PER_FILE = 60_000
CLIP_FRAMES = 90
MIB = 1 << 20


def manifest(folder: Path, n: int) -> Path:
    """Writes a manifest of files that do not exist."""
    path = folder / "manifest.txt"
    with path.open("w") as lines:
        for number in range(n):
            name = f"shard-{number // 1000:04}/clip-{number:08}.mp4"
            lines.write(f"/data/bucket/videos/2024/{name}\n")
    return path


def links(folder: Path, n: int) -> Path:
    """Makes hard links to as few files as the file system allows."""
    root = folder / "links"
    for number in range(n):
        path = root / f"shard-{number // 1000:04}" / f"clip-{number:08}.mp4"
        if number % 1000 == 0:
            path.parent.mkdir(parents=True)
        if number % LINKS_PER_FILE == 0:
            path.write_bytes(b"no video")
            first = path
        else:
            os.link(first, path)
    return root


def store_probes(sources: Path, out: Path) -> None:
    """Writes the probes of all sources as parts of `scan`."""
    from curator.stages.scan.config import ScanConfig
    from curator.stages.scan.listing_records import ListedSource
    from curator.stages.scan.source_listing import list_sources
    from curator.stages.scan.stage import ScanStage
    from curator.storage import open_store
    from curator.tables.parts import Parts, rows_to_table
    from curator.tables.schemas import SCAN_SCHEMA

    parts = Parts(open_store(str(out)), "scan", ScanStage(ScanConfig()).fingerprint({}))
    rows: list[dict[str, Any]] = []

    def write() -> None:
        keys = [f"{row['version']}\t{row['uri']}" for row in rows]
        parts.write(rows_to_table(rows, SCAN_SCHEMA), keys)
        rows.clear()

    for number, source in enumerate(list_sources([str(sources)])):
        assert isinstance(source, ListedSource)
        rows.append(
            {
                "uri": source.uri, "bytes": source.bytes, "version": source.version,
                "source_id": f"{number:032x}", "medium": "video",
                "container": "mov,mp4,m4a,3gp,3g2,mj2", "codec": "h264",
                "pixel_format": "yuv420p", "width": 320, "height": 180,
                "rotation_deg": 0, "pixel_aspect": "1", "time_base": "1/15360", "fps": "30",
                "is_vfr": False, "header_duration_s": 3.0, "header_n_frames": 90,
                "has_audio": False, "is_hdr": False, "error_stage": "scan",
                "error_code": "not_a_video", "error_message": f"{source.uri} is no video",
            }
        )  # fmt: skip
        if len(rows) == PART_SOURCES:
            write()
    if rows:
        write()


def clips(folder: Path, n: int) -> Path:
    """Makes clips of 3 s at 320x180 from eight videos; each ends with different bytes."""
    from fractions import Fraction

    from film_makers import write_video
    from film_shots import moving_texture

    root = folder / "clips"
    root.mkdir()
    kinds = []
    for seed in range(8):
        path = folder / f"kind-{seed}.mp4"
        write_video(
            path,
            moving_texture(CLIP_FRAMES, seed=seed),
            fps=Fraction(30),
            mux_options={"movflags": "faststart"},
        )
        kinds.append(path.read_bytes())
    for number in range(n):
        # Readers skip this box: its size, the type `free`, and the clip's number.
        box = b"\x00\x00\x00\x10free" + number.to_bytes(8, "big")
        (root / f"{number:06}.mp4").write_bytes(kinds[number % len(kinds)] + box)
    return root


def driver_peak(command: list[str]) -> tuple[float, float, int]:
    """Returns wall seconds, CPU-seconds with children, and the process's own peak in bytes."""
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.02):
            peak = max(peak, peak_bytes(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    wall_s = time.monotonic() - begun
    done.set()
    watcher.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code != 0:
        raise SystemExit(f"{command} ended with {code}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s, cpu_s, peak


def bookkeeping(args: argparse.Namespace, make: Callable[[Path, int], Path]) -> dict[str, Any]:
    """Runs with 1 source and with all; the difference excludes the fixed cost of a run."""
    results: dict[str, Any] = {"n": args.n}
    for n in (1, args.n):
        folder = args.work / str(n)
        folder.mkdir()
        sources, out = make(folder, n), folder / "out"
        if args.case == "probed":
            store_probes(sources, out)
        command = [*CURATE, "run", "--max-failed", "1", str(sources), str(out)]
        wall_s, cpu_s, peak = driver_peak(command)
        summary = json.loads((out / "summary.json").read_text())
        assert summary["counts"]["sources"] == n
        results["one" if n == 1 else "all"] = {
            "wall_s": round(wall_s, 2),
            "cpu_s": round(cpu_s, 2),
            "driver_peak_mib": round(peak / MIB),
            "stage_seconds": summary["stage_seconds"],
        }
        print(f"{args.case} {n:9,}: {wall_s:7.1f} s, {cpu_s:7.1f} CPU-s, {peak / MIB:7.0f} MiB")
    more = results["all"]["driver_peak_mib"] - results["one"]["driver_peak_mib"]
    results["bytes_per_source"] = round(more * MIB / args.n)
    results["cpu_us_per_source"] = round(
        1e6 * (results["all"]["cpu_s"] - results["one"]["cpu_s"]) / args.n
    )
    print(f"{results['bytes_per_source']} bytes and {results['cpu_us_per_source']} CPU-us a source")
    return results


def fixed_cost(args: argparse.Namespace) -> dict[str, Any]:
    """Runs over short clips."""
    sources, out = clips(args.work, args.n), args.work / "out"
    cost = measured([*CURATE, "run", str(sources), str(out)])
    if cost.code != 0:
        raise SystemExit(f"curate failed with {cost.code}:\n{cost.output}")
    summary = json.loads((out / "summary.json").read_text())
    objects = {stage: len(list((out / stage).glob("*"))) for stage in ("scan", "tracks")}
    print(f"clips {args.n}: {cost.wall_s:.1f} s, {cost.cpu_s:.1f} CPU-s; {objects}")
    for name, seconds in summary.get("cpu_seconds", {}).items():
        print(f"  {name:16} {seconds:8.1f} CPU-s {1000 * seconds / args.n:8.2f} ms a source")
    return {
        "n": args.n,
        "wall_s": round(cost.wall_s, 1),
        "cpu_s": round(cost.cpu_s, 1),
        "peak_rss_gib": round(cost.peak_rss_bytes / 2**30, 2),
        "objects": objects,
        "stage_seconds": summary["stage_seconds"],
        "cpu_seconds": summary.get("cpu_seconds"),
        "counts": summary["counts"],
    }


def main() -> None:
    """Makes the sources, runs, and prints the results."""
    parser = arguments(__doc__)
    parser.add_argument("case", choices=("listed", "probed", "clips"))
    parser.add_argument("--n", type=int, required=True, help="number of sources")
    parser.add_argument("--work", type=Path, required=True, help="folder; emptied first")
    args = parser.parse_args()
    shutil.rmtree(args.work, ignore_errors=True)
    args.work.mkdir(parents=True)
    results: dict[str, Any] = {"case": args.case}
    if args.case == "clips":
        results |= fixed_cost(args)
    else:
        results |= bookkeeping(args, manifest if args.case == "listed" else links)
    tell(results)


if __name__ == "__main__":
    main()
