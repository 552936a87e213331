"""What measurements see of a frame: small pictures, and full-size luma.

A frame of the CPU's decoder is scaled by FFmpeg, one on a GPU there; only the small pictures, and
the rows and columns of luma that are read, cross to the host.
"""

from functools import partial
from typing import Any

import numpy as np
from av.video.frame import PictureType
from numpy.typing import NDArray

from curator.measures.quantizer import quantizer_signals
from curator.measures.sample_signals import native_signals
from curator.media.device_frames import DevicePicture, DeviceScaler
from curator.media.scale import Scaler, luma_plane
from curator.models.shot_pictures import tiny_scaler

Picture = NDArray[np.uint8]
Size = tuple[int, int]


class Views:
    """Views of frames of one source, in the host's memory; pictures are uint8 RGB [H, W, 3].

    Args:
        picture: Width and height of the upright picture for sharpness, text and CLIP, in pixels.
        small: Those of the picture for flow and the descriptor.
        rotation_deg: Clockwise rotation that shows the source upright.
        smooths_all: Whether the decoder smooths the blocks of all frames, or only of those that
            others refer to.
    """

    def __init__(self, picture: Size, small: Size, rotation_deg: int, *, smooths_all: bool) -> None:
        self._smooths_all = smooths_all
        self._tiny = tiny_scaler(rotation_deg)
        make = partial(Scaler, method="area", rotation_deg=rotation_deg)
        self._picture: Scaler | DeviceScaler = make(*picture)
        self._small: Scaler | DeviceScaler = make(*small)

    def tiny(self, frame: Any) -> Picture:  # noqa: ANN401
        """The shot network's picture, 48x27."""
        return self._tiny.rgb_HWC(frame)

    def picture(self, frame: Any) -> Picture:  # noqa: ANN401
        """The larger picture."""
        return self._picture.rgb_HWC(frame)

    def small(self, frame: Any) -> Picture:  # noqa: ANN401
        """The smaller picture."""
        return self._small.rgb_HWC(frame)

    def is_whole(self, frame: Any) -> bool:  # noqa: ANN401
        """Whether full-size luma is as the encoder meant it.

        Frames that no other refers to may come without the loop filter.
        """
        return self._smooths_all or frame.pict_type != PictureType.B

    def native_signals(self, frame: Any) -> dict[str, float]:  # noqa: ANN401
        """Signals of full-size luma."""
        luma, black, white = luma_plane(frame)
        return native_signals(luma, black=black, white=white)

    def coding_signals(self, frame: Any) -> dict[str, float]:  # noqa: ANN401
        """Signals that the decoder knows."""
        return quantizer_signals(frame)


class DeviceViews(Views):
    """Views of frames in a device's memory, whose decoder smooths all of them."""

    def __init__(self, picture: Size, small: Size, rotation_deg: int) -> None:
        make = partial(DeviceScaler, method="area", rotation_deg=rotation_deg)
        self._picture, self._small = make(*picture), make(*small)

    def tiny(self, frame: DevicePicture) -> Picture:
        """As `Views.tiny`; made together with other frames'."""
        assert frame.tiny is not None
        return frame.tiny

    def is_whole(self, _frame: DevicePicture) -> bool:
        """As `Views.is_whole`."""
        return True

    def native_signals(self, frame: DevicePicture) -> dict[str, float]:
        """As `Views.native_signals`."""
        return native_signals(frame.luma(), black=frame.form.black, white=frame.form.white)

    def coding_signals(self, _frame: DevicePicture) -> dict[str, float]:
        """As `Views.coding_signals`; the engine is not asked for quantisers."""
        return {"quantizer": float("nan")}
