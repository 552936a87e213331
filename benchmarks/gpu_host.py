#!/usr/bin/env python3
"""What a source costs the host of a GPU: CPU time, kernels, copies and waits. Needs no GPU.

    gpu_host.py FILE... [--seconds 20] [--against FOLDER] [--launch-us 7] [--copy-us 10] ...

The whole of the GPU path runs, text included, with everything measured, over a CUDA device in
software (tests/software_cuda.py) and an engine that gives pictures decoded before. Host time is the
CPU time of all threads without that of the device in software. What the device is asked for is
counted, and costs what the options say; the calls of the engine itself cost nothing here.
`--against` measures the package of another checkout too, in a process of its own.

The table is of one second of video. The last line is JSON.
"""

import argparse
import heapq
import io
import json
import os
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ["OMP_NUM_THREADS"] = "1"

import av
import tests_path  # noqa: F401
import torch
from fake_nvdec import Decoded, fake_module, planes_of
from measure import machine
from software_cuda import Counts, SoftwareCuda, installed

import curator

COSTS_US = {
    "launch": (7.0, "Python, binding, dispatcher, kernel's choice, cudaLaunchKernel: 5 to 12 us"
               " (jiahuanglin.xyz, From PyTorch op to kernel launch)"),
    "view": (2.0, "the same without a kernel"),
    "copy": (10.0, "a copy that blocks, however short (University of Virginia,"
             " Memory Transfer Overhead)"),
    "megabyte": (167.0, "an assumption: 6 GB/s for pageable memory"),
    "wait": (5.0, "an assumption: a wait for an event, with the thread's wake-up"),
    "call": (2.0, "an assumption: an event recorded, or waited for by a stream"),
    "graph": (10.0, "an assumption on the safe side"),
}  # fmt: skip
"""Microseconds of the host for each, and where they are from; none was measured here."""
ENGINES_FRAMES_PER_S = 170 * 30
"""Seven engines of an H100: 170 streams of H.264, 1080p at 30 frames/s; said to be NVIDIA's figure,
and not checked against its paper."""
CORES = 16
KEPT = 60
"""Pictures that stand for all of a film's: at 1080p 190 MB."""
_LATE = 4


class Engine:
    """Gives the packets' times back in order, and pictures without decoding them."""

    def __init__(self, pictures: list[torch.Tensor]) -> None:
        self._pictures, self._times, self._n = pictures, list[int](), 0

    def Decode(self, packet: Any) -> list[Decoded]:  # noqa: ANN401, N802
        """Frames, some packets late; all that are left at the end."""
        if packet.bsl:
            heapq.heappush(self._times, packet.pts)
        n_due = max(0, len(self._times) - _LATE) if packet.bsl else len(self._times)
        self._n += n_due
        return [
            Decoded(heapq.heappop(self._times), self._pictures[(self._n + i) % len(self._pictures)])
            for i in range(n_due)
        ]


def beginning_of(path: Path, seconds: float) -> bytes:
    """The first seconds of a film, as a file."""
    held = io.BytesIO()
    with av.open(str(path)) as read, av.open(held, "w", format="mp4") as write:
        streams = {one.index: write.add_stream_from_template(one)
                   for one in read.streams if one.type in ("video", "audio")}  # fmt: skip
        for packet in read.demux(*(read.streams[index] for index in streams)):
            if packet.dts is not None and packet.dts * packet.time_base < seconds:
                packet.stream = streams[packet.stream.index]
                write.mux(packet)
    return held.getvalue()


