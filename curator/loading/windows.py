"""Decodes a window of frames out of a clip, exactly by number.

Shape letters: C channels (red, green, blue), T frames, H, W height and width.
"""

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import av.error
import av.video.frame
import av.video.stream
import numpy as np
import torch
from av.container import InputContainer
from av.video.reformatter import Interpolation

from curator.errors import ShardError, SourceError, UsageError
from curator.media.container import open_container, video_stream

MULTIPLE = 16
"""Heights and widths are multiples of it: tokenizers shrink by 8 or 16."""

HD_HEIGHT_PX = 720
"""Untagged colour is BT.709 from this size on and BT.601 below, as where clips are encoded."""

_UNKNOWN_MATRICES = (0, 2)
_BT709, _BT601 = 1, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which frames of a clip are taken, and at what size.

    Attributes:
        frames: Number of frames.
        stride: Every `stride`-th frame is taken.
        place: `first` begins with the clip; `random` begins anywhere, by seed, round and key.
        decoder_threads: Threads of one decoder.
    """

    frames: int
    stride: int
    place: Literal["first", "random"]
    decoder_threads: int

    def __post_init__(self) -> None:
        """Refuses what no clip can satisfy."""
        for name in ("frames", "stride", "decoder_threads"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} {value!r}; expected a whole number from 1")
        if self.place not in ("first", "random"):
            raise UsageError(f"window {self.place!r}; expected 'first' or 'random'")

    @property
    def span(self) -> int:
        """Frames of the clip from the window's first to its last, both included."""
        return (self.frames - 1) * self.stride + 1

    def start(self, n_frames: int, key: str, *, seed: int, round_: int) -> int:
        """First frame of the window in a clip; the same whoever asks."""
        if self.place == "first":
            return 0
        name = f"window {seed} {round_} {key}".encode()
        drawn = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())
        return drawn % (n_frames - self.span + 1)


def even_size(height: int, width: int) -> tuple[int, int]:
    """The largest multiples of `MULTIPLE` within a size."""
    return height // MULTIPLE * MULTIPLE, width // MULTIPLE * MULTIPLE


def checked_size(size: tuple[int, int]) -> tuple[int, int]:
    """Returns (height, width).

    Raises:
        UsageError: One is no positive multiple of `MULTIPLE`.
    """
    height, width = size
    if min(size) < MULTIPLE or height % MULTIPLE or width % MULTIPLE:
        near = tuple(max(MULTIPLE, round(side / MULTIPLE) * MULTIPLE) for side in size)
        raise UsageError(
            f"size {size!r} (height, width); expected multiples of {MULTIPLE}, such as {near}"
        )
    return height, width


def decode_window(
    mp4: bytes,
    into_CTHW: torch.Tensor,  # noqa: N803
    *,
    start: int,
    rate: Fraction,
    window: Window,
    scaled: bool,
    name: str,
) -> None:
    """Decodes frames `start`, `start + stride`, … of a clip into a tensor.

    Frames are found by their timestamps in a clip of constant rate from time 0, beginning at the
    key frame before `start`; that each follows the one before is checked. Colours become RGB by the
    clip's matrix through FFmpeg's fast conversion, which is one level darker in the mean than the
    exact one and takes a sixth of its time.

    Args:
        mp4: The clip's bytes.
        into_CTHW: uint8 [3, T, H, W], filled in place. The picture's centre is taken.
        start: Number of the first frame.
        rate: Frames/s, exact; a container's average is off where its last frame lasts longer.
        window: Which frames.
        scaled: Whether the picture is first scaled so that it just covers H x W; else it is
            cropped only, and must be that large.
        name: Of the clip, for messages.

    Raises:
        ShardError: A frame is missing or does not decode, or the picture is too small.
    """
    wanted = range(start, start + window.span, window.stride)
    found = 0
    try:
        with open_container(io.BytesIO(mp4), name, n_bytes=len(mp4)) as container:
            stream = video_stream(container, name)
            stream.thread_type = "AUTO" if window.decoder_threads > 1 else "NONE"
            stream.codec_context.thread_count = window.decoder_threads
            for number, picture in _numbered(container, stream, start, rate, name):
                if number in wanted:
                    into_CTHW[:, found] = _rgb(picture, into_CTHW.shape[-2:], scaled, name)
                    found += 1
                    if found == len(wanted):
                        return
    except (av.error.FFmpegError, SourceError) as error:
        raise ShardError(f"{name} does not decode ({error}); `curate verify` says more") from error
    raise ShardError(
        f"{name} has {found} of the {len(wanted)} frames from {start} at stride {window.stride}; "
        "`curate verify` says what else is wrong"
    )


def _numbered(
    container: InputContainer,
    stream: av.video.stream.VideoStream,
    start: int,
    rate: Fraction,
    name: str,
) -> Iterator[tuple[int, av.video.frame.VideoFrame]]:
    """Frames from the key frame before `start` on, with their numbers."""
    assert stream.time_base is not None
    ticks = 1 / (rate * stream.time_base)
    if start:
        container.seek(round(start * ticks), stream=stream, backward=True)
    before: int | None = None
    for picture in container.decode(stream):
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


def _rgb(
    picture: av.video.frame.VideoFrame, size: tuple[int, ...], scaled: bool, name: str
) -> torch.Tensor:
    """The centre of a frame, uint8 [3, H, W], not contiguous."""
    height, width = size
    shown = picture.height, picture.width
    if scaled:
        factor = max(height / picture.height, width / picture.width)
        shown = (
            max(height, round(picture.height * factor)),
            max(width, round(picture.width * factor)),
        )
    if shown[0] < height or shown[1] < width:
        raise ShardError(
            f"{name} is {picture.width}x{picture.height}, smaller than the {width}x{height} of its "
            "bucket's smallest clip by the table; `curate verify` says more, `size` scales"
        )
    known = int(picture.colorspace) not in _UNKNOWN_MATRICES
    guessed = _BT709 if min(picture.height, picture.width) >= HD_HEIGHT_PX else _BT601
    shrinks = shown[0] < picture.height
    rgb = picture.reformat(
        width=shown[1],
        height=shown[0],
        format="rgb24",
        src_colorspace=int(picture.colorspace) if known else guessed,
        interpolation=Interpolation.AREA if shrinks else Interpolation.BICUBIC,
        threads=1,
    )
    top, left = (shown[0] - height) // 2, (shown[1] - width) // 2
    shown_HWC = np.asarray(rgb.to_ndarray(), np.uint8)  # noqa: N806 - shape letters
    return torch.from_numpy(shown_HWC[top : top + height, left : left + width]).permute(2, 0, 1)
