"""Commits a run: adds a snapshot, updates the files at fixed paths, removes leftovers."""

import itertools
import json
import logging
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import curator
from curator.buckets import MAX_ENLARGED
from curator.errors import StorageError
from curator.records.clips import FITTED, SIZED, WINDOWED
from curator.storage import Store
from curator.tables.clip_rows import ClipColumns
from curator.tables.fenced_store import FencedStore
from curator.tables.json_objects import sealed_json, to_json
from curator.tables.out_layout import (
    CONFIG,
    DATASET,
    ENERGON_COUNTS,
    ENERGON_SPLITS,
    LAYOUT,
    MANIFEST,
    NEXT_MANIFEST,
    OWN_FOLDERS,
    SETTINGS,
    SHARDS,
    SNAPSHOTS,
    SUMMARY,
    is_own,
    leftovers,
    remove,
)
from curator.tables.parts import write_table_part, write_tables
from curator.tables.proof_store import read_proofs
from curator.tables.removal_records import head_of_records
from curator.tables.snapshot_store import (
    CANDIDATES,
    FORMAT,
    HEAD,
    NUMBER,
    REMOVALS,
    add_snapshot,
    archived,
    head_of,
    number_commit,
    proved_unnamed,
    put_in_place,
    snapshot_name,
)
from curator.tables.source_table import SourceTotals, value_counts
from curator.tools.report import PREVIEWS, render_report
from curator.tools.report.default_words import KEPT_WITH_AUDIO
from curator.trainers.clip_fit import COLUMNS as FIT_COLUMNS
from curator.trainers.clip_fit import added, fit_of_each

logger = logging.getLogger(__name__)


REPORT = "report/index.html"
VERSIONS = ("av", "numpy", "opencv-python-headless", "pyarrow", "ray", "torch")


def no_lease_check() -> None:
    """Checks nothing: no other run can write to the output."""


Rows = tuple[Iterable[pa.Table], pa.Schema]
"""Rows of a table, in order and in blocks, and their schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The results of a run, or of one generation, for readers.

    Attributes:
        previous: Summary of the newest snapshot; empty without a snapshot.
        before: Summary of earlier generations, to which this commit adds; None if this commit has
            the whole corpus.
        facts: Returns the fields of the summary that no table gives. The commit writes the tables
            before it calls this function, so that times include this work.
        parts: Existing parts of tables that stay, by table. New rows are in parts after them.
        sources: Rows of `sources`, one table per part.
        tables: New rows of all tables but `sources` and `clips`, by name.
        n_skipped_names: Number of objects that the scan skipped because of their names.
        shard_files: Files that describe all shards, by name, in the order of writing.
        pictures: Returns the thumbnails of clips, by id.
        publishes: Whether readers see the results now; otherwise a later commit of the run
            publishes them.
        folders: Folders in which the commit removes objects that no snapshot names.
        is_last: Whether this run does no other work, so that the commit may remove unfinished
            objects.
    """

    store: FencedStore
    previous: Mapping[str, Any]
    before: Mapping[str, Any] | None = None
    facts: Callable[[], Mapping[str, Any]]
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sources: Iterable[pa.Table]
    clips: ClipColumns
    tables: Mapping[str, Rows]
    n_skipped_names: int = 0
    shard_files: Mapping[str, bytes]
    pictures: Callable[[Iterable[str]], Mapping[str, bytes]]
    publishes: bool = True
    folders: Iterable[str] = tuple(LAYOUT)
    is_last: bool = True


def commit_run(run: Commit) -> dict[str, Any]:
    """Publishes a run, `summary.json` last, removes leftovers, and returns the summary."""
    store, clips = run.store, run.clips
    # Parts are under `snapshots/`: the folders of tables change only after the new snapshot.
    root = f"{SNAPSHOTS}/"
    totals = SourceTotals()
    sources: list[str] = []
    for number, rows in enumerate(run.sources):
        totals.add(rows)
        if run.publishes:
            sources.append(write_table_part(store, f"{root}sources", number, [rows], rows.schema))
    tables: dict[str, Rows] = {"clips": (clips.blocks(), clips.schema), **run.tables}
    names = {**run.parts, "sources": sources} | {
        name: write_tables(store, root + name, blocks, schema, run.parts.get(name, ()))
        for name, (blocks, schema) in tables.items()
    }
    facts = run.facts()
    summary: dict[str, Any] = {
        **facts,
        "curate_version": curator.__version__,
        "format": FORMAT,
        **table_facts(totals, clips, run.n_skipped_names, facts.get("recipe")),
        "tables": names,
        "versions": {**versions()},
    }
    if run.before is not None:
        summary = _added(run.before, summary)
    if not run.publishes:
        return summary
    page = render_report(
        summary=summary,
        sources=totals.failed,
        clips=clips,
        pictures=run.pictures,
        is_of_last=run.before is not None,
        proofs=read_proofs(store),
    )
    summary = _publish(run, summary, page)
    if not run.is_last:
        return summary
    try:
        store.clean_temporary(("", *OWN_FOLDERS), is_own)
    except StorageError as error:
        # Leftovers of killed writers only take space.
        logger.warning("some unfinished objects were not removed: %s", error)
    return summary


