#!/usr/bin/env python3
"""Measures whether each quality score says what it is for, and nothing else.

    quality.py [MEDIA]

Sweeps: photographs and single frames of MEDIA/single at 1280x720 are degraded in five strengths by
blur, noise, blocks (JPEG, MPEG-2, H.264 without and with its loop filter), darkening and
brightening, and the rank correlation (Spearman) of strength and score is given for each picture,
the original being strength 0. Beside it stands how far the other scores move, between the original
and the middle strength.

MEDIA/quality: scores of each degradation beside those of its original, from whole files through the
analysis itself, without the shot network. Cost: CPU milliseconds per sample of 1080p.
"""

import argparse
import io
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import av
import cv2
import numpy as np
from borders import track_of
from measure import machine
from numpy.typing import NDArray

from curator.footage.pictures import photograph
from curator.records import Span
from curator.signals.picture import picture_signals
from curator.signals.quality import native_signals
from curator.stages.scores import score_clip

Luma = NDArray[np.uint8]

WIDTH, HEIGHT = 1280, 720
PHOTOS = ("coffee", "cat", "motorcycle", "astronaut", "gravel")
CLIPS = ("juggle.mp4", "dog_play.mp4", "blocks_hands.mp4", "meeting_two_people.webm")
SHOWN = ("sharpness", "noise", "blocking", "banding", "combing", "resolution", "stripes", "luma",
         "bright_fraction", "dark_fraction")  # fmt: skip
N_CODED = 6
"""Frames that are encoded; the last is measured."""


def pictures(media: Path | None) -> dict[str, list[Luma]]:
    """Luma of limited range: a few frames of a slow pan, or of a clip."""
    found = {f"photo {name}": _pan(name) for name in PHOTOS}
    for name in CLIPS if media else ():
        assert media is not None
        with av.open(str(media / "single" / name)) as container:
            frames = [f for _, f in zip(range(N_CODED), container.decode(video=0), strict=False)]
        found[name] = [_plane(frame) for frame in frames]
    return found


def _pan(name: str) -> list[Luma]:
    gray = cv2.cvtColor(photograph(name), cv2.COLOR_RGB2GRAY)
    scale = max((WIDTH + 32) / gray.shape[1], (HEIGHT + 32) / gray.shape[0])
    large = cv2.resize(gray, None, fx=scale, fy=scale, interpolation=cv2.INTER_LANCZOS4)
    luma = np.rint(16 + large.astype(np.float32) * 219 / 255).astype(np.uint8)
    return [luma[i : i + HEIGHT, 3 * i : 3 * i + WIDTH].copy() for i in range(N_CODED)]


def _plane(frame: av.VideoFrame) -> Luma:
    plane = frame.planes[0]
    rows = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)
    return rows[: frame.height, : frame.width].copy()


def scores_of(luma: Luma) -> dict[str, float]:
    """Signals of one frame of limited range."""
    full = np.clip((np.arange(256) - 16) * 255 / 219, 0, 255).astype(np.uint8)
    scale = min(1.0, 640 / max(luma.shape))
    size = (round(luma.shape[1] * scale), round(luma.shape[0] * scale))
    gray = cv2.resize(cv2.LUT(luma, full), size, interpolation=cv2.INTER_AREA)
    values = native_signals(luma, black=16, white=235) | picture_signals(np.asarray(gray, np.uint8))
    return values | {"luma": float(gray.mean()) / 255}


