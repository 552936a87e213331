#!/usr/bin/env python3
"""Measures whether clips hold exactly their frames, whether readers agree on them, and their cost.

    cutting.py MEDIA [--only NAME ...]

MEDIA is the folder of labelled videos. The cut stage cuts up to two spans of 2 s from each file
below, in each mode: one in the first third and one at the end, each from the preceding key frame.
A written frame is right if it is nearer to the planned frame of the source than to that frame's
neighbours (PSNR of luma at 320 px, after a linear fit of levels). Frames equal to their neighbours
prove nothing and are counted separately as still. Three readers then read each clip: PyAV, the
ffmpeg command and OpenCV.

Cost and size are of the same clips; sizes are relative to the source's bits per pixel.
"""

import io
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import tests_path  # noqa: F401
from measure import arguments, tell
from numpy.typing import NDArray
from readers import disagreement
from samples import analyzed

from curator.cut_requests import crop_within, cut_request, frame_plan
from curator.errors import CuratorError
from curator.frame_size import upright_size
from curator.media.container import open_container, video_stream
from curator.media.decode import FrameReader
from curator.records.clips import Span
from curator.records.cuts import CutClip, CutRequest
from curator.records.tracks import Track
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
STILL_DB = 45.0
"""From this PSNR on, two frames count as the same picture."""
RUNS = (
    ("auto", CutConfig(hdr="tonemap")),
    ("encode", CutConfig(mode="encode", hdr="tonemap")),
    ("auto, audio copied", CutConfig(hdr="tonemap", audio="copy")),
    ("encode, AAC", CutConfig(mode="encode", hdr="tonemap", audio="aac")),
)
Luma = NDArray[np.float32]


@dataclass(kw_only=True)
class Tally:
    """Sums, extremes and counts over clips."""

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
    not_copied: dict[str, int] = field(default_factory=dict)
    n_coarser: int = 0
    audio: dict[str, int] = field(default_factory=dict)


def spans_of(track: Track) -> list[Span]:
    """Returns spans of 2 s in the first third and at the end, from a key frame where possible."""
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
    """Yields each clip with its request and CPU-seconds."""
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
    """Returns small upright luma of the source's frames around a span, by timestamp."""
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
                gray = np.asarray(frame.to_ndarray(format="gray"), np.uint8)
                picture = np.ascontiguousarray(np.rot90(gray, k=-request.rotation_deg // 90))
                if request.crop is not None:
                    box = request.crop
                    picture = picture[box.y : box.y + box.height, box.x : box.x + box.width]
                found[pts] = _small(picture, track)
    return found


def _woven(frames: FrameReader) -> Iterator[tuple[int, av.VideoFrame]]:
    """Yields the frames of the whole source, deinterlaced without any cut."""
    graph, times = None, []
    for frame in frames:
        if graph is None:
            graph, picture = av.filter.Graph(), frame.picture
            source = graph.add_buffer(
                width=picture.width,
                height=picture.height,
                format=picture.format,
                time_base=picture.time_base,
            )
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
    """Returns the PSNR in dB, after the linear fit of the source's levels to the frame."""
    x, y = source.ravel() - source.mean(), frame.ravel() - frame.mean()
    spread = float(x @ x)
    rest = y - x * (float(x @ y) / spread) if spread > 0 else y
    return 10 * math.log10(255**2 / max(float(rest @ rest) / len(rest), 1e-6))


def differ(a: Luma, b: Luma) -> bool:
    """Returns whether two frames differ in more than levels, as a fade of a flat picture does."""
    return max(psnr(a, b), psnr(b, a)) < STILL_DB


def compare(path: Path, track: Track, request: CutRequest, clip: CutClip, tally: Tally) -> None:
    """Compares the clip's frames with the planned frames and their neighbours."""
    source = source_luma(path, track, request)
    times = sorted(source)
    own = request.frame_pts[clip.first : clip.end]
    plan = frame_plan(request) if clip.cut_mode == "encode" else np.arange(clip.n_frames)
    with av.open(io.BytesIO(clip.mp4), "r") as container:
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
    """Returns the clip's bits per pixel relative to the source's, or None if unknown."""
    density = request.source_bits_per_pixel
    if density is None:
        return None
    return len(clip.mp4) * 8 / (clip.width * clip.height * clip.n_frames) / density


def exactness(media: Path, only: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
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
                    problem = disagreement(clip.mp4, clip, Path(folder))
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


def main() -> None:
    """Measures, and prints tables and a line of JSON."""
    parser = arguments(__doc__)
    parser.add_argument("media", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    try:
        found: dict[str, Any] = {
            "exactness": exactness(args.media, args.only),
        }
    except CuratorError as error:
        raise SystemExit(str(error)) from error
    tell(found)


if __name__ == "__main__":
    main()
