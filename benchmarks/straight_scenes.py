"""Makes single pictures with straight edges or text of their own, under a moving camera."""

import random
from collections.abc import Callable
from functools import partial

import cv2
import numpy as np
import tests_path  # noqa: F401
from drawn_over import COLOURS
from film_shots import PHOTOGRAPHS, photograph, texture
from overlays import drawn, lettering
from recorded_clips import FPS, HEIGHT, NOTHING, SECONDS, WIDTH, Case, Maker, Part, fitted

from curator.tools.footage.scenes import Picture

HOW = ("static", "pan", "tilt", "shake", "zoom", "passer-by", "two people")


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
    picture: Picture = np.asarray(cv2.resize(photo, (width, height)), np.uint8)
    for _ in range(rng.choice((1, 1, 2, 3))):
        words = rng.choice(("BAKERY", "Town hall 200 m", "EXIT 14", "Hotel", "SALE 50% OFF"))
        colour = rng.choice(((20, 30, 60), (240, 240, 230), (160, 20, 20)))
        size = rng.choice((30, 45, 70, 100))
        patch = lettering(words, size_px=size, style="plain", colour=colour)
        board = np.full(patch.shape, (236, 232, 220, 255), np.uint8)
        board[..., :3] = rng.choice(((236, 232, 220), (40, 60, 90), (120, 120, 110)))
        tall, wide = patch.shape[:2]
        left, top = rng.uniform(0.0, 0.8) * (width - wide / 2), rng.uniform(0.1, 0.8) * height
        corners = np.array([[0, 0], [wide, 0], [wide, tall], [0, tall]], np.float32)
        seen = corners + np.array([left, top], np.float32)
        shifts = [[rng.gauss(0, 0.05 * tall), rng.gauss(0, 0.12 * tall)] for _ in seen]
        seen = seen + np.array(shifts, np.float32)
        matrix = cv2.getPerspectiveTransform(corners, seen.astype(np.float32))
        for layer in (board, patch):
            warped = cv2.warpPerspective(layer, matrix, (width, height))
            picture = drawn(picture, np.asarray(warped, np.uint8), 0, 0)
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
        matrix = np.array(
            [[scale, 0, -x * scale - (scale - 1) * WIDTH / 2],
             [0, scale, -y * scale - (scale - 1) * HEIGHT / 2]],
            np.float32,
        )  # fmt: skip
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
        "photograph": lambda rng: np.asarray(cv2.resize(photo(rng), size), np.uint8),
        "sign": lambda rng: signs(rng, *size, photo(rng)),
    }  # fmt: skip

    def case(rng: random.Random, name: str, how: str) -> Case:
        frames = filmed(makers[name](rng), how, rng, fitted(photo(rng), 120, 270))
        return Case(kind=f"scene: {name}", of=how, frames=frames, truth=NOTHING)

    return {f"{name} {how}": partial(case, name=name, how=how) for name in makers for how in HOW}
