"""What a run took and did: seconds, CPU-seconds and counts, for the summary."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from curator.executor.cpu_accounting import cpu_profile
from curator.executor.progress import Progress


@dataclass(slots=True, kw_only=True)
class RunLog:
    """Collects what the stages of a run report.

    Attributes:
        progress: Shows the stage that runs.
        seconds: Wall time by stage.
        cpu_s: CPU-seconds of the workers, by what they went into.
        counts: Counts of work, by name.
        listed_ns: Unix time before the listing: versions of files that were young then say nothing.
        n_skipped_names: Objects that the listing passed over by their names.
        long_whole: Long sources that were analyzed whole, by reason.
        cut: How clips were written.
        sources: `SourceTable.sums`.
        clips: Numbers and seconds of clips so far, by decision and reason.
        is_watched: Whether somebody reads `clips` during the run.
        plan: What a plan expected of this run; empty without one.
    """

    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_s: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    listed_ns: int = 0
    n_skipped_names: int = 0
    long_whole: Counter[str] = field(default_factory=Counter)
    cut: dict[str, Any] = field(default_factory=dict)
    sources: Mapping[str, float] = field(default_factory=Counter)
    clips: Mapping[tuple[str, str], tuple[int, float]] = field(default_factory=dict)
    is_watched: bool = False
    plan: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Shows a stage, and adds the time of the block to its seconds."""
        self.progress.stage(stage)
        start = time.monotonic()
        yield
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + time.monotonic() - start, 3)

    def facts(self) -> dict[str, Any]:
        """Returns the fields of the summary that say what the run took and did until now."""
        return {
            **({"plan": dict(self.plan)} if self.plan else {}),
            "listed_ns": self.listed_ns,
            "work": dict(self.counts),
            "long_sources_analyzed_whole": dict(self.long_whole),
            "cut": dict(self.cut),
            "stage_seconds": dict(self.seconds),
            "cpu_seconds": cpu_profile(self.cpu_s),
        }
