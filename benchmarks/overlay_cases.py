"""Makes clips with and without insets, divided pictures, title cards and drawn boxes.

Everything is drawn over recordings of one part of `footage_split`, over half of the labelled media,
and over photographs. `overlay_accuracy.py` scores the clips.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Literal

import av
import cv2
import footage_split
import numpy as np
import tests_path  # noqa: F401
from film_shots import PHOTOGRAPHS, photograph, texture
from overlays import (
    Corner,
    Inset,
    drawn,
    emblem,
    lettering,
    subtitled,
    with_inset,
    with_mark,
)

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
SENTENCES = ("I told you not to come here.", "Where were you last night?", "No.", "Why?")
WORDS = (
    "THE", "LAST", "RIVER", "Morning", "House", "A", "STORY", "of", "Light", "GARDEN", "Journey",
    "NORTH", "Winter", "Silent", "ROADS", "Part", "Two", "Directed", "by", "Anna", "Camera",
    "Music", "Jonas", "Okafor", "Editor", "Maria", "Silva", "PRODUCTIONS", "Chapter", "Three",
)  # fmt: skip
CLASSES = ("person", "car", "dog", "bottle", "bicycle", "truck", "face")
COLOURS = (
    (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 0, 255), (0, 255, 255),
    (255, 128, 0), (50, 205, 50), (220, 20, 60),
)  # fmt: skip


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
            picture = frame.to_ndarray(format="rgb24")
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


# Over single pictures, to be told from what the scores look for.


def letterboxed(frames: list[Picture], rng: random.Random) -> list[Picture]:
    """Black bars at the top and bottom, or at the sides."""
    height, width = frames[0].shape[:2]
    bars, across = rng.uniform(0.08, 0.14), rng.random() < 0.5
    x, y = (round(bars * width), 0) if across else (0, round(bars * height))
    made = []
    for frame in frames:
        shown = np.zeros_like(frame)
        shown[y : height - y, x : width - x] = fitted(frame, width - 2 * x, height - 2 * y)
        made.append(shown)
    return made


def banner(frames: list[Picture], rng: random.Random) -> list[Picture]:
    """A lower third, and a smaller box in a corner."""
    height, width = frames[0].shape[:2]
    box = np.full((round(0.14 * height), round(rng.uniform(0.35, 0.6) * width), 4), 255, np.uint8)
    box[..., :3] = [rng.randrange(256) for _ in range(3)]
    text = lettering("Reporting from the north", size_px=max(9, round(0.05 * height)))
    small = np.full((round(0.12 * height), round(0.14 * width), 4), 255, np.uint8)
    small[..., :3] = [rng.randrange(256) for _ in range(3)]
    made = []
    for frame in frames:
        shown = drawn(frame, box, round(0.06 * width), round(0.8 * height))
        shown = drawn(shown, text, round(0.08 * width), round(0.83 * height))
        made.append(drawn(shown, small, round(0.84 * width), round(0.04 * height)))
    return made


def pane(frames: list[Picture], rng: random.Random) -> list[Picture]:
    """A scene behind a window with a bar: both sides are one view."""
    width = frames[0].shape[1]
    at, wide = (
        round(rng.uniform(0.35, 0.65) * width),
        max(3, round(rng.uniform(0.01, 0.06) * width)),
    )
    shade = rng.randrange(20, 200)
    made = [frame.copy() for frame in frames]
    for frame in made:
        frame[:, at : at + wide] = shade
    return made


def subtitles(frames: list[Picture], rng: random.Random) -> list[Picture]:
    """Boxed or outlined captions."""
    size = max(9, round(frames[0].shape[0] * 0.06))
    style = rng.choice(("outlined", "boxed"))
    patches = [lettering(text, size_px=size, style=style) for text in SENTENCES]
    return list(subtitled(frames, patches, n_frames=round(FPS * rng.uniform(1.5, 3))))


def ticker(frames: list[Picture], rng: random.Random) -> list[Picture]:
    """A band of text that scrolls."""
    height, width = frames[0].shape[:2]
    news = "Markets close higher  +++  Rain is expected in the north until Friday  +++  "
    patch = lettering(news, size_px=max(10, round(height * 0.05)), style="boxed")
    speed, long = width * rng.uniform(0.08, 0.2) / FPS, patch.shape[1]
    made = []
    for index, frame in enumerate(frames):
        for x in range(-round(index * speed) % long - long, width, long):
            frame = drawn(frame, patch, x, round(0.9 * height))
        made.append(frame)
    return made


def logo(frames: list[Picture], rng: random.Random) -> list[Picture]:
    """A mark without text in a corner."""
    corner: Corner = rng.choice(("top left", "top right", "bottom left", "bottom right"))
    patch = emblem(
        round(frames[0].shape[0] * rng.choice((0.08, 0.1, 0.15))), seed=rng.randrange(999)
    )
    return list(with_mark(frames, patch, corner=corner, opacity=rng.choice((0.5, 0.8, 1.0))))


def game_display(frames: list[Picture], rng: random.Random) -> list[Picture]:
    """Coloured frames that stay in place, with numbers in them, as games draw over the picture."""
    height, width = frames[0].shape[:2]
    boxes = []
    for _ in range(rng.randrange(1, 5)):
        w, h = rng.randrange(width // 10, width // 3), rng.randrange(height // 12, height // 4)
        x = rng.choice((8, width - w - 8, rng.randrange(8, width - w - 8)))
        y = rng.choice((8, height - h - 8))
        boxes.append((x, y, w, h, rng.choice(COLOURS), rng.randrange(1, 4)))
    made = []
    for index, frame in enumerate(frames):
        shown = frame.copy()
        for x, y, w, h, colour, thick in boxes:
            cv2.rectangle(shown, (x, y), (x + w, y + h), colour, thick)
            cv2.putText(shown, str(index * 7), (x + 6, y + h - 6), 0, 0.5, colour, 1, cv2.LINE_AA)
        made.append(shown)
    return made


CHANGES: dict[str, Callable[[list[Picture], random.Random], list[Picture]]] = {
    "letterbox": letterboxed, "banner": banner, "ticker": ticker, "pane": pane,
    "subtitles": subtitles, "logo": logo, "game display": game_display,
}  # fmt: skip


def placed(rng: random.Random, shape: tuple[int, ...]) -> Inset:
    """An inset in a corner or at a side."""
    height, width = shape[:2]
    share = rng.uniform(0.1, 0.4) if width > height else rng.uniform(0.25, 0.5)
    tall = min(share * width / rng.choice((16 / 9, 16 / 9, 4 / 3, 1.0, 0.75)) / height, 0.5)
    margin = rng.choice((0.0, rng.uniform(0.01, 0.05), rng.uniform(0.01, 0.05)))
    line = rng.choice((0, 0, 2, 3)) if margin else 0
    x, y = margin, margin * width / height
    across = rng.choice((x, 1 - share - x, x, 1 - share - x, rng.uniform(0.1, 0.9) * (1 - share)))
    down = rng.choice((y, 1 - tall - y))
    colour = rng.choice(((255, 255, 255), (0, 0, 0), (200, 30, 30)))
    radius = rng.choice((0, 0, 0, 0, round(0.1 * min(share * width, tall * height))))
    return Inset(
        x=across, y=down, width=share, height=tall, border_px=line, border=colour, radius_px=radius
    )


Box = tuple[float, float, float, float]
LAYOUTS: dict[str, Callable[[float], list[Box]]] = {
    "side by side": lambda at: [(0, 0, at, 1), (at, 0, 1, 1)],
    "above": lambda at: [(0, 0, 1, at), (0, at, 1, 1)],
    "grid of 4": lambda _at: [(x, y, x + 0.5, y + 0.5) for y in (0, 0.5) for x in (0, 0.5)],
    "3 columns": lambda _at: [(i / 3, 0, (i + 1) / 3, 1) for i in range(3)],
}


def joined(parts: list[list[Picture]], boxes: list[Box], line_px: int, line: int) -> list[Picture]:
    """Returns frames whose parts are other frames, with a line between them."""
    frames = []
    for shown in zip(*parts, strict=True):
        frame = np.full((HEIGHT, WIDTH, 3), line, np.uint8)
        for picture, (x0, y0, x1, y1) in zip(shown, boxes, strict=True):
            left, right = (round(v * WIDTH) for v in (x0, x1))
            top, bottom = (round(v * HEIGHT) for v in (y0, y1))
            left, top = left + (line_px // 2 if x0 else 0), top + (line_px // 2 if y0 else 0)
            right -= (line_px + 1) // 2 if x1 < 1 else 0
            bottom -= (line_px + 1) // 2 if y1 < 1 else 0
            frame[top:bottom, left:right] = fitted(picture, right - left, bottom - top)
        frames.append(frame)
    return frames


# Scenes with straight edges of their own.


def bricks(rng: random.Random, width: int, height: int) -> Picture:
    """A wall of bricks in courses."""
    picture = np.full((height, width, 3), rng.randrange(150, 220), np.uint8)
    tall, wide = rng.randrange(18, 40), rng.randrange(44, 110)
    grain = np.random.default_rng(rng.randrange(9999))
    for row in range(0, height, tall):
        for x in range(-wide + (row // tall % 2) * wide // 2, width, wide):
            colour = np.array([150, 70, 50]) + grain.integers(-25, 25)
            picture[row + 3 : row + tall, max(0, x + 3) : max(0, x + wide)] = colour
    return np.clip(picture + grain.normal(0, 8, picture.shape), 0, 255).astype(np.uint8)


def windows(rng: random.Random, width: int, height: int) -> Picture:
    """The front of a house; half of the fronts have coloured frames around the windows."""
    picture = np.full((height, width, 3), rng.randrange(120, 200), np.uint8)
    wide, tall = rng.randrange(60, 140), rng.randrange(60, 140)
    frame = rng.choice(((230, 230, 230), rng.choice(COLOURS)))
    thick = rng.randrange(1, 5)
    for y in range(rng.randrange(20), height, tall):
        for x in range(rng.randrange(20), width, wide):
            box = (x, y), (x + wide // 2, y + tall * 2 // 3)
            cv2.rectangle(picture, *box, [rng.randrange(20, 110)] * 3, -1)
            cv2.rectangle(picture, *box, frame, thick)
            picture[y : y + tall * 2 // 3, x + wide // 4 : x + wide // 4 + 3] = 230
    return picture


def shelves(rng: random.Random, width: int, height: int) -> Picture:
    """Planks with books."""
    picture = np.full((height, width, 3), 60, np.uint8)
    tall = rng.randrange(80, 160)
    for y in range(0, height, tall):
        x = 0
        while x < width:
            wide, top = rng.randrange(8, 30), y + rng.randrange(12, 30)
            picture[top : y + tall, x : x + wide] = [rng.randrange(30, 230) for _ in range(3)]
            x += wide
        picture[y : y + 10] = (150, 110, 70)
    return picture


def tiles(rng: random.Random, width: int, height: int) -> Picture:
    """Tiles with straight joints."""
    side = rng.randrange(40, 120)
    picture = np.full((height, width, 3), 90, np.uint8)
    picture[:] = rng.choice(((90, 90, 90), (40, 40, 160), (150, 60, 40)))
    for y in range(0, height, side):
        for x in range(0, width, side):
            picture[y + 3 : y + side, x + 3 : x + side] = 190 + rng.randrange(-20, 20)
    return picture


def fence(rng: random.Random, width: int, height: int) -> Picture:
    """Pickets before a picture."""
    picture = texture(rng.randrange(9999), width_px=width, height_px=height).copy()
    wide = rng.randrange(30, 120)
    for x in range(0, width, wide):
        picture[:, x : x + wide // 4] = 210
    picture[height // 4 : height // 4 + 20] = 200
    return picture


def edge(rng: random.Random, width: int, height: int, photo: Picture) -> Picture:
    """Two surfaces that meet in one straight edge: a corner of a room, a horizon."""
    first = texture(rng.randrange(9999), width_px=width, height_px=height).copy()
    second = (cv2.resize(photo, (width, height)) * rng.choice((0.35, 0.6))).astype(np.uint8)
    at = rng.uniform(0.3, 0.7)
    if rng.random() < 0.5:
        first = (first * 0.3 + 140).clip(0, 255).astype(np.uint8)
    place = np.s_[:, round(at * width) :] if rng.random() < 0.5 else np.s_[round(at * height) :]
    first[place] = second[place]
    return first


def door(rng: random.Random, width: int, height: int, photo: Picture) -> Picture:
    """A wall with an open door, behind which is another room."""
    picture = np.full((height, width, 3), rng.randrange(140, 220), np.uint8)
    left, wide = rng.randrange(width // 5, width // 2), rng.randrange(width // 6, width // 3)
    picture[:, left - 12 : left + wide + 12] = (120, 90, 60)
    picture[:, left : left + wide] = (cv2.resize(photo, (wide, height)) * 0.6).astype(np.uint8)
    return picture


def page(rng: random.Random, width: int, height: int) -> Picture:
    """A printed page with columns."""
    picture = np.full((height, width, 3), 240, np.uint8)
    n_columns = rng.choice((1, 2, 3))
    for column in range(n_columns):
        left, wide = round(column / n_columns * width) + 20, width // n_columns - 40
        for y in range(20, height - 30, 26):
            words = "".join(rng.choice("abcdefghij klmnop ") for _ in range(90))
            patch = lettering(words, size_px=15, style="plain", colour=(25, 25, 30))
            picture = drawn(picture, patch[:24, :wide], left, y)
        if column:
            picture[:, left - 20 : left - 18] = 40
    return picture


def signs(rng: random.Random, width: int, height: int, photo: Picture) -> Picture:
    """A photograph with one to three signs in perspective, of any size."""
    picture = cv2.resize(photo, (width, height))
    for _ in range(rng.choice((1, 1, 2, 3))):
        words = rng.choice(("BAKERY", "Town hall 200 m", "EXIT 14", "Hotel", "SALE 50% OFF"))
        colour = rng.choice(((20, 30, 60), (240, 240, 230), (160, 20, 20)))
        size = rng.choice((30, 45, 70, 100))
        patch = lettering(words, size_px=size, style="plain", colour=colour)
        board = np.full(patch.shape, (236, 232, 220, 255), np.uint8)
        board[..., :3] = rng.choice(((236, 232, 220), (40, 60, 90), (120, 120, 110)))
        tall, wide = patch.shape[:2]
        left, top = rng.uniform(0.0, 0.8) * (width - wide / 2), rng.uniform(0.1, 0.8) * height
        corners = np.float32([[0, 0], [wide, 0], [wide, tall], [0, tall]])
        seen = corners + np.float32([left, top])
        seen += np.float32([[rng.gauss(0, 0.05 * tall), rng.gauss(0, 0.12 * tall)] for _ in seen])
        matrix = cv2.getPerspectiveTransform(corners, seen.astype(np.float32))
        for layer in (board, patch):
            picture = drawn(picture, cv2.warpPerspective(layer, matrix, (width, height)), 0, 0)
    return picture


def filmed(picture: Picture, how: str, rng: random.Random, patch: Picture) -> list[Picture]:
    """Returns a picture under a camera, some with a person who moves before it."""
    n = SECONDS * FPS
    height, width = picture.shape[:2]
    noise = np.random.default_rng(rng.randrange(9999)).normal(0, 2, (HEIGHT, WIDTH, 1))
    free_x, free_y = width - WIDTH, height - HEIGHT
    ways = rng.choice((-1, 1))
    frames = []
    for index in range(n):
        t = index / (n - 1)
        x, y, scale = free_x / 2, free_y / 2, 1.0
        if how == "pan":
            x = free_x * (t if ways > 0 else 1 - t)
        elif how == "tilt":
            y = free_y * (t if ways > 0 else 1 - t)
        elif how == "shake":
            x += 4 * np.sin(index / 3.1) + 3 * np.sin(index / 7.7)
            y += 3 * np.sin(index / 2.3 + 1)
        elif how == "zoom":
            scale = 1 + 0.4 * t
        matrix = np.float32([[scale, 0, -x * scale - (scale - 1) * WIDTH / 2],
                             [0, scale, -y * scale - (scale - 1) * HEIGHT / 2]])  # fmt: skip
        frame = cv2.warpAffine(picture, matrix, (WIDTH, HEIGHT), flags=cv2.INTER_AREA)
        tall, wide = patch.shape[:2]
        for number in range({"passer-by": 1, "two people": 2}.get(how, 0)):
            left = round((t if ways > 0 else 1 - t) * (WIDTH - wide))
            if how == "two people":
                left = round((0.02, 0.6)[number] * WIDTH + 60 * np.sin(index / 11 + number))
            right = min(WIDTH, left + wide)
            part = patch[:, max(0, -left) : right - left]
            frame[HEIGHT - tall :, max(0, left) : right] = part
        frames.append(np.clip(frame + np.roll(noise, index * 37, 1), 0, 255).astype(np.uint8))
    return frames


Maker = Callable[[random.Random], Case]
"""Makes one clip, by a generator of its own."""
HOW = ("static", "pan", "tilt", "shake", "zoom", "passer-by", "two people")
NOTHING: Truth = {"inset": False, "split": False, "card": False, "boxes": False}


def scenes(part: Part) -> dict[str, Maker]:
    """Returns makers of single pictures that have straight edges or text of their own."""
    names = sorted(PHOTOGRAPHS)[1 if part == "blind" else 0 :: 2]
    size = round(WIDTH * 1.3), round(HEIGHT * 1.3)

    def photo(rng: random.Random) -> Picture:
        return photograph(rng.choice(names))

    makers: dict[str, Callable[[random.Random], Picture]] = {
        "bricks": lambda rng: bricks(rng, *size), "windows": lambda rng: windows(rng, *size),
        "shelves": lambda rng: shelves(rng, *size), "tiles": lambda rng: tiles(rng, *size),
        "fence": lambda rng: fence(rng, *size), "corner": lambda rng: edge(rng, *size, photo(rng)),
        "door": lambda rng: door(rng, *size, photo(rng)), "page": lambda rng: page(rng, *size),
        "photograph": lambda rng: cv2.resize(photo(rng), size),
        "sign": lambda rng: signs(rng, *size, photo(rng)),
    }  # fmt: skip

    def case(rng: random.Random, name: str, how: str) -> Case:
        frames = filmed(makers[name](rng), how, rng, fitted(photo(rng), 120, 270))
        return Case(kind=f"scene: {name}", of=how, frames=frames, truth=NOTHING)

    return {f"{name} {how}": partial(case, name=name, how=how) for name in makers for how in HOW}


# Title cards.


def _words(rng: random.Random, n: int) -> str:
    return " ".join(rng.sample(WORDS, n))


def _lines(picture: Picture, rows: list[tuple[str, int]], top: int, colour: tuple[int, int, int],
           rng: random.Random, gap: float = 1.5) -> Picture:  # fmt: skip
    style = rng.choice(("plain", "plain", "outlined"))
    y = top
    for text, size in rows:
        patch = lettering(text, size_px=size, style=style, colour=colour)
        picture = drawn(picture, patch, (picture.shape[1] - patch.shape[1]) // 2, y)
        y += round(size * gap)
    return picture


def title_card(rng: random.Random, back: list[Picture], *, dark: bool) -> list[Picture]:
    """One to four centred lines over a background, with fades or without."""
    colour = (245, 245, 240) if dark else (25, 20, 30)
    if rng.random() < 0.3:
        colour = (250, 210, 60) if dark else (150, 20, 20)
    kind = rng.choice(("title", "title", "chapter", "names"))
    if kind == "title":
        rows = [(_words(rng, rng.choice((1, 2, 3))), rng.choice((30, 44, 60)))]
        rows += [(_words(rng, 3), 20)] * rng.choice((0, 1))
    elif kind == "chapter":
        rows = [(f"Chapter {rng.randrange(1, 12)}", 22), (_words(rng, 2), 34)]
    else:
        rows = [(_words(rng, 2), rng.choice((18, 24))) for _ in range(rng.choice((2, 3, 4)))]
    tall = sum(round(size * 1.5) for _, size in rows)
    top = round((HEIGHT - tall) * rng.choice((0.5, 0.5, 0.35)))
    fade = rng.choice((0, 0, 5, 8))
    made = []
    seed = rng.random()
    for index, frame in enumerate(back):
        shown = _lines(frame.copy(), rows, top, colour, random.Random(seed))
        at = min(index, len(back) - 1 - index) / max(fade, 1)
        if at < 1:
            shown = cv2.addWeighted(shown, at, frame, 1 - at, 0)
        made.append(np.asarray(shown, np.uint8))
    return made


def rolling_credits(rng: random.Random) -> list[Picture]:
    """Lines that move upwards over black, in one or two columns."""
    speed, tall = rng.choice((3, 5, 8)), rng.choice((22, 28))
    n_rows = (HEIGHT + speed * SECONDS * FPS) // tall + 2
    sheet = np.zeros((n_rows * tall + HEIGHT // 2, WIDTH, 3), np.uint8)
    two = rng.random() < 0.5
    for row in range(n_rows):
        if rng.random() < 0.15:
            continue
        y = HEIGHT // 3 + row * tall
        size = tall * 6 // 10
        if two:
            role = lettering(_words(rng, 1), size_px=size, style="plain", colour=(190, 190, 190))
            name = lettering(_words(rng, 2), size_px=size, style="plain")
            sheet = drawn(sheet, role, WIDTH // 2 - 10 - role.shape[1], y)
            sheet = drawn(sheet, name, WIDTH // 2 + 10, y)
        else:
            name = lettering(_words(rng, 2), size_px=size, style="plain")
            sheet = drawn(sheet, name, (WIDTH - name.shape[1]) // 2, y)
    last = len(sheet) - HEIGHT
    return [sheet[(at := min(speed * i, last)) : at + HEIGHT] for i in range(SECONDS * FPS)]


def background(kind: str, rng: random.Random, photo: Picture, scene: list[Picture]) -> tuple[
    list[Picture], bool]:  # fmt: skip
    """Returns the frames behind a card, and whether they are dark."""
    shade = rng.random() < 0.6
    tone = np.array([rng.randrange(0, 70) if shade else rng.randrange(170, 256) for _ in range(3)])
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH] / np.array([HEIGHT, WIDTH])[:, None, None]
    if kind == "over a scene":
        return scene, bool(scene[0].mean() < 128)
    if kind == "plain":
        one = np.zeros((HEIGHT, WIDTH, 3)) + tone
    elif kind == "ramp":
        one = tone + 60 * (y + x - 1)[..., None]
    elif kind == "blurred still":
        one = cv2.GaussianBlur(scene[0], (0, 0), 14)
    elif kind == "dimmed still":
        one = cv2.GaussianBlur(photo, (0, 0), 2) * 0.45
    else:
        one = photo if kind == "still" else np.zeros((HEIGHT, WIDTH, 3))
    dark = shade if kind in ("plain", "ramp") else bool(one.mean() < 115)
    return [np.clip(one, 0, 255).astype(np.uint8)] * (SECONDS * FPS), dark


UNCOUNTED = ("still", "over a scene")
BACKGROUNDS = ("black", "plain", "ramp", "blurred still", "dimmed still", "rolling", *UNCOUNTED)


def cards(part: Part, found: list[Footage], n: int) -> dict[str, Maker]:
    """Returns makers of `n` title cards over each kind of background."""
    names = sorted(PHOTOGRAPHS)[1 if part == "blind" else 0 :: 2]
    truth: Truth = {"card": True, "inset": None, "split": None, "boxes": False}

    def case(rng: random.Random, number: int, kind: str) -> Case:
        one = found[number * 5 % len(found)]
        if kind == "rolling":
            frames = rolling_credits(rng)
        else:
            photo = fitted(photograph(names[number % len(names)]), WIDTH, HEIGHT)
            scene = [fitted(frame, WIDTH, HEIGHT) for frame in enlarged(one.frames)]
            back, dark = background(kind, rng, photo, scene)
            frames = title_card(rng, back, dark=dark)
        kept = {**truth, "card": None} if kind in UNCOUNTED else truth
        return Case(kind=f"card: {kind}", of=one.name, frames=frames, truth=kept)

    return {f"{kind} {number}": partial(case, number=number, kind=kind)
            for number in range(n) for kind in BACKGROUNDS}  # fmt: skip


# Drawn boxes.


def _followed(frames: list[Picture], rng: random.Random, n: int) -> list[list[tuple[float, ...]]]:
    """Returns for each frame the places of `n` boxes that follow what moves, as shares."""
    small = [cv2.cvtColor(cv2.resize(f, (160, 90)), cv2.COLOR_RGB2GRAY) for f in frames]
    change = sum(
        cv2.absdiff(a, b).astype(np.float32) for a, b in pairwise(small[:: FPS // 2])
    ) / len(small)  # fmt: skip
    energy = cv2.GaussianBlur(np.asarray(change), (0, 0), 6) + 1e-3
    boxes = []
    for _ in range(n):
        place = rng.choices(range(energy.size), energy.ravel().tolist())[0]
        w, h = rng.uniform(0.06, 0.3), rng.uniform(0.1, 0.5)
        boxes.append([place % 160 / 160 - w / 2, place // 160 / 90 - h / 2, w, h])
    flow = None
    paths = []
    for index in range(len(small)):
        if index and index % 3 == 0:
            before, after = small[index - 3], small[index]
            flow = cv2.calcOpticalFlowFarneback(before, after, None, 0.5, 2, 13, 2, 5, 1.1, 0)
        for box in boxes if flow is not None and index % 3 == 0 else ():
            x0, y0 = max(0, int(box[0] * 160)), max(0, int(box[1] * 90))
            inside = flow[y0 : y0 + int(box[3] * 90) + 1, x0 : x0 + int(box[2] * 160) + 1]
            if inside.size:
                box[0] += float(inside[..., 0].mean()) / 160
                box[1] += float(inside[..., 1].mean()) / 90
        paths.append([tuple(v + rng.gauss(0, 0.002) for v in box) for box in boxes])
    return paths


def detections(frames: list[Picture], rng: random.Random) -> list[Picture]:
    """Draws boxes as detectors do: 1 to 8, of 1 to 4 px, with labels or without."""
    height, width = frames[0].shape[:2]
    n, thick = rng.choice((1, 1, 2, 3, 4, 6, 8)), rng.choice((1, 2, 2, 3, 4))
    one_colour = rng.random() < 0.5
    colours = [rng.choice(COLOURS)] * n if one_colour else rng.choices(COLOURS, k=n)
    label = rng.choice(("tag", "tag", "text", "none"))
    names = [f"{rng.choice(CLASSES)} {rng.uniform(0.3, 1):.2f}" for _ in range(n)]
    font = max(0.35, width / 1600)
    begins = [rng.choice((0, 0, rng.randrange(len(frames) // 2))) for _ in range(n)]
    made = []
    for index, (frame, boxes) in enumerate(zip(frames, _followed(frames, rng, n), strict=True)):
        shown = np.ascontiguousarray(frame.copy())
        for (x, y, w, h), colour, name, begin in zip(boxes, colours, names, begins, strict=True):
            if index < begin:
                continue
            x0, y0 = round(x * width), round(y * height)
            x1, y1 = round((x + w) * width), round((y + h) * height)
            cv2.rectangle(shown, (x0, y0), (x1, y1), colour, thick)
            if label != "none":
                (wide, tall), base = cv2.getTextSize(name, 0, font, 1)
                if label == "tag":
                    cv2.rectangle(shown, (x0, y0 - tall - base), (x0 + wide, y0), colour, -1)
                ink = colour if label == "text" else (0, 0, 0) if sum(colour) > 300 else (255,) * 3
                cv2.putText(shown, name, (x0, y0 - base // 2 - 1), 0, font, ink, 1, cv2.LINE_AA)
        made.append(shown)
    return made


def over(one: Footage, others: list[Footage]) -> dict[str, Maker]:
    """Returns makers of clips of each group over one recording."""
    frames, truth = enlarged(one.frames), {**NOTHING, "card": one.truth["card"]}

    def inset(rng: random.Random) -> Case:
        other = rng.choice(others).frames
        shown = list(with_inset(frames, other, placed(rng, frames[0].shape)))
        kept = {**truth, "inset": True, "split": None, "card": None}
        return Case(kind="inset", of=one.name, frames=shown, truth=kept)

    def change(rng: random.Random) -> Case:
        kind = rng.choice(sorted(CHANGES))
        return Case(kind=kind, of=one.name, frames=CHANGES[kind](frames, rng), truth=truth)

    def layout(rng: random.Random) -> Case:
        kind = rng.choice(sorted(LAYOUTS))
        boxes = LAYOUTS[kind](rng.choice((0.5, 0.5, rng.uniform(0.35, 0.65))))
        parts = [one.frames, *(other.frames for other in rng.sample(others, len(boxes) - 1))]
        shown = joined(parts, boxes, rng.choice((0, 0, 2, 4, 8)), rng.choice((0, 0, 255, 128)))
        kept = {"split": True, "inset": None, "card": None, "boxes": False}
        return Case(kind=kind, of=one.name, frames=shown, truth=kept)

    def boxes(rng: random.Random) -> Case:
        width = rng.choice((640, 640, 1280))
        shown = detections(enlarged(one.frames, width), rng)
        kept = {**truth, "boxes": True, "card": None}
        return Case(kind=f"boxes at {width} px", of=one.name, frames=shown, truth=kept)

    return {"inset": inset, "change": change, "layout": layout, "boxes": boxes}


N_CLIPS = {"recording": 48, "scene": 35, "change": 32, "inset": 24, "layout": 12, "boxes": 14,
           "card": 24}  # fmt: skip
"""Largest number of clips of each group, in the order in which they are made."""


def cases(folder: Path, media: Path, part: Part, seed: int) -> Iterator[Case]:
    """Yields the clips of a part: of each group `N_CLIPS`, spread evenly.

    A clip's draws depend on its group and place alone, so that other numbers change no other clip.
    """
    found = list(footage(folder, media, part))
    single = [one for one in found if one.is_single]
    groups: dict[str, list[Maker]] = {
        "recording": [partial(_as_it_is, one=one) for one in found],
        "scene": list(scenes(part).values()), "card": list(cards(part, single, 3).values()),
    }  # fmt: skip
    for group in ("change", "inset", "layout", "boxes"):
        groups[group] = [partial(_over, group=group, one=one, single=single) for one in single]
    for group, most in N_CLIPS.items():
        makers = groups[group]
        n = min(most, len(makers))
        for at in sorted({i * len(makers) // n for i in range(n)}):
            yield makers[at](random.Random(f"{part} {seed} {group} {at}"))


def _as_it_is(_rng: random.Random, one: Footage) -> Case:
    return Case(kind="recording", of=one.name, frames=one.frames, truth=one.truth)


def _over(rng: random.Random, group: str, one: Footage, single: list[Footage]) -> Case:
    others = [other for other in single if other.name[:3] != one.name[:3]]
    return over(one, others)[group](rng)
