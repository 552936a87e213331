"""Films whose frames say which film and which frame they are, whatever becomes of them."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np
from film_makers import write_video
from film_shots import moving_texture
from marks import FILM_COLUMNS, FILM_FRAME_BITS, FILM_ROWS
from overlays import Inset, emblem, lettering, subtitled, with_inset, with_mark

from curator.tools.footage.scenes import Picture

Form = Literal["plain", "rotated", "bordered", "overlaid"]
WIDTH_PX, HEIGHT_PX = 160, 120
BORDER_PX = 16
OVERLAID_PX = 320, 272
"""Width, and height without the bars: text must be large enough to be read."""
SAID = "BREAKING NEWS"
FPS = Fraction(25)


def write_film(path: Path, number: int, n_frames: int, form: Form = "plain") -> None:
    """A moving shot with a bar code over its upper quarter.

    Args:
        path: Where to.
        number: Of the film, 1 to 63.
        n_frames: Up to 1023.
        form: `rotated` is stored lying and shown upright; `bordered` has black bars above and
            below, which are cut away; `overlaid` has them too, and `SAID` as a subtitle, a logo,
            and another picture in a corner.
    """
    if form == "overlaid":
        frames = _overlaid(number, n_frames)
    else:
        height_px = HEIGHT_PX - 2 * BORDER_PX * (form == "bordered")
        frames = _marked(number, n_frames, (WIDTH_PX, height_px))
    if form in ("bordered", "overlaid"):
        frames = (np.pad(frame, ((BORDER_PX, BORDER_PX), (0, 0), (0, 0))) for frame in frames)
    if form == "rotated":
        frames = (np.ascontiguousarray(np.rot90(frame)) for frame in frames)
    # Key frames every six, so that pieces of it can be copied.
    params = "keyint=6:min-keyint=6:scenecut=0:b-adapt=0"
    write_video(
        path, frames, fps=FPS, bframes=2, options={"preset": "veryfast", "x264-params": params},
        rotation=90 if form == "rotated" else None,
    )  # fmt: skip


def _overlaid(number: int, n_frames: int) -> Iterator[Picture]:
    frames = subtitled(
        _marked(number, n_frames, OVERLAID_PX), [lettering(SAID, size_px=24)], n_frames=n_frames
    )
    frames = with_mark(frames, emblem(32), corner="bottom left")
    others = moving_texture(n_frames, width_px=160, height_px=90, seed=number + 1)
    return with_inset(frames, others, Inset(x=0.7, y=0.35, width=0.28, height=0.3, border_px=2))


def _marked(number: int, n_frames: int, size: tuple[int, int]) -> Iterator[Picture]:
    width_px, height_px = size
    pictures = moving_texture(n_frames, width_px=width_px, height_px=height_px, seed=number)
    block = height_px // 4 // FILM_ROWS, width_px // FILM_COLUMNS
    for frame, picture in enumerate(pictures):
        code = number << FILM_FRAME_BITS | frame ^ frame >> 1
        bits = [code >> i & 1 for i in range(FILM_ROWS * FILM_COLUMNS)]
        blocks = np.array(bits, np.uint8).reshape(FILM_ROWS, FILM_COLUMNS) * 190 + 30
        strip = blocks.repeat(block[0], 0).repeat(block[1], 1)
        marked = picture.copy()
        marked[: strip.shape[0], : strip.shape[1]] = strip[:, :, None]
        yield marked
