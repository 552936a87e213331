"""Damages videos at random, and scans and analyzes each in a sandbox, as a run does.

Each file must be analyzed, or fail with a documented code. Crashes, hangs, high memory use and
`internal` errors are findings; the script keeps their files. With `--run`, `curate run` curates all
files twice: both runs must give the same rows, and each clip must decode as its row says.

    python benchmarks/fuzz.py --n 20000                      # synthetic videos
    python benchmarks/fuzz.py --n 20000 --videos FOLDER      # short pieces of these films
    python benchmarks/fuzz.py --replay found/17.mp4          # a kept file again
    python benchmarks/fuzz.py --n 100 --run                  # also `curate run` over all files

Results: benchmarks/results/robustness.md and hostile.md.
"""

import argparse
import contextlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from fractions import Fraction
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import av
import av.error
import pyarrow.parquet as pq
import tests_path  # noqa: F401
from fuzz_box import BoxedFuzz
from measure import CURATE, arguments, sets, tell
from mutations import mutated

BATCH = 500
RECIPES = (
    ["cut.mode=auto", "cut.audio=copy"],
    ["cut.mode=encode", "cut.audio=aac", "cut.hdr=tonemap", "filters.hdr.max=1"],
    ["cut.mode=auto", "cut.fps=24", "propose.min_s=0.4", "propose.max_s=1"],
    ["cut.mode=auto", "cut.size=[128, 128]", "analyze.samples_per_s=8"],
)
SIDECARS = (
    b"", b"{", b"\xff\xfe{", b"[" * 100_000, b'{"a": 1e999}', b'{"a": NaN}', b'{"a": "\\ud800"}',
    b'{"a": {"b": {"c": {"d": {"e": {"f": {"g": 1}}}}}}}', b'{"": null, "x": [[[]]]}', b"\0" * 100,
    b'{"label": ["x"], "events": [{"start_s": -1e308, "end_s": "x"}]}',
    b'{"n": ' + b"9" * 5000 + b"}",
)  # fmt: skip

Mutant = tuple[str, str, bytes]
"""Name of the file, description of source and damage, and bytes."""


def made_videos(folder: Path) -> list[Path]:
    """Makes small synthetic videos of many kinds."""
    from film_makers import MAKERS, write_video
    from film_shots import moving_texture

    for name, make in MAKERS.items():
        make(folder / name)
    small = {"width_px": 192, "height_px": 108}
    kinds: dict[str, dict[str, Any]] = {
        "mpeg2.ts": {"codec": "mpeg2video", "audio_tone_s": 1.0},
        "mpeg4.mp4": {"codec": "mpeg4"},
        "mjpeg.avi": {"codec": "mjpeg", "pix_fmt": "yuvj420p"},
        "vp8.webm": {"codec": "libvpx", "options": {"deadline": "realtime"}},
        "hevc.mp4": {"codec": "libx265", "options": {"x265-params": "log-level=none"}},
        "hevc.mkv": {"codec": "libx265", "options": {"x265-params": "log-level=none"}},
        "av1.mkv": {"codec": "libsvtav1", "options": {"preset": "12"}},
        "ffv1.mkv": {"codec": "ffv1"},
        "sound.mp4": {"audio_tone_s": 2.0, "gop": 10, "bframes": 2},
        "sound.ts": {"audio_tone_s": 2.0, "gop": 10, "bframes": 2},
        "sound.mkv": {"audio_tone_s": 2.0, "gop": 10},
        "pieces.mp4": {"mux_options": {"movflags": "frag_keyframe+empty_moov"}, "gop": 10},
        "turned.mov": {"rotation": 90, "gop": 10},
    }
    for number, (name, options) in enumerate(kinds.items()):
        frames = moving_texture(30, seed=number, **small)
        write_video(folder / name, frames, fps=Fraction(25), **options)
    return sorted(path for path in folder.iterdir() if path.stat().st_size)


def short_pieces(videos: Path, folder: Path, seconds: float, *, most_bytes: int) -> list[Path]:
    """Cuts the first seconds of films without re-encoding; files up to 150 KB stay whole."""
    found = []
    for number, path in enumerate(sorted(p for p in videos.rglob("*") if p.is_file())):
        piece = folder / f"{number}{path.suffix}"
        if path.suffix in (".json", ".md", ".txt"):
            continue
        if path.stat().st_size <= 150_000:
            shutil.copyfile(path, piece)
        elif not _shortened(path, piece, seconds):
            continue
        if piece.exists() and 0 < piece.stat().st_size <= most_bytes:
            found.append(piece)
    return found


def _shortened(path: Path, piece: Path, seconds: float) -> bool:
    with contextlib.suppress(av.error.FFmpegError, ValueError, IndexError, OSError):
        with av.open(str(path)) as source, av.open(str(piece), "w") as output:
            streams = [source.streams.video[0], *source.streams.audio[:1]]
            copied = {s.index: output.add_stream_from_template(s, opaque=True) for s in streams}
            for packet in source.demux(streams):
                if packet.dts is None or not packet.size:
                    continue
                if packet.dts * (packet.time_base or 0) > seconds:
                    break
                packet.stream = copied[packet.stream.index]
                output.mux(packet)
        return True
    return False


