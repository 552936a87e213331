"""Measures what key frames that are far apart cost a trainer, and how many copied clips have them.

Decodes random windows of 49 frames from copied clips whose key frames are at a known distance, and
counts the copied clips of the labelled footage by their longest distance.

    python benchmarks/key_distance.py [FOLDER ...]
"""

import io
import sys
import tempfile
import time
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import torch
from measure import SHARED, arguments, tell

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from film_makers import write_video
from film_shots import moving_texture
from made_cuts import cutter_of
from samples import framed

from curator.cut_requests import crop_within, cut_request
from curator.errors import CuratorError
from curator.loading.window_decoder import ClipWindow, decode_window, drawn
from curator.stages.cut.config import CutConfig
from curator.stages.propose.clip_spans import propose_clips
from curator.stages.propose.config import ProposeConfig
from curator.stages.propose.shot_boundaries import find_shots

FRAMES, FPS = 49, 25
DISTANCES_S = (0.5, 1, 2, 3, 4, 6, 10)
N_WINDOWS = 16
SIZES = ((1280, 720), (448, 256))
"""Widths and heights of the tensors; the clips have 1280x720."""


def window_ms(mp4: bytes, n_frames: int, size: tuple[int, int]) -> float:
    """Returns the mean CPU time of a random window, in ms."""
    into = torch.empty((3, FRAMES, *size[::-1]), dtype=torch.uint8)
    begun_s = time.process_time()
    for number in range(N_WINDOWS):
        start = drawn(f"window {number}") % (n_frames - FRAMES + 1)
        clip = ClipWindow(
            mp4=mp4,
            wanted=np.arange(start, start + FRAMES),
            rate=Fraction(FPS),
            decoder_threads=1,
            scaled=True,
            name="clip",
        )
        decode_window(clip, into)
    return (time.process_time() - begun_s) / N_WINDOWS * 1000


def copied(path: Path) -> Iterator[float]:
    """Yields the longest distance between key frames of each clip that would be copied, in s."""
    track = framed(path)
    shots = find_shots(track, ProposeConfig())
    for span in propose_clips(track, shots, ProposeConfig()):
        request = cut_request(track, "clip", span, crop=crop_within(track, span))
        with cutter_of(path, CutConfig(copy_max_gap_s=None, preset="ultrafast")) as cutter:
            try:
                clip = cutter._copied(request)
            except Exception:  # noqa: BLE001 - not copied
                continue
        with av.open(io.BytesIO(clip.mp4), mode="r") as container:
            packets = [packet for packet in container.demux(video=0) if packet.size]
        keys = [n for n, packet in enumerate(packets) if packet.is_keyframe]
        yield float(max(b - a for a, b in pairwise([*keys, clip.n_frames])) / clip.fps)


def main() -> None:
    """Prints both tables as JSON."""
    parser = arguments(__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    folders = parser.parse_args().folders or [SHARED / "media", SHARED / "footage"]
    costs: dict[str, dict[str, float]] = {f"{w}x{h}": {} for w, h in SIZES}
    with tempfile.TemporaryDirectory() as folder:
        for distance_s in DISTANCES_S:
            path = Path(folder) / "film.mp4"
            gop = round(distance_s * FPS)
            params = f"keyint={gop}:min-keyint={gop}:scenecut=0"
            frames = moving_texture(500, width_px=1280, height_px=720)
            write_video(path, frames, fps=Fraction(FPS), options={"x264-params": params})
            for width, height in SIZES:
                cost_ms = window_ms(path.read_bytes(), 500, (width, height))
                costs[f"{width}x{height}"][str(distance_s)] = round(cost_ms, 1)
    found: list[float] = []
    for path in sorted(p for folder in folders for p in folder.rglob("*.*")):
        try:
            with av.open(str(path)) as container:
                is_h264 = container.streams.video[0].codec_context.name == "h264"
            if is_h264:
                found += copied(path)
        except (av.error.FFmpegError, CuratorError, IndexError, OSError, ValueError):
            continue
    shares = {str(at): round(float(np.mean(np.array(found) > at + 0.05)), 3) for at in DISTANCES_S}
    tell({"window_ms": costs, "n_copied": len(found), "share_above": shares})


if __name__ == "__main__":
    main()
