"""Transition effects of editing programs and slide shows, for training films.

An effect draws its parameters once, and then maps progress and two pictures to a picture. The
effects for tuning and for blind scoring are other functions, in `shot_effects_held_out.py`: an
effect is used in one part alone.

Shape letters: F frames, H, W height and width.
"""

# ruff: noqa: N803 - shape letters

from collections.abc import Callable
from functools import cache

import cv2
import numpy as np
from numpy.typing import NDArray
from shot_transitions import Clip, Map, Rng, progress

Picture = NDArray[np.float32]
"""RGB from 0 to 255, float32 [H, W, 3]."""
Effect = Callable[[float, Picture, Picture], Picture]
"""Returns the picture at a progress between 0 (the first picture) and 1 (the second)."""


@cache
def grid(high: int, wide: int) -> tuple[Map, Map]:
    """Returns columns and rows of all pixels, from 0 to 1, float32 [H, W] each."""
    v, u = np.mgrid[0:high, 0:wide].astype(np.float32)
    return u / np.float32(wide - 1), v / np.float32(high - 1)


def at(picture: Picture, u: Map, v: Map, border: int = cv2.BORDER_REFLECT) -> Picture:
    """Samples a picture at columns and rows from 0 to 1."""
    high, wide = picture.shape[:2]
    x, y = np.float32(wide - 1) * u, np.float32(high - 1) * v
    sampled = cv2.remap(
        picture, x.astype(np.float32), y.astype(np.float32), cv2.INTER_LINEAR, borderMode=border
    )
    return np.asarray(sampled, np.float32)


def mix(a: Picture, b: Picture, share: float | Map) -> Picture:
    """Mixes two pictures; `share` is that of the second, as a number or for each pixel."""
    part = np.asarray(share, np.float32)
    return np.asarray(a + (b - a) * (part[:, :, None] if part.ndim else part), np.float32)


def steps(low: float, high: float, values: Map | float) -> Map:
    """Rises smoothly from 0 at `low` to 1 at `high`."""
    x = np.clip((np.asarray(values, np.float32) - low) / (high - low), 0, 1)
    return np.asarray(x * x * (3 - 2 * x), np.float32)


def bump(p: float) -> float:
    """Returns 0 at both ends of the progress and 1 in its middle."""
    return float(np.sin(np.pi * p))


def cells(rng: Rng, rows: int, columns: int, high: int, wide: int) -> Map:
    """Returns a random number from 0 to 1 for each cell of a grid, float32 [H, W]."""
    values = rng.random((rows, columns)).astype(np.float32)
    return np.asarray(cv2.resize(values, (wide, high), interpolation=cv2.INTER_NEAREST), np.float32)


