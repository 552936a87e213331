"""Commits a run: adds a snapshot, updates the files at fixed paths, removes leftovers."""

import itertools
import json
import logging
import platform
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import curator
from curator.errors import StorageError
from curator.report import render_report, shown_clips
from curator.stages.commit.summary_merging import added, by_count
from curator.storage import Store
from curator.tables.checksums import sealed_json, to_json
from curator.tables.clip_rows import ClipColumns
from curator.tables.clip_vectors import StoredVectors
from curator.tables.disk_table import SortedRows
from curator.tables.fenced_store import FencedStore
from curator.tables.kept_vectors import JUDGED, KEPT, write_kept
from curator.tables.out_layout import (
    CONFIG,
    DATASET,
    ENERGON_COUNTS,
    ENERGON_SPLITS,
    INDEX,
    LAYOUT,
    MANIFEST,
    NEXT_MANIFEST,
    OWN_FOLDERS,
    SHARDS,
    SNAPSHOTS,
    is_own,
    leftovers,
    remove,
)
from curator.tables.output_format import FORMAT
from curator.tables.parts import SUMMARY, write_table_part, write_tables
from curator.tables.removal_records import head_of_records
from curator.tables.sample_members import MEMBERS, MEMBERS_SCHEMA
from curator.tables.schemas import ANNOTATIONS_SCHEMA
from curator.tables.snapshot_store import (
    CANDIDATES,
    HEAD,
    NUMBER,
    REMOVALS,
    add_snapshot,
    archived,
    head_of,
    number_commit,
    put_in_place,
    snapshot_name,
)
from curator.tables.source_metadata import SourceMetadata
from curator.tables.source_table import SourceTable, SourceTotals, value_counts

logger = logging.getLogger(__name__)


REPORT = "report/index.html"
_ANALYZED = frozenset({"segments", "candidates", "tracks", "scan", INDEX})
"""Folders in which the analysis of another generation may be writing."""
VERSIONS = ("av", "numpy", "opencv-python-headless", "pyarrow", "ray", "torch")


def alone() -> None:
    """The check where nobody else can write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The results of a finished run."""

    store: FencedStore
    recipe: Mapping[str, Any]
    """As `summary.json` keeps it."""
    sources: SourceTable
    metadata: SourceMetadata
    shots: SortedRows
    clips: ClipColumns
    rules: Sequence[Mapping[str, Any]]
    """What each rule did before later stages."""
    embeddings: StoredVectors
    clip_embeddings: StoredVectors | None = None
    """Embeddings by the CLIP model; None where the recipe names none."""
    annotations: Iterable[pa.Table] | None = None
    """Rows of `annotations`, some at a time; None where no model was asked."""
    sidecars: pa.Table | None = None
    """Rows of `sidecars`; None where captions use no sidecars."""
    pictures: Callable[[Iterable[str]], Mapping[str, bytes]]
    """Gives thumbnails by the ids of clips."""
    previous: Mapping[str, Any]
    """Summary of the newest snapshot; empty without one."""
    before: Mapping[str, Any] | None = None
    """Summary of earlier generations, which this commit adds to; None where it is of everything."""
    n_kept_before: Counter[str] = field(default_factory=Counter)
    """Clips that earlier generations keep, by source id."""
    judged: Mapping[str, Any] = field(default_factory=dict)
    """What the decisions about clips follow from."""
    keeps_vectors: bool = False
    """Whether vectors of kept clips are stored for the generations to come."""
    kept_before: Sequence[str] | None = None
    """Objects with those of earlier generations; None if they are not stored."""
    is_last: bool = True
    """Whether no other work of this run goes on: else what no snapshot names may be its own."""
    publishes: bool = True
    """Whether readers see the results; else a later commit of the same run publishes them."""
    candidates: Set[str]
    """Objects of stored candidates, and of what was found by comparing them, that stay."""
    shards: list[dict[str, Any]]
    shard_files: Mapping[str, bytes]
    """What describes all shards, by name, in the order in which it is written."""
    members: Callable[[], Iterable[pa.Table]] | None = None
    """Gives the rows of `members`; None where families declare none."""
    listed_ns: int
    """Unix time before the listing: versions of files that were young then say nothing."""
    n_skipped_names: int
    seconds: Mapping[str, float]
    counts: Mapping[str, int]
    long_whole: Mapping[str, int]
    cpu_s: Callable[[], Mapping[str, float]]
    """CPU-seconds of the run up to the call, by what they went into."""
    cut: Mapping[str, Any]
    execution: Mapping[str, Any] = field(default_factory=dict)
    """`Timeline.as_dict`: when workers were busy; empty where no unit was handed out."""
    stamps: Mapping[str, str]
    extensions: Sequence[Mapping[str, Any]] = ()
    """Classes that were loaded from outside this package, each with its origin."""


