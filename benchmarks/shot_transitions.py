"""Renders transitions between two shots, as editing programs do, with numpy and OpenCV.

A transition takes the last frames of one shot and the first frames of the next, both in motion.
Most are a mask that grows over the picture (wipes, irises, blinds, keys). Some mix the two
(dissolves, fades), and some move them (pushes, zooms, whip pans).

Shape letters: F frames, H, W height and width, C channels.
"""

# ruff: noqa: N803 - shape letters

from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 192, 108

Clip = NDArray[np.uint8]
"""Frames, uint8 [F, H, W, 3]."""
Map = NDArray[np.float32]
"""float32 [H, W]."""
Rng = np.random.Generator

_Y, _X = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float32)
_U, _V = _X / (WIDTH - 1), _Y / (HEIGHT - 1)


def noise_map(rng: Rng, cells: int) -> Map:
    """Returns a smooth random map with values uniform from 0 to 1."""
    coarse = rng.standard_normal((max(2, cells * 9 // 16), max(2, cells))).astype(np.float32)
    smooth = cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    return _ranked(np.asarray(smooth, np.float32))


def _ranked(values: Map) -> Map:
    order = np.argsort(values, axis=None, kind="stable")
    ranks = np.empty(order.size, np.float32)
    ranks[order] = np.linspace(0, 1, order.size, dtype=np.float32)
    return ranks.reshape(values.shape)


def _spread(values: Map) -> Map:
    low, high = float(values.min()), float(values.max())
    return (values - low) / max(high - low, 1e-6)


def progress(rng: Rng, n: int) -> NDArray[np.float32]:
    """Returns the progress at each frame between two shots, between 0 and 1, maybe eased."""
    p = np.arange(1, n + 1, dtype=np.float32) / (n + 1)
    ease = rng.choice(["linear", "linear", "smooth", "in", "out"])
    if ease == "smooth":
        p = p * p * (3 - 2 * p)
    elif ease == "in":
        p = p**1.7
    elif ease == "out":
        p = 1 - (1 - p) ** 1.7
    return np.asarray(p, np.float32)


def _mixed(a_HWC: NDArray[np.uint8], b_HWC: NDArray[np.uint8], share: Map) -> NDArray[np.uint8]:
    """Mixes two pictures; `share` is the second picture's share at each pixel."""
    a = a_HWC.astype(np.float32)
    return np.asarray(a + (b_HWC - a) * share[:, :, None], np.float32).round().astype(np.uint8)


def _line(rng: Rng) -> Map:
    angle = rng.choice([0, 90, 180, 270, 45, 135, 225, 315, rng.uniform(0, 360)])
    turn = np.deg2rad(angle)
    return _spread(np.float32(np.cos(turn)) * _X + np.float32(np.sin(turn)) * _Y)


def _corner(rng: Rng) -> Map:
    u = _U if rng.random() < 0.5 else 1 - _U
    v = _V if rng.random() < 0.5 else 1 - _V
    nearest: Map = np.maximum(u, v) if rng.random() < 0.7 else np.minimum(u, v)
    return nearest


def _clock(rng: Rng) -> Map:
    x, y = WIDTH * rng.uniform(0.4, 0.6), HEIGHT * rng.uniform(0.4, 0.6)
    angle = np.arctan2(_Y - y, _X - x) / (2 * np.pi) + rng.uniform(0, 1)
    hands = int(rng.choice([1, 1, 2, 4]))
    turned = np.asarray(angle * hands % 1, np.float32)
    return turned if rng.random() < 0.5 else 1 - turned


def _iris(rng: Rng) -> Map:
    x, y = rng.uniform(0.3, 0.7), rng.uniform(0.3, 0.7)
    shape = rng.choice(["circle", "box", "diamond", "star"])
    dx, dy = np.abs(_U - x), np.abs(_V - y)
    if shape == "circle":
        radius = np.hypot((_U - x) * 16 / 9, _V - y)
    elif shape == "box":
        radius = np.maximum(dx, dy)
    elif shape == "diamond":
        radius = dx + dy
    else:
        angle = np.arctan2(_V - y, (_U - x) * 16 / 9)
        radius = np.hypot((_U - x) * 16 / 9, _V - y) * (1 + 0.35 * np.cos(5 * angle))
    map_ = _spread(np.asarray(radius, np.float32))
    return map_ if rng.random() < 0.6 else 1 - map_


def _doors(rng: Rng) -> Map:
    along = _U if rng.random() < 0.5 else _V
    map_: Map = np.abs(along - 0.5) * 2
    return map_ if rng.random() < 0.5 else 1 - map_


def _blinds(rng: Rng) -> Map:
    along = rng.choice(["u", "v", "uv"])
    base = _U if along == "u" else _V if along == "v" else (_U + _V) / 2
    n_slats, lead = int(rng.integers(3, 14)), rng.choice([0.0, 0.3, 0.6])
    base = base if rng.random() < 0.5 else 1 - base
    map_ = (base * n_slats % 1) * (1 - lead) + np.floor(base * n_slats) / n_slats * lead
    return _spread(np.asarray(map_, np.float32))


def _checks(rng: Rng) -> Map:
    n = int(rng.integers(4, 16))
    row, column = np.floor(_V * n * 9 / 16).astype(int), np.floor(_U * n).astype(int)
    times = rng.random((n + 1, n + 1)).astype(np.float32)
    if rng.random() < 0.3:
        times = ((np.add.outer(np.arange(n + 1), np.arange(n + 1)) % 2) * 0.5).astype(np.float32)
        return _spread(times[row, column] + 0.5 * (_U * n % 1))
    of_tiles: Map = times[row, column]
    return of_tiles


def _grains(rng: Rng) -> Map:
    size = int(rng.choice([1, 1, 2, 4]))
    grains = rng.random((HEIGHT // size + 1, WIDTH // size + 1)).astype(np.float32)
    return np.asarray(np.kron(grains, np.ones((size, size), np.float32))[:HEIGHT, :WIDTH])


def _wind(rng: Rng) -> Map:
    is_level = rng.random() < 0.5
    n, along = (HEIGHT, _U) if is_level else (WIDTH, _V)
    jitter = rng.random(n).astype(np.float32) * np.float32(rng.uniform(0.1, 0.5))
    jitter_map = jitter[:, None] if is_level else jitter[None, :]
    along = along if rng.random() < 0.5 else 1 - along
    return _spread(np.asarray(along + jitter_map, np.float32))


def _clouds(rng: Rng) -> Map:
    return noise_map(rng, int(rng.choice([3, 5, 8, 14])))


def _spiral(rng: Rng) -> Map:
    n = int(rng.integers(3, 8))
    radius = np.hypot((_U - 0.5) * 16 / 9, _V - 0.5)
    angle = np.arctan2(_V - 0.5, _U - 0.5) / (2 * np.pi)
    return _ranked(np.asarray(np.floor(radius * n * 2) + angle % 1, np.float32))


_MAPS: dict[str, tuple[float, Callable[[Rng], Map]]] = {
    "line": (4, _line),
    "corner": (1, _corner),
    "clock": (1, _clock),
    "iris": (2, _iris),
    "doors": (1.5, _doors),
    "blinds": (1.5, _blinds),
    "checks": (0.7, _checks),
    "grains": (0.7, _grains),
    "wind": (1, _wind),
    "clouds": (1, _clouds),
    "spiral": (0.5, _spiral),
}


def _by_map(rng: Rng, A: Clip, B: Clip) -> Clip:
    names, weights = list(_MAPS), np.array([weight for weight, _ in _MAPS.values()])
    map_ = _MAPS[str(rng.choice(names, p=weights / weights.sum()))][1](rng)
    return _keyed(rng, A, B, [map_] * len(A))


def _luma_key(rng: Rng, A: Clip, B: Clip) -> Clip:
    """Bright or dark places change first."""
    of = A if rng.random() < 0.5 else B
    flip = rng.random() < 0.5
    maps = []
    for frame in of:
        luma = cv2.blur(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), (5, 5)).astype(np.float32) / 255
        maps.append(1 - luma if flip else luma)
    return _keyed(rng, A, B, maps)


def _keyed(rng: Rng, A: Clip, B: Clip, maps: list[Map]) -> Clip:
    soft = float(rng.choice([0.002, 0.002, 0.05, 0.2, 0.5]))
    border = rng.random() < 0.08 and soft < 0.01
    colour = rng.uniform(0, 255, 3)
    out = np.empty_like(A)
    for i, p in enumerate(progress(rng, len(A))):
        edge = p * (1 + soft)
        share = np.clip((edge - maps[i]) / soft, 0, 1)
        out[i] = _mixed(A[i], B[i], share)
        if border:
            out[i][np.abs(edge - maps[i]) < 0.02] = colour
    return out


def _dissolve(rng: Rng, A: Clip, B: Clip) -> Clip:
    out = np.empty_like(A)
    for i, p in enumerate(progress(rng, len(A))):
        out[i] = cv2.addWeighted(A[i], 1 - float(p), B[i], float(p), 0)
    return out


def _dissolve_by_level(rng: Rng, A: Clip, B: Clip) -> Clip:
    """Each pixel changes at its own rate: large differences first or last, or light adds up."""
    power, adds = float(rng.choice([0.4, 2.5])), rng.random() < 0.3
    out = np.empty_like(A)
    for i, p in enumerate(progress(rng, len(A))):
        a, b = A[i].astype(np.float32), B[i].astype(np.float32)
        if adds:
            mixed = a * min(1, 2 - 2 * p) + b * min(1, 2 * p)
        else:
            difference = np.abs(b - a) / 255
            mixed = a + (b - a) * p ** (power ** (2 * difference - 1))
        out[i] = np.clip(mixed, 0, 255)
    return out


def _fade(rng: Rng, A: Clip, B: Clip) -> Clip:
    """A fade through black, white, a colour, or grey, with or without a pause."""
    through = rng.choice(["black", "black", "white", "colour", "grey"])
    level = {"black": 0.0, "white": 255.0}.get(str(through))
    colour = np.full(3, level) if level is not None else rng.uniform(0, 255, 3)
    pause = float(rng.choice([0.0, 0.0, 0.15, 0.4]))
    out = np.empty_like(A)
    for i, p in enumerate(np.arange(1, len(A) + 1) / (len(A) + 1)):
        near = A[i] if p < 0.5 else B[i]
        share = float(np.clip(np.abs(p - 0.5) * 2 - pause, 0, 1) / (1 - pause))
        if through == "grey":
            grey = near.mean(axis=2, keepdims=True)
            mixed = cv2.addWeighted(A[i], 1 - float(p), B[i], float(p), 0) * share
            out[i] = mixed + grey * (1 - share)
        else:
            out[i] = near * share + colour * (1 - share)
    return out


def _light(rng: Rng, A: Clip, B: Clip) -> Clip:
    """A light leak or flash that covers a cut or short dissolve."""
    colour = np.array([255, rng.uniform(120, 255), rng.uniform(40, 255)])
    shape, drift = noise_map(rng, 3), rng.uniform(-1, 1)
    strength = rng.uniform(0.8, 2.5)
    out = np.empty_like(A)
    for i, p in enumerate(np.arange(1, len(A) + 1) / (len(A) + 1)):
        share = float(np.clip((p - 0.5) * 6 + 0.5, 0, 1))
        mixed = A[i] * (1 - share) + B[i] * share
        leak = np.roll(shape, int(drift * p * WIDTH), 1) * strength * np.sin(np.pi * p)
        out[i] = np.clip(mixed + colour * leak[:, :, None], 0, 255)
    return out


def _blurred(frame: NDArray[np.uint8], x: float, y: float) -> NDArray[np.uint8]:
    return np.asarray(cv2.blur(frame, (max(1, int(x)), max(1, int(y)))), np.uint8)


def _through_blur(rng: Rng, A: Clip, B: Clip) -> Clip:
    """Blur or mosaic that grows on the first shot and shrinks on the second."""
    kind = rng.choice(["both", "level", "mosaic"])
    most, wide = rng.uniform(8, 60), rng.uniform(1, 4)
    out = np.empty_like(A)
    for i, p in enumerate(progress(rng, len(A))):
        share = float(np.clip((p - 0.5) * wide + 0.5, 0, 1))
        mixed = np.asarray(cv2.addWeighted(A[i], 1 - share, B[i], share, 0), np.uint8)
        amount = 1 + most * (1 - abs(2 * p - 1))
        if kind == "mosaic":
            size = max(1, int(WIDTH / amount)), max(1, int(HEIGHT / amount))
            small = cv2.resize(mixed, size, interpolation=cv2.INTER_AREA)
            out[i] = cv2.resize(small, (WIDTH, HEIGHT), interpolation=cv2.INTER_NEAREST)
        else:
            out[i] = _blurred(mixed, amount, amount if kind == "both" else 1)
    return out


def _pasted(
    canvas: NDArray[np.uint8], picture: NDArray[np.uint8], x: int, y: int
) -> NDArray[np.uint8]:
    """Draws the part of a picture that is inside the canvas, with its upper left corner at x, y."""
    high, wide = picture.shape[:2]
    x0, y0, x1, y1 = max(0, x), max(0, y), min(WIDTH, x + wide), min(HEIGHT, y + high)
    if x1 > x0 and y1 > y0:
        canvas[y0:y1, x0:x1] = picture[y0 - y : y1 - y, x0 - x : x1 - x]
    return canvas


def _slide(rng: Rng, A: Clip, B: Clip) -> Clip:
    """A push, cover or reveal from any side."""
    kind = rng.choice(["push", "push", "cover", "reveal"])
    dx, dy = [(1, 0), (-1, 0), (0, 1), (0, -1)][int(rng.integers(4))]
    out = np.empty_like(A)
    for i, p in enumerate(progress(rng, len(A))):
        x, y = round(dx * WIDTH * float(p)), round(dy * HEIGHT * float(p))
        back = (x - dx * WIDTH, y - dy * HEIGHT)
        if kind == "cover":
            out[i] = _pasted(A[i].copy(), B[i], *back)
        elif kind == "reveal":
            out[i] = _pasted(B[i].copy(), A[i], x, y)
        else:
            out[i] = _pasted(_pasted(np.zeros_like(A[i]), A[i], x, y), B[i], *back)
    return out


def _squeeze(rng: Rng, A: Clip, B: Clip) -> Clip:
    """One picture shrinks to a line or point over the other, or grows from it."""
    grows, level = rng.random() < 0.5, rng.choice(["x", "y", "both"])
    x_at, y_at = rng.uniform(0, 1, 2)
    out = np.empty_like(A)
    for i, p in enumerate(progress(rng, len(A))):
        size = float(p) if grows else 1 - float(p)
        wide = max(1, round(WIDTH * (size if level != "y" else 1)))
        high = max(1, round(HEIGHT * (size if level != "x" else 1)))
        small = cv2.resize(B[i] if grows else A[i], (wide, high), interpolation=cv2.INTER_AREA)
        place = round((WIDTH - wide) * x_at), round((HEIGHT - high) * y_at)
        out[i] = _pasted((A[i] if grows else B[i]).copy(), np.asarray(small, np.uint8), *place)
    return out


def _zoomed(frame: NDArray[np.uint8], zoom: float, turn_deg: float = 0.0) -> NDArray[np.uint8]:
    matrix = cv2.getRotationMatrix2D((WIDTH / 2, HEIGHT / 2), turn_deg, zoom)
    warped = cv2.warpAffine(frame, matrix, (WIDTH, HEIGHT), borderMode=cv2.BORDER_REFLECT)
    return np.asarray(warped, np.uint8)


def _zoom(rng: Rng, A: Clip, B: Clip) -> Clip:
    """A zoom into one shot and out of the other, with radial blur, rotation or mixing."""
    most, turn = rng.uniform(1.3, 5), float(rng.choice([0, 0, rng.uniform(-90, 90)]))
    mixes, blurs = rng.uniform(0.05, 1), rng.random() < 0.6
    out = np.empty_like(A)
    for i, p in enumerate(progress(rng, len(A))):
        zooms = most ** float(p), most ** (float(p) - 1)
        turns = turn * float(p), turn * (float(p) - 1)
        both = []
        for frame, zoom, angle in zip((A[i], B[i]), zooms, turns, strict=True):
            steps = (0.9, 1.0, 1.1) if blurs else (1.0,)
            moved = [_zoomed(frame, max(zoom * step, 0.2), angle).astype(np.float32)
                     for step in steps]  # fmt: skip
            both.append(np.mean(moved, axis=0))
        share = float(np.clip((p - 0.5) / mixes + 0.5, 0, 1))
        out[i] = both[0] * (1 - share) + both[1] * share
    return out


def _whip(rng: Rng, A: Clip, B: Clip) -> Clip:
    """A pan so fast that both shots blur, with the change in the middle."""
    is_level, way = rng.random() < 0.8, rng.choice([-1, 1])
    reach = rng.uniform(0.5, 2)
    out = np.empty_like(A)
    for i, p in enumerate(np.arange(1, len(A) + 1) / (len(A) + 1)):
        frame = A[i] if p < 0.5 else B[i]
        eased = p * p * 2 if p < 0.5 else 2 * (1 - p) ** 2
        speed = 1 - abs(2 * p - 1)
        extent = WIDTH if is_level else HEIGHT
        shift = int(way * (eased if p < 0.5 else -eased) * reach * extent)
        blur = 1 + speed * extent / 3
        moved = np.roll(frame, shift, 1 if is_level else 0)
        out[i] = _blurred(moved, *((blur, 1) if is_level else (1, blur)))
    return out


def _glitch(rng: Rng, A: Clip, B: Clip) -> Clip:
    """Torn lines and shifted colours, with the change among them."""
    change = rng.uniform(0.3, 0.7)
    out = np.empty_like(A)
    for i in range(len(A)):
        out[i] = torn(rng, A[i] if (i + 1) / (len(A) + 1) < change else B[i], rng.uniform(0.3, 1))
        if rng.random() < 0.25:
            rows = slice(*sorted(rng.integers(0, HEIGHT, 2)))
            out[i][rows] = (B[i] if (i + 1) / (len(A) + 1) < change else A[i])[rows]
    return out


def torn(rng: Rng, frame: NDArray[np.uint8], strength: float) -> NDArray[np.uint8]:
    """Returns a frame with torn lines and shifted colours; `strength` is from 0 to 1."""
    out = frame.copy()
    for _ in range(int(rng.integers(2, 9))):
        y, high = int(rng.integers(0, HEIGHT)), int(rng.integers(2, 25))
        out[y : y + high] = np.roll(out[y : y + high], int(rng.normal(0, 40 * strength)), 1)
    shift = int(rng.normal(0, 12 * strength))
    out[:, :, 0] = np.roll(out[:, :, 0], shift, 1)
    out[:, :, 2] = np.roll(out[:, :, 2], -shift, 1)
    return out


def _door(rng: Rng, A: Clip, B: Clip) -> Clip:
    """A rotation about a vertical or horizontal axis, in perspective, from one shot to the next."""
    is_upright = rng.random() < 0.6
    out = np.empty_like(A)
    corners = np.array([[0, 0], [WIDTH, 0], [WIDTH, HEIGHT], [0, HEIGHT]], np.float32)
    for i, p in enumerate(progress(rng, len(A))):
        angle = float(p) * np.pi
        frame = A[i] if p < 0.5 else B[i]
        wide, tilt = abs(np.cos(angle)), 0.25 * np.sin(angle)
        half = (WIDTH if is_upright else HEIGHT) / 2
        low, high = half * (1 - wide), half * (1 + wide)
        lean = tilt * (HEIGHT if is_upright else WIDTH) / 2
        if is_upright:
            to = [[low, lean], [high, -lean], [high, HEIGHT + lean], [low, HEIGHT - lean]]
        else:
            to = [[lean, low], [WIDTH - lean, low], [WIDTH + lean, high], [-lean, high]]
        matrix = cv2.getPerspectiveTransform(corners, np.array(to, np.float32))
        out[i] = cv2.warpPerspective(frame, matrix, (WIDTH, HEIGHT))
    return out


def _crop(rng: Rng, A: Clip, B: Clip) -> Clip:
    """A hole closes over the first shot, to one colour, and opens on the next."""
    map_ = _iris(rng)
    colour = np.full((HEIGHT, WIDTH, 3), rng.choice([0, 0, 255, rng.uniform(0, 255)]), np.uint8)
    out = np.empty_like(A)
    for i, p in enumerate(np.arange(1, len(A) + 1) / (len(A) + 1)):
        shown = (map_ < abs(2 * p - 1)).astype(np.float32)
        out[i] = _mixed(colour, A[i] if p < 0.5 else B[i], shown)
    return out


def _title(rng: Rng, A: Clip, B: Clip) -> Clip:
    """A cut under a title, bar or logo that covers much of the picture, then disappears."""
    colour = rng.uniform(0, 255, 3)
    high = rng.uniform(0.2, 0.9)
    top = rng.uniform(0, 1 - high)
    rows = slice(int(top * HEIGHT), max(int((top + high) * HEIGHT), int(top * HEIGHT) + 4))
    way = rng.choice([-1, 1])
    out = np.empty_like(A)
    for i, p in enumerate(np.arange(1, len(A) + 1) / (len(A) + 1)):
        frame = (A[i] if p < 0.5 else B[i]).copy()
        shown = float(np.clip(2.2 * (1 - abs(2 * p - 1)), 0, 1))
        wide = int(shown * WIDTH)
        columns = slice(0, wide) if (way > 0) == (p < 0.5) else slice(WIDTH - wide, WIDTH)
        frame[rows, columns] = colour
        out[i] = frame
    return out


KINDS: dict[str, tuple[float, Callable[[Rng, Clip, Clip], Clip]]] = {
    "dissolve": (6, _dissolve),
    "dissolve_by_level": (1.2, _dissolve_by_level),
    "fade": (3, _fade),
    "map": (6, _by_map),
    "luma_key": (1, _luma_key),
    "light": (1, _light),
    "blur": (1, _through_blur),
    "slide": (2, _slide),
    "squeeze": (1.2, _squeeze),
    "zoom": (1.5, _zoom),
    "whip": (1, _whip),
    "glitch": (0.7, _glitch),
    "door": (0.7, _door),
    "crop": (1, _crop),
    "title": (0.7, _title),
}
"""Kinds of gradual transitions, with the weight of each."""


def draw_kind(rng: Rng) -> str:
    """Draws a kind of gradual transition."""
    weights = np.array([weight for weight, _ in KINDS.values()])
    return str(rng.choice(list(KINDS), p=weights / weights.sum()))


def transition(rng: Rng, kind: str, A: Clip, B: Clip) -> Clip:
    """Renders the frames between two shots.

    Args:
        rng: Random generator.
        kind: A key of `KINDS`.
        A: Frames of the first shot during the transition, uint8 [F, H, W, 3].
        B: Frames of the second shot, likewise.

    Returns:
        uint8 [F, H, W, 3]; each frame belongs to the transition.
    """
    return KINDS[kind][1](rng, A, B)
