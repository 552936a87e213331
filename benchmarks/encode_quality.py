#!/usr/bin/env python3
"""Measures how near encoded clips are to their source: VMAF and SSIM, by CRF.

    encode_quality.py FFMPEG VIDEO... [--crf N ...]

FFMPEG is an ffmpeg with the filter `libvmaf`, such as the one in the wheel `imageio-ffmpeg`;
Debian's has none. Of each video up to four clips of 5 s are encoded by the stage itself, at each
CRF. The source's frames of the plan are decoded by PyAV, and given to FFMPEG as raw pictures
beside the clip's, so that the two are compared frame by frame. VMAF is that of the model v0.6.1,
made for 1080p; a clip's score is the mean over its frames. Clips that are turned, scaled,
deinterlaced or of other pixels than 4:2:0 are refused: nothing of their source has their shape.
"""

import io
import re
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import av
import tests_path  # noqa: F401
from cutting import cut
from measure import arguments, tell
from samples import analyzed

from curator.media.container import open_container, video_stream
from curator.media.decode import FrameReader
from curator.records.clips import Span
from curator.records.cuts import CutRequest
from curator.records.tracks import Track
from curator.stages.cut.config import CutConfig

CLIP_S = 5
MOST_CLIPS = 4


def spans_of(track: Track) -> list[Span]:
    seconds = float((track.end_pts - track.frame_pts[0]) * track.time_base)
    length = min(track.n_frames, round(CLIP_S * track.n_frames / seconds))
    starts = range(0, track.n_frames - length + 1, length)
    return [Span(start_frame=s, end_frame=s + length, shot=0) for s in starts][:MOST_CLIPS]


def raw_source(path: Path, request: CutRequest, to: Path) -> tuple[int, int]:
    """Writes the source's frames of a clip as yuv420p; returns their size."""
    wanted = {int(pts) for pts in request.frame_pts}
    size = (0, 0)
    with (
        path.open("rb") as reader,
        open_container(reader, path.name, n_bytes=path.stat().st_size) as container,
        to.open("wb") as out,
    ):
        stream = video_stream(container, path.name)
        if stream.codec_context.pix_fmt != "yuv420p":
            raise SystemExit(f"{path}: {stream.codec_context.pix_fmt}; expected yuv420p")
        for frame in FrameReader(container, stream, path.name, threads=1, max_pixels=10**8):
            if frame.pts in wanted:
                size = frame.picture.width, frame.picture.height
                out.write(frame.picture.to_ndarray(format="yuv420p").tobytes())
    return size


def raw_clip(mp4: bytes, to: Path) -> tuple[int, int, int]:
    """Writes the clip's frames as yuv420p; returns their size and number."""
    n_frames, size = 0, (0, 0)
    with av.open(io.BytesIO(mp4), "r") as container, to.open("wb") as out:
        for picture in container.decode(video=0):
            size = picture.width, picture.height
            out.write(picture.to_ndarray(format="yuv420p").tobytes())
            n_frames += 1
    return *size, n_frames


def compared(ffmpeg: str, clip: Path, source: Path, size: tuple[int, int]) -> tuple[float, float]:
    """VMAF and SSIM of luma."""
    shape = ["-f", "rawvideo", "-pix_fmt", "yuv420p", "-s", f"{size[0]}x{size[1]}", "-r", "25"]
    graph = "[0:v]split[a][b];[1:v]split[c][d];[a][c]libvmaf=n_threads=1;[b][d]ssim"
    done = subprocess.run(
        [ffmpeg, "-hide_banner", *shape, "-i", str(clip), *shape, "-i", str(source),
         "-lavfi", graph, "-f", "null", "-"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    vmaf = re.search(r"VMAF score: ([\d.]+)", done.stderr)
    ssim = re.search(r"SSIM Y:([\d.]+)", done.stderr)
    if vmaf is None or ssim is None:
        raise SystemExit(f"{ffmpeg} did not compare: {done.stderr[-600:]}")
    return float(vmaf[1]), float(ssim[1])


def measured(ffmpeg: str, path: Path, crf: int) -> dict[str, Any]:
    track = analyzed(path)
    config = CutConfig(mode="encode", crf=crf, max_size_factor=None)
    vmafs, ssims, rates, cpu_s, seconds = [], [], [], 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder) / "clip.yuv", Path(folder) / "source.yuv"
        for request, clip, clip_cpu_s in cut(path, track, spans_of(track), config):
            width, height, n_frames = raw_clip(clip.mp4, ours)
            size = raw_source(path, request, theirs)
            n_source = theirs.stat().st_size * 2 // (3 * width * height)
            if size != (width, height) or n_source != n_frames:
                raise SystemExit(
                    f"{path}: a clip of {n_frames} frames of {width}x{height}, "
                    f"its source {n_source} of {size[0]}x{size[1]}; expected equal ones"
                )
            vmaf, ssim = compared(ffmpeg, ours, theirs, size)
            vmafs.append(vmaf)
            ssims.append(ssim)
            duration = float(clip.n_frames / clip.fps)
            rates.append(len(clip.mp4) * 8 / duration / 1e6)
            cpu_s += clip_cpu_s
            seconds += duration
    return {
        "file": path.name, "crf": crf, "clips": len(vmafs), "seconds": round(seconds, 2),
        "vmaf": round(statistics.mean(vmafs), 2), "lowest_vmaf": round(min(vmafs), 2),
        "ssim": round(statistics.mean(ssims), 4), "lowest_ssim": round(min(ssims), 4),
        "mbit_s": round(statistics.mean(rates), 2), "cpu_s_per_min": round(cpu_s / seconds * 60, 1),
    }  # fmt: skip


def main() -> None:
    """Measures, prints a table and a line of JSON."""
    parser = arguments(__doc__)
    parser.add_argument("ffmpeg")
    parser.add_argument("videos", nargs="+", type=Path)
    parser.add_argument("--crf", nargs="*", type=int, default=[17, 20, 23])
    args = parser.parse_args()
    print(f"{'file':28} {'crf':>3} {'clips':>5} {'VMAF':>6} {'lowest':>6} {'SSIM':>6} "
          f"{'lowest':>6} {'Mbit/s':>6} {'CPU-s/min':>9}")  # fmt: skip
    rows = []
    for path in args.videos:
        for crf in args.crf:
            row = measured(args.ffmpeg, path, crf)
            rows.append(row)
            print(f"{row['file']:28.28} {crf:3} {row['clips']:5} {row['vmaf']:6} "
                  f"{row['lowest_vmaf']:6} {row['ssim']:6} {row['lowest_ssim']:6} "
                  f"{row['mbit_s']:6} {row['cpu_s_per_min']:9}", flush=True)  # fmt: skip
    tell({"rows": rows})


if __name__ == "__main__":
    main()