def commit_run(run: Commit) -> dict[str, Any]:
    """Publishes a run, `summary.json` last, removes leftovers, and returns the summary."""
    kept = run.n_kept_before + kept_by_source(run.clips)
    earlier = run.before["tables"] if run.before is not None else {}
    # Nothing that readers of the folders of the tables see changes before there is a snapshot.
    root = f"{SNAPSHOTS}/"
    totals = SourceTotals()
    names: dict[str, list[str]] = {"sources": []}
    for number, rows in enumerate(run.sources.rows(kept)):
        totals.add(rows)
        if run.publishes:
            rows = run.metadata.joined(rows, "uri")
            names["sources"].append(write_table_part(run.store, f"{root}sources", number, rows))
    tables: dict[str, SortedRows | StoredVectors | ClipColumns] = {
        "shots": run.shots,
        "clips": run.clips,
        "embeddings": run.embeddings,
    }
    if run.clip_embeddings is not None:
        # A separate table: the length of a vector is part of a column's type.
        tables["clip_embeddings"] = run.clip_embeddings
    names |= {
        name: write_tables(
            run.store, root + name, table.blocks(), table.schema, earlier.get(name, ())
        )
        for name, table in tables.items()
    }
    judged, candidates = dict(run.judged), set(run.candidates)
    if run.keeps_vectors:
        own = [write_kept(run.store, run.clips, run.embeddings)] if len(run.clips) else []
        before = run.kept_before
        if before is not None:
            judged[KEPT] = [*before, *own]
        candidates.update(before or (), own)
    if run.sidecars is not None:
        table = run.sidecars
        names["sidecars"] = write_tables(
            run.store, f"{root}sidecars", [table], table.schema, earlier.get("sidecars", ())
        )
    if run.annotations is not None:
        names["annotations"] = write_tables(
            run.store,
            f"{root}annotations",
            run.annotations,
            ANNOTATIONS_SCHEMA,
            earlier.get("annotations", ()),
        )
    if run.members is not None:
        names[MEMBERS] = write_tables(
            run.store, root + MEMBERS, run.members(), MEMBERS_SCHEMA, earlier.get(MEMBERS, ())
        )
    summary = _summary(run, totals, {**earlier, **names})
    summary |= {JUDGED: judged, CANDIDATES: sorted(candidates)}
    if run.before is not None:
        summary = added(run.before, summary)
    if not run.publishes:
        return summary
    page = render_report(
        summary=summary,
        sources=totals.failed,
        clips=run.clips,
        thumbnails=run.pictures(shown_clips(run.clips)),
        is_of_last=run.before is not None,
    )
    summary = publish(
        run.store,
        summary,
        run.previous,
        report=page,
        # A page that shows clips is of more use than one that says that none was added.
        keeps_report=run.before is not None and not len(run.clips),
        shard_files=run.shard_files,
        folders=[name for name in LAYOUT if run.is_last or name not in _ANALYZED],
        stamps=run.stamps,
    )
    if not run.is_last:
        return summary
    try:
        run.store.clean_temporary(("", *OWN_FOLDERS), is_own)
    except StorageError as error:
        # Leftovers of killed writers cost space, not correctness.
        logger.warning("unfinished objects were not all removed: %s", error)
    return summary


def publish(
    store: FencedStore,
    summary: Mapping[str, Any],
    previous: Mapping[str, Any],
    *,
    report: str,
    keeps_report: bool = False,
    shard_files: Mapping[str, bytes],
    folders: Iterable[str],
    stamps: Mapping[str, str],
) -> dict[str, Any]:
    """Adds a snapshot, updates the files at fixed paths, and removes leftovers.

    `manifest.next.json` is there from before the first index changes until `summary.json` is
    written, so that a commit that was broken off can be told from a damaged output.

    Args:
        store: Output root.
        summary: Of the commit.
        previous: Of the newest snapshot; empty without one.
        report: The page.
        keeps_report: Whether the page that is there stays if nothing changed for readers.
        shard_files: What describes all shards, by name, in writing order.
        folders: Where leftovers may be.
        stamps: Current fingerprint of each folder that goes by them.

    Returns:
        The summary with the snapshot's number.

    Raises:
        CuratorError: Another run committed meanwhile.
        LeaseLostError: Another run may write by now.
    """
    records = head_of_records(store)
    if records:
        summary = {**summary, REMOVALS: records}
    commit = number_commit(
        store, summary, previous, manifest=shard_files[MANIFEST], dataset=shard_files[DATASET]
    )
    number = commit.summary[NUMBER]
    if commit.is_new:
        own = sealed_json(archived(commit.summary), to_json, snapshot_name(number))
        add_snapshot(store, number, own)
    put_in_place(store, commit.summary)
    if commit.is_new or not keeps_report or not store.exists(REPORT):
        store.write(REPORT, report.encode())
    used = {"recipe": summary["recipe"], "fingerprints": summary["fingerprints"]}
    store.write(CONFIG, sealed_json(used, to_json, CONFIG))
    write_shard_files(store, shard_files)
    known = {**commit.summary, HEAD: head_of(store, commit.summary, previous)}
    store.write(SUMMARY, sealed_json(known, to_json, SUMMARY))
    named = commit.named | shard_files.keys()
    remove(store, [NEXT_MANIFEST, *leftovers(store, named, folders, stamps)])
    return known


