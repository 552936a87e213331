"""Views of a frame that the CPU decoded, for measurements: small pictures, and full-size luma.

`device_samples.DeviceView` has the same views of a frame that a device decoded.
"""

from functools import cached_property

import numpy as np
from av.video.frame import PictureType, VideoFrame
from numpy.typing import NDArray

from curator.measures.borders import find_borders, inside
from curator.measures.drawn_boxes import drawn_boxes
from curator.measures.drawn_marks import edge_map
from curator.measures.look_maps import moved_map, standing_lines
from curator.measures.measure_contract import Full
from curator.measures.sample_signals import native_signals, picture_signals
from curator.media.coded_quantizer import quantizer_signals
from curator.media.container import Orientation
from curator.media.opencv import cv2
from curator.media.scale import Scaler, fit_inside, luma_plane
from curator.models.distortion_network import crops_of, read_corners
from curator.models.perceptual import describe
from curator.models.transnet import PICTURE_PX, tiny_scaler

Picture = NDArray[np.uint8]

SMALL_PX = 320
"""Longer side of the picture for flow and the descriptor: fixed, so that motion in pixels does not
depend on the source's resolution."""


class HostScalers:
    """Scalers of the frames of one source.

    `size` is width and height of the upright source in square pixels. `orientation` turns frames
    upright. `smooths_all` says whether the decoder applies its loop filter to all frames.
    """

    def __init__(
        self, size: tuple[int, int], orientation: Orientation, *, smooths_all: bool
    ) -> None:
        self.smooths_all = smooths_all
        self._rotation_deg, self._is_mirrored = orientation
        self._full: dict[Full, Scaler] = {}
        upright = orientation._asdict()
        self.tiny = tiny_scaler(**upright)
        self.picture, self.small = (
            Scaler(*fit_inside(*size, px), method="area", **upright)
            for px in (PICTURE_PX, SMALL_PX)
        )

    def full(self, frame: VideoFrame, kind: Full) -> Picture:
        """Returns the upright frame at full size; pixels keep their aspect ratio.

        All frames get the size of the first frame for which this method was called.
        """
        if kind not in self._full:
            size = frame.width, frame.height
            self._full[kind] = Scaler(
                *(size[::-1] if self._rotation_deg % 180 else size),
                method="area",
                rotation_deg=self._rotation_deg,
                is_mirrored=self._is_mirrored,
                pixels="rgb24" if kind == "rgb" else "gray",
            )
        return self._full[kind].rgb_HWC(frame)


class HostView:
    """Views of one frame, computed on first use: uint8, RGB [H, W, 3] or luma [H, W]."""

    text_map = None

    def __init__(self, frame: VideoFrame, scalers: HostScalers) -> None:
        self._frame, self._scalers = frame, scalers

    def tiny(self) -> Picture:
        """Returns the picture for the shot network, 48x27."""
        return self._scalers.tiny.rgb_HWC(self._frame)

    @cached_property
    def picture(self) -> Picture:
        """The larger picture, for sharpness, text and CLIP."""
        return self._scalers.picture.rgb_HWC(self._frame)

    @cached_property
    def gray(self) -> Picture:
        """Luma of the larger picture."""
        return _gray_of(self.picture)

    @cached_property
    def small(self) -> Picture:
        """The smaller picture, for flow and the descriptor."""
        # Always scaled from the frame, even if `picture` exists. Flow compares two small pictures,
        # and two different ways of scaling would look like motion.
        return self._scalers.small.rgb_HWC(self._frame)

    @cached_property
    def small_gray(self) -> Picture:
        """Luma of the smaller picture."""
        return _gray_of(self.small)

    @property
    def is_whole(self) -> bool:
        """Whether the decoder surely applied the loop filter, as the encoder intended.

        The decoder may skip the loop filter for frames that no other frame refers to. Full-size
        luma of such a frame shows blocks that are not in the video.
        """
        return self._scalers.smooths_all or self._frame.pict_type != PictureType.B

    def full(self, kind: Full) -> Picture:
        """Returns the picture of full size, for users' measures."""
        return self._scalers.full(self._frame, kind)

    def descriptor(self) -> NDArray[np.float32]:
        """Returns the perceptual descriptor."""
        return describe(self.small)

    def look_maps(self) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
        """Returns edges and drawn boxes of the larger picture."""
        return edge_map(self.gray), drawn_boxes(self.picture)

    def maps_since(self, before_HW: Picture) -> tuple[Picture, Picture]:
        """Compares this frame with an earlier sample, whose luma is `before_HW`.

        Returns a map of the straight lines that did not move, and a map of the motion.
        """
        return standing_lines(before_HW, self.gray), moved_map(before_HW, self.gray)

    def native_signals(self) -> dict[str, float]:
        """Returns signals of full-size luma."""
        luma, black, white = luma_plane(self._frame)
        return native_signals(luma, black=black, white=white)

    def crops(self) -> NDArray[np.uint8]:
        """Returns crops of full-size luma inside the borders, for the distortion score."""
        luma, black, white = luma_plane(self._frame)
        height, width = luma.shape
        box = inside(height, width, find_borders(luma, black=black, white=white))
        return crops_of(luma, read_corners(box), black=black, white=white)

    def picture_signals(self) -> dict[str, float]:
        """Returns signals of the larger picture, and the quantiser that the decoder reports."""
        return picture_signals(self.gray) | quantizer_signals(self._frame)


def _gray_of(rgb_HWC: Picture) -> Picture:
    return np.asarray(cv2.cvtColor(rgb_HWC, cv2.COLOR_RGB2GRAY), np.uint8)
