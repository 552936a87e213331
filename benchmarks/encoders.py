#!/usr/bin/env python3
"""Measures the encoders that clips can be written with: quality, size, CPU to write and to read.

    encoders.py MEDIA [--curve] [--repeats 5]

MEDIA is the folder of labelled videos. The first frames of each film below are decoded once, and
encoded by `curator.media.encode` with x264 and VP9 at the recipe's default, and, for comparison, by
SVT-AV1 as FFmpeg has it, with one thread and the same key frames. SSIM (Gaussian window of 11 px)
and PSNR are those of luma, the mean over every fourth frame. CPU is the median over the repeats,
with its spread, of encoding and of decoding by one thread.

With `--curve` x264 and VP9's own scale are measured at many qualities: `media.encode.vp9_crf` is
the line through the pairs of equal SSIM and of equal PSNR.
"""

import argparse
import io
import json
import statistics
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import patch

import av
import cv2
import numpy as np
from av.video.frame import VideoFrame
from measure import machine
from numpy.typing import NDArray

from curator.media import encode
from curator.media.encode import MP4_OPTIONS, EncodeSettings, encode_mp4
from curator.stages.cut.config import CutConfig

FILMS = (
    ("single/tractor_pan_vp9.webm", 60),
    ("single/juggle.mp4", 60),
    ("single/climbing_portrait.mp4", 60),
    ("multishot/bikes.mp4", 90),
)
DEFAULT = CutConfig()
AV1 = ((10, 24), (8, 28), (6, 30))
"""Presets of SVT-AV1, each with a CRF of about equal SSIM."""
CURVE_X264 = (14, 20, 26, 32)
CURVE_VP9 = (6, 14, 22, 30, 38, 46, 54)
EVERY = 4

Luma = NDArray[np.float32]
Encode = Callable[[Sequence[VideoFrame], Fraction], bytes]


def read(path: Path, n_frames: int) -> tuple[list[VideoFrame], Fraction]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = []
        for frame in container.decode(stream):
            width, height = frame.width // 2 * 2, frame.height // 2 * 2
            frames.append(frame.reformat(width, height, "yuv420p"))
            if len(frames) == n_frames:
                break
        return frames, Fraction(stream.average_rate or 25).limit_denominator(1001)


def ours(encoder: encode.Encoder, crf: int) -> Encode:
    settings = EncodeSettings(crf=crf, preset=DEFAULT.preset, encoder=encoder)

    def run(frames: Sequence[VideoFrame], fps: Fraction) -> bytes:
        width, height = frames[0].width, frames[0].height
        return encode_mp4(frames, width=width, height=height, fps=fps, settings=settings)[0]

    return run


def own_vp9(crf: int) -> Encode:
    """VP9 at a quality on its own scale."""
    plain = ours("vp9", DEFAULT.crf)

    def run(frames: Sequence[VideoFrame], fps: Fraction) -> bytes:
        with patch.object(encode, "vp9_crf", lambda _: crf):
            return plain(frames, fps)

    return run


def svt_av1(preset: int, crf: int) -> Encode:
    def run(frames: Sequence[VideoFrame], fps: Fraction) -> bytes:
        file = io.BytesIO()
        options = {k: v for k, v in MP4_OPTIONS.items() if k != "movflags"}
        with av.open(file, "w", format="mp4", container_options=options) as output:
            stream = output.add_stream("libsvtav1", rate=fps)
            stream.width, stream.height = frames[0].width, frames[0].height
            stream.pix_fmt = "yuv420p"
            stream.codec_context.gop_size = int(fps)
            stream.codec_context.options = {
                "preset": str(preset), "crf": str(crf), "svtav1-params": "lp=1",
            }  # fmt: skip
            for index, frame in enumerate(frames):
                frame.pts, frame.time_base = index, 1 / fps
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
        return file.getvalue()

    return run


def ssim(a: Luma, b: Luma) -> float:
    def mean(x: Luma) -> Luma:
        return np.asarray(cv2.GaussianBlur(x, (11, 11), 1.5), np.float32)

    mean_a, mean_b = mean(a), mean(b)
    spread_a, spread_b = mean(a * a) - mean_a**2, mean(b * b) - mean_b**2
    shared = mean(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    above = (2 * mean_a * mean_b + c1) * (2 * shared + c2)
    return float((above / ((mean_a**2 + mean_b**2 + c1) * (spread_a + spread_b + c2))).mean())


def luma(frame: VideoFrame) -> Luma:
    """The plane as it is: a conversion would depend on how the file is tagged."""
    plane = frame.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
    return rows[:, : plane.width].astype(np.float32)


def decoded(mp4: bytes) -> list[VideoFrame]:
    with av.open(io.BytesIO(mp4)) as container:
        container.streams.video[0].thread_count = 1
        return list(container.decode(video=0))


def measured(frames: list[VideoFrame], fps: Fraction, run: Encode, repeats: int) -> dict[str, Any]:
    write, load, outputs = [], [], set()
    for _ in range(repeats):
        began = time.process_time()
        mp4 = run(frames, fps)
        write.append((time.process_time() - began) * 1000 / len(frames))
        outputs.add(mp4)
        began = time.process_time()
        shown = decoded(mp4)
        load.append((time.process_time() - began) * 1000 / len(frames))
    pairs = [
        (luma(written), luma(read_back))
        for written, read_back in list(zip(frames, shown, strict=True))[::EVERY]
    ]
    errors = [max(1e-6, float(((a - b) ** 2).mean())) for a, b in pairs]
    return {
        "kib": len(mp4) / 1024,
        "ssim": statistics.mean(ssim(a, b) for a, b in pairs),
        "psnr_db": statistics.mean(10 * np.log10(255**2 / error) for error in errors),
        "encode_ms": statistics.median(write),
        "encode_spread_ms": max(write) - min(write),
        "decode_ms": statistics.median(load),
        "n_different_bytes": len(outputs) - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("media", type=Path)
    parser.add_argument("--curve", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    av.logging.set_level(av.logging.FATAL)
    crf = DEFAULT.crf
    runs: dict[str, Encode]
    if options.curve:
        runs = {f"x264 {c}": ours("x264", c) for c in CURVE_X264}
        runs |= {f"VP9 {c} (own scale)": own_vp9(c) for c in CURVE_VP9}
    else:
        runs = {f"x264, crf {crf}": ours("x264", crf), f"VP9, crf {crf}": ours("vp9", crf)}
        runs |= {f"SVT-AV1, preset {p}, its CRF {c}": svt_av1(p, c) for p, c in AV1}
    print("| film | encoder | KiB | SSIM | PSNR dB | encode ms/frame | decode ms/frame |")
    print("|---|---|---|---|---|---|---|")
    rows = []
    for name, n_frames in FILMS:
        frames, fps = read(options.media / name, n_frames)
        film = f"{Path(name).stem}, {frames[0].width}x{frames[0].height}"
        for label, run in runs.items():
            row = measured(frames, fps, run, options.repeats)
            rows.append({"film": name, "encoder": label} | row)
            print(
                f"| {film} | {label} | {row['kib']:.0f} | {row['ssim']:.4f} | "
                f"{row['psnr_db']:.1f} | {row['encode_ms']:.1f} ± {row['encode_spread_ms']:.1f} | "
                f"{row['decode_ms']:.1f} |",
                flush=True,
            )
    print(json.dumps({"machine": machine(), "rows": rows}))


if __name__ == "__main__":
    main()
