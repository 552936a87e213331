"""Measures memory and time by stage of a rerun and of commands over very many clips.

`tests/made_corpus.py` writes an output root as a run would leave it. All clips are the same real
MP4, so tars, indexes and tables are whole. Nothing is decoded. Each case runs in its own process:
`rerun` runs with other bounds over a copy by hard links, and writes tars again; `verify`, `export`
and `explain` are the commands. `corpus.py` measures only runs, with clips of a few bytes.

    million.py FOLDER [--clips 100000] [--only CASE ...] [--keep FOLDER]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import tests_path  # noqa: F401
from many_sources import driver_peak
from measure import CURATE, MIB, Watch, arguments, last_json, tell

from curator.storage import open_store
from curator.tables.checksums import read_parquet

CLIPS_PER_TAR = 500
"""As many as clips of 2 MB in tars of 1 GB."""
LIKE_THE_MP4 = (
    "filters.short_side_px={min: 720, max: 720}", "filters.aspect.min=1.5", "propose.min_s=3",
)  # fmt: skip
"""Keeps the clips that have the size and length of the MP4."""
OTHER_BOUNDS = "filters.motion.min=0.022"
"""Rejects more clips, because clips that were not written before would need decoding."""
COMMANDS = {
    "verify": ["verify", "OUT", "--frames", "none"],
    "export": ["export", "OUT", "EXPORT", "--format", "parquet"],
    "explain": ["explain", "OUT", "CLIP"],
}


def mp4_of(folder: Path) -> bytes:
    """Returns a small real clip: 150 frames of 1280x720 at 30 frames/s."""
    from film_makers import write_video

    path = folder / "clip.mp4"
    if not path.exists():
        pictures = [np.full((720, 1280, 3), 90, np.uint8)] * 150
        options = {"movflags": "faststart"}
        write_video(path, pictures, fps=Fraction(30), bframes=0, mux_options=options)
    return path.read_bytes()


def run(folder: Path, out: Path, n: int, *changes: str, begin: bool = False) -> dict[str, Any]:
    """Runs once in this process; `begin` first makes the input."""
    import made_corpus as made

    made.MP4 = mp4_of(folder)
    per_tar = f"shard.max_bytes={CLIPS_PER_TAR * (len(made.MP4) + 6000)}"
    settings = [*made.SETTINGS, "dedup.enabled=false", *LIKE_THE_MP4, per_tar, *changes]
    recipe = made.recipe_of(settings)
    if begin:
        made.make(out, n, recipe)
    watch = Watch()
    summary = made.execute(out, recipe, -(-n // made.PER_SOURCE), stage=watch.stage)
    return {"stages": watch.result(), "kept": summary["counts"]["kept"]}


def rerun(folder: Path, n: int, keep: Path | None) -> dict[str, Any]:
    """Measures a run with other bounds."""
    out = folder / "rerun"
    shutil.rmtree(out, ignore_errors=True)
    subprocess.run(["cp", "-al", str(folder / "out"), str(out)], check=True)
    found = run(folder, out, n, OTHER_BOUNDS)
    found["report_kib"] = (out / "report" / "index.html").stat().st_size >> 10
    if keep is not None:
        out.rename(keep)
    shutil.rmtree(out, ignore_errors=True)
    return found


def command(folder: Path, name: str) -> dict[str, Any]:
    """Measures a command, as users call it."""
    out, target = folder / "out", folder / "exported"
    store = open_store(str(out))
    summary = json.loads(store.read("summary.json"))
    first = read_parquet(store, summary["tables"]["clips"][0], ["clip_id"])["clip_id"][3].as_py()
    places = {"OUT": str(out), "EXPORT": str(target), "CLIP": first}
    words = [places.get(word, word) for word in COMMANDS[name]]
    wall_s, cpu_s, peak = driver_peak([*CURATE, *words])
    shutil.rmtree(target, ignore_errors=True)
    stage = {"rss_mib": round(peak / MIB), "cpu_s": round(cpu_s, 2), "wall_s": round(wall_s, 2)}
    return {"stages": {name: stage}}


def main() -> None:
    """Runs the measurement; the last line is JSON."""
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path, help="folder of the output root; reused if present")
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--only", nargs="*", help="cases; by default all")
    parser.add_argument("--keep", type=Path, help="keep the rerun's output as this folder")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder: Path = options.folder
    match options.case:
        case "make":
            run(folder, folder / "out", options.clips, begin=True)
            print("{}")
        case "rerun":
            print(json.dumps(rerun(folder, options.clips, options.keep)))
        case None:
            measured(options)
        case name:
            print(json.dumps(command(folder, name)))


def measured(options: argparse.Namespace) -> None:
    """Measures each case in its own process."""
    own = [sys.executable, *sys.argv, "--case"]
    if not (options.folder / "out" / "summary.json").exists():
        options.folder.mkdir(parents=True, exist_ok=True)
        last_json(*own, "make")
    found: dict[str, Any] = {"clips": options.clips}
    for case in options.only or ["rerun", *COMMANDS]:
        found[case] = last_json(*own, case)
        for name, stage in found[case]["stages"].items():
            print(
                f"{case:<10}{name:<20}{stage['rss_mib']:>8,.0f} MiB{stage['cpu_s']:>9.2f} CPU-s"
                f"{stage['wall_s']:>9.2f} s",
                flush=True,
            )
    tell(found)


if __name__ == "__main__":
    main()
