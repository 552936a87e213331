"""Settings of shots and candidate clips."""

from typing import Literal

from pydantic import model_validator

from curator.stage import StageConfig, setting


class ProposeConfig(StageConfig):
    """Thresholds of shot detection, and the length rules of clips."""

    shots: Literal["head", "network"] = setting("head", unit="name")
    """what finds boundaries: the learned head over the shot network and its small pictures, or the
    network alone"""
    # 0.4: a missed boundary stays in a clip, a false one only divides it (results/shots.md).
    boundary_threshold: float = setting(0.4, gt=0, lt=1, unit="probability")
    """with shots=head: probability above which there is a boundary"""
    # 0.4: Cosmos WFM platform, arXiv 2501.03575 section 3.1 (the authors of TransNetV2 use 0.5).
    shot_threshold: float = setting(0.4, gt=0, lt=1, unit="probability")
    """with shots=network: TransNetV2 probability above which a frame ends a shot"""
    # 0.5: the network's second head is trained with 0 and 1 for each frame of a transition.
    transition_threshold: float = setting(0.5, gt=0, lt=1, unit="probability")
    """probability above which a frame belongs to a transition"""
    join_similarity: float | None = setting(None, gt=0, le=1, unit="cosine")
    """join neighbouring shots if the vectors of the pictures next to the boundary are at least so
    similar; null joins none; needs analyze.scenes"""
    # 0.2 s: a black frame or two between shots is their cut; more is a pause.
    flat_s: float = setting(0.2, gt=0, unit="s")
    """a black or flat stretch at least this long belongs to no shot"""
    crop_borders: bool = setting(True, unit="true or false")
    """cut away black borders; sizes and buckets are those of the picture inside"""
    # 2 s and 60 s: Cosmos WFM platform, arXiv 2501.03575 section 3.1.
    min_s: float = setting(2.0, gt=0, unit="s")
    """shortest clip; a shorter shot is rejected as too_short"""
    max_s: float = setting(60.0, gt=0, unit="s")
    """longest clip; a longer shot is split evenly"""
    # 3 frames: Step-Video-T2V trims three at each end of a shot (arXiv 2502.10248).
    guard_frames: int = setting(3, ge=0, unit="frames")
    """frames given up beside each transition, so that none of it leaks in; none after a cut at
    which the source's encoder saw the scene change too, and put a key frame"""

    @model_validator(mode="after")
    def _ordered(self) -> "ProposeConfig":
        if self.max_s < 2 * self.min_s:
            raise ValueError(
                f"max_s is {self.max_s} and min_s {self.min_s}; max_s must be at least twice "
                "min_s, or the halves of a split shot would be too short"
            )
        return self
