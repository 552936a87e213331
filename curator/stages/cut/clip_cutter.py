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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
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
    Mp4Encoder,
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
    EDGE_FRAMES,
    check_copy,
    check_encoded,
    check_joined,
    give_up_ticks,
    refuse_request,
)
from curator.storage import expect_end

EARLIER_S = (0.0, 2.0, 10.0)
"""Distances before a span to which attempts seek; the last attempt begins at the file's start."""
AFTER_S = 1.0
"""Time after a span within which a file may still store sound and frames of it."""
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

_NotCopied = tuple[NotCopied | None, int | None]
"""Why a clip cannot be copied, and how many frames the copy would have."""
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
        self._ahead: dict[str, CutClip | _NotCopied] = {}
        """Copies of clips that were tried together with others, or reasons against a copy."""
        self._encoded_ahead: dict[str, tuple[CutClip, bool]] = {}
        """Clips that were encoded together with others, and whether they need no coarser encode."""
        self._n_decoded = 0
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

    @property
    def n_decoded(self) -> int:
        """Number of frames of the source that were decoded so far."""
        return self._n_decoded + self._report.n_frames

    def cut(
        self,
        request: CutRequest,
        others: Sequence[CutRequest] = (),
        frame_pts: NDArray[np.int64] | None = None,
    ) -> CutClip:
        """Copies one clip if the recipe and the source allow a copy; otherwise encodes the clip.

        A still image is copied if its file shows what the clip must show.

        Args:
            request: The clip.
            others: Clips that are cut next. If this clip is encoded, those of them that cannot be
                copied are encoded from the same decode.
            frame_pts: Timestamps of all frames of the source; None without `others`.

        Raises:
            CutError: The frames of the span cannot be decoded again, or the written clip differs
                from the request.
            SourceError: The source is no longer readable.
        """
        if self.is_image:
            return self._trying(request, lambda pictures: self._image(request, pictures))
        copied = self._copy_of(request)
        if isinstance(copied, CutClip):
            return copied
        is_new = request.clip_id not in self._encoded_ahead
        if others and is_new and not self.pixels and frame_pts is not None:
            self._encode_together([request, *others], frame_pts)
        clip = self._encoded(request)
        clip.not_copied, clip.copy_frames = copied
        start = request.frame_pts[0] * request.time_base - picture_delay(request)
        try:
            clip.mp4, clip.audio = self._with_audio(clip.mp4, request, start, clip.n_frames)
        except av.error.FFmpegError as error:
            raise CutError(f"{self.uri}: clip {request.clip_id}: audio: {error}") from error
        self._verify(clip, request)
        return clip

    def _copy_of(self, request: CutRequest) -> CutClip | _NotCopied:
        """Returns a copy of a clip, or the reason against it."""
        if (known := self._ahead.pop(request.clip_id, None)) is not None:
            return known
        if self.pixels:
            return NotCopied.PIXELS_CHANGED, None
        if self.config.mode != "auto":
            return None, None
        try:
            return self._copied(request)
        except CannotCopyError as error:
            # Not the error itself, which would keep the packets of the copy during the encode.
            return error.reason, error.n_frames

    def _encode_together(
        self, requests: Sequence[CutRequest], frame_pts: NDArray[np.int64]
    ) -> None:
        """Encodes clips in one decode, from the first frame of the first clip on.

        Stops at the first frame that is not as expected. The clips that end later are then decoded
        one by one, so what a clip shows never depends on the other clips.
        """
        lacking = [requests[0]]
        for request in requests[1:]:
            # A failure is the other clip's own, and occurs again when it is cut.
            with suppress(CutError):
                self._ahead[request.clip_id] = copied = self._copy_of(request)
                if not isinstance(copied, CutClip) and request.clip_id not in self._encoded_ahead:
                    lacking.append(request)
        if len(lacking) < 2:
            return
        made = self._from_one_decode(lacking, frame_pts)
        crfs = {
            request.clip_id: crf
            for request in lacking
            if (clip := made.get(request.clip_id)) is not None
            and (crf := self._coarser(request, clip)) is not None
        }
        large = [request for request in lacking if request.clip_id in crfs]
        again = self._from_one_decode(large, frame_pts, crfs) if len(large) > 1 else {}
        for clip_id, clip in made.items():
            coarse = again.get(clip_id)
            is_final = coarse is not None or clip_id not in crfs
            self._encoded_ahead[clip_id] = _smaller(clip, coarse), is_final

    def _from_one_decode(
        self,
        requests: Sequence[CutRequest],
        frame_pts: NDArray[np.int64],
        crfs: Mapping[str, int] | None = None,
    ) -> dict[str, CutClip]:
        """Encodes clips from one decode; returns the clips that end before the first wrong frame.

        `crfs` has the quality by clip id; None is the recipe's.
        """
        waiting = deque(sorted(requests, key=lambda request: int(request.frame_pts[0])))
        first, last = waiting[0].frame_pts[0], max(int(one.frame_pts[-1]) for one in waiting)
        span = frame_pts[np.searchsorted(frame_pts, first) : np.searchsorted(frame_pts, last) + 1]
        whole = replace(waiting[0], frame_pts=span)
        encodes: list[_Encode] = []
        made: dict[str, CutClip] = {}
        try:
            with ExitStack() as stack:
                for frame in self._exact(whole, EARLIER_S[0]):
                    while waiting and waiting[0].frame_pts[0] <= frame.pts:
                        request = waiting.popleft()
                        crf = self.config.crf if crfs is None else crfs[request.clip_id]
                        upright = self._upright(request, frame)
                        encodes.append(_Encode(request, upright, self._settings(crf), stack))
                    for encode in encodes:
                        encode.push(frame)
                    for encode in [one for one in encodes if one.is_complete]:
                        encodes.remove(encode)
                        mp4, n_frames = encode.finish()
                        clip = self._clip(
                            encode.request, encode.upright, mp4, n_frames, encode.settings.crf
                        )
                        made[clip.clip_id] = clip
        except (WrongFramesError, CutError, av.error.FFmpegError):
            self._close()
        return made

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
        if tail.is_decoded and tail.n_frames < 2 * EDGE_FRAMES:
            # Without known packets, so few frames do not show whether all are at their times.
            raise CannotCopyError(NotCopied.CHECK_FAILED)
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
        self._expect_end(stream, request)
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

    def _expect_end(self, stream: av.video.stream.VideoStream, request: CutRequest) -> None:
        """Lets the reader fetch no more than the span, by the index of the file."""
        entries = stream.index_entries
        after = request.end_pts + round(AFTER_S / request.time_base)
        number = entries.search_timestamp(after, backward=False, any_frame=True)
        expect_end(self.reader, entries[number].pos if number >= 0 else self.n_bytes)

    def _encoded(self, request: CutRequest, headers: _Headers | None = None) -> CutClip:
        """Encodes the clip. Encodes it again if it is large compared with the source."""
        encoded, is_final = None, False
        if headers is None:
            encoded, is_final = self._encoded_ahead.pop(request.clip_id, (None, False))
        if encoded is None:
            encoded = self._at_quality(request, self.config.crf, headers)
        crf = None if is_final else self._coarser(request, encoded)
        return (
            encoded if crf is None else _smaller(encoded, self._at_quality(request, crf, headers))
        )

    def _coarser(self, request: CutRequest, encoded: CutClip) -> int | None:
        """Returns the CRF for a clip that is large compared with the source; None for others."""
        factor, density = self.config.max_size_factor, request.source_bits_per_pixel
        if factor is None or density is None:
            return None
        most = factor * density / 8 * encoded.width * encoded.height * encoded.n_frames
        if len(encoded.mp4) <= max(most, SMALL_BYTES):
            return None
        # Sizes halve with every 6 steps of the CRF on x264's scale.
        coarser = math.ceil(6 * math.log2(len(encoded.mp4) / most))
        return min(51, self.config.crf + min(coarser, MAX_COARSER))

    def _at_quality(self, request: CutRequest, crf: int, headers: _Headers | None) -> CutClip:
        """Encodes the clip without audio: as BT.709, or with headers in the source's colours."""

        def encode(pictures: _Pictures) -> CutClip:
            upright, frames = pictures
            coded_as = None
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
                settings=replace(self._settings(crf), coded_as=coded_as),
            )
            return self._clip(request, upright, mp4, n_frames, crf)

        return self._trying(request, encode, as_coded=headers is not None)

    def _settings(self, crf: int) -> EncodeSettings:
        return EncodeSettings(crf=crf, preset=self.config.preset, encoder=self._encoder)

    def _clip(
        self, request: CutRequest, upright: Upright, mp4: bytes, n_frames: int, crf: int
    ) -> CutClip:
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

    def _exact(self, request: CutRequest, earlier_s: float | None) -> Iterator[DecodedFrame]:
        """Seeks, and yields the frames of a clip; raises `WrongFramesError` if they are others."""
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
        self._n_decoded += self._report.n_frames
        self._report = frames.report
        if earlier_s is not None:
            self._expect_end(stream, request)
            target = request.start_pts - round(earlier_s / frames.time_base)
            try:
                container.seek(target, stream=stream, backward=True)
            except av.error.FFmpegError as error:
                raise WrongFramesError(f"cannot seek to {target}") from error
        yield from self._followed(
            exact_frames(frames, request, tolerant=earlier_s is None), frames.time_base
        )

    def _pictures(
        self, request: CutRequest, earlier_s: float | None, *, as_coded: bool
    ) -> _Pictures:
        exact = self._exact(request, earlier_s)
        first = next(exact)
        upright = self._upright(request, first)
        if as_coded:
            return upright, (frame.picture for frame in chain([first], exact))
        pictures = at_constant_rate(upright, chain([first], exact), frame_plan(request))
        for stage in self.pixels:
            pictures = changed_pixels(
                stage, pictures, request.clip_id, request.fps, is_rgb=self.is_image
            )
        return upright, pictures

    def _upright(self, request: CutRequest, first: DecodedFrame) -> Upright:
        """Returns the converter of a clip's frames, of which `first` is the first one."""
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
        return Upright(
            *size,
            rotation_deg=request.rotation_deg,
            is_mirrored=request.is_mirrored,
            crop=crop,
            deinterlace=request.is_interlaced,
            cover=request.size,
            is_still=self.is_image,
        )

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


