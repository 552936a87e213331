"""Assembles films with exact labels, frame by frame, from recordings of single shots.

ffmpeg's `xfade` joins the shots. A transition over N frames yields up to N frames that mix both
sides; frames at its ends that show only one side belong to that side.

Shape letters: F frames, H height, W width.
"""

# ruff: noqa: N803 - shape letters

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import floor
from pathlib import Path
from random import Random

import cv2
import numpy as np
from footage_split import Recording
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

CODECS = ("h264", "h264_low", "mpeg4", "vp9")
SAME_LEVELS, SAME_SHARE = 2, 0.001
"""A frame shows one side if fewer than SAME_SHARE of its pixels differ by more than SAME_LEVELS."""

Planes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Pictures:
    """8-bit frames in 4:2:0.

    Attributes:
        flat: uint8 [F, W * H * 3 / 2]; each row holds the three planes of a frame.
        width: In pixels, even.
        height: In pixels, even.
    """

    flat: NDArray[np.uint8]
    width: int
    height: int

    def __len__(self) -> int:
        """Returns the number of frames."""
        return len(self.flat)

    def __getitem__(self, frames: slice | list[int]) -> "Pictures":
        return Pictures(self.flat[frames], self.width, self.height)

    def planes(self) -> tuple[Planes, Planes, Planes]:
        """Returns views: luma uint8 [F, H, W], and both chroma planes uint8 [F, H / 2, W / 2]."""
        n, area = len(self.flat), self.width * self.height
        half = (n, self.height // 2, self.width // 2)
        return (
            self.flat[:, :area].reshape(n, self.height, self.width),
            self.flat[:, area : area * 5 // 4].reshape(half),
            self.flat[:, area * 5 // 4 :].reshape(half),
        )


@dataclass(frozen=True, slots=True)
class Take:
    """A stretch of a recording in a film.

    Attributes:
        recording: The recording.
        pace: Frames of the recording per frame of the film.
        first: First frame of the stretch in the recording.
        n_frames: Length in frames of the film.
    """

    recording: Recording
    pace: float
    first: int
    n_frames: int

    def frames(self) -> list[int]:
        """Returns the frame of the recording at each frame of the film."""
        return [self.first + floor(i * self.pace + 1e-6) for i in range(self.n_frames)]


@dataclass(frozen=True, slots=True)
class Made:
    """Description of a film that was written.

    Attributes:
        name: The file's name.
        labels: Start, end and kind of each boundary in frames, half-open, empty at a cut.
        n_frames: Number of frames.
        rate: Frames per second, as a fraction.
        codec: One of `CODECS`.
        size: Width and height in pixels.
        extras: Other properties of the film, such as letterbox or distractors.
    """

    name: str
    labels: list[tuple[int, int, str]]
    n_frames: int
    rate: str
    codec: str
    size: tuple[int, int]
    extras: list[str]


@cache
def xfade_kinds() -> tuple[str, ...]:
    """Returns all transitions of this machine's ffmpeg."""
    text = subprocess.run(
        ["ffmpeg", "-hide_banner", "-h", "filter=xfade"], capture_output=True, text=True, check=True
    ).stdout
    names = re.findall(r"^ +(\w+) +\d+ +[.A-Z]+ ", text, re.M)
    if len(names) < 40:
        raise SystemExit(f"ffmpeg lists {len(names)} transitions of xfade; expected 40 or more")
    return tuple(names)


def any_take(rng: Random, recording: Recording, rate: float, most_frames: int) -> Take:
    """Returns a random stretch of a recording, with at most `most_frames` frames."""
    pace = pace_of(recording, rate)
    n = min(most_frames, length_of(recording, pace))
    last = floor((n - 1) * pace + 1e-6)
    return Take(recording, pace, rng.randint(0, recording.n_frames - 1 - last), n)


def pace_of(recording: Recording, rate: float) -> float:
    """Returns the natural pace; long slow-motion recordings run up to twice as fast."""
    natural = recording.fps / rate
    is_long = recording.n_frames / recording.fps > 5
    return min(1.0, 2 * natural) if natural < 1 and is_long else natural


def length_of(recording: Recording, pace: float) -> int:
    """Returns the length of a whole recording in frames of the film."""
    return floor((recording.n_frames - 1) / pace) + 1


@cache
def small_pictures(path: Path) -> NDArray[np.float32]:
    """Returns grey pictures of a recording, float32 [F, 27, 48]."""
    command = ["ffmpeg", "-v", "error", "-i", str(path), "-vf", "scale=48:27:flags=area"]
    command += ["-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "gray", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, 27, 48).astype(np.float32)


def decode(take: Take, width: int, height: int) -> Pictures:
    """Decodes a stretch, scaled to cover the size and cropped to it."""
    places = take.frames()
    size = f"{width}:{height}"
    filters = (
        f"trim=start_frame={places[0]}:end_frame={places[-1] + 1},"
        f"scale={size}:force_original_aspect_ratio=increase:flags=bicubic,crop={size}"
    )
    command = ["ffmpeg", "-v", "error", "-i", str(take.recording.path), "-vf", filters]
    command += ["-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "yuv420p", "-"]
    raw = np.frombuffer(subprocess.run(command, capture_output=True, check=True).stdout, np.uint8)
    frames = raw.reshape(-1, width * height * 3 // 2)
    if len(frames) != places[-1] + 1 - places[0]:
        raise SystemExit(
            f"{take.recording.path} has {len(frames)} frames from {places[0]} to {places[-1]}; "
            "expected more, by the index"
        )
    return Pictures(frames[[p - places[0] for p in places]], width, height)


def xfade(a: Pictures, b: Pictures, kind: str) -> Pictures:
    """Mixes two stretches of equal length; leaves out the first frame.

    In the first frame, `xfade` shows only the first stretch. It would show only the second stretch
    in the frame after the last.
    """
    form = ["-f", "rawvideo", "-pix_fmt", "yuv420p", "-s", f"{a.width}x{a.height}"]
    form += ["-framerate", "25"]
    with tempfile.TemporaryDirectory() as work:
        inputs = []
        for name, side in (("a", a), ("b", b)):
            path = Path(work) / name
            path.write_bytes(side.flat.tobytes())
            inputs += [*form, "-i", str(path)]
        graph = f"[0][1]xfade=transition={kind}:duration={len(a) / 25}:offset=0"
        if kind == "slideup":
            # The slideup of ffmpeg 5.1 reads beyond the picture, and may crash.
            graph = graph.replace("slideup", "slidedown").replace("[0][1]", "[a][b]")
            graph = f"[0]vflip[a];[1]vflip[b];{graph},vflip"
        command = ["ffmpeg", "-v", "error", *inputs, "-filter_complex", graph]
        command += ["-f", "rawvideo", "-pix_fmt", "yuv420p", "-"]
        raw = subprocess.run(command, capture_output=True, check=True).stdout
    frames = np.frombuffer(raw, np.uint8).reshape(-1, a.width * a.height * 3 // 2)
    if len(frames) != len(a):
        raise SystemExit(f"xfade {kind} of {len(a)} frames gives {len(frames)}")
    return Pictures(frames[1:], a.width, a.height)


class Film:
    """Writes a film and its labels piece by piece.

    Args:
        path: The file, with the codec's suffix.
        rate: Frames per second, as a fraction.
        codec: One of `CODECS`.
        size: Width and height of the film in pixels.
        inner: Width and height of the pictures inside black borders; by default the film's size.
        repeat_every: Every n-th frame repeats the previous one, except at a boundary; 0 for none.
        subtitles: Start and end in frames, and text, of each subtitle.
        extras: See `Made`.
    """

    def __init__(
        self,
        path: Path,
        rate: str,
        codec: str,
        size: tuple[int, int],
        *,
        inner: tuple[int, int] | None = None,
        repeat_every: int = 0,
        subtitles: Sequence[tuple[int, int, str]] = (),
        extras: Sequence[str] = (),
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.inner = inner or size
        self._repeat_every = repeat_every
        self._subtitles = [(a, b, caption_mask(text, *size)) for a, b, text in subtitles]
        self._made = Made(path.name, [], 0, rate, codec, size, list(extras))
        command = ["ffmpeg", "-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "yuv420p"]
        command += ["-s", f"{size[0]}x{size[1]}", "-framerate", rate, "-i", "-"]
        command += [*_encoder(codec, path.name), "-pix_fmt", "yuv420p", str(path)]
        self._encoder = subprocess.Popen(command, stdin=subprocess.PIPE)

    def write(self, pictures: Pictures) -> None:
        """Appends frames; the first is never a repeat."""
        assert self._encoder.stdin is not None
        width, height = self._made.size
        x, y = (width - self.inner[0]) // 4 * 2, (height - self.inner[1]) // 4 * 2
        for i in range(len(pictures)):
            at = self._made.n_frames
            is_repeat = self._repeat_every and i and at % self._repeat_every == 0
            film = Pictures(np.empty((1, width * height * 3 // 2), np.uint8), width, height)
            for plane, black in zip(film.planes(), (16, 128, 128), strict=True):
                plane[:] = black
            shown = pictures[i - 1 : i] if is_repeat else pictures[i : i + 1]
            paste(film, shown, x, y)
            for start, end, mask in self._subtitles:
                if start <= at < end:
                    draw(film, mask)
            self._encoder.stdin.write(film.flat.tobytes())
            self._made = replace(self._made, n_frames=at + 1)

    def write_transition(self, a: Pictures, b: Pictures, move: str, kind: str) -> None:
        """Appends the mixed frames between two shots; see `xfade` for the two stretches."""
        mixed = xfade(a, b, move)
        n = len(mixed)
        start = next((i for i in range(n) if not _same(mixed, a[1:], i)), n)
        end = next((i + 1 for i in range(n - 1, -1, -1) if not _same(mixed, b[1:], i)), 0)
        if end <= start:
            raise SystemExit(f"xfade {move} of {n} frames mixes nothing")
        self.write(mixed[:start])
        self.mark(end - start, kind)
        self.write(mixed[start:end])
        self.write(mixed[end:])

    def mark(self, n_frames: int, kind: str) -> None:
        """Labels a boundary of `n_frames` frames that begins at the current frame."""
        at = self._made.n_frames
        self._made.labels.append((at, at + n_frames, kind))

    def close(self) -> Made:
        """Closes the file, and returns its description."""
        assert self._encoder.stdin is not None
        self._encoder.stdin.close()
        if self._encoder.wait():
            raise SystemExit(f"ffmpeg could not write {self._made.name}")
        return self._made


def _same(mixed: Pictures, side: Pictures, i: int) -> bool:
    a, b = mixed[i : i + 1].planes()[0], side[i : i + 1].planes()[0]
    return float(np.mean(np.abs(a.astype(np.int16) - b) > SAME_LEVELS)) < SAME_SHARE


def _encoder(codec: str, name: str) -> list[str]:
    if codec == "mpeg4":
        return ["-c:v", "mpeg4", "-q:v", "6", "-threads", "1"]
    if codec == "vp9":
        speed = ["-deadline", "realtime", "-cpu-used", "7", "-threads", "1"]
        return ["-c:v", "libvpx-vp9", "-crf", "36", "-b:v", "0", *speed]
    crf = str(Random(name).randint(36, 40)) if codec == "h264_low" else "23"
    return ["-c:v", "libx264", "-preset", "veryfast", "-crf", crf, "-threads", "2"]


def paste(onto: Pictures, pictures: Pictures, x: int, y: int) -> None:
    """Pastes smaller pictures onto others in place, at an even position."""
    for step, below, above in zip((1, 2, 2), onto.planes(), pictures.planes(), strict=True):
        height, width = above.shape[1:]
        below[:, y // step : y // step + height, x // step : x // step + width] = above


def draw(onto: Pictures, mask_HW: NDArray[np.float32]) -> None:
    """Draws white letters with black edges onto frames, in place."""
    edge = cv2.dilate(mask_HW, np.ones((5, 5), np.uint8))
    luma, *chroma = onto.planes()
    luma[:] = (luma * (1 - edge) + 16 * (edge - mask_HW) + 235 * mask_HW).astype(np.uint8)
    for plane in chroma:
        plane[:] = (plane + (128.0 - plane) * edge[::2, ::2]).astype(np.uint8)


def caption_mask(text: str, width: int, height: int) -> NDArray[np.float32]:
    """Returns letters near the lower edge, float32 [H, W] from 0 to 1."""
    image = Image.new("L", (width, height))
    font = ImageFont.load_default(size=max(10, height // 16))
    ImageDraw.Draw(image).text((width // 2, height * 9 // 10), text, 255, font, anchor="mm")
    return np.asarray(image, np.float32) / np.float32(255)
