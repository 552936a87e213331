"""Samples frames of a clip while it is decoded, as pixels, as JPEGs, or as recognized text.

Shape letters: T frames, H height, W width.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import chain
from typing import Literal

import av
import numpy as np
from numpy.typing import NDArray

from curator.errors import CutError
from curator.media.audio_samples import clip_samples
from curator.media.clip_packets import packets_from
from curator.media.opencv import cv2
from curator.media.scale import Scaler, cover_size, fit_inside, matrix_of, resized_centre
from curator.records.audio_requests import AudioSpan
from curator.records.cuts import SampledFrames, TextLine

JPEG_QUALITY = 90
"""JPEG quality, similar to training data of models. A picture of 448 px takes 20 to 60 KB."""
READ_PX = 1280
"""Longer side of the pictures in which text is read."""

ReadText = Callable[[NDArray[np.uint8]], tuple[TextLine, ...]]
"""Reads the lines of text in a picture, uint8 RGB [H, W, 3]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A request for frames of a clip in one size and form.

    Attributes:
        numbers: Frame numbers from 0, ascending.
        size: (width, height): frames are scaled to cover it, and cropped around the centre, to the
            pixels that `ClipDataset` gives. A number: frames are shrunk to it as their longer side,
            and never enlarged.
        form: `rgb` for pixels, `jpeg`, or `text` for recognized lines of text.
    """

    numbers: tuple[int, ...]
    size: tuple[int, int] | int
    form: Literal["rgb", "jpeg", "text"] = "rgb"

    @property
    def n_bytes(self) -> int:
        """Most bytes of the frames as RGB; a number as `size` counts as a square."""
        width, height = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        return len(self.numbers) * height * width * 3


class FrameSampler:
    """Samples frames of a clip during one pass over it.

    Args:
        wanted: Requests. A request of form `rgb` has a height and width. All requests of form
            `jpeg` have the same size, and so do those of form `text`.
        read_text: Reads text; None if no text is requested.
    """

    def __init__(self, wanted: Sequence[Wanted], read_text: ReadText | None = None) -> None:
        self.n_frames = 0
        """Number of frames so far."""
        self._wanted = [({number: at for at, number in enumerate(w.numbers)}, w) for w in wanted]
        self._pixels = {
            place: np.empty((len(request.numbers), *request.size[::-1], 3), np.uint8)
            for place, request in enumerate(wanted)
            if request.form == "rgb" and isinstance(request.size, tuple)
        }
        self._read_text = read_text
        self._scaler = cache(lambda w, h: Scaler(w, h, method="area"))
        self._jpegs: dict[int, bytes] = {}
        self._text: dict[int, tuple[TextLine, ...]] = {}

    def see(self, picture: av.VideoFrame) -> None:
        """Samples the next frame if it is requested; it is upright, with square pixels."""
        for place, (numbers, wanted) in enumerate(self._wanted):
            at = numbers.get(self.n_frames)
            if at is None:
                continue
            rgb_HWC = self._scaled(picture, wanted.size)  # noqa: N806
            if wanted.form == "rgb":
                self._pixels[place][at] = rgb_HWC
            elif wanted.form == "jpeg":
                self._jpegs[self.n_frames] = _jpeg(rgb_HWC)
            elif self._read_text is not None:
                self._text[self.n_frames] = self._read_text(rgb_HWC)
        self.n_frames += 1

    def sampled(self) -> SampledFrames:
        """Returns the frames sampled so far."""
        return SampledFrames(
            n_frames=self.n_frames,
            pixels=tuple(self._pixels.values()),
            jpegs=dict(self._jpegs),
            text=dict(self._text),
        )

    def _scaled(self, picture: av.VideoFrame, size: tuple[int, int] | int) -> NDArray[np.uint8]:
        if isinstance(size, tuple):
            shown = cover_size(picture.width, picture.height, size)
            return np.asarray(resized_centre(picture, shown, size), np.uint8)
        picture.colorspace = matrix_of(picture)
        return self._scaler(*fit_inside(picture.width, picture.height, size)).rgb_HWC(picture)


def _jpeg(rgb_HWC: NDArray[np.uint8]) -> bytes:  # noqa: N803
    done, jpeg = cv2.imencode(".jpg", rgb_HWC[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    if not done:
        raise ValueError(f"cannot encode a {rgb_HWC.shape[1]}x{rgb_HWC.shape[0]} picture as JPEG")
    return jpeg.tobytes()


def sample_clip(
    mp4: bytes,
    wanted: Sequence[Wanted],
    *,
    n_frames: int,
    threads: int,
    read_text: ReadText | None = None,
    rate: Fraction | None = None,
    audio: Sequence[AudioSpan] = (),
) -> SampledFrames:
    """Samples frames of a written clip, which is decoded once, up to the last requested frame.

    Args:
        mp4: A clip that this program wrote: upright, square pixels, frames in order.
        wanted: Requests. Without a frame in any of them, no frame is decoded.
        n_frames: Number of frames that were written.
        threads: Decoder threads.
        read_text: As for `FrameSampler`.
        rate: Frames per second. If it is given, decoding begins at the key frame before the first
            requested frame, and else at the clip's start.
        audio: Requests for audio.

    Raises:
        CutError: The clip does not decode, or it ends before the last requested frame.
    """
    sampler = FrameSampler(wanted, read_text)
    n_needed = max((1 + request.numbers[-1] for request in wanted if request.numbers), default=0)
    try:
        with av.open(io.BytesIO(mp4), mode="r") as container:
            if n_needed:
                first = min(number for request in wanted for number in request.numbers[:1])
                _see_frames(container, sampler, first, n_needed, threads=threads, rate=rate)
            waves = tuple(clip_samples(container, span) for span in audio)
    # PyAV raises ValueError for a format of audio that changes.
    except (av.error.FFmpegError, ValueError) as error:
        raise CutError(f"a written clip of {len(mp4)} bytes does not decode: {error}") from error
    if sampler.n_frames < n_needed:
        raise CutError(f"a written clip of {n_frames} frames decodes to {sampler.n_frames}; "
                       "`curate verify` says more")  # fmt: skip
    sampler.n_frames = n_frames
    return replace(sampler.sampled(), audio=waves)


def _see_frames(
    container: av.container.InputContainer,
    sampler: FrameSampler,
    first: int,
    n_needed: int,
    *,
    threads: int,
    rate: Fraction | None,
) -> None:
    """Decodes a clip from the key frame before frame `first` on, up to frame `n_needed`."""
    stream = container.streams.video[0]
    stream.codec_context.thread_count = threads
    ticks = 0 if rate is None or stream.time_base is None else 1 / (rate * stream.time_base)
    packets = packets_from(container, stream, round(first * ticks))
    for picture in chain.from_iterable(packet.decode() for packet in packets):
        number = sampler.n_frames if not ticks else round((picture.pts or 0) / ticks)
        if number != sampler.n_frames and (sampler.n_frames or number > first):
            raise CutError(
                f"frame {number} of a written clip follows frame {sampler.n_frames - 1}; "
                "`curate verify` says more"
            )
        sampler.n_frames = number
        sampler.see(picture)
        if sampler.n_frames == n_needed:
            return
