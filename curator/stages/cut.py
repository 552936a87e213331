"""Writes the clips that survived: exactly the frames of their spans, verified by decoding.

A clip whose source is in the form that the recipe accepts is copied: its packets are written as
they are, from the first key frame in the span on. All others are encoded.

Each clip seeks to the key frame before its span. What a seek brings is compared with the timestamps
that the analysis saw: a frame that is missing, extra or damaged sends the clip to an earlier seek,
and in the end to the start of the file.
"""

import hashlib
import io
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import BinaryIO, Literal, Self

import av
import av.container
import av.error
import av.video.frame
import av.video.stream
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from curator.errors import CutError, DecodeError, ErrorCode
from curator.lake import fingerprint
from curator.media.container import open_container, pixel_aspect_of, video_stream
from curator.media.copy import (
    CannotCopyError,
    PacketSpan,
    VideoPacket,
    mux_copy,
    packets_of_span,
    refuse_stream,
)
from curator.media.decode import DecodedFrame, FrameReader, upright_size
from curator.media.encode import EncodeSettings, Upright, encode_mp4
from curator.records import CutClip, CutRequest, NotCopied
from curator.stages.copy import check_copy, give_up_ticks, refuse_request

CUT_VERSION = 3
"""Raised when the same settings would write other bytes."""

EARLIER_S = (0.0, 2.0, 10.0)
"""How long before a span seeks aim, one after the other, before the file is read from its start."""


