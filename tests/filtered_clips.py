"""Filters candidates by rules alone, without the recipe around them."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from curator.buckets import BucketClasses
from curator.executor.corpus_work import CorpusWork
from curator.measures.clip_semantics import SemanticConfig
from curator.measures.filtering import FilteredClips, FilterNeeds, corpus_of, filter_table
from curator.measures.rule_config import Rule
from curator.measures.rules import resolve
from curator.measures.score_list import BUILT_IN, Measures
from curator.runs.corpus import CorpusState
from curator.stage import AnyCorpusStage
from curator.tables.clip_rows import ClipRows
from curator.tables.clip_vectors import StoredVectors
from curator.tables.corpus_tables import CorpusTables


def needs(
    shard: BucketClasses,
    *,
    min_s: float = 2.0,
    max_s: float | None = None,
    semantic: SemanticConfig | None = None,
) -> FilterNeeds:
    """What filtering needs of other sections of a recipe; any number of frames will do."""
    return FilterNeeds(
        min_s=min_s, max_s=max_s, min_frames=None, classes=shard,
        semantic=semantic or SemanticConfig(),
    )  # fmt: skip


def decide(
    clips: pa.Table,
    rules: Mapping[str, Rule],
    *,
    min_s: float,
    shard: BucketClasses,
    semantic: SemanticConfig | None = None,
    max_s: float | None = None,
    measures: Measures = BUILT_IN,
) -> FilteredClips:
    """Resolves rules over all candidates, and applies them."""
    of = needs(shard, min_s=min_s, max_s=max_s, semantic=semantic)
    return filter_table(clips, resolve(rules, corpus_of(clips, of), measures=measures), of)


def run_stage(
    stage: AnyCorpusStage,
    rows: ClipRows,
    vectors: pa.Table | None = None,
    *,
    tables: CorpusTables | None = None,
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Lets a stage decide about rows, as a run does; returns what it leaves."""
    stored = StoredVectors.of(vectors) if vectors is not None else None
    decided = CorpusState(
        rows, 1 << 30, vectors=lambda _: stored, carried=(earlier or {}).get, tables=tables
    )
    decided.decide(stage, CorpusWork(stage.name))
    return decided.carried_state
