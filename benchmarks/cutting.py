#!/usr/bin/env python3
"""Measures whether clips hold exactly their frames, what readers make of them, and what they cost.

    cutting.py MEDIA [--only NAME ...] [--films FILM ...]

MEDIA is the folder of labelled videos. Of each file below up to two spans of 2 s (in the first
third and at the end, from the key frame there on) are cut in each mode, by the stage itself. A
frame written is right if it is nearer (PSNR of luma at 320 px, after a linear fit of levels) to the
source's frame of the plan than to the frames beside that one; frames whose neighbours are the same
picture say nothing and are counted apart. All four readers then read each clip: PyAV, the ffmpeg
command, OpenCV and torchcodec, if it is there.

Cost, size and SSIM are those of the same clips and of the films. Sizes are beside the source's
bytes of the same frames.
"""

import argparse
import io
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from measure import machine
from numpy.typing import NDArray
from readers import disagreement, readers

from curator.cut_requests import crop_within, cut_request, frame_plan
from curator.errors import CuratorError
from curator.media.container import open_container, video_stream
from curator.media.decode import FrameReader, upright_size
from curator.records.clips import Span
from curator.records.cuts import CutClip, CutRequest
from curator.records.tracks import Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import analyze_source
from curator.stages.analyze.measurer import Instruments
from curator.stages.cut.clip_cutter import ClipCutter
from curator.stages.cut.config import CutConfig

FILES = (
    ("multishot/counter.mp4", "numbered frames, 10 fps"),
    ("formats/derived_vfr.mp4", "variable rate"),
    ("multishot/bbb_logo_60fps.ts", "60 fps, MPEG-TS"),
    ("single/rooftops_60fps_pans.mp4", "60 fps, full range"),
    ("formats/derived_interlaced_tff_mpeg2.ts", "interlaced, SAR 8:9"),
    ("single/dog_play.mp4", "B-frames, edit list"),
    ("multishot/bikes.mp4", "B-frames"),
    ("multishot/nasa_13013.mp4", "B-frames, two audio tracks"),
    ("single/sideways_iphone.mov", "rotated, variable rate"),
    ("single/whip_pan_vfr_rot180.mp4", "rotated, variable rate"),
    ("single/rotate_fragmented_bbb.mp4", "rotated, fragmented"),
    ("neardup/dog_on_bed_rot270flag.mp4", "rotated"),
    ("neardup/chrome_small.mp4", "SAR 128:135"),
    ("neardup/cockatoo.mp4", "4:4:4"),
    ("formats/hdr10_pq_hevc.mp4", "PQ, tone-mapped"),
    ("formats/hlg_fragment.mp4", "HLG, tone-mapped"),
    ("multishot/big_buck_bunny_0_30.webm", "VP8, black borders at times"),
    ("single/tractor_pan_vp9.webm", "VP9"),
    ("single/car-detection.mp4", "starved: 0.7 Mbit/s"),
    ("single/bottle-detection.mp4", "starved: 0.1 Mbit/s"),
)
SPAN_S = 2.0
SMALL_PX = 320
FILM_CLIPS = 5
STILL_DB = 45.0
"""Frames this near to each other are the same picture."""
RUNS = (
    ("auto", CutConfig(hdr="tonemap")),
    ("encode", CutConfig(mode="encode", hdr="tonemap")),
    ("auto, audio copied", CutConfig(hdr="tonemap", audio="copy")),
    ("encode, AAC", CutConfig(mode="encode", hdr="tonemap", audio="aac")),
)
UNGUARDED = CutConfig(mode="encode", hdr="tonemap", max_size_factor=None)
UNVERIFIED = CutConfig(mode="encode", hdr="tonemap", max_size_factor=None, verify_share=0)

Luma = NDArray[np.float32]


