"""Accuracy of `split_screen` on made divided pictures, and on what only looks divided.

    python benchmarks/split_screens.py [--half tune|blind] [--seed N] [--keep FILE] [--verbose]

Recordings are put beside and above each other, with and without lines between them. What is not
divided is the recordings themselves, with bars, banners, tickers and insets over them, and made
scenes with long straight edges: walls, windows, shelves, tiles, fences, doors, corners of rooms,
horizons, pages. All are encoded, and analyzed by the stage itself. The halves share no recording
and no photograph: bounds were set on `tune`, and `blind` was run once. Prints a table, then JSON.
"""

import argparse
import csv
import json
import os
import pickle
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import tests_path  # noqa: F401
from film_makers import write_video
from film_shots import PHOTOGRAPHS, photograph, texture
from insets import CLIPS, ENDS, FPS, SECONDS, banner, letterboxed, placed, real_clip, ticker
from overlays import lettering, with_inset

from curator.footage.scenes import Picture
from curator.measures.score_list import BUILT_IN
from curator.records.clips import Span
from curator.records.tracks import Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import analyze_source
from curator.stages.analyze.measurer import Instruments
from tests.samples import StillNetwork

FOUND = 0.5
WIDTH, HEIGHT = 640, 360
DIVIDED = ("214_", "243_", "200_", "203_")
"""Recordings that are divided, seen by eye."""
DOUBTFUL = (
    "045_", "088_", "118_", "178_", "181_", "204_", "207_", "237_", "238_", "241_", "242_",
)  # fmt: skip
"""Recordings of screens and pages with several moving pictures, which one may call divided."""
MEDIA_HALF = {"tune": "tune", "blind": "report"}


@dataclass(frozen=True, slots=True)
class Case:
    """A made clip: what it is, of what it is made, and whether its picture is divided."""

    kind: str
    of: str
    frames: list[Picture]
    is_divided: bool | None = False


@dataclass(frozen=True, slots=True)
class Recording:
    """Frames of one recording, and what an eye says of them: None is neither."""

    name: str
    frames: list[Picture]
    is_divided: bool | None = False


