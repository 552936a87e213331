"""Scales decoded frames: to the small sizes of measurements, and to the size of training frames.

`Scaler`, FFmpeg's filter graph, is for measurements: it takes chroma for centred between pixels,
whatever the frame declares, as the networks of the analysis were trained. `resized_centre` is for
the frames that trainers and annotators get: it honours the declared chroma location, which is left
for H.264. `benchmarks/results/frame_colours.md` compares both with an exact conversion.
"""

import sys
from collections.abc import Iterable

import av
import numpy as np
from av.video.reformatter import Interpolation
from numpy.typing import NDArray

HD_WIDTH_PX, SD_HEIGHT_PX = 1280, 576
"""Least width of HD, and largest height of SD (PAL), before rotation and crop: mpv and VLC decide
by the same sizes."""
PRESHRINK = 5
"""Size after the first step of a large bicubic shrinking, relative to the result: see `Scaler`."""


class Scaler:
    """Scales frames to one size, upright, as RGB.

    The graph is the `scale` filter of the `ffmpeg` command, so a network that was trained on the
    command's output sees the same pixels. Bicubic shrinking by ten times or more has two steps: the
    first one averages areas, to five times the final size. This takes half the time, and changes a
    pixel by 0.3 levels on average.

    Args:
        width: Width of the result after rotation, in pixels.
        height: Height of the result after rotation, in pixels.
        method: `bicubic` (the command's default) or `area` (no aliasing at strong shrinking).
        rotation_deg: Clockwise rotation to apply: 0, 90, 180 or 270.
        is_mirrored: Whether to mirror left to right, after the rotation.
        pixels: FFmpeg's `rgb24`, or `gray` for luma of full range.
    """

    def __init__(
        self,
        width: int,
        height: int,
        *,
        method: str = "bicubic",
        rotation_deg: int = 0,
        is_mirrored: bool = False,
        pixels: str = "rgb24",
    ) -> None:
        turned = rotation_deg % 180 == 90
        self._size = (height, width) if turned else (width, height)
        self._method, self._pixels = method, pixels
        self._turns, self._is_mirrored = rotation_deg // 90, is_mirrored
        self._form: tuple[int, int, str] | None = None
        self._graph: av.filter.Graph | None = None

    def rgb_HWC(self, picture: av.VideoFrame) -> NDArray[np.uint8]:  # noqa: N802
        """Scales one frame to uint8 RGB [height, width, 3], or luma [height, width]; contiguous."""
        form = (picture.width, picture.height, picture.format.name)
        if self._graph is None or form != self._form:
            self._graph, self._form = self._build(picture), form
        self._graph.push(picture)
        scaled = self._graph.pull()
        if not isinstance(scaled, av.VideoFrame):
            raise TypeError(f"scale gave a {type(scaled).__name__}, expected a video frame")
        rgb = np.asarray(scaled.to_ndarray(), np.uint8)
        if self._turns:
            rgb = np.rot90(rgb, k=-self._turns)
        if self._is_mirrored:
            rgb = rgb[:, ::-1]
        return np.ascontiguousarray(rgb)

    def _steps(self, picture: av.VideoFrame) -> list[tuple[int, int, str]]:
        """Returns the sizes and methods of the successive scalings."""
        width, height = self._size
        between = width * PRESHRINK, height * PRESHRINK
        is_small = picture.width < 2 * between[0] or picture.height < 2 * between[1]
        first = [] if self._method == "area" or is_small else [(*between, "area")]
        return [*first, (width, height, self._method)]

    def _build(self, picture: av.VideoFrame) -> av.filter.Graph:
        sizes = [
            ("scale", f"{width}:{height}:flags={method}")
            for width, height, method in self._steps(picture)
        ]
        return filter_graph(picture, [*sizes, ("format", self._pixels)])


def is_hd(width: int, height: int) -> bool:
    """Returns whether untagged colour of coded pictures is BT.709, as in players; else BT.601."""
    return width >= HD_WIDTH_PX or height > SD_HEIGHT_PX


def filter_graph(picture: av.VideoFrame, filters: Iterable[tuple[str, str]]) -> av.filter.Graph:
    """Returns a graph for pictures of one form; `filters` are names and arguments."""
    graph = av.filter.Graph()
    graph.threads = 1
    source = graph.add_buffer(
        width=picture.width,
        height=picture.height,
        format=picture.format,
        time_base=picture.time_base,
    )
    nodes = [graph.add(name, arguments) for name, arguments in filters]
    graph.link_nodes(source, *nodes, graph.add("buffersink")).configure()
    return graph


