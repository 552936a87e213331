"""Counts the stored candidates that a run would keep by its rules, copy, encode or reuse."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.dataset.output_form import as_written
from curator.errors import ModelError
from curator.measures.filtering import corpus_of, filter_table
from curator.measures.rules import resolve
from curator.number_text import amount
from curator.pipeline import Graph, filter_needs, graph_of
from curator.recipe import Recipe, measures_of
from curator.runs.annotating import decide_by_stored
from curator.runs.marked_clips import honoured_marks
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.output_format import existing
from curator.tables.parts import with_column
from curator.tables.schemas import clips_schema
from curator.trainers.clip_fit import fit_of_each
from curator.trainers.fit_words import fit_lines

_COVERAGE = "audio_coverage"
_UPRIGHT = {"rotation_deg": 0, "pixel_aspect": "1", "is_interlaced": False, "is_hdr": False,
            "codec": "h264", "pixel_format": "yuv420p"}  # fmt: skip
"""Columns of `sources` that all sources of copies have in common."""


def clip_lines(
    store: Store,
    recipe: Recipe,
    previous: Mapping[str, Any],
    sources: Mapping[str, Mapping[str, Any]],
    usable: Collection[str],
) -> Iterator[str]:
    """Yields a line about the stored candidates of the sources with ids in `usable`.

    `sources` are rows of the last run, by address. Marks, duplicates, selection, and rules on
    scores that are not stored with candidates (metadata, a learned score) count as passed.
    """
    graph = graph_of(recipe)
    try:
        fingerprints = graph.fingerprints()
    except ModelError:
        return
    clips = _candidates(store, fingerprints[graph.writer("candidates").name], usable)
    if clips is None:
        return
    clips = as_written(clips, recipe.cut, recipe.shard)
    rules = {
        name: rule
        for name, rule in recipe.filters.root.items()
        if (rule.score or name) in clips.column_names
    }
    needs = filter_needs(recipe)
    bounds = resolve(rules, corpus_of(clips, needs), measures=measures_of(recipe))
    decided = filter_table(clips, bounds, needs).clips
    kept = decided.filter(pc.equal(decided["decision"], "kept"))
    columns = None if graph.annotators() else ("clip_id", "decision", "cut_fingerprint")
    written = _written(store, previous, graph["cut"].fingerprint({}), columns)
    ids = written["clip_id"].combine_chunks()
    todo = kept.filter(pc.invert(pc.is_in(kept["clip_id"], value_set=ids)))
    n_copied = pc.sum(_may_be_copied(todo, recipe, sources, has_pixels=bool(graph["cut"].pixels)))
    n_copied = n_copied.as_py() or 0
    rejected = _rejected(Counter(decided["reason"].drop_null().to_pylist()))
    yield (
        f"{amount(clips.num_rows, 'stored candidate clip')}: the rules keep {kept.num_rows:,}"
        f"{rejected}"
    )
    yield (
        f"{todo.num_rows - n_copied:,} of them to encode, {n_copied:,} to copy where key frames "
        f"allow it, {kept.num_rows - todo.num_rows:,} written already; before duplicates and "
        "selection"
    )
    if graph.annotators():
        there = pc.is_in(written["clip_id"], value_set=kept["clip_id"].combine_chunks())
        there = written.filter(there)
        yield from _value_lines(store, recipe, graph, previous, there, todo.num_rows)
    fits = fit_of_each(
        recipe.model_dump(mode="json")["train_for"], lambda: [_as_read(kept, recipe)]
    )
    yield from fit_lines({"fit": fits}, "OUT")


def _as_read(clips: pa.Table, recipe: Recipe) -> pa.Table:
    """Returns clips with sound as they would be written, and with captions, which are unknown."""
    n_clips, audio = clips.num_rows, pa.array([None] * clips.num_rows, pa.string())
    if recipe.cut.audio != "drop":
        is_heard: Any = pa.array([True] * n_clips)
        if _COVERAGE in clips.column_names:
            is_heard = pc.greater(clips[_COVERAGE], 0).combine_chunks()
        audio = pc.if_else(pc.fill_null(is_heard, False), recipe.cut.audio, "none")
    captions = pa.array(["caption"] * n_clips)
    named = {"audio": audio, "caption": captions}
    for name, column in named.items():
        if name in clips.column_names:
            clips = clips.drop_columns(name)
        clips = clips.append_column(name, column)
    return clips


def _candidates(store: Store, fingerprint: str, usable: Collection[str]) -> pa.Table | None:
    """Returns the stored candidates of sources, each clip once; None if there are none."""
    prefix = f"candidates/clips/{fingerprint}-"
    names = sorted(i.key for i in store.list("candidates/clips/") if i.key.startswith(prefix))
    if not names:
        return None
    table = pa.concat_tables([read_parquet(store, name) for name in names])
    table = table.filter(pc.is_in(table["source_id"], value_set=pa.array(usable, pa.string())))
    rows = pa.array(range(table.num_rows), pa.int64())
    first = table.append_column("row", rows).group_by("clip_id").aggregate([("row", "min")])
    return table.take(first["row_min"].sort()) if table.num_rows else None


def _value_lines(
    store: Store,
    recipe: Recipe,
    graph: Graph,
    previous: Mapping[str, Any],
    written: pa.Table,
    n_new: int,
) -> Iterator[str]:
    """Yields what rules on columns decide by stored values, and the values to compute.

    `n_new` clips are not written yet.
    """
    marks = honoured_marks(store, recipe).items()
    marked = [clip_id for clip_id, mark in marks if mark.verdict == "keep"]
    decided = decide_by_stored(store, graph, previous, written, marked)
    n_without = decided.n_undecided + n_new
    if graph.column_filter() is not None:
        yield (
            f"the rules on columns of annotators, by stored values, keep {decided.n_kept:,}"
            f"{_rejected(decided.reasons)}; {amount(n_without, 'clip')} without such a value yet"
        )
    parts = [
        f"{name} of at most {amount(written.num_rows + n_new, 'clip')}"
        if n is None
        else f"{name} of {amount(n + n_new, 'clip')}"
        for name, n in decided.n_missing.items()
    ]
    rules = graph.column_filter() is not None and n_without
    end = ", and before rules on the columns to compute" if rules else ""
    yield f"annotators to compute: {', '.join(parts)}; before duplicates and selection{end}"


def _rejected(reasons: Mapping[str, int]) -> str:
    """Returns how many clips are rejected, by reason; empty for none."""
    if not reasons:
        return ""
    by_reason = Counter(reasons).most_common()
    named = ", ".join(f"{n:,} {reason}" for reason, n in by_reason)
    return f" and reject {sum(reasons.values()):,} ({named})"


def _written(
    store: Store,
    previous: Mapping[str, Any],
    fingerprint: str,
    columns: Sequence[str] | None,
) -> pa.Table:
    """Returns the clips that the last run wrote with the present settings, each as kept."""
    tables = [read_parquet(store, name, columns) for name in existing(store, previous, "clips")]
    if not tables:
        return clips_schema(()).empty_table()
    table = pa.concat_tables(tables)
    table = table.filter(pc.equal(table["cut_fingerprint"], fingerprint))
    return with_column(table, "decision", pa.chunked_array([pa.repeat("kept", table.num_rows)]))


def _may_be_copied(
    clips: pa.Table,
    recipe: Recipe,
    sources: Mapping[str, Mapping[str, Any]],
    *,
    has_pixels: bool,
) -> pa.ChunkedArray:
    """Returns the mask of clips whose source and form a copy could have."""
    is_fit = {
        row["source_id"]
        for row in sources.values()
        if all(row[name] == value for name, value in _UPRIGHT.items())
    }
    if recipe.cut.mode == "encode" or has_pixels:
        is_fit = set()
    mask = pc.is_in(clips["source_id"], value_set=pa.array(sorted(is_fit), pa.string()))
    mask = pc.and_(mask, pc.and_(pc.invert(clips["is_vfr"]), pc.is_null(clips["crop_x"])))
    for name, same in (("scale_factor", 1.0), ("cropped_share", 0.0), ("rate_factor", 1.0)):
        if name in clips.column_names:
            # Null where the recipe sets no size or rate.
            mask = pc.and_(mask, pc.fill_null(pc.equal(clips[name], same), True))
    return mask
