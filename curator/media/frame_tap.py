"""Takes small pictures of a clip's frames while the clip is decoded for another purpose.

A stage that needs frames gives a `FrameOrder` to the stage that decodes clips; neither imports the
other.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import av
import numpy as np
from av.video.reformatter import Colorspace
from numpy.typing import NDArray

from curator.errors import CutError
from curator.media.opencv import cv2
from curator.media.scale import Scaler, fit_inside
from curator.records.clips import Clip, Written
from curator.records.cuts import Looked, TextLine

JPEG_QUALITY = 90
"""About the quality of models' training data; at 448 px a picture has 20 to 60 KB."""
READ_PX = 1280
"""Longer side of the pictures in which text is read."""
HD_PX = 720
"""From this shorter side on untagged colours are BT.709, as in encoding."""

Reads = Callable[[NDArray[np.uint8]], tuple[TextLine, ...]]
"""Reads the lines of text in a picture, uint8 RGB [H, W, 3]."""


class Tap:
    """Takes frames of a clip as they pass: those whose numbers, from 0, are `wanted`.

    Pictures are scaled down to a longer side of `longest_px`. `reads` reads text in the frames
    `read_at` among them.
    """

    def __init__(
        self,
        wanted: Iterable[int],
        *,
        longest_px: int,
        reads: Reads | None = None,
        read_at: Iterable[int] = (),
    ) -> None:
        self._wanted = frozenset(wanted)
        self._longest_px = longest_px
        self._reads = reads
        self._read_at = frozenset(read_at)
        self._scalers: dict[tuple[int, int], Scaler] = {}
        self._n_frames = 0
        self._jpegs: dict[int, bytes] = {}
        self._text: dict[int, tuple[TextLine, ...]] = {}

    def passing(self, pictures: Iterable[av.VideoFrame]) -> Iterator[av.VideoFrame]:
        """The same frames; those that are wanted are taken as they pass."""
        for picture in pictures:
            self.see(picture)
            yield picture

    def see(self, picture: av.VideoFrame) -> None:
        """Takes the next frame, upright with square pixels, if it is wanted."""
        if self._n_frames in self._wanted:
            self._take(picture)
        self._n_frames += 1

    def looked(self) -> Looked:
        """What was taken so far."""
        return Looked(n_frames=self._n_frames, jpegs=dict(self._jpegs), text=dict(self._text))

    def _take(self, picture: av.VideoFrame) -> None:
        shown = self._scaled(picture, self._longest_px)
        done, jpeg = cv2.imencode(
            ".jpg", shown[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
        )
        if not done:
            raise ValueError(f"a picture of {shown.shape[1]}x{shown.shape[0]} makes no JPEG")
        self._jpegs[self._n_frames] = jpeg.tobytes()
        if self._reads is not None and self._n_frames in self._read_at:
            self._text[self._n_frames] = self._reads(self._scaled(picture, READ_PX))

    def _scaled(self, picture: av.VideoFrame, longest_px: int) -> NDArray[np.uint8]:
        size = fit_inside(picture.width, picture.height, longest_px)
        if size not in self._scalers:
            self._scalers[size] = Scaler(*size, method="area")
        is_untagged = int(picture.colorspace) in (0, 2)
        if is_untagged and min(picture.width, picture.height) >= HD_PX:
            picture.colorspace = Colorspace.ITU709
        return self._scalers[size].rgb_HWC(picture)


MakeTap = Callable[[int, int], Tap]
"""Makes the tap of a clip from its number of frames and its first frame within the request."""

Moment = tuple[float, float]
"""Start and end of an event, in seconds from the source's first frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameWish:
    """The frames wanted of one clip."""

    content: str
    """Fingerprint of the clip's pixels as proposed."""
    reads_text: bool = False
    """Whether to read text in the frames."""
    moments: tuple[Moment, ...] = ()
    """Events of the source, around which more frames are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenFrames:
    """Frames taken from a clip, not stored yet."""

    clip_id: str
    wish: FrameWish
    looked: Looked
    written: Written | None = None
    """The clip as written; None for a clip as its wish describes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFrames:
    """Place of a clip's stored frames, or the error."""

    clip_id: str
    content: str = ""
    """Fingerprint of the clip's pixels."""
    part: str = ""
    row: int = 0
    n_frames: int = 0
    """Frames of the clip, as decoded."""
    text: str = ""
    """Text in the frames, as JSON; empty if none was read."""
    error: str | None = None


class FrameTaker(Protocol):
    """Chooses and stores frames; pickled for the workers that decode."""

    def tap(
        self, wish: FrameWish, fps: Fraction | float, start_s: Callable[[int], float]
    ) -> MakeTap:
        """Returns a maker of the tap of a clip that is written at a rate of `fps`.

        `start_s` is the second of the source at which the clip begins, from its first frame.
        """

    def store(self, taken: Sequence[TakenFrames]) -> list[StoredFrames]:
        """Stores the frames of some clips and returns their places."""


def store_looked(
    taker: FrameTaker,
    wanted: Iterable[tuple[str, FrameWish]],
    results: Iterable[Looked | StoredFrames],
) -> list[StoredFrames]:
    """Stores what was taken of the clips of a unit; failures come last.

    Args:
        taker: Stores it.
        wanted: Id and wish of each clip, which name it: a sandbox may have been taken over.
        results: What was taken of each, or its failure.
    """
    taken: list[TakenFrames] = []
    failed: list[StoredFrames] = []
    for (clip_id, wish), result in zip(wanted, results, strict=True):
        if isinstance(result, Looked):
            taken.append(TakenFrames(clip_id=clip_id, wish=wish, looked=result))
        else:
            failed.append(result)
    return [*taker.store(taken), *failed]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameOrder:
    """Tells the stage that decodes clips to take frames for another stage."""

    taker: FrameTaker
    wish: Callable[[Clip], FrameWish]
    """Which frames of a clip."""
    take: Callable[[Sequence[StoredFrames], Mapping[str, Written]], None]
    """Called with stored frames, and with the written clips among them by id."""


def look_at_clip(mp4: bytes, tap: Tap, *, threads: int) -> Looked:
    """Takes frames of a clip that this program wrote: upright, square pixels, frames in order.

    Raises:
        CutError: The clip does not decode.
    """
    try:
        with av.open(io.BytesIO(mp4), mode="r") as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = threads
            for picture in container.decode(stream):
                tap.see(picture)
    except av.error.FFmpegError as error:
        raise CutError(f"a written clip of {len(mp4)} bytes does not decode: {error}") from error
    return tap.looked()
