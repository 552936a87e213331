#!/usr/bin/env python3
"""Which preset writes fewest bytes for a CPU-second? x264 and SVT-AV1 at equal SSIM, 1080p.

    encoder_presets.py FILM[:FIRST_FRAME] ...

Of each film, frames from FIRST_FRAME on are encoded as the cut encodes clips, with one thread, by
each preset at two or three CRFs. Bytes and CPU are interpolated to the SSIM of luma (in dB, every
eighth frame) that `veryfast` has in the middle of CRF 18 and 22; nan where that is far outside.
A CPU time is of one run, and other work on the machine changes it.
"""

import argparse
import io
import json
import statistics
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.frame import VideoFrame
from encoded_heads import luma, ssim
from measure import machine

from curator.media.encode import MP4_OPTIONS, EncodeSettings, encode_mp4

SIZE = (1920, 1080)
N_FRAMES = 24
EVERY = 8
X264 = ("ultrafast", "superfast", "veryfast", "faster", "fast")
X264_CRFS = (18, 22)
AV1 = (8, 10, 12)
AV1_CRFS = (14, 24, 34)


def frames_of(name: str) -> tuple[list[VideoFrame], Fraction]:
    path, _, first = name.partition(":")
    with av.open(path, mode="r") as container:
        stream = container.streams.video[0]
        shown = []
        for index, frame in enumerate(container.decode(stream)):
            if index >= int(first or 0):
                shown.append(frame.reformat(*SIZE, "yuv420p"))
            if len(shown) == N_FRAMES:
                break
        return shown, Fraction(stream.guessed_rate or 25)


def by_x264(frames: list[VideoFrame], fps: Fraction, preset: str, crf: int) -> bytes:
    settings = EncodeSettings(crf=crf, preset=preset)
    return encode_mp4(frames, width=SIZE[0], height=SIZE[1], fps=fps, settings=settings)[0]


def by_svt_av1(frames: list[VideoFrame], fps: Fraction, preset: int, crf: int) -> bytes:
    file = io.BytesIO()
    options = {name: value for name, value in MP4_OPTIONS.items() if name != "movflags"}
    with av.open(file, "w", format="mp4", container_options=options) as output:
        stream = output.add_stream("libsvtav1", rate=fps)
        stream.width, stream.height = SIZE
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


def measured(frames: list[VideoFrame], fps: Fraction, preset: str | int, crf: int) -> list[float]:
    """Returns SSIM in dB, natural logarithm of bytes, and CPU milliseconds a frame."""
    began = time.process_time()
    encode = by_x264 if isinstance(preset, str) else by_svt_av1
    mp4 = encode(frames, fps, preset, crf)  # type: ignore[arg-type]
    cpu_ms = (time.process_time() - began) * 1000 / len(frames)
    with av.open(io.BytesIO(mp4), mode="r") as container:
        shown = list(container.decode(video=0))
    pairs = list(zip(frames, shown, strict=True))[::EVERY]
    off = 1 - float(np.mean([ssim(luma(a), luma(b)) for a, b in pairs]))
    return [-10 * np.log10(off), float(np.log(len(mp4))), cpu_ms]


def at_quality(points: list[list[float]], quality: float) -> tuple[float, float]:
    """Returns bytes and CPU at an SSIM, by the line through the two points next to it."""
    low, high = sorted(sorted(points, key=lambda point: abs(point[0] - quality))[:2])
    share = (quality - low[0]) / (high[0] - low[0])
    if not -0.5 < share < 1.5:
        return float("nan"), float("nan")
    log_bytes, cpu_ms = (a + share * (b - a) for a, b in zip(low[1:], high[1:], strict=True))
    return float(np.exp(log_bytes)), cpu_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("films", nargs="+")
    results: dict[str, dict[str, Any]] = {}
    for name in parser.parse_args().films:
        frames, fps = frames_of(name)
        points = {
            preset: [measured(frames, fps, preset, crf) for crf in crfs]
            for presets, crfs in ((X264, X264_CRFS), (AV1, AV1_CRFS))
            for preset in presets
        }
        quality = statistics.mean(point[0] for point in points["veryfast"])
        own = {str(preset): at_quality(found, quality) for preset, found in points.items()}
        results[Path(name).name] = {
            preset: {"bytes": round(own[preset][0] / own["veryfast"][0], 3),
                     "cpu": round(own[preset][1] / own["veryfast"][1], 2),
                     "kib": round(own[preset][0] / 1024, 1), "ms": round(own[preset][1], 1)}
            for preset in own
        }  # fmt: skip
        print(name, f"SSIM {quality:.1f} dB", results[Path(name).name], flush=True)
    print("| preset | bytes | CPU |")
    for preset in next(iter(results.values())):
        each = [
            " / ".join(f"{film[preset][key]:.2f}" for film in results.values())
            + f" (median {statistics.median(film[preset][key] for film in results.values()):.2f})"
            for key in ("bytes", "cpu")
        ]
        print(f"| {preset} | {each[0]} | {each[1]} |")
    print(json.dumps(results | {"machine": machine()}))


if __name__ == "__main__":
    main()