def mutant(pool: Sequence[Path], seed: int, number: int) -> Mutant:
    """Makes one mutant; equal arguments give equal bytes."""
    draw = random.Random(f"{seed} {number}")
    path, other = draw.choice(pool), draw.choice(pool)
    name, data = mutated(path.read_bytes(), other.read_bytes(), draw)
    return f"{number}{path.suffix}", f"{path.name}: {name}", data


def mutants(pool: Sequence[Path], seed: int, start: int) -> Iterator[Mutant]:
    """Yields mutants without end, from another process, because some make FFmpeg's muxers abort."""
    executor = ProcessPoolExecutor(1, get_context("spawn"))
    for number in count(start):
        try:
            yield executor.submit(mutant, pool, seed, number).result()
        except BrokenProcessPool:
            executor = ProcessPoolExecutor(1, get_context("spawn"))


def run_over(folder: Path, work: Path, settings: Sequence[str]) -> list[str]:
    """Runs `curate run` twice over mutants and broken sidecars; returns the problems."""
    for number, path in enumerate(sorted(folder.iterdir())):
        if number % 3 == 0:
            sidecar = path.with_name(path.name + ".json")
            sidecar.write_bytes(SIDECARS[number // 3 % len(SIDECARS)])
    problems = []
    small = ("filters.short_side_px.min=60", "shard.resolutions=[120]", "propose.min_s=0.5")
    words = sets(*small, *settings)
    command = [*CURATE]
    made: list[Any] = []
    for name in ("a", "b"):
        out = work / name
        done = subprocess.run(
            [*command, "run", str(folder), str(out), "--max-failed", "1", *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            return [f"curate run ended with {done.returncode}: {done.stderr[-1500:]}"]
        checked = subprocess.run(
            [*command, "verify", str(out), "--frames", "all", "--json"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if checked.returncode:
            problems.append(f"verify: {checked.stdout[-1500:]}{checked.stderr[-500:]}")
        rows = pq.read_table(out / "sources").to_pylist()
        files = [path for path in folder.iterdir() if path.suffix != ".json"]
        if len(rows) != len(files):
            problems.append(f"{len(rows)} rows of {len(files)} files")
        codes = Counter(row["error_code"] for row in rows)
        print("run:", dict(codes), flush=True)
        problems += [row["error_message"] for row in rows
                     if row["error_code"] in ("internal", "worker_died")]  # fmt: skip
        clips = pq.read_table(out / "clips").to_pylist()
        made.append((rows, clips))
        problems += [
            str(c["reason_detail"]) for c in clips if "report it" in str(c["reason_detail"])
        ]
    if made[0] != made[1]:
        problems.append("two runs differ")
    return problems


def fuzzed(given: Iterator[Mutant], work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Scans and analyzes mutants; returns counts and findings."""
    (work / "mutants").mkdir()
    counts: Counter[str] = Counter()
    findings: list[str] = []
    slowest: list[tuple[float, str]] = []
    peak, end, box = 0, time.monotonic() + 60 * options.minutes, BoxedFuzz()
    while (n_tried := counts.total()) < options.n and time.monotonic() < end:
        batch = {}
        for name, what, data in islice(given, min(BATCH, options.n - n_tried)):
            path = work / "mutants" / name
            path.write_bytes(data)
            batch[path] = what
        if not batch:
            break
        for path, outcome in box(list(batch)):
            what = f"{path.name} ({batch[path]})"
            counts[outcome.code] += 1
            peak = max(peak, outcome.peak_bytes)
            slowest = sorted([*slowest, (outcome.cpu_s, what)])[-5:]
            if outcome.problems:
                options.found.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, options.found / f"{options.seed}-{path.name}")
            for problem in outcome.problems:
                findings.append(f"{what}: {problem}")
                print(f"FOUND {findings[-1]}", flush=True)
            if options.replay:
                print(path.name, outcome)
            if not options.run:
                path.unlink()
        print(counts.total(), dict(counts), f"{peak >> 20} MiB", slowest[-1], flush=True)
    if options.run:
        settings = RECIPES[options.seed % len(RECIPES)]
        findings += [f"run: {problem}" for problem in run_over(work / "mutants", work, settings)]
    return {
        "mutants": counts.total(), "counts": dict(counts), "peak_mib": peak >> 20,
        "slowest": slowest, "found": findings,
    }  # fmt: skip


def main() -> None:
    """Fuzzes, and prints the findings."""
    parser = arguments(__doc__)
    parser.add_argument("--n", type=int, default=1000, help="mutants (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=600.0, help="time limit in minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--videos", type=Path, help="folder of films (default: synthetic videos)")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of each piece")
    parser.add_argument("--found", type=Path, default=Path("found"), help="folder for findings")
    parser.add_argument("--replay", type=Path, nargs="+", help="files to analyze instead")
    parser.add_argument("--run", action="store_true", help="also run `curate run` over all files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        work = Path(name)
        pool = work / "pool"
        pool.mkdir()
        if options.replay:
            given = iter([(path.name, "replayed", path.read_bytes()) for path in options.replay])
        elif options.videos is None:
            given = mutants(made_videos(pool), options.seed, options.start)
        else:
            pieces = short_pieces(options.videos, pool, options.seconds, most_bytes=1_000_000)
            given = mutants(pieces, options.seed, options.start)
        total = fuzzed(given, work, options)
        tell(total)
    sys.exit(1 if total["found"] else 0)


if __name__ == "__main__":
    main()
