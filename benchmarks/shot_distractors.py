"""Adds distractors to the frames of a shot in place: events that resemble a shot boundary.

Light (flashes, strobes, bursts of colour, exposure), camera (whip pans, jolts), objects that pass
close to the lens, overlays, screens with changing content, a television within the picture, damage,
freezes, stop motion.

Shape letters: F frames, H, W height and width, C channels.
"""

from collections.abc import Callable
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from shot_transitions import HEIGHT, WIDTH, Clip, Rng, noise_map, torn

Source = Callable[[Rng, int], Clip]
"""Returns frames of another take, uint8 [F, H, W, 3], for distractors that show one."""


def _span(rng: Rng, n: int, low: int, high: int) -> slice:
    length = int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))
    start = int(rng.integers(4, max(5, n - length - 4)))
    return slice(start, min(n, start + length))


def _clipped(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.asarray(np.clip(values, 0, 255), np.uint8)


def _flash(rng: Rng, clip: Clip, other: Source) -> Clip:
    """A photo or muzzle flash of one to six frames, over all or part of the picture."""
    span = _span(rng, len(clip), 1, 6)
    n = span.stop - span.start
    fall = np.linspace(1, rng.uniform(0.2, 1), n, dtype=np.float32)
    where = noise_map(rng, 3) if rng.random() < 0.4 else np.ones((HEIGHT, WIDTH), np.float32)
    light = np.float32(rng.uniform(40, 260))
    if rng.random() < 0.3:
        gain = 1 + light / 100 * fall[:, None, None, None] * where[None, :, :, None]
        clip[span] = _clipped(clip[span] * gain)
    else:
        clip[span] = _clipped(clip[span] + light * fall[:, None, None, None] * where[:, :, None])
    return clip


def _strobe(rng: Rng, clip: Clip, other: Source) -> Clip:
    """Lights that switch on and off in a beat; in between, the picture is dark or coloured."""
    span = _span(rng, len(clip), 12, 90)
    period, on = int(rng.integers(2, 12)), int(rng.integers(1, 5))
    gain = rng.choice([0.0, 0.15, 0.4, 1.8]) * rng.uniform(0.6, 1.2, 3)
    for i in range(span.start, span.stop):
        if (i - span.start) % period < on:
            clip[i] = _clipped((clip[i] * gain).astype(np.float32))
    return clip


def _burst(rng: Rng, clip: Clip, other: Source) -> Clip:
    """Bursts of colour as in music videos: inverted, tinted, flat, mirrored, or line drawings."""
    for _ in range(int(rng.integers(1, 6))):
        span = _span(rng, len(clip), 1, 10)
        kind = rng.choice(["invert", "tint", "flat", "swap", "mirror", "lines"])
        part = clip[span]
        if kind == "invert":
            clip[span] = 255 - part
        elif kind == "tint":
            colour = rng.uniform(0, 255, 3)
            share = rng.uniform(0.3, 0.9)
            clip[span] = _clipped((part * (1 - share) + colour * share).astype(np.float32))
        elif kind == "flat":
            clip[span] = rng.uniform(0, 255, 3)
        elif kind == "swap":
            clip[span] = part[..., rng.permutation(3)]
        elif kind == "mirror":
            clip[span] = part[:, :, ::-1]
        else:
            for i in range(span.start, span.stop):
                edges = cv2.Canny(clip[i], 60, 160)
                clip[i] = np.where(edges[:, :, None] > 0, rng.uniform(0, 255, 3), clip[i] // 4)
    return clip


def _exposure(rng: Rng, clip: Clip, other: Source) -> Clip:
    """A step or ramp of exposure or white balance."""
    n = len(clip)
    at, ramp = int(rng.integers(4, n - 4)), int(np.exp(rng.uniform(0, np.log(25))))
    gain = np.exp(rng.choice([-1, 1]) * rng.uniform(0.15, 0.9)) * np.exp(rng.normal(0, 0.1, 3))
    steps = np.clip((np.arange(n) - at) / ramp, 0, 1).astype(np.float32)[:, None, None, None]
    returns = rng.random() < 0.4
    if returns:
        steps *= np.clip((at + ramp * 4 - np.arange(n)) / ramp, 0, 1)[:, None, None, None]
    return _clipped(clip * (1 + (gain.astype(np.float32) - 1) * steps))


def _flicker(rng: Rng, clip: Clip, other: Source) -> Clip:
    gains = 1 + rng.normal(0, rng.uniform(0.03, 0.25), (len(clip), 1, 1, 1))
    return _clipped((clip * gains).astype(np.float32))


def _camera(rng: Rng, clip: Clip, other: Source) -> Clip:
    """Fast hand-held moves: jolts and whip pans that stay in the scene, with motion blur."""
    n = len(clip)
    zoom = rng.uniform(1.3, 2.2)
    room_x, room_y = WIDTH * (zoom - 1) / 2, HEIGHT * (zoom - 1) / 2
    path = np.zeros((n, 2))
    at = int(rng.integers(3, 30))
    while at < n:
        length = int(rng.integers(2, 12))
        goal = rng.uniform(-1, 1, 2)
        ramp = np.clip((np.arange(n) - at + 1) / length, 0, 1)[:, None]
        path += (goal - path[min(at, n - 1)]) * (1 - np.cos(np.pi * ramp)) / 2
        at += length + int(rng.integers(8, 90))
    path += rng.normal(0, rng.choice([0, 0.01, 0.04]), path.shape)
    speed = np.abs(np.diff(path, axis=0, append=path[-1:]))
    for i in range(n):
        matrix = np.array(
            [
                [zoom, 0, WIDTH / 2 * (1 - zoom) + path[i, 0] * room_x],
                [0, zoom, HEIGHT / 2 * (1 - zoom) + path[i, 1] * room_y],
            ]
        )
        moved = cv2.warpAffine(clip[i], matrix, (WIDTH, HEIGHT), borderMode=cv2.BORDER_REFLECT)
        blur = max(1, int(speed[i, 0] * room_x * 0.7)), max(1, int(speed[i, 1] * room_y * 0.7))
        clip[i] = cv2.blur(moved, blur)
    return clip


def _passer_by(rng: Rng, clip: Clip, other: Source) -> Clip:
    """An object close to the lens that crosses the picture and may fill it."""
    span = _span(rng, len(clip), 4, 60)
    n = span.stop - span.start
    patch = cv2.blur(other(rng, 1)[0], (5, 5)) * rng.uniform(0.2, 1.1)
    size = np.exp(rng.uniform(np.log(15), np.log(150)))
    is_level, way, place = rng.random() < 0.75, rng.choice([-1, 1]), rng.uniform(0.2, 0.8)
    outline = outline_of(rng)
    extent = (WIDTH if is_level else HEIGHT) + 2 * size
    for i in range(n):
        along = (0.5 + way * ((i + 0.5) / n - 0.5)) * extent - size
        centre = (along, place * HEIGHT) if is_level else (place * WIDTH, along)
        mask = np.zeros((HEIGHT, WIDTH), np.float32)
        cv2.fillPoly(mask, [np.round(outline * size + centre).astype(np.int32)], 1.0)
        blur = max(1, int(extent / n * 0.5))
        soft = np.asarray(cv2.blur(mask, (blur, 1) if is_level else (1, blur)))[:, :, None]
        frame = clip[span.start + i]
        clip[span.start + i] = _clipped((frame * (1 - soft) + patch * soft).astype(np.float32))
    return clip


def _whip_pan(rng: Rng, clip: Clip, other: Source) -> Clip:
    """A camera that swings to another part of the scene in a few frames, and may swing back."""
    n, zoom = len(clip), float(np.exp(rng.uniform(np.log(2), np.log(5))))
    at, length = int(rng.integers(3, max(4, n - 12))), int(rng.integers(3, 16))
    ends = rng.uniform(-1, 1, (2, 2)) * (1.0, 0.4)
    ends[1, 0] = -np.sign(ends[0, 0]) * rng.uniform(0.3, 1)
    ramp = np.clip((np.arange(n) - at + 1) / length, 0, 1)
    if rng.random() < 0.4:
        ramp -= np.clip((np.arange(n) - at - length - int(rng.integers(0, 30))) / length, 0, 1)
    eased = ((1 - np.cos(np.pi * ramp)) / 2)[:, None]
    path = ends[0] + (ends[1] - ends[0]) * eased
    speed = np.abs(np.gradient(path, axis=0))
    room = np.array([WIDTH, HEIGHT]) * (zoom - 1) / 2
    for i in range(n):
        shift = np.array([WIDTH, HEIGHT]) / 2 * (1 - zoom) + path[i] * room
        matrix = np.array([[zoom, 0, shift[0]], [0, zoom, shift[1]]])
        moved = cv2.warpAffine(clip[i], matrix, (WIDTH, HEIGHT), borderMode=cv2.BORDER_REFLECT)
        blur = np.maximum(speed[i] * room * rng.uniform(0.4, 1.0), 1).astype(int)
        clip[i] = cv2.blur(moved, (int(blur[0]), int(blur[1])))
    return clip


def _held(rng: Rng, clip: Clip, other: Source) -> Clip:
    """A page, picture or hand held before the lens; exposure, colours and focus adapt.

    The object enters from any side, stays and leaves. The camera adapts with a lag: a bright object
    is overexposed at first, and the room is too dark after the object left, or the reverse.
    """
    n = len(clip)
    enter, leave = (int(np.exp(rng.uniform(low, 3.3))) for low in (1.2, 0.7))
    stay = int(np.exp(rng.uniform(1.5, 4.8)))
    start = int(rng.integers(3, max(4, n - enter - leave - stay)))
    high, wide = rng.uniform(0.45, 1.25) * HEIGHT, rng.uniform(0.45, 1.25) * WIDTH
    thing = np.empty((HEIGHT, WIDTH, 3), np.float32)
    kind = str(rng.choice(["page", "picture", "plain"], p=[0.6, 0.2, 0.2]))
    light, outline = float(np.exp(rng.normal(0, 0.5))), _BOX * (wide / 2, high / 2)
    if kind == "page":
        light = float(np.exp(rng.uniform(0, 1.4)))
        ink = _letters(rng, HEIGHT)[:, :, None] * np.float32(rng.uniform(0.2, 0.9))
        thing[:] = rng.uniform(120, 240) + rng.normal(0, 10, 3)
        thing = thing * (1 - ink) + rng.uniform(0, 110, 3).astype(np.float32) * ink
    elif kind == "picture":
        thing = other(rng, 1)[0].astype(np.float32)
    else:
        thing[:] = rng.uniform(20, 200) + rng.normal(0, 20, 3)
        outline = outline_of(rng) * (wide / 2, high / 2)
    outline = outline + rng.normal(0, 3, outline.shape) * (kind != "plain")
    hand, skin = outline_of(rng) * 14, rng.uniform(0.3, 1) * np.array([215.0, 160.0, 130.0])
    at_edge = outline[int(rng.integers(len(outline)))] * rng.uniform(0.6, 1, 2)
    angle = rng.choice([0.5, 0.5, 0, 1, 1.5]) * np.pi + rng.normal(0, 0.3)
    away_px = np.array([np.cos(angle), np.sin(angle)]) * (0.55 * WIDTH + wide / 2)
    middle = (0.5 + rng.normal(0, 0.08, 2)) * (WIDTH, HEIGHT)
    turn, sway, beat = rng.normal(0, 6, 2), rng.normal(0, 1.5, 2), rng.uniform(0.05, 0.4)
    room = float(rng.choice([1.0, np.exp(rng.uniform(-2, 0))]))
    tint, settles = np.exp(rng.normal(0, 0.12, 3)), float(np.exp(rng.normal(0, 0.2)))
    lag, out_of_focus = float(np.exp(rng.uniform(0.5, 3))), int(rng.choice([0, 0, 2, 4]))
    exposure = 1.0
    for i in range(n):
        total, covered = np.zeros((HEIGHT, WIDTH, 3), np.float32), 0.0
        for at in (i, i + 0.25, i + 0.5):
            away = max((start + enter - at) / enter, (at - start - enter - stay) / leave)
            frame = clip[i] * np.float32(room)
            if away < 1:
                away = max(0.0, away) ** 1.5
                turned = cv2.getRotationMatrix2D((0, 0), turn[0] + turn[1] * away, 1.0)
                centre = middle + away_px * away + sway * np.sin(beat * at)
                mask = _filled(outline @ turned[:, :2].T + centre)
                turned[:, 2] = centre - turned[:, :2] @ (WIDTH / 2, HEIGHT / 2)
                shown = cv2.warpAffine(
                    thing, turned, (WIDTH, HEIGHT), borderMode=cv2.BORDER_REFLECT
                )
                frame += (shown * np.float32(light) - frame) * mask
                frame += (skin * room - frame) * _filled(
                    (hand + at_edge) @ turned[:, :2].T + centre
                )
                covered += float(mask.mean()) / 3
            total += frame / 3
        target = light**-covered * (settles if i > start + enter else 1)
        exposure += (target - exposure) / lag
        wrong = out_of_focus * abs(np.log(target / exposure)) * 4
        if wrong > 1:
            total[:] = cv2.blur(total, (int(wrong) * 2 + 1,) * 2)
        clip[i] = _clipped(
            (total * exposure * (1 + (tint - 1) * (1 - exposure))).astype(np.float32)
        )
    return clip


_BOX = np.array([[-1.0, -1], [1, -1], [1, 1], [-1, 1]])


def _filled(points: NDArray[np.float64]) -> NDArray[np.float32]:
    """Returns 1 inside a closed curve [P, 2] and 0 outside, float32 [H, W, 1]."""
    mask = np.zeros((HEIGHT, WIDTH, 1), np.float32)
    cv2.fillPoly(mask, [np.round(points).astype(np.int32)], 1.0)
    return mask


def outline_of(rng: Rng) -> NDArray[np.float64]:
    """Returns a closed curve with about unit radius and a few bumps, [48, 2]."""
    angle = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    radius = np.ones(48)
    for order in range(2, 6):
        radius += rng.normal(0, 0.25 / order) * np.cos(order * angle + rng.uniform(0, 6.28))
    return np.stack([np.cos(angle), np.sin(angle)], axis=1) * np.maximum(radius, 0.2)[:, None]


def _box(rng: Rng, low: float, high: float) -> tuple[slice, slice]:
    """Returns rows and columns of a rectangle that covers between `low` and `high` of the area."""
    area, shape = rng.uniform(low, high), np.exp(rng.uniform(-0.4, 0.4))
    wide = min(int(np.sqrt(area * shape) * WIDTH), WIDTH - 2)
    high_px = min(int(np.sqrt(area / shape) * HEIGHT), HEIGHT - 2)
    x, y = int(rng.integers(0, WIDTH - wide)), int(rng.integers(0, HEIGHT - high_px))
    return slice(y, y + max(4, high_px)), slice(x, x + max(4, wide))


def _inset(rng: Rng, clip: Clip, other: Source) -> Clip:
    """A picture in picture that appears, stays and disappears, at once or with a fade."""
    span = _span(rng, len(clip), 15, 200)
    rows, columns = _box(rng, 0.03, 0.3)
    inner = other(rng, span.stop - span.start)
    fade = int(rng.choice([1, 1, 6, 15]))
    for i in range(span.start, span.stop):
        size = (columns.stop - columns.start, rows.stop - rows.start)
        small = cv2.resize(inner[i - span.start], size, interpolation=cv2.INTER_AREA)
        share = min(1.0, (i - span.start + 1) / fade, (span.stop - i) / fade)
        part = clip[i][rows, columns]
        clip[i][rows, columns] = _clipped((part * (1 - share) + small * share).astype(np.float32))
    return clip


def _television(rng: Rng, clip: Clip, other: Source) -> Clip:
    """A screen within the picture that shows its own cuts."""
    rows, columns = _box(rng, 0.05, 0.35)
    size = (columns.stop - columns.start, rows.stop - rows.start)
    at = 0
    while at < len(clip):
        inner = other(rng, min(len(clip) - at, int(rng.integers(12, 90))))
        for i, frame in enumerate(inner):
            clip[at + i][rows, columns] = cv2.resize(frame, size, interpolation=cv2.INTER_AREA)
        at += len(inner)
    return clip


def _lower_third(rng: Rng, clip: Clip, other: Source) -> Clip:
    """A banner, a title or lines of text that appear and disappear."""
    span = _span(rng, len(clip), 15, 200)
    high = rng.uniform(0.06, 0.3)
    top = rng.choice([1 - high, 0.0, rng.uniform(0, 1 - high)])
    rows = slice(int(top * HEIGHT), int((top + high) * HEIGHT) + 1)
    share = rng.choice([0.0, 0.6, 1.0])
    colour, ink = rng.uniform(0, 255, 3), rng.uniform(0, 255, 3)
    letters = _letters(rng, rows.stop - rows.start)
    slides = int(rng.choice([1, 1, 8]))
    for i in range(span.start, min(span.stop, len(clip))):
        wide = int(WIDTH * min(1.0, (i - span.start + 1) / slides))
        part = clip[i][rows, :wide].astype(np.float32)
        part += (colour - part) * share
        inked = letters[: part.shape[0], :wide, None]
        clip[i][rows, :wide] = _clipped(part * (1 - inked) + ink * inked)
    return clip


def _letters(rng: Rng, high: int) -> NDArray[np.float32]:
    """Returns lines of strokes that resemble text, float32 [high, W]."""
    page = np.zeros((high, WIDTH), np.float32)
    line = int(rng.integers(4, 12))
    for y in range(2, max(3, high - line), line + 3):
        x = int(rng.integers(4, 40))
        while x < WIDTH - 12:
            word = int(rng.integers(4, 24))
            page[y : y + line, x : x + word] = rng.random((min(line, high - y), 1)) * 0.5 + 0.4
            x += word + 4
    return page


def _screen(rng: Rng, clip: Clip, other: Source) -> Clip:
    """Changes to part of a screen: a new window, a menu, a scrolled page, a longer list."""
    for _ in range(int(rng.integers(1, 5))):
        rows, columns = _box(rng, 0.02, 0.35)
        at = int(rng.integers(1, len(clip)))
        high, wide = rows.stop - rows.start, columns.stop - columns.start
        box = np.empty((high, wide, 3), np.float32)
        box[:] = rng.choice([20, 235, rng.uniform(0, 255)])
        inked = _letters(rng, high)[:, :wide, None]
        box = box * (1 - inked) + rng.uniform(0, 255, 3) * inked
        length = int(rng.integers(10, 300))
        clip[at : at + length, rows, columns] = _clipped(box.astype(np.float32))
    return clip


def _damage(rng: Rng, clip: Clip, other: Source) -> Clip:
    """Blocks of a broken stream: grey, displaced, from earlier rows, or torn lines."""
    span = _span(rng, len(clip), 1, 20)
    kind = rng.choice(["blocks", "torn", "lower"])
    for i in range(span.start, span.stop):
        if kind == "torn":
            clip[i] = torn(rng, clip[i], rng.uniform(0.1, 0.7))
        elif kind == "lower":
            y = int(rng.uniform(0.3, 0.9) * HEIGHT)
            clip[i][y:] = clip[i][y - 1 : y] if rng.random() < 0.5 else 128
        else:
            for _ in range(int(rng.integers(2, 20))):
                y, x = int(rng.integers(0, HEIGHT - 16)), int(rng.integers(0, WIDTH - 32))
                dy, dx = int(rng.integers(0, HEIGHT - 16)), int(rng.integers(0, WIDTH - 32))
                clip[i][y : y + 16, x : x + 32] = clip[i][dy : dy + 16, dx : dx + 32]
    return clip


def _freeze(rng: Rng, clip: Clip, other: Source) -> Clip:
    """A freeze; afterwards the picture continues at its current position."""
    span = _span(rng, len(clip), 3, 25)
    clip[span] = clip[span.start]
    return clip


def _stop_motion(rng: Rng, clip: Clip, other: Source) -> Clip:
    """Each picture is held for some frames, with small changes of light and position."""
    hold = int(rng.integers(2, 7))
    for i in range(0, len(clip), hold):
        frame = np.roll(clip[i], rng.integers(-2, 3, 2), (0, 1))
        clip[i : i + hold] = _clipped((frame * rng.normal(1, 0.03)).astype(np.float32))
    return clip


KINDS: dict[str, tuple[float, Callable[[Rng, Clip, Source], Clip]]] = {
    "flash": (2, _flash),
    "strobe": (1, _strobe),
    "burst": (1.2, _burst),
    "exposure": (1.5, _exposure),
    "flicker": (0.6, _flicker),
    "camera": (2, _camera),
    "passer_by": (2, _passer_by),
    "inset": (1, _inset),
    "television": (0.8, _television),
    "lower_third": (1.5, _lower_third),
    "screen": (1, _screen),
    "damage": (0.8, _damage),
    "freeze": (0.8, _freeze),
    "stop_motion": (0.8, _stop_motion),
}
"""Kinds of distractors, with the weight of each."""


MOVES: tuple[Callable[[Rng, Clip, Source], Clip], ...] = (
    _whip_pan, _whip_pan, _held, _held, _camera, _passer_by, _exposure,
)  # fmt: skip
"""Events of a single hand-held take, drawn for films of moves."""


def disturb(
    rng: Rng, clip: Clip, other: Source, *, of: Literal["all", "moves", "held"] = "all"
) -> Clip:
    """Applies one distractor to a shot of at least 24 frames: any kind, of `MOVES`, or held."""
    if of == "held":
        return _held(rng, clip, other)
    if of == "moves":
        return MOVES[int(rng.integers(len(MOVES)))](rng, clip, other)
    weights = np.array([weight for weight, _ in KINDS.values()])
    kind = str(rng.choice(list(KINDS), p=weights / weights.sum()))
    return KINDS[kind][1](rng, clip, other)
