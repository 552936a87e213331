#!/usr/bin/env python3
"""Runs all GPU measurements, and writes a table of the results.

    gpu.py [--out FOLDER] [--films FOLDER] [--only NAME]... [--budget-s 1440] [--media FOLDER]
           [--workers 8,12,16] [--vlm FOLDER] [--vectors FEATURES.npz]
    gpu.py --only first
    gpu.py --only rest

Each part runs in its own process, with its own time limit. Findings until then are kept in
`results.jsonl` and `results.md` of --out. Parts that exceed the budget are skipped and reported.
Further calls with the same --out add findings.

`--only first` is for the first minutes on a GPU. It measures H.264 and decides whether the other
parts are worth their time: probe, same, a locked process, limit, analyze. It takes at most eight
minutes. `--only rest` runs the parts that no GPU has measured yet, within ten minutes.

    films    1080p at 30 frames/s in H.264 and HEVC with B-frames, copies of it under other titles
    probe    packages, libraries, codecs of NVDEC, decoders and flow that are present and start
    locked   one film by `curate run` in sandboxed processes; without the sandbox if that fails
    limit    frames/s of PyNvVideoCodec's own threaded decoder, which discards the frames
    analyze  frames/s of all measurements by number of processes, and as a fraction of the limit
    same     shots, decisions and tags of the GPU's tracks against the CPU's, over the films and
             the files of --media
    shots    frames/s of the shot network by chunk and precision; difference from the CPU's float32
    text     pictures/s of text detection in float16 and float32; lines that only one of them finds
    flow     pairs/s of the GPU's flow engine, and its difference from DIS
    clip     pictures/s of CLIP against a bare forward pass
    mps      limit and analyze with the first number of processes under NVIDIA's MPS, if it starts
    many     GPU memory over up to 1,000 sources
    corpus   a run over two films per worker, without cutting
    index    the vector index on the GPU over 10^6 synthetic vectors: recall and time of pairs, from
             the features of benchmarks/vector_index.py
    captions tokens/s of captions in the worker against the model's bare `generate`, with the model
             of --vlm, or with random weights and the language model of Qwen2.5 0.5B
    loader   samples/s of clips for training and the trainer's waits, decoded by the GPU or by CPUs
    cpu      the films of `analyze` without the GPU, on all cores

Use of the GPU's engines, cores and memory is recorded during each part. The last line is JSON.
"""

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_films import CODECS
from gpu_notes import Notes
from gpu_watch import gpu_name
from measure import arguments, machine
from processes import run_limited

LIMITS_S = {
    "films": 150, "probe": 180, "locked": 60, "limit": 200, "analyze": 330, "same": 240,
    "shots": 100, "text": 60, "flow": 60, "clip": 150, "mps": 90, "many": 130, "corpus": 300,
    "index": 200, "captions": 300, "loader": 120, "cpu": 200,
}  # fmt: skip
"""Parts in order of execution, with the time limit of each in seconds."""
FIRST_S = {"films": 45, "probe": 75, "same": 80, "locked": 50, "limit": 50, "analyze": 180}
"""Parts and limits of `--only first`: eight minutes in total."""
REST_S = {"corpus": 180, "index": 130, "captions": 150, "many": 70, "flow": 50}
"""Parts and limits of `--only rest`."""
PLANS_S = {"first": FIRST_S, "rest": REST_S}
LEAST_S = 20.0
"""A part is skipped if less time is left."""

_HERE = Path(__file__).parent


def command_of(name: str, options: dict[str, Any]) -> list[str]:
    """Returns the command that runs a part."""
    if name == "films":
        return [sys.executable, str(_HERE / "gpu_films.py"), options["films"], *options["codecs"]]
    return [sys.executable, str(_HERE / "gpu_parts.py"), name, json.dumps(options)]


def run_parts(
    commands: Mapping[str, Sequence[str]],
    notes: Notes,
    out: Path,
    budget_s: float,
    limits_s: Mapping[str, float],
) -> None:
    """Runs parts one after another; a crash of one part does not affect the others.

    Args:
        commands: Commands by name of the part, in order.
        notes: Store of the findings.
        out: Folder of the log.
        budget_s: Time limit of all parts together, in seconds.
        limits_s: Time limit of each part by name, in seconds.
    """
    ends_at = time.monotonic() + budget_s
    for name, command in commands.items():
        left_s = ends_at - time.monotonic()
        if left_s < LEAST_S:
            notes.add(name, "part", {"left out": f"{left_s:.0f} s were left"})
            continue
        print(f"## {name}", flush=True)
        begun = time.monotonic()
        with (out / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"## {name}\n")
            log.flush()
            begins_at = log.tell()
            problem = run_limited(command, min(limits_s[name], left_s), log)
        found: dict[str, Any] = {"took_s": round(time.monotonic() - begun, 1)}
        if problem is not None:
            with (out / "log.txt").open("rb") as read:
                read.seek(begins_at)
                said = read.read().decode(errors="replace").strip()[-600:]
            found |= {"problem": problem, "said": said}
        notes.add(name, "part", found)
        for what, one in notes.found().get(name, {}).items():
            print(f"{what}: {json.dumps(one)}", flush=True)


def main() -> None:
    """Runs the requested parts."""
    parser = arguments(__doc__)
    parser.add_argument("--out", help="folder for results")
    parser.add_argument("--films", help="folder that keeps the films for later calls")
    parser.add_argument("--only", action="append", choices=[*PLANS_S, *LIMITS_S])
    parser.add_argument("--budget-s", type=float, default=1440.0, help="seconds for all parts")
    parser.add_argument("--media", help="folder of additional videos for `same`")
    parser.add_argument("--vlm", help="folder of a vision-language model for `captions`")
    parser.add_argument("--vectors", help="features of vector_index.py for `index`")
    parser.add_argument("--seconds", type=int, default=27, help="length of the films, in seconds")
    parser.add_argument("--n-films", type=int, default=2)
    parser.add_argument("--workers", default="8,12,16")
    options = parser.parse_args()
    is_first = options.only == ["first"]
    plan_s = PLANS_S.get(options.only[0]) if options.only and len(options.only) == 1 else None
    limits_s = plan_s or LIMITS_S
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(options.out or temporary)
        given = vars(options) | {
            "out": str(out),
            "films": options.films or temporary,
            "workers": [int(count) for count in options.workers.split(",")],
            "first": is_first,
            "codecs": ["h264"] if is_first else list(CODECS),
        }
        notes = Notes(out)
        notes.add("machine", "machine", machine() | {"gpu": gpu_name()})
        names = [name for name in limits_s if plan_s or name in (options.only or limits_s)]
        commands = {name: command_of(name, given) for name in names}
        budget_s = min(options.budget_s, sum(limits_s.values()))
        run_parts(commands, notes, out, budget_s, limits_s)
        print(json.dumps(notes.found()))


if __name__ == "__main__":
    main()
