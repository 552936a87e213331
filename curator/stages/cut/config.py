"""Settings for writing clips."""

from fractions import Fraction
from typing import Any, Literal, Self

from pydantic import field_validator, model_validator

from curator.frame_rate import as_words, parsed_rate
from curator.frame_size import parsed_size
from curator.stage import StageConfig, setting

Size = tuple[int, int]


class CutConfig(StageConfig):
    """Settings for writing clips."""

    mode: Literal["auto", "encode"] = setting("auto", unit="name")
    """auto copies the packets of a clip if the copy is exact, and encodes all other clips; encode
    encodes all clips"""
    copy_codecs: tuple[Literal["h264"], ...] = setting(("h264",), unit="names")
    """codecs that may be copied, if the video is 8-bit 4:2:0 of limited range"""
    # 1 s: half of the shortest clip, 2 s. Phones and x264's defaults place key frames 1 to 10 s
    # apart, so a higher limit would rarely reach another key frame.
    copy_give_up_s: float = setting(1.0, ge=0, unit="s")
    """maximum time that a copy may omit at both ends together; copy_give_up_share also applies"""
    copy_give_up_share: float = setting(0.1, ge=0, lt=1, unit="share")
    """maximum share of a clip that a copy may omit at both ends together; copy_give_up_s also
    applies"""
    encode_head: bool = setting(True, unit="flag")
    """encodes only the frames before the first key frame of a clip whose copy would omit too many,
    and copies the rest; false encodes such clips whole"""
    # 4 s: a loader decodes at most twice the frames of a window of 49, and 720p takes no more time
    # than with 1 s; 2 s would encode a further 13% of the clips (results/key_distance.md).
    copy_max_gap_s: float | None = setting(4.0, gt=0, unit="s")
    """longest time from a key frame of a copied clip to the next one, or to the clip's end; other
    clips are encoded, because a loader decodes from a key frame to reach a window; null for any"""

    # 20: near-transparent with x264's veryfast; a constant bit rate is too low for some clips and
    # too high for others. 0 is lossless, which H.264 High does not support.
    crf: int = setting(20, ge=1, le=51, unit="x264 CRF")
    """quality on x264's CRF scale, which is converted for vp9; the constant QP for nvenc; a lower
    number means better quality and larger files"""
    preset: Literal[
        "ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower"
    ] = setting("veryfast", unit="name")
    """x264 preset: a slower preset makes smaller files of the same quality; vp9 uses the speed that
    takes about as long"""
    encoder: Literal["auto", "x264", "vp9", "nvenc"] = setting("auto", unit="name")
    """auto is x264 on every machine, so CPUs of the same model write the same bytes; vp9 avoids
    x264, which has the GPL license; nvenc is the GPU's encoder, and its bytes depend on GPU and
    driver"""
    # 3: users of other tools complain about clips of 4 times the source's size; at 2, more clips
    # would lose quality (benchmarks/results/cutting.md).
    max_size_factor: float | None = setting(3.0, gt=0, unit="times the source")
    """an encoded clip with more than this many times the source's bits per pixel is encoded once
    more, with a CRF that is up to 10 higher; null to keep such clips"""
    hdr: Literal["reject", "tonemap"] = setting("reject", unit="name")
    """for PQ and HLG clips: reject rejects them; tonemap converts them to BT.709"""
    audio: Literal["drop", "copy", "aac"] = setting("drop", unit="name")
    """drop writes clips without audio; copy copies AAC if a packet begins within 3 ms of the clip,
    and encodes other audio; aac encodes all audio"""
    size: Size | tuple[Size, ...] | Literal["bucket"] | None = setting(None, unit="px")
    """width and height of all clips, both even, such as 1280x720, 720p or [1280, 720]; a number is
    a square; bucket takes the largest bucket that the clip covers; a list of sizes such as
    [720p, 256p] makes a clip of each size; pictures are scaled to cover this size and cropped
    around the centre; null keeps the source's size"""
    enlarge: Literal["never", "always"] = setting("never", unit="name")
    """never rejects clips whose pictures are smaller than size by more than 1%; always enlarges
    them"""
    # 0.5: 4:3 or 21:9 to 16:9 loses 25%, and 16:9 to a square 44%, which trainers do on purpose;
    # 9:16 to 16:9 loses 68%, and the rest no longer shows what was filmed.
    most_cropped: float = setting(0.5, ge=0, le=1, unit="share of the picture")
    """largest share of the picture that scaling to size may crop away; other clips are rejected"""
    fps: str | None = setting(None, unit="frames/s")
    """frame rate of all clips, such as 24 or 30000/1001: each output frame is the source frame
    shown at its time; null keeps the source's rate"""
    # 0.015: from 23.976 to 24 it is 0.001, and phones leave out up to a frame in a hundred.
    most_repeated: float = setting(0.015, ge=0, le=1, unit="share of frames")
    """largest share of a clip's frames that may repeat the frame before because fps is above the
    source's rate, or frames are missing; other clips are rejected; 1 repeats as often as needed"""
    length_frames: int | None = setting(None, ge=2, unit="frames")
    """number of frames of all clips; longer clips are cut at this length, shorter clips are
    rejected; null keeps all frames"""
    verify_share: float = setting(1.0, ge=0, le=1, unit="share")
    """share of encoded clips that are decoded again as a check, chosen by a hash of their ids; for
    the other clips, only packets are checked; every copy is checked"""

    @field_validator("size", mode="before")
    @classmethod
    def _as_sides(cls, size: Any) -> object:  # noqa: ANN401
        if size is None or size == "bucket":
            return size
        # A list of numbers is one size.
        is_list = isinstance(size, list | tuple) and not all(isinstance(x, int) for x in size)
        try:
            sizes = tuple(map(parsed_size, size)) if is_list else parsed_size(size)
        except ValueError as error:
            raise ValueError(f"{error}; or bucket, or a list of sizes: [720p, 256p]") from error
        if len(set(sizes)) < len(sizes) and is_list:
            raise ValueError(f"sizes {size!r}; expected distinct sizes")
        return sizes

    @field_validator("fps", mode="before")
    @classmethod
    def _as_words(cls, fps: object) -> object:
        return as_words(fps)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.fps is not None:
            parsed_rate(self.fps)
        return self

    @property
    def rate(self) -> Fraction | None:
        """`fps` as a number; decimals such as 29.97 become broadcast fractions."""
        return None if self.fps is None else parsed_rate(self.fps)

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The sizes of which each clip is made, if the recipe lists them; otherwise empty."""
        size: Any = self.size
        is_list = isinstance(size, tuple) and isinstance(size[0], tuple)
        return size if is_list else ()

    @property
    def one_size(self) -> Size | Literal["bucket"] | None:
        """The size of all clips, or how it follows from the clip; None for own sizes."""
        return None if self.sizes else self.size  # type: ignore[return-value]