def measured(path: Path, seconds: float, device: SoftwareCuda) -> dict[str, Any]:
    """What a second of a film's video costs."""
    from curator.stages.analyze.config import AnalyzeConfig
    from curator.stages.analyze.decode_source import analyze_source
    from curator.stages.analyze.families import families_of
    from curator.stages.analyze.instruments import instruments_of

    with av.open(str(path)) as container:
        pictures = [planes_of(one) for one in islice(container.decode(video=0), KEPT)]
    module = fake_module(CreateDecoder=lambda **_: Engine(pictures))
    sys.modules["PyNvVideoCodec"] = module
    config = AnalyzeConfig(device="gpu")
    families = {family.name for family in families_of(config)} - {"clip"}
    instruments = instruments_of(config, families, None, None)

    spent: dict[str, float] = {}

    def run(seconds: float) -> tuple[Any, float]:
        data = beginning_of(path, seconds)
        begun_s = time.process_time()
        track = analyze_source(
            io.BytesIO(data), path.name, source_id="0" * 32, n_bytes=len(data), config=config,
            instruments=instruments, decoder_threads=1, families=families,
            spent=spent,
        )  # fmt: skip
        return track, time.process_time() - begun_s

    run(4)
    hidden_s = hidden_cost_s(device)
    device.counts = counts = Counts()
    spent.clear()
    with patch("time.thread_time", device.host_time):
        track, cpu_s = run(seconds)
    if any("not_on_gpu" in note for note in track.notes):
        raise SystemExit(f"{path.name}: {track.notes}; give films that the engine decodes")
    video_s = float(track.duration_s)
    asked = {
        "launch": counts.launches.total(),
        "view": counts.views,
        "copy": sum(n for (_, blocks), n in counts.copies.items() if blocks),
        "megabyte": sum(n for (_, blocks), n in counts.copied_bytes.items() if blocks) / 1e6,
        "wait": counts.waits.total(),
        "call": counts.calls,
        "graph": counts.graphs,
    }
    asked["launch"] += sum(n for (_, blocks), n in counts.copies.items() if not blocks)
    host_s = cpu_s - counts.software_s - hidden_s * counts.calls_of_torch
    return {
        "frames_per_s": track.n_frames / video_s,
        "host_ms": 1e3 * host_s / video_s,
        "hidden_ms": 1e3 * hidden_s * counts.calls_of_torch / video_s,
        "spent_ms": {name: round(1e3 * s / video_s, 2) for name, s in spent.items()},
        "asked": {name: n / video_s for name, n in asked.items()},
        "launches": {name: round(n / video_s, 2) for name, n in counts.launches.most_common()},
        "waits": {name: n / video_s for name, n in counts.waits.items()},
        "other_copies": sum(n for (_, blocks), n in counts.copies.items() if not blocks) / video_s,
    }


def hidden_cost_s(device: SoftwareCuda) -> float:
    """CPU time of an operation that the device in software does not see as its own."""
    device.counts = counts = Counts()
    with torch.inference_mode():
        values = torch.zeros(8, device="cuda")
        begun_s = time.thread_time()
        for _ in range(2000):
            values.add_(1)
    spent_s = time.thread_time() - begun_s - counts.software_s
    return spent_s / counts.calls_of_torch


def row_of(tree: str, name: str, found: dict[str, Any], costs: dict[str, float]) -> str:
    """A row of the table; adds the totals to what was found."""
    asked = found["asked"]
    total_ms = found["host_ms"] + sum(n * costs[what] for what, n in asked.items()) / 1e3
    found["total_ms"] = total_ms
    found["fed_frames_per_s"] = fed = CORES * 1e3 / total_ms * found["frames_per_s"]
    counted = " | ".join(f"{asked[what]:.1f}" for what in COSTS_US)
    return f"| {name} | {tree} | {found['host_ms']:.1f} | {counted} | {total_ms:.1f} | {fed:.0f} |"


def main() -> None:
    """Prints a row per film and checkout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each film (default 20)")
    parser.add_argument("--against", type=Path, help="folder of another checkout")
    for name, (cost, source) in COSTS_US.items():
        help_ = f"default {cost}; {source}"
        parser.add_argument(f"--{name}-us", type=float, default=cost, metavar="US", help=help_)
    options = parser.parse_args()
    torch.set_num_threads(1)
    trees = {Path(curator.__file__).parents[1].name: {}}
    with installed() as device:
        for path in options.files:
            trees[next(iter(trees))][path.name] = measured(path, options.seconds, device)
    if options.against:
        command = [sys.executable, __file__, *map(str, options.files)]
        command += ["--seconds", str(options.seconds)]
        environment = os.environ | {"PYTHONPATH": str(options.against)}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        trees |= json.loads(done.stdout.splitlines()[-1])["trees"]
    costs = {name: getattr(options, f"{name}_us") for name in COSTS_US}
    names = ["launches", "views", "blocking copies", "their MB", "waits", "calls", "graphs"]
    print(f"| film | tree | host ms | {' | '.join(names)} | total ms | {CORES} cores feed |")
    print("|---|---|" + "---:|" * (len(names) + 3))
    for name in (path.name for path in options.files):
        for tree, films in trees.items():
            print(row_of(tree, name, films[name], costs))
    print(f"\nSeven engines of an H100 give {ENGINES_FRAMES_PER_S} frames/s of H.264.")
    print(json.dumps({"machine": machine(), "costs_us": costs, "trees": trees}))


if __name__ == "__main__":
    main()
