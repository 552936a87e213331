"""Makes title cards: titles, chapters, names and rolling credits over several backgrounds."""

import random
from functools import partial
from typing import Literal

import cv2
import numpy as np
import tests_path  # noqa: F401
from film_shots import PHOTOGRAPHS, photograph
from overlays import drawn, lettering
from recorded_clips import (
    FPS,
    HEIGHT,
    SECONDS,
    WIDTH,
    Case,
    Footage,
    Maker,
    Part,
    Truth,
    enlarged,
    fitted,
)  # fmt: skip

from curator.tools.footage.scenes import Picture

WORDS = (
    "THE", "LAST", "RIVER", "Morning", "House", "A", "STORY", "of", "Light", "GARDEN", "Journey",
    "NORTH", "Winter", "Silent", "ROADS", "Part", "Two", "Directed", "by", "Anna", "Camera",
    "Music", "Jonas", "Okafor", "Editor", "Maria", "Silva", "PRODUCTIONS", "Chapter", "Three",
)  # fmt: skip


def _words(rng: random.Random, n: int) -> str:
    return " ".join(rng.sample(WORDS, n))


def _lines(picture: Picture, rows: list[tuple[str, int]], top: int, colour: tuple[int, int, int],
           rng: random.Random, gap: float = 1.5) -> Picture:  # fmt: skip
    style: Literal["plain", "outlined"] = rng.choice(("plain", "plain", "outlined"))
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
            shown = np.asarray(cv2.addWeighted(shown, at, frame, 1 - at, 0), np.uint8)
        made.append(shown)
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