class NoShots:
    """Stands for the shot network, which cutting does not need."""

    cpu_s = 0.0

    def __init__(self) -> None:
        self._n_frames = 0

    def stream(self, *, in_background: bool) -> "NoShots":
        return NoShots()

    def push(self, frame_HWC: NDArray[np.uint8]) -> None:  # noqa: N803 - shape letters
        self._n_frames += 1

    def finish(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        zeros = np.zeros(self._n_frames, np.float32)
        return zeros, zeros


@dataclass(kw_only=True)
class Tally:
    """Sums over clips."""

    n_clips: int = 0
    n_copied: int = 0
    n_frames: int = 0
    n_still: int = 0
    n_wrong: int = 0
    lowest_db: float = math.inf
    least_margin_db: float = math.inf
    n_disagree: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    sizes: list[float] = field(default_factory=list)
    ssims: list[float] = field(default_factory=list)
    not_copied: dict[str, int] = field(default_factory=dict)
    n_coarser: int = 0
    audio: dict[str, int] = field(default_factory=dict)


@cache
def analyzed(path: Path) -> Track:
    with path.open("rb") as reader:
        return analyze_source(
            reader,
            path.name,
            source_id=path.name,
            n_bytes=path.stat().st_size,
            instruments=Instruments(network=NoShots()),  # type: ignore[arg-type]
            config=AnalyzeConfig(text=False),
            decoder_threads=1,
        )


def spans_of(track: Track) -> list[Span]:
    """In the first third and at the end, 2 s each, from a key frame on where there is one."""
    length = max(2, round(SPAN_S * track.n_frames / max(0.1, _seconds(track))))
    last = max(0, track.n_frames - length)
    aims = [last // 3, last] if last >= 2 * length else [last // 2]
    keys = np.flatnonzero(track.frame_flags & 1)
    near = [keys[keys <= aim] for aim in aims]
    starts = sorted({int(found[-1]) if len(found) else 0 for found in near})
    return [
        Span(start_frame=start, end_frame=min(start + length, track.n_frames), shot=0)
        for start in starts
    ]


def _seconds(track: Track) -> float:
    return float((track.end_pts - track.frame_pts[0]) * track.time_base)


def cut(path: Path, track: Track, spans: Sequence[Span], config: CutConfig) -> Iterator[
    tuple[CutRequest, CutClip, float]
]:  # fmt: skip
    """Each clip with the CPU-seconds that it took."""
    with (
        path.open("rb") as reader,
        ClipCutter(
            reader,
            path.name,
            n_bytes=path.stat().st_size,
            config=config,
            max_pixels=10**8,
            decoder_threads=1,
        ) as cutter,
    ):
        for number, span in enumerate(spans):
            request = cut_request(track, f"clip{number}", span, crop=crop_within(track, span))
            begun = time.process_time()
            clip = cutter.cut(request)
            yield request, clip, time.process_time() - begun


def source_luma(path: Path, track: Track, request: CutRequest) -> dict[int, Luma]:
    """Small upright luma of the source's frames around a span, by timestamp."""
    tick = float(track.time_base)
    lowest, highest = request.start_pts - 0.5 / tick, request.end_pts + 0.5 / tick
    found = {}
    with (
        path.open("rb") as reader,
        open_container(reader, path.name, n_bytes=path.stat().st_size) as container,
    ):
        stream = video_stream(container, path.name)
        frames = FrameReader(container, stream, path.name, threads=1, max_pixels=10**8)
        whole = _woven(frames) if request.is_interlaced else ((f.pts, f.picture) for f in frames)
        for pts, frame in whole:
            if pts > highest:
                break
            if pts >= lowest:
                picture = frame.to_ndarray(format="gray")
                picture = np.ascontiguousarray(np.rot90(picture, k=-request.rotation_deg // 90))
                if request.crop is not None:
                    box = request.crop
                    picture = picture[box.y : box.y + box.height, box.x : box.x + box.width]
                found[pts] = _small(picture, track)
    return found


def _woven(frames: FrameReader) -> Iterator[tuple[int, av.VideoFrame]]:
    """The whole source deinterlaced, which no cut could disturb."""
    graph, times = None, []
    for frame in frames:
        if graph is None:
            graph, picture = av.filter.Graph(), frame.picture
            kind = {"width": picture.width, "height": picture.height, "format": picture.format}
            source = graph.add_buffer(**kind, time_base=picture.time_base)
            weave = graph.add("bwdif", "mode=send_frame:deint=interlaced")
            graph.link_nodes(source, weave, graph.add("buffersink")).configure()
        times.append(frame.pts)
        graph.push(frame.picture)
        while True:
            try:
                ready = graph.vpull()
            except (av.error.BlockingIOError, av.error.EOFError):
                break
            yield times.pop(0), ready
    if graph is not None:
        graph.push(None)
        yield times.pop(0), graph.vpull()


def _small(picture: NDArray[np.uint8], track: Track) -> Luma:
    height, width = picture.shape
    width, height = upright_size(width, height, 0, track.pixel_aspect)
    scale = SMALL_PX / max(width, height)
    size = (max(2, round(width * scale)), max(2, round(height * scale)))
    return cv2.resize(picture, size, interpolation=cv2.INTER_AREA).astype(np.float32)


def psnr(frame: Luma, source: Luma) -> float:
    """After the linear fit of levels that brings the source nearest to the frame."""
    x, y = source.ravel() - source.mean(), frame.ravel() - frame.mean()
    spread = float(x @ x)
    rest = y - x * (float(x @ y) / spread) if spread > 0 else y
    return 10 * math.log10(255**2 / max(float(rest @ rest) / len(rest), 1e-6))


def differ(a: Luma, b: Luma) -> bool:
    """Whether two frames are told apart; not those of a fade of one flat picture, either."""
    return max(psnr(a, b), psnr(b, a)) < STILL_DB


def compare(path: Path, track: Track, request: CutRequest, clip: CutClip, tally: Tally) -> None:
    """Adds how the clip's frames fit the frames of the plan and those beside them."""
    source = source_luma(path, track, request)
    times = sorted(source)
    own = request.frame_pts[clip.first : clip.end]
    plan = frame_plan(request) if clip.cut_mode == "encode" else np.arange(clip.n_frames)
    with av.open(io.BytesIO(clip.mp4)) as container:
        frames = [f.to_ndarray(format="gray") for f in container.decode(video=0)]
    if len(frames) != len(plan):
        raise SystemExit(f"{path}: {len(frames)} frames, {len(plan)} planned")
    for frame, index in zip(frames, plan, strict=True):
        at = times.index(int(own[index]))
        shape = source[times[at]].shape
        small = cv2.resize(frame, shape[::-1], interpolation=cv2.INTER_AREA).astype(np.float32)
        right = psnr(small, source[times[at]])
        near = [at + step for step in (-1, 1) if 0 <= at + step < len(times)]
        beside = [source[times[i]] for i in near if differ(source[times[i]], source[times[at]])]
        tally.n_frames += 1
        tally.n_still += not beside
        if beside:
            margin = right - max(psnr(small, other) for other in beside)
            tally.n_wrong += margin <= 0
            tally.lowest_db = min(tally.lowest_db, right)
            tally.least_margin_db = min(tally.least_margin_db, margin)


def ssim(path: Path, request: CutRequest, clip: CutClip) -> float | None:
    """Mean SSIM of luma at full size; None where pictures are turned, scaled or converted."""
    is_plain = not (request.rotation_deg or request.crop or request.is_interlaced)
    if not is_plain or request.is_hdr or request.is_vfr:
        return None
    wanted = {int(pts): number for number, pts in enumerate(request.frame_pts)}
    with av.open(io.BytesIO(clip.mp4)) as container:
        written = [f.to_ndarray(format="yuv420p")[: f.height] for f in container.decode(video=0)]
    values = []
    with (
        path.open("rb") as reader,
        open_container(reader, path.name, n_bytes=path.stat().st_size) as container,
    ):
        stream = video_stream(container, path.name)
        if stream.codec_context.pix_fmt != "yuv420p":
            return None
        for frame in FrameReader(container, stream, path.name, threads=1, max_pixels=10**8):
            number = wanted.get(frame.pts)
            if number is None or number % 6:
                if frame.pts > request.end_pts:
                    break
                continue
            luma = frame.picture.to_ndarray(format="yuv420p")[: frame.picture.height]
            if luma.shape != written[number].shape:
                return None
            values.append(_ssim(luma, written[number]))
    return statistics.mean(values) if values else None


def _ssim(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    """Wang et al. 2004: a Gaussian window of 11 px, sigma 1.5."""
    x, y = a.astype(np.float32), b.astype(np.float32)

    def mean(plane: Luma) -> Luma:
        return cv2.GaussianBlur(plane, (11, 11), 1.5)

    mx, my = mean(x), mean(y)
    vx, vy, cov = mean(x * x) - mx * mx, mean(y * y) - my * my, mean(x * y) - mx * my
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    values = ((2 * mx * my + c1) * (2 * cov + c2)) / ((mx**2 + my**2 + c1) * (vx + vy + c2))
    return float(values.mean())


def take(tally: Tally, request: CutRequest, clip: CutClip, cpu_s: float, config: CutConfig) -> None:
    tally.n_clips += 1
    tally.n_copied += clip.cut_mode == "copy"
    tally.seconds += float(clip.n_frames / clip.fps)
    tally.cpu_s += cpu_s
    tally.n_coarser += clip.crf is not None and clip.crf > config.crf
    tally.audio[clip.audio] = tally.audio.get(clip.audio, 0) + 1
    if clip.not_copied is not None:
        reason = str(clip.not_copied)
        tally.not_copied[reason] = tally.not_copied.get(reason, 0) + 1
    ratio = size_ratio(request, clip)
    if ratio is not None:
        tally.sizes.append(ratio)


def size_ratio(request: CutRequest, clip: CutClip) -> float | None:
    """Bits per pixel of the clip by those of the source."""
    density = request.source_bits_per_pixel
    if density is None:
        return None
    return len(clip.mp4) * 8 / (clip.width * clip.height * clip.n_frames) / density


def exactness(media: Path, only: Sequence[str]) -> list[dict[str, Any]]:
    tools, rows = readers(), []
    print("readers:", ", ".join(tools))
    print(f"{'file':36} {'run':20} {'clips':>5} {'copied':>6} {'frames':>6} {'still':>5} "
          f"{'wrong':>5} {'low dB':>6} {'margin':>6} {'disagree':>8} {'CPU-s/min':>9} {'size':>5} "
          f"{'coarser':>7}")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for name, why in FILES:
            if only and not any(word in name for word in only):
                continue
            path = media / name
            track = analyzed(path)
            spans = spans_of(track)
            for label, config in RUNS:
                tally = Tally()
                for request, clip, cpu_s in cut(path, track, spans, config):
                    take(tally, request, clip, cpu_s, config)
                    compare(path, track, request, clip, tally)
                    problem = disagreement(clip.mp4, clip, Path(folder), tools)
                    if problem is not None:
                        tally.n_disagree += 1
                        print(f"{name}: {label}: {problem}")
                rows.append(_row(name, why, label, tally))
    return rows


def _row(name: str, why: str, label: str, tally: Tally) -> dict[str, Any]:
    row = {
        "file": name, "why": why, "run": label, "clips": tally.n_clips, "copied": tally.n_copied,
        "frames": tally.n_frames, "still": tally.n_still, "wrong": tally.n_wrong,
        "lowest_db": _finite(tally.lowest_db), "least_margin_db": _finite(tally.least_margin_db),
        "disagree": tally.n_disagree,
        "cpu_s_per_min": round(tally.cpu_s / tally.seconds * 60, 2),
        "size": round(statistics.median(tally.sizes), 2) if tally.sizes else None,
        "coarser": tally.n_coarser, "not_copied": tally.not_copied, "audio": tally.audio,
    }  # fmt: skip
    print(f"{name:36.36} {label:20} {row['clips']:5} {row['copied']:6} {row['frames']:6} "
          f"{row['still']:5} {row['wrong']:5} {row['lowest_db']!s:>6} "
          f"{row['least_margin_db']!s:>6} {row['disagree']:8} {row['cpu_s_per_min']:9} "
          f"{row['size']!s:>5} {row['coarser']:7}", flush=True)  # fmt: skip
    return row


def _finite(value: float) -> float | None:
    return round(value, 1) if math.isfinite(value) else None


def guard(media: Path, only: Sequence[str]) -> list[dict[str, Any]]:
    """Sizes and SSIM of encoded clips with and without the guard, and what verifying costs."""
    print(f"\n{'encoded clip':36} {'size':>6} {'guarded':>7} {'crf':>3} {'SSIM':>6} {'guarded':>7} "
          f"{'CPU-s':>6} {'guarded':>7} {'unverified':>10}")  # fmt: skip
    rows = []
    for name, _ in FILES:
        if only and not any(word in name for word in only):
            continue
        path = media / name
        track = analyzed(path)
        spans = spans_of(track)[:1]
        runs = [next(cut(path, track, spans, c)) for c in (UNGUARDED, RUNS[1][1], UNVERIFIED)]
        (request, free, free_s), (_, held, held_s), (_, _, bare_s) = runs
        row: dict[str, Any] = {
            "file": name,
            "seconds": round(float(free.n_frames / free.fps), 2),
            "size": _two(size_ratio(request, free)),
            "guarded_size": _two(size_ratio(request, held)),
            "crf": held.crf,
            "ssim": _four(ssim(path, request, free)),
            "guarded_ssim": _four(ssim(path, request, held)),
            "cpu_s": round(free_s, 2),
            "guarded_cpu_s": round(held_s, 2),
            "unverified_cpu_s": round(bare_s, 2),
        }
        rows.append(row)
        print(f"{name:36.36} {row['size']!s:>6} {row['guarded_size']!s:>7} {row['crf']:3} "
              f"{row['ssim']!s:>6} {row['guarded_ssim']!s:>7} {row['cpu_s']:6} "
              f"{row['guarded_cpu_s']:7} {row['unverified_cpu_s']:10}", flush=True)  # fmt: skip
    return rows


def films(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Cost of 1080p in clips of 5 s: copies, encoded clips, unverified ones, with audio."""
    rows = []
    for path in paths:
        track = analyzed(path)
        length = round(5 * track.n_frames / _seconds(track))
        spans = [
            Span(start_frame=start, end_frame=start + length, shot=0)
            for start in range(0, track.n_frames - length, length)
        ][:FILM_CLIPS]
        for label, config in (*RUNS, ("encode, not verified", UNVERIFIED)):
            tally = Tally()
            for request, clip, cpu_s in cut(path, track, spans, config):
                take(tally, request, clip, cpu_s, config)
                if label == "encode":
                    value = ssim(path, request, clip)
                    tally.ssims += [] if value is None else [value]
            row = _row(path.name, "1080p", label, tally)
            row["ssim"] = _four(statistics.mean(tally.ssims)) if tally.ssims else None
            rows.append(row)
            if row["ssim"] is not None:
                print(f"{path.name}: SSIM {row['ssim']}, lowest {min(tally.ssims):.4f}")
    return rows


def _two(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _four(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def main() -> None:
    """Measures, prints tables and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("media", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--films", nargs="*", type=Path, default=[])
    args = parser.parse_args()
    try:
        found = {
            "machine": machine(),
            "exactness": exactness(args.media, args.only),
            "guard": guard(args.media, args.only),
            "films": films(args.films),
        }
    except CuratorError as error:
        raise SystemExit(str(error)) from error
    print(json.dumps(found))


if __name__ == "__main__":
    main()
