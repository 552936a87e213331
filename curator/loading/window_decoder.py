"""Decodes a window of frames of a clip, exactly by number.

Shape letters: C channels (red, green, blue), T frames, H, W height and width.
"""

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any, Literal

import av.error
import av.video.frame
import av.video.stream
import numpy as np
import torch
from av.container import InputContainer
from av.packet import Packet
from av.video.reformatter import Interpolation

from curator.errors import ShardError, SourceError, UsageError
from curator.media.container import open_container, video_stream

MULTIPLE = 16
"""Heights and widths are multiples of it, because tokenizers shrink by 8 or 16."""

HD_HEIGHT_PX = 720
"""Untagged colour is BT.709 from this size on and BT.601 below, as in encoding."""

_UNKNOWN_MATRICES = (0, 2)
_BT709, _BT601 = 1, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameWindow:
    """The frames to decode of a clip.

    Attributes:
        stride: Every `stride`-th frame is taken.
        place: `first` begins with the clip; `random` begins anywhere, by seed, round and key.
    """

    frames: int
    stride: int
    place: Literal["first", "random"]
    decoder_threads: int

    def __post_init__(self) -> None:
        """Refuses values that no clip can satisfy."""
        for name in ("frames", "stride", "decoder_threads"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} {value!r}; expected a whole number from 1")
        if self.place not in ("first", "random"):
            raise UsageError(f"window {self.place!r}; expected 'first' or 'random'")

    @property
    def span(self) -> int:
        """Number of the clip's frames from the window's first to its last, both included."""
        return (self.frames - 1) * self.stride + 1

    def start(self, n_frames: int, key: str, *, seed: int, round_: int) -> int:
        """Returns the first frame of the window in a clip, the same in every process."""
        if self.place == "first":
            return 0
        name = f"window {seed} {round_} {key}".encode()
        drawn = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())
        return drawn % (n_frames - self.span + 1)


def checked_size(size: tuple[int, int]) -> tuple[int, int]:
    """Returns (height, width), both positive multiples of `MULTIPLE`; refuses others."""
    height, width = size
    if min(size) < MULTIPLE or height % MULTIPLE or width % MULTIPLE:
        near = tuple(max(MULTIPLE, round(side / MULTIPLE) * MULTIPLE) for side in size)
        raise UsageError(
            f"size {size!r} (height, width); expected multiples of {MULTIPLE}, such as {near}"
        )
    return height, width


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipWindow:
    """A window of one clip.

    Attributes:
        start: Number of the first frame.
        rate: Frames/s, exact; a container's average is wrong if its last frame lasts longer.
        scaled: Whether the picture is scaled to cover the requested size; else it is only cropped,
            and must be at least that large.
        name: Name of the clip for messages.
    """

    mp4: bytes
    start: int
    rate: Fraction
    window: FrameWindow
    scaled: bool
    name: str

    @property
    def wanted(self) -> range:
        """Numbers of the frames to decode."""
        return range(self.start, self.start + self.window.span, self.window.stride)


def decode_window(clip: ClipWindow, into_CTHW: torch.Tensor) -> None:  # noqa: N803
    """Decodes frames `start`, `start + stride`, … of a clip into a tensor, uint8 [3, T, H, W].

    The picture's centre is taken. Frames are identified by their timestamps in a clip of constant
    rate from time 0, from the key frame before `start` on, and must follow each other. FFmpeg's
    fast conversion gives RGB by the clip's matrix; it is one level darker on average than the exact
    one and takes a sixth of its time.

    Raises:
        ShardError: A frame is missing or does not decode, or the picture is too small.
    """
    window, name = clip.window, clip.name
    wanted = clip.wanted
    n_decoded = 0
    try:
        with open_container(io.BytesIO(clip.mp4), name, n_bytes=len(clip.mp4)) as container:
            stream = video_stream(container, name)
            stream.thread_type = "AUTO" if window.decoder_threads > 1 else "NONE"
            stream.codec_context.thread_count = window.decoder_threads
            for number, picture in _numbered(container, stream, clip):
                if number in wanted:
                    into_CTHW[:, n_decoded] = _rgb(picture, into_CTHW.shape[-2:], clip)
                    n_decoded += 1
                    if n_decoded == len(wanted):
                        return
    except (av.error.FFmpegError, SourceError) as error:
        raise ShardError(f"{name} does not decode ({error}); `curate verify` says more") from error
    raise ShardError(
        f"{name} has {n_decoded} of the {len(wanted)} frames from {clip.start} at stride "
        f"{window.stride}; `curate verify` says what else is wrong"
    )


