"""Settings of the removal of near duplicates."""

from pydantic import ValidationInfo, field_validator

from curator.errors import unknown_key
from curator.measures.score_list import measures_in
from curator.stage import StageConfig, setting
from curator.storage.metadata_columns import is_metadata
from curator.tables.clip_rank import LEAST, PREFERENCES


class DedupConfig(StageConfig):
    """Settings of the search for clips that show the same footage."""

    enabled: bool = True
    """reject clips whose footage another clip shows that stays"""
    min_share: float = setting(0.8, gt=0, le=1, unit="share")
    """share of a clip that a clip that stays must show, so that the clip is rejected"""
    remainders: bool = True
    """the part of a rejected clip that no clip that stays shows becomes a clip of its own; a clip
    that shares less than min_share with one that stays is divided, too"""
    prefer: tuple[str, ...] = setting(PREFERENCES, unit="names")
    """which clip stays, the first criterion first: more pixels, bits_per_pixel (less compression),
    length (more frames), any score, or a column meta.*; after - less is better; of equals the first
    by source and time"""
    against: tuple[str, ...] = setting((), unit="outputs")
    """other outputs, a folder or bucket each: clips whose footage one of them keeps are rejected"""
    # benchmarks/results/duplicates.md: the distribution of unrelated pictures and of edits.
    similarity: float = setting(0.5, gt=0, lt=1, unit="cosine")
    """cosine of the vectors of two pictures from which their clips are compared frame by frame;
    higher is faster and finds fewer edits"""
    neighbours: int = setting(16, ge=1, le=1000, unit="pictures")
    """most similar pictures of other clips whose clips are compared, for each picture"""

    @field_validator("prefer")
    @classmethod
    def _check_names(cls, prefer: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        criteria = [*PREFERENCES, *measures_in(info).specs]
        for name in prefer:
            base = name.removeprefix(LEAST)
            if base not in criteria and not is_metadata(base):
                raise ValueError(unknown_key(base, criteria, "criterion"))
        return prefer