def _publish(run: Commit, summary: dict[str, Any], page: str) -> dict[str, Any]:
    """Adds a snapshot, updates the files at fixed paths, and removes leftovers.

    `manifest.next.json` exists from before the first index changes until `summary.json` is written:
    it distinguishes an interrupted commit from a damaged output.

    Returns:
        The summary with the snapshot's number.

    Raises:
        CuratorError: Another run committed in the meantime.
        LeaseLostError: Another run may write to the output now.
    """
    store, shard_files = run.store, run.shard_files
    records = head_of_records(store)
    if records:
        summary = {**summary, REMOVALS: records}
    commit = number_commit(
        store, summary, run.previous, manifest=shard_files[MANIFEST], dataset=shard_files[DATASET]
    )
    if commit.is_new:
        number = commit.summary[NUMBER]
        own = sealed_json(archived(commit.summary), to_json, snapshot_name(number))
        add_snapshot(store, number, own)
    # A generation without clips keeps the report of an earlier generation, which shows clips.
    keeps_report = run.before is not None and not len(run.clips)
    is_wanted = commit.is_new or not keeps_report or not store.exists(REPORT)
    shown = page if is_wanted else None
    written = write_fixed_paths(store, commit.summary, run.previous, shard_files, shown)
    named = commit.named | shard_files.keys()
    old = leftovers(store, named, run.folders, written["fingerprints"])
    remove(store, [NEXT_MANIFEST, *proved_unnamed(store, old)])
    return written


def write_fixed_paths(
    store: Store,
    summary: Mapping[str, Any],
    previous: Mapping[str, Any],
    shard_files: Mapping[str, bytes],
    page: str | None,
) -> dict[str, Any]:
    """Updates the files at fixed paths to the newest snapshot, `summary.json` last.

    `summary` names tables by their fixed paths; `previous` is the old summary. Without `page`, the
    report stays unchanged. Returns the contents of `summary.json`.
    """
    put_in_place(store, summary)
    if page is not None:
        store.write(REPORT, page.encode())
        delete_previews(store)
    used = {name: summary[name] for name in SETTINGS}
    store.write(CONFIG, sealed_json(used, to_json, CONFIG))
    write_shard_files(store, shard_files)
    written = {**summary, HEAD: head_of(store, summary, previous)}
    store.write(SUMMARY, sealed_json(written, to_json, SUMMARY))
    return written


def delete_previews(store: Store) -> None:
    """Deletes the moving previews of the report, because their clips may be gone."""
    store.delete([info.key for info in store.list(PREVIEWS) if is_own(info.key)])


def write_shard_files(store: Store, files: Mapping[str, bytes]) -> None:
    """Writes the files that describe the shards, in the order of `files`; skips unchanged files."""
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
    """Returns counts with the tars of the old and the new splits, valid while splits change."""
    merged = json.loads(new)
    # Of a damaged old file, only the new counts are written.
    with suppress(ValueError, KeyError, TypeError):
        merged["shard_counts"] = json.loads(old)["shard_counts"] | merged["shard_counts"]
    return json.dumps(merged, indent=1).encode() + b"\n"


@cache
def versions() -> Mapping[str, str]:
    """Returns versions of Python and of installed packages on which results may depend."""
    numbers = {"python": platform.python_version()}
    for name in VERSIONS:
        with suppress(PackageNotFoundError):  # a run of few sources starts no Ray
            numbers[name] = version(name)
    return MappingProxyType(numbers)


