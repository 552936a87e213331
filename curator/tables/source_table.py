"""The sources of a run: a row each in Arrow columns, a few hundred bytes per source.

A row of Python objects takes some 3 KB, and a run may have a million. Rows come in any order and
their measurements later; both are joined and sorted when readers' rows are made, a batch at a time.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.records.sources import Note, Source, SourceRef
from curator.storage.content_id import WHOLE_BYTES
from curator.tables.disk_table import TableBuffer, joined, widened
from curator.tables.parts import ROWS_PER_TABLE_PART, with_column
from curator.tables.schemas import SOURCES_SCHEMA

_FEW_VALUES = frozenset(
    {"container", "codec", "pixel_format", "pixel_aspect", "outcome", "error_stage", "error_code"}
)
_LONG = frozenset({"uri", "error_message"})
"""Columns that may have more than 2 GiB of text together."""
_HEADER = (
    "uri", "bytes", "version", "source_id", "container", "codec", "pixel_format", "width", "height",
    "rotation_deg", "pixel_aspect", "is_vfr", "header_duration_s", "header_n_frames", "has_audio",
    "is_hdr", "generation", "outcome", "error_stage", "error_code", "error_message",
)  # fmt: skip
_MEASURED = (
    "uri", "sha256", "width", "height", "rotation_deg", "pixel_aspect", "duration_s", "n_frames",
    "fps", "is_vfr", "is_hdr", "is_interlaced", "n_decode_errors", "n_shots", "n_clips", "notes",
    "outcome", "error_stage", "error_code", "error_message",
)  # fmt: skip
MEASURED_SCHEMA = pa.schema([SOURCES_SCHEMA.field(name) for name in ("source_id", *_MEASURED)])
"""What analysis finds of a source."""
_OWN = ("uri", "bytes", "version")
"""What sources with the same bytes do not share."""
_REF = (
    "uri", "bytes", "version", "source_id", "header_duration_s", "header_n_frames", "width",
    "height", "codec", "pixel_format",
)  # fmt: skip
_REF_ROWS = 4096
_NO_LEADER = -1

MAX_SHOWN = 24
"""Failed sources of each error code that the report shows."""


class _BufferedColumns(TableBuffer):
    """Some columns of `sources`, in the form in which they are held."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(pa.schema([_held(SOURCES_SCHEMA.field(name)) for name in names]))

    def add(self, table: pa.Table) -> None:
        """Adds rows; missing columns are null."""
        super().add(widened(table, self.schema))

    def whole(self) -> pa.Table:
        """Returns all rows, with one chunk per column."""
        self.pack()
        if len(self._tables) > 1 or any(c.num_chunks > 1 for t in self._tables for c in t.columns):
            self._tables.append(joined(self._tables))
        return self._tables[0] if self._tables else self.schema.empty_table()

    def replace(self, table: pa.Table) -> None:
        """Puts rows in the place of all."""
        self.take()
        super().add(table.combine_chunks())


