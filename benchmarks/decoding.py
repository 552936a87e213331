#!/usr/bin/env python3
"""Compares the decoding of the analysis with the `ffmpeg` command, by codec.

    decoding.py VIDEO --work DIR [--seconds S] [--rounds N]

The first S seconds of VIDEO are encoded in each codec. Then, in turn: `ffmpeg -f null` with its
default threads, with one thread, and with one thread and without the loop filter on frames that no
other frame refers to; and `FrameReader` with the options of the analysis. The result is CPU-seconds
of the process, the fastest round.
"""

import resource
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import av
from measure import arguments, tell

from curator.media.decode import FrameReader
from curator.models.transnet import needs_smoothing

CODECS = {
    "h264": ("mp4", ["-c:v", "libx264", "-preset", "medium"]),
    "hevc": ("mp4", ["-c:v", "libx265", "-preset", "fast", "-x265-params", "log-level=none"]),
    "vp9": ("webm", ["-c:v", "libvpx-vp9", "-crf", "32", "-b:v", "0", "-cpu-used", "6"]),
    "av1": ("mkv", ["-c:v", "libsvtav1", "-preset", "10", "-crf", "35"]),
    "mpeg4": ("mp4", ["-c:v", "mpeg4", "-q:v", "4"]),
    "mpeg2": ("ts", ["-c:v", "mpeg2video", "-q:v", "4"]),
}


def spent_by(work: Callable[[], object]) -> float:
    """Returns the CPU-seconds of this process and of its ended children."""

    def cpu_s() -> float:
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)

    before_s = cpu_s()
    work()
    return cpu_s() - before_s


def by_command(path: Path, *options: str) -> None:
    """Decodes by the command."""
    subprocess.run(
        ["ffmpeg", "-v", "error", *options, "-i", str(path), "-an", "-f", "null", "-"], check=True
    )


def by_analysis(path: Path) -> None:
    """Decodes as a worker of the analysis does that has one core."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        reader = FrameReader(
            container,
            stream,
            str(path),
            threads=1,
            max_pixels=1 << 30,
            smooths_all=needs_smoothing(stream),
            with_quantizer=True,
            shows_damaged=True,
        )
        for _ in reader:
            pass


def main() -> None:
    """Encodes, decodes, and prints a table."""
    parser = arguments(__doc__)
    parser.add_argument("video", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    ways: dict[str, Callable[[Path], None]] = {
        "ffmpeg": by_command,
        "one thread": lambda path: by_command(path, "-threads", "1"),
        "less filter": lambda path: by_command(path, "-threads", "1", "-skip_loop_filter", "noref"),
        "analysis": by_analysis,
    }
    results: dict[str, dict[str, float]] = {}
    print(f"{'':8}" + "".join(f"{way:>14}" for way in ways))
    for codec, (suffix, options) in CODECS.items():
        path = args.work / f"{codec}.{suffix}"
        subprocess.run(
            ["ffmpeg", "-v", "error", "-y", "-i", str(args.video), "-t", str(args.seconds), "-an",
             *options, str(path)],
            check=True,
        )  # fmt: skip
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(args.rounds):
            for way, decode in ways.items():
                found[way].append(spent_by(partial(decode, path)))
        results[codec] = {way: round(min(times), 2) for way, times in found.items()}
        print(f"{codec:8}" + "".join(f"{s:14.2f}" for s in results[codec].values()), flush=True)
    tell({"cpu_s": results})


if __name__ == "__main__":
    main()