def fit_inside(width: int, height: int, longest_px: int) -> tuple[int, int]:
    """Shrinks a size in proportion until its longer side is at most `longest_px`."""
    scale = min(1.0, longest_px / max(width, height))
    return max(1, round(width * scale)), max(1, round(height * scale))


_UNKNOWN_MATRICES = (0, 2)
_BT709, _BT601 = 1, 5


def matrix_of(picture: av.VideoFrame) -> int:
    """Returns the matrix coefficients of ITU-T H.273; the size decides for untagged frames."""
    if int(picture.colorspace) not in _UNKNOWN_MATRICES:
        return int(picture.colorspace)
    return _BT709 if is_hd(picture.width, picture.height) else _BT601


def cover_size(width: int, height: int, size: tuple[int, int]) -> tuple[int, int]:
    """Scales a size in proportion to the smallest (width, height) that covers `size`."""
    scale = max(size[0] / width, size[1] / height)
    return max(size[0], round(width * scale)), max(size[1], round(height * scale))


def resized_centre(
    picture: av.VideoFrame,
    shown: tuple[int, int],
    size: tuple[int, int],
    *,
    pixels: str = "rgb24",
) -> NDArray[np.generic]:
    """Resizes a frame of a written clip, and crops it around the centre.

    The loader and annotators show frames by this function, so both see the same pixels. At the
    frame's own size, FFmpeg's fast conversion to RGB takes a sixth of the exact conversion's time.
    Both are one level darker on average.

    Args:
        picture: Any frame; untagged colours go by its size.
        shown: (width, height) of the whole resized frame.
        size: (width, height) of the result, at most `shown`.
        pixels: `rgb24`, or `gray16le` for one channel of 16 bits.

    Returns:
        uint8 RGB [height, width, 3], or uint16 [height, width]; not contiguous.
    """
    shrinks = shown[1] < picture.height
    resized = picture.reformat(
        width=shown[0],
        height=shown[1],
        format=pixels,
        src_colorspace=matrix_of(picture),
        interpolation=Interpolation.AREA if shrinks else Interpolation.BICUBIC,
        threads=1,
    )
    left, top = (shown[0] - size[0]) // 2, (shown[1] - size[1]) // 2
    return resized.to_ndarray()[top : top + size[1], left : left + size[0]]


def rgb_of(picture: av.VideoFrame) -> NDArray[np.uint8]:
    """Returns a frame at its own size, uint8 RGB [H, W, 3], with the loader's pixels."""
    size = picture.width, picture.height
    return np.asarray(resized_centre(picture, size, size), np.uint8)


LIMITED_BLACK, LIMITED_WHITE = 16, 235
"""Luma of black and white in limited range (ITU-R BT.709)."""

FULL_RANGE = 2
"""FFmpeg's `AVCOL_RANGE_JPEG`."""


def luma_plane(picture: av.VideoFrame) -> tuple[NDArray[np.uint8], int, int]:
    """Returns luma as coded, without a copy if it is a separate plane of 8 bits.

    Luma is not converted to full range: for 1080p, this takes 5 ms of a core, and makes even steps
    uneven. The result is valid as long as the picture.

    Returns:
        Luma, uint8 [H, W], and its levels of black and white.
    """
    form = picture.format
    luma = form.components[0]
    is_planar = not form.is_rgb and not form.has_palette and form.components
    if not is_planar or (len(form.components) > 1 and form.components[1].plane == luma.plane):
        return np.asarray(picture.to_ndarray(format="gray"), np.uint8), 0, 255
    plane = picture.planes[luma.plane]
    is_full = form.name.startswith("yuvj") or int(picture.color_range) == FULL_RANGE
    black, white = (0, 255) if is_full else (LIMITED_BLACK, LIMITED_WHITE)
    if luma.bits == 8:
        rows = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)
        return rows[: picture.height, : picture.width], black, white
    is_plain = form.name.startswith(("yuv", "gray")) and not form.is_big_endian
    if luma.bits > 16 or not is_plain or sys.byteorder != "little":
        return np.asarray(picture.to_ndarray(format="gray"), np.uint8), 0, 255
    deep = np.frombuffer(memoryview(plane), np.uint16).reshape(-1, plane.line_size // 2)
    shown = deep[: picture.height, : picture.width]
    return (shown >> (luma.bits - 8)).astype(np.uint8), black, white
