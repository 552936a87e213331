"""Settings of the commit: it has none."""

from curator.stage import StageConfig


class CommitConfig(StageConfig):
    """No settings."""
