"""Reads the bar codes of `marked.py` and `films.py`; imports little, for a quick start."""

import io

import numpy as np
from PIL import Image

BLOCK_PX = 16

FILM_ROWS, FILM_COLUMNS = 2, 8
"""Blocks of a film's bar code, across the upper quarter of the picture, whatever its size."""
FILM_FRAME_BITS = 10
"""Lower bits: the frame's number in Gray code, so that one block changes at a time."""


def marks_in_mp4(mp4: bytes) -> list[list[int]]:
    """Clip and frame of each picture."""
    import av

    with av.open(io.BytesIO(mp4)) as container:
        return [mark_in(picture.to_image()) for picture in container.decode(video=0)]


def mark_in_jpeg(jpeg: bytes) -> list[int]:
    """Clip and frame."""
    return mark_in(Image.open(io.BytesIO(jpeg)))


def mark_in(image: Image.Image) -> list[int]:
    """Clip and frame."""
    grey = np.asarray(image.convert("L"), np.float32)
    means = grey.reshape(4, BLOCK_PX, 4, BLOCK_PX).mean((1, 3)).ravel()
    code = sum(1 << i for i, mean in enumerate(means) if mean > 120)
    return [code >> 4, code & 15]


def film_mark_in_jpeg(jpeg: bytes) -> list[int]:
    """Number of the film, and of its frame."""
    grey = np.asarray(Image.open(io.BytesIO(jpeg)).convert("L"), np.float32)
    height, width = grey.shape
    block_h, block_w = height / 4 / FILM_ROWS, width / FILM_COLUMNS
    code = 0
    for i in range(FILM_ROWS * FILM_COLUMNS):
        top, left = i // FILM_COLUMNS * block_h, i % FILM_COLUMNS * block_w
        # The middle of a block, so that its edges do not matter.
        rows = slice(round(top + block_h / 4), round(top + block_h * 3 / 4) + 1)
        columns = slice(round(left + block_w / 4), round(left + block_w * 3 / 4) + 1)
        code |= int(grey[rows, columns].mean() > 128) << i
    gray = code & (1 << FILM_FRAME_BITS) - 1
    frame = 0
    while gray:
        frame, gray = frame ^ gray, gray >> 1
    return [code >> FILM_FRAME_BITS, frame]
