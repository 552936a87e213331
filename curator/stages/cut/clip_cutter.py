"""Writes clips with exactly the frames of their spans, and verifies them.

If the recipe accepts a copy of the source's stream, the packets are written unchanged, from the
first key frame in the span on. If too many frames precede it, these are encoded, and joined with
the copy of the rest. All other clips are encoded.

To decode a clip, the cutter seeks to the key frame before the span, and compares the timestamps of
decoded frames with those of the analysis. If a frame is missing, extra or damaged, the cutter seeks
to an earlier key frame. The last attempt decodes from the start of the file.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
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

from curator.cut_requests import frame_plan, picture_delay, target_n_frames
from curator.errors import CutError, DecodeError, ErrorCode
from curator.frame_size import upright_size
from curator.media.clip_audio import CannotSeekError, SpanAudio, add_audio, audio_of_span
from curator.media.container import (
    demuxed,
    has_decoder,
    open_container,
    video_stream,
)
from curator.media.decode import (
    Colours,
    DecodedFrame,
    DecodeReport,
    FrameReader,
    declared_colours,
)
from curator.media.encode import (
    Encoder,
    EncodeSettings,
    Upright,
    coded_like,
    encode_mp4,
    refuse_without,
)
from curator.media.packet_copy import (
    CannotCopyError,
    VideoPacket,
    joined,
    mux_copy,
    packets_of_span,
    refuse_stream,
    sets_of,
)
from curator.media.still_images import StillFormat, StillImage, read_still
from curator.media.still_pictures import as_frame, encoded_image
from curator.media.stream_headers import most_references, unused_id
from curator.records.clips import AudioMode, ClipFormat
from curator.records.cuts import CutClip, CutRequest, NotCopied
from curator.stage import ClipFrames, PixelStage
from curator.stages.cut.config import CutConfig
from curator.stages.cut.copy_check import (
    check_copy,
    check_encoded,
    check_joined,
    give_up_ticks,
    refuse_request,
)

EARLIER_S = (0.0, 2.0, 10.0)
"""Distances before a span to which attempts seek; the last attempt begins at the file's start."""
SMALL_BYTES = 1 << 16
"""Smaller clips are not encoded again, because the index can take more bytes than the pictures."""
MAX_COARSER = 10
"""Maximum increase of the CRF for a clip that is too large; it divides the size by about three."""


_HELPED_BY_HEAD = (
    NotCopied.KEY_FRAME_TOO_FAR,
    NotCopied.END_TOO_FAR,
    NotCopied.TOO_FEW_FRAMES,
)
"""Reasons against a copy that do not count if the frames before its first key frame are encoded."""

_Headers = tuple[int, int]
"""Number of the headers of a head, and the reference frames that they announce."""
_Made = TypeVar("_Made")
_Pictures = tuple[Upright, Iterator[av.video.frame.VideoFrame]]
"""The converter of a clip's frames, which knows their size, and the frames for the encoder."""