def write_shard_files(store: Store, files: Mapping[str, bytes]) -> None:
    """Writes files that describe the shards, by name in writing order; skips unchanged ones."""
    there = {info.key: info for info in store.list(f"{SHARDS}/")}
    changed = {name: data for name, data in files.items() if not store.holds(there.get(name), data)}
    if changed:
        store.write(NEXT_MANIFEST, files[MANIFEST])
    for name, data in changed.items():
        counts = name.replace(ENERGON_SPLITS, ENERGON_COUNTS)
        if counts != name and counts in changed and counts in there:
            store.write(counts, _counts_of_both(store.read(counts), changed[counts]))
        store.write(name, data)


def _counts_of_both(old: bytes, new: bytes) -> bytes:
    """Returns counts of the tars of the old and the new splits, for readers between the two."""
    merged = json.loads(new)
    # A damaged file serves no reader.
    with suppress(ValueError, KeyError, TypeError):
        merged["shard_counts"] = json.loads(old)["shard_counts"] | merged["shard_counts"]
    return json.dumps(merged, indent=1).encode() + b"\n"


def versions() -> dict[str, str]:
    """Returns versions of Python and of the packages that results may depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in VERSIONS}}


def source_counts(sources: SourceTotals, n_skipped_names: int) -> dict[str, Any]:
    """Counts the outcomes of the sources, for `counts` of the summary."""
    return {
        "sources": sources.n_sources,
        "done": sources.n_sources - sources.n_failed,
        "failed": sources.n_failed,
        "skipped_names": n_skipped_names,
        "by_error": by_count(sources.by_error),
        "by_note": by_count(sources.by_note),
    }


def clip_counts(clips: ClipColumns) -> dict[str, Any]:
    """Counts the outcomes of the clips, for `counts` of the summary."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    n_kept = 0
    for block in clips.blocks(("decision", "reason", "reasons", "tags", "cut_mode")):
        is_kept = pc.equal(block["decision"], "kept")
        kept, rejected = block.filter(is_kept), block.filter(pc.invert(is_kept))
        alone = block.filter(pc.equal(pc.list_value_length(block["reasons"]), 1))
        n_kept += kept.num_rows
        for name, column in (
            ("by_reason", rejected["reason"]),
            ("by_cut_mode", kept["cut_mode"]),
            ("by_any_reason", pc.list_flatten(block["reasons"])),
            ("by_only_reason", alone["reason"]),
            ("by_tag", pc.list_flatten(block["tags"])),
            ("by_tag_kept", pc.list_flatten(kept["tags"])),
        ):
            found[name].update(value_counts(column))
    names = "by_reason", "by_cut_mode", "by_any_reason", "by_only_reason", "by_tag", "by_tag_kept"
    counts = {"clips": len(clips), "kept": n_kept, "rejected": len(clips) - n_kept}
    return counts | {name: by_count(found[name]) for name in names}


def kept_by_source(clips: ClipColumns) -> Counter[str]:
    """Counts kept clips of each source id."""
    counts: Counter[str] = Counter()
    for block in clips.blocks(("source_id", "decision")):
        is_kept = pc.equal(block["decision"], "kept")
        counts.update(value_counts(block["source_id"].filter(is_kept)))
    return counts


def kept_seconds(clips: ClipColumns) -> float:
    """Returns the seconds of the kept clips, to the millisecond."""

    def seconds() -> Iterator[list[float]]:
        for block in clips.blocks(("start_s", "end_s", "decision")):
            kept = block.filter(pc.equal(block["decision"], "kept"))
            yield pc.subtract(kept["end_s"], kept["start_s"]).to_pylist()

    # One sum over all, so that rounding does not depend on blocks.
    return round(sum(itertools.chain.from_iterable(seconds())), 3)


def _summary(run: Commit, sources: SourceTotals, names: Mapping[str, list[str]]) -> dict[str, Any]:
    return {
        "curate_version": curator.__version__,
        "format": FORMAT,
        "recipe": dict(run.recipe),
        "fingerprints": dict(run.stamps),
        "listed_ns": run.listed_ns,
        "counts": {
            **source_counts(sources, run.n_skipped_names),
            **clip_counts(run.clips),
        },
        "rules": [dict(rule) for rule in run.rules],
        "work": dict(run.counts),
        "long_sources_analyzed_whole": dict(run.long_whole),
        "cut": dict(run.cut),
        "video_s": round(sources.video_s, 3),
        "source_bytes": sources.n_bytes,
        "kept_s": kept_seconds(run.clips),
        "stage_seconds": dict(run.seconds),
        "cpu_seconds": dict(run.cpu_s()),
        **run.execution,
        "shards": run.shards,
        "tables": dict(names),
        "versions": versions(),
        "extensions": [dict(extension) for extension in run.extensions],
    }
