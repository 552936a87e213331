"""Decodes a source once, and makes its track."""

import logging
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, BinaryIO, NotRequired, TypedDict, Unpack

import numpy as np
from av.container import InputContainer
from numpy.typing import NDArray

from curator.errors import DecodeError, DeviceMemoryError, ErrorCode
from curator.media.audio_level import end_cell, first_cell, level_meter
from curator.media.container import (
    claimed_duration,
    has_other_video,
    open_container,
    pixel_aspect_of,
    promised_frames,
    reaches,
    shown_aspect,
    video_stream,
)
from curator.media.decode import DecodedFrame, DecodeReport, FrameReader, time_base_of
from curator.media.nvdec import NotOnDeviceError, NvdecReader
from curator.media.prefetch import ahead
from curator.media.source_segments import Segment
from curator.media.still_images import StillImage, read_still
from curator.media.still_pictures import as_frame
from curator.models.transnet import needs_smoothing
from curator.records.sources import Note
from curator.records.tracks import CELLS_PER_S, DAMAGED, Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.device_samples import DeviceSampler
from curator.stages.analyze.measurer import AnalysisModels, AnyFrame, Measurer, SourceMeasuring
from curator.storage import ContentHashes, HashingReader

FEWER = 0.95
"""A source with a smaller share of the frames, or of the time, in its header counts as truncated.
Headers of intact files are wrong by a frame or two."""

KEPT_BITS = 8
"""Bits per sample of written clips."""

OF_TIME = frozenset({"shots", "activity", "audio"})
"""Families that a still image lacks: their columns are empty."""

AHEAD, AHEAD_BYTES = 4, 64 << 20  # limits of frames that are decoded in advance: one frame of 8K

_AROUND_CELLS = 60 * CELLS_PER_S
"""Largest distance in time between audio and pictures in one part of a file, in grid cells."""

logger = logging.getLogger(__name__)


class AnalysisOptions(TypedDict):
    """Facts of a source, and options of its analysis."""

    source_id: str
    is_image: NotRequired[bool]  # by default a video
    n_bytes: int
    analysis_models: AnalysisModels  # models of this worker
    config: AnalyzeConfig
    # Threads of the decoder. With more than one thread, the networks run in the background. The
    # number changes no result, because a damaged source is decoded again with one thread.
    decoder_threads: int
    families: NotRequired[Set[str] | None]  # None for all families that the models can measure
    spent: NotRequired[dict[str, float] | None]  # gets the CPU-seconds of measurements, by name
    on_reached: NotRequired[Callable[[float], None] | None]  # gets the seconds of video so far


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderClaims:
    """Number of frames and duration of the video, from the header."""

    n_frames: int | None
    duration_s: float | None

    def notes(self, track: Track) -> tuple[Note, ...]:
        """Returns the notes of a track, and notes on differences from the header."""
        n_frames, duration_s = self.n_frames, self.duration_s
        notes = list(track.notes)
        if n_frames is not None:
            # AVI counts frames that it leaves out, as before a video that begins late.
            promised_s = max(duration_s or 0.0, n_frames / float(track.fps))
            is_short = track.n_frames < FEWER * n_frames and track.duration_s < FEWER * promised_s
        else:
            # Between the first and the last of times that start again may be any time.
            has_claim = duration_s is not None and Note.TIMES_START_AGAIN not in notes
            is_short = has_claim and track.duration_s < FEWER * (duration_s or 0.0)
        if is_short and Note.TRUNCATED not in notes:
            notes.insert(0, Note.TRUNCATED)
        limit_s = max(0.5, 0.02 * (duration_s or 0.0))
        if duration_s is not None and abs(duration_s - track.duration_s) > limit_s:
            notes.append(Note.DURATION_DIFFERS)
        if n_frames is not None and n_frames != track.n_frames:
            notes.append(Note.FRAME_COUNT_DIFFERS)
        return tuple(notes)


