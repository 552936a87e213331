"""Decodes written clips, and scales the frames that are asked for.

Shape letters: T frames, H height, W width.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field

import av
import numpy as np
from av.video.reformatter import Colorspace
from numpy.typing import NDArray

from curator.errors import CutError
from curator.media.frame_tap import HD_PX
from curator.media.scale import Scaler


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Frames of one size that are wanted of a clip.

    Attributes:
        numbers: From 0, ascending.
        height: Pictures are scaled to cover height and width, and cropped around their centre.
        width: Likewise.
    """

    numbers: tuple[int, ...]
    height: int
    width: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the frames, as RGB."""
        return len(self.numbers) * self.height * self.width * 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipToSample:
    """A written clip, and the frames that are wanted of it.

    Attributes:
        uri: The object that holds it.
        mp4: Its bytes.
        n_frames: Frames that were written, for the message of an error.
        wanted: One for each request.
    """

    uri: str
    mp4: bytes = field(repr=False)
    n_frames: int
    wanted: tuple[Wanted, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipPixels:
    """Frames of a clip, uint8 [T, H, W, 3] RGB of each request; or why there are none."""

    pixels: tuple[NDArray[np.uint8], ...] = ()
    error: str | None = None


def clip_frames(
    mp4: bytes, wanted: Sequence[Wanted], *, n_frames: int, threads: int
) -> list[NDArray[np.uint8]]:
    """Decodes a clip once, and returns the frames of each request.

    Args:
        mp4: A clip that this program wrote: upright, square pixels, frames in order.
        wanted: Requests.
        n_frames: Frames that were written, for the message of an error.
        threads: Of the decoder.

    Returns:
        uint8 [T, H, W, 3] RGB of each request.

    Raises:
        CutError: The clip does not decode, or it ends before the last wanted frame. Frames after
            that one are not looked at.
    """
    takers = [_Taker(one) for one in wanted]
    last = max(one.numbers[-1] for one in wanted)
    n_decoded = 0
    try:
        with av.open(io.BytesIO(mp4), mode="r") as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = threads
            for picture in container.decode(stream):
                for taker in takers:
                    taker.see(n_decoded, picture)
                n_decoded += 1
                if n_decoded > last:
                    break
    except av.error.FFmpegError as error:
        raise CutError(f"a written clip of {len(mp4)} bytes does not decode: {error}") from error
    if n_decoded <= last:
        raise CutError(f"a written clip of {n_frames} frames decodes to {n_decoded}; `curate "
                       "verify` says more")  # fmt: skip
    return [taker.frames_THWC for taker in takers]


class _Taker:
    def __init__(self, wanted: Wanted) -> None:
        self._wanted = {number: at for at, number in enumerate(wanted.numbers)}
        shape = (len(wanted.numbers), wanted.height, wanted.width, 3)
        self.frames_THWC = np.empty(shape, np.uint8)
        self._scaler: Scaler | None = None
        self._top = self._left = 0

    def see(self, number: int, picture: av.VideoFrame) -> None:
        """Takes a frame if it is wanted."""
        at = self._wanted.get(number)
        if at is None:
            return
        is_untagged = int(picture.colorspace) in (0, 2)
        if is_untagged and min(picture.width, picture.height) >= HD_PX:
            picture.colorspace = Colorspace.ITU709
        _, height, width, _ = self.frames_THWC.shape
        if self._scaler is None:
            scale = max(height / picture.height, width / picture.width)
            scaled = (
                max(height, round(picture.height * scale)),
                max(width, round(picture.width * scale)),
            )
            self._top, self._left = (scaled[0] - height) // 2, (scaled[1] - width) // 2
            self._scaler = Scaler(scaled[1], scaled[0], method="area" if scale < 1 else "bicubic")
        rgb = self._scaler.rgb_HWC(picture)
        rows = slice(self._top, self._top + height)
        self.frames_THWC[at] = rgb[rows, self._left : self._left + width]