def smooth_noise(rng: Rng, n: int, high: int, wide: int) -> Map:
    """Returns smooth noise with about `n` spots in a row, from 0 to 1, float32 [H, W]."""
    coarse = rng.standard_normal((max(2, n * high // wide), max(2, n))).astype(np.float32)
    noise = cv2.resize(coarse, (wide, high), interpolation=cv2.INTER_CUBIC)
    low, top = float(noise.min()), float(noise.max())
    return np.asarray((noise - low) / max(top - low, 1e-6), np.float32)


def luma(picture: Picture) -> Map:
    """Returns brightness from 0 to 1, float32 [H, W]."""
    return np.asarray(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), np.float32) / np.float32(255)


def _middle_share(p: float, wide: float) -> float:
    return float(np.clip((p - 0.5) / wide + 0.5, 0, 1))


def _ripple(rng: Rng, high: int, wide: int) -> Effect:
    u, v = grid(high, wide)
    x, y = rng.uniform(0.2, 0.8, 2)
    radius = np.hypot((u - x) * wide / high, v - y) + 1e-3
    waves, speed, depth = rng.uniform(15, 60), rng.uniform(5, 25), rng.uniform(0.02, 0.08)
    fade = rng.uniform(0.3, 1)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        shift = np.float32(depth * bump(p)) * np.sin(waves * radius - speed * p)
        du, dv = shift * (u - x) / radius, shift * (v - y) / radius
        return mix(at(a, u + du, v + dv), at(b, u + du, v + dv), _middle_share(p, fade))

    return effect


def _swirl(rng: Rng, high: int, wide: int) -> Effect:
    u, v = grid(high, wide)
    dx, dy = (u - 0.5) * np.float32(wide / high), v - 0.5
    most, fade = rng.choice([-1, 1]) * rng.uniform(3, 14), rng.uniform(0.15, 0.8)
    reach = np.clip(1 - np.hypot(dx, dy) / rng.uniform(0.5, 1.1), 0, 1) ** 2

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        angle = np.float32(most * bump(p)) * reach
        cos, sin = np.cos(angle), np.sin(angle)
        at_u = (dx * cos - dy * sin) * np.float32(high / wide) + np.float32(0.5)
        at_v = dx * sin + dy * cos + np.float32(0.5)
        return mix(at(a, at_u, at_v), at(b, at_u, at_v), _middle_share(p, fade))

    return effect


def warped(picture: Picture, corners: NDArray[np.floating], onto: Picture) -> Picture:
    """Draws a picture onto another, with its corners (clockwise, 0 to 1, [4, 2]) moved."""
    high, wide = picture.shape[:2]
    size = np.array([wide, high], np.float32)
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], np.float32) * size
    goal = (np.asarray(corners, np.float32) * size).astype(np.float32)
    if abs(cv2.contourArea(goal)) < 4:
        return onto
    matrix = cv2.getPerspectiveTransform(square, goal)
    moved = cv2.warpPerspective(picture, matrix, (wide, high))
    inside = cv2.warpPerspective(np.ones((high, wide), np.float32), matrix, (wide, high))
    return mix(onto, np.asarray(moved, np.float32), np.asarray(inside, np.float32))


def _cube(rng: Rng, high: int, wide: int) -> Effect:
    way, depth = rng.random() < 0.5, rng.uniform(0.1, 0.4)
    ground, level = float(rng.choice([0, 0, 30, 255])), rng.random() < 0.75

    def face(picture: Picture, left: float, right: float, tilt: float, onto: Picture) -> Picture:
        near, far = (0.0, tilt) if tilt > 0 else (-tilt, 0.0)
        corners = [[left, near], [right, far], [right, 1 - far], [left, 1 - near]]
        if not level:
            corners = [[y, x] for x, y in (corners[0], corners[3], corners[2], corners[1])]
        return warped(picture, np.array(corners), onto)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        if way:
            a, b, p = b, a, 1 - p
        edge, onto = 1 - p, np.full_like(a, ground)
        onto = face(a, 0.0, edge, -depth * p, onto)
        return face(b, edge, 1.0, depth * (1 - p), onto)

    return effect


def _page_curl(rng: Rng, high: int, wide: int) -> Effect:
    u, v = grid(high, wide)
    slant, radius = rng.uniform(-0.6, 0.6), rng.uniform(0.05, 0.2)
    flip, back = rng.random() < 0.5, rng.uniform(0.3, 1)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        x = (1 - u) if flip else u
        fold = (1 + radius + abs(slant)) * (1 - p) - radius - abs(slant) * p
        beyond = x + np.float32(slant) * (v - 0.5) - np.float32(fold)
        # Up to the fold the page lies flat; then its back shows what lies behind the fold.
        mirrored = x - 2 * beyond + np.float32(np.pi * radius)
        is_back = (beyond > -radius) & (beyond < radius) & (mirrored <= 1)
        shade = 1 - 0.6 * np.clip(1 - np.maximum(beyond, 0) / (2 * radius), 0, 1)
        out = np.where((beyond < 0)[:, :, None], a, b * shade[:, :, None].astype(np.float32))
        behind = at(a, 1 - mirrored if flip else mirrored, v) * np.float32(back)
        return np.where(is_back[:, :, None], behind + 255 * np.float32(0.5 * (1 - back)), out)

    return effect


