"""Settings of the scan: it has none, because probes follow from the bytes alone."""

from curator.stage import StageConfig


class ScanConfig(StageConfig):
    """No settings."""
