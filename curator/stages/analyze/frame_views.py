"""What measurements see of a frame, wherever it lies: small pictures, and full-size luma.

A frame of the CPU's decoder is scaled by FFmpeg, one on a GPU there; only the small pictures, and
the rows and columns of luma that are read, cross to the host.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from av.video.frame import PictureType, VideoFrame
from numpy.typing import NDArray

from curator.measures.quantizer import quantizer_signals
from curator.measures.sample_signals import native_signals
from curator.media.device_frames import DevicePicture, DeviceScaler
from curator.media.scale import Scaler, luma_plane
from curator.models.shot_pictures import tiny_scaler

Picture = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Width and height of the upright pictures, in pixels.

    Attributes:
        picture: For sharpness, text and CLIP.
        small: For flow and the descriptor.
        rotation_deg: Clockwise rotation that shows the source upright.
    """

    picture: tuple[int, int]
    small: tuple[int, int]
    rotation_deg: int


class Views(Protocol):
    """Views of frames of one source; pictures are uint8 RGB [H, W, 3] in the host's memory."""

    def tiny(self, frame: Any) -> Picture:  # noqa: ANN401
        """The shot network's picture, 48x27."""

    def picture(self, frame: Any) -> Picture:  # noqa: ANN401
        """The larger picture."""

    def small(self, frame: Any) -> Picture:  # noqa: ANN401
        """The smaller picture."""

    def is_whole(self, frame: Any) -> bool:  # noqa: ANN401
        """Whether full-size luma is as the encoder meant it."""

    def native_signals(self, frame: Any) -> dict[str, float]:  # noqa: ANN401
        """Signals of full-size luma."""

    def coding_signals(self, frame: Any) -> dict[str, float]:  # noqa: ANN401
        """Signals that the decoder knows."""


class HostViews:
    """Views of frames in the host's memory.

    Args:
        sizes: Of the pictures.
        smooths_all: Whether the decoder smooths the blocks of all frames, or only of those that
            others refer to.
    """

    def __init__(self, sizes: Sizes, *, smooths_all: bool) -> None:
        turn = sizes.rotation_deg
        self._smooths_all = smooths_all
        self._tiny = tiny_scaler(turn)
        self._picture = Scaler(*sizes.picture, method="area", rotation_deg=turn)
        self._small = Scaler(*sizes.small, method="area", rotation_deg=turn)

    def tiny(self, frame: VideoFrame) -> Picture:
        """As `Views`."""
        return self._tiny.rgb_HWC(frame)

    def picture(self, frame: VideoFrame) -> Picture:
        """As `Views`."""
        return self._picture.rgb_HWC(frame)

    def small(self, frame: VideoFrame) -> Picture:
        """As `Views`."""
        return self._small.rgb_HWC(frame)

    def is_whole(self, frame: VideoFrame) -> bool:
        """As `Views`; frames that no other refers to may come without the loop filter."""
        return self._smooths_all or frame.pict_type != PictureType.B

    def native_signals(self, frame: VideoFrame) -> dict[str, float]:
        """As `Views`."""
        luma, black, white = luma_plane(frame)
        return native_signals(luma, black=black, white=white)

    def coding_signals(self, frame: VideoFrame) -> dict[str, float]:
        """As `Views`."""
        return quantizer_signals(frame)


class DeviceViews:
    """Views of frames in a device's memory, whose decoder smooths all of them.

    Args:
        sizes: Of the pictures.
    """

    def __init__(self, sizes: Sizes) -> None:
        turn = sizes.rotation_deg
        self._picture = DeviceScaler(*sizes.picture, method="area", rotation_deg=turn)
        self._small = DeviceScaler(*sizes.small, method="area", rotation_deg=turn)

    def tiny(self, frame: DevicePicture) -> Picture:
        """As `Views`; made together with other frames'."""
        assert frame.tiny is not None
        return frame.tiny

    def picture(self, frame: DevicePicture) -> Picture:
        """As `Views`."""
        return self._picture.rgb_HWC(frame)

    def small(self, frame: DevicePicture) -> Picture:
        """As `Views`."""
        return self._small.rgb_HWC(frame)

    def is_whole(self, _frame: DevicePicture) -> bool:
        """As `Views`."""
        return True

    def native_signals(self, frame: DevicePicture) -> dict[str, float]:
        """As `Views`."""
        return native_signals(frame.luma(), black=frame.form.black, white=frame.form.white)

    def coding_signals(self, _frame: DevicePicture) -> dict[str, float]:
        """As `Views`; the engine is not asked for quantisers."""
        return {"quantizer": float("nan")}


def views_of(frame: VideoFrame | DevicePicture, sizes: Sizes, *, smooths_all: bool) -> Views:
    """Views of a source, by where its first frame lies.

    Args:
        frame: The first frame.
        sizes: Of the pictures.
        smooths_all: See `HostViews`.
    """
    if isinstance(frame, DevicePicture):
        return DeviceViews(sizes)
    return HostViews(sizes, smooths_all=smooths_all)
