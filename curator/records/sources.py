"""A source: as listed, as its container describes it, as a row of `sources`, or as it failed."""

import math
from dataclasses import dataclass
from typing import Literal

from curator.errors import ErrorCode
from curator.fingerprints import fingerprint
from curator.records.columns import Int16, Int32, WordedEnum
from curator.records.moments import Rig
from curator.records.time_spans import TimeSpan, spans_key

FULL_HD = 1920 * 1080


class Medium(WordedEnum):
    """What a source is, and each clip of it. Public: column `medium` of `sources` and `clips`."""

    VIDEO = "video", "a video"
    IMAGE = "image", "a still image"
    SOUND = "sound", "sound without pictures"


_DECODED = "decoded on the CPU of a GPU node: "
_MEASURED = "measured on the CPU of a GPU node: "


class Note(WordedEnum):
    """A defect or peculiarity of a source that is used nevertheless. Public: `sources.notes`."""

    TRUNCATED = "truncated", "the container promises more than there is; what decodes is used"
    DECODE_ERRORS = "decode_errors", "some packets do not decode; the frames around them are used"
    CORRUPT_FRAMES = "corrupt_frames", "some frames are damaged, or depend on damaged or lost ones"
    DURATION_DIFFERS = "duration_differs", "the header's duration is not that of the frames"
    FRAME_COUNT_DIFFERS = "frame_count_differs", "the header's frame count is not what decodes"
    TIMESTAMPS_REPAIRED = "timestamps_repaired", "missing, repeated or backward timestamps replaced"
    TIMES_START_AGAIN = (
        "times_start_again",
        "timestamps start again within the file; later parts are put behind earlier ones",
    )
    SIZE_CHANGES = "size_changes", "the picture size changes within the stream"
    MIRRORED = "mirrored", "its display matrix mirrors the picture; clips show it as players do"
    ASPECT_CHANGES = "aspect_changes", "the shape of pixels changes; clips are divided there"
    DEPTH_REDUCED = "depth_reduced", "more than 8 bits per sample; clips have 8"
    OTHER_VIDEO = "other_video", "it has further video streams, of which no clips are made"
    AUDIO_ERRORS = "audio_errors", "some audio does not decode; that time counts as without audio"
    AUDIO_NOT_DECODED = "audio_not_decoded", "no decoder exists for the audio, which counts as none"
    AUDIO_TIMESTAMPS = "audio_timestamps", "audio has no timestamp, or two stretches for one time"
    AUDIO_UNPROVEN = (
        "audio_unproven",
        "audio of two segments does not provably fit; what is in doubt is none",
    )
    # Decoded on the CPU of a GPU node, by reason: see `media.nvdec.Refusal`.
    NOT_ON_GPU_CODEC = "not_on_gpu_codec", _DECODED + "its codec or depth"
    NOT_ON_GPU_PIXEL_FORMAT = "not_on_gpu_pixel_format", _DECODED + "its chroma"
    NOT_ON_GPU_SIZE = "not_on_gpu_size", _DECODED + "its picture size"
    NOT_ON_GPU_INTERLACED = "not_on_gpu_interlaced", _DECODED + "interlaced"
    NOT_ON_GPU_TIMESTAMPS = "not_on_gpu_timestamps", _DECODED + "packets without a time"
    NOT_ON_GPU_SIZE_CHANGES = "not_on_gpu_size_changes", _DECODED + "its picture size changes"
    NOT_ON_GPU_FRAMES_DIFFER = "not_on_gpu_frames_differ", _DECODED + "other frames came"
    NOT_ON_GPU_DAMAGED = "not_on_gpu_damaged", _DECODED + "damaged"
    NOT_ON_GPU_DECODER_ERROR = "not_on_gpu_decoder_error", _DECODED + "its decoder failed"
    # Measured on the CPU after a GPU failed under it twice: see `executor.unit_worker`.
    NOT_ON_GPU_DEVICE_LOST = "not_on_gpu_device_lost", _MEASURED + "the GPU failed twice"
    NOT_ON_GPU_OUT_OF_MEMORY = "not_on_gpu_out_of_memory", _MEASURED + "the GPU ran out of memory"
    SAME_BYTES = "same_bytes", "another source has the same bytes; that source has the clips"
    SPAN_OUTSIDE = "span_outside", "a span of the manifest lies behind the last frame"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRef:
    """A source as listed, with the facts of its header if a scan read it."""

    uri: str
    n_bytes: int
    version: str
    source_id: str | None = None
    header_duration_s: float | None = None
    header_n_frames: int | None = None
    n_pixels: int | None = None
    codec: str | None = None
    pixel_format: str | None = None
    width: int | None = None
    height: int | None = None
    medium: Medium = Medium.VIDEO
    spans: tuple[TimeSpan, ...] = ()
    """Spans of which clips are made, in order; empty for the whole source."""
    rig: Rig | None = None
    """The moments at which its clips are cut; None for a source of no group of cameras."""

    @property
    def places_key(self) -> str | None:
        """A text that is equal for equal spans and moments; None without any."""
        if not self.spans and self.rig is None:
            return None
        return fingerprint(spans_key(self.spans), [] if self.rig is None else self.rig.key())

    @property
    def is_image(self) -> bool:
        """Whether the source is a still image."""
        return self.medium == Medium.IMAGE

    @property
    def weight(self) -> float:
        """Estimated number of frames."""
        return float(self.header_n_frames or 30.0 * (self.header_duration_s or 0.0))

    @property
    def work(self) -> float:
        """Estimated work, in frames of 1080p; infinite for an unknown length."""
        if not self.weight:
            return math.inf
        return self.weight * max(0.5, (self.n_pixels or FULL_HD) / FULL_HD)

    @property
    def analysis_s(self) -> float:
        """Estimated cost of the analysis, in seconds of 1080p at 25 frames/s; 0 if unknown.

        Decoding, scaling and the shot network go by frames, and the first two by their pixels; the
        rest goes by time (benchmarks/results/pipeline.md).
        """
        size = (self.n_pixels or FULL_HD) / FULL_HD
        seconds = self.header_duration_s or 0.0
        return (0.25 + 0.44 * size) * self.weight / 25 + 0.31 * seconds if seconds else 0.0


