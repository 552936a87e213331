"""Finds clips that a run would take out of the shards; logs them, and refuses without `replace`.

What the shards hold comes from the tables of the last finished run, or, where its summary is lost,
from `shards/dataset.parquet`. A source counts as still there if its content is in the run, under
any address.
"""

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import StorageError, UsageError
from curator.number_text import amount, length
from curator.records.clips import Reason
from curator.stages.shard.shard_index import DATASET
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.clip_rows import ClipRows
from curator.tables.out_layout import MANIFEST, SHARDS
from curator.tables.parts import columns_schema
from curator.tables.source_table import SourceTable

logger = logging.getLogger(__name__)

_MAX_REPAIRED = 0.1
"""Share of the clips in the shards that may be lost without `replace` because their sources have
other content now: repairing a few files is normal work."""
_INDEXES = (f"{SHARDS}/{DATASET}", MANIFEST)
_SHARD_CLIPS_SCHEMA = columns_schema(
    ("clip_id source_id source_uri", pa.string()), ("seconds", pa.float64())
)

Contents = Callable[[Sequence[str]], Mapping[str, str | None]]
"""Gives the content id of those of the URIs that are in a run; None of one that cannot be read."""


class Why(StrEnum):
    """Why clips leave the shards, in words for people."""

    NOT_NAMED = "whose sources are not in this run"
    REPLACED = "whose sources have other content now"
    UNREADABLE = "whose sources cannot be read"
    CUT_FAILED = "which could not be cut again"
    STAGE_FAILED = "on which a stage failed"
    RECIPE = "which the recipe or a mark does not keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedClips:
    """Clips that leave the shards for one reason: `cause` says what failed, if anything did."""

    why: Why
    clips: pa.Table
    cause: str = ""

    def __str__(self) -> str:
        n_sources = pc.count_distinct(self.clips["source_id"]).as_py()
        seconds, example = pc.sum(self.clips["seconds"]), pc.min(self.clips["source_uri"])
        cause = f" ({self.cause})" if self.cause else ""
        return (
            f"{amount(self.clips.num_rows, 'clip')} ({length(seconds.as_py())} of "
            f"{amount(n_sources, 'source')}, such as {example}) {self.why}{cause}"
        )


