"""Settings of shot detection and of candidate clips."""

from typing import Literal

from pydantic import model_validator

from curator.stage import StageConfig, setting


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
    """shortest clip; a shorter shot is rejected as too_short"""
    max_s: float = setting(60.0, gt=0, unit="s")
    """longest clip; a longer shot is split into equal parts"""
    # 3 frames: Step-Video-T2V trims three at each end of a shot (arXiv 2502.10248).
    guard_frames: int = setting(3, ge=0, unit="frames")
    """frames dropped on both sides of each transition, which keeps clips free of it; fewer if a
    shot would become shorter than min_s; no frame is dropped after a cut at a key frame, unless
    more than 10% of the frames are key frames"""

    @model_validator(mode="after")
    def _ordered(self) -> "ProposeConfig":
        if self.max_s < 2 * self.min_s:
            raise ValueError(
                f"max_s is {self.max_s} and min_s {self.min_s}; max_s must be at least twice "
                "min_s, or the halves of a split shot would be too short"
            )
        return self