LEAST_LIMIT_S = 30.0
BYTES_PER_LIMIT_S = 2e6
PIXELS_PER_LIMIT_S = 2e7
"""A tenth of what one core decodes and measures."""
PIXELS_PER_BYTE = (100.0, 10_000.0)
"""Fewest that are allowed for, whatever a header claims, and most: a film of a still picture has
10,000. A hostile 100 KB gets 80 CPU-seconds by this."""


def decode_limit_s(source: SourceRef) -> float:
    """CPU-seconds that decoding a source may take, by its bytes and by the pixels it claims."""
    least, most = (source.n_bytes * density for density in PIXELS_PER_BYTE)
    pixels = min(most, max(least, source.weight * (source.n_pixels or FULL_HD)))
    return LEAST_LIMIT_S + source.n_bytes / BYTES_PER_LIMIT_S + pixels / PIXELS_PER_LIMIT_S


FRAME_S = 4.2e-3
"""CPU-seconds of the shot network for a frame, whatever its size: benchmarks/results/analyze.md."""
BYTES_PER_FRAME = 32.0
"""Fewest on average, beyond what `decode_limit_s` allows: a still picture of 1080p has about as
many, and by its pixels more time; 1.5 million frames of 16x16 in 19 MB have 13."""


def frame_limit(source: SourceRef) -> int:
    """Most frames that a source may have if each of its segments gets a limit of its own."""
    return round(decode_limit_s(source) / FRAME_S + source.n_bytes / BYTES_PER_FRAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A row of `sources`: one per input, whatever became of it.

    `width` and `height` are after rotation; `duration_s`, `n_frames`, `fps` and `is_vfr` are
    measured from decoded frames, `header_*` what the container claims. Two URIs with the same bytes
    have two rows; the clips are those of the first URI.
    """

    source_id: str | None
    uri: str
    bytes: int | None
    version: str | None
    sha256: str | None
    medium: Medium | None
    """None if the scan could not tell."""
    container: str | None
    codec: str | None
    pixel_format: str | None
    width: Int32 | None
    height: Int32 | None
    rotation_deg: Int16 | None
    pixel_aspect: str | None
    duration_s: float | None
    n_frames: int | None
    fps: float | None
    is_vfr: bool | None
    is_hdr: bool | None
    is_interlaced: bool | None
    has_audio: bool | None
    header_duration_s: float | None
    header_n_frames: int | None
    n_decode_errors: Int32 | None
    n_shots: Int32 | None
    n_clips: Int32 | None
    n_kept: Int32 | None
    generation: Int32 | None = None
    """Number of the group of sources that it was first committed with; None for a failed one."""
    spans: str | None = None
    """Spans that a manifest names, as a JSON list of `start_s`, `end_s` (null: the end), `meta`."""
    license: str | None = None
    """Licence, by `rights.license`: an SPDX id, or the text of the metadata."""
    origin: str | None = None
    """Address or name of where the source is from, by `rights.origin`."""
    c2pa: Literal["valid", "invalid", "none"] | None = None
    """Whether hashes and signature of its C2PA manifest hold; None if it was not checked."""
    c2pa_generated: bool | None = None
    """Whether a manifest says that a model generated the source or a part of it."""
    c2pa_issuer: str | None = None
    """Organization in the certificate of the newest manifest; not proved if `c2pa` is invalid."""
    c2pa_tool: str | None = None
    """Program that made the newest manifest, as it says."""
    clock: str | None = None
    """The source's common clock with its group as JSON, or why it has none as `refused`."""
    notes: list[str] | None
    outcome: Literal["done", "failed"] | None
    error_stage: str | None
    error_code: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A source that could not be used, at one stage."""

    uri: str
    stage: str
    code: ErrorCode
    message: str

    def columns(self) -> dict[str, str]:
        """Returns the error columns of a row."""
        return {
            "error_stage": self.stage,
            "error_code": str(self.code),
            "error_message": self.message,
        }