class SourceTable:
    """The sources of a run; each URI is added once."""

    def __init__(self) -> None:
        self._header = _BufferedColumns(_HEADER)
        self._measured = _BufferedColumns(_MEASURED)
        self._leaders: NDArray[np.int64] | None = None
        self._order: NDArray[np.int64] | None = None
        self.sums = defaultdict[str, float](float)
        """Sources so far that are `done` or `failed`, each content once, and `video_s` of them."""

    def __len__(self) -> int:
        return self._header.n_rows

    def add_probes(self, probes: pa.Table) -> None:
        """Adds sources with their headers, as rows of `SCAN_SCHEMA`."""
        failed = pc.is_valid(probes["error_code"])
        outcome = pc.if_else(failed, "failed", pa.scalar(None, pa.string()))
        self._header.add(probes.append_column("outcome", outcome))
        self.sums["failed"] += pc.sum(failed).as_py() or 0
        self._leaders = self._order = None

    def add_failed(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds sources that failed before a probe: `uri`, what is known, and error columns."""
        schema = pa.schema([SOURCES_SCHEMA.field(name) for name in _HEADER])
        failed = [{**row, "outcome": "failed"} for row in rows]
        self.sums["failed"] += len(failed)
        self._header.add(pa.Table.from_pylist(failed, schema=schema))
        self._leaders = self._order = None

    def carry(self, earlier: pa.Table) -> pa.Table:
        """Adds rows of `sources` whose address and content are not here yet; returns them."""
        header = self._header.whole()
        is_listed = pc.is_in(earlier["uri"].cast(header["uri"].type), value_set=header["uri"])
        ids = header["source_id"].filter(pc.is_null(header["outcome"]))
        is_listed = pc.or_(
            is_listed, pc.is_in(earlier["source_id"], value_set=ids.combine_chunks())
        )
        rows = earlier.filter(pc.invert(is_listed))
        if rows.num_rows:
            self._header.add(with_column(rows, "outcome", pa.nulls(rows.num_rows, pa.string())))
            self._leaders = self._order = None
        return rows

    def measured(self, rows: pa.Table | Iterable[Mapping[str, Any]]) -> None:
        """Adds results of analysis by `uri`, with `outcome`; a later row of the same URI counts."""
        if not isinstance(rows, pa.Table):
            rows = pa.Table.from_pylist(list(rows), schema=MEASURED_SCHEMA)
        self._measured.add(rows)
        for outcome, n_sources in value_counts(rows["outcome"]).items():
            self.sums[outcome] += n_sources
        self.sums["video_s"] += pc.sum(rows["duration_s"]).as_py() or 0.0

    def count_anew(self) -> None:
        """Lets `sums` begin anew, for results that come once more: with what failed before."""
        n_failed = pc.sum(pc.is_valid(self._header.whole()["outcome"])).as_py() or 0
        self.sums.update(done=0, failed=n_failed, video_s=0.0)

    def sampled(self) -> pa.Table:
        """Returns uri, bytes, version and id of the sources whose id is of samples alone."""
        header = self._header.whole()
        is_large = pc.greater(header["bytes"], WHOLE_BYTES)
        usable = pc.and_(pc.is_null(header["outcome"]), pc.is_valid(header["source_id"]))
        columns = ["uri", "bytes", "version", "source_id"]
        return header.filter(pc.fill_null(pc.and_(is_large, usable), False)).select(columns)

    def revise(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replaces facts of sources by `uri`, such as their ids: the same columns in each row."""
        if not rows:
            return
        header = self._header.whole()
        schema = pa.schema([SOURCES_SCHEMA.field(name) for name in rows[0]])
        revised = pa.Table.from_pylist(list(rows), schema=schema)
        place = pc.index_in(header["uri"], value_set=revised["uri"].cast(pa.large_string()))
        is_revised = pc.is_valid(place)
        for field in schema:
            if field.name != "uri":
                old = header[field.name]
                new = revised[field.name].take(place)
                column = pc.if_else(is_revised, new, old.cast(field.type)).cast(old.type)
                header = with_column(header, field.name, column)
        self._header.replace(header)
        self._leaders = self._order = None

    def to_analyze(self, generation: int | None = None) -> Iterator[SourceRef]:
        """Returns sources of a generation, or of all, that have not failed: one of each content."""
        order, leaders = self._sorted()
        first = order[leaders[order] == order]
        if generation is not None:
            numbers = self._header.whole()["generation"].fill_null(0).to_numpy()
            first = first[numbers[first] == generation]
        for start in range(0, len(first), _REF_ROWS):
            yield from self._refs(first[start : start + _REF_ROWS])

    def first_error(self) -> str:
        """Returns the message of the first source that failed; empty for none."""
        for rows in (self._header.whole(), self._measured.whole()):
            messages = rows["error_message"].drop_null()
            if len(messages):
                return str(messages[0])
        return ""

    def contents(self) -> pa.ChunkedArray:
        """Returns the ids of the contents whose sources have not failed, nor their analysis."""
        order, leaders = self._sorted()
        rows = self._header.whole().take(pa.array(order[leaders[order] == order]))
        measured = self._measured.whole()
        last = measured.take(pa.array(np.arange(measured.num_rows)[::-1]))
        positions = pc.index_in(rows["uri"], value_set=last["uri"])
        is_failed = pc.equal(last["outcome"].cast(pa.string()).take(positions), "failed")
        return rows["source_id"].filter(pc.invert(pc.fill_null(is_failed, False)))

    def by_content(self) -> pa.Table:
        """Returns the contents that have not failed before analysis.

        They have `source_id`, `uri` of the source that is analyzed, `seconds` by its header (0 if
        that does not say), and `generation`, null where none is set.
        """
        order, leaders = self._sorted()
        rows = self._header.whole().take(pa.array(order[leaders[order] == order]))
        seconds = pc.fill_null(rows["header_duration_s"], 0.0)
        columns = {name: rows[name] for name in ("source_id", "uri", "generation")}
        return pa.table(columns | {"seconds": seconds})

    def last_generation(self) -> int:
        """Returns the number of the last generation that has a source; 0 for none."""
        rows = self.by_content()
        done = pc.is_in(rows["source_id"], value_set=self.contents().combine_chunks())
        return pc.max(rows["generation"].filter(done)).as_py() or 0

    def set_generations(self, numbers: pa.Table) -> None:
        """Sets the `generation` of contents by `source_id`."""
        header = self._header.whole()
        positions = pc.index_in(
            header["source_id"], value_set=numbers["source_id"].combine_chunks()
        )
        column = numbers["generation"].combine_chunks().take(positions)
        self._header.replace(with_column(header, "generation", column))

    def generation_of(self) -> dict[str, int] | None:
        """Returns the generation of each content; None where there is one."""
        header = self._header.whole()
        numbers = header.filter(pc.greater(pc.fill_null(header["generation"], 0), 0))
        if not numbers.num_rows or pc.max(numbers["generation"]).as_py() == 1:
            return None
        return dict(
            zip(numbers["source_id"].to_pylist(), numbers["generation"].to_pylist(), strict=True)
        )

    def up_to(self, generation: int) -> "SourceTable":
        """Returns the sources up to a generation and those that failed; shares what is measured."""
        header = self._header.whole()
        wanted = pc.fill_null(pc.less_equal(header["generation"], generation), True)
        table = SourceTable()
        table._header.replace(header.filter(wanted))
        table._measured = self._measured
        table.sums = self.sums
        return table

    def settle(self, earlier: pa.Table) -> Counter[str]:
        """Takes measurements from rows of an earlier run; returns its kept clips by content."""
        earlier = without_copies(earlier)
        now = self.by_content()
        place = pc.index_in(earlier["source_id"], value_set=now["source_id"].combine_chunks())
        earlier = earlier.filter(pc.is_valid(place))
        uris = now["uri"].take(place.drop_null())
        at = earlier.schema.get_field_index("uri")
        self.measured(earlier.set_column(at, "uri", uris))
        return Counter(
            dict(zip(earlier["source_id"].to_pylist(), earlier["n_kept"].to_pylist(), strict=True))
        )

    def ids(self) -> Iterator[tuple[str, str]]:
        """Yields address and id of the sources that have not failed before analysis."""
        header = self._header.whole()
        rows = header.filter(
            pc.and_(pc.is_null(header["outcome"]), pc.is_valid(header["source_id"]))
        )
        yield from zip(rows["uri"].to_pylist(), rows["source_id"].to_pylist(), strict=True)

    def contents_of(self, uris: Sequence[str]) -> dict[str, str | None]:
        """Returns the content ids of those of the URIs that are here; None where a scan failed."""
        header = self._header.whole()
        wanted = pa.array(uris, header.schema.field("uri").type)
        rows = header.filter(pc.is_in(header["uri"], value_set=wanted))
        is_read = pc.is_null(rows["outcome"])
        ids = pc.if_else(is_read, rows["source_id"], pa.scalar(None, pa.string()))
        return dict(zip(rows["uri"].to_pylist(), ids.to_pylist(), strict=True))

    def find(self, source_ids: Iterable[str]) -> dict[str, SourceRef]:
        """Returns the source that is analyzed for each content."""
        order, leaders = self._sorted()
        first = order[leaders[order] == order]
        wanted = pa.array(sorted(set(source_ids)), pa.string())
        ids = self._header.whole()["source_id"].take(pa.array(first))
        rows = first[pc.is_in(ids, value_set=wanted).to_numpy(zero_copy_only=False)]
        return {str(ref.source_id): ref for ref in self._refs(rows)}

    def rows(self, n_kept: Mapping[str, int]) -> Iterator[pa.Table]:
        """Yields rows of `sources`, by URI, in tables of the size of a part; at least one table."""
        order, leaders = self._sorted()
        header, measured = self._header.whole(), self._measured.whole()
        last = pa.array(np.arange(measured.num_rows)[::-1])
        lookup = measured["uri"].take(last)
        kept = pa.array(sorted(n_kept), pa.string())
        counts = pa.array([n_kept[source_id] for source_id in kept.to_pylist()], pa.int32())
        for start in range(0, max(1, len(order)), ROWS_PER_TABLE_PART):
            rows = order[start : start + ROWS_PER_TABLE_PART]
            leads = leaders[rows]
            like = np.where(leads == _NO_LEADER, rows, leads)
            own = header.select(_OWN).take(pa.array(rows))
            shared = header.take(pa.array(like))
            values = last.take(pc.index_in(shared["uri"], value_set=lookup))
            batch = _overlaid(own, shared, measured.take(values))
            is_failed = pc.equal(batch["outcome"], "failed")
            number = pc.if_else(is_failed, pa.scalar(None, pa.int32()), batch["generation"])
            batch = with_column(batch, "generation", number)
            yield _counted(batch, is_copy=like != rows, kept=kept, counts=counts)

    def _refs(self, rows: NDArray[np.int64]) -> Iterator[SourceRef]:
        for row in self._header.whole().select(_REF).take(pa.array(rows)).to_pylist():
            n_pixels = row["width"] * row["height"]
            yield SourceRef(n_bytes=row.pop("bytes"), n_pixels=n_pixels, **row)

    def _sorted(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns row numbers by URI, and for each row the one that is analyzed for its content."""
        if self._order is None or self._leaders is None:
            header = self._header.whole()
            order = pc.sort_indices(header["uri"]).to_numpy().astype(np.int64)
            self._leaders = _leaders(header, order)
            self._order = order
        return self._order, self._leaders


class SourceTotals:
    """Sums over the rows of `sources`, and some failed ones to show."""

    def __init__(self) -> None:
        self.n_sources = 0
        self.n_failed = 0
        self.n_bytes = 0
        self.video_s = 0.0
        self.by_error: Counter[str] = Counter()
        self.by_note: Counter[str] = Counter()
        self.failed: list[Source] = []
        """The first by URI of each error code, as many as a report shows."""

    def add(self, rows: pa.Table) -> None:
        """Adds the next rows by URI."""
        failed = rows.filter(pc.equal(rows["outcome"], "failed"))
        self.n_sources += rows.num_rows
        self.n_failed += failed.num_rows
        self.n_bytes += pc.sum(rows["bytes"]).as_py() or 0
        self.video_s += pc.sum(rows["duration_s"]).as_py() or 0.0
        self.by_note.update(value_counts(pc.list_flatten(rows["notes"])))
        for code, n_failed in value_counts(failed["error_code"]).items():
            room = max(0, MAX_SHOWN - self.by_error[code])
            shown = failed.filter(pc.equal(failed["error_code"], code)).slice(0, room)
            self.failed += source_records(shown)
            self.by_error[code] += n_failed


def without_copies(rows: pa.Table) -> pa.Table:
    """Returns rows of `sources` without those of the same bytes as another, whose clips count."""
    notes = rows["notes"].combine_chunks()
    is_copy = pc.equal(pc.list_flatten(notes), str(Note.SAME_BYTES))
    copies = pc.list_parent_indices(notes).filter(is_copy)
    return rows.take(pa.array(np.setdiff1d(np.arange(rows.num_rows), copies.to_numpy())))


def source_records(rows: pa.Table) -> list[Source]:
    """Returns rows of `sources` as records."""
    columns = [name for name in SOURCES_SCHEMA.names if name in rows.column_names]
    return [Source(**row) for row in rows.select(columns).to_pylist()]


def value_counts(column: pa.ChunkedArray | pa.Array) -> dict[str, int]:
    """Counts each value of a column."""
    return {pair["values"]: pair["counts"] for pair in pc.value_counts(column).to_pylist()}


def _leaders(header: pa.Table, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the first usable row by URI of those with the same content."""
    leaders = np.full(header.num_rows, _NO_LEADER, np.int64)
    if not header.num_rows:
        return leaders
    coded = header["source_id"].combine_chunks().dictionary_encode()
    codes = coded.indices.fill_null(_NO_LEADER).to_numpy()
    usable = pc.is_null(header["outcome"]).to_numpy()
    candidates = order[(usable & (codes != _NO_LEADER))[order]]
    first_of = np.full(len(coded.dictionary), _NO_LEADER, np.int64)
    # Assigned backwards, so that the first by URI is the last to be written.
    first_of[codes[candidates][::-1]] = candidates[::-1]
    has_leader = codes != _NO_LEADER
    leaders[has_leader] = first_of[codes[has_leader]]
    return leaders


def _overlaid(own: pa.Table, shared: pa.Table, measured: pa.Table) -> pa.Table:
    columns = []
    for field in SOURCES_SCHEMA:
        name, kind = field.name, field.type
        if name in _OWN:
            column = own[name].cast(kind)
        elif name in measured.schema.names and name in shared.schema.names:
            column = pc.coalesce(measured[name].cast(kind), shared[name].cast(kind))
        elif name in measured.schema.names:
            column = measured[name].cast(kind)
        elif name in shared.schema.names:
            column = shared[name].cast(kind)
        else:
            column = pa.nulls(own.num_rows, kind)
        columns.append(column)
    return pa.table(columns, schema=SOURCES_SCHEMA).combine_chunks()


def _counted(
    table: pa.Table, *, is_copy: NDArray[np.bool_], kept: pa.Array, counts: pa.Array
) -> pa.Table:
    """Adds the number of kept clips, and marks copies, whose clips count elsewhere."""
    copies = pa.array(is_copy)
    done = pc.equal(table["outcome"], "done")
    own_counts = counts.take(pc.index_in(table["source_id"], value_set=kept))
    n_kept = pc.if_else(done, pc.fill_null(own_counts, 0), pa.scalar(None, pa.int32()))
    zero = pa.scalar(0, pa.int32())
    for name, column in (
        ("n_shots", table["n_shots"]),
        ("n_clips", table["n_clips"]),
        ("n_kept", n_kept),
    ):
        table = with_column(table, name, pc.if_else(copies, zero, column))
    if is_copy.any():
        marked = pc.and_(copies, done).to_pylist()
        notes = [
            [*(old or ()), str(Note.SAME_BYTES)] if mark else old
            for mark, old in zip(marked, table["notes"].to_pylist(), strict=True)
        ]
        table = with_column(table, "notes", pa.array(notes, table.schema.field("notes").type))
    return table


def _held(field: pa.Field) -> pa.Field:
    """Returns the field's form in memory."""
    if field.name in _LONG:
        return field.with_type(pa.large_string())
    if field.name in _FEW_VALUES:
        return field.with_type(pa.dictionary(pa.int32(), pa.string()))
    return field
