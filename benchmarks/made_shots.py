"""Made films for fitting the fusion of shot boundaries: photographs in motion, joined by code.

They are rendered at the shot network's size. Nothing in them comes from the labelled videos that
score the result. Transitions: cuts, jump cuts, dissolves, fades, wipes, pushes, changes of a slide.
What must not be taken for one: flashes, changes of exposure, whip pans, lost and repeated frames,
titles that appear, objects that pass, close-ups by hand of what moves in jerks.
"""

from dataclasses import dataclass, field

import cv2
import numpy as np
import tests_path  # noqa: F401
from film_shots import PHOTOGRAPHS, photograph
from numpy.typing import NDArray

WIDTH, HEIGHT = 48, 27
OVER = 3
"""Films are rendered so many times larger and shrunk by area."""

Frames = NDArray[np.float32]


@dataclass
class MadeFilm:
    """Frames, uint8 [F, 27, 48, 3], and gaps: half-open spans of transitions, empty at cuts."""

    frames: list[NDArray[np.uint8]] = field(default_factory=list)
    gaps: list[tuple[int, int, str]] = field(default_factory=list)


def _smooth(rng: np.random.Generator, n: int, reach: float) -> NDArray[np.float64]:
    """A path that wanders by about `reach` in 30 frames."""
    steps = rng.normal(0, 1, n + 40)
    kernel = np.hanning(41)
    path = np.cumsum(np.convolve(steps, kernel / kernel.sum(), "valid"))[:n]
    return np.asarray(path - path[0]) * reach / 6


def _jerky(rng: np.random.Generator, n: int, reach: float) -> NDArray[np.float64]:
    """A path that rests, and moves by about `reach` in 3 to 12 frames every half to 4 seconds."""
    path, at = np.zeros(n), int(rng.integers(5, 60))
    while at < n:
        length = int(rng.integers(3, 13))
        ramp = np.clip((np.arange(n) - at + 1) / length, 0, 1)
        goal = rng.normal(0, reach)
        # It stays about the middle.
        path += (goal - path[at]) * (1 - np.cos(np.pi * ramp)) / 2
        at += length + int(rng.integers(15, 120))
    return path


def _take(rng: np.random.Generator, n: int) -> Frames:
    kind = rng.choice(["move", "move", "move", "near", "near", "hold", "slide", "figure"])
    if kind == "slide":
        return np.repeat(_slide(rng)[None], n, 0)
    if kind == "figure":
        return _figure(rng, n)
    if kind == "near":
        return _near(rng, n)
    picture = _recoloured(rng, photograph(str(rng.choice(list(PHOTOGRAPHS)))))
    speed = 0.0 if kind == "hold" else float(rng.choice([0.02, 0.05, 0.15, 0.4, 0.8]))
    frames = _view(rng, picture, n, speed)
    for _ in range(int(rng.choice([0, 0, 1, 2, 5]))):
        frames = _with_object(rng, frames)
    return frames + rng.normal(0, rng.choice([0.0, 0.5, 2.0]), frames.shape).astype(np.float32)


