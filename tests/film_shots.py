"""Pictures and moves of a camera, for films that tests and benchmarks make."""

from collections.abc import Iterator
from functools import lru_cache

import cv2
import numpy as np

from curator.tools.footage import scenes
from curator.tools.footage.scenes import Picture, ShotSpec, View, render_shot

PHOTOGRAPHS = {
    "astronaut": "astronaut.png", "brick": "brick.png", "camera": "camera.png",
    "cat": "chelsea.png", "coffee": "coffee.png", "coins": "coins.png", "grass": "grass.png",
    "gravel": "gravel.png", "hubble": "hubble_deep_field.jpg", "ihc": "ihc.png", "moon": "moon.png",
    "motorcycle": "motorcycle_left.png", "retina": "retina.jpg", "rocket": "rocket.jpg",
}  # fmt: skip
"""Name here, and file inside `skimage/data`."""


def photograph(name: str) -> Picture:
    """Reads one photograph, a key of `PHOTOGRAPHS`; see `scenes.photograph`."""
    return scenes.photograph(PHOTOGRAPHS[name])


def coloured_edges() -> Iterator[Picture]:
    """Red, blue and white rectangles on grey, 16:9: chroma that is off by half a pixel shows."""
    random = np.random.default_rng(3)
    frame = np.full((180, 320, 3), 128, np.uint8)
    for colour in 8 * [(255, 0, 0), (0, 0, 255), (255, 255, 255)]:
        left, top = random.integers(0, 300), random.integers(0, 160)
        frame[top : top + 37, left : left + 51] = colour
    yield from (frame, np.roll(frame, 7, axis=1))


@lru_cache(maxsize=32)
def texture(seed: int, *, width_px: int = 640, height_px: int = 480) -> Picture:
    """A coloured cloud texture with detail at every scale, where no photograph is needed.

    Args:
        seed: Equal seeds give equal pictures.
        width_px: Width.
        height_px: Height.

    Returns:
        uint8 RGB, height x width x 3; not to be changed.
    """
    rng = np.random.default_rng(seed)
    total = np.zeros((height_px, width_px, 3), np.float32)
    cells = 3
    while cells < max(width_px, height_px):
        coarse = rng.standard_normal((cells, cells, 3)).astype(np.float32)
        octave = cv2.resize(coarse, (width_px, height_px), interpolation=cv2.INTER_CUBIC)
        total += octave.astype(np.float32) / cells**0.6
        cells *= 2
    total -= total.mean(axis=(0, 1))
    total *= 55 / total.std()
    base = rng.uniform(90, 165, 3).astype(np.float32)
    picture: Picture = np.clip(total + base, 0, 255).astype(np.uint8)
    picture.setflags(write=False)
    return picture


def static(picture: Picture, n_frames: int, *, view: View | None = None, seed: int = 0) -> ShotSpec:
    """A shot whose camera stands still and whose grain does not, like a tripod's."""
    view = view or View()
    return ShotSpec(picture=picture, n_frames=n_frames, start=view, end=view, seed=seed)


def pan(
    picture: Picture,
    n_frames: int,
    *,
    span: float = 0.7,
    start: tuple[float, float] = (0.0, 0.5),
    end: tuple[float, float] = (1.0, 0.5),
    seed: int = 0,
) -> ShotSpec:
    """A shot whose camera goes from place to place at one size; see `View` for the values."""
    first, last = (View(x=x, y=y, span=span) for x, y in (start, end))
    return pan_zoom(picture, n_frames, start=first, end=last, seed=seed)


def zoom(
    picture: Picture,
    n_frames: int,
    *,
    span: tuple[float, float] = (1.0, 0.6),
    centre: tuple[float, float] = (0.5, 0.5),
    seed: int = 0,
) -> ShotSpec:
    """A shot whose camera goes in (or out, when the second span is the larger)."""
    first, last = (View(x=centre[0], y=centre[1], span=size) for size in span)
    return pan_zoom(picture, n_frames, start=first, end=last, seed=seed)


def pan_zoom(picture: Picture, n_frames: int, *, start: View, end: View, seed: int = 0) -> ShotSpec:
    """A shot whose camera moves and changes its size at once."""
    return ShotSpec(picture=picture, n_frames=n_frames, start=start, end=end, seed=seed)


def moving_texture(
    n_frames: int, *, width_px: int = 320, height_px: int = 180, seed: int = 0
) -> Iterator[Picture]:
    """A moving shot for files whose pictures do not matter, without scikit-image."""
    start, end = View(x=0.1, y=0.2, span=0.9), View(x=0.9, y=0.6, span=0.6)
    shot = pan_zoom(texture(seed), n_frames, start=start, end=end, seed=seed)
    return render_shot(shot, width_px=width_px, height_px=height_px)
