"""What `curate verify` and `curate export` cost: CPU-seconds and memory by size of the data.

Shards are made of one encoded clip under many keys. Each command runs in a process of its own,
whose CPU-seconds and largest resident set are counted. The file cache is warm.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import median

import av
import numpy as np
from measure import machine

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

RUNS = 5
LINE = (
    "{mb:6d} MB {clips:6d} clips  {case:22s} {cpu_s:7.2f} CPU-s (spread {cpu_s_spread:.2f}) "
    "{wall_s:7.2f} s {peak_mib:6d} MiB"
)
CASES = {
    "verify, none decoded": ["verify", "OUT", "--frames", "none"],
    "verify, 10 decoded": ["verify", "OUT", "--frames", "10"],
    "export cosmos": ["export", "OUT", "DEST", "--format", "cosmos"],
    "export cosmos again": ["export", "OUT", "DEST", "--format", "cosmos"],
    "export parquet": ["export", "OUT", "DEST", "--format", "parquet", "--videos"],
    "export energon": ["export", "OUT", "DEST", "--format", "energon"],
    "export wids": ["export", "OUT", "DEST", "--format", "wids"],
}

# The kernel's own count of a child's memory begins with that of the process that forked it.
CHILD = """
import re, sys
from curator.cli import main
code = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
sys.exit(code)
"""


@dataclass(frozen=True)
class Cost:
    """Of one process."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def clip(n_frames: int) -> bytes:
    """Grain over a moving square, 640x360: about 2 MB for 121 frames."""
    from curator.media.encode import EncodeSettings, encode_mp4

    rng = np.random.default_rng(0)
    pictures = []
    for number in range(n_frames):
        luma = rng.normal(110, 14, (360, 640)).clip(16, 235).astype(np.uint8)
        luma[100:260, 4 * number % 400 : 4 * number % 400 + 160] += 40
        planes = np.vstack([luma, np.full((180, 640), 128, np.uint8)])
        pictures.append(av.VideoFrame.from_ndarray(planes, format="yuv420p"))
    settings = EncodeSettings(crf=23, preset="veryfast")
    return encode_mp4(pictures, width=640, height=360, fps=Fraction(30), settings=settings)[0]


def make(out: Path, mb: int, mp4: bytes, n_frames: int, per_shard: int) -> int:
    """Makes an output root of about this size; returns the number of clips."""
    from made_samples import MadeClip, make_shards

    facts = {"width": 640, "height": 360, "fps": 30.0, "fps_fraction": "30"}
    n = max(1, mb * 1_000_000 // len(mp4))
    clips = [
        MadeClip(
            key=hashlib.sha256(str(number).encode()).hexdigest()[:24],
            mp4=mp4,
            n_frames=n_frames,
            source=f"{number:032x}",
            bucket="360p_16-9_49f",
            changes=facts,
        )
        for number in range(n)
    ]
    make_shards(str(out), clips, per_shard=per_shard)
    return n


def run(arguments: list[str]) -> Cost:
    """Runs a command of `curate`; exit codes other than 0 and 3 end the benchmark."""
    begin = time.monotonic()
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=False
    )
    wall_s, after = time.monotonic() - begin, os.times()
    if done.returncode not in (0, 3):
        raise SystemExit(f"{arguments} ended with {done.returncode}: {done.stderr}")
    cpu_s = sum(after[2:4]) - sum(before[2:4])
    return Cost(wall_s, cpu_s, int(done.stdout.splitlines()[-1]) / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--per-shard", type=int, default=100, help="clips in a tar")
    parser.add_argument("--only", default="", help="cases whose name has this (default: all)")
    parser.add_argument("--frames", type=int, default=121, help="frames of a clip")
    options = parser.parse_args()
    mp4 = clip(options.frames)
    rows = []
    with tempfile.TemporaryDirectory() as work:
        for mb in options.mb:
            out = Path(work) / f"out-{mb}"
            n_clips = make(out, mb, mp4, options.frames, options.per_shard)
            size_mb = sum(p.stat().st_size for p in out.rglob("*.tar")) / 1e6
            for name, arguments in CASES.items():
                if options.only not in name:
                    continue
                costs = []
                for number in range(RUNS + 1):
                    to = Path(work) / "to"
                    if not name.endswith("again"):
                        shutil.rmtree(to, ignore_errors=True)
                    words = [
                        {"OUT": str(out), "DEST": str(to)}.get(word, word) for word in arguments
                    ]
                    cost = run(words)
                    if number:
                        costs.append(cost)
                rows.append(
                    {
                        "mb": round(size_mb),
                        "clips": n_clips,
                        "case": name,
                        "cpu_s": round(median(c.cpu_s for c in costs), 2),
                        "cpu_s_spread": round(
                            max(c.cpu_s for c in costs) - min(c.cpu_s for c in costs), 2
                        ),
                        "wall_s": round(median(c.wall_s for c in costs), 2),
                        "peak_mib": round(max(c.peak_mib for c in costs)),
                    }
                )
                print(LINE.format(**rows[-1]), flush=True)
            shutil.rmtree(Path(work) / "to", ignore_errors=True)
            shutil.rmtree(out)
    print(json.dumps({"machine": machine(), "clip_bytes": len(mp4), "rows": rows}))


if __name__ == "__main__":
    main()
