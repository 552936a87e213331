"""Draws over recordings: bars, banners, captions, game displays, insets and divided pictures."""

import random
from collections.abc import Callable
from typing import Literal

import cv2
import numpy as np
import tests_path  # noqa: F401
from overlays import (
    Corner,
    Inset,
    drawn,
    emblem,
    lettering,
    subtitled,
    with_mark,
)
from recorded_clips import FPS, HEIGHT, WIDTH, fitted

from curator.tools.footage.scenes import Picture

SENTENCES = ("I told you not to come here.", "Where were you last night?", "No.", "Why?")
COLOURS = (
    (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 0, 255), (0, 255, 255),
    (255, 128, 0), (50, 205, 50), (220, 20, 60),
)  # fmt: skip


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
    style: Literal["outlined", "boxed"] = rng.choice(("outlined", "boxed"))
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