def _coded(frames: Sequence[Luma], codec: str, options: dict[str, str]) -> Luma:
    buffer = io.BytesIO()
    height, width = frames[0].shape
    with av.open(buffer, "w", format="matroska") as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.thread_count = 1
        stream.options = options
        for index, luma in enumerate(frames):
            chroma = np.full((height // 2, width), 128, np.uint8)
            frame = av.VideoFrame.from_ndarray(np.vstack([luma, chroma]), format="yuv420p")
            frame.pts = index
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    buffer.seek(0)
    with av.open(buffer) as container:
        return [_plane(frame) for frame in container.decode(video=0)][-1]


def _noisy(luma: Luma, sigma: float) -> Luma:
    noise = np.random.default_rng(1).normal(0, sigma, luma.shape)
    return np.clip(np.rint(luma + noise), 0, 255).astype(np.uint8)


def _lit(luma: Luma, gain: float) -> Luma:
    return np.clip(np.rint(16 + (luma.astype(np.float32) - 16) * gain), 16, 235).astype(np.uint8)


def _jpeg(luma: Luma, quality: int) -> Luma:
    _, data = cv2.imencode(".jpg", luma, [cv2.IMWRITE_JPEG_QUALITY, quality])
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_GRAYSCALE), np.uint8)


def _smaller(luma: Luma, factor: float) -> Luma:
    size = (round(luma.shape[1] / factor), round(luma.shape[0] / factor))
    small = cv2.resize(luma, size, interpolation=cv2.INTER_AREA)
    large = cv2.resize(small, luma.shape[::-1], interpolation=cv2.INTER_CUBIC)
    return np.asarray(large, np.uint8)


Sweep = tuple[str, int, Sequence[float], Callable[[Sequence[Luma], float], Luma]]

SWEEPS: dict[str, Sweep] = {
    "blur": ("sharpness", -1, (1, 2, 4, 8, 16),
             lambda f, s: np.asarray(cv2.GaussianBlur(f[-1], (0, 0), s), np.uint8)),
    "noise": ("noise", 1, (1, 2, 4, 8, 16), lambda f, s: _noisy(f[-1], s)),
    "blocks, JPEG": ("blocking", 1, (75, 50, 30, 15, 7), lambda f, s: _jpeg(f[-1], int(s))),
    "blocks, MPEG-2": ("blocking", 1, (2, 4, 8, 16, 31), lambda f, s: _coded(
        f, "mpeg2video", {"qmin": str(int(s)), "qmax": str(int(s)), "g": "1"})),
    "blocks, H.264 unfiltered": ("blocking", 1, (24, 30, 36, 42, 48), lambda f, s: _coded(
        f, "libx264", {"qp": str(int(s)), "preset": "veryfast", "x264-params": "no-deblock=1"})),
    "blocks, H.264": ("blocking", 1, (24, 30, 36, 42, 48), lambda f, s: _coded(
        f, "libx264", {"qp": str(int(s)), "preset": "veryfast"})),
    "dark": ("luma", -1, (0.7, 0.5, 0.3, 0.15, 0.06), lambda f, s: _lit(f[-1], s)),
    "bright": ("bright_fraction", 1, (1.3, 1.7, 2.2, 3, 5), lambda f, s: _lit(f[-1], s)),
    "enlarged": ("resolution", -1, (1.5, 2, 3, 4, 6), lambda f, s: _smaller(f[-1], s)),
}  # fmt: skip
"""Degradation -> its score, the score's direction, strengths, and what makes it of some frames."""


def spearman(values: Sequence[float]) -> float:
    """Rank correlation of values with their order; equal values share their mean rank."""
    array = np.asarray(values, np.float64)
    ranks = (array[:, None] > array[None, :]).sum(1) + 0.5 * (
        (array[:, None] == array[None, :]).sum(1) - 1
    )
    order = np.arange(len(array))
    return float(np.corrcoef(order, ranks)[0, 1]) if ranks.std() > 0 else 0.0


