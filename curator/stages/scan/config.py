"""Settings of the listing and the scan. No setting changes the result of a probe."""

from curator.stage import StageConfig


class ScanConfig(StageConfig):
    """Settings of the listing."""

    sidecar_meta: bool = False
    """read the `.json` next to a source (video.mp4.json or video.json); its keys become columns
    meta.* of `sources` and `clips`, like columns of a manifest: bool, number, text, list of text"""
