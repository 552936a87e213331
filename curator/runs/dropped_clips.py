"""Finds clips that a run would drop from the shards, logs them, and refuses without `replace`.

The tables of the last finished run list the clips in the shards. If its summary is lost,
`shards/dataset.parquet` lists them. A source is still there if the run has its content, under any
address.
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

from curator.dataset.shard_index import DATASET
from curator.errors import NothingReadableError, StorageError, UsageError
from curator.number_text import amount, length
from curator.records.clips import Reason
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.clip_rows import ClipRows
from curator.tables.out_layout import MANIFEST, SHARDS, find_unlisted
from curator.tables.parts import columns_schema
from curator.tables.source_table import SourceTable

logger = logging.getLogger(__name__)

_MAX_REPAIRED = 0.1
"""Share of the clips in the shards that a run may drop without `replace` because their sources have
other content, or because a stage failed. Users often replace a few files."""
_INDEXES = (f"{SHARDS}/{DATASET}", MANIFEST)
_SHARD_CLIPS_SCHEMA = columns_schema(
    ("clip_id source_id source_uri", pa.string()), ("seconds", pa.float64())
)

Contents = Callable[[Sequence[str]], Mapping[str, str | None]]
"""Returns content ids by URI, for those URIs that are in a run; None if a source is unreadable."""


class Why(StrEnum):
    """Reasons why clips leave the shards, as messages name them."""

    NOT_NAMED = "from sources that are not in this run"
    REPLACED = "from sources with other content now"
    UNREADABLE = "from sources that cannot be read or analyzed"
    CUT_FAILED = "that could not be cut again"
    STAGE_FAILED = "for which a stage failed"
    RIGHTS = "from sources that rights of the recipe refuses"
    NOT_MADE = "that the recipe makes no longer"
    RECIPE = "that the recipe or a mark rejects"


_ON_PURPOSE = (Why.NOT_MADE, Why.RECIPE, Why.RIGHTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedClips:
    """Clips that leave the shards for one reason; `cause` is the first error, if there is any."""

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
    """Compares the clips in the shards with the clips that a run is about to keep.

    Args:
        store: Output root.
        previous: Summary of the last finished run; empty without one.
        replace: Whether the user allows the run to drop any clips.
        unlisted: Addresses that could not be listed or read.
    """

    def __init__(
        self, store: Store, previous: Mapping[str, Any], *, replace: bool, unlisted: Sequence[str]
    ) -> None:
        self._store, self._previous = store, previous
        self._replace, self._unlisted = replace, unlisted
        self._n_in_shards = 0
        self._accepted = pa.chunked_array([], pa.string())
        """Contents that the check after the scan allowed to drop."""

    def after_scan(self, sources: SourceTable) -> None:
        """Logs clips of contents outside the run; raises `UsageError` if these clips must stay."""
        missing = self.missing(sources.contents())
        self._accepted = missing["source_id"]
        self._check(by_source(missing, sources.contents_of, sources.refused()), sources)

    def refuse_unread(self, sources: SourceTable) -> None:
        """Raises `NothingReadableError` if no source can be read, and OUT has clips."""
        if not len(sources.contents()) and self._shard_clips.num_rows:
            first = f" (the first: {sources.first_error()})" if len(sources) else ""
            raise NothingReadableError(
                f"no source of {len(sources)} can be read{first}; the run changed nothing in "
                f"{self._store.uri}: name sources that can be read"
            )

    def before_shard(
        self,
        sources: SourceTable,
        clips: ClipRows,
        generation: int | None = None,
        failures: Collection[str] = (),
    ) -> None:
        """Logs other clips that the run drops after the cut; raises `UsageError` if they must stay.

        `clips` are the clips of `generation`, or of all generations. `failures` are the reasons
        that mean that an annotator failed.
        """
        if not self._n_in_shards:
            return
        is_kept = pc.equal(clips.column("decision"), "kept")
        in_shards = self._shard_clips
        if generation is not None:
            contents = sources.by_content()
            source_ids = contents.filter(pc.equal(contents["generation"], generation))["source_id"]
            in_shards = in_shards.filter(pc.is_in(in_shards["source_id"], value_set=source_ids))
        gone = _without(in_shards, "clip_id", clips.column("clip_id").filter(is_kept))
        gone = _without(gone, "source_id", self._accepted)
        failed = _without(gone, "source_id", sources.contents())
        gone = _without(gone, "source_id", failed["source_id"])
        dropped = by_source(failed, sources.contents_of, sources.refused())
        reasons = {Why.CUT_FAILED: [str(Reason.CUT_FAILED)], Why.STAGE_FAILED: sorted(failures)}
        for why, names in reasons.items():
            is_failed = pc.is_in(clips.column("reason"), value_set=pa.array(names, pa.string()))
            rest = _without(gone, "clip_id", clips.column("clip_id").filter(is_failed))
            causes = clips.column("reason_detail").filter(is_failed).slice(0, 1).drop_null()
            lost = _without(gone, "clip_id", rest["clip_id"])
            dropped.append(DroppedClips(why=why, clips=lost, cause="".join(causes.to_pylist())))
            gone = rest
        not_made = _without(gone, "clip_id", clips.column("clip_id"))
        rejected = _without(gone, "clip_id", not_made["clip_id"])
        dropped.append(DroppedClips(why=Why.NOT_MADE, clips=not_made))
        dropped.append(DroppedClips(why=Why.RECIPE, clips=rejected))
        self._check([lost for lost in dropped if lost.clips.num_rows], sources)

    def missing(self, contents: pa.ChunkedArray, unread: Sequence[str] = ()) -> pa.Table:
        """Returns the clips in the shards from contents outside the run.

        Leaves out clips of `unread` addresses, because their content is unknown.

        Raises:
            UsageError: No table lists the clips in the shards, and `replace` is False.
        """
        in_shards = self._shard_clips
        self._n_in_shards = in_shards.num_rows
        missing = _without(in_shards, "source_id", contents)
        return _without(missing, "source_uri", pa.chunked_array([unread], pa.string()))

    def problem(self, dropped: Sequence[DroppedClips]) -> str | None:
        """Returns why the run must stop, and a remedy; None if it may continue."""
        dropped = [lost for lost in dropped if lost.why not in _ON_PURPOSE]
        if not dropped:
            return None
        n_lost = sum(lost.clips.num_rows for lost in dropped)
        is_repair = all(clips.why in (Why.REPLACED, Why.STAGE_FAILED) for clips in dropped)
        folder = next((uri for uri in self._unlisted if os.path.isdir(uri)), None)
        if self._replace and folder is not None:
            remedy = (
                f"a run removes nothing while it cannot list all sources: make {folder} readable, "
                "or leave it out of SOURCE"
            )
        elif self._replace or (is_repair and n_lost <= _MAX_REPAIRED * self._n_in_shards):
            return None
        else:
            failed = [clips for clips in dropped if clips.why in (Why.CUT_FAILED, Why.STAGE_FAILED)]
            repair = "fix the failure" if failed else ""
            if len(failed) < len(dropped):
                repair = f"{repair} and repair the sources".removeprefix(" and ")
            remedy = f"{repair}, or name another OUT; to remove the clips, add --replace"
        if missing := self._missing_tars():
            remedy = (
                f"restore the missing tars ({amount(len(missing), 'tar')}, such as {missing[0]}), "
                f"or {remedy}"
            )
        return (
            f"{n_lost} of {amount(self._n_in_shards, 'clip')} would leave the shards of "
            f"{self._store.uri}: {'; '.join(map(str, dropped))}; the run removed nothing, and kept "
            f"its work; {remedy}"
        )

    def _check(self, dropped: Sequence[DroppedClips], sources: SourceTable) -> None:
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
        """Rows of `_SHARD_CLIPS_SCHEMA` for the clips of the newest snapshot, about 150 bytes each.

        Clips count even if their tar is missing: it may be lost, or only out of reach.
        """
        parts = self._previous.get("tables", {}).get("clips")
        if parts is None and not any(map(self._store.exists, _INDEXES)):
            # Tars without an index come from a first run that did not finish.
            return _SHARD_CLIPS_SCHEMA.empty_table()
        names = _SHARD_CLIPS_SCHEMA.names[:3]
        if parts is not None:
            with suppress(StorageError, pa.ArrowException, OSError):
                tables = [
                    read_parquet(self._store, part, [*names, "start_s", "end_s", "decision"])
                    for part in parts
                ]
                table = pa.concat_tables(tables)
                table = table.filter(pc.equal(table["decision"], "kept"))
                return _with_seconds(table, pc.subtract(table["end_s"], table["start_s"]))
        try:
            table = read_parquet(self._store, _INDEXES[0], [*names, "duration"])
            return _with_seconds(table, table["duration"])
        except (StorageError, pa.ArrowException, OSError) as error:
            if self._replace:
                return _SHARD_CLIPS_SCHEMA.empty_table()
            raise UsageError(
                f"neither the tables of the last run into {self._store.uri} nor {_INDEXES[0]} can "
                f"be read ({error}), so nothing says which clips this run would remove: name "
                "another OUT, or add --replace to keep only the clips of this run"
            ) from error

    def _missing_tars(self) -> list[str]:
        """Returns the tars of the newest snapshot that do not exist."""
        tars = [shard["name"] for shard in self._previous.get("shards", ())]
        there = {info.key for info in self._store.list(f"{SHARDS}/")}
        there |= find_unlisted(self._store, tars, there).keys()
        return [tar for tar in tars if tar not in there]


def by_source(
    missing: pa.Table, contents_of: Contents, refused: Collection[str]
) -> list[DroppedClips]:
    """Groups clips from `DropCheck.missing` by the reason why their sources are missing.

    `contents_of` returns the contents of addresses in the run, and `refused` has the addresses that
    the section `rights` of the recipe refuses.
    """
    sources = missing.group_by(["source_uri", "source_id"]).aggregate([])
    uris, ids = (sources[name].to_pylist() for name in ("source_uri", "source_id"))
    content_ids = contents_of(uris)

    def why(uri: str, source_id: str) -> Why:
        if uri not in content_ids:
            return Why.NOT_NAMED
        if uri in refused:
            return Why.RIGHTS
        return Why.UNREADABLE if content_ids[uri] in (None, source_id) else Why.REPLACED

    whys = pa.array(list(map(why, uris, ids)), pa.string())
    dropped = []
    for reason in (Why.NOT_NAMED, Why.REPLACED, Why.UNREADABLE, Why.RIGHTS):
        wanted = sources.filter(pc.equal(whys, str(reason)))
        clips = missing.join(wanted, ["source_uri", "source_id"], join_type="inner")
        if clips.num_rows:
            dropped.append(DroppedClips(why=reason, clips=clips))
    return dropped


def _with_seconds(table: pa.Table, seconds: pa.ChunkedArray) -> pa.Table:
    """Returns rows of `_SHARD_CLIPS_SCHEMA`."""
    rows = table.select(_SHARD_CLIPS_SCHEMA.names[:3]).append_column("seconds", seconds)
    return rows.cast(_SHARD_CLIPS_SCHEMA)


def _without(table: pa.Table, column: str, values: pa.ChunkedArray) -> pa.Table:
    return table.filter(pc.invert(pc.is_in(table[column], value_set=values)))
