#!/usr/bin/env python3
"""Measures the cut of a span in several sizes from one decode, and from a decode for each.

    one_decode.py VIDEO ... [--sizes 720p 256p] [--frames 240] [--repeats 3]

Both are measured in turn, in this process, with one thread. CPU-seconds include the checks.
"""

import statistics
import time
from pathlib import Path

import tests_path  # noqa: F401
from measure import arguments, spread, tell
from samples import framed

from curator.cut_requests import cut_request
from curator.dataset.output_form import as_output
from curator.frame_size import parsed_size
from curator.records.clips import Span
from curator.records.cuts import CutClip, CutRequest
from curator.records.tracks import Track
from curator.stages.cut.clip_cutter import ClipCutter
from curator.stages.cut.config import CutConfig


def cut(
    path: Path, track: Track, requests: list[CutRequest], *, together: bool
) -> tuple[list[CutClip], float, int]:
    """Returns the clips, CPU-seconds, and frames that were decoded."""
    config = CutConfig(mode="encode", max_size_factor=None)
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
        begun = time.process_time()
        clips = [
            cutter.cut(request, requests[number:] if together else (), track.frame_pts)
            for number, request in enumerate(requests, 1)
        ]
        return clips, time.process_time() - begun, cutter.n_decoded


def main() -> None:
    """Measures all videos, and prints CPU-seconds and frames."""
    parser = arguments(__doc__)
    parser.add_argument("videos", nargs="+", type=Path)
    parser.add_argument("--sizes", nargs="+", default=["720p", "256p"])
    parser.add_argument("--frames", type=int, default=240)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    results = {}
    for path in args.videos:
        track = framed(path)
        span = Span(start_frame=0, end_frame=min(args.frames, track.n_frames), shot=0)
        requests = [
            as_output(cut_request(track, size, span), size=parsed_size(size)) for size in args.sizes
        ]
        cpu_s: dict[bool, list[float]] = {False: [], True: []}
        frames: dict[bool, int] = {}
        made: dict[bool, list[CutClip]] = {}
        for _ in range(args.repeats):
            for together in (False, True):
                made[together], spent_s, frames[together] = cut(
                    path, track, requests, together=together
                )
                cpu_s[together].append(spent_s)
        ratio = statistics.median(b / a for a, b in zip(cpu_s[False], cpu_s[True], strict=True))
        is_same = made[False] == made[True]
        print(f"{path.name:28} apart {spread(cpu_s[False])} CPU-s, {frames[False]} frames; "
              f"together {spread(cpu_s[True])}, {frames[True]} frames; {ratio:.3f} of the CPU, "
              f"{'equal' if is_same else 'OTHER'} clips", flush=True)  # fmt: skip
        results[path.name] = {
            "apart_s": cpu_s[False], "together_s": cpu_s[True], "ratio": round(ratio, 3),
            "apart_frames": frames[False], "together_frames": frames[True], "equal": is_same,
        }  # fmt: skip
    tell({"films": results})


if __name__ == "__main__":
    main()
