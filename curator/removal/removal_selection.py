"""What a removal takes: the clips and sources that a user names, over all snapshots."""

import hashlib
import importlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curator.errors import UsageError, install_extra, one_line
from curator.stages.propose.candidate_store import FOLDER as CANDIDATES
from curator.stages.propose.candidate_store import read_pictures
from curator.storage import Store
from curator.storage.base import has_scheme
from curator.tables.checksums import read_parquet, read_rows
from curator.tables.parts import table_rows
from curator.tables.removal_records import (
    CAPTION_COLUMNS,
    Removals,
    RemovedSpan,
    caption_hash,
    removal_hash,
)

By = Literal["clips", "sources", "where"]
Summaries = Mapping[int, Mapping[str, Any]]
"""Summaries of all snapshots by number."""

_SPAN = ("start_s", "end_s", "start_frame", "end_frame")
_CLIP = ("clip_id", "source_id", *_SPAN, "fps")
_OF_KEPT = ("decision", "shard", "mp4_sha256", "caption")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """What would be removed.

    Attributes:
        record: To be written before anything changes.
        clip_ids: Removed clips that a snapshot keeps in its shards, `seconds` long together.
        n_overlapping: Clips that share footage with named ones and were not named themselves.
        shards: Tars that hold them.
        example: One of them, with its source; None without any.
    """

    record: dict[str, Any]
    clip_ids: frozenset[str]
    n_overlapping: int
    seconds: float
    shards: frozenset[str]
    example: str | None


def select(store: Store, summaries: Summaries, by: By, named: Sequence[str]) -> Selected:
    """Finds what a removal takes.

    `named` are ids of clips; addresses or ids of sources; or a condition over columns of `clips`.

    Raises:
        UsageError: One that is named is in no snapshot, or the condition is wrong.
    """
    columns = None if by == "where" else (*_CLIP, "source_uri", *_OF_KEPT)
    tables = _tables(store, summaries, "clips", columns)
    clips = pa.concat_tables(tables, promote_options="default")
    sources = pa.concat_tables(_tables(store, summaries, "sources", ("uri", "source_id")))
    found = Removals()
    uris: set[str] = set()
    if by == "sources":
        contents, uris = _sources(store, clips, sources, named)
        found = Removals(sources={removal_hash(one): "" for one in contents})
    elif by == "clips":
        known = set(clips["clip_id"].to_pylist())
        for one in named:
            if one not in known:
                raise UsageError(
                    f"{store.uri} has no clip {one!r} in any snapshot; nothing was removed"
                )
    else:
        (condition,) = named
        named = _matching(clips, condition)
    proposed = [clips.select(_CLIP), *_candidates(store)]
    if by != "sources":
        found = _of_clips(pa.concat_tables(proposed), frozenset(named))
    ids: frozenset[str] = frozenset().union(
        *(table.filter(pa.array(found.rows(table)))["clip_id"].to_pylist() for table in proposed)
    )
    gone = Removals(
        sources=found.sources,
        spans=found.spans,
        clip_ids=frozenset(map(removal_hash, ids)),
    )
    uris |= _uris(sources, gone)
    rows = clips.filter(pa.array(gone.rows(clips)))
    kept = rows.filter(pc.equal(rows["decision"], "kept"))
    lengths = {
        row["clip_id"]: row["end_s"] - row["start_s"]
        for row in kept.select(["clip_id", "start_s", "end_s"]).to_pylist()
    }
    first = kept.slice(0, 1).select(["clip_id", "source_uri"]).to_pylist()
    record = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "named_by": by,
        "n_named": len(named),
        "n_clips": len(lengths),
        "n_sources": len(found.sources),
        "sources": sorted(found.sources),
        "uris": sorted(map(removal_hash, uris)),
        "clips": [
            {"source": source, **{name: getattr(span, name) for name in _SPAN}}
            for source, spans in sorted(found.spans.items())
            for span in spans
        ],
        "clip_ids": sorted(gone.clip_ids),
        "mp4": sorted(set(rows["mp4_sha256"].drop_null().to_pylist())),
        "captions": sorted(_captions(store, summaries, clips, gone)),
        "pictures": _pictures(store, ids),
    }
    return Selected(
        record=record,
        clip_ids=frozenset(lengths),
        n_overlapping=len(ids) - len(named) if by != "sources" else 0,
        seconds=sum(lengths.values()),
        shards=frozenset(kept["shard"].drop_null().to_pylist()),
        example=f"{first[0]['clip_id']} of {first[0]['source_uri']}" if first else None,
    )


def _tables(
    store: Store, summaries: Summaries, name: str, columns: Sequence[str] | None = None
) -> list[pa.Table]:
    """Reads the parts of a table of all snapshots, each once."""
    parts = dict.fromkeys(p for one in summaries.values() for p in one["tables"].get(name, ()))
    return [read_parquet(store, part, columns) for part in parts]


def _candidates(store: Store) -> Iterator[pa.Table]:
    """Reads all stored candidates, of any recipe."""
    read = partial(pq.ParquetFile.read, columns=list(_CLIP))
    for info in store.list(f"{CANDIDATES}/clips/"):
        yield read_rows(store, info.key, read)


