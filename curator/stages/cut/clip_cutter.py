"""Writes the clips that survived: exactly the frames of their spans, verified by decoding.

A clip whose source has the form that the recipe accepts is copied: its packets are written
unchanged, from the first key frame in the span on. All others are encoded.

Each clip seeks to the key frame before its span. The decoded frames are compared with the analyzed
timestamps: a frame that is missing, extra or damaged sends the clip to an earlier seek, and in the
end to the start of the file.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, repeat
from typing import Any, BinaryIO, Self, TypeVar

import av
import av.container
import av.error
import av.video.frame
import av.video.stream
import numpy as np
from av.audio.stream import AudioStream
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from curator.cut_requests import frame_plan, target_n_frames
from curator.errors import CutError, DecodeError, ErrorCode
from curator.media.clip_audio import add_audio, audio_of_span
from curator.media.clip_frames import FrameSampler
from curator.media.container import (
    demuxed,
    has_decoder,
    open_container,
    pixel_aspect_of,
    video_stream,
)
from curator.media.decode import DecodedFrame, FrameReader, upright_size
from curator.media.encode import Encoder, EncodeSettings, Upright, encode_mp4, refuse_without
from curator.media.packet_copy import (
    CannotCopyError,
    VideoPacket,
    mux_copy,
    packets_of_span,
    refuse_stream,
)
from curator.records.clips import AudioMode
from curator.records.cuts import CutClip, CutRequest, NotCopied, SampledFrames
from curator.stage import ClipFrames, PixelStage
from curator.stages.cut.config import CutConfig
from curator.stages.cut.copy_check import check_copy, check_encoded, give_up_ticks, refuse_request

EARLIER_S = (0.0, 2.0, 10.0)
"""How long before a span seeks aim, one after the other, before the file is read from its start."""
SMALL_BYTES = 1 << 16
"""A clip this small may be large beside its source: its index counts for more than its pictures."""
MAX_COARSER = 10
"""Most that the guard against large clips adds to the CRF: a third of the size."""

MakeSampler = Callable[[int, int], FrameSampler]
"""Makes the sampler of a clip from its number of frames and its first frame within the request."""

_Made = TypeVar("_Made")
_Pictures = tuple[Upright, Iterator[av.video.frame.VideoFrame]]
"""What knows the size of a clip's frames, and the frames in their written form."""