class SourceDecode:
    """One decode of a source, or of a segment of a source, with its measurements."""

    def __init__(
        self,
        container: InputContainer,
        uri: str,
        models: AnalysisModels,
        options: AnalysisOptions,
        *,
        threads: int,
        segment: Segment | None = None,
        still: StillImage | None = None,
    ) -> None:
        self.stream = stream = video_stream(container, uri, still=still)
        self._still = still
        self._has_other_video = has_other_video(container, stream)
        config, families = options["config"], options.get("families")
        self._options, self._segment = options, segment
        families = models.families(config) if families is None else families
        self._measuring = SourceMeasuring(
            models=models,
            families=families - OF_TIME if still is not None else families,
            config=config,
            time_base=time_base_of(stream, still),
            anchor_pts=segment.anchor_pts if segment is not None else None,
            smooths_all=needs_smoothing(stream),
            in_background=threads > 1,
            is_still=still is not None,
        )
        self._audio = None
        if "audio" in self._measuring.families:
            begins_within = segment is not None and segment.number > 0
            self._audio = level_meter(container, stream, begins_within=begins_within)
        self.frames = self._reader(container, uri, threads)
        claimed_s, self.has_duration_of_file = claimed_duration(container, stream)
        self.header = HeaderClaims(
            n_frames=promised_frames(container, stream), duration_s=claimed_s
        )
        if still is not None:
            self.header = HeaderClaims(n_frames=1, duration_s=None)
        self._pixel_aspect = Fraction(1)
        self._tick_s = float(self.frames.time_base)
        self._on_reached = options.get("on_reached")
        self.measurer: Measurer | None = None

    def _reader(
        self, container: InputContainer, uri: str, threads: int
    ) -> FrameReader | NvdecReader:
        measuring, nvdec = self._measuring, self._measuring.models.nvdec
        limits: dict[str, Any] = {
            "max_pixels": measuring.config.max_pixels,
            "max_frames": measuring.config.max_frames,
            "audio": self._audio,
        }
        if nvdec is not None:
            program = DeviceSampler(measuring, nvdec, partial(pixel_aspect_of, self.stream))
            return NvdecReader(container, self.stream, uri, nvdec=nvdec, program=program, **limits)
        return FrameReader(
            container,
            self.stream,
            uri,
            threads=threads,
            smooths_all=measuring.smooths_all,
            with_quantizer="pictures" in measuring.families,
            shows_damaged=True,
            still=self._still,
            convert=as_frame,
            **limits,
        )

    @contextmanager
    def decoding(self) -> Iterator[Iterator[AnyFrame]]:
        """Provides the frames; with several threads, decodes some frames in advance.

        When the context ends, also after an error, no thread reads the container.
        """
        with ExitStack() as closed:
            frames: Iterator[AnyFrame] = closed.enter_context(closing(iter(self.frames)))
            if self._measuring.in_background and not isinstance(self.frames, NvdecReader):
                make = partial(next, frames, None)
                decoded = ahead(make, n=AHEAD, name="decode", limit=_fitting)
                frames = closed.enter_context(closing(decoded))
            yield frames

    def take(self, frame: AnyFrame) -> None:
        """Measures the next frame."""
        if self.measurer is None:
            orientation = self.frames.report.orientation
            self._pixel_aspect = self._shown(self.frames.report.first_aspect)
            self.measurer = Measurer(self._measuring, frame, orientation, self._pixel_aspect)
        self.measurer.add(frame)
        if self._on_reached is not None:
            self._on_reached((frame.pts - self.measurer.frame_pts[0]) * self._tick_s)

    def _shown(self, coded: Fraction | None) -> Fraction:
        """Returns the shape of pixels after rotation; that of the container if `coded` is None."""
        rotation_deg = self.frames.report.rotation_deg
        if self._still is not None:
            # Viewers ignore the density that a JPEG may name.
            return Fraction(1)
        if coded is None:
            return pixel_aspect_of(self.stream, rotation_deg)
        return shown_aspect(coded, rotation_deg)

    def account(self) -> None:
        """Adds the CPU-seconds of the measurements to the option `spent`."""
        spent = self._options.get("spent")
        if spent is None or self.measurer is None:
            return
        cpu_s = self.measurer.cpu_seconds()
        if self._audio is not None:
            cpu_s["audio"] = self._audio.cpu_s
        spent.update({name: spent.get(name, 0.0) + seconds for name, seconds in cpu_s.items()})

    def track(self, hashes: ContentHashes) -> Track:
        """Returns the track of all frames so far, without notes on differences from the header."""
        report, measurer = self.frames.report, self.measurer
        assert measurer is not None
        assert report.end_pts is not None
        audio_rms_first, audio_rms_db = self._audio_levels(measurer.frame_pts[0], report.end_pts)
        heard = self._audio.notes if self._audio is not None else set()
        frame_size = report.frame_sizes()
        if report.rotation_deg % 180:
            frame_size = frame_size[:, ::-1]
        columns = measurer.columns()
        damaged = [index for index in report.damage.indices if index < len(measurer.frame_pts)]
        columns["frame_flags"][damaged] |= DAMAGED
        return Track(
            source_id=self._options["source_id"],
            sha256=hashes.sha256,
            block_hashes=hashes.blocks,
            time_base=self.frames.time_base,
            end_pts=report.end_pts,
            width=int(frame_size[0, 0]),
            height=int(frame_size[0, 1]),
            frame_size=frame_size if len(report.sizes) > 1 else frame_size[:0],
            rotation_deg=report.rotation_deg,
            pixel_aspect=self._pixel_aspect,
            aspect_changes=tuple(
                f"{frame} {self._shown(coded)}" for frame, coded in report.aspect_changes
            ),
            is_interlaced=report.is_interlaced,
            is_hdr=report.is_hdr,
            notes=(
                *_decoding_notes(report),
                *([Note.OTHER_VIDEO] if self._has_other_video else []),
                *(note for note in Note if note in heard),
            ),
            n_decode_errors=report.n_errors,
            has_audio_levels="audio" in self._measuring.families,
            audio_rms_first=audio_rms_first,
            audio_rms_db=audio_rms_db,
            **columns,
        )

    def _audio_levels(self, start_pts: int, end_pts: int) -> tuple[int, NDArray[np.float32]]:
        """Returns first cell and levels of the audio of the frames; of a segment, a minute more."""
        if self._audio is None:
            return 0, np.zeros(0, np.float32)
        time_base = self.frames.time_base
        first, end = first_cell(start_pts * time_base), end_cell(end_pts * time_base)
        # In the file, audio may be some way before or after the pictures of the same time.
        around = 0 if self._segment is None else _AROUND_CELLS
        return self._audio.levels(first - around, end + around)


