"""Settings of the listing and the scan. No setting changes the result of a probe."""

from typing import Literal

from curator.records.sources import Medium
from curator.stage import StageConfig, setting


class ScanConfig(StageConfig):
    """Settings of the listing."""

    media: tuple[Literal["video", "image"], ...] = setting(("video",), min_length=1, unit="names")
    """what sources are curated: videos, and still images (JPEG, PNG, WebP, AVIF); sources of other
    media fail as unused_medium, and in a folder they are skipped by their names"""
    sidecar_meta: bool = False
    """read the `.json` next to a source (video.mp4.json or video.json); its keys become columns
    meta.* of `sources` and `clips`, like columns of a manifest: bool, number, text, list of text"""
    c2pa: bool = False
    """read C2PA manifests inside of MP4, MOV, AVI and still images, into the columns c2pa… of
    sources and clips; a file with a manifest is read whole; needs the extra `rights`"""

    @property
    def accepted(self) -> frozenset[Medium]:
        """The media as such."""
        return frozenset(map(Medium, self.media))