class DropCheck:
    """Compares what the shards hold with what a run is about to keep.

    Args:
        store: Output root.
        previous: Summary of the last finished run; empty without one.
        replace: Whether the user allows all clips to be dropped.
        unlisted: Addresses that could not be listed or read.
    """

    def __init__(
        self, store: Store, previous: Mapping[str, Any], *, replace: bool, unlisted: Sequence[str]
    ) -> None:
        self._store, self._previous = store, previous
        self._replace, self._unlisted = replace, unlisted
        self._n_in_shards = 0
        """Clips in the shards."""
        self._accepted = pa.chunked_array([], pa.string())
        """Contents whose loss was allowed after the scan."""

    def after_scan(self, sources: SourceTable) -> None:
        """Logs clips whose content is not in a run; raises `UsageError` if they must stay."""
        missing = self.missing(sources.contents())
        self._accepted = missing["source_id"]
        self._judge(by_source(missing, sources.contents_of), sources)

    def refuse_unread(self, sources: SourceTable) -> None:
        """Raises `UsageError` for a run whose misnamed sources add nothing to a finished one."""
        if not len(sources.contents()) and self._shard_clips.num_rows:
            first = f" (the first: {sources.first_error()})" if len(sources) else ""
            raise UsageError(
                f"no source of {len(sources)} can be read{first}; nothing was changed in "
                f"{self._store.uri}: name sources that can be read"
            )

    def before_shard(
        self,
        sources: SourceTable,
        clips: ClipRows,
        generation: int | None = None,
        failures: Collection[str] = (),
    ) -> None:
        """Logs what else is lost once clips are cut; raises `UsageError` if it must stay.

        `clips` are those of one generation, or of all. `failures` are the reasons that say that an
        annotator failed.
        """
        if not self._n_in_shards:
            return
        is_kept = pc.equal(clips.column("decision"), "kept")
        in_shards = self._shard_clips
        if generation is not None:
            contents = sources.by_content()
            source_ids = contents.filter(pc.equal(contents["generation"], generation))["source_id"]
            in_shards = in_shards.filter(
                pc.is_in(in_shards["source_id"], value_set=source_ids.combine_chunks())
            )
        gone = _without(in_shards, "clip_id", clips.column("clip_id").filter(is_kept))
        gone = _without(gone, "source_id", self._accepted)
        failed = _without(gone, "source_id", sources.contents())
        gone = _without(gone, "source_id", failed["source_id"])
        dropped = by_source(failed, sources.contents_of)
        reasons = {Why.CUT_FAILED: [str(Reason.CUT_FAILED)], Why.STAGE_FAILED: sorted(failures)}
        for why, names in reasons.items():
            is_failed = pc.is_in(clips.column("reason"), value_set=pa.array(names, pa.string()))
            rest = _without(gone, "clip_id", clips.column("clip_id").filter(is_failed))
            causes = clips.column("reason_detail").filter(is_failed).slice(0, 1).drop_null()
            lost = _without(gone, "clip_id", rest["clip_id"])
            dropped.append(DroppedClips(why=why, clips=lost, cause="".join(causes.to_pylist())))
            gone = rest
        dropped.append(DroppedClips(why=Why.RECIPE, clips=gone))
        self._judge([lost for lost in dropped if lost.clips.num_rows], sources)

    def missing(self, contents: pa.ChunkedArray, unread: Sequence[str] = ()) -> pa.Table:
        """Returns the clips in the shards whose content is not in a run.

        Clips of `unread` addresses, whose content is not known, are left out.

        Raises:
            UsageError: What the shards hold cannot be known, and the run may not replace it.
        """
        in_shards = self._shard_clips
        self._n_in_shards = in_shards.num_rows
        missing = _without(in_shards, "source_id", contents)
        return _without(missing, "source_uri", pa.chunked_array([unread], pa.string()))

    def problem(self, dropped: Sequence[DroppedClips]) -> str | None:
        """Says why a run may not go on, and what to do; None if it may."""
        dropped = [lost for lost in dropped if lost.why is not Why.RECIPE]
        if not dropped:
            return None
        n_lost = sum(lost.clips.num_rows for lost in dropped)
        is_repair = all(clips.why in (Why.REPLACED, Why.STAGE_FAILED) for clips in dropped)
        folder = next((uri for uri in self._unlisted if os.path.isdir(uri)), None)
        if self._replace and folder is not None:
            remedy = (
                f"nothing is removed while a part of the sources cannot be listed: make {folder} "
                "readable, or leave it out of SOURCE"
            )
        elif self._replace or (is_repair and n_lost <= _MAX_REPAIRED * self._n_in_shards):
            return None
        else:
            failed = [clips for clips in dropped if clips.why in (Why.CUT_FAILED, Why.STAGE_FAILED)]
            mend = "mend what failed" if failed else ""
            if len(failed) < len(dropped):
                mend = f"{mend} and mend what is wrong with the sources".removeprefix(" and ")
            remedy = f"{mend}, or name another OUT; if the clips are to be removed, add --replace"
        return (
            f"{n_lost} of {amount(self._n_in_shards, 'clip')} would leave the shards of "
            f"{self._store.uri}: {'; '.join(map(str, dropped))}; nothing was removed, and all work "
            f"is kept; {remedy}"
        )

    def _judge(self, dropped: Sequence[DroppedClips], sources: SourceTable) -> None:
        problem = self.problem(dropped)
        if problem is not None:
            if not len(sources.contents()):
                problem = (
                    f"no source of {len(sources)} was analyzed (the first: "
                    f"{sources.first_error()}); {problem}"
                )
            raise UsageError(problem)
        for lost in dropped:
            logger.warning("clips leave the shards of %s: %s", self._store.uri, lost)

    @cached_property
    def _shard_clips(self) -> pa.Table:
        """The clips whose tars exist, with `_SHARD_CLIPS_SCHEMA`; about 150 bytes each."""
        tars = pa.array(
            [info.key for info in self._store.list(f"{SHARDS}/") if info.key.endswith(".tar")],
            pa.string(),
        )
        parts = self._previous.get("tables", {}).get("clips")
        if not len(tars) or (parts is None and not any(map(self._store.exists, _INDEXES))):
            # Tars that no index names are those of a first run that was broken off.
            return _SHARD_CLIPS_SCHEMA.empty_table()
        names = ["clip_id", "source_id", "source_uri", "shard"]
        if parts is not None:
            with suppress(StorageError, pa.ArrowException, OSError):
                tables = [
                    read_parquet(self._store, part, [*names, "start_s", "end_s", "decision"])
                    for part in parts
                ]
                table = pa.concat_tables(tables)
                table = table.filter(pc.equal(table["decision"], "kept"))
                seconds = pc.subtract(table["end_s"], table["start_s"])
                return _rows_in_tars(table, table["shard"], seconds, tars)
        try:
            table = read_parquet(self._store, _INDEXES[0], [*names, "duration"])
            shards = pc.binary_join_element_wise(SHARDS, table["shard"], "/")
            return _rows_in_tars(table, shards, table["duration"], tars)
        except (StorageError, pa.ArrowException, OSError) as error:
            if self._replace:
                return _SHARD_CLIPS_SCHEMA.empty_table()
            raise UsageError(
                f"{self._store.uri}/{SHARDS} has {len(tars)} tars, and neither the tables of the "
                f"run that wrote them nor {_INDEXES[0]} can be read ({error}), so it is unknown "
                "which of their clips this run would remove: name another OUT, or add --replace to "
                "keep the clips of this run alone"
            ) from error


