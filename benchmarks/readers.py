"""Reads clips with three readers: PyAV, the ffmpeg command and OpenCV."""

import math
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import cv2

from curator.records.cuts import CutClip


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Properties of a clip as a reader reports them."""

    n_frames: int
    size: tuple[int, int]
    first_s: float


def by_pyav(path: Path) -> Seen:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        times = [frame.time for frame in container.decode(stream)]
        return Seen(
            n_frames=len(times), size=(stream.width, stream.height), first_s=float(times[0] or 0)
        )


def by_command(path: Path) -> Seen:
    command = ["ffmpeg", "-v", "error", "-i", str(path), "-map", "0:v:0", "-vsync", "passthrough",
               "-f", "framemd5", "-"]  # fmt: skip
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    facts = dict(line[1:].split(": ", 1) for line in lines if line.startswith("#") and ":" in line)
    rows = [line.split(",") for line in lines if not line.startswith("#")]
    width, height = facts["dimensions 0"].split("x")
    first = int(rows[0][2]) * Fraction(facts["tb 0"])
    return Seen(n_frames=len(rows), size=(int(width), int(height)), first_s=float(first))


def by_opencv(path: Path) -> Seen:
    video = cv2.VideoCapture(str(path))
    n_frames, size, first = 0, (0, 0), math.nan
    while True:
        there, frame = video.read()
        if not there:
            break
        if not n_frames:
            first = video.get(cv2.CAP_PROP_POS_MSEC) / 1000
            size = (frame.shape[1], frame.shape[0])
        n_frames += 1
    claimed = int(video.get(cv2.CAP_PROP_FRAME_COUNT))
    return Seen(n_frames=n_frames if claimed == n_frames else -1, size=size, first_s=first)


READERS: dict[str, Callable[[Path], Seen]] = {
    "PyAV": by_pyav,
    "ffmpeg": by_command,
    "OpenCV": by_opencv,
}


def disagreement(mp4: bytes, clip: CutClip, folder: Path) -> str | None:
    """Names the readers that differ from the written clip; None if all agree."""
    path = folder / "clip.mp4"
    path.write_bytes(mp4)
    meant = Seen(n_frames=clip.n_frames, size=(clip.width, clip.height), first_s=0.0)
    seen = {name: tool(path) for name, tool in READERS.items()}
    wrong = {name: s for name, s in seen.items() if s != meant}
    return f"{wrong}, written {meant}" if wrong else None
