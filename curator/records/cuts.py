"""Records of writing a clip: the request, the written clip, and why it was not copied."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.records.clips import Borders, Coding, Length, Size, Written
from curator.records.columns import field_names


class NotCopied(StrEnum):
    """Why a clip was encoded, and not copied. Public: `cut.not_copied` of `summary.json`."""

    CODEC = "codec"
    """Not a codec, profile or stream form of `cut.copy_codecs` that all decoders take."""
    CHROMA = "chroma"
    """Not 8-bit 4:2:0 of limited range."""
    SHAPE = "shape"
    """Rotated, mirrored, of odd size, of changing size, or with pixels that are not square."""
    BORDERS = "borders"
    """Black borders are cropped, which requires encoding."""
    INTERLACED = "interlaced"
    HIGH_DYNAMIC_RANGE = "high_dynamic_range"
    VARIABLE_RATE = "variable_rate"
    PIXELS_CHANGED = "pixels_changed"
    """A stage of the recipe changes the pictures."""
    FIXED_SIZE = "fixed_size"
    """The recipe names a size, and the source has another."""
    FIXED_RATE = "fixed_rate"
    """The recipe names a frame rate, and the source has another."""
    COLOURS = "colours"
    """Of a still image: transparent, of more than 8 bits per sample, or not in sRGB."""
    KEY_FRAME_TOO_FAR = "key_frame_too_far"
    """A copy would lose more frames before the first key frame than the recipe allows."""
    KEY_FRAMES_TOO_RARE = "key_frames_too_rare"
    """Key frames are farther apart than `cut.copy_max_gap_s`, so windows would decode slowly."""
    END_TOO_FAR = "end_too_far"
    """Frames before the end refer to frames after it, so a copy would lose too many frames."""
    TOO_FEW_FRAMES = "too_few_frames"
    """The copy would be too short, or leave its bucket."""
    TIMESTAMPS = "timestamps"
    """The packets' times are not those of the frames that were analyzed."""
    DAMAGED = "damaged"
    """A packet is marked as damaged, or the packets end early."""
    CHECK_FAILED = "check_failed"
    """The copy does not hold the requested packets or frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crop:
    """A part of the upright picture, in the source's own pixels, before they are made square.

    All values are even, so that 4:2:0 chroma is cut between its pixels, and lie inwards of where
    the borders end.
    """

    x: int
    y: int
    width: int
    height: int


CROP_COLUMNS = field_names(Borders)
"""Columns of `clips`, each `crop_` and a field of `Crop`."""


def crop_columns(crop: Crop | None) -> dict[str, int | None]:
    """Returns the values of `CROP_COLUMNS`."""
    return {name: getattr(crop, name.removeprefix("crop_"), None) for name in CROP_COLUMNS}


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRequest:
    """A kept clip, with the facts that writing it needs."""

    clip_id: str
    start_pts: int
    end_pts: int
    frame_pts: NDArray[np.int64]
    """[n] timestamps of the source's frames that the clip must hold."""
    frame_luma: NDArray[np.float32]
    """[n] mean luma of those frames as analyzed, 0 (black) to 1 (white)."""
    time_base: Fraction
    fps: Fraction
    """Rate that is written."""
    is_vfr: bool
    rotation_deg: int
    """Clockwise rotation that turns frames upright."""
    crop: Crop | None
    """The picture inside its borders; None to keep all of it."""
    is_interlaced: bool
    is_hdr: bool
    min_frames: int
    """Fewest frames of a copy; with fewer, the clip is encoded with all its frames instead."""
    is_mirrored: bool = False
    """Whether frames are mirrored left to right, after the rotation."""
    pixel_aspect: Fraction = Fraction(1)
    """Width / height of a pixel after rotation."""
    is_seekable: bool = True
    """False if the source must be read from its start, because its times occur several times."""
    source_size: tuple[int, int] | None = None
    """Width and height of the span's frames, if sizes change within the source; else None."""
    is_resampled: bool = False
    """Whether `fps` is another rate than the source's, so that frames are repeated or left out."""
    n_written: int | None = None
    """Frames to write at a rate that needs a plan; None for as many as the span is long."""
    size: tuple[int, int] | None = None
    """Width and height to write, even; None for the picture's own."""
    source_bits_per_pixel: float | None = None
    """Of the span as the source codes it; None when not known."""
    packet_bytes: NDArray[np.int32] | None = None
    """[n] bytes of the packets of uniform frames whose source is checked by hashes; None for
    others, of which only a decode proves a copy."""


Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLine:
    """A line of text that was read in a picture."""

    text: str
    confidence: float
    """Mean probability of its characters, 0 to 1."""
    box: tuple[Point, Point, Point, Point]
    """Corners as shares of the picture's width and height: from where the text begins along its
    upper edge, and back along its lower one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledFrames:
    """Frames that were sampled of a clip, or why there are none."""

    n_frames: int = 0
    """Frames of the clip."""
    pixels: tuple[NDArray[np.uint8], ...] = field(default=(), repr=False)
    """uint8 [T, H, W, 3] RGB, an array for each request of pixels."""
    jpegs: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    """Pictures by the number of their frame, ascending."""
    text: Mapping[int, tuple[TextLine, ...]] = field(default_factory=dict)
    """Lines of text by the number of their frame; empty where none was read."""
    audio: tuple[NDArray[np.float32] | None, ...] = field(default=(), repr=False)
    """float32 [C, N], an array for each request of audio; None for a clip without audio."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFrames:
    """Place of a clip's stored frames, or the error."""

    clip_id: str
    part: str = ""
    row: int = 0
    n_frames: int = 0
    """Frames of the clip, as decoded."""
    text: str = ""
    """Text in the frames, as JSON; empty if none was read."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshClip:
    """A clip that this process has just written, for the next step of its chain.

    Attributes:
        note: What that step needs to know about the clip.
    """

    note: Any
    written: Written
    mp4: bytes = field(repr=False)


@dataclass(slots=True, kw_only=True)
class CutClip(Coding, Length, Size):
    """A written clip: an MP4 or a picture in memory, and facts about its content.

    Of the request's frames it holds `[first, end)`: all of them when encoded.
    """

    clip_id: str
    mp4: bytes = field(repr=False)
    first: int
    end: int
    fps: Fraction
    is_decoded: bool = True
    """Whether all frames of a copy were decoded as a check."""
    copy_frames: int | None = None
    crf: int | None = None
    not_copied: NotCopied | None = None
    """Why the clip was encoded; None for a copy, or if the recipe does not allow copies."""

    @property
    def mp4_sha256(self) -> str:
        """Hash of the MP4, in hex."""
        return hashlib.sha256(self.mp4).hexdigest()