def sweep(found: dict[str, list[Luma]]) -> dict[str, dict[str, float]]:
    """Prints the table of sweeps; gives rank correlations by degradation and picture."""
    original = {name: scores_of(frames[-1]) for name, frames in found.items()}
    correlations: dict[str, dict[str, float]] = {}
    for name, (score, sign, strengths, degrade) in SWEEPS.items():
        print(f"\n### {name}: `{score}`\n")
        print("| picture | original | " + " | ".join(str(s) for s in strengths)
              + " | rank correlation | others at the middle strength |")  # fmt: skip
        print("|---|---|" + "---|" * len(strengths) + "---|---|")
        correlations[name] = {}
        for picture, frames in found.items():
            rows = [scores_of(degrade(frames, strength)) for strength in strengths]
            own = [original[picture][score], *(row[score] for row in rows)]
            correlation = sign * spearman(own)
            correlations[name][picture] = round(correlation, 3)
            others = ", ".join(
                f"{key} {original[picture][key]:.2g}>{rows[2][key]:.2g}"
                for key in SHOWN[:8]
                if key != score and _moved(original[picture][key], rows[2][key])
            )
            print(f"| {picture} | " + " | ".join(f"{v:.3g}" for v in own)
                  + f" | {correlation:.2f} | {others} |", flush=True)  # fmt: skip
    return correlations


def _moved(before: float, after: float) -> bool:
    return abs(after - before) > 0.5 * max(abs(before), abs(after), 0.3)


OWN = {
    "juggle_blur.mp4": "sharpness",
    "juggle_dark.mp4": "luma",
    "juggle_noise.mp4": "noise",
    "juggle_overexposed.mp4": "luma",
    "juggle_upscaled_blocky.mp4": "blocking",
    "still_image_5s.mp4": "frozen_fraction",
    "still_zoom_5s.mp4": "motion",
    "tv_static.mp4": "motion",
}
CLIP_SCORES = ("sharpness", "noise", "blocking", "banding", "combing", "true_resolution", "stripes",
               "luma", "contrast", "clipped_fraction", "frozen_fraction", "black_fraction",
               "motion", "bits_per_pixel", "content_area")  # fmt: skip


def of_files(media: Path) -> dict[str, dict[str, float | None]]:
    """Prints scores of whole files."""
    paths = [media / "single" / "juggle.mp4", *((media / "quality" / name) for name in OWN)]
    print("\n| file | " + " | ".join(CLIP_SCORES) + " |\n|---|" + "---|" * len(CLIP_SCORES))
    table = {}
    for path in paths:
        track = track_of(path)
        scores = score_clip(track, Span(start_frame=0, end_frame=track.n_frames, shot=0))
        table[path.name] = {name: scores[name] for name in CLIP_SCORES}
        cells = ("-" if (v := scores[name]) is None else f"{v:.3g}" for name in CLIP_SCORES)
        print(f"| {path.name} | " + " | ".join(cells) + " |", flush=True)
    return table


def cost_ms(n: int = 25) -> dict[str, float]:
    """CPU milliseconds per sample of 1080p."""
    luma = cv2.resize(_pan("motorcycle")[0], (1920, 1080), interpolation=cv2.INTER_CUBIC)
    luma = _noisy(np.asarray(luma, np.uint8), 1.5)
    gray = np.asarray(cv2.resize(luma, (640, 360), interpolation=cv2.INTER_AREA), np.uint8)
    spent = {}
    jobs: dict[str, Callable[[], object]] = {
        "native": lambda: native_signals(luma, black=16, white=235),
        "picture": lambda: picture_signals(gray),
    }
    for name, job in jobs.items():
        job()
        runs = []
        for _ in range(n):
            begun_s = time.process_time()
            job()
            runs.append(time.process_time() - begun_s)
        spent[name] = round(1000 * float(np.median(runs)), 2)
    return spent


def main() -> None:
    """Runs the measurement and prints tables, then JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("media", nargs="?", type=Path, help="folder with `single` and `quality`")
    args = parser.parse_args()
    cv2.setNumThreads(1)
    correlations = sweep(pictures(args.media))
    files = of_files(args.media) if args.media else {}
    spent = cost_ms()
    lowest = {name: min(values.values()) for name, values in correlations.items()}
    print("\n| degradation | lowest rank correlation | mean |\n|---|---|---|")
    for name, values in correlations.items():
        print(f"| {name} | {lowest[name]:.2f} | {np.mean(list(values.values())):.2f} |")
    print(f"\nCPU per sample of 1080p: {spent} ms")
    print(json.dumps({"rank": correlations, "files": files, "cpu_ms": spent, **machine()}))


if __name__ == "__main__":
    main()
