"""Annotates the clips of a finished run anew, and touches nothing else.

Clips stay as they are: pictures come out of the written MP4s, tars whose captions change are put
together anew from the same bytes, and all other tables and tracks stay.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

import curator
from curator.errors import UsageError
from curator.executor.cpu_accounting import cpu_profile, mark_processes
from curator.executor.engine import FACTS, Engine
from curator.executor.host_resources import default_memory_bytes
from curator.executor.progress import Progress
from curator.extensions import named
from curator.fingerprints import fingerprint
from curator.pipeline import graph_of
from curator.recipe import recipe_used, semantics_of, with_changes
from curator.records.clips import Clip
from curator.report import render_report, shown_clips
from curator.runs.annotating import Annotating
from curator.runs.corpus import room_of
from curator.runs.earlier_sources import earlier_sources
from curator.runs.object_repair import repair_objects
from curator.runs.output_recipe import log_changes
from curator.runs.withheld import fewer
from curator.stages.caption.annotation_rows import SPAN
from curator.stages.caption.annotation_store import CaptionedSpans
from curator.stages.caption.captioners.captioner_list import captioner_extensions
from curator.stages.caption.measured_caption import measured_captions
from curator.stages.caption.sidecar_table import SIDECARS, StoredSidecars
from curator.stages.commit.commit_run import (
    alone,
    clip_counts,
    kept_by_source,
    kept_seconds,
    publish,
    versions,
)
from curator.stages.cut.cut_driver import cut_facts
from curator.stages.propose.candidate_store import read_pictures, stored_candidates
from curator.stages.shard.shard_driver import Sharding
from curator.stages.shard.standing_shards import StandingShards
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.clip_locations import LOCATION_SCHEMA, Locations
from curator.tables.clip_rows import ClipRows, fields_of
from curator.tables.clip_store import ClipStore
from curator.tables.clip_vectors import StoredVectors, Vectors, vectors_table
from curator.tables.fenced_store import FencedStore
from curator.tables.kept_vectors import JUDGED, KEPT
from curator.tables.out_layout import SHARDS, SNAPSHOTS
from curator.tables.output_format import read_current_summary
from curator.tables.parts import write_table, write_tables
from curator.tables.removal_records import finished_removals
from curator.tables.sample_members import MEMBERS, MEMBERS_SCHEMA
from curator.tables.schemas import (
    ANNOTATIONS_SCHEMA,
    SIDECARS_SCHEMA,
    clips_schema,
    metadata_fields,
)
from curator.tables.source_table import source_records

if TYPE_CHECKING:
    from curator.stages.caption.caption_driver import Captioning

SECTION = "caption"
UNASKED = frozenset({"captioner", "enabled", "embedding"})
"""Keys of `caption` that say something where no model is asked."""

OF_CAPTION = ("caption", "caption_model", "caption_failure", "caption_alignment")
OF_SAMPLE = ("shard", "key", "mp4_offset", "bucket")
"""Columns that only clips in shards have."""

_Annotated = dict[str, tuple[Iterable[pa.Table], pa.Schema]]
"""Rows of new tables by name, some at a time, and their schema."""


class Recaption:
    """New annotations for the clips that a finished run kept.

    Args:
        store: Output root.
        changes: `key=value` each; keys of the section `caption` alone.
        engine: Where frames are taken, and models in workers run.
        progress: Where it is shown.
        check: Raises if this run may not write to the root any more.
        memory_bytes: What the columns of clips may take; None for a share of this machine.

    Raises:
        UsageError: There is no finished run, or a change is not one of `caption`.
        RecipeError: A change is wrong.
    """

    def __init__(
        self,
        store: Store,
        changes: Sequence[str],
        engine: Engine,
        progress: Progress,
        *,
        check: Callable[[], None] = alone,
        memory_bytes: int | None = None,
    ) -> None:
        for change in changes:
            if change.split("=")[0].strip().split(".")[0] != SECTION:
                raise UsageError(
                    f"--set {change!r}: only keys of {SECTION} can change without touching clips; "
                    "`curate run` takes all keys"
                )
        self._store, self._engine, self._progress = store, engine, progress
        self._check = check
        finished_removals(store)
        repair_objects(store, check=check, makes_again=False)
        self._room_bytes = room_of(memory_bytes or default_memory_bytes())
        self._previous = read_current_summary(store)
        self._standing = StandingShards(store, self._previous)
        before = recipe_used(self._previous, store.uri)
        self.recipe = with_changes(before, changes)
        caption = self.recipe.caption
        unasked = [c for c in changes if c.split("=")[0].strip().split(".")[-1] not in UNASKED]
        if caption.enabled and caption.captioner == "measured" and unasked:
            raise UsageError(
                f"--set {unasked[0]!r} would change nothing: caption.captioner is measured, which "
                "asks no model; set caption.captioner to openai or transformers"
            )
        log_changes(store.uri, before, self.recipe)
        self._graph = graph_of(self.recipe)
        self._seconds: dict[str, float] = {}
        self._cpu_s: Counter[str] = Counter()
        self._sample: Callable[[Clip], Mapping[str, Any]] | None = None
        """What a model said of a clip; None where none was asked."""
        mark_processes()

    def execute(self) -> dict[str, Any]:
        """Does it.

        Returns:
            What `summary.json` holds.
        """
        store = self._clips()
        clips = store.rows
        locations = self._locations(clips)
        kept_before = kept_by_source(clips)
        begun = time.monotonic()
        self._progress.stage("caption")
        counts, written = self._annotate(clips, locations)
        self._seconds["caption"] = round(time.monotonic() - begun, 3)
        annotating = Annotating(
            self._store,
            self._graph,
            self._engine,
            self._progress,
            previous=self._previous,
            standing=self._standing,
        )
        annotating.annotate(clips, locations)
        counts |= annotating.counts
        self._cpu_s.update(annotating.cpu_s)
        self._progress.stage("shard")
        begun = time.monotonic()
        sharding = Sharding(
            self._store,
            self._graph["shard"].config,
            fingerprint(self.recipe.model_dump(mode="json")),
            self._engine,
            standing=self._standing,
        )
        self._clear_rejected(clips)
        vectors = self._vectors(self.recipe.shard.embedding, clips.kept_ids())
        generation_of = self._generation_of()
        sharding.shard(clips, locations, vectors, annotating.members, self._sample, generation_of)
        self._seconds["shard"] = round(time.monotonic() - begun, 3)
        self._progress.stage("commit")
        self._check()
        lost = kept_before - kept_by_source(clips)
        return self._commit(store, written, sharding, counts, lost)

    def _clips(self) -> ClipStore:
        """The clips of the run before, part by part; those that it rejected stay as they are."""
        found: ClipStore | None = None
        for name in self._previous["tables"]["clips"]:
            table = _cleared(read_parquet(self._store, name), (*OF_CAPTION, *OF_SAMPLE))
            if found is None:
                fields = [field for field in clips_schema() if field.name in table.column_names]
                schema = pa.schema([*fields, *metadata_fields(table.schema)])
                found = ClipStore(schema, self._room_bytes)
            found.add(table)
        assert found is not None, "each table has a part"
        return found

    def _generation_of(self) -> dict[str, int] | None:
        """The generation of each source id; None where older versions set none."""
        table = earlier_sources(self._store, self._previous)
        if table["generation"].null_count:
            return None
        return dict(
            zip(table["source_id"].to_pylist(), table["generation"].to_pylist(), strict=True)
        )

    def _locations(self, clips: ClipRows) -> Locations:
        standing = self._standing.sizes
        columns = ("clip_id", "shard", "mp4_offset", "mp4_bytes", "decision")
        table = pa.table({name: clips.column(name) for name in columns})
        table = table.filter(pc.equal(table["decision"], "kept"))
        there = pc.is_in(table["shard"], value_set=pa.array(sorted(standing), pa.string()))
        gone = table.filter(pc.invert(there)).slice(0, 1).to_pylist()
        if gone:
            raise UsageError(
                f"{self._store.uri}/{gone[0]['shard']} is missing or damaged, which has clip "
                f"{gone[0]['clip_id']}; `curate run` cuts it again, `curate verify` tells more"
            )
        return Locations(
            pa.table(
                [table["clip_id"], table["shard"], pa.nulls(table.num_rows, pa.int64()),
                 table["mp4_offset"], table["mp4_bytes"]],
                schema=LOCATION_SCHEMA,
            )
        )  # fmt: skip

    def _clear_rejected(self, clips: ClipRows) -> None:
        """Takes away where clips lie whose samples are in no shard any more."""
        schema = fields_of(clips.schema, ("decision", *OF_SAMPLE))
        cleared = _cleared(clips.table(schema), OF_SAMPLE)
        for name in OF_SAMPLE:
            clips.set_column(name, cleared[name])

    def _annotate(self, clips: ClipRows, locations: Locations) -> tuple[dict[str, int], _Annotated]:
        """Counts for the summary, and the tables that are new."""
        config = self.recipe.caption
        for name in OF_CAPTION:
            kind = clips_schema().field(name).type
            clips.set_column(name, pa.chunked_array([pa.nulls(len(clips), kind)]))
        if not config.annotates:
            measured_captions(clips, config)
            return {}, {}
        # Imported here: measured captions need nothing of it.
        from curator.stages.caption.caption_driver import Captioning

        sidecars = StoredSidecars(self._store, self._previous["tables"].get(SIDECARS))
        captioning = Captioning(
            self._store,
            self._graph["caption"].config,
            self._engine,
            self._progress,
            clips,
            checks=True,
            pixels=self._graph.pixels_stamp(),
            annotations=self._previous["tables"].get("annotations", ()),
            captioned_before=self._captioned_before(),
            read=sidecars.read,
        )
        with closing(captioning):
            captioning.after_cut(locations)
            captioning.apply(clips)
            self._align(captioning, clips)
        self._cpu_s.update(captioning.cpu_s)
        self._sample = captioning.sample
        kept = {"sidecars_of_the_run_before": sidecars.n_kept} if sidecars.n_kept else {}
        tables: _Annotated = {"annotations": (captioning.tables(), ANNOTATIONS_SCHEMA)}
        if captioning.sidecars is not None:
            tables[SIDECARS] = ((captioning.sidecars,), SIDECARS_SCHEMA)
        return {**captioning.counts, **kept}, tables

    def _captioned_before(self) -> CaptionedSpans:
        """Where each clip as it was asked about lies in its source; none by older versions."""
        columns = ["clip_id", *(f"clip_{name}" for name in SPAN)]
        tables = []
        for name in self._previous["tables"].get("annotations", ()):
            table = read_parquet(self._store, name, columns)
            if set(columns) <= set(table.column_names):
                tables.append(table)
        return CaptionedSpans(tables)

    def _vectors(self, wanted: str, ids: pa.Array) -> Vectors | None:
        if wanted == "none":
            return None
        name = "clip_embeddings" if wanted == "clip" else "embeddings"
        stored = StoredVectors(vectors_table([]), self._room_bytes)
        for part in self._previous["tables"][name]:
            stored.add(read_parquet(self._store, part))
        return stored.some(ids)

    def _align(self, captioning: "Captioning", clips: ClipRows) -> None:
        semantics = semantics_of(self.recipe)
        vectors = None if semantics.clip is None else self._vectors("clip", clips.kept_ids())
        if semantics.clip is not None and vectors is not None:
            from curator.stages.caption.caption_alignment import Alignments

            found = Alignments(self._store, semantics.clip, semantics.store, self._engine)
            captioning.align(clips, found, vectors)

    def _commit(
        self,
        clips: ClipStore,
        written: _Annotated,
        sharding: Sharding,
        counts: dict[str, int],
        lost: Counter[str],
    ) -> dict[str, Any]:
        store, before = FencedStore(self._store, self._check), self._previous
        tables = {name: list(parts) for name, parts in before["tables"].items()}
        tables.pop("annotations", None)
        sources = pa.concat_tables([read_parquet(store, name) for name in tables["sources"]])
        if lost:
            sources = fewer(sources, "n_kept", lost)
            tables["sources"] = write_table(store, f"{SNAPSHOTS}/sources", sources)
        tables["clips"] = write_tables(store, f"{SNAPSHOTS}/clips", clips.blocks(), clips.schema)
        tables.pop(MEMBERS, None)
        if sharding.members is not None:
            tables[MEMBERS] = write_tables(
                store, f"{SNAPSHOTS}/{MEMBERS}", sharding.members(), MEMBERS_SCHEMA
            )
        for name, (parts, schema) in written.items():
            tables[name] = write_tables(store, f"{SNAPSHOTS}/{name}", parts, schema)
        recipe = self.recipe.model_dump(mode="json")
        summary = {
            **{name: value for name, value in before.items() if name not in FACTS},
            "curate_version": curator.__version__,
            "versions": versions(),
            "recipe": recipe,
            "extensions": [
                *(e for e in before.get("extensions", ()) if e["kind"] != "captioners"),
                *map(named, captioner_extensions(self.recipe.caption.captioner)),
            ],
            "counts": {**before["counts"], **clip_counts(clips)},
            "work": {
                **counts,
                "shards_written": sharding.n_written,
                "clips_rejected": sum(lost.values()),
            },
            "long_sources_analyzed_whole": {},
            "cut": cut_facts((), self.recipe.cut.crf),
            "kept_s": kept_seconds(clips),
            "stage_seconds": dict(self._seconds),
            "cpu_seconds": cpu_profile(self._cpu_s),
            **self._engine.facts(),
            "shards": sharding.summary,
            # Some of these clips are not kept any more: the next generation asks the tables.
            JUDGED: {
                name: value
                for name, value in before.get(JUDGED, {}).items()
                if name != KEPT or not lost
            },
            "tables": tables,
        }
        failed = source_records(sources.filter(pc.equal(sources["outcome"], "failed")))
        page = render_report(
            summary=summary, sources=failed, clips=clips, thumbnails=self._pictures(clips)
        )
        return publish(
            store,
            summary,
            before,
            report=page,
            shard_files=sharding.files,
            folders=("sources", "clips", "annotations", SIDECARS, MEMBERS, SHARDS, "frames"),
            stamps=before["fingerprints"],
        )

    def _pictures(self, clips: ClipStore) -> dict[str, bytes]:
        names = stored_candidates(self._store, self._previous, "pictures")
        return read_pictures(self._store, names, shown_clips(clips))


def _cleared(clips: pa.Table, names: Iterable[str]) -> pa.Table:
    """Returns clips without the values of some columns, but for those that are kept."""
    is_kept = pc.equal(clips["decision"], "kept")
    for name in names:
        at = clips.schema.get_field_index(name)
        if at >= 0:
            field = clips.schema.field(at)
            cleared = pc.if_else(is_kept, clips[name], pa.scalar(None, field.type))
            clips = clips.set_column(at, field, cleared)
    return clips