def _hexagons(rng: Rng, high: int, wide: int) -> Effect:
    u, v = grid(high, wide)
    most, fade = rng.uniform(0.06, 0.25), rng.uniform(0.1, 0.8)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        size = max(most * bump(p), 1.0 / wide)
        row = np.round(v / np.float32(size * 0.75))
        odd = np.float32(0.5) * (row % 2)
        column = np.round(u * np.float32(wide / high) / np.float32(size) - odd)
        at_u = (column + odd) * np.float32(size * high / wide)
        at_v = row * np.float32(size * 0.75)
        return mix(at(a, at_u, at_v), at(b, at_u, at_v), _middle_share(p, fade))

    return effect


def _dots(rng: Rng, high: int, wide: int) -> Effect:
    u, v = grid(high, wide)
    n = rng.uniform(4, 24)
    x, y = u * np.float32(n * wide / high) % 1 - 0.5, v * np.float32(n) % 1 - 0.5
    lead = rng.choice([0.0, 0.5, 0.8])
    start = np.float32(lead) * (u if rng.random() < 0.5 else np.hypot(u - 0.5, v - 0.5))

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        radius = np.float32(0.75) * np.clip((p - start) / np.float32(1 - lead + 1e-3), 0, 1)
        return mix(a, b, (np.hypot(x, y) < radius).astype(np.float32))

    return effect


def _burn(rng: Rng, high: int, wide: int) -> Effect:
    u, _ = grid(high, wide)
    map_ = smooth_noise(rng, int(rng.integers(4, 14)), high, wide)
    map_ = map_ * np.float32(0.6) + u * np.float32(rng.uniform(0, 0.4))
    glow, width = np.array([255, rng.uniform(60, 180), 20], np.float32), rng.uniform(0.03, 0.15)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        edge = np.float32(p * (1 + 2 * width) - width) - map_
        out = mix(a, b, (edge > 0).astype(np.float32))
        lit = np.clip(1 - np.abs(edge) / np.float32(width), 0, 1)
        dark = np.clip(1 + edge / np.float32(2 * width), 0, 1) * (edge < 0)
        lit_out = out * (1 - dark[:, :, None]) + glow * lit[:, :, None]
        return np.asarray(np.clip(lit_out, 0, 255), np.float32)

    return effect


def _kaleidoscope(rng: Rng, high: int, wide: int) -> Effect:
    u, v = grid(high, wide)
    parts, spin = float(rng.integers(3, 9)), rng.uniform(-4, 4)
    radius, angle = np.hypot(u - 0.5, v - 0.5), np.arctan2(v - 0.5, u - 0.5)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        turned = angle + np.float32(spin * p)
        folded = np.abs((turned % np.float32(2 * np.pi / parts)) - np.float32(np.pi / parts))
        at_u, at_v = 0.5 + radius * np.cos(folded), 0.5 + radius * np.sin(folded)
        whole = np.float32(bump(p) > 0.35) if parts > 5 else np.float32(min(1, 2 * bump(p)))
        shown = mix(a, b, float(steps(0.3, 0.7, p)))
        return mix(shown, at(shown, at_u.astype(np.float32), at_v.astype(np.float32)), float(whole))

    return effect


def _cross_warp(rng: Rng, high: int, wide: int) -> Effect:
    u, v = grid(high, wide)
    along = [u, v, 1 - u, 1 - v][int(rng.integers(4))]

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        x = steps(0, 1, np.asarray(2 * p - 1 + along, np.float32))
        of_a = at(a, (u - 0.5) * (1 - x) + 0.5, (v - 0.5) * (1 - x) + 0.5)
        return mix(of_a, at(b, (u - 0.5) * x + 0.5, (v - 0.5) * x + 0.5), x)

    return effect