class _Encode:
    """A clip that is encoded while its source is decoded for several clips."""

    def __init__(
        self, request: CutRequest, upright: Upright, settings: EncodeSettings, stack: ExitStack
    ) -> None:
        self.request, self.upright, self.settings = request, upright, settings
        plan = np.bincount(frame_plan(request), minlength=len(request.frame_pts))
        self._times = iter(plan.tolist())
        self._n_left = len(request.frame_pts)
        self._encoder = stack.enter_context(
            Mp4Encoder(
                width=upright.width, height=upright.height, fps=request.fps, settings=settings
            )
        )

    @property
    def is_complete(self) -> bool:
        """Whether all frames of the clip were pushed."""
        return self._n_left == 0

    def push(self, frame: DecodedFrame) -> None:
        """Takes the next source frame of the clip."""
        self._n_left -= 1
        self._add(self.upright.push(frame.picture))

    def finish(self) -> tuple[bytes, int]:
        """Ends the clip, and releases its encoder; returns the MP4 and its number of frames."""
        self._add(self.upright.flush())
        with self._encoder as encoder:
            return encoder.finish()

    def _add(self, pictures: Iterable[VideoFrame]) -> None:
        for picture, times in zip(pictures, self._times, strict=False):
            for _ in range(times):
                self._encoder.add(picture)


def _smaller(clip: CutClip, other: CutClip | None) -> CutClip:
    return other if other is not None and len(other.mp4) < len(clip.mp4) else clip


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
