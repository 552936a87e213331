"""Decodes each source once and stores its track."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import BinaryIO

import numpy as np
from av.container import InputContainer
from av.video.stream import VideoStream
from pydantic import BaseModel, ConfigDict, Field, model_validator

from curator.errors import DecodeError, ErrorCode
from curator.lake import fingerprint
from curator.media.container import open_container, pixel_aspect_of, video_stream
from curator.media.decode import DecodedFrame, DecodeReport, FrameReader
from curator.models.clip import ClipEncoder
from curator.models.perceptual import DIM, PERCEPTUAL_MODEL
from curator.models.text import TEXT_MODEL, TextDetector
from curator.models.transnet import Precision, ShotNetwork, transnet_model_name
from curator.records import Note, Track
from curator.stages.measure import Measurer, needs_smoothing
from curator.storage import HashingReader

FEWER = 0.95
"""Share of what a header promises below which a file counts as truncated; headers of sound files
miss by a frame or two."""

ANALYZE_VERSION = 4
"""Raised when the same settings would give another track."""


class AnalyzeConfig(BaseModel):
    """What is measured, and the limits of what is decoded."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # 2 per second: VideoX-Fun's rate for motion, cosmos-curate's for captions.
    samples_per_s: float = Field(
        2.0,
        gt=0,
        le=30,
        description="grid on which motion, sharpness, exposure and descriptor are measured",
        json_schema_extra={"unit": "1/s"},
    )
    # 0.1 s: a fast pan of 2 picture heights per second moves 36 px of 180, which DIS still follows.
    motion_pair_s: float = Field(
        0.1,
        gt=0,
        le=1,
        description="distance of the two frames between which motion is measured",
        json_schema_extra={"unit": "s"},
    )
    text: bool = Field(
        True,
        description="look for text, which scores of text need; one look costs 0.05 CPU-seconds",
        json_schema_extra={"unit": "yes or no"},
    )
    # 1 s: the shortest clip, of 2 s, then has two looks; subtitles stand for 1 s upwards.
    text_every_s: float = Field(
        1.0,
        gt=0,
        le=60,
        description="grid on which text, logos and divided screens are looked for; whole samples",
        json_schema_extra={"unit": "s"},
    )
    thumbnail_every: int = Field(
        4,
        ge=1,
        description="samples per stored thumbnail, which the report shows",
        json_schema_extra={"unit": "samples"},
    )
    # 120 s: at 30 frames/s the overlap of two segments is 3% of one.
    segment_s: float = Field(
        120.0,
        ge=10,
        description="a longer source is cut at key frames into segments of at most this length, "
        "which are analyzed in parallel; changes no result",
        json_schema_extra={"unit": "s"},
    )
    shot_precision: Precision = Field(
        "auto",
        description="arithmetic of the shot network: float32, bfloat16, or auto for bfloat16 where "
        "the CPU has instructions for it; name one if unlike machines must agree to the bit",
        json_schema_extra={"unit": "name"},
    )
    clip: str | None = Field(
        None,
        description="CLIP model of `curate models list` that looks at the pictures; null for none, "
        "and then scores that are read from its embeddings are absent",
        json_schema_extra={"unit": "name"},
    )
    # 1 s: the shortest clip, of 2 s, has two pictures to compare.
    clip_every_s: float = Field(
        1.0,
        gt=0,
        description="time between pictures that the CLIP model looks at; they are samples, so that "
        "it is no shorter than one of 1 / samples_per_s",
        json_schema_extra={"unit": "s"},
    )
    clip_precision: Precision = Field(
        "auto",
        description="arithmetic of the CLIP model on CPUs, as shot_precision; a GPU uses float16",
        json_schema_extra={"unit": "name"},
    )
    # 8192x4608 is 37.7 million: 8K UHD and DCI 8K pass, a decompression bomb does not.
    max_pixels: int = Field(
        40_000_000,
        ge=1,
        description="largest frame that is decoded; a larger one fails with too_many_pixels",
        json_schema_extra={"unit": "px"},
    )
    # 24 hours at 60 frames per second.
    max_frames: int = Field(
        5_184_000,
        ge=1,
        description="most frames of a source; more fail with too_long",
        json_schema_extra={"unit": "frames"},
    )
    # Twelve hours for one source: the worst honest case is a day of 4K on one slow core.
    max_decode_s: float = Field(
        43_200.0,
        gt=0,
        description="wall time for one source after which its worker is ended; twice ends the "
        "source with worker_died",
        json_schema_extra={"unit": "s"},
    )

    @model_validator(mode="after")
    def _pairs_fit(self) -> "AnalyzeConfig":
        if self.motion_pair_s * self.samples_per_s > 1:
            raise ValueError(
                f"samples_per_s is {self.samples_per_s} and motion_pair_s {self.motion_pair_s}; a "
                f"pair must end before the next sample, in {1 / self.samples_per_s:.3g} s"
            )
        return self