def _colour_distance(rng: Rng, high: int, wide: int) -> Effect:
    power = rng.uniform(2, 6)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        apart = np.linalg.norm(a - b, axis=2) / np.float32(442)
        share = np.clip(
            p ** (1 + power * apart) if power < 4 else (p - apart) + p * 2 * apart, 0, 1
        )
        return mix(a, b, np.asarray(share, np.float32))

    return effect


def _squares(rng: Rng, high: int, wide: int) -> Effect:
    rows = int(rng.integers(4, 14))
    when = cells(rng, rows, rows * 16 // 9, high, wide)
    soft = float(rng.choice([0.01, 0.2, 0.6]))

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        return mix(a, b, np.clip((np.float32(p * (1 + soft)) - when) / np.float32(soft), 0, 1))

    return effect


def _melt(rng: Rng, high: int, wide: int) -> Effect:
    u, v = grid(high, wide)
    columns = cells(rng, 1, int(rng.integers(12, 60)), high, wide)
    lumen, down = rng.uniform(0, 1), rng.random() < 0.8

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        late = columns * np.float32(1 - lumen) + luma(b) * np.float32(lumen)
        fall = np.clip(np.float32(2 * p) - late, 0, 1).astype(np.float32)
        moved = v - fall if down else v + fall
        gone = (moved < 0) | (moved > 1)
        return np.where(gone[:, :, None], b, at(a, u, moved, cv2.BORDER_REPLICATE))

    return effect


def _displacement(rng: Rng, high: int, wide: int) -> Effect:
    u, v = grid(high, wide)
    turn, depth = rng.uniform(0, 2 * np.pi), rng.uniform(0.1, 0.6)
    by = smooth_noise(rng, int(rng.integers(3, 20)), high, wide) if rng.random() < 0.4 else None

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        shift = (luma(b) if by is None else by) * np.float32(depth)
        du, dv = shift * np.float32(np.cos(turn)), shift * np.float32(np.sin(turn))
        of_a = at(a, u + du * np.float32(p), v + dv * np.float32(p))
        of_b = at(b, u - du * np.float32(1 - p), v - dv * np.float32(1 - p))
        return mix(of_a, of_b, p)

    return effect


def _snow(rng: Rng, high: int, wide: int) -> Effect:
    size, reach = int(rng.integers(1, 5)), rng.uniform(0.3, 1)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        noise = rng.random((high // size + 1, wide // size + 1)).astype(np.float32)
        spots = np.kron(noise, np.ones((size, size), np.float32))[:high, :wide]
        share = np.float32(min(1.0, bump(p) * 1.5) * reach)
        return mix(a if p < 0.5 else b, (spots * 255)[:, :, None].repeat(3, 2), float(share))

    return effect


def _bounce(rng: Rng, high: int, wide: int) -> Effect:
    u, v = grid(high, wide)
    n, shade = int(rng.integers(1, 4)), rng.uniform(0.3, 1)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        height = np.float32(abs(np.cos(np.pi * (n + 0.5) * p)) * (1 - p))
        shown = at(b, u, np.clip(v + height, 0, 1), cv2.BORDER_REPLICATE)
        above = (v < 1 - height)[:, :, None]
        return np.where(above, shown, a * np.float32(1 - (1 - shade) * p))

    return effect


def _fly_eye(rng: Rng, high: int, wide: int) -> Effect:
    u, v = grid(high, wide)
    n, zoom, split = rng.uniform(6, 40), rng.uniform(0.02, 0.15), rng.uniform(0, 0.04)
    du, dv = np.cos(np.float32(n) * u), np.cos(np.float32(n) * v)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        down = v + dv * np.float32(p * zoom)
        reach = [np.float32(p * (zoom + split * c)) for c in range(3)]
        planes = [at(a, u + du * reach[c], down)[..., c] for c in range(3)]
        of_a = np.stack(planes, axis=2)
        back = np.float32((1 - p) * zoom)
        return mix(of_a, at(b, u + du * back, v + dv * back), float(steps(0.2, 1, p)))

    return effect


def _slats(rng: Rng, high: int, wide: int) -> Effect:
    u, v = grid(high, wide)
    n, lead = int(rng.integers(4, 16)), rng.choice([0.0, 0.4])
    level = rng.random() < 0.5
    along = v if level else u
    number, inside = np.floor(along * n), along * n % 1 - np.float32(0.5)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        turn = np.clip(p * (1 + lead) - lead * number / n, 0, 1) * np.pi
        narrow = np.maximum(np.abs(np.cos(turn)), 1e-2)
        place = (number + 0.5 + inside / narrow) / n
        shown = np.abs(inside) < narrow / 2
        place = np.asarray(place, np.float32)
        of = [at(c, u if level else place, place if level else v) for c in (a, b)]
        out = np.where((turn < np.pi / 2)[:, :, None], *of)
        return np.asarray(out * shown[:, :, None], np.float32)

    return effect


def _block_shift(rng: Rng, high: int, wide: int) -> Effect:
    u, v = grid(high, wide)
    rows, most = int(rng.integers(4, 30)), rng.uniform(0.05, 0.5)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        shift = (cells(rng, rows, 1, high, wide) - np.float32(0.5)) * np.float32(most * bump(p))
        which = cells(rng, rows, int(rng.integers(1, 9)), high, wide) < p
        shown = np.where(which[:, :, None], b, a)
        split = np.float32(0.04 * bump(p))
        planes = [at(shown, u + shift + c * split, v)[..., c + 1] for c in (-1, 0, 1)]
        return np.stack(planes, axis=2)

    return effect


def _zoom_blur(rng: Rng, high: int, wide: int) -> Effect:
    u, v = grid(high, wide)
    x, y = rng.uniform(0.3, 0.7, 2)
    most, fade = rng.uniform(0.2, 0.8), rng.uniform(0.2, 1)

    def effect(p: float, a: Picture, b: Picture) -> Picture:
        shown = mix(a, b, _middle_share(p, fade))
        total = np.zeros_like(a)
        for k in range(7):
            scale = np.float32(1 - most * bump(p) * k / 7)
            total += at(shown, (u - x) * scale + np.float32(x), (v - y) * scale + np.float32(y))
        return total / np.float32(7)

    return effect


TRAIN: dict[str, Callable[[Rng, int, int], Effect]] = {
    "ripple": _ripple,
    "swirl": _swirl,
    "cube": _cube,
    "page_curl": _page_curl,
    "hexagons": _hexagons,
    "dots": _dots,
    "burn": _burn,
    "kaleidoscope": _kaleidoscope,
    "cross_warp": _cross_warp,
    "colour_distance": _colour_distance,
    "squares": _squares,
    "melt": _melt,
    "displacement": _displacement,
    "snow": _snow,
    "bounce": _bounce,
    "fly_eye": _fly_eye,
    "slats": _slats,
    "block_shift": _block_shift,
    "zoom_blur": _zoom_blur,
}
"""Effects of training films; each draws the parameters of one transition."""


def rendered(rng: Rng, of: Callable[[Rng, int, int], Effect], a_FHWC: Clip, b_FHWC: Clip) -> Clip:
    """Renders an effect over the last frames of one shot and the first ones of the next.

    Args:
        rng: Random generator.
        of: Draws the effect.
        a_FHWC: Frames of the first shot during the transition, uint8 [F, H, W, 3].
        b_FHWC: Frames of the second shot, likewise.

    Returns:
        uint8 [F, H, W, 3]; each frame belongs to the transition.
    """
    effect = of(rng, *a_FHWC.shape[1:3])
    out = np.empty_like(a_FHWC)
    for i, p in enumerate(progress(rng, len(out)).tolist()):
        shown = effect(p, a_FHWC[i].astype(np.float32), b_FHWC[i].astype(np.float32))
        out[i] = np.clip(shown.round(), 0, 255)
    return out
