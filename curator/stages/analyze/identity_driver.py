"""The driver's side of identity: gives large sources with equal ids but different bytes other ids.

`content_id` reads only samples of files larger than 8 MiB, so different files can get the same id.
If the stored results of an id come from another address or version, or if two listed sources share
an id, the files are hashed completely, once per version. Files with the SHA-256 of the stored
results keep the id. Other files get an id made from their SHA-256. If no results are stored and the
files differ, all of them get such ids, so their order does not matter.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import StorageError
from curator.executor.engine import Placement
from curator.executor.progress import Progress
from curator.executor.unit_worker import stage_step
from curator.fingerprints import fingerprint
from curator.records.sources import Failure, SourceRef
from curator.scheduler import UnitRunner
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.stage import HashStage
from curator.storage import Store
from curator.storage.content_id import full_content_id
from curator.storage.source_reader import is_racy
from curator.tables.family_store import row_keys
from curator.tables.parts import Parts, columns_schema, rows_to_table
from curator.tables.source_table import SourceTable
from curator.tables.track_items import HashItem
from curator.tables.track_parts import track_origins

logger = logging.getLogger(__name__)

INLINE_BYTES = 1 << 30  # the driver hashes up to so many bytes before Ray would have started
HASHES_SCHEMA = columns_schema(("uri version sha256 source_id", pa.string()))
"""A row per version of a source that was hashed completely, with the resulting id."""
_KEY = ("version", "uri")

_Row = Mapping[str, Any]
_Key = tuple[str, str]  # address and version


def hash_parts(store: Store) -> Parts:
    """Returns the parts that store complete hashes of sources."""
    return Parts(store, "hashes", fingerprint("hashes", 1))


def decided_sources(store: Store) -> pa.Table:
    """Returns the rows of `HASHES_SCHEMA` of all runs."""
    parts = hash_parts(store)
    tables = [HASHES_SCHEMA.empty_table()]
    for name in parts.names():
        try:
            tables.append(parts.read(name))
        except StorageError as error:
            logger.warning("%s; large sources may be hashed again", error)
    return pa.concat_tables(tables)


class Identifying:
    """Checks the ids of large sources, and replaces the ids of sources with other content.

    `sources` are the sources of the run after the scan. `previous` is the summary of the last
    finished run. `since_ns` is the Unix time before the listing.
    """

    def __init__(
        self,
        store: Store,
        config: AnalyzeConfig,
        runner: UnitRunner,
        progress: Progress,
        *,
        sources: SourceTable,
        previous: Mapping[str, Any],
        since_ns: int,
    ) -> None:
        self._store, self._config, self._runner = store, config, runner
        self._progress, self._sources = progress, sources
        self._previous, self._since_ns = previous, since_ns

    def run(self) -> None:
        """Checks the ids; revises the table of sources."""
        listed = self._sources.sampled()
        if not listed.num_rows:
            return
        decided = decided_sources(self._store)
        if decided.num_rows:
            place = pc.index_in(row_keys(listed, _KEY), value_set=row_keys(decided, _KEY))
            ids = decided["source_id"].take(place)
            given = listed.set_column(listed.schema.get_field_index("source_id"), "source_id", ids)
            self._sources.revise(
                given.filter(pc.is_valid(ids)).select(["uri", "source_id"]).to_pylist()
            )
            listed = listed.filter(pc.is_null(place))
        unknown = listed.filter(pc.invert(self._is_known(listed)))
        ids = set(unknown["source_id"].to_pylist())
        if not ids:
            return
        members = listed.filter(pc.is_in(listed["source_id"], value_set=pa.array(sorted(ids))))
        self._decide(members.to_pylist(), self._stored(ids, decided))

    def _is_known(self, listed: pa.Table) -> pa.Array:
        """Returns which sources the last run had with this version and id, except racy files."""
        is_known = pa.array([False] * listed.num_rows, pa.bool_())
        since_ns = self._previous.get("listed_ns")
        if since_ns is None:
            return is_known
        columns = ("uri", "version", "source_id")
        keys = row_keys(listed, columns)
        for before in self._last_sources(columns):
            is_known = pc.or_(is_known, pc.is_in(keys, value_set=row_keys(before, columns)))
        rows = zip(listed["uri"].to_pylist(), listed["version"].to_pylist(), strict=True)
        racy = pa.array([is_racy(uri, version, since_ns) for uri, version in rows], pa.bool_())
        return pc.and_not(is_known, racy)

    def _stored(self, ids: set[str], decided: pa.Table) -> Iterator[_Row]:
        """Yields source id, SHA-256, address and version of the stored results of some ids."""
        wanted = pa.array(sorted(ids))
        columns = ("source_id", "sha256", "uri", "version")
        yield from decided.filter(pc.is_in(decided["source_id"], value_set=wanted)).to_pylist()
        yield from track_origins(self._store, ids)
        since_ns = self._previous.get("listed_ns")
        for before in self._last_sources(columns):
            before = before.filter(pc.is_in(before["source_id"], value_set=wanted))
            for row in before.filter(pc.is_valid(before["sha256"])).to_pylist():
                # The version proves nothing if the file may have changed without a new version.
                is_sure = since_ns and not is_racy(row["uri"], row["version"], since_ns)
                yield row if is_sure else row | {"version": None}

    def _last_sources(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        for name in self._previous.get("tables", {}).get("sources", ()):
            try:
                yield Parts(self._store, "sources", "").read(name, columns)
            except StorageError as error:
                logger.warning("%s; large sources in this table may be hashed again", error)

    def _decide(self, members: Sequence[_Row], stored: Iterable[_Row]) -> None:
        stands_for: defaultdict[str, set[str]] = defaultdict(set)
        contents: dict[_Key, str] = {}
        for row in stored:
            # A failed source has no SHA-256, and equals no other source.
            content = row["sha256"] or f"{row['version']} {row['uri']}"
            stands_for[row["source_id"]].add(content)
            if row["version"] is not None:
                contents[_key(row)] = content
        n_members = Counter(row["source_id"] for row in members)
        suspects = [
            row
            for row in members
            if (row["source_id"] in stands_for or n_members[row["source_id"]] > 1)
            and stands_for.get(row["source_id"]) != {contents.get(_key(row))}
        ]
        if suspects:
            self._revise(suspects, self._hashed(suspects), stands_for)

    def _revise(
        self,
        suspects: Sequence[_Row],
        hashed: Mapping[_Key, str | Failure],
        stands_for: Mapping[str, set[str]],
    ) -> None:
        read = [(row, content) for row in suspects if isinstance(content := hashed[_key(row)], str)]
        contents: defaultdict[str, set[str]] = defaultdict(set)
        for row, content in read:
            contents[row["source_id"]].add(content)
        revised: list[dict[str, Any]] = []
        decided: list[dict[str, Any]] = []
        for row, content in read:
            own, source_id = {"uri": row["uri"]}, row["source_id"]
            if stands_for.get(source_id, contents[source_id]) != {content}:
                source_id = full_content_id(content)
                revised.append(own | {"source_id": source_id})
            if not is_racy(row["uri"], row["version"], self._since_ns):
                facts = {"version": row["version"], "sha256": content, "source_id": source_id}
                decided.append(own | facts)
        failed = [
            {"uri": row["uri"], "source_id": None, "outcome": "failed"} | failure.columns()
            for row in suspects
            if isinstance(failure := hashed[_key(row)], Failure)
        ]
        self._sources.revise(revised)
        self._sources.revise(failed)
        if decided:
            table = rows_to_table(decided, HASHES_SCHEMA)
            hash_parts(self._store).write(table, row_keys(table, _KEY).to_pylist())

    def _hashed(self, rows: Sequence[_Row]) -> dict[_Key, str | Failure]:
        """Returns the SHA-256 of complete sources, or failures to read them."""
        items = [
            HashItem(source=SourceRef(uri=row["uri"], n_bytes=row["bytes"], version=row["version"]))
            for row in rows
        ]
        step = stage_step(HashStage(self._config))
        self._progress.stage("hash")
        is_small = sum(item.source.n_bytes for item in items) <= INLINE_BYTES
        placement: Placement = "driver" if is_small else "ray"
        units = [[item] for item in items]
        return {
            (source.uri, source.version): content
            for ((source, content),) in self._runner.run([step], units, placement=placement)
        }


def _key(row: _Row) -> _Key:
    return row["uri"], row["version"]