@dataclass
class ClipCutter:
    """Cuts the clips of one source; a context manager that closes the container.

    The container stays open for the next clip. After wrong frames or damage, it is opened again.

    Attributes:
        max_pixels: Largest accepted frame, in pixels.
        decoder_threads: Threads of the decoder; changes no result.
        pixels: Stages that change pixels.
        is_image: Whether the source is a still image.
        n_from_start: Number of clips that had to be decoded from the start of the file.
        on_reached: Gets the seconds of the clip that are encoded so far.
    """

    reader: BinaryIO
    uri: str
    n_bytes: int
    config: CutConfig
    max_pixels: int
    decoder_threads: int
    pixels: Sequence[PixelStage[Any]] = ()
    is_image: bool = False
    n_from_start: int = 0
    on_reached: Callable[[float], None] | None = None

    def __post_init__(self) -> None:
        """Refuses an encoder that is not available."""
        self._container: av.container.InputContainer | None = None
        self._still: StillImage | None = None
        self._report = DecodeReport()
        self._colours: Colours | None = None
        self._stack = ExitStack()
        encoder = self.config.encoder
        self._encoder: Encoder = "x264" if encoder == "auto" else encoder
        refuse_without(self._encoder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def _opened(self) -> av.container.InputContainer:
        if self._container is None:
            if self.is_image:
                self._still = read_still(self.reader, self.uri, self.n_bytes)
            self._container = self._stack.enter_context(
                open_container(self.reader, self.uri, n_bytes=self.n_bytes, still=self._still)
            )
            # Decoding replaces the colours that the container declares.
            stream = video_stream(self._container, self.uri, still=self._still)
            self._colours = declared_colours(stream)
        return self._container

    def _close(self) -> None:
        self._container = None
        self._stack.close()

    def cut(self, request: CutRequest) -> CutClip:
        """Copies one clip if the recipe and the source allow a copy; otherwise encodes the clip.

        A still image is copied if its file shows what the clip must show.

        Raises:
            CutError: The frames of the span cannot be decoded again, or the written clip differs
                from the request.
            SourceError: The source is no longer readable.
        """
        # Not the error itself, which would keep the packets of the copy during the encode.
        not_copied, copy_frames = None, None
        if self.is_image:
            return self._trying(request, lambda pictures: self._image(request, pictures))
        if self.pixels:
            not_copied = NotCopied.PIXELS_CHANGED
        elif self.config.mode == "auto":
            try:
                return self._copied(request)
            except CannotCopyError as error:
                not_copied, copy_frames = error.reason, error.n_frames
        clip = self._encoded(request)
        clip.not_copied, clip.copy_frames = not_copied, copy_frames
        start = request.frame_pts[0] * request.time_base - picture_delay(request)
        try:
            clip.mp4, clip.audio = self._with_audio(clip.mp4, request, start, clip.n_frames)
        except av.error.FFmpegError as error:
            raise CutError(f"{self.uri}: clip {request.clip_id}: audio: {error}") from error
        self._verify(clip, request)
        return clip

    def _image(self, request: CutRequest, pictures: _Pictures) -> CutClip:
        upright, frames = pictures
        (frame,) = frames
        still = self._still
        assert still is not None
        refusal = None
        if self.config.mode == "auto":
            refusal = self._refusal_of_image(still, request)
        is_copy = self.config.mode == "auto" and refusal is None
        # A PNG may be drawn: its edges and letters stay exact.
        lossless = still.format == "png"
        return CutClip(
            clip_id=request.clip_id,
            mp4=still.data if is_copy else encoded_image(frame, lossless=lossless),
            cut_mode="copy" if is_copy else "encode",
            format=_SUFFIXES[still.format] if is_copy else "png" if lossless else "jpg",
            first=0,
            end=1,
            n_frames=1,
            fps=request.fps,
            width=upright.width,
            height=upright.height,
            audio="none",
            not_copied=refusal,
        )

    def _refusal_of_image(self, still: StillImage, request: CutRequest) -> NotCopied | None:
        """Returns why the file of a still image shows something else than its clip must."""
        refused = {
            NotCopied.PIXELS_CHANGED: bool(self.pixels),
            NotCopied.CODEC: still.format not in _SUFFIXES,
            NotCopied.COLOURS: self._report.is_converted,
            NotCopied.SHAPE: request.rotation_deg or request.is_mirrored,
            NotCopied.BORDERS: request.crop is not None,
            NotCopied.HIGH_DYNAMIC_RANGE: request.is_hdr,
            NotCopied.FIXED_SIZE: request.size not in (None, self._report.sizes[0]),
        }
        return next((reason for reason, applies in refused.items() if applies), None)

    def _copied(self, request: CutRequest) -> CutClip:
        try:
            clip = self._copied_frames(request)
        except CannotCopyError as error:
            may_encode = self.config.encode_head and self._encoder == "x264"
            if not (may_encode and error.reason in _HELPED_BY_HEAD):
                raise
            try:
                clip = self._with_encoded_head(request)
            except CannotCopyError as failed:
                n_frames = failed.n_frames or error.n_frames
                raise CannotCopyError(failed.reason, n_frames=n_frames) from failed
            clip.not_copied, clip.copy_frames = error.reason, error.n_frames
        start = request.frame_pts[clip.first] * request.time_base
        try:
            clip.mp4, clip.audio = self._with_audio(clip.mp4, request, start, clip.n_frames)
        except av.error.FFmpegError as error:
            self._close()
            raise CannotCopyError(NotCopied.DAMAGED) from error
        return clip

    def _with_encoded_head(self, request: CutRequest) -> CutClip:
        """Encodes the frames before the first key frame, and copies the rest."""
        tail = self._copied_frames(request, any_start=True)
        n_head, sets = tail.first, sets_of(tail.mp4)
        sps_id = unused_id(sets)
        if sps_id is None:
            raise CannotCopyError(NotCopied.CHECK_FAILED)
        before = replace(
            request,
            frame_pts=request.frame_pts[:n_head],
            frame_luma=request.frame_luma[:n_head],
            end_pts=int(request.frame_pts[n_head]),
        )
        head = self._encoded(before, (sps_id, most_references(sets)))
        mp4, span, header = joined(head.mp4, tail.mp4, request.fps)
        check_joined(
            mp4,
            request,
            span,
            n_head=n_head,
            header=header,
            threads=self.decoder_threads,
            max_pixels=self.max_pixels,
        )
        return replace(
            tail,
            mp4=mp4,
            cut_mode="encode_head",
            first=0,
            n_frames=span.n_frames,
            crf=head.crf,
        )

    def _copied_frames(self, request: CutRequest, *, any_start: bool = False) -> CutClip:
        """Copies the packets from a key frame on, without audio."""
        if not request.is_seekable:
            # Packets are read from the start of the file.
            self._close()
        stream = video_stream(self._opened(), self.uri)
        # Reading audio may close the container, and with it the stream.
        extradata, width, height = stream.codec_context.extradata, stream.width, stream.height
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
                extradata=extradata,
                any_start=any_start,
            )
            n_frames = span.n_frames + any_start * span.first
            if n_frames < request.min_frames:
                raise CannotCopyError(NotCopied.TOO_FEW_FRAMES, n_frames=n_frames)
            longest_s = self.config.copy_max_gap_s
            gap = span.longest_gap(extradata)
            if longest_s is not None and float(gap / request.fps) > longest_s:
                raise CannotCopyError(NotCopied.KEY_FRAMES_TOO_RARE)
            mp4 = mux_copy(stream, span, request.fps)
        except av.error.FFmpegError as error:
            self._close()
            raise CannotCopyError(NotCopied.DAMAGED) from error
        is_decoded = check_copy(
            mp4,
            request,
            span,
            extradata=extradata,
            threads=self.decoder_threads,
            max_pixels=self.max_pixels,
        )
        return CutClip(
            clip_id=request.clip_id,
            mp4=mp4,
            cut_mode="copy",
            first=span.first,
            end=span.end,
            n_frames=span.n_frames,
            fps=request.fps,
            width=width,
            height=height,
            audio="none",
            is_decoded=is_decoded,
            format="mp4",
        )

    def _with_audio(
        self, mp4: bytes, request: CutRequest, start: Fraction, n_frames: int
    ) -> tuple[bytes, AudioMode]:
        """Adds audio to a clip, if the recipe requests it and the source has it."""
        if self.config.audio == "drop":
            return mp4, "dropped"

        def audio_of(*, seeks: bool) -> SpanAudio | None:
            if not seeks:
                self._close()
            container = self._opened()
            video = video_stream(container, self.uri)
            stream = container.streams.best("audio", related=video)
            if not (isinstance(stream, AudioStream) and has_decoder(stream)):
                return None
            return audio_of_span(
                container,
                stream,
                start=start,
                seconds=n_frames / request.fps,
                may_copy=self.config.audio == "copy",
                seeks=seeks,
            )

        try:
            audio = audio_of(seeks=request.is_seekable)
        except CannotSeekError:
            audio = audio_of(seeks=False)
        return (mp4, "none") if audio is None else (add_audio(mp4, audio), audio.mode)

    def _packets_from(
        self, stream: av.video.stream.VideoStream, request: CutRequest
    ) -> Iterator[VideoPacket]:
        """Yields packets from a position at or before the first key frame of the span."""
        container = self._opened()
        if not request.is_seekable:
            yield from demuxed(container, [stream])
            return
        for earlier_s in EARLIER_S:
            target = request.start_pts - round(earlier_s / request.time_base)
            try:
                container.seek(target, stream=stream, backward=True)
            except av.error.FFmpegError as error:
                # A raw stream has no times.
                raise CannotCopyError(NotCopied.TIMESTAMPS) from error
            packets = demuxed(container, [stream])
            first = next(packets, None)
            # In MPEG-TS, a seek uses decoding times and may miss the first key frame of the span.
            # Packets after an IDR picture are shown after it. So if the first packet is shown at or
            # before the start of the span, the seek did not miss a key frame.
            if first is not None and first.pts is not None and first.pts <= request.start_pts:
                break
        if first is not None:
            yield first
        yield from packets

    def _encoded(self, request: CutRequest, headers: _Headers | None = None) -> CutClip:
        """Encodes the clip. Encodes it again if it is large compared with the source."""
        encoded = self._at_quality(request, self.config.crf, headers)
        factor, density = self.config.max_size_factor, request.source_bits_per_pixel
        if factor is None or density is None:
            return encoded
        most = factor * density / 8 * encoded.width * encoded.height * encoded.n_frames
        if len(encoded.mp4) <= max(most, SMALL_BYTES):
            return encoded
        # Sizes halve with every 6 steps of the CRF on x264's scale.
        coarser = math.ceil(6 * math.log2(len(encoded.mp4) / most))
        crf = min(51, self.config.crf + min(coarser, MAX_COARSER))
        again = self._at_quality(request, crf, headers)
        return again if len(again.mp4) < len(encoded.mp4) else encoded

    def _at_quality(self, request: CutRequest, crf: int, headers: _Headers | None) -> CutClip:
        """Encodes the clip without audio: as BT.709, or with headers in the source's colours."""

        def encode(pictures: _Pictures) -> CutClip:
            upright, frames = pictures
            preset, coded_as = self.config.preset, None
            if headers is not None:
                # What the frames say counts, not the container.
                first = next(frames)
                coded_as = coded_like(first, *headers)
                frames = chain([first], frames)
            mp4, n_frames = encode_mp4(
                frames,
                width=upright.width,
                height=upright.height,
                fps=request.fps,
                settings=EncodeSettings(
                    crf=crf, preset=preset, encoder=self._encoder, coded_as=coded_as
                ),
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
                format="mp4",
            )

        return self._trying(request, encode, as_coded=headers is not None)

    def _trying(
        self,
        request: CutRequest,
        make: Callable[[_Pictures], _Made],
        *,
        as_coded: bool = False,
    ) -> _Made:
        """Returns the result of `make` for the first attempt that gives the right frames."""
        for earlier_s in (*EARLIER_S, None) if request.is_seekable else (None,):
            try:
                made = make(self._pictures(request, earlier_s, as_coded=as_coded))
            except WrongFramesError as wrong:
                self._close()
                if earlier_s is not None:
                    continue
                raise CutError(f"{self.uri}: clip {request.clip_id}: {wrong}") from wrong
            except av.error.FFmpegError as error:
                raise CutError(
                    f"{self.uri}: clip {request.clip_id}: FFmpeg cannot write the clip: {error}"
                ) from error
            if earlier_s is None:
                self.n_from_start += 1
                self._close()
            return made
        raise AssertionError("the last attempt returns or raises")

    def _pictures(
        self, request: CutRequest, earlier_s: float | None, *, as_coded: bool
    ) -> _Pictures:
        if earlier_s is None:
            self._close()
        container = self._opened()
        stream = video_stream(container, self.uri, still=self._still)
        frames = FrameReader(
            container,
            stream,
            self.uri,
            threads=1 if earlier_s is None else self.decoder_threads,
            max_pixels=self.max_pixels,
            colours=self._colours,
            shows_damaged=earlier_s is None,
            still=self._still,
            convert=as_frame,
        )
        self._report = frames.report
        if earlier_s is not None:
            target = request.start_pts - round(earlier_s / frames.time_base)
            try:
                container.seek(target, stream=stream, backward=True)
            except av.error.FFmpegError as error:
                raise WrongFramesError(f"cannot seek to {target}") from error
        exact = self._followed(
            exact_frames(frames, request, tolerant=earlier_s is None), frames.time_base
        )
        first = next(exact)
        aspect, crop = request.pixel_aspect, request.crop
        if crop is None:
            coded = (first.picture.width, first.picture.height)
            size = upright_size(*coded, request.rotation_deg, aspect)
        else:
            size = upright_size(crop.width, crop.height, 0, aspect)
        if min(request.size or size) < 2 and not self.is_image:
            raise CutError(
                f"{self.uri}: clip {request.clip_id} is {size[0]}x{size[1]} px; video in 4:2:0 "
                "takes 2x2 at least; reject the clip with filters.short_side_px.min"
            )
        upright = Upright(
            *size,
            rotation_deg=request.rotation_deg,
            is_mirrored=request.is_mirrored,
            crop=crop,
            deinterlace=request.is_interlaced,
            cover=request.size,
            is_still=self.is_image,
        )
        if as_coded:
            return upright, (frame.picture for frame in chain([first], exact))
        pictures = at_constant_rate(upright, chain([first], exact), frame_plan(request))
        for stage in self.pixels:
            pictures = changed_pixels(
                stage, pictures, request.clip_id, request.fps, is_rgb=self.is_image
            )
        return upright, pictures

    def _followed(
        self, frames: Iterator[DecodedFrame], time_base: Fraction
    ) -> Iterator[DecodedFrame]:
        """Yields the frames of a clip, and tells how many seconds of it were yielded."""
        start_pts, tick_s = None, float(time_base)
        for frame in frames:
            yield frame
            if self.on_reached is not None:
                start_pts = frame.pts if start_pts is None else start_pts
                self.on_reached((frame.pts - start_pts) * tick_s)

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


