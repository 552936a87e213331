"""Text and logos drawn over footage, and signs painted into a scene, with known truth."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from curator.footage.pictures import Picture

Patch = NDArray[np.uint8]
"""uint8 RGBA, height x width x 4."""
Corner = Literal["top left", "top right", "bottom left", "bottom right"]
Style = Literal["outlined", "boxed", "plain"]
Colour = tuple[int, int, int]


def lettering(
    text: str,
    *,
    size_px: int,
    style: Style = "outlined",
    colour: Colour = (255, 255, 255),
    font: Path | None = None,
) -> Patch:
    """Writes a line of text.

    Args:
        text: What it says.
        size_px: Size of the font; capitals are about 0.7 of it high.
        style: With a dark outline, on a dark box, or neither.
        colour: Of the letters, RGB.
        font: A TrueType file; None for the one that Pillow carries, which has Latin letters.
    """
    face: ImageFont.FreeTypeFont | ImageFont.ImageFont
    if font is not None:
        face = ImageFont.truetype(str(font), size_px)
    else:
        face = ImageFont.load_default(size_px)
    stroke = max(1, size_px // 12) if style == "outlined" else 0
    margin = max(2, size_px // 5)
    left, top, right, bottom = face.getbbox(text)
    size = (round(right - left) + 2 * margin, round(bottom - top) + 2 * margin)
    back = (0, 0, 0, 170) if style == "boxed" else (*colour, 0)
    picture = Image.new("RGBA", size, back)
    ImageDraw.Draw(picture).text(
        (margin - left, margin - top),
        text,
        font=face,
        fill=(*colour, 255),
        stroke_width=stroke,
        stroke_fill=(0, 0, 0, 255),
    )
    return np.array(picture, np.uint8)


def emblem(size_px: int, *, seed: int = 0) -> Patch:
    """A logo without text: a ring, a bar and a dot in flat colours."""
    rng = np.random.default_rng(seed)
    colours = rng.integers(60, 256, (3, 3))
    canvas = np.zeros((size_px, size_px, 4), np.uint8)
    centre, radius = (size_px // 2, size_px // 2), size_px // 2 - 2
    thick = max(2, size_px // 8)

    def opaque(colour: NDArray[np.int64]) -> tuple[int, int, int, int]:
        return (int(colour[0]), int(colour[1]), int(colour[2]), 255)

    cv2.circle(canvas, centre, radius - thick // 2, opaque(colours[0]), thick, cv2.LINE_AA)
    cv2.line(canvas, (thick, size_px - thick), (size_px - thick, thick), opaque(colours[1]), thick)
    cv2.circle(canvas, (size_px // 3, size_px // 3), size_px // 8, opaque(colours[2]), -1)
    return canvas


def drawn(frame: Picture, patch: Patch, x: int, y: int, *, opacity: float = 1.0) -> Picture:
    """A frame with a patch over it; what lies outside the frame is left out.

    Args:
        frame: uint8 RGB, height x width x 3.
        patch: What is drawn.
        x: Its left edge, in pixels of the frame.
        y: Its top edge.
        opacity: Of the whole patch, 0 to 1.
    """
    height, width = frame.shape[:2]
    x0, y0 = max(0, x), max(0, y)
    x1, y1 = min(width, x + patch.shape[1]), min(height, y + patch.shape[0])
    if x0 >= x1 or y0 >= y1:
        return frame
    part = patch[y0 - y : y1 - y, x0 - x : x1 - x].astype(np.float32)
    alpha = part[:, :, 3:] * (opacity / 255)
    made = frame.copy()
    under = made[y0:y1, x0:x1].astype(np.float32)
    made[y0:y1, x0:x1] = np.rint(under + (part[:, :, :3] - under) * alpha).astype(np.uint8)
    return made


def subtitled(
    frames: Iterable[Picture],
    patches: Sequence[Patch | None],
    *,
    n_frames: int,
    bottom: float = 0.94,
) -> Iterator[Picture]:
    """Frames with captions in the middle of the bottom, one after the other.

    Args:
        frames: uint8 RGB.
        patches: The captions; None for a pause. After the last the first comes again.
        n_frames: How long each stands.
        bottom: Their lower edge, as a share of the height.
    """
    for index, frame in enumerate(frames):
        patch = patches[index // n_frames % len(patches)]
        if patch is None:
            yield frame
            continue
        height, width = frame.shape[:2]
        x, y = (width - patch.shape[1]) // 2, round(bottom * height) - patch.shape[0]
        yield drawn(frame, patch, x, y)


def with_ticker(
    frames: Iterable[Picture], patch: Patch, *, px_per_frame: float, y: float = 0.9
) -> Iterator[Picture]:
    """Frames with a line that scrolls to the left without end.

    Args:
        frames: uint8 RGB.
        patch: The line.
        px_per_frame: How fast.
        y: Its upper edge, as a share of the height.
    """
    for index, frame in enumerate(frames):
        height, width = frame.shape[:2]
        x = -round(index * px_per_frame) % patch.shape[1] - patch.shape[1]
        made = frame
        while x < width:
            made = drawn(made, patch, x, round(y * height))
            x += patch.shape[1]
        yield made


def with_mark(
    frames: Iterable[Picture], patch: Patch, *, corner: Corner, opacity: float = 1.0
) -> Iterator[Picture]:
    """Frames with a watermark or a logo in a corner.

    Args:
        frames: uint8 RGB.
        patch: What is drawn.
        corner: Where, with a margin of 4% of the height.
        opacity: 0 to 1.
    """
    for frame in frames:
        height, width = frame.shape[:2]
        margin = round(0.04 * height)
        x = margin if "left" in corner else width - margin - patch.shape[1]
        y = margin if "top" in corner else height - margin - patch.shape[0]
        yield drawn(frame, patch, x, y, opacity=opacity)


def with_sign(picture: Picture, patch: Patch, *, x: float, y: float) -> Picture:
    """A picture with a sign painted into it, for a camera to move over.

    Args:
        picture: uint8 RGB.
        patch: What the sign shows.
        x: Its middle, as a share of the width.
        y: Its middle, as a share of the height.
    """
    height, width = picture.shape[:2]
    board = np.full((*patch.shape[:2], 4), (236, 232, 220, 255), np.uint8)
    left, top = round(x * width) - patch.shape[1] // 2, round(y * height) - patch.shape[0] // 2
    return drawn(drawn(picture, board, left, top), patch, left, top)
