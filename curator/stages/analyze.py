"""Decodes each source once and stores its track."""

from fractions import Fraction
from typing import BinaryIO

import numpy as np
from av.container import InputContainer
from av.video.stream import VideoStream
from pydantic import BaseModel, ConfigDict, Field, model_validator

from curator.errors import DecodeError, ErrorCode
from curator.lake import fingerprint
from curator.media.container import open_container, pixel_aspect_of, video_stream
from curator.media.decode import DecodeReport, FrameReader
from curator.models.perceptual import DIM, PERCEPTUAL_MODEL
from curator.models.transnet import ShotNetwork, transnet_model_name
from curator.records import Note, Track
from curator.stages.measure import Measurer
from curator.storage import HashingReader

FEWER = 0.95
"""Share of what a header promises below which a file counts as truncated; headers of sound files
miss by a frame or two."""

ANALYZE_VERSION = 1
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
    thumbnail_every: int = Field(
        4,
        ge=1,
        description="samples per stored thumbnail, which the report shows",
        json_schema_extra={"unit": "samples"},
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


def analyze_fingerprint(config: AnalyzeConfig) -> str:
    """Fingerprint of tracks: settings, code version and models."""
    return fingerprint(
        "analyze",
        ANALYZE_VERSION,
        config.model_dump(mode="json"),
        transnet_model_name(),
        PERCEPTUAL_MODEL,
        DIM,
    )


def analyze_source(
    reader: BinaryIO,
    uri: str,
    *,
    source_id: str,
    n_bytes: int,
    network: ShotNetwork,
    config: AnalyzeConfig,
    decoder_threads: int,
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
        decoder_threads: Threads of the decoder; changes no result, because a source that turns
            out damaged is decoded again with one.

    Returns:
        The track.

    Raises:
        SourceError: With the code under which the source fails.
    """
    hashing = HashingReader(reader)
    with open_container(hashing, uri, n_bytes=n_bytes) as container:
        stream = video_stream(container, uri)
        header_frames = stream.frames or None
        frames = FrameReader(
            container,
            stream,
            uri,
            threads=decoder_threads,
            max_pixels=config.max_pixels,
            max_frames=config.max_frames,
        )
        header_s = _header_duration_s(container, stream, frames.time_base)
        measurer: Measurer | None = None
        pixel_aspect = Fraction(1)
        for frame in frames:
            if measurer is None:
                pixel_aspect = pixel_aspect_of(stream, frames.report.rotation_deg)
                measurer = Measurer(
                    network,
                    time_base=frames.time_base,
                    pixel_aspect=pixel_aspect,
                    samples_per_s=config.samples_per_s,
                    pair_s=config.motion_pair_s,
                    thumbnail_every=config.thumbnail_every,
                )
            measurer.add(frame, frames.report)
            if decoder_threads > 1 and frames.report.is_damaged:
                break
        report = frames.report
    if decoder_threads > 1 and report.is_damaged:
        return analyze_source(
            reader,
            uri,
            source_id=source_id,
            n_bytes=n_bytes,
            network=network,
            config=config,
            decoder_threads=1,
        )
    if measurer is None:
        raise DecodeError(
            ErrorCode.NO_FRAMES,
            f"{uri}: no frame decodes ({report.n_errors} of its packets are damaged, "
            f"{header_frames if header_frames is not None else 'an unknown number'} were "
            "promised); fetch the file again or leave it out",
        )
    return _track(source_id, hashing.finish(), frames, measurer, pixel_aspect,
                  _notes(report, header_frames, header_s, frames.time_base, measurer))  # fmt: skip


def _header_duration_s(
    container: InputContainer, stream: VideoStream, time_base: Fraction
) -> float | None:
    """Duration that the header claims for the video: Matroska has only one for the whole file."""
    if stream.duration:
        return float(stream.duration * time_base)
    return container.duration / 1_000_000 if container.duration else None


def _notes(
    report: DecodeReport,
    header_frames: int | None,
    header_s: float | None,
    time_base: Fraction,
    measurer: Measurer,
) -> tuple[Note, ...]:
    notes = []
    assert report.end_pts is not None
    measured_s = float((report.end_pts - measurer.frame_pts[0]) * time_base)
    promised = header_frames is not None and report.n_frames < FEWER * header_frames
    promised |= header_frames is None and header_s is not None and measured_s < FEWER * header_s
    if report.ended_early or promised:
        notes.append(Note.TRUNCATED)
    if report.n_errors:
        notes.append(Note.DECODE_ERRORS)
    if report.n_concealed:
        notes.append(Note.CORRUPT_FRAMES)
    if header_s is not None and abs(header_s - measured_s) > max(0.5, 0.02 * header_s):
        notes.append(Note.DURATION_DIFFERS)
    if header_frames is not None and header_frames != report.n_frames:
        notes.append(Note.FRAME_COUNT_DIFFERS)
    if report.n_repaired_pts:
        notes.append(Note.TIMESTAMPS_REPAIRED)
    if len(report.sizes) > 1:
        notes.append(Note.SIZE_CHANGES)
    return tuple(notes)


def _track(
    source_id: str,
    sha256: str,
    frames: FrameReader,
    measurer: Measurer,
    pixel_aspect: Fraction,
    notes: tuple[Note, ...],
) -> Track:
    report = frames.report
    assert report.end_pts is not None
    shot_probability, transition_probability = measurer.finish()
    width, height = report.sizes[0]
    if report.rotation_deg % 180:
        width, height = height, width
    return Track(
        source_id=source_id,
        sha256=sha256,
        time_base=frames.time_base,
        end_pts=report.end_pts,
        width=width,
        height=height,
        rotation_deg=report.rotation_deg,
        pixel_aspect=pixel_aspect,
        is_interlaced=report.is_interlaced,
        is_hdr=report.is_hdr,
        notes=notes,
        n_decode_errors=report.n_errors,
        frame_pts=np.array(measurer.frame_pts, np.int64),
        frame_bytes=np.array(measurer.frame_bytes, np.int32),
        frame_flags=np.array(measurer.frame_flags, np.uint8),
        shot_probability=shot_probability,
        transition_probability=transition_probability,
        luma_mean=np.array(measurer.luma_mean, np.float32),
        luma_spread=np.array(measurer.luma_spread, np.float32),
        sample_frame=np.array(measurer.sample_frame, np.int32),
        sample_pair_frame=np.array(measurer.sample_pair_frame, np.int32),
        motion=np.array(measurer.motion, np.float32),
        sharpness=np.array(measurer.sharpness, np.float32),
        dark_fraction=np.array(measurer.dark_fraction, np.float32),
        bright_fraction=np.array(measurer.bright_fraction, np.float32),
        descriptor=measurer.descriptors_SD(),
        thumbnails=tuple(measurer.thumbnails),
        thumbnail_frame=np.array(measurer.thumbnail_frame, np.int32),
    )