_SUFFIXES: dict[StillFormat, ClipFormat] = {"jpeg": "jpg", "png": "png", "webp": "webp"}
"""Formats of still images that trainers read, with the suffixes of their files."""
_BT709, _LIMITED, _FULL = 1, 1, 2
"""FFmpeg's numbers for the colour matrix and the ranges."""


class WrongFramesError(Exception):
    """The decoded frames are not those of the analysis."""


def exact_frames(
    frames: FrameReader, request: CutRequest, *, tolerant: bool
) -> Iterator[DecodedFrame]:
    """Yields the frames of the span, and raises `WrongFramesError` if they are not exact.

    `frames` begins at or before the span. `tolerant` accepts damaged frames: if decoding begins at
    the start of the file, they equal those of the analysis.
    """
    wanted = request.frame_pts
    position = 0
    is_anchored = tolerant
    try:
        for frame in frames:
            is_anchored |= bool(frame.picture.key_frame)
            if frame.pts < wanted[0]:
                continue
            # After a seek, a stream with gradual refresh gives incomplete frames.
            if not is_anchored:
                raise WrongFramesError(f"no key frame at or before {frame.pts}")
            if frame.pts != wanted[position]:
                raise WrongFramesError(
                    f"frame at {frame.pts}; expected the analyzed frame at {int(wanted[position])}"
                )
            # Damage before the span also counts, because frames of the span may refer to it.
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
    raise WrongFramesError(f"only {position} of {len(wanted)} frames can be decoded")