def analyze_fingerprint(config: AnalyzeConfig, clip_stamp: str | None = None) -> str:
    """Fingerprint of tracks: settings, code version and models.

    Args:
        config: Settings.
        clip_stamp: What says which weights the CLIP model has; None without one.
    """
    return fingerprint(
        "analyze",
        ANALYZE_VERSION,
        config.model_dump(mode="json", exclude={"segment_s"}),
        transnet_model_name(),
        PERCEPTUAL_MODEL,
        DIM,
        TEXT_MODEL if config.text else "",
        clip_stamp,
    )


def look_every(config: AnalyzeConfig) -> int:
    """Steps of the sampling grid from one look for overlays to the next."""
    return max(1, round(config.text_every_s * config.samples_per_s))


class Measuring:
    """One decode of a source, or of a segment of it, and what is measured on the way.

    Args:
        container: Opened for reading.
        uri: Name for messages.
        network: Shot network of this worker.
        config: Settings.
        threads: Threads of the decoder; with more than one the network runs beside it.
        anchor_pts: Where the sampling grid begins; None for the first frame that comes.
        detector: Text detector of this worker; None leaves text out.
        clip: CLIP model of this worker; None for none.
    """

    def __init__(
        self,
        container: InputContainer,
        uri: str,
        network: ShotNetwork,
        config: AnalyzeConfig,
        *,
        threads: int,
        anchor_pts: int | None = None,
        detector: TextDetector | None = None,
        clip: ClipEncoder | None = None,
    ) -> None:
        self._clip = clip
        self.stream = video_stream(container, uri)
        self._smooths_all = needs_smoothing(self.stream)
        self.frames = FrameReader(
            container,
            self.stream,
            uri,
            threads=threads,
            max_pixels=config.max_pixels,
            max_frames=config.max_frames,
            smooths_all=self._smooths_all,
        )
        self.header = HeaderClaims(
            n_frames=self.stream.frames or None,
            duration_s=_header_duration_s(container, self.stream, self.frames.time_base),
        )
        self._network = network
        self._detector = detector
        self._config = config
        self._in_background = threads > 1
        self._anchor_pts = anchor_pts
        self._pixel_aspect = Fraction(1)
        self.measurer: Measurer | None = None

    def take(self, frame: DecodedFrame) -> None:
        """Measures the next frame."""
        report = self.frames.report
        if self.measurer is None:
            self._pixel_aspect = pixel_aspect_of(self.stream, report.rotation_deg)
            self.measurer = Measurer(
                self._network,
                time_base=self.frames.time_base,
                pixel_aspect=self._pixel_aspect,
                samples_per_s=self._config.samples_per_s,
                pair_s=self._config.motion_pair_s,
                thumbnail_every=self._config.thumbnail_every,
                look_every=look_every(self._config),
                detector=self._detector,
                smooths_all=self._smooths_all,
                anchor_pts=self._anchor_pts,
                in_background=self._in_background,
                clip=self._clip,
                clip_every_s=self._config.clip_every_s,
            )
        self.measurer.add(frame, report)

    def account(self, spent: dict[str, float] | None) -> None:
        """Adds the CPU-seconds of the measurements to `spent`."""
        if spent is not None and self.measurer is not None:
            for name, seconds in self.measurer.cpu_seconds().items():
                spent[name] = spent.get(name, 0.0) + seconds

    def track(self, source_id: str, sha256: str) -> Track:
        """The track of what was taken; its notes say nothing of the header's claims."""
        report, measurer = self.frames.report, self.measurer
        assert measurer is not None
        assert report.end_pts is not None
        shot_probability, transition_probability = measurer.finish()
        sample_frame, sample_pair_frame = measurer.sample_frames()
        clip_frame, clip_embedding = measurer.clip_embeddings()
        width, height = report.sizes[0]
        if report.rotation_deg % 180:
            width, height = height, width
        return Track(
            source_id=source_id,
            sha256=sha256,
            time_base=self.frames.time_base,
            end_pts=report.end_pts,
            width=width,
            height=height,
            rotation_deg=report.rotation_deg,
            pixel_aspect=self._pixel_aspect,
            is_interlaced=report.is_interlaced,
            is_hdr=report.is_hdr,
            notes=tuple(_decoding_notes(report)),
            n_decode_errors=report.n_errors,
            frame_pts=np.array(measurer.frame_pts, np.int64),
            frame_bytes=np.array(measurer.frame_bytes, np.int32),
            frame_flags=np.array(measurer.frame_flags, np.uint8),
            shot_probability=shot_probability,
            transition_probability=transition_probability,
            luma_mean=np.array(measurer.luma_mean, np.float32),
            luma_spread=np.array(measurer.luma_spread, np.float32),
            changes=measurer.changes(),
            sample_frame=sample_frame,
            sample_pair_frame=sample_pair_frame,
            signals=measurer.signals(),
            descriptor=measurer.descriptors_SD(),
            has_text=self._detector is not None,
            **measurer.looks.columns(),
            clip_frame=clip_frame,
            clip_embedding=clip_embedding,
            thumbnails=tuple(measurer.thumbnails),
            thumbnail_frame=np.array(measurer.thumbnail_frame, np.int32),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderClaims:
    """What a container promises of its video."""

    n_frames: int | None
    duration_s: float | None

    def notes(self, track: Track) -> tuple[Note, ...]:
        """The notes of a track, with those on promises that were not kept."""
        n_frames, duration_s = self.n_frames, self.duration_s
        notes = list(track.notes)
        promised = n_frames is not None and track.n_frames < FEWER * n_frames
        promised |= (
            n_frames is None and duration_s is not None and track.duration_s < FEWER * duration_s
        )
        if promised and Note.TRUNCATED not in notes:
            notes.insert(0, Note.TRUNCATED)
        if duration_s is not None and abs(duration_s - track.duration_s) > max(
            0.5, 0.02 * duration_s
        ):
            notes.append(Note.DURATION_DIFFERS)
        if n_frames is not None and n_frames != track.n_frames:
            notes.append(Note.FRAME_COUNT_DIFFERS)
        return tuple(notes)


def analyze_source(
    reader: BinaryIO,
    uri: str,
    *,
    source_id: str,
    n_bytes: int,
    network: ShotNetwork,
    config: AnalyzeConfig,
    decoder_threads: int,
    detector: TextDetector | None = None,
    clip: ClipEncoder | None = None,
    spent: dict[str, float] | None = None,
) -> Track:
    """Decodes a source once and measures it.

    Args:
        reader: The source, seekable; read once, and what the demuxer skips a second time for the
            SHA-256.
        uri: Name for messages.
        source_id: Its id.
        n_bytes: Its size.
        network: Shot network of this worker.
        config: Settings.
        decoder_threads: Threads of the decoder; with more than one the network runs beside it.
            Changes no result, because a source that turns out damaged is decoded again with one.
        detector: Text detector of this worker; None leaves text out.
        clip: CLIP model of this worker; None for none.
        spent: Takes the CPU-seconds of the measurements, by name.

    Returns:
        The track.

    Raises:
        SourceError: With the code under which the source fails.
    """
    hashing = HashingReader(reader)
    with open_container(hashing, uri, n_bytes=n_bytes) as container:
        measuring = Measuring(
            container,
            uri,
            network,
            config,
            threads=decoder_threads,
            detector=detector,
            clip=clip,
        )
        for frame in measuring.frames:
            measuring.take(frame)
            if decoder_threads > 1 and measuring.frames.report.is_damaged:
                break
        report = measuring.frames.report
    if decoder_threads > 1 and report.is_damaged:
        measuring.account(spent)
        return analyze_source(
            reader,
            uri,
            source_id=source_id,
            n_bytes=n_bytes,
            network=network,
            config=config,
            decoder_threads=1,
            detector=detector,
            clip=clip,
            spent=spent,
        )
    if measuring.measurer is None:
        promised = measuring.header.n_frames
        raise DecodeError(
            ErrorCode.NO_FRAMES,
            f"{uri}: no frame decodes ({report.n_errors} of its packets are damaged, "
            f"{promised if promised is not None else 'an unknown number'} were promised); fetch "
            "the file again or leave it out",
        )
    track = measuring.track(source_id, hashing.finish())
    measuring.account(spent)
    return replace(track, notes=measuring.header.notes(track))


def _header_duration_s(
    container: InputContainer, stream: VideoStream, time_base: Fraction
) -> float | None:
    """Duration that the header claims for the video: Matroska has only one for the whole file."""
    if stream.duration:
        return float(stream.duration * time_base)
    return container.duration / 1_000_000 if container.duration else None


def _decoding_notes(report: DecodeReport) -> Iterator[Note]:
    if report.ended_early:
        yield Note.TRUNCATED
    if report.n_errors:
        yield Note.DECODE_ERRORS
    if report.n_concealed:
        yield Note.CORRUPT_FRAMES
    if report.n_repaired_pts:
        yield Note.TIMESTAMPS_REPAIRED
    if len(report.sizes) > 1:
        yield Note.SIZE_CHANGES