def _sources(
    store: Store, clips: pa.Table, sources: pa.Table, named: Sequence[str]
) -> tuple[set[str], set[str]]:
    """Returns the ids of named sources, and addresses that never had one."""
    pairs = set(zip(sources["uri"].to_pylist(), sources["source_id"].to_pylist(), strict=True))
    pairs |= set(zip(clips["source_uri"].to_pylist(), clips["source_id"].to_pylist(), strict=True))
    of_uri: dict[str, set[str | None]] = {}
    for uri, source_id in pairs:
        of_uri.setdefault(uri, set()).add(source_id)
    known = {source_id for _, source_id in pairs} - {None}
    ids: set[str] = set()
    uris: set[str] = set()
    for one in named:
        path = one if has_scheme(one) else os.path.abspath(one)
        if one in known:
            ids.add(one)
        elif (uri := one if one in of_uri else path) in of_uri:
            ids |= {source_id for source_id in of_uri[uri] if source_id is not None}
            uris.add(uri)
        else:
            raise UsageError(
                f"{store.uri} has no source {one!r} in any snapshot; nothing was removed"
            )
    return ids, {uri for uri in uris if of_uri[uri] <= {None}}


def _uris(sources: pa.Table, gone: Removals) -> set[str]:
    """Returns the addresses that held removed sources and nothing else."""
    is_gone = pa.array(gone.named(sources["source_id"], gone.sources))
    removed = set(sources.filter(is_gone)["uri"].to_pylist())
    others = sources.filter(pc.and_(pc.invert(is_gone), pc.is_valid(sources["source_id"])))
    return removed - set(others["uri"].to_pylist())


def _of_clips(clips: pa.Table, named: Collection[str]) -> Removals:
    """Returns the spans of clips: a written clip may be shorter than the candidate it was."""
    own = clips.filter(pc.is_in(clips["clip_id"], value_set=pa.array(sorted(named), pa.string())))
    wanted = [("start_s", "min"), ("end_s", "max"), ("start_frame", "min"), ("end_frame", "max")]
    spans: dict[str, list[RemovedSpan]] = {}
    for row in (
        own.group_by(["clip_id", "source_id"]).aggregate(wanted).sort_by("clip_id").to_pylist()
    ):
        span = RemovedSpan(**{name: row[f"{name}_{how}"] for name, how in wanted})
        spans.setdefault(removal_hash(row["source_id"]), []).append(span)
    return Removals(
        spans={source: tuple(found) for source, found in spans.items()},
        clip_ids=frozenset(map(removal_hash, named)),
    )


def _matching(clips: pa.Table, condition: str) -> list[str]:
    """Returns the ids of the clips for which a condition holds, in any snapshot."""
    try:
        # Loaded by name: it is an optional package.
        duckdb: Any = importlib.import_module("duckdb")
    except ImportError as error:
        raise UsageError(
            f"--where needs the package duckdb: {install_extra('sql')}; or name what to remove by "
            "--clips or --sources"
        ) from error
    # No condition may open a file, load an extension, or read a variable of this program.
    settings = {
        "enable_external_access": "false",
        "autoload_known_extensions": "false",
        "autoinstall_known_extensions": "false",
        "python_enable_replacements": "false",
        "lock_configuration": "true",
    }
    try:
        with duckdb.connect(":memory:", config=settings) as database:
            database.register("clips", clips)
            statement = f"SELECT DISTINCT clip_id FROM clips WHERE ({condition}\n)"
            if len(database.extract_statements(statement)) != 1:
                raise UsageError(f"--where {condition!r}; expected one condition, without `;`")
            rows = database.execute(statement).fetchall()
    except duckdb.Error as error:
        raise UsageError(
            f"--where {condition!r} fails: {one_line(error)}; expected a condition over columns of "
            "`clips`, such as source_uri LIKE '%/private/%'"
        ) from error
    return sorted(row[0] for row in rows)


def _captions(store: Store, summaries: Summaries, clips: pa.Table, gone: Removals) -> set[str]:
    """Returns hashes of captions that only removed clips have."""
    own: set[str | None] = set()
    others: set[str | None] = set()
    texts = CAPTION_COLUMNS["annotations"]
    annotations = _tables(store, summaries, "annotations", ("clip_id", *texts))
    for table, names in [(clips, CAPTION_COLUMNS["clips"]), *((t, texts) for t in annotations)]:
        is_gone = pa.array(gone.rows(table.select(["clip_id"])))
        for name in names:
            texts = table[name]
            own.update(map(caption_hash, texts.filter(is_gone).unique().drop_null().to_pylist()))
            rest = texts.filter(pc.invert(is_gone)).unique().drop_null()
            others.update(map(caption_hash, rest.to_pylist()))
    return {found for found in own - others if found is not None}


def _pictures(store: Store, ids: Collection[str]) -> list[str]:
    names = [info.key for info in store.list(f"{CANDIDATES}/pictures/")]
    found: set[str] = set()
    for name in names:
        jpegs = read_pictures(store, [name], ids).values()
        found.update(hashlib.sha256(jpeg).hexdigest() for jpeg in jpegs)
    return sorted(found)


def surviving_texts(store: Store, summaries: Summaries) -> Iterator[str]:
    """Yields the captions of all snapshots, each at least once."""
    for name, columns in CAPTION_COLUMNS.items():
        for table in _tables(store, summaries, name, columns):
            for column in columns:
                yield from table[column].unique().drop_null().to_pylist()


def surviving_requests(store: Store, summaries: Summaries) -> set[str]:
    """Returns the keys of the replies that annotations of all snapshots were made of."""
    keys: set[str] = set()
    for table in _tables(store, summaries, "annotations", ("request_keys",)):
        for row in table_rows(table):
            keys.update(row["request_keys"] or ())
    return keys
