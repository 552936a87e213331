"""Settings of the listing and the scan. Probes depend on the bytes alone, and on no setting."""

from curator.stage import StageConfig


class ScanConfig(StageConfig):
    """Settings for reading about sources."""

    sidecar_meta: bool = False
    """keys of the `.json` next to a source (video.mp4.json, or video.json) become columns meta.* of
    `sources` and `clips`, as columns of a manifest do: bool, number, text, or list of texts"""