class CutConfig(BaseModel):
    """How clips are written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["auto", "encode"] = Field(
        "auto",
        description="auto copies the stream where that loses nothing, else encodes; encode always "
        "encodes",
        json_schema_extra={"unit": "name"},
    )
    copy_codecs: tuple[Literal["h264"], ...] = Field(
        ("h264",),
        description="codecs that may be copied, in 8-bit 4:2:0 of limited range",
        json_schema_extra={"unit": "names"},
    )
    # 1 s: half of the shortest clip's 2 s; phones and x264's defaults put key frames 1 to 10 s
    # apart, so that more would seldom find another one.
    copy_give_up_s: float = Field(
        1.0,
        ge=0,
        description="most time that a copy may leave out at both ends together, to begin at a key "
        "frame; copy_give_up_share must hold too",
        json_schema_extra={"unit": "s"},
    )
    copy_give_up_share: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="most of a clip's time that a copy may leave out at both ends together; "
        "copy_give_up_s must hold too",
        json_schema_extra={"unit": "share"},
    )

    # 20: near-transparent with x264's veryfast; a constant rate would starve or bloat clips. 0 is
    # lossless, which H.264 High is not.
    crf: int = Field(
        20,
        ge=1,
        le=51,
        description="x264 constant rate factor; lower is better and larger",
        json_schema_extra={"unit": "x264 CRF"},
    )
    preset: Literal[
        "ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower"
    ] = Field(
        "veryfast",
        description="x264 preset: time against size at the same quality",
        json_schema_extra={"unit": "name"},
    )


def cut_fingerprint(config: CutConfig) -> str:
    """Fingerprint of encoded clips: settings, code version, encoder library."""
    return fingerprint(
        "cut", CUT_VERSION, config.model_dump(mode="json"), av.library_versions["libavcodec"]
    )


def target_n_frames(request: CutRequest) -> int:
    """Frames that the clip will have: its own, or those of a constant rate over its time."""
    return len(frame_plan(request))


def frame_plan(request: CutRequest) -> NDArray[np.int64]:
    """For each frame written, the index of the source's frame on screen at that time.

    Args:
        request: The clip; with a variable rate, frames are repeated or left out so that each
            output time shows what the source showed.
    """
    n_source = len(request.frame_pts)
    if not request.is_vfr:
        return np.arange(n_source)
    ticks = float(1 / (request.fps * request.time_base))
    span = request.end_pts - int(request.frame_pts[0])
    n_frames = max(1, round(span / ticks))
    times = request.frame_pts[0] + (np.arange(n_frames) + 0.25) * ticks
    plan = np.searchsorted(request.frame_pts, times, side="right") - 1
    within: NDArray[np.int64] = np.clip(plan, 0, n_source - 1)
    return within


class ClipCutter:
    """Cuts the clips of one source; a context manager, which closes the container.

    Args:
        reader: The source, seekable.
        uri: Name for messages.
        n_bytes: Its size.
        config: Settings.
        max_pixels: Largest frame, in pixels.
        decoder_threads: Threads of the decoder; changes no result.
    """

    def __init__(
        self,
        reader: BinaryIO,
        uri: str,
        *,
        n_bytes: int,
        config: CutConfig,
        max_pixels: int,
        decoder_threads: int,
    ) -> None:
        self._reader = reader
        self._uri = uri
        self._n_bytes = n_bytes
        self._config = config
        self._settings = EncodeSettings(crf=config.crf, preset=config.preset)
        self._max_pixels = max_pixels
        self._threads = decoder_threads
        self._container: av.container.InputContainer | None = None
        self._stack = ExitStack()
        self.n_from_start = 0
        """Clips for which no seek gave the right frames."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _opened(self) -> av.container.InputContainer:
        """The container, which stays open for the next clip as long as nothing goes wrong."""
        if self._container is None:
            self._container = self._stack.enter_context(
                open_container(self._reader, self._uri, n_bytes=self._n_bytes)
            )
        return self._container

    def _close(self) -> None:
        self._container = None
        self._stack.close()

    def cut(self, request: CutRequest) -> CutClip:
        """Writes one clip: a copy if the recipe wants one and it holds, else encoded.

        Raises:
            CutError: The frames of the span cannot be had again, or what was written does not
                decode to what was meant.
            SourceError: The source cannot be read any more.
        """
        try:
            return self._cut(request)
        except BaseException:
            # Where the demuxer stands is unknown now.
            self._close()
            raise

    def _cut(self, request: CutRequest) -> CutClip:
        not_copied: NotCopied | None = None
        copy_frames: int | None = None
        if self._config.mode == "auto":
            try:
                return self._copied(request)
            except CannotCopyError as error:
                not_copied, copy_frames = error.reason, error.n_frames
        mp4, n_frames, width, height = self._encoded(request)
        return CutClip(
            clip_id=request.clip_id,
            mp4=mp4,
            mode="encode",
            first=0,
            end=len(request.frame_pts),
            n_frames=n_frames,
            fps=request.fps,
            width=width,
            height=height,
            sha256=hashlib.sha256(mp4).hexdigest(),
            not_copied=not_copied,
            copy_frames=copy_frames,
        )

    def _copied(self, request: CutRequest) -> CutClip:
        stream = video_stream(self._opened(), self._uri)
        refuse_stream(stream, self._config.copy_codecs)
        refuse_request(request, stream)
        span = self._packets(stream, request)
        if span.n_frames < request.min_frames:
            raise CannotCopyError(NotCopied.TOO_FEW_FRAMES, n_frames=span.n_frames)
        mp4 = mux_copy(stream, span, request.fps)
        check_copy(mp4, request, span, threads=self._threads, max_pixels=self._max_pixels)
        return CutClip(
            clip_id=request.clip_id,
            mp4=mp4,
            mode="copy",
            first=span.first,
            end=span.end,
            n_frames=span.n_frames,
            fps=request.fps,
            width=stream.width,
            height=stream.height,
            sha256=hashlib.sha256(mp4).hexdigest(),
            not_copied=None,
            copy_frames=None,
        )

    def _packets(self, stream: av.video.stream.VideoStream, request: CutRequest) -> PacketSpan:
        limit = give_up_ticks(
            request,
            at_most_s=self._config.copy_give_up_s,
            at_most_share=self._config.copy_give_up_share,
        )
        try:
            return packets_of_span(
                self._packets_from(stream, request),
                frame_pts=request.frame_pts,
                end_pts=request.end_pts,
                give_up_ticks=limit,
                extradata=stream.codec_context.extradata,
            )
        except av.error.FFmpegError as error:
            self._close()
            raise CannotCopyError(NotCopied.DAMAGED) from error

    def _packets_from(
        self, stream: av.video.stream.VideoStream, request: CutRequest
    ) -> Iterator[VideoPacket]:
        """Packets from a place before which no copy of the span can begin."""
        container = self._opened()
        for earlier_s in EARLIER_S:
            target = request.start_pts - round(earlier_s / request.time_base)
            container.seek(target, stream=stream, backward=True)
            packets = container.demux(stream)
            first = next(packets, None)
            # MPEG-TS is sought by decoding time, which may lie behind the span's first key frame.
            # Whatever follows an IDR picture is shown after it.
            if first is not None and first.pts is not None and first.pts <= request.start_pts:
                break
        if first is not None:
            yield first
        yield from packets

    def _encoded(self, request: CutRequest) -> tuple[bytes, int, int, int]:
        for earlier_s in (*EARLIER_S, None):
            try:
                mp4, n_frames, width, height = self._encode(request, earlier_s)
            except _WrongFramesError as wrong:
                self._close()
                if earlier_s is not None:
                    continue
                raise CutError(f"{self._uri}: clip {request.clip_id}: {wrong}") from wrong
            if earlier_s is None:
                self.n_from_start += 1
                self._close()
            self._verify(mp4, request, n_frames)
            return mp4, n_frames, width, height
        raise AssertionError("the last attempt returns or raises")

    def _encode(self, request: CutRequest, earlier_s: float | None) -> tuple[bytes, int, int, int]:
        container = self._opened()
        stream = video_stream(container, self._uri)
        frames = FrameReader(
            container,
            stream,
            self._uri,
            threads=1 if earlier_s is None else self._threads,
            max_pixels=self._max_pixels,
        )
        if earlier_s is not None:
            self._seek(container, frames, request, earlier_s)
        exact = _exact_frames(frames, request, tolerant=earlier_s is None)
        first = next(exact)
        aspect = pixel_aspect_of(stream, request.rotation_deg)
        crop = request.crop
        if crop is None:
            coded = (first.picture.width, first.picture.height)
            size = upright_size(*coded, request.rotation_deg, aspect)
        else:
            size = upright_size(crop.width, crop.height, 0, aspect)
        upright = Upright(
            *size,
            rotation_deg=request.rotation_deg,
            crop=crop,
            deinterlace=request.is_interlaced,
        )
        mp4, n_frames = encode_mp4(
            _at_constant_rate(upright, first, exact, frame_plan(request)),
            width=upright.width,
            height=upright.height,
            fps=request.fps,
            settings=self._settings,
        )
        return mp4, n_frames, upright.width, upright.height

    def _seek(
        self,
        container: av.container.InputContainer,
        frames: FrameReader,
        request: CutRequest,
        earlier_s: float,
    ) -> None:
        target = request.start_pts - round(earlier_s / frames.time_base)
        try:
            container.seek(target, stream=frames.stream, backward=True)
        except av.error.FFmpegError as error:
            raise _WrongFramesError(f"no seek to {target}") from error

    def _verify(self, mp4: bytes, request: CutRequest, n_encoded: int) -> None:
        meant = target_n_frames(request)
        try:
            with av.open(io.BytesIO(mp4), mode="r") as container:
                stream = container.streams.video[0]
                stream.codec_context.thread_count = self._threads
                times = [frame.pts for frame in container.decode(stream)]
        except av.error.FFmpegError as error:
            raise CutError(
                f"{self._uri}: clip {request.clip_id} does not decode: {error}"
            ) from error
        if len(times) != meant or n_encoded != meant or times[0] != 0:
            raise CutError(
                f"{self._uri}: clip {request.clip_id} decodes to {len(times)} frames from time "
                f"{times[0] if times else None}; expected {meant} from 0"
            )