def by_source(missing: pa.Table, contents_of: Contents) -> list[DroppedClips]:
    """Sorts clips from `DropCheck.missing` by what became of their sources.

    `contents_of` says what addresses of the run hold.
    """
    sources = missing.group_by(["source_uri", "source_id"]).aggregate([])
    uris, ids = (sources[name].to_pylist() for name in ("source_uri", "source_id"))
    content_ids = contents_of(uris)

    def why(uri: str, source_id: str) -> Why:
        if uri not in content_ids:
            return Why.NOT_NAMED
        return Why.UNREADABLE if content_ids[uri] in (None, source_id) else Why.REPLACED

    whys = pa.array(list(map(why, uris, ids)), pa.string())
    dropped = []
    for reason in (Why.NOT_NAMED, Why.REPLACED, Why.UNREADABLE):
        wanted = sources.filter(pc.equal(whys, str(reason)))
        clips = missing.join(wanted, ["source_uri", "source_id"], join_type="inner")
        if clips.num_rows:
            dropped.append(DroppedClips(why=reason, clips=clips))
    return dropped


def _rows_in_tars(
    table: pa.Table, shards: pa.ChunkedArray, seconds: pa.ChunkedArray, tars: pa.Array
) -> pa.Table:
    """Returns rows of `_SHARD_CLIPS_SCHEMA` of the clips in `tars`."""
    in_shards = table.select(_SHARD_CLIPS_SCHEMA.names[:3]).append_column("seconds", seconds)
    return in_shards.filter(pc.is_in(shards, value_set=tars)).cast(_SHARD_CLIPS_SCHEMA)


def _without(table: pa.Table, column: str, values: pa.ChunkedArray) -> pa.Table:
    return table.filter(pc.invert(pc.is_in(table[column], value_set=values.combine_chunks())))
