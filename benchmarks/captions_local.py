#!/usr/bin/env python3
"""Compares captions in the worker with the model's own `generate`, on the same requests.

    captions_local.py [--model FOLDER | --size tiny|small|3b] [--windows 32] [--frames 8]
                      [--frame-px 448] [--frames-as images|video] [--max-tokens 128]
                      [--batch-tokens 16384] [--rounds 5] [--device auto|cpu|cuda] [--only-drawn]

*ours* is the whole path from JPEGs and prompts to texts: counting, sorting, decoding, processor,
and `generate` with one random draw per row. *bare* is `generate(do_sample=True)` with the requests'
temperature and top_p, on the same batches, whose tensors are on the device before the clock starts.
*greedy* runs both without sampling. Without --model, a model with random weights is made: the
architecture of Qwen2.5-VL, its vocabulary of 151,936 tokens, and logits with a standard deviation
of 3, because the cost of sampling depends on their spread. Rounds alternate. JSON is last.
"""

import argparse
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import machine

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from vlm import ask

from curator.stages.caption.caption_records import Frames, Request, Sampling, Task, Turn, Window
from curator.stages.caption.captioners.captioner_contract import SizedRequest
from curator.stages.caption.captioners.local_model import LocalCaptioner
from curator.stages.caption.config import ModelConfig

SIZES = {
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
             "num_attention_heads": 4, "num_key_value_heads": 2},
    "small": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
              "num_attention_heads": 14, "num_key_value_heads": 2},
    "3b": {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
           "num_attention_heads": 16, "num_key_value_heads": 2},
}  # fmt: skip
"""Language models: a small one, and two with the sizes of Qwen2.5 0.5B and 3B."""

WORDS = "Describe what happens in these frames of one clip: subjects, actions, setting, camera. "


def requests(options: argparse.Namespace, temperature: float) -> list[tuple[Request, Frames]]:
    """Returns windows of different noise, with prompts of different lengths."""
    asked = []
    for number in range(options.windows):
        shown = tuple(range(4, 32 * options.frames, 32))
        window = Window(index=0, start_frame=0, end_frame=32 * options.frames, shown=shown)
        task = Task(clip_id=f"clip {number}", content=str(number), window=window, fps=30.0)
        request = Request(
            role="captioner", model="bench", task=task, system="You caption videos.",
            turns=(Turn(role="user", text=WORDS * (1 + number % 4)),),
            sampling=Sampling(max_tokens=options.max_tokens, temperature=temperature, top_p=0.9,
                              seed=0),
        )  # fmt: skip
        width, height = options.frame_px, options.frame_px * 9 // 16
        jpegs = tuple(jpeg(number * 100 + i, width, height) for i in range(options.frames))
        asked.append((request, Frames(jpegs=jpegs, times_s=tuple(i / 30 for i in shown))))
    return asked


