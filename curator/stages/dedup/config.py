"""Settings of the stage that rejects near duplicates."""

from pydantic import ValidationInfo, field_validator

from curator.errors import unknown_key
from curator.fingerprints import fingerprint
from curator.measures.score_list import measures_in
from curator.records.clips import LEAST, PREFERENCES
from curator.stage import StageConfig, setting
from curator.storage.metadata_columns import is_metadata

MATCHING = 3  # version of the search: raise it when the same clips give other pairs


class DedupConfig(StageConfig):
    """Settings of the search for clips that show the same footage."""

    enabled: bool = True
    """reject a clip if a retained clip shows the same footage"""
    min_share: float = setting(0.8, gt=0, le=1, unit="share")
    """reject a clip if a retained clip shows at least this share of the rejected clip"""
    remainders: bool = True
    """make clips from the parts of a rejected clip that no retained clip shows; also divide a clip
    that shares less than min_share with a retained clip"""
    prefer: tuple[str, ...] = setting(PREFERENCES, unit="names")
    """criteria for the clip that is retained, the most important first: pixels (more is better),
    bits_per_pixel (less compression), length (more frames), any score, or a column meta.*; with a
    leading - less is better; among equal clips, the first by source and time is retained"""
    against: tuple[str, ...] = setting((), unit="outputs")
    """other outputs, each a folder or bucket; reject clips with footage that they keep"""
    # benchmarks/results/duplicates.md has the cosines of unrelated pictures and of edits.
    similarity: float = setting(0.5, gt=0, lt=1, unit="cosine")
    """cosine of two pictures' vectors from which their clips are compared frame by frame; a higher
    cosine is faster and finds fewer edits"""
    neighbours: int = setting(16, ge=1, le=1000, unit="clips")
    """for each picture, number of clips with the most similar pictures that are compared"""

    @property
    def search_fingerprint(self) -> str:
        """Fingerprint of the settings on which stored pairs depend."""
        if not self.enabled:
            return fingerprint(MATCHING, "removed footage alone")
        return fingerprint(MATCHING, self.similarity, self.neighbours)

    @field_validator("prefer")
    @classmethod
    def _check_names(cls, prefer: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        criteria = [*PREFERENCES, *measures_in(info).specs]
        for name in prefer:
            base = name.removeprefix(LEAST)
            if base not in criteria and not is_metadata(base):
                raise ValueError(unknown_key(base, criteria, "criterion"))
        return prefer
