"""A snapshot as the scope of a pass: what it holds stands for what the left out stages leave.

Its clips are written, and its decisions are final: rejected clips stay rejected.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import UsageError
from curator.executor.engine import FACTS
from curator.extensions import named
from curator.pipeline import Graph
from curator.recipe import Recipe
from curator.runs.corpus import ClipCorpus
from curator.runs.excluded_footage import fewer
from curator.stage import CLIP_EMBEDDING, EMBEDDING
from curator.stages.caption.captioners.captioner_contract import captioner_extensions
from curator.stages.commit.commit_run import kept_by_source
from curator.stages.propose.candidate_store import Candidates
from curator.stages.shard.reusable_shards import ReusableShards
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.clip_locations import LOCATION_SCHEMA, Locations
from curator.tables.clip_rows import fields_of
from curator.tables.disk_table import widened
from curator.tables.out_layout import SHARDS, TABLES, VALUES
from curator.tables.parts import as_runs_write
from curator.tables.sample_members import MEMBERS
from curator.tables.schemas import (
    SOURCES_SCHEMA,
    clips_schema,
    metadata_fields,
    with_declared,
)
from curator.tables.source_table import SourceTable

FOLDERS = (*TABLES, SHARDS, "frames", VALUES)
"""Folders of which a pass over a snapshot removes what no snapshot names."""
_MADE_AGAIN = frozenset(
    {"caption", "caption_model", "caption_failure", "caption_alignment"}
    | {"shard", "key", "mp4_offset", "bucket"}
)
"""Columns of `clips` that `caption` and `shard` set."""
_PLACE = ("clip_id", "shard", "mp4_offset", "mp4_bytes")


class SnapshotSources(SourceTable):
    """The sources of a snapshot: all are analyzed, and some may lose clips.

    Args:
        store: Output root.
        parts: Of the table `sources`.
        n_kept: Clips kept of each source id.
    """

    def __init__(self, store: Store, parts: Iterable[str], n_kept: Counter[str]) -> None:
        super().__init__()
        self._store, self._parts, self._n_kept = store, tuple(parts), n_kept

    def rows(self, n_kept: Mapping[str, int]) -> Iterator[pa.Table]:
        """Yields rows of `sources`, a table for each part."""
        lost = self._n_kept - Counter(n_kept)
        for part in self._parts:
            yield fewer(as_runs_write(read_parquet(self._store, part)), "n_kept", lost)

    def generation_of(self) -> dict[str, int] | None:
        """Returns the generation of each content; None where older versions set none."""
        schema = fields_of(SOURCES_SCHEMA, ("source_id", "outcome", "generation"))
        by_source: dict[str, int | None] = {}
        for part in self._parts:
            rows = widened(read_parquet(self._store, part), schema)
            rows = rows.filter(pc.equal(rows["outcome"], "done"))
            pairs = zip(rows["source_id"].to_pylist(), rows["generation"].to_pylist(), strict=True)
            by_source.update(pairs)
        numbers = {name: number for name, number in by_source.items() if number is not None}
        return numbers if len(numbers) == len(by_source) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a snapshot holds.

    Attributes:
        summary: As the commit wrote it.
        sources: Its sources.
        candidates: For their pictures.
        reusable: Its tars.
        corpus: Its clips and vectors.
        locations: Of the MP4s of its kept clips.
        n_kept: Clips kept of each source id.
    """

    summary: Mapping[str, Any]
    sources: SnapshotSources
    candidates: Candidates
    reusable: ReusableShards
    corpus: ClipCorpus
    locations: Locations
    n_kept: Counter[str]

    @classmethod
    def of(
        cls,
        store: Store,
        summary: Mapping[str, Any],
        graph: Graph,
        columns: Sequence[pa.Field],
        scores: Collection[str],
        memory_bytes: int,
    ) -> "Snapshot":
        """Reads a snapshot, as far as stages need it.

        Args:
            store: Output root.
            summary: Of the snapshot.
            graph: The stages from `caption` on: they read vectors.
            columns: What they and marks add to `clips`.
            scores: Names of the scores of the recipe's measures.
            memory_bytes: What the columns of clips may take.

        Raises:
            UsageError: A tar is missing or damaged.
        """
        tables = summary["tables"]
        corpus = ClipCorpus(lambda clips: clips, memory_bytes, scores=scores)
        places = []
        for part in tables["clips"]:
            clips = as_runs_write(read_parquet(store, part))
            places.append(clips.filter(pc.equal(clips["decision"], "kept")).select(_PLACE))
            names = [f.name for f in clips_schema(scores) if f.name in clips.column_names]
            names += [field.name for field in metadata_fields(clips.schema)]
            clips = clips.select([name for name in names if name not in _MADE_AGAIN])
            corpus.add_decided(with_declared(clips, columns))
        reads = {name for stage in graph.annotators() for name in stage.columns}
        packed = {"clip": [CLIP_EMBEDDING], "scene": [EMBEDDING], "none": []}
        reads.update(packed[graph["shard"].config.embedding])
        for name, table in ((EMBEDDING, "embeddings"), (CLIP_EMBEDDING, "clip_embeddings")):
            for part in tables.get(table, ()) if name in reads else ():
                corpus.vectors[table].add(read_parquet(store, part))
        n_kept, reusable = kept_by_source(corpus.clips), ReusableShards(store, summary)
        return cls(
            summary=summary,
            sources=SnapshotSources(store, tables["sources"], n_kept),
            candidates=Candidates.of_snapshot(store, summary),
            reusable=reusable,
            corpus=corpus,
            locations=_locations(pa.concat_tables(places), store, reusable),
            n_kept=n_kept,
        )

    @property
    def parts(self) -> dict[str, list[str]]:
        """Parts of the tables that `caption` and the stages behind it do not write."""
        written = ("sources", "clips", "annotations", MEMBERS)
        return {n: parts for n, parts in self.summary["tables"].items() if n not in written}

    def facts(self, n_lost: int, recipe: Recipe) -> dict[str, Any]:
        """Returns the fields of the summary that stay, but for what this run did.

        Args:
            n_lost: Clips that are not kept any more.
            recipe: Its captioner may be of a user's own.
        """
        facts = {name: value for name, value in self.summary.items() if name not in FACTS}
        extensions = [e for e in facts.get("extensions", ()) if e["kind"] != "captioners"]
        extensions += map(named, captioner_extensions(recipe.caption.captioner))
        return facts | {"extensions": extensions}


def _locations(places: pa.Table, store: Store, reusable: ReusableShards) -> Locations:
    there = pa.array(sorted(reusable.sizes), pa.string())
    gone = places.filter(pc.invert(pc.is_in(places["shard"], value_set=there)))
    for row in gone.slice(0, 1).to_pylist():
        raise UsageError(
            f"{store.uri}/{row['shard']} is missing or damaged, which has clip {row['clip_id']}; "
            "`curate run` cuts it again, `curate verify` tells more"
        )
    return Locations(
        pa.table(
            [places["clip_id"], places["shard"], pa.nulls(places.num_rows, pa.int64()),
             places["mp4_offset"], places["mp4_bytes"]],
            schema=LOCATION_SCHEMA,
        )
    )  # fmt: skip