class _WrongFramesError(Exception):
    """Decoding did not give the frames that the analysis saw."""


def _exact_frames(
    frames: FrameReader, request: CutRequest, *, tolerant: bool
) -> Iterator[DecodedFrame]:
    """Yields the span's frames and no other, or raises `_WrongFramesError`.

    Args:
        frames: Decoder, standing before the span.
        request: The clip.
        tolerant: Take damaged frames too: from the start of the file they are what was analyzed.
    """
    wanted = request.frame_pts
    position = 0
    is_anchored = tolerant
    try:
        for frame in frames:
            is_anchored |= bool(frame.picture.key_frame)
            if frame.pts < wanted[0]:
                continue
            # Streams refreshed piece by piece give frames after a seek that are not yet whole.
            if not is_anchored:
                raise _WrongFramesError(f"no key frame at or before {frame.pts}")
            if frame.pts != wanted[position]:
                raise _WrongFramesError(
                    f"frame at {frame.pts}, where {int(wanted[position])} was analyzed"
                )
            # A frame before the span counts too: what refers to a concealed frame shows its damage.
            if not tolerant and frames.report.is_damaged:
                raise _WrongFramesError(f"damage at or before {frame.pts}")
            yield frame
            position += 1
            if position == len(wanted):
                return
    except DecodeError as error:
        if error.code == ErrorCode.TOO_MANY_PIXELS:
            raise
        raise _WrongFramesError(str(error)) from error
    raise _WrongFramesError(f"{position} of {len(wanted)} frames decode")


def _at_constant_rate(
    upright: Upright,
    first: DecodedFrame,
    rest: Iterator[DecodedFrame],
    plan: NDArray[np.int64],
) -> Iterator[av.video.frame.VideoFrame]:
    """Frames as planned: each source frame as often as the plan names it."""
    repeats = np.bincount(plan)
    position = 0

    def repeated(
        ready: list[av.video.frame.VideoFrame],
    ) -> Iterator[av.video.frame.VideoFrame]:
        nonlocal position
        for picture in ready:
            times = int(repeats[position]) if position < len(repeats) else 0
            for _ in range(times):
                yield picture
            position += 1

    yield from repeated(upright.push(first.picture))
    for frame in rest:
        yield from repeated(upright.push(frame.picture))
    yield from repeated(upright.flush())
