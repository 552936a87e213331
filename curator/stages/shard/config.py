"""Settings of shards: buckets, sizes, splits and members."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from curator.stage import StageConfig, setting
from curator.storage.metadata_columns import GROUP, is_metadata

BY_SOURCE, BY_GROUP = "source", "group"
SPLIT_SETTINGS = ("seed", "val_share", "split_by")
"""Settings on which the split of a source depends."""


class ShardConfig(StageConfig):
    """Settings for grouping and packing clips."""

    # Megatron-Energon and open_clip recommend 1 GB for sequential reads from object storage.
    max_bytes: int = setting(1_000_000_000, ge=1 << 16, unit="bytes")
    """close a tar before it grows beyond this size"""
    # A quarter of 1 GB is near the lower limit in published advice (256 MB).
    min_bytes: int | None = setting(None, ge=0, unit="bytes")
    """a smaller last tar is joined to the tar before it; null: a quarter of max_bytes"""
    seed: int = Field(0, ge=0)
    """seed of the order of clips, and of the split of sources"""
    val_share: float = setting(0.02, ge=0.0, le=1.0, unit="share of sources")
    """share of sources for validation, or of groups; a hash decides"""
    split_by: str = setting(BY_GROUP, unit="group, source or meta.*")
    """sources with the same value of this metadata column are in one split, such as meta.episode;
    group: sources of one group that a manifest names, and each other source on its own; source:
    each source on its own; sources that share footage are in one split in any case"""
    append: bool = True
    """leave a tar unchanged if all its clips are still kept, and add tars for other clips; false:
    pack all clips as a first run would"""
    embedding: Literal["none", "clip", "scene"] = "none"
    """model for the clip's vector in the member npy (float32): CLIP, or the scene network"""
    signals: tuple[str, ...] = setting((), unit="names")
    """signals of the analysis to add to each sample, one value per frame: of frames, such as
    luma_mean; of samples, such as motion; or of a custom measure"""
    # CogVideo's SAT loader looks for this member before it takes caption, fps and duration from
    # the .meta.jsonl. Readers decode the member as a whole number.
    id_member: bool = False
    """add the member id to each sample, a whole number made from the clip's id, for CogVideo's SAT
    loader"""
    resolutions: tuple[int, ...] = setting(
        (240, 360, 480, 720, 1080, 1440, 2160), min_length=1, unit="px"
    )
    """resolution classes by shorter side; a clip is in the largest class that it reaches"""
    # The strings that Cosmos-Tokenize1's configurations use.
    aspects: tuple[str, ...] = setting(
        ("1,1", "4,3", "3,4", "16,9", "9,16"), min_length=1, unit="width,height"
    )
    """aspect classes, as width,height; a clip is in the nearest class"""
    aspects_strict: bool = False
    """reject a clip if a crop to the nearest aspect class loses more than aspects_tolerance"""
    # 16:9 to 1.85:1 is 4%, 4:3 to 5:4 is 6%, 16:9 to 2.39:1 is 26%.
    aspects_tolerance: float = setting(0.1, ge=0.0, lt=1.0, unit="share of the picture")
    """largest share of the picture that a crop to the nearest aspect class may lose"""
    by_content_type: bool = False
    """make one bucket per content type; the bucket's name ends with the type"""
    # Frames that trainers of video models ask for: 4k+1 for most tokenizers, 8k+1 for LTX-2 (33,
    # 49, 81, 121, 129), 17 and 49 for CogVideoX, 61 and 93 for Cosmos, 81 for Wan, 129 for Hunyuan.
    lengths: tuple[int, ...] = setting(
        (17, 33, 49, 61, 81, 93, 121, 129), min_length=1, unit="frames"
    )
    """classes of length; a clip is in the largest class that it reaches: class N has clips of N
    frames or more"""

    @field_validator("split_by")
    @classmethod
    def _a_column(cls, name: str) -> str:
        if name not in (BY_SOURCE, BY_GROUP) and not is_metadata(name):
            raise ValueError(
                f"split_by {name!r}; expected group, source, or a column of metadata such as "
                "meta.episode"
            )
        return name

    @field_validator("signals")
    @classmethod
    def _once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError(f"{list(names)}; expected each signal once")
        return names

    @field_validator("resolutions", "lengths")
    @classmethod
    def _distinct(cls, classes: tuple[int, ...]) -> tuple[int, ...]:
        if min(classes) < 1 or len(set(classes)) < len(classes):
            raise ValueError(f"{list(classes)}; expected distinct numbers from 1")
        return classes

    @field_validator("aspects")
    @classmethod
    def _readable(cls, aspects: tuple[str, ...]) -> tuple[str, ...]:
        for aspect in aspects:
            numbers = aspect.split(",")
            if len(numbers) != 2 or not all(
                n.isascii() and n.isdigit() and int(n) > 0 for n in numbers
            ):
                raise ValueError(f"aspect {aspect!r}; expected two whole numbers such as '16,9'")
        return aspects

    @model_validator(mode="after")
    def _floor_below_limit(self) -> "ShardConfig":
        if self.min_bytes is not None and self.min_bytes > self.max_bytes:
            raise ValueError(f"min_bytes {self.min_bytes} is more than max_bytes {self.max_bytes}")
        return self

    @property
    def split_column(self) -> str | None:
        """The column of metadata that groups sources; None if each source is split on its own."""
        return {BY_SOURCE: None, BY_GROUP: GROUP}.get(self.split_by, self.split_by)

    @property
    def floor_bytes(self) -> int:
        """Returns `min_bytes`, or its default."""
        return self.max_bytes // 4 if self.min_bytes is None else self.min_bytes
