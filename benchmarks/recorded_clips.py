"""Recordings over which `overlay_cases` draws: footage by part, and half of the labelled media."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import av
import cv2
import footage_split
import numpy as np
import tests_path  # noqa: F401

from curator.tools.footage.scenes import Picture

Part = Literal["train", "blind"]
Truth = dict[str, bool | None]
SECONDS, FPS, WIDTH, HEIGHT = 6, 10, 640, 360

DIVIDED = ("214_", "243_", "200_", "203_")
PANELS = (
    "045_", "088_", "118_", "178_", "179_", "180_", "181_", "204_", "207_", "208_", "237_", "238_",
    "241_", "242_", "259_",
)  # fmt: skip
"""Recordings of pages and screens that show moving pictures: neither divided nor single."""
BOXED = ("108_", "116_", "140_", "142_")
PERHAPS_BOXED = ("117_", "118_", "141_", "045_", "204_")
PERHAPS_CARDS = ("158_", "laion_slides", "222_", "258_")
"""Seen by eye at six frames each, before any score."""

MEDIA: dict[Part, tuple[tuple[str, tuple[float, ...]], ...]] = {
    "train": (
        ("single/bottle-detection.mp4", (0, 20)), ("single/chaplin.mp4", (0,)),
        ("single/dog_play.mp4", (0,)), ("single/juggle.mp4", (0,)),
        ("single/rooftops_60fps_pans.mp4", (0, 8)), ("single/awesome movie.mov", (0.5,)),
        ("neardup/cockatoo_yuv420.mp4", (0, 7)), ("single/meeting_two_people.webm", (0, 20)),
        ("single/solidWhiteRight.mp4", (0,)), ("single/blocks_hands.mp4", (0,)),
        ("multishot/laion_slides.mp4", (12, 52)),
    ),
    "blind": (
        ("single/car-detection.mp4", (0, 15)), ("single/climbing_portrait.mp4", (0, 7)),
        ("single/tractor_pan_vp9.webm", (2,)), ("multishot/dancer_jumpcuts.webm", (2, 25)),
        ("multishot/nasa_13013.mp4", (0,)), ("neardup/dog_on_bed.mp4", (0,)),
        ("neardup/carphone_pristine.mp4", (0,)), ("formats/hevc_5.1.ts", (0,)),
        ("formats/mpeg4_mp3.avi", (0,)), ("multishot/laion_slides.mp4", (75, 104)),
    ),
}  # fmt: skip
ENDS = {"multishot/nasa_13013.mp4": 5.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A made clip.

    `truth` has an entry for each score that the clip counts for: True if the score must find
    something; None if the clip does not count.
    """

    kind: str
    of: str
    frames: list[Picture]
    truth: Truth = field(default_factory=dict)


NOTHING: Truth = {"inset": False, "split": False, "card": False, "boxes": False}

Maker = Callable[[random.Random], Case]
"""Makes one clip, by a generator of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footage:
    """Frames of one recording, and what an eye found in them."""

    name: str
    frames: list[Picture]
    truth: Truth

    @property
    def is_single(self) -> bool:
        """Whether nothing of interest is drawn over the picture."""
        return self.truth["split"] is False and self.truth["boxes"] is False


def footage(folder: Path, media: Path, part: Part) -> Iterator[Footage]:
    """Yields recordings of a part; `train` includes the part `tune`, which is for choices too."""
    parts: tuple[footage_split.Part, ...] = ("blind",) if part == "blind" else ("train", "tune")
    for name in parts:
        for one in footage_split.recordings(folder, name):
            yield _seen(one.path.name, real_clip(one.path, 0))
    for file, starts in MEDIA[part]:
        for at in starts:
            frames = real_clip(media / file, at, ENDS.get(file, 1e9))
            yield _seen(f"{Path(file).stem}@{at:g}", frames)


def _seen(name: str, frames: list[Picture]) -> Footage:
    divided = None if name.startswith(PANELS) else name.startswith(DIVIDED)
    boxes = None if name.startswith(PERHAPS_BOXED) else name.startswith(BOXED)
    card = None if name.startswith(PERHAPS_CARDS) else False
    inset = None if name.startswith((*PANELS, *DIVIDED)) else False
    truth = {"split": divided, "inset": inset, "boxes": boxes, "card": card}
    return Footage(name=name[:28], frames=frames, truth=truth)


def real_clip(path: Path, begin_s: float, end_s: float = 1e9) -> list[Picture]:
    """Returns `SECONDS` of a file at `FPS`, at most `WIDTH` px; short files go back and forth."""
    frames: list[Picture] = []
    with av.open(str(path)) as container:
        first = None
        for frame in container.decode(container.streams.video[0]):
            first = frame.time if first is None else first
            at = frame.time - first - begin_s
            if at > SECONDS or at + begin_s > end_s:
                break
            if at < 0:
                continue
            picture = np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
            picture = resized(picture, min(1.0, WIDTH / max(picture.shape[:2])))
            while len(frames) <= at * FPS:
                frames.append(picture)
    while len(frames) < SECONDS * FPS:
        frames += frames[::-1]
    return frames[: SECONDS * FPS]


def resized(picture: Picture, scale: float) -> Picture:
    """Returns a picture at a scale, with even sides."""
    size = tuple(round(side * scale / 2) * 2 for side in picture.shape[1::-1])
    how = cv2.INTER_AREA if scale <= 1 else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(picture, size, interpolation=how), np.uint8)


def enlarged(frames: list[Picture], width: int = WIDTH) -> list[Picture]:
    """Returns frames whose longer side is at least `width`."""
    scale = width / max(frames[0].shape[:2])
    return frames if scale <= 1 else [resized(frame, scale) for frame in frames]


def fitted(picture: Picture, width: int, height: int) -> Picture:
    """Returns the middle of a picture, of a size."""
    scale = max(width / picture.shape[1], height / picture.shape[0])
    size = max(width, round(picture.shape[1] * scale)), max(height, round(picture.shape[0] * scale))
    shown = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return np.asarray(shown[top : top + height, left : left + width], np.uint8)
