"""Settings of shards: buckets, sizes, splits and members."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from curator.stage import StageConfig, setting


class ShardConfig(StageConfig):
    """Settings for grouping and packing clips."""

    # 1 GB: what Megatron-Energon and open_clip recommend for sequential reads from object storage.
    max_bytes: int = setting(1_000_000_000, ge=1 << 16, unit="bytes")
    """a tar is closed before it would grow beyond this"""
    # A quarter of 1 GB is near the lower limit in published advice (256 MB).
    min_bytes: int | None = setting(None, ge=0, unit="bytes")
    """a last tar smaller than this is joined with the one before; null for a quarter of
    max_bytes"""
    seed: int = Field(0, ge=0)
    """another one shuffles the clips, and splits the sources, otherwise"""
    val_share: float = setting(0.02, ge=0.0, le=1.0, unit="share of sources")
    """share of the sources whose clips are for validation, by the hash of their ids"""
    append: bool = True
    """tars that stand and hold nothing but wanted clips stay as they are, others are added; false
    packs all clips as a first run would"""
    embedding: Literal["none", "clip", "scene"] = "none"
    """vector of the clip in the member npy, float32: of the CLIP model, or of the scene
    network"""
    # CogVideo's SAT loader looks for this member before it takes caption, fps and duration from
    # the .meta.jsonl. Readers decode it as a whole number.
    id_member: bool = False
    """a member id, a whole number made from the clip's id, in each sample: for CogVideo's SAT
    loader"""
    resolutions: tuple[int, ...] = setting(
        (240, 360, 480, 720, 1080, 1440, 2160), min_length=1, unit="px"
    )
    """resolution classes by shorter side; a clip falls into the largest it reaches"""
    # The strings that Cosmos-Tokenize1's configurations use.
    aspects: tuple[str, ...] = setting(
        ("1,1", "4,3", "3,4", "16,9", "9,16"), min_length=1, unit="width,height"
    )
    """aspect classes, width,height; a clip falls into the nearest"""
    aspects_strict: bool = False
    """reject clips that are near no aspect class, by aspects_tolerance"""
    # 16:9 to 1.85:1 is 4%, 4:3 to 5:4 is 6%, 16:9 to 2.39:1 is 26%.
    aspects_tolerance: float = setting(0.1, ge=0.0, lt=1.0, unit="share of the picture")
    """largest share of the picture that a crop to the nearest class may lose"""
    by_content_type: bool = False
    """a bucket for each content type, named at the end of the bucket"""
    # 4k+1 grids of causal tokenizers; cosmos-predict2.5 needs one frame more than it asks for.
    lengths: tuple[int, ...] = setting((17, 33, 49, 121), min_length=1, unit="frames")
    """minimum-length classes; a clip in class N has N+1 frames or more"""

    @field_validator("aspects")
    @classmethod
    def _readable(cls, aspects: tuple[str, ...]) -> tuple[str, ...]:
        for aspect in aspects:
            numbers = aspect.split(",")
            if len(numbers) != 2 or not all(n.isdigit() and int(n) > 0 for n in numbers):
                raise ValueError(f"aspect {aspect!r}; expected two whole numbers such as '16,9'")
        return aspects

    @model_validator(mode="after")
    def _floor_below_limit(self) -> "ShardConfig":
        if self.min_bytes is not None and self.min_bytes > self.max_bytes:
            raise ValueError(f"min_bytes {self.min_bytes} is more than max_bytes {self.max_bytes}")
        return self

    @property
    def floor_bytes(self) -> int:
        """Returns `min_bytes`, or its default."""
        return self.max_bytes // 4 if self.min_bytes is None else self.min_bytes
