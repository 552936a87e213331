"""Makes clips that carry their frame number as a picture, and reads the number from any crop.

Other environments import this file for `read_counter`: it needs numpy, and PyAV only to make clips.
"""

import importlib
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from av import AudioFrame, VideoFrame

Sound = Literal["none", "silent", "tone"]

RATES = {
    "12.5": Fraction(25, 2), "16": Fraction(16), "23.976": Fraction(24000, 1001),
    "24": Fraction(24), "25": Fraction(25), "29.97": Fraction(30000, 1001), "30": Fraction(30),
    "50": Fraction(50), "60": Fraction(60),
}  # fmt: skip
LENGTHS = (17, 33, 49, 61, 81, 93, 121, 129)
"""Numbers of frames that trainers ask for."""
TRAINERS_RATES = (16, 24, 25, 30)
"""Rates to which trainers resample."""
SIZES = ((320, 180), (180, 320), (240, 240), (320, 240), (240, 320))
MOST_FRAMES = 420
"""Longest clip, but for those of `LONG_S`."""
LONG_S = (60.9, 61.0, 61.1)
"""Seconds around the limit of cosmos-framework."""

BOX_SHARE = 0.53
"""Side of the counter as a share of the shorter side: a crop from 16:9 to 9:16 keeps .56."""
CELLS = 4
BITS = 11
_CHECK_BITS = CELLS * CELLS - BITS
_GROUND = (200, 0, 0)

