"""Decodes a window of a clip, with each frame identified by its index.

Shape letters: C channels (red, green, blue), T frames, H, W height and width.
"""

import hashlib
import io
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain

import av.error
import av.video.frame
import av.video.stream
import numpy as np
import torch
from av.container import InputContainer
from numpy.typing import NDArray

from curator.errors import ShardError, SourceError, UsageError
from curator.media.clip_packets import packets_from
from curator.media.container import open_container, video_stream
from curator.media.scale import cover_size, resized_centre
from curator.media.still_images import IMAGE_DEMUXERS, read_still


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameWindow:
    """Which frames of a clip to decode.

    Attributes:
        stride: The window takes every `stride`-th frame, if it has no `fps`.
        fps: Frames/s of the window, whatever the rate of the clip. Frame k of the window is the one
            that is shown a quarter into the window's k-th interval, as in clips that `cut.fps`
            writes, so a frame of a slower clip may come twice. None counts frames of the clip.
        place: `first` begins at the clip's start; `random` draws the start from seed, round, key.
    """

    frames: int
    stride: int
    fps: Fraction | None
    place: str
    decoder_threads: int

    def __post_init__(self) -> None:
        """Raises `UsageError` for a value out of its range."""
        for name in ("frames", "stride", "decoder_threads"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} {value!r}; expected a whole number from 1")
        if self.place not in ("first", "random"):
            raise UsageError(f"window {self.place!r}; expected 'first' or 'random'")
        if self.fps is not None and self.stride != 1:
            raise UsageError(
                f"fps {self.fps} with stride {self.stride}: fps takes frames by time, and stride "
                "by number; give one of them"
            )

    def offsets(self, rate: Fraction) -> NDArray[np.int64]:
        """Returns the frames to decode of a clip with `rate` frames/s, counted from the start."""
        if self.fps is None:
            return np.arange(self.frames) * self.stride
        ratio = rate / self.fps
        # Products of rates such as 23.976023976 exceed 64 bits.
        above, below = ratio.numerator, 4 * ratio.denominator
        return np.array([(4 * k + 1) * above // below for k in range(self.frames)], np.int64)

    def span(self, rate: Fraction) -> int:
        """Number of frames that the window covers of a clip with `rate` frames/s."""
        return int(self.offsets(rate)[-1]) + 1

    def seconds(self, rate: Fraction) -> Fraction:
        """Returns the duration of the window of a clip with `rate` frames/s.

        Each frame lasts to the next one of the window. So if the window leaves out frames, the last
        frame may last beyond the clip, by less than one frame of the window.
        """
        return self.frames * self.stride / rate if self.fps is None else self.frames / self.fps

    def rate(self, clip_rate: float) -> float:
        """Returns frames/s of a window of a clip."""
        return clip_rate / self.stride if self.fps is None else float(self.fps)

    def start(self, n_starts: int, key: str, *, seed: int, round_: str) -> int:
        """Returns which of the possible starts a window has; all processes draw the same."""
        if self.place == "first":
            return 0
        return drawn(f"window {seed} {round_} {key}") % n_starts


def drawn(name: str) -> int:
    """Returns a random number below 2^64 that depends on a text only."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipWindow:
    """A window of one clip.

    Attributes:
        wanted: Indices of the frames to decode, ascending; a frame may come several times.
        rate: Exact frames/s; a container's average is wrong if the last frame lasts longer.
        scaled: Whether frames are scaled to cover the requested size; else they are only cropped,
            and must be at least that large.
        pixels: `rgb24`, or `gray16le` for one channel of 16 bits.
        name: Name of the clip in messages.
    """

    mp4: bytes
    wanted: NDArray[np.int64]
    rate: Fraction
    decoder_threads: int
    scaled: bool
    name: str
    pixels: str = "rgb24"

    @property
    def start(self) -> int:
        """Index of the first frame."""
        return int(self.wanted[0])


def decode_window(clip: ClipWindow, into_CTHW: torch.Tensor) -> None:  # noqa: N803
    """Decodes the wanted frames of a clip into a tensor in the host's memory, [C, T, H, W].

    The tensor is uint8 with 3 channels, or int32 with one for `gray16le`.

    Frames are cropped around the centre. Their timestamps give their indices, because clips have a
    constant rate and begin at time 0; from the key frame before `start` on, no index may be
    missing. `resized_centre` gives the pixels.

    Raises:
        ShardError: A frame is missing, does not decode, or is too small.
    """
    name, threads = clip.name, clip.decoder_threads
    wanted = clip.wanted.tolist()
    n_decoded = 0
    # NumPy copies in this thread: torch's threads would wait for each other at each frame.
    frames_CTHW = into_CTHW.numpy()  # noqa: N806 - shape letters
    try:
        file, n_bytes = io.BytesIO(clip.mp4), len(clip.mp4)
        still = read_still(file, name, n_bytes)
        with open_container(file, name, n_bytes=n_bytes, still=still) as container:
            stream = video_stream(container, name, still=still)
            stream.thread_type = "AUTO" if threads > 1 else "NONE"
            stream.codec_context.thread_count = threads
            for number, picture in _numbered(container, stream, clip):
                if number < wanted[n_decoded]:
                    continue
                end = bisect_right(wanted, number, lo=n_decoded)
                shown = _pixels(picture, into_CTHW.shape[-2:], clip)
                frames_CTHW[:, n_decoded:end] = shown[:, None]
                n_decoded = end
                if n_decoded == len(wanted):
                    return
    except (av.error.FFmpegError, SourceError) as error:
        fault = f"{name} does not decode ({error})"
        raise ShardError(f"{fault}; `curate verify` lists all damage") from error
    raise ShardError(
        f"{name} has {n_decoded} of the {len(wanted)} frames from {clip.start} to "
        f"{wanted[-1]}; `curate verify` lists all damage"
    )


def _numbered(
    container: InputContainer, stream: av.video.stream.VideoStream, clip: ClipWindow
) -> Iterator[tuple[int, av.video.frame.VideoFrame]]:
    """Yields frames with their indices, from the key frame before `start` on."""
    assert stream.time_base is not None
    start, rate, name = clip.start, clip.rate, clip.name
    if container.format.name in IMAGE_DEMUXERS.values():
        yield 0, next(container.decode(stream))
        return
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
                f"constant rate {rate}, expected {meant}; `curate verify` lists all damage"
            )
        yield number, picture
        before = number


def shown_size(height: int, width: int, size: tuple[int, ...], clip: ClipWindow) -> tuple[int, int]:
    """Returns the (height, width) to which a frame is scaled before it is cropped.

    Raises:
        ShardError: The frame is only cropped, and is smaller than `size`.
    """
    shown = height, width
    if clip.scaled:
        shown = cover_size(width, height, (size[1], size[0]))[::-1]
    if shown[0] < size[0] or shown[1] < size[1]:
        raise ShardError(
            f"{clip.name} is {width}x{height}, smaller than the {size[1]}x{size[0]} of its "
            "bucket's smallest clip in the table; `curate verify` lists all damage, `size` scales"
        )
    return shown


def _pixels(
    picture: av.video.frame.VideoFrame, size: tuple[int, ...], clip: ClipWindow
) -> NDArray[np.generic]:
    """Returns the centre of a frame, [C, H, W], as an array that is not contiguous."""
    height, width = size
    shown = shown_size(picture.height, picture.width, size, clip)
    shown_HWC = resized_centre(  # noqa: N806 - shape letters
        picture, shown[::-1], (width, height), pixels=clip.pixels
    )
    if shown_HWC.ndim == 2:
        return shown_HWC[None]
    return shown_HWC.transpose(2, 0, 1)