def recordings(footage: Path, media: Path, half: str) -> Iterator[Recording]:
    """Recordings of a half: of every other repository, and of half of the labelled media."""
    with (footage / "index.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] != "edited"]
    repositories = sorted({row["repo"] for row in rows}, key=str.lower)
    own = repositories[0 if half == "tune" else 1 :: 2]
    for row in rows:
        if row["repo"] in own:
            name = row["file"]
            mark = None if name.startswith(DOUBTFUL) else name.startswith(DIVIDED)
            yield Recording(name[:28], real_clip(footage / name, 0), mark)
    for name, starts in CLIPS[MEDIA_HALF[half]]:
        for at in starts:
            frames = real_clip(media / name, at, ENDS.get(name, 1e9))
            yield Recording(f"{Path(name).stem}@{at:g}", frames)


def fitted(picture: Picture, width: int, height: int) -> Picture:
    """The middle of a picture, of a size."""
    scale = max(width / picture.shape[1], height / picture.shape[0])
    size = max(width, round(picture.shape[1] * scale)), max(height, round(picture.shape[0] * scale))
    resized = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return np.asarray(resized[top : top + height, left : left + width], np.uint8)


Box = tuple[float, float, float, float]
LAYOUTS: dict[str, Callable[[float], list[Box]]] = {
    "side by side": lambda at: [(0, 0, at, 1), (at, 0, 1, 1)],
    "above": lambda at: [(0, 0, 1, at), (0, at, 1, 1)],
    "grid of 4": lambda _at: [
        (x, y, x + 0.5, y + 0.5) for y in (0, 0.5) for x in (0, 0.5)
    ],
    "3 columns": lambda _at: [(i / 3, 0, (i + 1) / 3, 1) for i in range(3)],
}  # fmt: skip


def joined(parts: list[list[Picture]], boxes: list[Box], line_px: int, line: int) -> list[Picture]:
    """Frames whose parts are other frames, with a line between them."""
    frames = []
    for shown in zip(*parts, strict=True):
        frame = np.full((HEIGHT, WIDTH, 3), line, np.uint8)
        for picture, (x0, y0, x1, y1) in zip(shown, boxes, strict=True):
            left, right = (round(v * WIDTH) for v in (x0, x1))
            top, bottom = (round(v * HEIGHT) for v in (y0, y1))
            left += line_px // 2 if x0 > 0 else 0
            top += line_px // 2 if y0 > 0 else 0
            right -= (line_px + 1) // 2 if x1 < 1 else 0
            bottom -= (line_px + 1) // 2 if y1 < 1 else 0
            frame[top:bottom, left:right] = fitted(picture, right - left, bottom - top)
        frames.append(frame)
    return frames


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
    """The front of a house."""
    picture = np.full((height, width, 3), rng.randrange(120, 200), np.uint8)
    wide, tall = rng.randrange(60, 140), rng.randrange(60, 140)
    for y in range(rng.randrange(20), height, tall):
        for x in range(rng.randrange(20), width, wide):
            picture[y : y + tall * 2 // 3, x : x + wide // 2] = rng.randrange(20, 110)
            picture[y : y + tall * 2 // 3, x + wide // 4 : x + wide // 4 + 3] = 230
    return picture


def shelves(rng: random.Random, width: int, height: int) -> Picture:
    """Planks with books."""
    picture = np.full((height, width, 3), 60, np.uint8)
    tall = rng.randrange(80, 160)
    for y in range(0, height, tall):
        x = 0
        while x < width:
            wide = rng.randrange(8, 30)
            top = y + rng.randrange(12, 30)
            picture[top : y + tall, x : x + wide] = [rng.randrange(30, 230) for _ in range(3)]
            x += wide
        picture[y : y + 10] = (150, 110, 70)
    return picture


def tiles(rng: random.Random, width: int, height: int) -> Picture:
    """Tiles with joints, of which all are straight."""
    side = rng.randrange(40, 120)
    picture = np.full((height, width, 3), 90, np.uint8)
    for y in range(0, height, side):
        for x in range(0, width, side):
            picture[y + 3 : y + side, x + 3 : x + side] = 190 + rng.randrange(-20, 20)
    return picture


def fence(rng: random.Random, width: int, height: int) -> Picture:
    """Pickets before a picture."""
    picture = texture(rng.randrange(9999), width_px=width, height_px=height)
    wide = rng.randrange(30, 120)
    for x in range(0, width, wide):
        picture[:, x : x + wide // 4] = 210
    picture[height // 4 : height // 4 + 20] = 200
    return picture


def edge(rng: random.Random, width: int, height: int, photo: Picture, *, upright: bool) -> Picture:
    """Two surfaces that meet in one straight edge: a door, a corner of a room, a horizon."""
    first = texture(rng.randrange(9999), width_px=width, height_px=height)
    shade = rng.choice((0.35, 0.6))
    second = (cv2.resize(photo, (width, height)) * shade).astype(np.uint8)
    at = rng.uniform(0.3, 0.7)
    if rng.random() < 0.5:
        first = (first * 0.3 + 140).clip(0, 255).astype(np.uint8)
    if upright:
        first[:, round(at * width) :] = second[:, round(at * width) :]
    else:
        first[round(at * height) :] = second[round(at * height) :]
    return first


def frame_of_door(rng: random.Random, width: int, height: int, photo: Picture) -> Picture:
    """A wall with an open door, behind which is another room."""
    picture = np.full((height, width, 3), rng.randrange(140, 220), np.uint8)
    left = rng.randrange(width // 5, width // 2)
    wide = rng.randrange(width // 6, width // 3)
    room = (cv2.resize(photo, (wide, height)) * 0.6).astype(np.uint8)
    picture[:, left - 12 : left + wide + 12] = (120, 90, 60)
    picture[:, left : left + wide] = room
    return picture


def page(rng: random.Random, width: int, height: int) -> Picture:
    """A printed page with columns."""
    picture = np.full((height, width, 3), 240, np.uint8)
    n_columns = rng.choice((1, 2, 3))
    for column in range(n_columns):
        left = round(column / n_columns * width) + 20
        wide = width // n_columns - 40
        for y in range(20, height - 30, 26):
            words = "".join(rng.choice("abcdefghij klmnop ") for _ in range(90))
            patch = lettering(words, size_px=15, style="plain", colour=(25, 25, 30))
            shown = patch[: min(24, height - y), :wide]
            alpha = shown[..., 3:].astype(np.float32) / 255
            under = picture[y : y + shown.shape[0], left : left + shown.shape[1]]
            under[:] = (under * (1 - alpha) + shown[..., :3] * alpha).astype(np.uint8)
        if column:
            picture[:, left - 20 : left - 18] = 40
    return picture


def filmed(picture: Picture, how: str, rng: random.Random, patch: Picture) -> list[Picture]:
    """A picture under a camera, some with what moves before it."""
    n = SECONDS * FPS
    height, width = picture.shape[:2]
    grain = np.random.default_rng(rng.randrange(9999))
    noise = grain.normal(0, 2, (HEIGHT, WIDTH, 1))
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
        if how in ("passer-by", "two people"):
            for number in range(1 if how == "passer-by" else 2):
                wide, tall = patch.shape[1], patch.shape[0]
                if how == "passer-by":
                    left = round((t if ways > 0 else 1 - t) * (WIDTH - wide))
                else:
                    left = round((0.02, 0.6)[number] * WIDTH + 60 * np.sin(index / 11 + number))
                top = HEIGHT - tall
                right = min(WIDTH, left + wide)
                frame[top:, max(0, left) : right] = patch[:, max(0, -left) : right - left]
        frames.append(np.clip(frame + np.roll(noise, index * 37, 1), 0, 255).astype(np.uint8))
    return frames


def scenes(half: str, rng: random.Random, n: int) -> Iterator[Case]:
    """Scenes that have long straight edges of their own, which no editor drew."""
    names = sorted(PHOTOGRAPHS)[0 if half == "tune" else 1 :: 2]
    size = (round(WIDTH * 1.3), round(HEIGHT * 1.3))
    makers: dict[str, Callable[[], Picture]] = {
        "bricks": lambda: bricks(rng, *size),
        "windows": lambda: windows(rng, *size),
        "shelves": lambda: shelves(rng, *size),
        "tiles": lambda: tiles(rng, *size),
        "fence": lambda: fence(rng, *size),
        "corner": lambda: edge(rng, *size, photograph(rng.choice(names)), upright=True),
        "horizon": lambda: edge(rng, *size, photograph(rng.choice(names)), upright=False),
        "door": lambda: frame_of_door(rng, *size, photograph(rng.choice(names))),
        "page": lambda: page(rng, *size),
        "photograph": lambda: cv2.resize(photograph(rng.choice(names)), size),
    }
    for name, maker in makers.items():
        for how in ("static", "pan", "tilt", "shake", "zoom", "passer-by", "two people"):
            for _ in range(n):
                patch = fitted(photograph(rng.choice(names)), 120, 270)
                yield Case(name, how, filmed(maker(), how, rng, patch))


def behind_a_pane(parts: list[Picture], rng: random.Random) -> list[Picture]:
    """A scene that is seen through a window with a bar: both sides are one view."""
    at, wide = round(rng.uniform(0.35, 0.65) * WIDTH), rng.randrange(6, 40)
    shade = rng.randrange(20, 200)
    frames = []
    for picture in parts:
        frame = fitted(picture, WIDTH, HEIGHT)
        frame[:, at : at + wide] = shade
        frames.append(frame)
    return frames


def cases(footage: Path, media: Path, half: str, seed: int) -> Iterator[Case]:
    """All clips of a half."""
    rng = random.Random(f"{half} {seed}")
    found = list(recordings(footage, media, half))
    pure = [one for one in found if one.is_divided is False]
    for one in found:
        kind = {False: "recording", True: "recording, divided", None: "recording, doubtful"}
        yield Case(kind[one.is_divided], one.name, one.frames, one.is_divided)
    for one in pure:
        other = rng.choice([p for p in pure if p.name[:3] != one.name[:3]])
        inset = placed(rng, one.frames[0].shape)
        yield Case("inset", one.name, list(with_inset(one.frames, other.frames, inset)), None)
        change = rng.choice(("letterbox", "banner", "ticker", "pane"))
        ways = {"letterbox": letterboxed, "banner": banner, "ticker": ticker, "pane": behind_a_pane}
        yield Case(change, one.name, list(ways[change](one.frames, rng)))
        for layout, boxes_at in LAYOUTS.items():
            if layout in ("grid of 4", "3 columns") and rng.random() < 0.5:
                continue
            boxes = boxes_at(rng.choice((0.5, 0.5, rng.uniform(0.35, 0.65))))
            parts = [one, *rng.sample([p for p in pure if p.name[:3] != one.name[:3]],
                                      len(boxes) - 1)]  # fmt: skip
            line_px, line = rng.choice((0, 0, 2, 4, 8)), rng.choice((0, 0, 255, 128))
            frames = joined([part.frames for part in parts], boxes, line_px, line)
            told = f"{' | '.join(part.name for part in parts)}, line {line_px} of {line}"
            yield Case(layout, told, frames, True)
    yield from scenes(half, rng, 2)


def analyzed(case: Case, folder: Path) -> Track:
    """The track of a clip of these frames, encoded and analyzed."""
    path = folder / "clip.mp4"
    options = {"preset": "veryfast", "crf": "26"}
    write_video(path, case.frames, fps=Fraction(FPS), options=options)
    with path.open("rb") as reader:
        return analyze_source(
            reader, str(path), source_id="0" * 32, n_bytes=path.stat().st_size,
            instruments=Instruments(network=StillNetwork()), config=AnalyzeConfig(),
            decoder_threads=1,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    media = os.environ.get("CURATE_TEST_MEDIA", "../shared/media")
    parser.add_argument("--media", type=Path, default=Path(media))
    parser.add_argument("--footage", type=Path, default=Path("../shared/footage"))
    parser.add_argument("--half", choices=("tune", "blind"), default="blind")
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--keep", type=Path, help="write the tracks there, to set bounds on")
    parser.add_argument("--verbose", action="store_true", help="name what was missed and invented")
    args = parser.parse_args()
    cv2.setNumThreads(1)
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    kept = []
    totals = {"divided": 0, "found": 0, "plain": 0, "false": 0}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(args.footage, args.media, args.half, args.seed):
            track = analyzed(case, Path(folder))
            if args.keep:
                kept.append((case.kind, case.of, case.is_divided, track))
            scores = BUILT_IN.score_clip(
                track, Span(start_frame=0, end_frame=track.n_frames, shot=0)
            )
            value, inset = scores["split_screen"], scores["picture_in_picture"]
            is_found = value is not None and value > FOUND
            row = counts[case.kind]
            row[0] += 1
            row[1] += is_found
            row[2] += value is None
            row[3] += inset is not None and inset > 0.005
            if case.is_divided is not None:
                totals["divided" if case.is_divided else "plain"] += 1
                totals["found" if case.is_divided else "false"] += is_found
                if args.verbose and is_found != case.is_divided:
                    word = "missed" if case.is_divided else "invented"
                    print(word, case.kind, case.of, value, flush=True)
    if args.keep:
        args.keep.write_bytes(pickle.dumps(kept))
    print("kind                 clips  split_screen  null  picture_in_picture")
    for kind, row in counts.items():
        print(f"{kind:20s} {row[0]:5d}  {row[1]:12d}  {row[2]:4d}  {row[3]:18d}")
    found, false = totals["found"], totals["false"]
    summary = {
        "half": args.half, "seed": args.seed, **totals,
        "recall": found / max(totals["divided"], 1), "precision": found / max(found + false, 1),
    }  # fmt: skip
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