def jpeg(seed: int, width: int, height: int) -> bytes:
    """Returns a picture of coarse noise."""
    from PIL import Image

    coarse = np.random.default_rng(seed).integers(0, 256, (18, 32, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((width, height)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def bare_batches(model: LocalCaptioner, asked: list[tuple[Request, Frames]]) -> list[Any]:
    """Returns the worker's batches as tensors on the device, with their requests."""
    loaded = model._loaded
    waiting = [found for one in asked if isinstance(found := model.sized(*one), SizedRequest)]
    batches = []
    while waiting:
        batch, waiting = model.next_batch(waiting)
        inputs = {}
        for name, value in loaded.chat.inputs(batch).items():
            is_picture = name.startswith("pixel_values")
            inputs[name] = value.to(loaded.device, loaded.model.dtype if is_picture else None)
        batches.append((batch, inputs))
    return batches


def bare(model: LocalCaptioner, batches: list[Any]) -> int:
    """Runs `generate` alone; returns the number of tokens."""
    import torch

    n_tokens = 0
    ends = model._loaded.model.generation_config.eos_token_id
    for batch, inputs in batches:
        sampling = batch[0].request.sampling
        drawn = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p,
                 "top_k": 0}  # fmt: skip
        with torch.no_grad():
            found = model._loaded.model.generate(
                **inputs, max_new_tokens=sampling.max_tokens,
                **(drawn if sampling.temperature > 0 else {"do_sample": False}),
            )  # fmt: skip
        for row in found[:, inputs["input_ids"].shape[1] :].tolist():
            end = next((i for i, token in enumerate(row) if token in ends), None)
            n_tokens += len(row) if end is None else end + 1
    return n_tokens


def ours(model: LocalCaptioner, asked: list[tuple[Request, Frames]]) -> int:
    """Runs the worker's path from JPEGs to texts; returns the number of tokens."""
    replies = ask(model, asked)
    assert all(reply.failure is None for reply in replies)
    return sum(reply.tokens_out for reply in replies)


def timed(model: LocalCaptioner, work: Callable[[], int]) -> tuple[float, float]:
    """Returns tokens per second, of wall time and of CPU time."""
    import torch

    if model._loaded.device == "cuda":
        torch.cuda.synchronize()
    begun, begun_cpu = time.perf_counter(), time.process_time()
    n_tokens = work()
    if model._loaded.device == "cuda":
        torch.cuda.synchronize()
    return (
        n_tokens / (time.perf_counter() - begun),
        n_tokens / (time.process_time() - begun_cpu),
    )


def compared(
    model: LocalCaptioner, options: argparse.Namespace, temperature: float
) -> dict[str, Any]:
    """Measures both paths in alternating rounds."""
    asked = requests(options, temperature)
    batches = bare_batches(model, asked)
    bare(model, batches[:1])
    model.counts.clear()
    rates: dict[str, list[tuple[float, float]]] = {"bare": [], "ours": []}
    for _ in range(options.rounds):
        rates["bare"].append(timed(model, lambda: bare(model, batches)))
        rates["ours"].append(timed(model, lambda: ours(model, asked)))
    counts = model.counts
    pairs = list(zip(rates["ours"], rates["bare"], strict=True))
    shares = [mine[0] / theirs[0] for mine, theirs in pairs]
    found: dict[str, Any] = {
        f"{name}_tokens_per_s": [round(sorted(rate[0] for rate in rows)[i], 1) for i in (0, -1)]
        for name, rows in rates.items()
    }
    found |= {
        "share_of_bare": round(statistics.median(shares), 3),
        "shares": [round(share, 3) for share in shares],
        "share_by_cpu_seconds": round(statistics.median(m[1] / t[1] for m, t in pairs), 3),
        "batches": counts["batches"] // options.rounds,
        "rows_per_batch": round(options.windows * options.rounds / counts["batches"], 1),
        "padding": round(counts["tokens_padded"] / counts["tokens_in"] - 1, 3),
        "tokens_in_per_window": round(counts["tokens_in"] / options.windows / options.rounds),
        "wait_for_inputs_ms_per_window": round(
            counts["prepare_s"] / options.windows / options.rounds * 1000, 1
        ),
    }
    return found


def same_words(model: LocalCaptioner, options: argparse.Namespace) -> dict[str, int]:
    """Counts the windows whose answers in a batch and alone are equal on this device."""
    found = {}
    for name, temperature in (("greedy", 0.0), ("drawn", options.temperature)):
        asked = requests(options, temperature)[:8]
        together = ask(model, asked)
        alone = [ask(model, [one])[0] for one in asked]
        equal = sum(a.text == b.text for a, b in zip(together, alone, strict=True))
        found[name] = equal
    return found | {"of": 8}


def measure(
    options: argparse.Namespace, tell: Callable[[str, dict[str, Any]], None] | None = None
) -> dict[str, Any]:
    """Runs all measurements of one model.

    Args:
        options: See `parsed`.
        tell: Called with the name and values of each measurement as soon as it ends.
    """
    import torch

    tell = tell or (lambda _what, _found: None)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.model
        if folder is None:
            from tiny_vlm import tiny_folder

            text = SIZES[options.size] | {"vocab_size": 151_936, "max_position_embeddings": 32_768}
            # Weights are drawn on the faster device.
            with torch.device(options.device if options.device == "cuda" else "cpu"):
                folder = tiny_folder(
                    Path(temporary), "qwen2_5_vl", sharper=1.0, side_px=448, **text
                )
        config = ModelConfig(
            model=str(folder), batch_tokens=options.batch_tokens, frames_as=options.frames_as
        )
        begun = time.perf_counter()
        model = LocalCaptioner(config, device=options.device)
        model.setup()
        load_s = time.perf_counter() - begun
        if options.model is None:
            head = model._loaded.model.lm_head.weight
            head *= 3.0 / (0.02 * head.shape[1] ** 0.5)
    result: dict[str, Any] = {
        "model": str(options.model or f"random, {options.size}"),
        "arithmetic": f"{model._loaded.device}, {model._loaded.model.dtype}",
        "load_s": round(load_s, 1),
    }
    tell("model", dict(result))
    for way, temperature in (("drawn", options.temperature), ("greedy", 0.0)):
        result[way] = compared(model, options, temperature)
        tell(way, result[way])
        if options.only_drawn:
            return result
    words = same_words(model, options)
    tell("same words in a batch and alone", words)
    return result | {"same_words_in_a_batch_and_alone": words}


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Returns the options with their defaults."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder or repository of any vision-language model")
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--windows", type=int, default=32)
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--frame-px", type=int, default=448)
    parser.add_argument("--frames-as", choices=("images", "video"), default="images")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--batch-tokens", type=int, default=16_384)
    parser.add_argument("--temperature", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--only-drawn", action="store_true", help="skip greedy and same_words")
    return parser.parse_args(arguments)


def main() -> None:
    """Measures, and prints tables and a line of JSON."""
    options = parsed()
    result = measure(options)
    result |= {"machine": machine(), "options": vars(options)}
    for way in ("drawn", "greedy")[: 1 if options.only_drawn else 2]:
        found = result[way]
        print(f"{way:7} ours {found['ours_tokens_per_s']} bare {found['bare_tokens_per_s']} "
              f"tokens/s, share {found['share_of_bare']} {found['shares']}, "
              f"{found['rows_per_batch']} rows a batch")  # fmt: skip
    print(f"same words in a batch and alone: {result.get('same_words_in_a_batch_and_alone')}")
    print(json.dumps(result))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
