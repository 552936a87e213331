"""The sources of a run as rows of Arrow columns, a few hundred bytes per source.

A row of Python objects would take 3 KB, and a run may have a million sources. Rows arrive in any
order, and measurements later. `rows` joins and sorts both, a batch at a time.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import REFUSED
from curator.records.sources import Medium, Note, Source, SourceRef
from curator.records.time_spans import spans_from_json
from curator.storage.content_id import WHOLE_BYTES
from curator.tables.disk_table import TableBuffer, joined, widened
from curator.tables.long_columns import joined_chunks, take_rows
from curator.tables.parts import ROWS_PER_TABLE_PART, with_column
from curator.tables.schemas import SCAN_SCHEMA, SOURCES_SCHEMA

_HELD = {
    **dict.fromkeys(
        ("medium", "container", "codec", "pixel_format", "pixel_aspect", "outcome", "error_stage",
         "error_code", "c2pa", "c2pa_issuer", "c2pa_tool"),
        pa.dictionary(pa.int32(), pa.string()),
    ),
    # These columns may have more than 2 GiB of text.
    **dict.fromkeys(("uri", "error_message", "spans", "clock"), pa.large_string()),
}  # fmt: skip
"""Types in memory of columns with another type in the written table."""
_HEADER = (
    *(name for name in SCAN_SCHEMA.names if name not in ("time_base", "fps")),
    "generation", "spans", "outcome",
)  # fmt: skip
_MEASURED = (
    "uri", "sha256", "width", "height", "rotation_deg", "pixel_aspect", "duration_s", "n_frames",
    "fps", "is_vfr", "is_hdr", "is_interlaced", "n_decode_errors", "n_shots", "n_clips", "clock",
    "notes", "outcome", "error_stage", "error_code", "error_message",
)  # fmt: skip
MEASURED_SCHEMA = pa.schema([SOURCES_SCHEMA.field(name) for name in ("source_id", *_MEASURED)])
"""The results of analyzing a source."""
_OWN = ("uri", "bytes", "version")
"""Columns that sources with the same bytes do not share."""
_REF = (
    "uri", "bytes", "version", "source_id", "header_duration_s", "header_n_frames", "width",
    "height", "codec", "pixel_format", "medium", "spans",
)  # fmt: skip
_REF_ROWS = 4096
_NO_LEADER = -1

MAX_SHOWN = 24
"""Maximum number of failed sources per error code in the report."""


class _BufferedColumns(TableBuffer):
    """Some columns of `sources`, with their types in memory."""

    def __init__(self, names: Iterable[str]) -> None:
        fields = map(SOURCES_SCHEMA.field, names)
        super().__init__(pa.schema([f.with_type(_HELD.get(f.name, f.type)) for f in fields]))

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
        """Replaces all rows."""
        self.take()
        super().add(joined_chunks(table))


class SourceTable:
    """The sources of a run; each URI is added once."""

    def __init__(self) -> None:
        self._header = _BufferedColumns(_HEADER)
        self._measured = _BufferedColumns(_MEASURED)
        self._places: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        self.sums = defaultdict[str, float](float)
        """Number of `done` and `failed` sources so far, each content once, and their `video_s`."""

    def __len__(self) -> int:
        return self._header.n_rows

    def add_probes(self, probes: pa.Table) -> None:
        """Adds sources with their headers, as rows of `SCAN_SCHEMA`."""
        failed = pc.is_valid(probes["error_code"])
        outcome = pc.if_else(failed, "failed", pa.scalar(None, pa.string()))
        self._add(probes.append_column("outcome", outcome))

    def add_failed(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds sources that failed before a probe: `uri`, error columns, other known columns."""
        schema = pa.schema([SOURCES_SCHEMA.field(name) for name in _HEADER])
        failed = [{**row, "outcome": "failed"} for row in rows]
        self._add(pa.Table.from_pylist(failed, schema=schema))

    def _add(self, rows: pa.Table) -> None:
        self._header.add(rows)
        self.sums["failed"] += rows.num_rows - rows["outcome"].null_count
        self._places = None

    def carry(self, earlier: pa.Table) -> pa.Table:
        """Adds rows of `sources` with a new address and new content; returns these rows."""
        header = self._header.whole()
        ids = header["source_id"].filter(pc.is_null(header["outcome"])).combine_chunks()
        uris = earlier["uri"].cast(header["uri"].type)
        is_listed = pc.or_(
            pc.is_in(uris, value_set=header["uri"]), pc.is_in(earlier["source_id"], value_set=ids)
        )
        rows = earlier.filter(pc.invert(is_listed))
        for name in ("outcome", "error_stage", "error_code", "error_message"):
            rows = with_column(rows, name, pa.nulls(rows.num_rows, pa.string()))
        if rows.num_rows:
            self._add(rows)
        return rows

    def measured(self, rows: pa.Table | Iterable[Mapping[str, Any]]) -> None:
        """Adds results of analysis by `uri`, with `outcome`; the last row of a URI counts."""
        if not isinstance(rows, pa.Table):
            rows = pa.Table.from_pylist(list(rows), schema=MEASURED_SCHEMA)
        self._measured.add(rows)
        for outcome, n_sources in value_counts(rows["outcome"]).items():
            self.sums[outcome] += n_sources
        self.sums["video_s"] += pc.sum(rows["duration_s"]).as_py() or 0.0

    def count_anew(self) -> None:
        """Resets `sums` to the failures before analysis, for results that arrive once more."""
        outcomes = self._header.whole()["outcome"]
        self.sums.update(done=0, failed=len(outcomes) - outcomes.null_count, video_s=0.0)

    def sampled(self) -> pa.Table:
        """Returns uri, bytes, version and id of large sources, because their ids hash samples."""
        rows = self._usable()
        is_large = pc.fill_null(pc.greater(rows["bytes"], WHOLE_BYTES), False)
        return rows.filter(is_large).select(["uri", "bytes", "version", "source_id"])

    def revise(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replaces columns of sources by `uri`, such as ids; all rows have the same columns."""
        if not rows:
            return
        header = self._header.whole()
        schema = pa.schema([SOURCES_SCHEMA.field(name) for name in rows[0]])
        revised = pa.Table.from_pylist(list(rows), schema=schema)
        place = pc.index_in(header["uri"], value_set=revised["uri"].cast(pa.large_string()))
        for field in schema:
            if field.name != "uri":
                old = header[field.name]
                new = revised[field.name].take(place)
                # In types of `_HELD`, a column may exceed 2 GiB.
                kind = pa.large_string() if pa.types.is_string(field.type) else field.type
                column = pc.if_else(pc.is_valid(place), new.cast(kind), old.cast(kind))
                column = column.cast(old.type)
                header = with_column(header, field.name, column)
        self._header.replace(header)
        self._places = None

    def to_analyze(self, generation: int | None = None) -> Iterator[SourceRef]:
        """Yields sources that have not failed, one per content, of a generation or of all."""
        first = self._first()
        if generation is not None:
            numbers = self._header.whole()["generation"].fill_null(0).to_numpy()
            first = first[numbers[first] == generation]
        for start in range(0, len(first), _REF_ROWS):
            yield from self._refs(first[start : start + _REF_ROWS])

    def first_error(self) -> str:
        """Returns the error message of the first failed source; empty for none."""
        for rows in (self._header.whole(), self._measured.whole()):
            for message in rows["error_message"].drop_null().slice(0, 1):
                return str(message)
        return ""

    def contents(self) -> pa.ChunkedArray:
        """Returns the ids of contents that have not failed, before or during analysis."""
        rows = self.by_content()
        is_failed = pc.equal(self._results(rows["uri"])["outcome"].cast(pa.string()), "failed")
        return rows["source_id"].filter(pc.invert(pc.fill_null(is_failed, False)))

    def by_content(self) -> pa.Table:
        """Returns the contents that have not failed before analysis.

        Columns are `source_id`; `uri` of the analyzed source; `seconds` by its header, 0 if
        unknown; `spans` as JSON; and `generation`, null if it is not set.
        """
        rows = take_rows(self._header.whole(), pa.array(self._first()))
        seconds = pc.fill_null(rows["header_duration_s"], 0.0)
        return rows.select(["source_id", "uri", "generation", "spans"]).append_column(
            "seconds", seconds
        )

    def last_generation(self) -> int:
        """Returns the number of the last generation with a source that is done; 0 for none."""
        rows = self.by_content()
        done = pc.is_in(rows["source_id"], value_set=self.contents())
        return pc.max(rows["generation"].filter(done)).as_py() or 0

    def set_generations(self, numbers: pa.Table) -> None:
        """Sets the `generation` of contents by `source_id`."""
        header = self._header.whole()
        ids = numbers["source_id"].combine_chunks()
        column = numbers["generation"].take(pc.index_in(header["source_id"], value_set=ids))
        self._header.replace(with_column(header, "generation", column))

    def generation_of(self) -> dict[str, int] | None:
        """Returns the generation of each content; None if all are in the first generation."""
        rows = self._header.whole().filter(pc.field("generation") > 0)
        if pc.max(rows["generation"]).as_py() in (None, 1):
            return None
        columns = (rows[name].to_pylist() for name in ("source_id", "generation"))
        return dict(zip(*columns, strict=True))

    def up_to(self, generation: int) -> "SourceTable":
        """Returns the sources up to a generation and failed sources; shares the measurements."""
        header = self._header.whole()
        wanted = pc.fill_null(pc.less_equal(header["generation"], generation), True)
        table = SourceTable()
        table._header.replace(header.filter(wanted))
        table._measured, table.sums = self._measured, self.sums
        return table

    def settle(self, earlier: pa.Table) -> Counter[str]:
        """Adds results of an earlier run; returns its number of kept clips by content."""
        earlier = without_copies(earlier)
        now = self.by_content()
        place = pc.index_in(earlier["source_id"], value_set=now["source_id"])
        earlier = earlier.filter(pc.is_valid(place))
        uris = now["uri"].take(place.drop_null())
        self.measured(earlier.set_column(earlier.schema.get_field_index("uri"), "uri", uris))
        ids, n_kept = (earlier[name].to_pylist() for name in ("source_id", "n_kept"))
        return Counter(dict(zip(ids, n_kept, strict=True)))

    def ids(self) -> Iterator[tuple[str, str]]:
        """Yields address and id of the sources that have not failed before analysis."""
        rows = self._usable()
        yield from zip(rows["uri"].to_pylist(), rows["source_id"].to_pylist(), strict=True)

    def usable(self, names: Sequence[str]) -> pa.Table:
        """Returns columns of the sources that have an id and have not failed."""
        return self._usable().select(names)

    def refused(self) -> set[str]:
        """Returns the addresses of sources that the section `rights` of the recipe refuses."""
        header = self._header.whole()
        return set(header["uri"].filter(_is_refused(header)).to_pylist())

    def with_credentials(self, clips: pa.Table) -> pa.Table:
        """Sets the columns of clips that come from the C2PA manifests of their sources."""
        header = self._header.whole()
        if header["c2pa"].null_count == len(header):
            return clips
        place = pc.index_in(clips["source_uri"].cast(pa.large_string()), value_set=header["uri"])
        for name in ("c2pa", "c2pa_generated"):
            kind = SOURCES_SCHEMA.field(name).type
            clips = with_column(clips, name, header[name].cast(kind).take(place))
        return clips

    def contents_of(self, uris: Sequence[str]) -> dict[str, str | None]:
        """Returns content ids by URI, for those URIs that are here; None after a failed scan."""
        header = self._header.whole()
        wanted = pa.array(uris, header.schema.field("uri").type)
        rows = header.filter(pc.is_in(header["uri"], value_set=wanted))
        ids = pc.if_else(
            pc.is_null(rows["outcome"]), rows["source_id"], pa.scalar(None, pa.string())
        )
        return dict(zip(rows["uri"].to_pylist(), ids.to_pylist(), strict=True))

    def find(self, source_ids: Iterable[str]) -> dict[str, SourceRef]:
        """Returns the analyzed source of each content, by id."""
        first = self._first()
        wanted = pa.array(sorted(set(source_ids)), pa.string())
        ids = self._header.whole()["source_id"].take(pa.array(first))
        rows = first[pc.is_in(ids, value_set=wanted).to_numpy(zero_copy_only=False)]
        return {str(ref.source_id): ref for ref in self._refs(rows)}

    def rows(self, n_kept: Mapping[str, int]) -> Iterator[pa.Table]:
        """Yields rows of `sources` sorted by URI, in tables of the size of a part; at least one."""
        order, leaders = self._sorted()
        header = self._header.whole()
        kept = pa.array(sorted(n_kept), pa.string())
        counts = pa.array([n_kept[source_id] for source_id in kept.to_pylist()], pa.int32())
        for start in range(0, max(1, len(order)), ROWS_PER_TABLE_PART):
            rows = order[start : start + ROWS_PER_TABLE_PART]
            leads = np.where(leaders[rows] == _NO_LEADER, rows, leaders[rows])
            shared = widened(take_rows(header, pa.array(leads)), SOURCES_SCHEMA)
            measured = widened(self._results(shared["uri"]), SOURCES_SCHEMA)
            own = take_rows(header.select(_OWN), pa.array(rows))
            columns = [
                own[name].cast(SOURCES_SCHEMA.field(name).type)
                if name in _OWN
                else pc.coalesce(measured[name], shared[name])
                for name in SOURCES_SCHEMA.names
            ]
            batch = joined_chunks(pa.table(columns, schema=SOURCES_SCHEMA))
            yield _counted(batch, is_copy=leads != rows, kept=kept, counts=counts)

    def _usable(self) -> pa.Table:
        """Returns the headers of sources that have an id and have not failed."""
        is_usable = pc.is_null(pc.field("outcome")) & pc.is_valid(pc.field("source_id"))
        return self._header.whole().filter(is_usable)

    def _results(self, uris: pa.ChunkedArray) -> pa.Table:
        """Returns the last results of analysis by URI; null for sources without results."""
        measured = self._measured.whole()
        last = pa.array(np.arange(measured.num_rows)[::-1])
        lookup = measured["uri"].take(last)
        rows = last.take(pc.index_in(uris.cast(lookup.type), value_set=lookup))
        return take_rows(measured, rows)

    def _refs(self, rows: NDArray[np.int64]) -> Iterator[SourceRef]:
        for row in take_rows(self._header.whole().select(_REF), pa.array(rows)).to_pylist():
            n_pixels = row["width"] * row["height"]
            row |= {
                "n_bytes": row.pop("bytes"),
                "medium": Medium(row["medium"]),
                "spans": tuple(spans_from_json(row["spans"])),
            }
            yield SourceRef(n_pixels=n_pixels, **row)

    def copies_with_other_spans(self) -> list[tuple[str, str]]:
        """Returns copies whose spans have other times than the analyzed source of this content.

        Each is the address of the copy, whose spans do not count, and of the analyzed source.
        """
        spans, (order, leaders) = self._header.whole()["spans"], self._sorted()
        if spans.null_count == len(spans):
            return []
        rows = order[(leaders[order] != order) & (leaders[order] != _NO_LEADER)]
        uris = self._header.whole()["uri"]
        places = pa.array(rows), pa.array(leaders[rows])
        columns = (column.take(at).to_pylist() for column in (uris, spans) for at in places)
        return [
            (copy, source)
            for copy, source, of_copy, of_source in zip(*columns, strict=True)
            if [*spans_from_json(of_copy)] != [*spans_from_json(of_source)]
        ]

    def _first(self) -> NDArray[np.int64]:
        """Returns the row numbers of analyzed sources, sorted by URI."""
        order, leaders = self._sorted()
        first: NDArray[np.int64] = order[leaders[order] == order]
        return first

    def _sorted(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns row numbers sorted by URI, and for each row the analyzed row of its content.

        The analyzed row is the first usable row with this content, by URI. A refused row has none.
        """
        if self._places is None:
            header = self._header.whole()
            ids, order = header["source_id"], pc.sort_indices(header["uri"])
            is_usable = pc.and_(pc.is_null(header["outcome"]), pc.is_valid(ids))
            usable = order.filter(is_usable.combine_chunks().take(order))
            place = pc.index_in(ids, value_set=ids.take(usable))
            leaders = usable.cast(pa.int64()).take(place).fill_null(_NO_LEADER)
            leaders = pc.if_else(_is_refused(header), _NO_LEADER, leaders)
            self._places = order.to_numpy().astype(np.int64), leaders.to_numpy()
        return self._places


def _is_refused(rows: pa.Table) -> pa.Array:
    """Returns which sources the section `rights` of the recipe refuses, bool [N]."""
    codes = pa.array(sorted(map(str, REFUSED)))
    return pc.is_in(rows["error_code"].combine_chunks().cast(pa.string()), value_set=codes)


class SourceTotals:
    """Sums over the rows of `sources`, and some failed sources for the report."""

    def __init__(self) -> None:
        self.n_sources = 0
        self.n_failed = 0
        self.n_bytes = 0
        self.video_s = 0.0
        self.by_error: Counter[str] = Counter()
        self.by_note: Counter[str] = Counter()
        self.failed: list[Source] = []
        """The first `MAX_SHOWN` failed sources of each error code, by URI."""

    def add(self, rows: pa.Table) -> None:
        """Adds the next rows in the order of URIs."""
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
    """Returns rows of `sources` without copies: sources with the bytes of another source."""
    notes = rows["notes"].combine_chunks()
    is_copy = pc.equal(pc.list_flatten(notes), str(Note.SAME_BYTES))
    is_first = np.ones(rows.num_rows, np.bool_)
    is_first[pc.list_parent_indices(notes).filter(is_copy).to_numpy()] = False
    return rows.filter(pa.array(is_first))


def source_records(rows: pa.Table) -> list[Source]:
    """Returns rows of `sources` as records."""
    columns = [name for name in SOURCES_SCHEMA.names if name in rows.column_names]
    return [Source(**row) for row in rows.select(columns).to_pylist()]


def value_counts(column: pa.ChunkedArray | pa.Array) -> dict[str, int]:
    """Counts each value of a column."""
    return {pair["values"]: pair["counts"] for pair in pc.value_counts(column).to_pylist()}


def _counted(
    table: pa.Table, *, is_copy: NDArray[np.bool_], kept: pa.Array, counts: pa.Array
) -> pa.Table:
    """Adds the number of kept clips, marks copies, and clears the generation of failed sources.

    The clips of a copy count for the analyzed source.
    """
    copies, outcome = pa.array(is_copy), table["outcome"]
    done = pc.equal(outcome, "done")
    zero, none = pa.scalar(0, pa.int32()), pa.scalar(None, pa.int32())
    own_counts = counts.take(pc.index_in(table["source_id"], value_set=kept))
    columns = {
        "generation": pc.if_else(pc.equal(outcome, "failed"), none, table["generation"]),
        "n_shots": pc.if_else(copies, zero, table["n_shots"]),
        "n_clips": pc.if_else(copies, zero, table["n_clips"]),
        "n_kept": pc.if_else(copies, zero, pc.if_else(done, pc.fill_null(own_counts, 0), none)),
    }
    if is_copy.any():
        marked = pc.and_(copies, done).to_pylist()
        notes = [
            [*(old or ()), str(Note.SAME_BYTES)] if mark else old
            for mark, old in zip(marked, table["notes"].to_pylist(), strict=True)
        ]
        columns["notes"] = pa.array(notes, table.schema.field("notes").type)
    for name, column in columns.items():
        table = with_column(table, name, column)
    return table
