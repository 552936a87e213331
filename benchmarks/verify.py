"""What `curate verify` and `curate export` cost: rate, CPU-seconds and memory by size of the data.

Shards are made of one encoded clip under many keys. Each command runs in a process of its own, whose
CPU-seconds and largest resident set the kernel reports when it ends. The file cache is warm.
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
CASES = {
    "verify, none decoded": ["verify", "OUT", "--frames", "none"],
    "verify, 20 decoded": ["verify", "OUT", "--frames", "20"],
    "export cosmos": ["export", "OUT", "DEST", "--format", "cosmos"],
    "export cosmos again": ["export", "OUT", "DEST", "--format", "cosmos"],
    "export parquet": ["export", "OUT", "DEST", "--format", "parquet", "--videos"],
    "export energon": ["export", "OUT", "DEST", "--format", "energon"],
    "export wids": ["export", "OUT", "DEST", "--format", "wids"],
}


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
    from made_shards import MadeClip, make_shards

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
    process = subprocess.Popen(
        [sys.executable, "-m", "curator.cli", *arguments], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3):
        raise SystemExit(f"{arguments} ended with {process.returncode}")
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, nargs="+", default=[100, 400])
    parser.add_argument("--per-shard", type=int, default=100, help="clips in a tar")
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
                print("{mb:6d} MB {clips:6d} clips  {case:22s} {cpu_s:7.2f} CPU-s (spread "
                      "{cpu_s_spread:.2f}) {wall_s:7.2f} s {peak_mib:6d} MiB".format(**rows[-1]))  # fmt: skip
            shutil.rmtree(Path(work) / "to", ignore_errors=True)
            shutil.rmtree(out)
    print(json.dumps({"machine": machine(), "clip_bytes": len(mp4), "rows": rows}))


if __name__ == "__main__":
    main()