def analyze_source(reader: BinaryIO, uri: str, **options: Unpack[AnalysisOptions]) -> Track:
    """Decodes and measures a source; if several threads find damage, decodes it again with one.

    Args:
        reader: The source, seekable; ranges that the demuxer skips are read too, for the hashes.
        uri: Name for messages.
        options: See `AnalysisOptions`.

    Raises:
        SourceError: The source fails; the error has the code.
    """
    is_image = options.get("is_image", False)

    def measured(models: AnalysisModels, threads: int = options["decoder_threads"]) -> Track:
        # Does not close the reader, because the caller may decode the source again.
        hashing, n_bytes = HashingReader(reader, closes=False), options["n_bytes"]
        still = read_still(hashing, uri, n_bytes) if is_image else None
        with open_container(hashing, uri, n_bytes=n_bytes, still=still) as container:
            measuring = SourceDecode(container, uri, models, options, threads=threads, still=still)
            report = measuring.frames.report
            with measuring.decoding() as frames:
                for frame in frames:
                    measuring.take(frame)
                    if threads > 1 and report.needs_one_thread:
                        break
        if threads > 1 and report.needs_one_thread:
            measuring.account()
            return measured(models, threads=1)
        if measuring.measurer is None:
            promised = measuring.header.n_frames
            raise DecodeError(
                ErrorCode.NO_FRAMES,
                f"{uri}: no frame can be decoded ({report.n_errors} packets are damaged; frames "
                f"according to the header: {promised if promised is not None else 'unknown'}); "
                "fetch the file again or leave it out",
            )
        track = measuring.track(hashing.finish())
        measuring.account()
        header = measuring.header
        is_doubtful = measuring.has_duration_of_file and header.n_frames is None
        is_doubtful &= Note.TRUNCATED in header.notes(track) and not report.ended_early
        # Sound may be longer than the pictures.
        if is_doubtful and reaches(reader, uri, n_bytes=options["n_bytes"], share=FEWER):
            header = replace(header, duration_s=None)
        return replace(track, notes=header.notes(track))

    models = options["analysis_models"]
    # Video engines decode no still images.
    return with_cpu_to_fall_back_on(replace(models, nvdec=None) if is_image else models, measured)


def with_cpu_to_fall_back_on(
    models: AnalysisModels, measured: Callable[[AnalysisModels], Track]
) -> Track:
    """Measures on the GPU; if the GPU refuses the source, measures all of it again on the CPU.

    The track then has a note with the reason.

    Raises:
        DeviceError: The device fails.
    """
    nvdec = models.nvdec
    if nvdec is None:
        return measured(models)

    def tried() -> Track:
        try:
            return measured(models)
        except DeviceMemoryError:
            models.graphs.give_up()
            raise

    try:
        return nvdec.attempt(tried)
    except NotOnDeviceError as error:
        # Not the error itself, which would keep what the attempt holds on the device.
        refusal = error.refusal
        logger.info("decoded on the CPU: %s", error)
    with nvdec.named_errors():
        track = measured(replace(models, nvdec=None))
    return replace(track, notes=(*track.notes, Note(f"not_on_gpu_{refusal}")))


def _fitting(frame: AnyFrame) -> int:
    """Returns how many frames of this size fit in `AHEAD_BYTES`."""
    assert isinstance(frame, DecodedFrame)
    return AHEAD_BYTES // max(1, sum(plane.buffer_size for plane in frame.picture.planes))


def _decoding_notes(report: DecodeReport) -> Iterator[Note]:
    if report.ended_early:
        yield Note.TRUNCATED
    if report.n_errors:
        yield Note.DECODE_ERRORS
    if report.n_concealed:
        yield Note.CORRUPT_FRAMES
    if report.n_repaired_pts:
        yield Note.TIMESTAMPS_REPAIRED
    if report.shifts_s:
        yield Note.TIMES_START_AGAIN
    if len(report.sizes) > 1:
        yield Note.SIZE_CHANGES
    if report.orientation.is_mirrored:
        yield Note.MIRRORED
    if report.aspect_changes:
        yield Note.ASPECT_CHANGES
    if report.n_bits > KEPT_BITS:
        yield Note.DEPTH_REDUCED
