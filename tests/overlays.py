"""Text and logos drawn over footage, and signs painted into a scene, with known truth."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from curator.tools.footage.scenes import Picture

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
        (margin - left, margin - top), text, font=face, fill=(*colour, 255), stroke_width=stroke,
        stroke_fill=(0, 0, 0, 255),
    )  # fmt: skip
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Inset:
    """A smaller picture over another one.

    Args:
        x: Its left edge, as a share of the width; its border lies outside of it.
        y: Its top edge, as a share of the height.
        width: As a share of the width.
        height: As a share of the height.
        border_px: Width of the line around it; 0 for none.
        border: Colour of that line, RGB.
        radius_px: Of its corners; 0 for square ones.
    """

    x: float
    y: float
    width: float
    height: float
    border_px: int = 0
    border: Colour = (255, 255, 255)
    radius_px: int = 0


def with_inset(
    frames: Iterable[Picture], others: Iterable[Picture], inset: Inset
) -> Iterator[Picture]:
    """Frames with other frames in a rectangle, as long as both last.

    What does not fit the rectangle's shape is cut off the other frames.

    Args:
        frames: uint8 RGB.
        others: What the rectangle shows.
        inset: Where it lies.
    """
    for frame, other in zip(frames, others, strict=False):
        height, width = frame.shape[:2]
        x0, x1 = round(inset.x * width), round((inset.x + inset.width) * width)
        y0, y1 = round(inset.y * height), round((inset.y + inset.height) * height)
        made = frame.copy()
        line = inset.border_px
        outer, inner = (x0 - line, y0 - line, x1 + line, y1 + line), (x0, y0, x1, y1)
        filled = np.empty_like(made)
        filled[:] = inset.border
        _put(made, filled, outer, inset.radius_px + line if inset.radius_px else 0)
        filled[y0:y1, x0:x1] = _filling(other, x1 - x0, y1 - y0)
        _put(made, filled, inner, inset.radius_px)
        yield made


def _put(frame: Picture, filled: Picture, box: tuple[int, int, int, int], radius_px: int) -> None:
    """Puts the part of a picture within a box, with round corners, into a frame."""
    height, width = frame.shape[:2]
    x0, y0, x1, y1 = max(0, box[0]), max(0, box[1]), min(width, box[2]), min(height, box[3])
    mask = np.zeros((height, width), np.uint8)
    if radius_px:
        r = radius_px
        mask[y0 + r : y1 - r, x0:x1] = 255
        mask[y0:y1, x0 + r : x1 - r] = 255
        for centre in ((x0 + r, y0 + r), (x1 - r - 1, y0 + r), (x0 + r, y1 - r - 1),
                       (x1 - r - 1, y1 - r - 1)):  # fmt: skip
            cv2.circle(mask, centre, r, 255, -1, cv2.LINE_AA)
    else:
        mask[y0:y1, x0:x1] = 255
    alpha = mask[y0:y1, x0:x1, None].astype(np.float32) / 255
    under = frame[y0:y1, x0:x1].astype(np.float32)
    over = filled[y0:y1, x0:x1].astype(np.float32)
    frame[y0:y1, x0:x1] = np.rint(under + (over - under) * alpha).astype(np.uint8)


def _filling(picture: Picture, width: int, height: int) -> Picture:
    """The middle of a picture, of a size."""
    scale = max(width / picture.shape[1], height / picture.shape[0])
    size = max(width, round(picture.shape[1] * scale)), max(height, round(picture.shape[0] * scale))
    resized = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return np.asarray(resized[top : top + height, left : left + width], np.uint8)
