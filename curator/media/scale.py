"""Scales decoded frames to the small sizes that measurements want, in FFmpeg's filter graph."""

import av
import av.filter
import av.video.frame
import numpy as np
from numpy.typing import NDArray

PRESHRINK = 5
"""How many times larger than its result the input of a bicubic shrinking is at most."""


class Scaler:
    """Scales frames to one size, upright, as RGB.

    The graph is the `ffmpeg` command's own `scale` filter, so that a network that was trained on
    that command's output sees the same pixels. A bicubic shrinking of ten times or more first
    averages whole pixels down to five times the size, which takes half the time and moves a pixel
    by 0.3 levels in the mean. The graph is rebuilt when the input's form changes.

    Args:
        width: Width of the result, in pixels, after rotation.
        height: Height of the result, in pixels, after rotation.
        method: `bicubic` (the command's default) or `area` (no aliasing when shrinking much).
        rotation_deg: Clockwise rotation to apply: 0, 90, 180 or 270.
    """

    def __init__(
        self, width: int, height: int, *, method: str = "bicubic", rotation_deg: int = 0
    ) -> None:
        turned = rotation_deg % 180 == 90
        self._size = (height, width) if turned else (width, height)
        self._method = method
        self._turns = rotation_deg // 90
        self._form: tuple[int, int, str] | None = None
        self._graph: av.filter.Graph | None = None

    def rgb_HWC(self, picture: av.video.frame.VideoFrame) -> NDArray[np.uint8]:  # noqa: N802
        """Scales one frame.

        Args:
            picture: A decoded frame.

        Returns:
            uint8 RGB of shape [height, width, 3], contiguous.
        """
        form = (picture.width, picture.height, picture.format.name)
        if self._graph is None or form != self._form:
            self._graph, self._form = self._build(picture), form
        self._graph.push(picture)
        scaled = self._graph.pull()
        if not isinstance(scaled, av.video.frame.VideoFrame):
            raise TypeError(f"scale gave a {type(scaled).__name__}, expected a video frame")
        rgb = np.asarray(scaled.to_ndarray(), np.uint8)
        if self._turns:
            rgb = np.rot90(rgb, k=-self._turns)
        return np.ascontiguousarray(rgb)

    def _steps(self, picture: av.video.frame.VideoFrame) -> list[tuple[int, int, str]]:
        """Sizes and methods of the scalings, one after the other."""
        width, height = self._size
        between = width * PRESHRINK, height * PRESHRINK
        last = (width, height, self._method)
        if (
            self._method == "area"
            or picture.width < 2 * between[0]
            or picture.height < 2 * between[1]
        ):
            return [last]
        return [(*between, "area"), last]

    def _build(self, picture: av.video.frame.VideoFrame) -> av.filter.Graph:
        graph = av.filter.Graph()
        graph.threads = 1
        source = graph.add_buffer(
            width=picture.width,
            height=picture.height,
            format=picture.format,
            time_base=picture.time_base,
        )
        graph.link_nodes(
            source,
            *(
                graph.add("scale", f"{width}:{height}:flags={method}")
                for width, height, method in self._steps(picture)
            ),
            graph.add("format", "rgb24"),
            graph.add("buffersink"),
        ).configure()
        return graph


def fit_inside(width: int, height: int, longest_px: int) -> tuple[int, int]:
    """Size of the same shape whose longer side is at most `longest_px`; never enlarges."""
    scale = min(1.0, longest_px / max(width, height))
    return max(1, round(width * scale)), max(1, round(height * scale))


def native_luma(picture: av.video.frame.VideoFrame) -> NDArray[np.uint8]:
    """Luma of a frame at its own size, uint8 [H, W] of full range, as coded."""
    return np.asarray(picture.to_ndarray(format="gray"), np.uint8)
