"""Annotates the clips of a finished run anew, and touches nothing else.

Clips stay as they are: pictures come out of the written MP4s, tars whose captions change are put
together anew from the same bytes, and all other tables and tracks stay.
"""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import curator
from curator.errors import UsageError
from curator.graph.accounting import cpu_profile, mark_processes
from curator.graph.annotated import SPAN, AskedSpan
from curator.graph.beside import SIDECARS, KeptBeside
from curator.graph.candidates import read_pictures
from curator.graph.cutting import cut_facts
from curator.graph.engine import Engine
from curator.graph.finish import (
    clip_counts,
    clip_row,
    read_summary,
    to_json,
    versions,
    write_shard_files,
)
from curator.graph.owned import CONFIG, remove
from curator.graph.sharding import Sharding
from curator.graph.survivors import Vectors, measured_captions
from curator.graph.text_vectors import text_vectors_of
from curator.lake import (
    SUMMARY,
    columns_to_rows,
    read_parquet,
    rows_to_table,
    write_table,
)
from curator.progress import Progress
from curator.recipe import Recipe, semantics_of, with_changes
from curator.stages.report import render_report, shown_clips
from curator.stages.shard import SHARDS, Location
from curator.storage import Store
from curator.tables import CLIPS_SCHEMA

if TYPE_CHECKING:
    from curator.graph.captioning import Captioning

SECTION = "caption"
UNASKED = frozenset({"captioner", "enabled", "embedding"})
"""Keys of `caption` that say something where no model is asked."""


