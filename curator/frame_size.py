"""Reads sizes of pictures as users give them: width, then height, as in FFmpeg."""

import re
from fractions import Fraction

MIN_SIDE_PX, MAX_SIDE_PX = 16, 16_384
"""H.264 has no larger side than `MAX_SIDE_PX`; a side below 16 px is a mistake."""
EXPECTED = "expected 1280x720, 720p, 256 (a square) or [1280, 720]: width, height"

_LINES = re.compile(r"(\d+)p", re.IGNORECASE | re.ASCII)
_SIDES = re.compile(r"([0-9]+)(?:\s*[x×]\s*([0-9]+))?", re.IGNORECASE)  # noqa: RUF001


def parsed_size(value: object) -> tuple[int, int]:
    """Returns width and height of video, in pixels.

    Args:
        value: `(1280, 720)`, `"1280x720"`, `"720p"` for 16:9 with 720 lines, or `256` for a square.

    Raises:
        ValueError: The value is no size, or a side is odd (4:2:0 halves both sides), below
            `MIN_SIDE_PX` or above `MAX_SIDE_PX`.
    """
    sides = parsed_sides(value)
    if not all(MIN_SIDE_PX <= side <= MAX_SIDE_PX and side % 2 == 0 for side in sides):
        near = "x".join(str(_even(min(max(side, MIN_SIDE_PX), MAX_SIDE_PX))) for side in sides)
        raise ValueError(
            f"size {value!r} (width, height); expected even numbers from {MIN_SIDE_PX} to "
            f"{MAX_SIDE_PX}, such as {near}"
        )
    return sides


def size_words(size: tuple[int, int]) -> str:
    """Returns a size as text, such as `1280x720`."""
    return f"{size[0]}x{size[1]}"


def parsed_sides(value: object) -> tuple[int, int]:
    """Returns width and height as `parsed_size`, with any sides."""
    sides: object = value
    if isinstance(value, str):
        if (lines := _LINES.fullmatch(value.strip())) is not None and int(lines[1]) % 2 == 0:
            sides = shape_of(int(lines[1]), 16, 9)
        elif (named := _SIDES.fullmatch(value.strip())) is not None:
            sides = int(named[1]), int(named[2] or named[1])
    elif _is_whole(value):
        sides = value, value
    if isinstance(sides, list | tuple) and len(sides) == 2 and all(map(_is_whole, sides)):
        return sides[0], sides[1]
    raise ValueError(f"size {value!r}; {EXPECTED}")


def shape_of(short_px: int, width: int, height: int) -> tuple[int, int]:
    """Returns the even size with a ratio of sides, `width` to `height`, and a shorter side.

    An odd shorter side is rounded up, so that the size stays in a class by its shorter side.
    """
    short = short_px + short_px % 2
    long = max(short, _even(short_px * max(width, height) / min(width, height)))
    return (long, short) if width >= height else (short, long)


def _even(side_px: float) -> int:
    return 2 * round(side_px / 2)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def upright_size(
    width: int, height: int, rotation_deg: int, pixel_aspect: Fraction
) -> tuple[int, int]:
    """Returns the size in square pixels after a clockwise rotation, by enlarging one side.

    `pixel_aspect` is width / height of a pixel after rotation.
    """
    if rotation_deg % 180:
        width, height = height, width
    if pixel_aspect > 1:
        width = round(width * pixel_aspect)
    elif pixel_aspect < 1:
        height = round(height / pixel_aspect)
    return max(1, width), max(1, height)
