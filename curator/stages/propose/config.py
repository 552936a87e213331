"""Settings of shot detection and of candidate clips."""

import re
from fractions import Fraction
from typing import Literal

from pydantic import field_validator, model_validator

from curator.frame_rate import as_words, parsed_rate
from curator.frame_size import parsed_size, size_words
from curator.stage import StageConfig, setting

_SHORT = re.compile(r"([0-9]+)(?:@([0-9./]+))?")


class WindowConfig(StageConfig):
    """A size of clips; `81@16` is short for `{frames: 81, fps: 16}`."""

    frames: int = setting(ge=2, unit="frames")
    """number of frames of a clip, exactly"""
    fps: str | None = setting(None, unit="frames/s")
    """frame rate of a clip, such as 16 or 30000/1001: each frame is the source frame shown at its
    time; null for the source's own rate"""
    stride: int | None = setting(None, ge=1, unit="frames")
    """frames from the start of a window to the start of the next one, at most `frames`; with fewer,
    windows overlap; null for `frames`"""
    remainder: Literal["drop", "overlap", "keep"] = setting("drop", unit="name")
    """end of a take that is shorter than a window: drop rejects it as shorter_than_window; overlap
    moves the last window back to the end of the take; keep makes a shorter clip"""
    size: tuple[int, int] | None = setting(None, unit="px")
    """width and height of the clips of this window, as cut.size; null for cut.size"""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        if isinstance(value, dict | cls):
            return value
        if (named := _SHORT.fullmatch(str(value).strip())) is None:
            raise ValueError(
                f"{value!r}; expected frames and rate such as 81@16, or frames such as 81 for "
                "the source's rate, or {frames: 81, fps: 16}"
            )
        return {"frames": int(named[1]), "fps": named[2]}

    @field_validator("fps", mode="before")
    @classmethod
    def _as_words(cls, fps: object) -> object:
        return as_words(fps)

    @field_validator("size", mode="before")
    @classmethod
    def _as_sides(cls, size: object) -> object:
        return None if size is None else parsed_size(size)

    @model_validator(mode="after")
    def _possible(self) -> "WindowConfig":
        if self.fps is not None:
            parsed_rate(self.fps)
        if self.stride is not None and self.stride > self.frames:
            raise ValueError(
                f"stride is {self.stride} and frames {self.frames}; expected a stride of at most "
                f"{self.frames}, or frames between windows would be lost; to keep a share of the "
                "windows, use the section select"
            )
        return self

    @property
    def rate(self) -> Fraction | None:
        """`fps` as a number; decimals such as 29.97 become broadcast fractions."""
        return None if self.fps is None else parsed_rate(self.fps)

    @property
    def form(self) -> tuple[int, float | None, str | None]:
        """The columns `window_frames`, `window_fps` and `output_size` of its clips.

        The last one is None if the window does not set a size.
        """
        fps = None if self.rate is None else float(self.rate)
        return self.frames, fps, None if self.size is None else size_words(self.size)

    def __str__(self) -> str:
        frames = f"{self.frames}@{self.fps}" if self.fps is not None else str(self.frames)
        return frames if self.size is None else f"{frames} of {size_words(self.size)}"


class ProposeConfig(StageConfig):
    """Thresholds of shot detection, and limits of the length of clips."""

    shots: Literal["head", "network"] = setting("head", unit="name")
    """model that finds boundaries: head reads features and small pictures of the shot network;
    network is the shot network alone"""
    # 0.4: a missed boundary spoils a clip, a false one only divides it (results/shots.md).
    boundary_threshold: float = setting(0.4, gt=0, lt=1, unit="probability")
    """with shots=head: probability above which a boundary ends a shot"""
    # 0.4: Cosmos WFM platform, arXiv 2501.03575 section 3.1 (the authors of TransNetV2 use 0.5).
    shot_threshold: float = setting(0.4, gt=0, lt=1, unit="probability")
    """with shots=network: TransNetV2 probability above which a frame ends a shot"""
    # 0.5: the training labels of the network's second head are 0 and 1.
    transition_threshold: float = setting(0.5, gt=0, lt=1, unit="probability")
    """probability above which a frame belongs to a transition"""
    join_similarity: float | None = setting(None, gt=0, le=1, unit="cosine")
    """join two neighbouring shots if the scene vectors next to their boundary are at least this
    similar; null joins no shots; needs analyze.scenes"""
    # 0.2 s: one or two black frames between shots are part of a cut; more are a pause.
    flat_s: float = setting(0.2, gt=0, unit="s")
    """a black or flat stretch at least this long belongs to no shot"""
    crop_borders: bool = setting(True, unit="true or false")
    """crop black borders; sizes and buckets are those of the cropped picture"""
    # 2 s and 60 s: Cosmos WFM platform, arXiv 2501.03575 section 3.1.
    min_s: float = setting(2.0, gt=0, unit="s")
    """shortest clip; a shorter shot is rejected as too_short; does not apply to whole windows"""
    max_s: float = setting(60.0, gt=0, unit="s")
    """longest clip; a longer shot is split into equal parts, or into windows"""
    windows: tuple[WindowConfig, ...] = setting((), unit="frames@frames/s")
    """sizes of clips, such as [81@16, 121@24]: each shot is divided into clips of exactly this many
    frames at this rate, once for each size; empty for clips of any length up to max_s"""
    # 3 frames: Step-Video-T2V trims three at each end of a shot (arXiv 2502.10248).
    guard_frames: int = setting(3, ge=0, unit="frames")
    """frames dropped on both sides of each transition, which keeps clips free of it; fewer if a
    shot would become shorter than min_s, or than the shortest window; no frame is dropped after a
    cut at a key frame, unless more than 10% of the frames are key frames"""

    @field_validator("windows", mode="before")
    @classmethod
    def _listed(cls, windows: object) -> object:
        if windows is None:
            return ()
        return windows if isinstance(windows, list | tuple) else (windows,)

    @field_validator("windows")
    @classmethod
    def _distinct(cls, windows: tuple[WindowConfig, ...]) -> tuple[WindowConfig, ...]:
        forms = [window.form for window in windows]
        for window in windows:
            if forms.count(window.form) > 1:
                raise ValueError(f"windows has {window} twice; expected distinct sizes")
        return windows

    @model_validator(mode="after")
    def _ordered(self) -> "ProposeConfig":
        if self.max_s < 2 * self.min_s:
            raise ValueError(
                f"max_s is {self.max_s} and min_s {self.min_s}; max_s must be at least twice "
                "min_s, or the halves of a split shot would be too short"
            )
        return self
