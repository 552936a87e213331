"""Judges candidates by rules alone, without the recipe around them."""

from collections.abc import Mapping

import pyarrow as pa

from curator.buckets import BucketClasses
from curator.measures.clip_semantics import SemanticConfig
from curator.stages.filter.config import Rule
from curator.stages.filter.judging import Decided, FilterNeeds, corpus_of, judge_table
from curator.stages.filter.rules import resolve


def needs(
    shard: BucketClasses,
    *,
    min_s: float = 2.0,
    max_s: float | None = None,
    semantic: SemanticConfig | None = None,
) -> FilterNeeds:
    """What judging needs of other sections of a recipe; any number of frames will do."""
    return FilterNeeds(
        min_s=min_s,
        max_s=max_s,
        min_frames=None,
        classes=shard,
        semantic=semantic or SemanticConfig(),
    )


def decide(
    clips: pa.Table,
    rules: Mapping[str, Rule],
    *,
    min_s: float,
    shard: BucketClasses,
    semantic: SemanticConfig | None = None,
    max_s: float | None = None,
) -> Decided:
    """Resolves rules over all candidates, and judges them."""
    bounds = resolve(rules, corpus_of(clips, min_s=min_s))
    return judge_table(clips, bounds, needs(shard, min_s=min_s, max_s=max_s, semantic=semantic))
