"""Transition effects that no head is trained on: for tuning, and for blind scoring.

They are written as those of `shot_effects.py`, which are for training, but are other functions. The
division was fixed before any film was made: `TUNE` is for choices, `BLIND` is scored once.
"""

from collections.abc import Callable

import cv2
import numpy as np
from shot_effects import (
    Effect,
    Picture,
    at,
    bump,
    cells,
    grid,
    luma,
    mix,
    smooth_noise,
    steps,
    warped,
)
from shot_transitions import Map, Rng


def _haze(rng: Rng, high: int, wide: int) -> Effect:
    """Both pictures shimmer as in hot air."""
    u, v = grid(high, wide)
    du, dv = (smooth_noise(rng, int(rng.integers(5, 16)), high, wide) - 0.5 for _ in range(2))
    depth = rng.uniform(0.1, 0.5)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        reach = np.float32(depth * bump(p))
        return mix(at(a, u + du * reach, v + dv * reach), at(b, u - du * reach, v - dv * reach), p)

    return effect


def _triangles(rng: Rng, high: int, wide: int) -> Effect:
    """Triangles of a tiling change one after the other."""
    u, v = grid(high, wide)
    n = int(rng.integers(3, 10))
    upper = (u * n * 16 / 9 % 1 > v * n % 1).astype(np.float32)
    when = cells(rng, n, n * 16 // 9, high, wide) * 0.7 + upper * np.float32(0.3)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        return mix(a, b, (when < p).astype(np.float32))

    return effect


def _overexposed(rng: Rng, high: int, wide: int) -> Effect:
    """The first picture burns out; the second recovers from white."""
    gain = rng.uniform(4, 20)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        shown = mix(a, b, float(steps(0.4, 0.6, p)))
        lit = (shown + np.float32(12 * bump(p))) * np.float32(1 + gain * bump(p) ** 2)
        return np.asarray(np.clip(lit, 0, 255), np.float32)

    return effect


def _film_roll(rng: Rng, high: int, wide: int) -> Effect:
    """A strip of film runs through the gate for some frames, as if it had slipped."""
    u, v = grid(high, wide)
    n, bar = int(rng.integers(1, 5)), rng.uniform(0, 0.08)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        along = v + np.float32(n * float(steps(0, 1, p)))
        inside = along % 1
        shown = np.where((along < n)[:, :, None], at(a, u, inside), at(b, u, inside))
        return np.asarray(shown * (inside > bar)[:, :, None], np.float32)

    return effect


def _gradient_morph(rng: Rng, high: int, wide: int) -> Effect:
    """Each picture flows along the slopes of the other's brightness."""
    u, v = grid(high, wide)
    depth = rng.uniform(0.5, 2)

    def flowed(of: Picture, by: Picture, share: float) -> Picture:
        slope = cv2.GaussianBlur(luma(by), (0, 0), wide / 30)
        dv, du = np.gradient(slope)
        reach = np.float32(depth * share)
        return at(of, u + du.astype(np.float32) * reach, v + dv.astype(np.float32) * reach)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        return mix(flowed(a, b, 4 * p), flowed(b, a, 4 * (1 - p)), p)

    return effect


def _doorway(rng: Rng, high: int, wide: int) -> Effect:
    """Two doors with the first picture open; the second picture comes near behind them."""
    depth, far = rng.uniform(0.1, 0.4), rng.uniform(0.3, 0.9)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        size, onto = far + (1 - far) * p, np.zeros_like(a)
        low, top = 0.5 - size / 2, 0.5 + size / 2
        onto = warped(b, np.array([[low, low], [top, low], [top, top], [low, top]]), onto)
        edge, tilt = 0.5 * (1 - p), depth * p
        for side in (0, 1):
            half = a.copy()
            half[:, wide // 2 :] = 0
            if side:
                half = np.ascontiguousarray(a[:, ::-1])
                half[:, wide // 2 :] = 0
            # The hinge is at the left edge; the half picture is as wide as twice the door.
            door = np.array([[0, 0], [edge, -tilt], [edge, 1 + tilt], [0, 1]])
            scaled = cv2.resize(half[:, : wide // 2], (wide, high))
            onto = np.ascontiguousarray(onto[:, ::-1]) if side else onto
            onto = warped(np.asarray(scaled, np.float32), door, onto)
            onto = np.ascontiguousarray(onto[:, ::-1]) if side else onto
        return onto

    return effect


def _wavy_shear(rng: Rng, high: int, wide: int) -> Effect:
    """Rows sway to and fro, more and more, while the pictures mix."""
    u, v = grid(high, wide)
    waves, depth, speed = rng.uniform(5, 40), rng.uniform(0.05, 0.3), rng.uniform(0, 20)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        shift = np.sin(np.float32(waves) * v + np.float32(speed * p))
        of_a = at(a, u + shift * np.float32(depth * p), v)
        return mix(
            of_a, at(b, u + shift * np.float32(depth * (1 - p)), v), float(steps(0.2, 0.8, p))
        )

    return effect


def _cross_hatch(rng: Rng, high: int, wide: int) -> Effect:
    """Strokes in two directions fill the picture from a point outwards."""
    u, v = grid(high, wide)
    strokes = cells(rng, high // 2, 1, high, wide) + cells(rng, 1, wide // 2, high, wide)
    x, y = rng.uniform(0, 1, 2)
    far = np.hypot(u - np.float32(x), v - np.float32(y))
    when = strokes / 2 * np.float32(0.6) + far / far.max() * np.float32(0.4)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        return mix(a, b, (when < p).astype(np.float32))

    return effect


def _accordion(rng: Rng, high: int, wide: int) -> Effect:
    """The first picture folds like a screen towards one side."""
    u, v = grid(high, wide)
    n, flip = int(rng.integers(3, 9)), rng.random() < 0.5

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        x = 1 - u if flip else u
        place = x / np.float32(max(1 - p, 1e-3))
        fold = np.abs(place * n % 2 - 1)
        shade = 1 - np.float32(0.6 * p) * fold
        lean = (v - 0.5) * (1 + np.float32(0.3 * p) * fold) + np.float32(0.5)
        shown = at(a, 1 - place if flip else place, lean) * shade[:, :, None]
        return np.where((place <= 1)[:, :, None], shown, b)

    return effect


def _tile_flip(rng: Rng, high: int, wide: int) -> Effect:
    """Tiles turn about their own axes, each at its own time."""
    u, v = grid(high, wide)
    rows = int(rng.integers(2, 8))
    columns = rows * 16 // 9
    start = cells(rng, rows, columns, high, wide) * np.float32(0.6)
    middle = (np.floor(u * columns) + np.float32(0.5)) / columns

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        turn = np.clip((p - start) / np.float32(0.4), 0, 1) * np.float32(np.pi)
        narrow = np.maximum(np.abs(np.cos(turn)), 1e-2)
        place = middle + (u - middle) / narrow
        inside = np.abs(place - middle) <= 0.5 / columns
        shown = np.where((turn < np.pi / 2)[:, :, None], at(a, place, v), at(b, place, v))
        return np.asarray(shown * inside[:, :, None], np.float32)

    return effect


def _card_swap(rng: Rng, high: int, wide: int) -> Effect:
    """Both pictures are cards; the first goes behind the second, over a plain ground."""
    way, ground = rng.choice([-1, 1]), float(rng.choice([0, 0, 60, 230]))
    reach, small = rng.uniform(0.3, 0.6), rng.uniform(0.4, 0.7)

    def card(of: Picture, x: float, size: float, onto: Picture) -> Picture:
        low, top = 0.5 - size / 2, 0.5 + size / 2
        corners = [[low + x, low], [top + x, low], [top + x, top], [low + x, top]]
        return warped(of, np.array(corners), onto)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        onto, away = np.full_like(a, ground), way * reach * bump(p)
        sizes = (
            1 - (1 - small) * float(steps(0, 0.7, p)),
            small + (1 - small) * float(steps(0.3, 1, p)),
        )
        cards = [(a, away, sizes[0]), (b, -away, sizes[1])]
        for of, x, size in cards if p > 0.5 else cards[::-1]:
            onto = card(of, x, size, onto)
        return onto

    return effect


def _posterized(rng: Rng, high: int, wide: int) -> Effect:
    """The colours become few and then one picture's few become the other's."""
    least = rng.uniform(1.5, 4)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        levels = np.float32(least + 60 * (1 - bump(p)) ** 3)
        shown = mix(a, b, float(steps(0.35, 0.65, p)))
        return np.asarray(np.round(shown / 255 * levels) / levels * 255, np.float32)

    return effect


def _multiplied(rng: Rng, high: int, wide: int) -> Effect:
    """The pictures lie over each other as slides before a lamp."""
    ease = rng.uniform(0.6, 1.6)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        both = a * b / np.float32(255)
        return mix(a, both, (2 * p) ** ease) if p < 0.5 else mix(both, b, (2 * p - 1) ** ease)

    return effect


def _stretched(rng: Rng, high: int, wide: int) -> Effect:
    """A line moves over the picture and leaves its own colours behind as stripes."""
    u, v = grid(high, wide)
    flip, level = rng.random() < 0.5, rng.random() < 0.5

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        along = v if level else u
        along = 1 - along if flip else along
        of, line = (a, 1 - 2 * p) if p < 0.5 else (b, 2 * p - 1)
        place = np.minimum(along, np.float32(line))
        place = 1 - place if flip else place
        return at(of, u if level else place, place if level else v)

    return effect


def _falling_strips(rng: Rng, high: int, wide: int) -> Effect:
    """Strips of the first picture fall out of the frame, one after the other."""
    u, v = grid(high, wide)
    n = int(rng.integers(4, 20))
    order = (rng.permutation(n) if rng.random() < 0.6 else np.arange(n)) / n
    start = order[np.minimum((u * n).astype(int), n - 1)].astype(np.float32) * np.float32(0.6)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        fall = np.clip((p - start) / np.float32(0.4), 0, 1) ** 2
        moved = v - fall.astype(np.float32)
        return np.where((moved < 0)[:, :, None], b, at(a, u, moved, cv2.BORDER_REPLICATE))

    return effect


def _shuffled(rng: Rng, high: int, wide: int) -> Effect:
    """Tiles trade places until nothing is in its place; the second picture comes together."""
    u, v = grid(high, wide)
    rows = int(rng.integers(3, 9))
    columns = rows * 16 // 9
    moves = [cells(rng, rows, columns, high, wide) - np.float32(0.5) for _ in range(2)]

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        reach = np.float32(bump(p))
        du, dv = (
            np.round(move * reach * n) / n for move, n in zip(moves, (columns, rows), strict=True)
        )
        return at(a if p < 0.5 else b, u + du.astype(np.float32), v + dv.astype(np.float32))

    return effect


def _nested(rng: Rng, high: int, wide: int) -> Effect:
    """A small copy of the second picture in the first grows in steps, as in facing mirrors."""
    u, v = grid(high, wide)
    ratio, turn = rng.uniform(0.4, 0.8), rng.uniform(-0.6, 0.6)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        out = a
        for k in range(4, -1, -1):
            size = np.float32(p * ratio**k)
            if size < 0.02:
                continue
            angle = np.float32(turn * (1 - p) * k)
            dx, dy = u - np.float32(0.5), v - np.float32(0.5)
            x = (dx * np.cos(angle) - dy * np.sin(angle)) / size
            y = (dx * np.sin(angle) + dy * np.cos(angle)) / size
            inside = (np.maximum(np.abs(x), np.abs(y)) <= 0.5)[:, :, None]
            out = np.where(inside, at(b if k % 2 == 0 or p > 0.8 else a, x + 0.5, y + 0.5), out)
        return mix(out, b, float(steps(0.85, 1, p)))

    return effect


def _line_drawing(rng: Rng, high: int, wide: int) -> Effect:
    """The first picture fades to its outlines, and the second appears from its own."""
    paper = rng.random() < 0.5

    def drawn(of: Picture) -> Picture:
        grey = luma(of)
        slope = np.hypot(cv2.Sobel(grey, cv2.CV_32F, 1, 0), cv2.Sobel(grey, cv2.CV_32F, 0, 1))
        line = np.clip(slope * 1.5, 0, 1)[:, :, None].repeat(3, 2)
        return np.asarray((1 - line if paper else line) * 255, np.float32)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        if p < 0.35:
            return mix(a, drawn(a), p / 0.35)
        if p > 0.65:
            return mix(drawn(b), b, (p - 0.65) / 0.35)
        return mix(drawn(a), drawn(b), (p - 0.35) / 0.3)

    return effect


def _torn_halves(rng: Rng, high: int, wide: int) -> Effect:
    """The first picture is torn in two, and both parts move away."""
    u, v = grid(high, wide)
    angle, rough = rng.uniform(0, np.pi), rng.uniform(0, 0.08)
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    edge = smooth_noise(rng, 20, high, wide) * np.float32(rough)
    distance = np.float32(rng.uniform(0.6, 0.75))

    def side(u_: Map, v_: Map) -> Map:
        across = (u_ - np.float32(0.5)) * cos + (v_ - np.float32(0.5)) * sin
        return np.asarray(across + edge, np.float32)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        out, move = b, distance * np.float32(p)
        for way in (-1, 1):
            at_u, at_v = u - cos * move * way, v - sin * move * way
            inside = (
                (side(at_u, at_v) * way > 0)
                & (np.abs(at_u - 0.5) <= 0.501)
                & (np.abs(at_v - 0.5) <= 0.501)
            )
            out = np.where(inside[:, :, None], at(a, at_u, at_v), out)
        return out

    return effect


def _magnifier(rng: Rng, high: int, wide: int) -> Effect:
    """A lens wanders over the picture; what it passed shows the second one."""
    u, v = grid(high, wide)
    size, zoom = rng.uniform(0.2, 0.4), rng.uniform(1.3, 2.5)
    wave, flip = rng.uniform(0, 6), rng.random() < 0.5

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        x = -size + (1 + 2 * size) * p
        x, y = (1 - x if flip else x), 0.5 + 0.25 * np.sin(wave * p)
        behind = (u > x) if flip else (u < x)
        far = np.hypot((u - np.float32(x)) * np.float32(wide / high), v - np.float32(y))
        near = (far < size)[:, :, None]
        base = np.where(behind[:, :, None], b, a)
        shown = at(b, (u - np.float32(x)) / np.float32(zoom) + np.float32(x),
                   (v - np.float32(y)) / np.float32(zoom) + np.float32(y))  # fmt: skip
        return np.where(near, shown, base)

    return effect


def _honeycomb(rng: Rng, high: int, wide: int) -> Effect:
    """Cells of a honeycomb open in waves from a side."""
    u, v = grid(high, wide)
    n = rng.uniform(4, 14)
    row = np.round(v * np.float32(n))
    odd = np.float32(0.5) * (row % 2)
    column = np.round(u * np.float32(n * wide / high) - odd)
    du = u * np.float32(n * wide / high) - odd - column
    dv = v * np.float32(n) - row
    far = np.maximum(np.abs(du), np.abs(du) / 2 + np.abs(dv) * np.float32(0.866))
    lead = column / np.float32(n * wide / high) * np.float32(0.6)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        open_ = np.clip((p - lead) / np.float32(0.4), 0, 1) * np.float32(0.75)
        return mix(a, b, (far < open_).astype(np.float32))

    return effect


Draw = Callable[[Rng, int, int], Effect]

TUNE: dict[str, Draw] = {
    "haze": _haze,
    "triangles": _triangles,
    "overexposed": _overexposed,
    "film_roll": _film_roll,
    "gradient_morph": _gradient_morph,
}
"""Effects for choices among heads."""
BLIND: dict[str, Draw] = {
    "doorway": _doorway,
    "wavy_shear": _wavy_shear,
    "cross_hatch": _cross_hatch,
    "accordion": _accordion,
    "tile_flip": _tile_flip,
    "card_swap": _card_swap,
    "posterized": _posterized,
    "multiplied": _multiplied,
    "stretched": _stretched,
    "falling_strips": _falling_strips,
    "shuffled": _shuffled,
    "nested": _nested,
    "line_drawing": _line_drawing,
    "torn_halves": _torn_halves,
    "magnifier": _magnifier,
    "honeycomb": _honeycomb,
}
"""Effects of blind films, scored once."""
