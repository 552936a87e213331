"""The stage that publishes the results of a run to readers."""

from collections.abc import Sequence
from typing import Any

from curator.stage import Phase, Scope, Stage, Wait
from curator.stages.commit.commit_run import Commit, commit_run
from curator.stages.commit.config import CommitConfig


class CommitStage(Stage[CommitConfig, Commit, dict[str, Any]]):
    """Writes tables, report and `summary.json`, then removes obsolete objects."""

    name = "commit"
    version = 1
    phase = Phase.COMMIT
    scope = Scope.CORPUS
    reads = ("scan", "candidates", "clips", "shards")
    writes = ("sources", "shots", "summary")
    config_type = CommitConfig

    def wait(self, before: Sequence[Wait], *, is_growing: bool) -> Wait:
        """Waits for all tars: a snapshot names all of them."""
        return self.waits_for("every tar to be written", "readers see a generation as a whole")

    def process(self, unit: Commit) -> dict[str, Any]:
        """Commits a run; returns the summary."""
        return commit_run(unit)