_SENTENCE = "Sentence {} tells of a red wall and a pattern that counts."
CAPTIONS = {
    "short": "A red wall with a moving pattern.",
    "empty": "",
    "long": " ".join(_SENTENCE.format(n) for n in range(400)),
    "unicode": "Ein rotes Tuch, 赤い壁, стена, 🎬 «naïve» — 50 % “quoted”",
    "lines": "A red wall.\nA pattern counts.\n\nThe camera stands still.",
    "comma": 'tag one, tag two, "quoted", tag three',
    "spaces": "  a caption within spaces \n",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CountedClip:
    """One made clip; `rate` is null if its frames have no constant rate."""

    clip: str
    file: str
    kind: Literal["clip", "source"]
    """`source` marks files with a variable rate, which `curate` reads but never writes."""
    rate: str | None
    frames: int
    duration_s: float
    width: int
    height: int
    sound: Sound
    caption: str


def counter(number: int, side: int) -> NDArray[np.uint8]:
    """Returns the picture of a number, [side, side] of 0 and 255, with a white border."""
    bits = number | (_check(number) << BITS)
    cells = np.full((CELLS + 2, CELLS + 2), 255, np.uint8)
    for index in range(CELLS * CELLS):
        cells[1 + index // CELLS, 1 + index % CELLS] = 255 * (bits >> index & 1)
    edges = np.arange(side) * (CELLS + 2) // side
    return cells[np.ix_(edges, edges)]


def _check(number: int) -> int:
    """Returns check bits: a number that is read from a blend of two frames is seldom valid."""
    return (number * 2654435761 >> 13 ^ number * 40503) & ((1 << _CHECK_BITS) - 1)


def read_counter(
    frame: NDArray[np.uint8],
) -> tuple[int | None, tuple[float, float, float, float]]:
    """Reads the number in a frame.

    Args:
        frame: RGB, [height, width, 3], scaled and cropped in any way.

    Returns:
        The number, or None if none is readable; left, top, right and bottom of the counter.
    """
    green = frame[..., 1].astype(np.float32)
    white = green > 110
    columns, rows = np.flatnonzero(white.any(0)), np.flatnonzero(white.any(1))
    if not len(columns) or not len(rows):
        return None, (math.nan,) * 4
    box = _edges(green, columns, rows)
    left, top, right, bottom = box
    bits = 0
    for index in range(CELLS * CELLS):
        x = left + (right - left) * (index % CELLS + 1.5) / (CELLS + 2) - 0.5
        y = top + (bottom - top) * (index // CELLS + 1.5) / (CELLS + 2) - 0.5
        bits |= (_sample(green, x, y) > 127) << index
    number = bits & ((1 << BITS) - 1)
    return (number if bits >> BITS == _check(number) else None), box


def _edges(
    green: NDArray[np.float32], columns: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[float, float, float, float]:
    """Places the border's edges within a pixel by the brightness of the outermost ones."""
    middle_y, middle_x = rows[[0, -1]], columns[[0, -1]]
    across = green[middle_y[0] : middle_y[1] + 1].max(0) / 255
    down = green[:, middle_x[0] : middle_x[1] + 1].max(1) / 255

    def outer(profile: NDArray[np.float32], first: int, last: int) -> tuple[float, float]:
        before = float(profile[first - 1]) if first else 0.0
        after = float(profile[last + 1]) if last + 1 < len(profile) else 0.0
        return (
            first + 1 - min(1.0, float(profile[first])) - before,
            last + min(1.0, float(profile[last])) + after,
        )

    left, right = outer(across, int(columns[0]), int(columns[-1]))
    top, bottom = outer(down, int(rows[0]), int(rows[-1]))
    return left, top, right, bottom


def _sample(green: NDArray[np.float32], x: float, y: float) -> float:
    height, width = green.shape
    return float(green[min(height - 1, max(0, round(y))), min(width - 1, max(0, round(x)))])


def box_in_source(width: int, height: int) -> tuple[int, int, int]:
    """Returns left, top and side of the counter in a made clip, in pixels."""
    side = int(min(width, height) * BOX_SHARE) // 12 * 12
    return (width - side) // 2, (height - side) // 2, side


def crop_of(
    clip: CountedClip, size: tuple[int, int], box: Sequence[float]
) -> tuple[int, int, int, int]:
    """Returns the part of the source's picture that a frame shows, in pixels of the source."""
    left, top, side = box_in_source(clip.width, clip.height)
    across, down = side / (box[2] - box[0]), side / (box[3] - box[1])
    x, y = left - box[0] * across, top - box[1] * down
    return round(x), round(y), round(x + size[0] * across), round(y + size[1] * down)


def plan(count: int = 1000, seed: int = 1) -> list[CountedClip]:
    """Returns `count` clips: lengths around the thresholds, shuffled over aspects and captions."""
    rng = random.Random(seed)
    lengths = sorted(set(_thresholds()))
    rng.shuffle(lengths)
    lengths = lengths[: count - count * 3 // 50]
    long = [
        (name, round(float(RATES[name] * Fraction(str(s)))))
        for s in LONG_S
        for name in ("12.5", "24")
    ]
    lengths += long
    while len(lengths) < count - count // 20:
        lengths.append((rng.choice(list(RATES)), rng.randint(1, MOST_FRAMES)))
    planned = [_planned(index, name, frames, rng) for index, (name, frames) in enumerate(lengths)]
    while len(planned) < count:
        frames = rng.choice([n + d for n in LENGTHS for d in (-1, 0, 1)]) + rng.randint(0, 60)
        planned.append(_planned(len(planned), None, frames, rng))
    return planned


def _thresholds() -> Iterator[tuple[str, int]]:
    """Yields rate and frames: one less, equal and one more than N, at the own rate and others."""
    for name, rate in RATES.items():
        for frames in (1, 2, 4, 5, 8, 9, 16, *(n + d for n in LENGTHS for d in (-1, 0, 1))):
            yield name, frames
        for target in TRAINERS_RATES:
            for length in LENGTHS:
                needed = math.ceil(length * rate / target)
                yield from ((name, n) for n in range(needed - 1, needed + 2) if n <= MOST_FRAMES)


def _planned(index: int, name: str | None, frames: int, rng: random.Random) -> CountedClip:
    width, height = rng.choice(SIZES)
    if index % 10 == 0:
        width, height = 2 * width, 2 * height
    key = f"{'clip' if name else 'source'}-{index:04d}"
    return CountedClip(
        clip=key,
        file=f"{key}.mp4",
        kind="clip" if name else "source",
        rate=str(RATES[name]) if name else None,
        frames=frames,
        duration_s=round(float(frames / RATES[name]), 6) if name else 0.0,
        width=width,
        height=height,
        sound=rng.choice(("none", "silent", "tone", "tone")),
        caption=CAPTIONS["short"] + f" {index}"
        if rng.random() < 0.4
        else rng.choice(list(CAPTIONS.values())),
    )


def make(clip: CountedClip, folder: Path, seed: int = 1) -> CountedClip:
    """Writes a clip as `curate` does: H.264 in MP4, constant rate, from time 0."""
    av = importlib.import_module("av")
    rng = random.Random(f"{seed} {clip.clip}")
    rate = Fraction(clip.rate) if clip.rate else Fraction(30)
    base = 1 / rate if clip.rate else Fraction(1, 600)
    times = list(range(clip.frames)) if clip.rate else _variable_times(clip.frames, rng)
    options = {"movflags": "+faststart", "fflags": "+bitexact"}
    with av.open(str(folder / clip.file), "w", format="mp4", container_options=options) as output:
        stream = output.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = clip.width, clip.height, "yuv420p"
        context = stream.codec_context
        context.time_base, context.gop_size, context.max_b_frames = base, int(rate), 0
        context.thread_count = 1
        context.options = {"preset": "ultrafast", "crf": "20"}
        seconds = float(times[-1] * base) + float(1 / rate)
        audio = (
            None if clip.sound == "none" else output.add_stream("aac", rate=44100, layout="stereo")
        )
        for number, time in enumerate(times):
            frame = _frame(av, number, clip)
            frame.pts, frame.time_base = time, base
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        if audio is not None:
            for sound in _sound(av, seconds, clip.sound):
                output.mux(audio.encode(sound))
            output.mux(audio.encode(None))
    return CountedClip(**(asdict(clip) | {"duration_s": round(seconds, 6)}))


def _variable_times(frames: int, rng: random.Random) -> list[int]:
    """Returns times in 1/600 s: a telephone's jitter, and now and then a gap."""
    times = [0]
    while len(times) < frames:
        times.append(times[-1] + rng.choice((20, 20, 20, 18, 22, 25, 40)))
    return times


def _frame(av: ModuleType, number: int, clip: CountedClip) -> "VideoFrame":
    picture = np.empty((clip.height, clip.width, 3), np.uint8)
    picture[:] = _GROUND
    left, top, side = box_in_source(clip.width, clip.height)
    picture[top : top + side, left : left + side] = counter(number, side)[..., None]
    frame: VideoFrame = av.VideoFrame.from_ndarray(picture, format="rgb24")
    return frame.reformat(format="yuv420p")


def _sound(av: ModuleType, seconds: float, kind: Sound) -> "Iterator[AudioFrame]":
    samples = round(seconds * 44100)
    for start in range(0, samples, 1024):
        n = np.arange(start, min(samples, start + 1024))
        wave = 0.3 * np.sin(2 * np.pi * 440 * n / 44100) * (kind == "tone")
        frame = av.AudioFrame.from_ndarray(
            np.repeat(wave[None].astype(np.float32), 2, 0), format="fltp", layout="stereo"
        )
        frame.sample_rate, frame.pts = 44100, start
        yield frame


def read_plan(folder: Path) -> list[CountedClip]:
    """Returns the clips of a made corpus."""
    lines = (folder / "clips.jsonl").read_text(encoding="utf-8").split("\n")
    return [CountedClip(**json.loads(line)) for line in lines if line]