def at_constant_rate(
    upright: Upright, frames: Iterable[DecodedFrame], plan: NDArray[np.int64]
) -> Iterator[VideoFrame]:
    """Yields each source frame as often as the plan contains its number."""

    def ready() -> Iterator[VideoFrame]:
        for frame in frames:
            yield from upright.push(frame.picture)
        yield from upright.flush()

    # Also reads the frames after the last one of the plan, because reading checks them.
    for picture, times in zip(ready(), chain(np.bincount(plan).tolist(), repeat(0)), strict=False):
        yield from repeat(picture, times)


def changed_pixels(
    stage: PixelStage[Any],
    pictures: Iterator[VideoFrame],
    clip_id: str,
    fps: Fraction,
    *,
    is_rgb: bool = False,
) -> Iterator[VideoFrame]:
    """Yields upright frames after a stage changed them.

    Frames are yuv420p in BT.709 of limited range, or with `is_rgb` rgb24, before and after.

    Raises:
        CutError: The stage changes the number, shape or type of frames.
    """
    sizes: list[tuple[int, int]] = []

    def arrays() -> Iterator[NDArray[np.uint8]]:
        for picture in pictures:
            sizes.append((picture.height, picture.width))
            rgb = picture if is_rgb else picture.reformat(
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
                f"{list(frame_HWC.shape)}; expected a uint8 RGB frame of the same size per frame"
            )
        n_changed += 1
        rgb = VideoFrame.from_ndarray(np.ascontiguousarray(frame_HWC), format="rgb24")
        yield rgb if is_rgb else rgb.reformat(
            format="yuv420p", src_color_range=_FULL, dst_colorspace=_BT709,
            dst_color_range=_LIMITED,
        )  # fmt: skip
    if n_changed != len(sizes):
        raise CutError(
            f"clip {clip_id}: stage {stage.name} yields {n_changed} frames for {len(sizes)}"
        )
