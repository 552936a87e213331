#!/usr/bin/env python3
"""Measures what CLIP costs: pictures per second on one core, by architecture and arithmetic.

    clip.py [--architecture ViT-B-32-quickgelu] [--pictures 64] [--rounds 5]

Weights are random, which changes no time. The pictures are made by code, at the size that analyze
hands over (640x360), and prepared as it does. The embeddings of each arithmetic are compared with
open_clip's own preprocessing and forward pass in float32. Times are CPU-seconds of one thread. A
minute of video has 60 pictures at the default `analyze.clip_every_s`.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from measure import machine

from curator.models.catalogue import ModelEntry
from curator.models.clip_model import ClipEncoder
from curator.stages.analyze.config import AnalyzeConfig

Pictures = list[np.ndarray]


def made_pictures(count: int) -> Pictures:
    """Smooth random pictures, uint8 [360, 640, 3] each."""
    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (count, 9, 16, 3), np.uint8)
    return [cv2.resize(one, (640, 360), interpolation=cv2.INTER_CUBIC) for one in coarse]


def reference(config: dict[str, Any], shown: Pictures, path: Path) -> tuple[np.ndarray, float]:
    """Random weights into a file, and open_clip's own embeddings with CPU-seconds per picture."""
    import torch
    from open_clip import CLIP
    from open_clip.transform import PreprocessCfg, image_transform_v2
    from PIL import Image
    from safetensors.torch import save_file

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = CLIP(**config).eval()
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, str(path))
    preprocess = image_transform_v2(PreprocessCfg(), is_train=False)
    begun_s = time.process_time()
    with torch.inference_mode():
        rows = [
            model.encode_image(preprocess(Image.fromarray(one))[None], normalize=True)
            for one in shown
        ]
    return torch.cat(rows).numpy(), (time.process_time() - begun_s) / len(shown)


def main() -> None:
    """Runs all variants, prints a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--architecture", default="ViT-B-32-quickgelu")
    parser.add_argument("--pictures", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    cv2.setNumThreads(1)
    begun_s = time.process_time()
    import torch  # noqa: F401 - its import is not open_clip's

    torch_s, begun_s = time.process_time() - begun_s, time.process_time()
    import open_clip

    import_s = time.process_time() - begun_s
    config = open_clip.get_model_config(args.architecture)
    per_minute = 60 / AnalyzeConfig().clip_every_s
    shown = made_pictures(args.pictures)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.safetensors"
        expected, own_s = reference(config, shown, path)
        entry = ModelEntry(
            name="m", kind="clip", about="", file=path.name, licence="",
            architecture=args.architecture, dim=config["embed_dim"],
        )  # fmt: skip
        print(f"{args.architecture}, {args.pictures} pictures, median of {args.rounds} rounds; "
              f"import: torch {torch_s:.1f}, open_clip {import_s:.1f} CPU-s")  # fmt: skip
        print(f"{'':28} {'pictures/s':>10} {'spread':>7} {'CPU-s/min':>9} {'load s':>7} "
              f"{'max |d|':>8} {'least cos':>9}")  # fmt: skip
        print(f"{'open_clip, float32, singly':28} {1 / own_s:10.1f} {'':7} "
              f"{per_minute * own_s:9.2f}")  # fmt: skip
        for precision in ("float32", "bfloat16"):
            begun_s = time.process_time()
            encoder = ClipEncoder(entry, path, precision=precision, device="cpu")
            load_s = time.process_time() - begun_s
            found = encoder.embed([encoder.prepare(one) for one in shown[:8]])
            seconds = []
            for _ in range(args.rounds):
                begun_s = time.process_time()
                found = encoder.embed([encoder.prepare(one) for one in shown])
                seconds.append((time.process_time() - begun_s) / len(shown))
            median_s = statistics.median(seconds)
            rows.append({
                "variant": f"ours, {precision}",
                "pictures_per_s": round(1 / median_s, 1),
                "spread": round((max(seconds) - min(seconds)) / median_s, 2),
                "cpu_s_per_video_min": round(per_minute * median_s, 2),
                "load_cpu_s": round(load_s, 2),
                "max_difference": float(np.abs(found - expected).max()),
                "least_cosine": float((found * expected).sum(axis=1).min()),
            })  # fmt: skip
            row = rows[-1]
            print(f"{row['variant']:28} {row['pictures_per_s']:10.1f} {row['spread']:7.2f} "
                  f"{row['cpu_s_per_video_min']:9.2f} {row['load_cpu_s']:7.2f} "
                  f"{row['max_difference']:8.5f} {row['least_cosine']:9.6f}")  # fmt: skip
    result = {
        "machine": machine(),
        "architecture": args.architecture,
        "open_clip_pictures_per_s": round(1 / own_s, 1),
        "torch_import_s": round(torch_s, 1),
        "open_clip_import_s": round(import_s, 1),
        "variants": rows,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
