"""The stage that publishes the results of a run to readers."""

from collections.abc import Sequence

from curator.stage import GraphStage, Phase, Scope, Wait
from curator.stages.commit.config import CommitConfig


class CommitStage(GraphStage[CommitConfig]):
    """Writes tables, report and `summary.json`, then removes obsolete objects.

    The work is `curator/runs/commit_run.py`, in the driver.
    """

    name = "commit"
    version = 1
    phase = Phase.COMMIT
    scope = Scope.CORPUS
    reads = ("scan", "candidates", "clips", "shards")
    writes = ("sources", "shots", "summary")
    config_type = CommitConfig
    time_share = 2.0

    def wait(self, before: Sequence[Wait], *, is_growing: bool) -> Wait:
        """Waits for all tars: a snapshot names all of them."""
        return self.waits_for("every tar to be written", "readers see a generation as a whole")
