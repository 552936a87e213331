"""The state that the passes of a run share, and the log of a run for the summary."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from curator.errors import UsageError, unknown_key
from curator.executor.cpu_accounting import cpu_profile
from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.extensions import named
from curator.measures.clip_models import Semantics
from curator.measures.learned_score import LearnedScore
from curator.measures.score_list import SUITABILITY
from curator.pipeline import Graph
from curator.recipe import Recipe, measures_of
from curator.recipe_models import learned_score_of, semantics_of
from curator.runs.generations import decided_with
from curator.runs.marked_clips import honoured_marks
from curator.stages.analyze.gpu_engines import GpuProbe
from curator.stages.caption.captioners.captioner_contract import captioner_extensions
from curator.storage import Store
from curator.tables.candidate_store import Candidates
from curator.tables.fenced_store import FencedStore
from curator.tables.mark_table import Mark
from curator.tables.removal_records import Removals
from curator.tables.snapshot_store import EARLIER
from curator.tables.source_metadata import SourceMetadata
from curator.tables.source_rights import with_rights


@dataclass(slots=True, kw_only=True)
class RunLog:
    """Collects times and counts that the stages of a run report.

    Attributes:
        seconds: Wall time by step.
        cpu_s: CPU-seconds of the workers, by kind of work.
        counts: Counts of work, by name.
        listed_ns: Unix time before the listing, in nanoseconds. If a file changed just before, a
            later change may leave its version as it is.
        n_skipped_names: Number of objects that the listing skipped by name.
        long_whole: Number of long sources that were not analyzed in segments, by reason.
        cut: Facts about how clips were written.
        sources: The sums of `SourceTable.sums`.
        clips: Number and seconds of clips so far, by decision and reason.
        is_watched: Whether telemetry reads `clips` during the run.
        plan: Expected values of the plan for this run; empty without a plan.
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
    def timed(self, step: str) -> Iterator[None]:
        """Shows a step in the progress, and adds the time of the block to its seconds."""
        self.progress.stage(step)
        start = time.monotonic()
        yield
        self.seconds[step] = round(self.seconds.get(step, 0.0) + time.monotonic() - start, 3)

    def facts(self) -> dict[str, Any]:
        """Returns the fields of the summary with times and counts of the run until now."""
        return {
            **({"plan": dict(self.plan)} if self.plan else {}),
            "listed_ns": self.listed_ns,
            "work": dict(self.counts),
            "long_sources_analyzed_whole": dict(self.long_whole),
            "cut": dict(self.cut),
            "stage_seconds": dict(self.seconds),
            "cpu_seconds": cpu_profile(self.cpu_s),
        }


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The state that all passes of a run share.

    Attributes:
        store: Output root.
        memory_bytes: Memory for columns of clips.
        check: Raises if this run may not write to the root any more.
        removals: Removed footage, which may not come back.
        metadata: Metadata of the sources.
    """

    store: Store
    recipe: Recipe
    engine: Engine
    graph: Graph
    log: RunLog
    memory_bytes: int
    check: Callable[[], None]
    removals: Removals
    metadata: SourceMetadata = field(default_factory=SourceMetadata)

    def __post_init__(self) -> None:
        """Raises `UsageError` for a placement of a stage that no worker runs."""
        names = self.graph.worker_names()
        for name in self.engine.place:
            if name not in names:
                raise UsageError("--place: " + unknown_key(name, names, "stage"))

    @cached_property
    def fenced(self) -> FencedStore:
        """The output root, for writing objects that snapshots name."""
        return FencedStore(self.store, self.check)

    @cached_property
    def gpu(self) -> GpuProbe:
        """Whether GPUs can decode."""
        return GpuProbe(self.engine)

    @cached_property
    def marks(self) -> dict[str, Mark]:
        """Marks that the run honours, by clip id, as read at the first use."""
        return honoured_marks(self.store, self.recipe)

    @cached_property
    def semantics(self) -> Semantics:
        """The models that the recipe names."""
        return semantics_of(self.recipe)

    @cached_property
    def learned(self) -> LearnedScore | None:
        """The model of the score `suitability`."""
        return learned_score_of(self.recipe)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the stages, by name."""
        return self.graph.fingerprints()

    def described(self, table: pa.Table, key: str) -> pa.Table:
        """Adds metadata, licence and origin to a table with the URIs of sources in column `key`."""
        return with_rights(self.metadata.joined(table, key), self.recipe.rights)

    def fingerprint_of(self, table: str) -> str:
        """Returns the fingerprint of the stage that writes a table."""
        return self.fingerprints[self.graph.writer(table).name]

    @cached_property
    def extensions(self) -> list[dict[str, Any]]:
        """Classes from outside this package, with their origins."""
        captioners = captioner_extensions(self.recipe.caption.captioner)
        measures = measures_of(self.recipe).extensions
        return list(map(named, (*self.graph.extensions, *measures, *captioners)))

    @cached_property
    def decided_with(self) -> dict[str, Any]:
        """Fingerprints of all that decides about clips; read them when all metadata is known."""
        fingerprints = dict(self.fingerprints)
        if self.learned is not None:
            fingerprints[SUITABILITY] = self.learned.fingerprint
        columns = self.metadata.schema()
        return decided_with(self.recipe, self.graph, fingerprints, self.extensions, columns)

    def candidates(self, previous: Mapping[str, Any]) -> Candidates:
        """Returns stored candidates, without objects that only snapshots before `previous` name."""
        return Candidates(
            self.fenced,
            self.fingerprint_of("candidates"),
            has_clip=self.recipe.analyze.clip is not None,
            earlier=frozenset(previous.get(EARLIER, ())),
        )