def _numbered(
    container: InputContainer, stream: av.video.stream.VideoStream, clip: ClipWindow
) -> Iterator[tuple[int, av.video.frame.VideoFrame]]:
    """Yields numbered frames from the key frame before `start` on."""
    assert stream.time_base is not None
    start, rate, name = clip.start, clip.rate, clip.name
    ticks = 1 / (rate * stream.time_base)
    before: int | None = None
    packets = packets_from(container, stream, round(start * ticks))
    for picture in chain.from_iterable(packet.decode() for packet in packets):
        at = picture.pts
        number = round(at / ticks) if at is not None else -1
        expected = number if before is None else before + 1
        if at is None or number != expected or (before is None and number > start):
            meant = start if before is None else expected
            raise ShardError(
                f"{name}: a frame at {at} x {stream.time_base} s is number {number} at the "
                f"constant rate {rate}, expected {meant}; `curate verify` says what else is wrong"
            )
        yield number, picture
        before = number


def packets_from(
    container: InputContainer, stream: av.video.stream.VideoStream, pts: int
) -> "Iterator[Packet[Any]]":
    """Yields packets from the last key frame on that is not shown after `pts`.

    FFmpeg seeks by decoding time in MP4, and so may find a key frame after the wanted one, where
    frames are shown later than decoded.
    """
    target = pts
    while True:
        if target > 0:
            container.seek(target, stream=stream, backward=True)
        elif target != pts:
            container.seek(0, stream=stream)
        packets = container.demux(stream)
        first = next(packets)
        is_early = first.pts is None or first.dts is None or first.pts <= pts
        if target <= 0 or is_early:
            return chain([first], packets)
        assert first.dts is not None
        target = min(target, first.dts) - 1


def shown_size(height: int, width: int, size: tuple[int, ...], clip: ClipWindow) -> tuple[int, int]:
    """Returns (height, width) to which a picture is scaled before it is cropped.

    Raises:
        ShardError: The picture is only cropped, and is smaller than the wanted size.
    """
    shown = height, width
    if clip.scaled:
        factor = max(size[0] / height, size[1] / width)
        shown = max(size[0], round(height * factor)), max(size[1], round(width * factor))
    if shown[0] < size[0] or shown[1] < size[1]:
        raise ShardError(
            f"{clip.name} is {width}x{height}, smaller than the {size[1]}x{size[0]} of its "
            "bucket's smallest clip by the table; `curate verify` says more, `size` scales"
        )
    return shown


def matrix_of(picture: av.video.frame.VideoFrame) -> int:
    """Returns a picture's matrix coefficients by ITU-T H.273, guessed by its size if untagged."""
    if int(picture.colorspace) not in _UNKNOWN_MATRICES:
        return int(picture.colorspace)
    return _BT709 if min(picture.height, picture.width) >= HD_HEIGHT_PX else _BT601


def _rgb(
    picture: av.video.frame.VideoFrame, size: tuple[int, ...], clip: ClipWindow
) -> torch.Tensor:
    """Returns the centre of a frame, uint8 [3, H, W], not contiguous."""
    height, width = size
    shown = shown_size(picture.height, picture.width, size, clip)
    shrinks = shown[0] < picture.height
    rgb = picture.reformat(
        width=shown[1],
        height=shown[0],
        format="rgb24",
        src_colorspace=matrix_of(picture),
        interpolation=Interpolation.AREA if shrinks else Interpolation.BICUBIC,
        threads=1,
    )
    top, left = (shown[0] - height) // 2, (shown[1] - width) // 2
    shown_HWC = np.asarray(rgb.to_ndarray(), np.uint8)  # noqa: N806 - shape letters
    return torch.from_numpy(shown_HWC[top : top + height, left : left + width]).permute(2, 0, 1)
