"""Settings of the commit stage, which has none."""

from curator.stage import StageConfig


class CommitConfig(StageConfig):
    """No settings."""
