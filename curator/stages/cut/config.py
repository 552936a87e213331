"""Settings for writing clips."""

from fractions import Fraction
from typing import Literal, Self

from pydantic import field_validator, model_validator

from curator.buckets import SIZE_STEP_PX
from curator.stage import StageConfig, setting


class CutConfig(StageConfig):
    """Settings for writing clips."""

    mode: Literal["auto", "encode"] = setting("auto", unit="name")
    """auto copies the stream where that loses nothing, else encodes; encode always encodes"""
    copy_codecs: tuple[Literal["h264"], ...] = setting(("h264",), unit="names")
    """codecs that may be copied, in 8-bit 4:2:0 of limited range"""
    # 1 s: half of the shortest clip's 2 s; phones and x264's defaults put key frames 1 to 10 s
    # apart, so that more would seldom find another one.
    copy_give_up_s: float = setting(1.0, ge=0, unit="s")
    """most time that a copy may leave out at both ends together, to begin at a key frame;
    copy_give_up_share must hold too"""
    copy_give_up_share: float = setting(0.1, ge=0, lt=1, unit="share")
    """most of a clip's time that a copy may leave out at both ends together; copy_give_up_s must
    hold too"""

    # 20: near-transparent with x264's veryfast; a constant rate would starve or bloat clips. 0 is
    # lossless, which H.264 High is not.
    crf: int = setting(20, ge=1, le=51, unit="x264 CRF")
    """quality on the scale of x264's constant rate factor, with vp9 too, whose own number differs;
    for NVENC the constant QP; lower is better and larger"""
    preset: Literal[
        "ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower"
    ] = setting("veryfast", unit="name")
    """x264 preset, for vp9 the speed that takes about as long: time against size at the same
    quality"""
    encoder: Literal["auto", "x264", "vp9", "nvenc"] = setting("auto", unit="name")
    """auto is x264 on every machine, so that the same clips have the same bytes on like CPUs; vp9
    is for those who cannot use x264, which is GPL; nvenc is the GPU's encoder, whose bytes depend
    on the GPU and its driver"""
    # 3: users of other tools complain of clips of 4 times the source; at 2 more clips would lose
    # quality (benchmarks/results/cutting.md).
    max_size_factor: float | None = setting(3.0, gt=0, unit="times the source")
    """an encoded clip with more than this many times the source's bits per pixel is encoded again,
    once, as coarse as it takes; null for never"""
    hdr: Literal["reject", "tonemap"] = setting("reject", unit="name")
    """clips of PQ and HLG: reject them, or map their light into BT.709"""
    audio: Literal["drop", "copy", "aac"] = setting("drop", unit="name")
    """drop leaves audio out; copy takes AAC as it is where it begins within half a frame of the
    clip, else encodes; aac always encodes"""
    size: tuple[int, int] | Literal["bucket"] | None = setting(None, unit="px, multiples of 16")
    """[width, height] of all clips, or bucket for that of each clip's bucket; the picture is scaled
    to cover it and its middle kept; null for the source's own"""
    fps: str | None = setting(None, unit="frames/s")
    """frame rate of all clips, such as 24 or 30000/1001: each output time shows what the source
    showed then; null for the source's own"""
    length_frames: int | None = setting(None, ge=2, unit="frames")
    """frames of all clips, from the start of each; shorter ones are rejected; null for all
    frames"""
    verify_share: float = setting(1.0, ge=0, le=1, unit="share")
    """share of encoded clips, by the hash of their ids, that are decoded again to check them; of
    the others only packets are counted; each copy is checked"""

    @field_validator("fps", mode="before")
    @classmethod
    def _as_words(cls, fps: object) -> object:
        return str(fps) if isinstance(fps, int | float) and not isinstance(fps, bool) else fps

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if isinstance(self.size, tuple):
            for side in self.size:
                if side < SIZE_STEP_PX or side % SIZE_STEP_PX:
                    raise ValueError(
                        f"size {list(self.size)}; expected multiples of {SIZE_STEP_PX} px, such as "
                        "[1280, 720]"
                    )
        if self.fps is not None:
            try:
                rate = Fraction(self.fps)
            except (ValueError, ZeroDivisionError) as error:
                raise ValueError(f"fps {self.fps!r}; expected 24 or 30000/1001") from error
            if not 1 <= rate <= 240:
                raise ValueError(f"fps {self.fps}; expected 1 to 240")
        return self

    @property
    def rate(self) -> Fraction | None:
        """`fps` as a number; decimals such as 29.97 become the broadcast fraction."""
        if self.fps is None:
            return None
        rate = Fraction(self.fps)
        ntsc = Fraction(round(rate * Fraction(1001, 1000)) * 1000, 1001)
        is_ntsc = rate.denominator != 1 and abs(rate - ntsc) < Fraction(1, 100)
        return ntsc if is_ntsc else rate

    @property
    def has_form(self) -> bool:
        """Whether clips are written in another form than their source's."""
        return not (self.size is None and self.fps is None and self.length_frames is None)