class Recaption:
    """New annotations for the clips that a finished run kept.

    Args:
        store: Output root.
        changes: `key=value` each; keys of the section `caption` alone.
        engine: Where frames are taken, and models in workers run.
        progress: Where it is shown.

    Raises:
        UsageError: There is no finished run, or a change is not one of `caption`.
        RecipeError: A change is wrong.
    """

    def __init__(
        self, store: Store, changes: Sequence[str], engine: Engine, progress: Progress
    ) -> None:
        for change in changes:
            if change.split("=")[0].strip().split(".")[0] != SECTION:
                raise UsageError(
                    f"--set {change!r}: only keys of {SECTION} can change without touching clips; "
                    "`curate run` takes all keys"
                )
        self._store, self._engine, self._progress = store, engine, progress
        self._previous = read_summary(store)
        if not self._previous:
            raise UsageError(
                f"{store.uri} has no finished run (no summary.json); `curate run SOURCE... OUT` "
                "makes one"
            )
        self.recipe = with_changes(Recipe.model_validate(self._previous["recipe"]), changes)
        caption = self.recipe.caption
        unasked = [c for c in changes if c.split("=")[0].strip().split(".")[-1] not in UNASKED]
        if caption.enabled and caption.captioner == "measured" and unasked:
            raise UsageError(
                f"--set {unasked[0]!r} would change nothing: caption.captioner is measured, which "
                "asks no model; set caption.captioner to openai or transformers"
            )
        self._seconds: dict[str, float] = {}
        self._cpu_s: Counter[str] = Counter()
        mark_processes()

    def execute(self) -> dict[str, Any]:
        """Does it.

        Returns:
            What `summary.json` holds.
        """
        clips = self._clips()
        locations = self._locations(clips)
        kept_before = _kept_by_source(clips)
        begun = time.monotonic()
        self._progress.stage("caption")
        counts, written = self._annotate(clips, locations)
        self._seconds["caption"] = round(time.monotonic() - begun, 3)
        self._progress.stage("shard")
        begun = time.monotonic()
        sharding = Sharding(self._store, self.recipe, self._engine, previous=self._previous)
        embedded = text_vectors_of(self.recipe, clips, self._store, self._engine)
        find = None
        if embedded is not None:
            find = embedded.find
            counts["captions_embedded"] = embedded.n_made
            self._cpu_s.update(embedded.cpu_s)
        for clip in clips:
            if clip["decision"] != "kept":
                # Its sample is in no shard any more.
                clip |= dict.fromkeys(("shard", "key", "mp4_offset", "bucket"))
        sharding.shard(clips, locations, self._vectors(self.recipe.shard.embedding), find)
        self._seconds["shard"] = round(time.monotonic() - begun, 3)
        self._progress.stage("commit")
        lost = kept_before - _kept_by_source(clips)
        return self._commit(clips, written, sharding, counts, lost)

    def _clips(self) -> list[dict[str, Any]]:
        tables = [read_parquet(self._store, name) for name in self._previous["tables"]["clips"]]
        missing = [name for name in CLIPS_SCHEMA.names if name not in tables[0].column_names]
        added = {"caption_failure", "caption_alignment"}
        if set(missing) - added:
            raise UsageError(
                f"{self._store.uri} was made by curate {self._previous.get('curate_version')}, "
                f"whose table clips has no {missing[0]}; `curate run` brings it up to date"
            )
        return columns_to_rows(pa.concat_tables(tables))

    def _locations(self, clips: Sequence[dict[str, Any]]) -> dict[str, Location]:
        standing = {info.key for info in self._store.list(f"{SHARDS}/")}
        locations = {}
        for clip in clips:
            if clip["decision"] != "kept":
                continue
            if clip["shard"] not in standing:
                raise UsageError(
                    f"{self._store.uri}/{clip['shard']} is gone, which has clip "
                    f"{clip['clip_id']}; `curate run` cuts it again, `curate verify` tells more"
                )
            locations[clip["clip_id"]] = Location(
                name=clip["shard"], offset=clip["mp4_offset"], n_bytes=clip["mp4_bytes"]
            )
        return locations

    def _annotate(
        self, clips: list[dict[str, Any]], locations: dict[str, Location]
    ) -> tuple[dict[str, int], dict[str, pa.Table]]:
        """Counts for the summary, and the tables that are new."""
        config = self.recipe.caption
        for clip in clips:
            clip |= {"caption": None, "caption_model": None}
            clip |= {"caption_failure": None, "caption_alignment": None}
        if not config.annotates:
            measured_captions(clips, config)
            return {}, {}
        # Imported here: measured captions need nothing of it.
        from curator.graph.captioning import Captioning

        captioning = Captioning(self._store, self.recipe, self._engine, self._progress, checks=True)
        with closing(captioning):
            last = self._previous["tables"].get("annotations", ())
            beside = KeptBeside(self._store, self._previous["tables"].get(SIDECARS))
            captioning.begin(clips, self._asked_before(), last, beside.read)
            captioning.after_cut(locations)
            captioning.apply(clips)
            self._align(captioning, clips)
            captioning.annotate(clips)
        self._cpu_s.update(captioning.cpu_s)
        kept = {"sidecars_of_the_run_before": beside.n_kept} if beside.n_kept else {}
        tables = {"annotations": captioning.table(clips)}
        if captioning.sidecars is not None:
            tables[SIDECARS] = captioning.sidecars
        return {**captioning.counts, **kept}, tables

    def _asked_before(self) -> dict[str, AskedSpan]:
        """Where each clip as it was asked about lies in its source; none by older versions."""
        columns = ("clip_id", *(f"clip_{name}" for name in SPAN))
        tables = [
            read_parquet(self._store, n) for n in self._previous["tables"].get("annotations", ())
        ]
        return {
            clip: AskedSpan(**dict(zip(SPAN, span, strict=True)))
            for table in tables
            if set(columns) <= set(table.column_names)
            for clip, *span in zip(*(table[c].to_pylist() for c in columns), strict=True)
        }

    def _vectors(self, wanted: str) -> Vectors | None:
        if wanted == "none":
            return None
        name = "clip_embeddings" if wanted == "clip" else "embeddings"
        parts = [read_parquet(self._store, part) for part in self._previous["tables"][name]]
        return Vectors(pa.concat_tables(parts).sort_by("clip_id"))

    def _align(self, captioning: "Captioning", clips: list[dict[str, Any]]) -> None:
        semantics = semantics_of(self.recipe)
        vectors = None if semantics.clip is None else self._vectors("clip")
        if semantics.clip is not None and vectors is not None:
            from curator.graph.aligning import Alignments

            found = Alignments(self._store, semantics.clip, semantics.store, self._engine)
            captioning.align(clips, found, vectors)

    def _commit(
        self,
        clips: list[dict[str, Any]],
        written: dict[str, pa.Table],
        sharding: Sharding,
        counts: dict[str, int],
        lost: Counter[str],
    ) -> dict[str, Any]:
        store, before = self._store, self._previous
        tables = {name: list(parts) for name, parts in before["tables"].items()}
        tables.pop("annotations", None)
        sources = pa.concat_tables([read_parquet(store, name) for name in tables["sources"]])
        if lost:
            sources = _fewer_kept(sources, lost)
            tables["sources"] = write_table(store, "sources", sources)
        table = rows_to_table(map(clip_row, clips), CLIPS_SCHEMA)
        tables["clips"] = write_table(store, "clips", table)
        tables |= {name: write_table(store, name, rows) for name, rows in written.items()}
        kept = [clip for clip in clips if clip["decision"] == "kept"]
        recipe = self.recipe.model_dump(mode="json")
        summary = {
            **before,
            "curate_version": curator.__version__,
            "versions": versions(),
            "recipe": recipe,
            "counts": {**before["counts"], **clip_counts(clips)},
            "work": {
                **counts,
                "shards_written": sharding.n_written,
                "clips_rejected": sum(lost.values()),
            },
            "long_sources_analyzed_whole": {},
            "cut": cut_facts((), self.recipe.cut.crf),
            "kept_s": round(sum(clip["end_s"] - clip["start_s"] for clip in kept), 3),
            "stage_seconds": dict(self._seconds),
            "cpu_seconds": cpu_profile(self._cpu_s),
            "shards": sharding.summary,
            "tables": tables,
        }
        failed = [row for row in sources.to_pylist() if row["outcome"] == "failed"]
        page = render_report(
            summary=summary, sources=failed, clips=clips, thumbnails=self._pictures(clips)
        )
        store.write("report/index.html", page.encode())
        stamps = before["fingerprints"]
        store.write(CONFIG, to_json({"recipe": recipe, "fingerprints": stamps}))
        write_shard_files(store, sharding.files)
        store.write(SUMMARY, to_json(summary))
        current = {name for parts in tables.values() for name in parts} | sharding.names
        folders = ("sources", "clips", "annotations", SIDECARS, SHARDS)
        old = [i.key for name in folders for i in store.list(f"{name}/") if i.key not in current]
        remove(store, [*old, *(info.key for info in store.list("frames/"))])
        return summary

    def _pictures(self, clips: Sequence[dict[str, Any]]) -> dict[str, bytes]:
        stamp = self._previous["fingerprints"].get("candidates")
        names = [i.key for i in self._store.list(f"candidates/pictures/{stamp}-")]
        return read_pictures(self._store, names, shown_clips(clips))


def _kept_by_source(clips: Sequence[dict[str, Any]]) -> Counter[str]:
    return Counter(clip["source_id"] for clip in clips if clip["decision"] == "kept")


def _fewer_kept(sources: pa.Table, lost: Counter[str]) -> pa.Table:
    """Rows of `sources` with the clips that were lost taken off where they were counted."""
    ids, counts = sources["source_id"].to_pylist(), sources["n_kept"].to_pylist()
    now = [
        count - lost[name] if count and name in lost else count
        for name, count in zip(ids, counts, strict=True)
    ]
    at = sources.schema.get_field_index("n_kept")
    return sources.set_column(at, sources.schema.field("n_kept"), pa.array(now, pa.int32()))