def table_facts(
    sources: SourceTotals,
    clips: ClipColumns,
    n_skipped_names: int,
    recipe: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Returns the fields of the summary that are computed from `sources` and `clips`.

    The field `fit`, about the trainers of `recipe`, is absent if the recipe names none.
    """
    train_for = (recipe or {}).get("train_for") or ()
    return {
        "counts": {
            "sources": sources.n_sources,
            "done": sources.n_sources - sources.n_failed,
            "failed": sources.n_failed,
            "skipped_names": n_skipped_names,
            "by_error": _by_count(sources.by_error),
            "by_note": _by_count(sources.by_note),
            **clip_counts(clips),
            KEPT_WITH_AUDIO: kept_with_audio(clips),
        },
        "video_s": round(sources.video_s, 3),
        "source_bytes": sources.n_bytes,
        "kept_s": kept_seconds(clips),
        **({"fit": fit_of_each(train_for, lambda: _kept_forms(clips))} if train_for else {}),
    }


def _kept_forms(clips: ClipColumns) -> Iterator[pa.Table]:
    for block in clips.blocks(("decision", *FIT_COLUMNS, *WINDOWED, *SIZED)):
        yield block.filter(pc.equal(block["decision"], "kept"))


def kept_with_audio(clips: ClipColumns) -> int:
    """Counts kept clips for which the source has audio; 0 if audio was not measured."""
    name, n_clips = "audio_coverage", 0
    if name in clips.schema.names:
        for block in clips.blocks(("decision", name)):
            has_audio = pc.and_(pc.equal(block["decision"], "kept"), pc.greater(block[name], 0))
            n_clips += pc.sum(has_audio).as_py() or 0
    return n_clips


def clip_counts(clips: ClipColumns) -> dict[str, Any]:
    """Counts the outcomes of the clips, for `counts` of the summary."""
    counters: dict[str, Counter[str]] = {name: Counter() for name in _BY_CLIPS}
    n_kept = 0
    for block in clips.blocks(("decision", "reason", "reasons", "tags", "cut_mode", *FITTED)):
        is_kept = pc.equal(block["decision"], "kept")
        kept, rejected = block.filter(is_kept), block.filter(pc.invert(is_kept))
        single = block.filter(pc.equal(pc.list_value_length(block["reasons"]), 1))
        n_kept += kept.num_rows
        columns = (
            rejected["reason"],
            kept["cut_mode"],
            pc.list_flatten(block["reasons"]),
            single["reason"],
            pc.list_flatten(block["tags"]),
            pc.list_flatten(kept["tags"]),
        )
        for name, column in zip(_BY_CLIPS[:-1], columns, strict=True):
            counters[name].update(value_counts(column))
        counters["by_form"].update(_form_counts(kept))
    counts = {"clips": len(clips), "kept": n_kept, "rejected": len(clips) - n_kept}
    return counts | {name: _by_count(counter) for name, counter in counters.items()}


def _form_counts(kept: pa.Table) -> dict[str, int]:
    """Counts kept clips by how the size and rate of the recipe change them; a percent is none."""
    scale, cropped, rate, repeated = (kept[name] for name in FITTED)
    changed = {
        "enlarged": pc.greater(scale, MAX_ENLARGED),
        "shrunk": pc.less(scale, 1 / MAX_ENLARGED),
        "cropped": pc.greater(cropped, MAX_ENLARGED - 1),
        "retimed": pc.not_equal(rate, 1.0),
        "repeated": pc.greater(repeated, 0.0),
    }
    counts = {name: pc.sum(is_so).as_py() for name, is_so in changed.items()}
    return {name: n for name, n in counts.items() if n}


def clip_outcomes(clips: ClipColumns) -> dict[tuple[str, str], tuple[int, float]]:
    """Returns number and seconds of clips by decision and reason; the reason is "" if absent."""
    sums: dict[tuple[str, str], tuple[int, float]] = {}
    for block in clips.blocks(("decision", "reason", "start_s", "end_s")):
        seconds = pc.subtract(block["end_s"], block["start_s"])
        groups = block.append_column("seconds", seconds).group_by(["decision", "reason"])
        for row in groups.aggregate([([], "count_all"), ("seconds", "sum")]).to_pylist():
            key = row["decision"], row["reason"] or ""
            n_clips, total_s = sums.get(key, (0, 0.0))
            sums[key] = n_clips + row["count_all"], total_s + (row["seconds_sum"] or 0.0)
    return sums


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


def _by_count(counts: Mapping[str, int]) -> dict[str, int]:
    """Returns counts sorted from the largest; equal counts by name."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


_OF_CLIPS = ("clips", "kept", "rejected")
_BY_CLIPS = (
    "by_reason", "by_cut_mode", "by_any_reason", "by_only_reason", "by_tag", "by_tag_kept",
    "by_form",
)  # fmt: skip
"""Keys of `counts` that count clips of one generation; other keys count all sources."""


def _added(before: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """Adds a generation's counts of clips to the summary of earlier generations.

    The new summary already covers sources, shards and tables of all generations.
    """
    old, new = before["counts"], summary["counts"]
    counts = {name: old[name] + new[name] for name in _OF_CLIPS}
    counters = {name: Counter(old[name]) + Counter(new[name]) for name in _BY_CLIPS}
    counts |= {name: _by_count(counter) for name, counter in counters.items()}
    # Rules without a clip in the new generation stay.
    rules = {rule["rule"]: dict(rule) for rule in before["rules"]}
    for rule in summary["rules"]:
        earlier = rules.get(rule["rule"], {})
        sums = {
            name: (earlier.get(name) or 0) + (rule[name] or 0)
            for name in ("first", "alone", "any", "n_measured")
            if rule.get(name) is not None or earlier.get(name) is not None
        }
        rules[rule["rule"]] = {**rule, **sums}
    fit = {}
    if "fit" in summary:
        fits = added(before.get("fit", ()), summary["fit"], is_first=not old["kept"])
        fit = {"fit": fits}
    return {
        **summary,
        **fit,
        "counts": {
            **new,
            **counts,
            KEPT_WITH_AUDIO: (old.get(KEPT_WITH_AUDIO) or 0) + new[KEPT_WITH_AUDIO],
        },
        "rules": list(rules.values()),
        "kept_s": round(before["kept_s"] + summary["kept_s"], 3),
        CANDIDATES: sorted({*before[CANDIDATES], *summary[CANDIDATES]}),
    }