def _recoloured(rng: np.random.Generator, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    gain = rng.uniform(0.5, 1.2) * rng.uniform(0.8, 1.2, 3)
    return np.clip(picture[:, :, rng.permutation(3)] * gain, 0, 255).astype(np.uint8)


def _view(rng: np.random.Generator, picture: NDArray[np.uint8], n: int, speed: float) -> Frames:
    """Pans and zooms over a picture, `speed` in widths of the view per second."""
    high, wide = picture.shape[:2]
    width = rng.uniform(0.3, 0.7) * min(wide, high * 16 / 9)
    x = rng.uniform(0.2, 0.8) * wide + _smooth(rng, n, speed * width)
    y = rng.uniform(0.2, 0.8) * high + _smooth(rng, n, 0.5 * speed * width)
    widths = width * np.exp(_smooth(rng, n, min(speed, 0.3)))
    shake = rng.choice([0.0, 0.0, 0.01]) * width
    frames = np.empty((n, HEIGHT, WIDTH, 3), np.float32)
    for i in range(n):
        scale = widths[i] / (WIDTH * OVER)
        at = (x[i] + rng.normal(0, shake), y[i] + rng.normal(0, shake))
        matrix = np.array(
            [[scale, 0, at[0] - widths[i] / 2], [0, scale, at[1] - widths[i] * 9 / 32]]
        )
        big = cv2.warpAffine(
            picture, matrix, (WIDTH * OVER, HEIGHT * OVER),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REFLECT,
        )  # fmt: skip
        frames[i] = cv2.resize(big, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
    return frames


def _near(rng: np.random.Generator, n: int) -> Frames:
    """A close-up by hand: what fills much of the picture moves in jerks, and so may the camera.

    Fast frames are blurred: each is the mean of four moments of half a frame.
    """
    behind, before = (
        _recoloured(rng, photograph(str(rng.choice(list(PHOTOGRAPHS))))) for _ in range(2)
    )
    wide, high = WIDTH * OVER, HEIGHT * OVER
    fine = 8
    moments = np.arange(n * fine) / fine

    def path(slow: float, fast: float) -> NDArray[np.float64]:
        whole = _smooth(rng, n, slow) + _jerky(rng, n, fast) + rng.normal(0, tremor, n)
        return np.interp(moments, np.arange(n), whole)

    tremor = float(rng.choice([0.0, 0.001, 0.004]))
    eager = float(np.exp(rng.uniform(np.log(0.05), np.log(0.5))))
    camera_x, camera_y = path(0.05, 0.3 * eager), path(0.05, 0.3 * eager)
    x, y = path(0.08, eager), path(0.08, eager)
    turn, grow = path(0.05, 0.3 * eager), path(0.03, 0.2 * eager)
    size = rng.uniform(0.25, 0.7)
    middle = rng.uniform(0.25, 0.75, 2)
    outline = _outline(rng)
    scales = [
        rng.uniform(0.4, 0.9) * min(p.shape[1] / wide, p.shape[0] / high) for p in (behind, before)
    ]
    starts = [
        (rng.uniform(0.3, 0.7) * p.shape[1], rng.uniform(0.3, 0.7) * p.shape[0])
        for p in (behind, before)
    ]

    def moment(i: int) -> Frames:
        # To the background's pixels; borders are mirrored.
        matrix = np.array(
            [
                [scales[0], 0, starts[0][0] + (camera_x[i] - 0.5) * wide * scales[0]],
                [0, scales[0], starts[0][1] + (camera_y[i] * wide - high / 2) * scales[0]],
            ]
        )
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        picture = cv2.warpAffine(
            behind, matrix, (wide, high), flags=flags, borderMode=cv2.BORDER_REFLECT
        ).astype(np.float32)
        scale = scales[1] * np.exp(-grow[i])
        cos, sin = np.cos(turn[i]), np.sin(turn[i])
        turned = np.array([[cos, -sin], [sin, cos]])
        at = (
            middle[0] * wide + (x[i] - camera_x[i]) * wide,
            middle[1] * high + (y[i] - camera_y[i]) * wide,
        )
        matrix = np.column_stack([scale * turned, starts[1] - scale * turned @ at])
        thing = cv2.warpAffine(
            before, matrix, (wide, high), flags=flags, borderMode=cv2.BORDER_REFLECT
        ).astype(np.float32)
        points = outline @ turned * size * wide * np.exp(grow[i]) + at
        mask = np.zeros((high, wide), np.float32)
        cv2.fillPoly(mask, [np.round(points * 16).astype(np.int32)], 1.0, cv2.LINE_AA, 4)
        return picture + (thing - picture) * mask[:, :, None]

    frames = np.empty((n, HEIGHT, WIDTH, 3), np.float32)
    for i in range(n):
        exposed = np.mean([moment(fine * i + k) for k in range(4)], axis=0)
        frames[i] = cv2.resize(exposed, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
    return frames + rng.normal(0, rng.choice([0.0, 0.3, 1.0]), frames.shape).astype(np.float32)


def _outline(rng: np.random.Generator) -> NDArray[np.float64]:
    """A closed curve of unit radius with a few bumps, [72, 2]."""
    angle = np.linspace(0, 2 * np.pi, 72, endpoint=False)
    radius = np.ones(72)
    for order in range(2, 6):
        radius += rng.normal(0, 0.25 / order) * np.cos(order * angle + rng.uniform(0, 6.28))
    return np.stack([np.cos(angle), np.sin(angle)], axis=1) * np.maximum(radius, 0.2)[:, None]


def _patch(rng: np.random.Generator) -> NDArray[np.float32]:
    picture = photograph(str(rng.choice(list(PHOTOGRAPHS))))
    size = int(rng.integers(60, 200))
    y, x = (int(rng.integers(0, side - size)) for side in picture.shape[:2])
    return picture[y : y + size, x : x + size].astype(np.float32)


def _paste(frame: Frames, patch: Frames, x: float, y: float, w: float, h: float) -> None:
    """Draws an ellipse of a patch around a point, all in pixels."""
    yy, xx = np.mgrid[0:HEIGHT, 0:WIDTH]
    inside = ((xx - x) / max(w, 0.5)) ** 2 + ((yy - y) / max(h, 0.5)) ** 2 <= 1
    u = np.clip((xx - x + w) / (2 * w) * (patch.shape[1] - 1), 0, patch.shape[1] - 1).astype(int)
    v = np.clip((yy - y + h) / (2 * h) * (patch.shape[0] - 1), 0, patch.shape[0] - 1).astype(int)
    frame[inside] = patch[v, u][inside]


def _with_object(rng: np.random.Generator, frames: Frames) -> Frames:
    """Something passes in 10 to 120 frames, up to most of the picture large."""
    n, length = len(frames), int(np.exp(rng.uniform(np.log(10), np.log(120))))
    start, size = int(rng.integers(0, max(1, n - length))), np.exp(rng.uniform(0.5, 2.9))
    patch, direction = _patch(rng), rng.choice([-1, 1])
    place, is_level = rng.uniform(0.2, 0.8), rng.random() < 0.7
    for i in range(length):
        along = 0.5 + direction * (i / length - 0.5)
        if is_level:
            at = (along * (WIDTH + 2 * size) - size, place * HEIGHT)
        else:
            at = (place * WIDTH, along * (HEIGHT + 2 * size) - size)
        if start + i < n:
            _paste(frames[start + i], patch, *at, size, size)
    return frames


def _slide(rng: np.random.Generator) -> Frames:
    """A page of lines in a frame of its own; the same margins for a whole film would be likely."""
    page = np.full((HEIGHT * 8, WIDTH * 8, 3), rng.choice([0, 20, 255]), np.float32)
    paper, ink = rng.choice([255, 240, 30]), rng.uniform(0, 255, 3)
    cv2.rectangle(page, (40, 20), (WIDTH * 8 - 40, HEIGHT * 8 - 20), (float(paper),) * 3, -1)
    for line in range(int(rng.integers(2, 9))):
        y = 40 + line * 18
        x = int(rng.integers(50, 120))
        for _ in range(int(rng.integers(2, 12))):
            end = x + int(rng.integers(6, 30))
            cv2.rectangle(page, (x, y), (min(end, 330), y + 6), ink.tolist(), -1)
            x = end + 5
            if x > 320:
                break
    return cv2.resize(page, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)


def _figure(rng: np.random.Generator, n: int) -> Frames:
    """A figure that dances before a flat wall."""
    wall = np.full((HEIGHT, WIDTH, 3), rng.uniform(40, 220), np.float32)
    return _dance(rng, wall, _patch(rng), _patch(rng), n)


def _dance(rng: np.random.Generator, wall: Frames, body: Frames, head: Frames, n: int) -> Frames:
    size = rng.uniform(2.5, 7)
    x, y = rng.uniform(12, 36), rng.uniform(12, 20)
    sway, beat = rng.uniform(0, 5), rng.uniform(10, 60)
    frames = np.repeat(wall[None], n, 0)
    phase = rng.uniform(0, 6.3)
    for i in range(n):
        at = x + sway * np.sin(6.28 * i / beat + phase)
        _paste(frames[i], body, at, y, size, size * 1.8)
        _paste(
            frames[i],
            head,
            at + 0.3 * sway * np.cos(6.28 * i / beat),
            y - 2 * size,
            size / 2,
            size / 2,
        )
    return frames + rng.normal(0, 0.3, frames.shape).astype(np.float32)


def _join(rng: np.random.Generator, kind: str, a: Frames, b: Frames, n: int) -> Frames:
    """The frames of a transition: `a` and `b` are the last and first frames it is made of."""
    weights = (np.arange(1, n + 1) / (n + 1))[:, None, None, None].astype(np.float32)
    if kind == "dissolve":
        return a * (1 - weights) + b * weights
    if kind == "fade":
        level = np.float32(rng.choice([0, 0, 255]))
        out = np.where(weights < 0.5, a + (level - a) * np.minimum(1, 2 * weights), 0)
        return out + np.where(weights >= 0.5, b + (level - b) * np.minimum(1, 2 - 2 * weights), 0)
    yy, xx = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float32)
    angle = rng.choice([0, np.pi / 2, np.pi, 3 * np.pi / 2, rng.uniform(0, 6.28)])
    ramp = np.cos(angle) * xx + np.sin(angle) * yy
    ramp = (ramp - ramp.min()) / np.ptp(ramp)
    if kind == "wipe":
        return np.where((ramp[None, :, :, None] < weights), b, a)
    out = np.empty_like(a)
    horizontal = rng.random() < 0.5
    for i in range(n):
        shift = round(float(weights[i, 0, 0, 0]) * (WIDTH if horizontal else HEIGHT))
        axis = 1 if horizontal else 0
        both = np.concatenate([a[i], b[i]], axis)
        out[i] = both[:, shift : shift + WIDTH] if horizontal else both[shift : shift + HEIGHT]
    return out


def _disturbed(rng: np.random.Generator, frames: Frames) -> Frames:
    """Adds what is no transition."""
    for _ in range(int(rng.choice([0, 1, 2]))):
        frames = _disturbed_once(rng, frames)
    return frames


def _disturbed_once(rng: np.random.Generator, frames: Frames) -> Frames:
    n = len(frames)
    if n < 30:
        return frames
    at = int(rng.integers(12, n - 12))
    kind = rng.choice(["flash", "exposure", "whip", "lost", "repeated", "title"])
    if kind == "flash":
        length = int(rng.integers(1, 5))
        frames[at : at + length] += np.float32(rng.uniform(60, 255))
    elif kind == "exposure":
        gain, ramp = rng.choice([0.6, 0.75, 1.3, 1.6]), int(rng.integers(1, 12))
        steps = np.clip((np.arange(n) - at) / ramp, 0, 1)
        frames *= (1 + (gain - 1) * steps)[:, None, None, None].astype(np.float32)
    elif kind == "whip":
        length = int(rng.integers(5, 12))
        for i in range(length):
            shift = int(np.sin(np.pi * (i + 1) / (length + 1)) * rng.uniform(8, 30))
            moved = np.roll(frames[at + i], shift, 1)
            frames[at + i] = cv2.blur(moved, (max(1, shift // 3), 1))
    elif kind == "lost":
        n_lost = min(int(np.exp(rng.uniform(np.log(2), np.log(13)))), n - at - 1)
        if rng.random() < 0.5:
            frames = np.concatenate([frames[:at], frames[at + n_lost :]])
        else:
            # A recorder that keeps time shows the frame before meanwhile.
            frames[at : at + n_lost] = frames[at - 1]
    elif kind == "repeated":
        hold = int(rng.integers(2, 4))
        frames = frames[np.arange(n) // hold * hold]
    else:
        # Letters fill a part of their lines.
        x, y, wide = int(rng.integers(0, 30)), int(rng.integers(0, 24)), int(rng.integers(5, 18))
        lines = frames[at:, y : y + int(rng.integers(1, 3)), x : x + wide]
        ink = rng.uniform(0, 0.6, (1, *lines.shape[1:3], 1))
        lines[:] = lines * (1 - ink) + rng.choice([0, 255]) * ink
    return frames


KINDS = ("cut", "jump", "dissolve", "fade", "wipe", "push")
SHARES = (0.34, 0.2, 0.18, 0.06, 0.13, 0.09)


def made_film(seed: int, n_shots: int = 20) -> MadeFilm:
    """A film of shots of 1 to 13 seconds at 30 frames/s.

    In one of four frames repeat throughout, and one of four is taken at a lower rate.

    Args:
        seed: Same seed, same film.
        n_shots: How many shots.
    """
    rng = np.random.default_rng(seed)
    film = MadeFilm()
    rendered: list[Frames] = []
    tail: Frames | None = None
    position = 0
    for number in range(n_shots):
        kind = str(rng.choice(KINDS, p=SHARES)) if number else "cut"
        length = int(np.exp(rng.uniform(np.log(30), np.log(400))))
        shot = _take(rng, length + 60)
        if kind == "jump" and tail is not None and len(tail) >= 20:
            # The same take goes on later, or from a little nearer.
            shot = _jumped(rng, tail, length)
            kind = "cut"
        n_gap = 0 if kind in ("cut", "jump") else int(rng.choice([2, 6, 10, 16, 24, 36]))
        if number and tail is not None:
            n_gap = min(n_gap, len(tail), len(shot) - 30)
            if n_gap:
                rendered.append(_join(rng, kind, tail[:n_gap], shot[:n_gap], n_gap))
            film.gaps.append((position, position + n_gap, kind))
            position += n_gap
        body = _disturbed(rng, shot[n_gap : n_gap + length].copy())
        rendered.append(body)
        position += len(body)
        tail = shot[n_gap + length :]
        if len(tail) == 0:
            tail = np.repeat(shot[-1:], 40, 0)
    whole = np.clip(np.concatenate(rendered), 0, 255).astype(np.uint8)
    film.frames = list(whole)
    kept = rng.choice(["all", "all", "slowed", "sparse"])
    if kept == "slowed":
        return _slowed(rng, film)
    return _sparse(rng, film) if kept == "sparse" else film


def _slowed(rng: np.random.Generator, film: MadeFilm) -> MadeFilm:
    """The film at a lower frame rate, brought back to 30 by repeating frames."""
    rate = rng.choice([0.33, 0.5, 0.56, 0.8])
    shown = (np.floor(np.arange(len(film.frames)) * rate + 1e-6) / rate).astype(int)

    def first_shown(position: int) -> int:
        return int(np.searchsorted(shown, position))

    gaps = [(first_shown(a), max(first_shown(a), first_shown(b)), kind) for a, b, kind in film.gaps]
    return MadeFilm([film.frames[i] for i in shown], gaps)


def _sparse(rng: np.random.Generator, film: MadeFilm) -> MadeFilm:
    """The film at a lower frame rate, 12 to 25 frames/s."""
    every = 30 / float(rng.choice([12, 15, 20, 24, 25]))
    shown = np.arange(0, len(film.frames), every).astype(int)
    gaps = [
        (int(np.searchsorted(shown, start)), int(np.searchsorted(shown, end)), kind)
        for start, end, kind in film.gaps
    ]
    return MadeFilm([film.frames[i] for i in shown], gaps)


def _jumped(rng: np.random.Generator, tail: Frames, length: int) -> Frames:
    """The take that `tail` ends, after a pause, drawn nearer, farther or to the side."""
    zoom, shift = rng.uniform(1.15, 1.6), rng.uniform(-6, 6, 2)
    if rng.random() < 0.4:
        zoom = 1 / zoom
    matrix = np.array(
        [
            [zoom, 0, WIDTH / 2 * (1 - zoom) + shift[0]],
            [0, zoom, HEIGHT / 2 * (1 - zoom) + shift[1]],
        ]
    )
    source = tail[np.minimum(np.arange(length + 60), len(tail) - 1)]
    return np.stack(
        [
            cv2.warpAffine(frame, matrix, (WIDTH, HEIGHT), borderMode=cv2.BORDER_REFLECT)
            for frame in source
        ]
    )


def film_list(n_films: int, first_seed: int) -> list[MadeFilm]:
    """Films of consecutive seeds."""
    return [made_film(first_seed + number) for number in range(n_films)]
