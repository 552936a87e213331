#!/usr/bin/env python3
"""Measures captions by a model on this machine, through the stage, from JPEGs to annotations.

    captions_local.py [--model FOLDER | --size mini|tiny|small] [--windows 40] [--frames 8]
                      [--frame-px 448] [--max-tokens 64] [--rounds 3] [--server auto]
                      [--before CHECKOUT]

Each round runs the stage in a process of its own, whose CPU-seconds include its server's. With
`--before`, rounds alternate with those of a checkout of a commit in which the model was loaded in
the worker (`captioner: transformers`), such as 6bcd1a8f. Without `--model`, a model with random
weights is made: the architecture of Qwen2.5-VL with a vocabulary of bytes (mini) or of 151,936
tokens. Its answers are no captions, so each window sends its request and one repair. JSON is last.
"""

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tests_path  # noqa: F401
from measure import ROOT, arguments, spread, tell

BIG = {"vocab_size": 151_936, "max_position_embeddings": 32_768}
SIZES: dict[str, dict[str, int]] = {
    "mini": {"max_position_embeddings": 32_768},
    "tiny": BIG | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
                   "num_attention_heads": 4, "num_key_value_heads": 2},
    "small": BIG | {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
                    "num_attention_heads": 14, "num_key_value_heads": 2},
}  # fmt: skip
"""Language models: of tests, a small one, and one with the sizes of Qwen2.5 0.5B."""


def jpeg(seed: int, width: int, height: int) -> bytes:
    """Returns a picture of coarse noise."""
    from PIL import Image

    coarse = np.random.default_rng(seed).integers(0, 256, (18, 32, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((width, height)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def annotated(options: dict[str, Any]) -> dict[str, Any]:
    """Annotates windows of noise in this process, by the code that is first on the path."""
    from curator.executor.worker import Batch
    from curator.records.cuts import StoredFrames
    from curator.stages.caption.caption_records import Frames, Task, Window
    from curator.stages.caption.config import CaptionConfig
    from curator.stages.caption.reply_store import Replies
    from curator.stages.caption.stage import CaptionStage, OpenWindow, WindowUnit
    from curator.storage import open_store

    settings = {name: options[name] for name in ("captioner", "model", "max_tokens", "frames")}
    more = {"server": options["server"]} if options["captioner"] == "local" else {}
    stage = CaptionStage(CaptionConfig.model_validate(settings | more))
    n, width = options["frames"], options["frame_px"]
    shown = tuple(range(4, 32 * n, 32))
    window = Window(index=0, start_frame=0, end_frame=32 * n, shown=shown)
    pictures = {
        f"clip {i}": tuple(jpeg(i * 100 + k, width, width * 9 // 16) for k in range(n))
        for i in range(options["windows"])
    }
    windows = [
        OpenWindow(
            task=Task(clip_id=name, content=name, window=window, fps=30.0),
            where=StoredFrames(clip_id=name), replies={},
        )
        for name in pictures
    ]  # fmt: skip
    begun = time.perf_counter()
    stage.setup()
    load_s = time.perf_counter() - begun
    batch = Batch(items=tuple(windows), name="0badcafe")
    with tempfile.TemporaryDirectory() as folder:
        unit = WindowUnit(
            windows=batch.items,
            frames=lambda where, task: Frames(
                jpegs=pictures[task.clip_id], times_s=tuple(i / 30 for i in shown)
            ),
            replies=Replies(open_store(folder), "0123456789abcdef", batch.name).load(),
        )
        begun = time.perf_counter()
        found = stage.process(unit)
        annotate_s = time.perf_counter() - begun
    stage.close()
    cpu_s = [
        use.ru_utime + use.ru_stime
        for use in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    ]
    return {
        "load_s": load_s, "annotate_s": annotate_s, "cpu_s": sum(cpu_s),
        "windows": len(found.annotations),
        "replies": sum(map(len, found.parts.values())),
        "tokens_out": sum(each.tokens_out for each in found.annotations),
        "failures": sorted({str(each.failure) for each in found.annotations}),
        "about": [*stage.notes],
    }  # fmt: skip


def in_process(checkout: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Runs `annotated` in a process with the code of a checkout."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--annotate", json.dumps(options)]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(
    options: argparse.Namespace, note: Callable[[str, dict[str, Any]], None] | None = None
) -> dict[str, Any]:
    """Runs all rounds; `note` gets the values of each as soon as it ends."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.model
        if folder is None:
            from tiny_vlm import tiny_folder

            sizes = SIZES[options.size]
            made = tiny_folder(
                Path(temporary), "qwen2_5_vl", sharper=1.0, side_px=options.frame_px, **sizes
            )
            folder = str(made)
        names = ("windows", "frames", "frame_px", "max_tokens", "server")
        common = {name: getattr(options, name) for name in names} | {"model": folder}
        ways = {"local": (ROOT, common | {"captioner": "local"})}
        if options.before is not None:
            ways["before"] = (options.before, common | {"captioner": "transformers"})
        rounds: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for number in range(options.rounds):
            for way, (checkout, settings) in ways.items():
                rounds[way].append(in_process(checkout, settings))
                if note is not None:
                    note(f"{way}, round {number}", rounds[way][-1])
    return {"options": {**vars(options), "before": str(options.before)}, "rounds": rounds}


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """Returns the options with their defaults."""
    parser = arguments(__doc__)
    parser.add_argument("--model", help="folder or repository of any vision-language model")
    parser.add_argument("--size", choices=sorted(SIZES), default="mini")
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--frame-px", type=int, default=448)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", choices=("auto", "vllm", "transformers"), default="auto")
    parser.add_argument("--before", type=Path, help="checkout with the model in the worker")
    parser.add_argument("--annotate", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main() -> None:
    """Measures, and prints a table and a line of JSON."""
    options = parsed()
    if options.annotate is not None:
        print(json.dumps(annotated(json.loads(options.annotate))))
        return
    result = measure(options)
    for way, rows in result["rounds"].items():
        times = {name: spread([row[name] for row in rows], ".1f")
                 for name in ("load_s", "annotate_s", "cpu_s")}  # fmt: skip
        counts = {name: rows[0][name] for name in ("windows", "replies", "tokens_out", "failures")}
        print(way, times, counts)
    tell(result)


if __name__ == "__main__":
    main()
