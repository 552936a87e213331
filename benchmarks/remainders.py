"""How much footage is kept of films that share a part, with remainders and without.

    remainders.py FOOTAGE OUT [--films 12]

Each film of FOOTAGE that is long enough gives two files: A is its first 60%, and B its last 60%,
encoded more coarsely. So a third of each is in the other. Films are those whose names hash lowest.
Kept clips are placed in the film by the times that their rows name.
"""

import argparse
import hashlib
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq

LEAST_S = 10.5
SHARE = 0.6


def seconds_of(film: Path) -> float:
    shown = subprocess.run(
        ["ffprobe", "-v", "error", "-show_entries", "format=duration", "-of", "csv=p=0", film],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return float(shown.stdout)


def make(films: list[Path], folder: Path) -> dict[str, float]:
    """Makes A and B of each film; returns where each file begins in its film, by its name."""
    folder.mkdir(parents=True)
    begins = {}
    for number, film in enumerate(films):
        seconds = seconds_of(film)
        for name, start_s, crf in ((f"{number}a", 0.0, 18), (f"{number}b", 0.4 * seconds, 26)):
            subprocess.run(
                ["ffmpeg", "-v", "error", "-i", film, "-ss", f"{start_s}", "-t",
                 f"{SHARE * seconds}", "-an", "-vf", "scale=640:-2:flags=lanczos", "-c:v",
                 "libx264", "-crf", str(crf), folder / f"{name}.mp4"],
                check=True,
            )  # fmt: skip
            begins[name] = start_s
    return begins


def kept_of(out: Path, begins: dict[str, float]) -> dict[str, float]:
    """Returns seconds of kept clips and of footage in them, and CPU-seconds."""
    summary = json.loads((out / "summary.json").read_text())
    spans = defaultdict(list)
    for part in summary["tables"]["clips"]:
        for row in pq.read_table(out / part).to_pylist():
            name = Path(row["source_uri"]).stem
            if row["decision"] == "kept":
                span = (begins[name] + row["start_s"], begins[name] + row["end_s"])
                spans[name[:-1]].append(span)
    unlike_s = 0.0
    for of_film in spans.values():
        at = 0.0
        for start, end in sorted(of_film):
            unlike_s += max(0.0, end - max(at, start))
            at = max(at, end)
    all_s = sum(end - start for of_film in spans.values() for start, end in of_film)
    reasons = summary["counts"]["by_reason"]
    cpu = summary["cpu_seconds"]
    return {
        "clips": sum(map(len, spans.values())),
        "divided": reasons.get("divided", 0),
        "duplicate": reasons.get("duplicate", 0),
        "kept_s": round(all_s, 1),
        "footage_s": round(unlike_s, 1),
        "twice_s": round(all_s - unlike_s, 1),
        "cpu_total_s": cpu["total"],
        "cpu_propose_s": cpu.get("propose", 0.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("footage", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--films", type=int, default=12)
    given = parser.parse_args()
    films = sorted(
        given.footage.glob("*.mp4"), key=lambda f: hashlib.sha256(f.name.encode()).digest()
    )
    films = [film for film in films if seconds_of(film) >= LEAST_S][: given.films]
    begins = make(films, given.out / "in")
    table = {}
    # The second run decodes nothing.
    for remainders in ("false", "true"):
        settings = [f"dedup.remainders={remainders}", "caption.enabled=false", "filters={}"]
        more = [part for one in settings for part in ("--set", one)]
        run = [sys.executable, "-m", "curator.cli", "run", given.out / "in", given.out / "out"]
        subprocess.run([*run, "--workers", "1", *more], check=True, stdout=subprocess.DEVNULL)
        table[remainders] = kept_of(given.out / "out", begins)
        print(f"remainders={remainders}: {table[remainders]}")
    film_s = sum(map(seconds_of, films))
    print(json.dumps({"films": len(films), "film_s": round(film_s, 1), "remainders": table}))


if __name__ == "__main__":
    main()