@dataclass
class ClipCutter:
    """Cuts the clips of one source; a context manager, which closes the container.

    After an error the demuxer's position is unknown: the cutter is closed then, and not used again.

    Attributes:
        max_pixels: Largest frame, in pixels.
        decoder_threads: Threads of the decoder; changes no result.
        pixels: Stages that change pixels.
        n_from_start: Clips for which no seek gave the right frames.
    """

    reader: BinaryIO
    uri: str
    n_bytes: int
    config: CutConfig
    max_pixels: int
    decoder_threads: int
    pixels: Sequence[PixelStage[Any]] = ()
    n_from_start: int = 0

    def __post_init__(self) -> None:
        """Refuses an encoder that is not there."""
        self._container: av.container.InputContainer | None = None
        self._stack = ExitStack()
        encoder = self.config.encoder
        self._encoder: Encoder = "x264" if encoder == "auto" else encoder
        refuse_without(self._encoder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def _opened(self) -> av.container.InputContainer:
        """Opens the container, which stays open for the next clip until an error."""
        if self._container is None:
            self._container = self._stack.enter_context(
                open_container(self.reader, self.uri, n_bytes=self.n_bytes)
            )
        return self._container

    def _close(self) -> None:
        self._container = None
        self._stack.close()

    def cut(self, request: CutRequest, make_sampler: MakeSampler | None = None) -> CutClip:
        """Writes one clip: a copy if the recipe wants one and it holds, else encoded.

        `make_sampler` makes what samples frames on the way; None for none.

        Raises:
            CutError: The frames of the span cannot be decoded again, or the written clip does not
                decode to them.
            SourceError: The source is no longer readable.
        """
        cannot: CannotCopyError | None = None
        if self.pixels:
            cannot = CannotCopyError(NotCopied.PIXELS_CHANGED)
        elif self.config.mode == "auto":
            try:
                return self._copied(request, make_sampler)
            except CannotCopyError as error:
                cannot = error
        clip = self._encoded(request, make_sampler)
        if cannot is not None:
            clip.not_copied, clip.copy_frames = cannot.reason, cannot.n_frames
        start = request.frame_pts[0] * request.time_base
        try:
            clip.mp4, clip.audio = self._with_audio(clip.mp4, start, clip.n_frames, request.fps)
        except av.error.FFmpegError as error:
            raise CutError(f"{self.uri}: clip {request.clip_id}: audio: {error}") from error
        self._verify(clip, request)
        return clip

    def look(self, request: CutRequest, make_sampler: MakeSampler) -> SampledFrames:
        """Samples frames of a clip without writing it."""

        def see(pictures: _Pictures) -> SampledFrames:
            sampler = make_sampler(target_n_frames(request), 0)
            for picture in pictures[1]:
                sampler.see(picture)
            return sampler.sampled()

        return self._trying(request, see)

    def _copied(self, request: CutRequest, make_sampler: MakeSampler | None) -> CutClip:
        stream = video_stream(self._opened(), self.uri)
        refuse_stream(stream, self.config.copy_codecs)
        refuse_request(request, stream)
        limit = give_up_ticks(
            request,
            at_most_s=self.config.copy_give_up_s,
            at_most_share=self.config.copy_give_up_share,
        )
        try:
            span = packets_of_span(
                self._packets_from(stream, request),
                frame_pts=request.frame_pts,
                end_pts=request.end_pts,
                give_up_ticks=limit,
                extradata=stream.codec_context.extradata,
            )
            if span.n_frames < request.min_frames:
                raise CannotCopyError(NotCopied.TOO_FEW_FRAMES, n_frames=span.n_frames)
            start = request.frame_pts[span.first] * request.time_base
            mp4 = mux_copy(stream, span, request.fps)
            mp4, audio = self._with_audio(mp4, start, span.n_frames, request.fps)
        except av.error.FFmpegError as error:
            self._close()
            raise CannotCopyError(NotCopied.DAMAGED) from error
        sampler = make_sampler(span.n_frames, span.first) if make_sampler is not None else None
        is_decoded = check_copy(
            mp4,
            request,
            span,
            extradata=stream.codec_context.extradata,
            threads=self.decoder_threads,
            max_pixels=self.max_pixels,
            sampler=sampler,
        )
        return CutClip(
            clip_id=request.clip_id,
            mp4=mp4,
            cut_mode="copy",
            first=span.first,
            end=span.end,
            n_frames=span.n_frames,
            fps=request.fps,
            width=stream.width,
            height=stream.height,
            audio=audio,
            is_decoded=is_decoded,
            sampled=sampler.sampled() if sampler is not None else None,
        )

    def _with_audio(
        self, mp4: bytes, start: Fraction, n_frames: int, fps: Fraction
    ) -> tuple[bytes, AudioMode]:
        """Adds the audio that the recipe requests to a clip."""
        if self.config.audio == "drop":
            return mp4, "dropped"
        container = self._opened()
        video = video_stream(container, self.uri)
        stream = container.streams.best("audio", related=video)
        if not (isinstance(stream, AudioStream) and has_decoder(stream)):
            return mp4, "none"
        audio = audio_of_span(
            container,
            stream,
            start=start,
            seconds=n_frames / fps,
            may_copy=self.config.audio == "copy",
            max_offset_s=1 / (2 * fps),
        )
        return (mp4, "none") if audio is None else (add_audio(mp4, audio), audio.mode)

    def _packets_from(
        self, stream: av.video.stream.VideoStream, request: CutRequest
    ) -> Iterator[VideoPacket]:
        """Yields packets from a place before which no copy of the span can begin."""
        container = self._opened()
        for earlier_s in EARLIER_S:
            target = request.start_pts - round(earlier_s / request.time_base)
            container.seek(target, stream=stream, backward=True)
            packets = demuxed(container, [stream])
            first = next(packets, None)
            # MPEG-TS seeks by decoding time, which may be after the span's first key frame.
            # Everything after an IDR picture is shown after it.
            if first is not None and first.pts is not None and first.pts <= request.start_pts:
                break
        if first is not None:
            yield first
        yield from packets

    def _encoded(self, request: CutRequest, make_sampler: MakeSampler | None) -> CutClip:
        """Encodes the clip, and once more if it is large compared to its source."""
        encoded = self._at_quality(request, self.config.crf, make_sampler)
        factor, density = self.config.max_size_factor, request.source_bits_per_pixel
        if factor is None or density is None:
            return encoded
        most = factor * density / 8 * encoded.width * encoded.height * encoded.n_frames
        if len(encoded.mp4) <= max(most, SMALL_BYTES):
            return encoded
        # Sizes halve with every 6 steps of the CRF on x264's scale.
        coarser = math.ceil(6 * math.log2(len(encoded.mp4) / most))
        crf = min(51, self.config.crf + min(coarser, MAX_COARSER))
        again = self._at_quality(request, crf, None)
        again.sampled = encoded.sampled
        return again if len(again.mp4) < len(encoded.mp4) else encoded

    def _at_quality(
        self, request: CutRequest, crf: int, make_sampler: MakeSampler | None
    ) -> CutClip:
        """Encodes the clip, without its audio."""

        def encode(pictures: _Pictures) -> CutClip:
            upright, frames = pictures
            sampler = make_sampler(target_n_frames(request), 0) if make_sampler else None
            preset = self.config.preset
            mp4, n_frames = encode_mp4(
                frames if sampler is None else sampler.passing(frames),
                width=upright.width,
                height=upright.height,
                fps=request.fps,
                settings=EncodeSettings(crf=crf, preset=preset, encoder=self._encoder),
            )
            return CutClip(
                clip_id=request.clip_id,
                mp4=mp4,
                cut_mode="encode",
                first=0,
                end=len(request.frame_pts),
                n_frames=n_frames,
                fps=request.fps,
                width=upright.width,
                height=upright.height,
                crf=crf,
                audio="dropped",
                sampled=sampler.sampled() if sampler is not None else None,
            )

        return self._trying(request, encode)

    def _trying(self, request: CutRequest, make: Callable[[_Pictures], _Made]) -> _Made:
        """Returns the result of `make` for the first seek that gives the right frames."""
        for earlier_s in (*EARLIER_S, None):
            try:
                made = make(self._pictures(request, earlier_s))
            except WrongFramesError as wrong:
                self._close()
                if earlier_s is not None:
                    continue
                raise CutError(f"{self.uri}: clip {request.clip_id}: {wrong}") from wrong
            except av.error.FFmpegError as error:
                raise CutError(
                    f"{self.uri}: clip {request.clip_id}: FFmpeg cannot write it: {error}"
                ) from error
            if earlier_s is None:
                self.n_from_start += 1
                self._close()
            return made
        raise AssertionError("the last attempt returns or raises")

    def _pictures(self, request: CutRequest, earlier_s: float | None) -> _Pictures:
        container = self._opened()
        stream = video_stream(container, self.uri)
        frames = FrameReader(
            container,
            stream,
            self.uri,
            threads=1 if earlier_s is None else self.decoder_threads,
            max_pixels=self.max_pixels,
        )
        if earlier_s is not None:
            target = request.start_pts - round(earlier_s / frames.time_base)
            try:
                container.seek(target, stream=stream, backward=True)
            except av.error.FFmpegError as error:
                raise WrongFramesError(f"no seek to {target}") from error
        exact = exact_frames(frames, request, tolerant=earlier_s is None)
        first = next(exact)
        aspect = pixel_aspect_of(stream, request.rotation_deg)
        crop = request.crop
        if crop is None:
            coded = (first.picture.width, first.picture.height)
            size = upright_size(*coded, request.rotation_deg, aspect)
        else:
            size = upright_size(crop.width, crop.height, 0, aspect)
        if min(request.size or size) < 2:
            raise CutError(
                f"{self.uri}: clip {request.clip_id} is {size[0]}x{size[1]} px; video in 4:2:0 "
                "takes 2x2 at least; reject it by filters.short_side_px.min"
            )
        upright = Upright(
            *size,
            rotation_deg=request.rotation_deg,
            crop=crop,
            deinterlace=request.is_interlaced,
            cover=request.size,
        )
        pictures = at_constant_rate(upright, chain([first], exact), frame_plan(request))
        for stage in self.pixels:
            pictures = changed_pixels(stage, pictures, request.clip_id, request.fps)
        return upright, pictures

    def _verify(self, clip: CutClip, request: CutRequest) -> None:
        drawn = int(hashlib.sha256(request.clip_id.encode()).hexdigest()[:8], 16) / (1 << 32)
        meant = target_n_frames(request)
        wrong = check_encoded(
            clip.mp4,
            n_frames=meant,
            size=(clip.width, clip.height),
            fps=request.fps,
            decodes=drawn < self.config.verify_share,
            threads=self.decoder_threads,
        )
        if wrong is not None or clip.n_frames != meant:
            problem = wrong or f"has {clip.n_frames} frames, expected {meant}"
            raise CutError(f"{self.uri}: clip {request.clip_id} {problem}")


_BT709, _LIMITED, _FULL = 1, 1, 2
"""FFmpeg's numbers of the matrix and of the ranges."""


class WrongFramesError(Exception):
    """Decoding gave other frames than the analysis."""


def exact_frames(
    frames: FrameReader, request: CutRequest, *, tolerant: bool
) -> Iterator[DecodedFrame]:
    """Yields the span's frames and no other, or raises `WrongFramesError`.

    `frames` is positioned before the span. `tolerant` takes damaged frames too: from the start of
    the file they are the analyzed ones.
    """
    wanted = request.frame_pts
    position = 0
    is_anchored = tolerant
    try:
        for frame in frames:
            is_anchored |= bool(frame.picture.key_frame)
            if frame.pts < wanted[0]:
                continue
            # Streams with gradual refresh give incomplete frames after a seek.
            if not is_anchored:
                raise WrongFramesError(f"no key frame at or before {frame.pts}")
            if frame.pts != wanted[position]:
                raise WrongFramesError(
                    f"frame at {frame.pts}, where {int(wanted[position])} was analyzed"
                )
            # A frame before the span counts too: frames that refer to a concealed one show its
            # damage.
            if not tolerant and frames.report.is_damaged:
                raise WrongFramesError(f"damage at or before {frame.pts}")
            yield frame
            position += 1
            if position == len(wanted):
                return
    except DecodeError as error:
        if error.code == ErrorCode.TOO_MANY_PIXELS:
            raise
        raise WrongFramesError(str(error)) from error
    raise WrongFramesError(f"{position} of {len(wanted)} frames decode")


def at_constant_rate(
    upright: Upright, frames: Iterable[DecodedFrame], plan: NDArray[np.int64]
) -> Iterator[VideoFrame]:
    """Yields each source frame as often as the plan names it."""

    def ready() -> Iterator[VideoFrame]:
        for frame in frames:
            yield from upright.push(frame.picture)
        yield from upright.flush()

    # All frames are read, also behind the last one of the plan: they are checked then.
    for picture, times in zip(ready(), chain(np.bincount(plan).tolist(), repeat(0)), strict=False):
        yield from repeat(picture, times)


def changed_pixels(
    stage: PixelStage[Any], pictures: Iterator[VideoFrame], clip_id: str, fps: Fraction
) -> Iterator[VideoFrame]:
    """Yields upright frames (yuv420p, BT.709, limited range) as a stage changes them.

    Raises:
        CutError: The stage yields another number of frames, or frames of another form.
    """
    sizes: list[tuple[int, int]] = []

    def arrays() -> Iterator[NDArray[np.uint8]]:
        for picture in pictures:
            sizes.append((picture.height, picture.width))
            rgb = picture.reformat(
                format="rgb24", src_colorspace=_BT709, src_color_range=_LIMITED,
                dst_color_range=_FULL,
            )  # fmt: skip
            yield np.asarray(rgb.to_ndarray(), np.uint8)

    n_changed = 0
    for frame_HWC in stage.process(ClipFrames(clip_id=clip_id, fps=fps, frames=arrays())):  # noqa: N806
        is_expected = n_changed < len(sizes) and frame_HWC.shape == (*sizes[n_changed], 3)
        if not is_expected or frame_HWC.dtype != np.uint8:
            raise CutError(
                f"clip {clip_id}: stage {stage.name} yields frame {n_changed} as {frame_HWC.dtype} "
                f"{list(frame_HWC.shape)}; expected one uint8 RGB frame for each, of its size"
            )
        n_changed += 1
        rgb = VideoFrame.from_ndarray(np.ascontiguousarray(frame_HWC), format="rgb24")
        yield rgb.reformat(
            format="yuv420p", src_color_range=_FULL, dst_colorspace=_BT709,
            dst_color_range=_LIMITED,
        )  # fmt: skip
    if n_changed != len(sizes):
        raise CutError(
            f"clip {clip_id}: stage {stage.name} yields {n_changed} frames of {len(sizes)}"
        )
