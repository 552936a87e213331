"""Records of removed footage: they prove the removal, and keep the footage from coming back.

    removed/00000002.json             one record per removal, written before anything else changes
    removed/00000002.finished.json    says that the removal is finished
    snapshots/removed-<hash>.json     the same bytes as the record with this hash

A removal is finished once its mark exists, and all snapshots and `summary.json` name its record. If
they do not, they come from a backup of before the removal, and the removal must be finished again.

A record has only hashes of ids, addresses, pictures, frames and captions, so it reveals none of
them. A record also has the spans of clips, because another recipe gives the same footage another
id. To finish an interrupted removal, `curate remove` needs only the record.

Records form a chain to which removals only add. A record names the record before it with SHA-256,
and a snapshot names all records. So readers notice a lost or changed record, and restore it from
its copy.
"""

import base64
import hashlib
import json
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import CuratorError, DamagedError, ErrorCode, UsageError
from curator.records.sources import Failure
from curator.storage import Store
from curator.tables.json_objects import read_json_bytes, sealed_json
from curator.tables.lasting_objects import lasting_names, repair_lasting
from curator.tables.out_layout import REMOVED, SNAPSHOTS
from curator.tables.snapshot_store import (
    REMOVALS,
    created,
    find_summary,
    listed_snapshots,
    record_copy,
)

logger = logging.getLogger(__name__)

PREVIOUS = "previous"
"""Field of a record: name and SHA-256 of the record before; null for the first."""
HASHES = "frames"
"""Field of a record: hashes of decoded frames."""
KNOWN_BY = "known_by"
"""Field of a record: the object of `tables.footage_store` with the removed footage, or null."""
SALT = b"curate remove "
"""Beginning of what `removal_hash` hashes."""
LOST = "lost"
"""Field of a record: lost earlier records that the user gave up."""
LENGTHS = "caption_lengths"
"""Field of a record: lengths of the captions, which tell a search which parts of a text to hash."""
LEAST_CAPTION = 16
"""Minimum length of a caption in characters; shorter texts are too common to search by hash."""
CAPTION_COLUMNS = {"clips": ("caption",), "annotations": ("short", "medium", "long")}
"""Tables that hold captions, and their columns."""
_NAME = re.compile(rf"{REMOVED}/(\d{{8}})\.json")
_COPIES = f"{SNAPSHOTS}/removed-"
_SETS = ("uris", "clip_ids", "mp4", "captions", "pictures")


def removal_hash(text: str) -> str:
    """Returns the hash of an id or an address, as records have it."""
    return hashlib.sha256(SALT + text.encode("utf-8", "surrogatepass")).hexdigest()


def caption_hash(text: str) -> str | None:
    """Returns the hash of a text without regard to case and spaces; None if it is too short."""
    plain = plain_caption(text)
    return removal_hash(plain) if len(plain) >= LEAST_CAPTION else None


def plain_caption(text: str) -> str:
    """Returns a text without case and further spaces, as `caption_hash` hashes it."""
    return " ".join(text.split()).casefold()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedSpan:
    """A removed clip's half-open span in its source: frames in decode order, and seconds."""

    start_s: float
    end_s: float
    start_frame: int
    end_frame: int


@dataclass(frozen=True, kw_only=True)
class Removals:
    """The footage that the records of an output root name, by hash.

    Attributes:
        sources: Time of removal of each source that was removed as a whole.
        spans: Removed spans of other sources.
        uris: Addresses at which every source that a run found was removed.
        clip_ids: Ids of removed clips.
        mp4: SHA-256 of their MP4 files.
        captions: Their captions that no other clip shares.
        caption_lengths: Lengths of captions as hashed.
        pictures: SHA-256 of their thumbnails that no other footage shares.
        frames: Hashes of their decoded frames, ascending.
        unfinished: Records of removals that began and did not finish.
        footage: Objects with vectors, keypoints and luma, to recognise edited copies.
        n_records: Number of records.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    spans: Mapping[str, tuple[RemovedSpan, ...]] = field(default_factory=dict)
    uris: frozenset[str] = frozenset()
    clip_ids: frozenset[str] = frozenset()
    mp4: frozenset[str] = frozenset()
    captions: frozenset[str] = frozenset()
    caption_lengths: frozenset[int] = frozenset()
    pictures: frozenset[str] = frozenset()
    frames: NDArray[np.uint64] = field(
        default_factory=lambda: np.zeros(0, np.uint64), compare=False
    )
    unfinished: tuple[str, ...] = ()
    footage: tuple[str, ...] = ()
    n_records: int = 0

    def __bool__(self) -> bool:
        return self.n_records > 0

    def require_finished(self, out: str) -> None:
        """Raises `UsageError`, with the remedy, if a removal is not finished."""
        if self.unfinished:
            raise UsageError(
                f"a removal from {out} is not finished, or a backup of before it was restored "
                f"({self.unfinished[0]}): run `curate remove {out} --finish` first; this command "
                "changed nothing"
            )

    @cached_property
    def ids(self) -> frozenset[str]:
        """Hashes of the ids of sources and clips."""
        return self.clip_ids | self.sources.keys()

    def refusal(self, uri: str, source_id: str | None) -> Failure | None:
        """Returns why a run may not use a source; None if the source was not removed."""
        date = self.sources.get(removal_hash(source_id)) if source_id and self.sources else None
        if date is None:
            return None
        message = (
            f"{uri}: `curate remove` took this source out of OUT at {date}, so a run does not use "
            "it: leave it out of the sources, or use another OUT"
        )
        return Failure(uri=uri, stage="scan", code=ErrorCode.REMOVED, message=message)

    def spans_of(self, source_id: str) -> tuple[RemovedSpan, ...]:
        """Returns the removed spans of a source."""
        return self.spans.get(removal_hash(source_id), ()) if self.spans else ()

    def named(self, column: pa.ChunkedArray, hashes: Iterable[str]) -> NDArray[np.bool_]:
        """Returns which values of a column have one of `hashes`, bool [N]."""
        wanted = frozenset(hashes)
        if not wanted or not len(column):
            return np.zeros(len(column), bool)
        distinct = column.unique().drop_null().to_pylist()
        values = [value for value in distinct if removal_hash(value) in wanted]
        return _truth(pc.is_in(column, value_set=pa.array(values, column.type)))

    def overlapping(self, clips: pa.Table) -> NDArray[np.bool_]:
        """Returns which clips share more than a frame with a removed span, bool [N]."""
        return self._sharing(clips, "s", lambda clip: 1.001 / (clip["fps"] or 25.0))

    def sharing_frames(self, clips: pa.Table) -> NDArray[np.bool_]:
        """Returns which clips share a frame with a removed span, by frame numbers, bool [N]."""
        return self._sharing(clips, "frame", lambda _: 0)

    def _sharing(
        self, clips: pa.Table, unit: str, least: Callable[[Mapping[str, Any]], float]
    ) -> NDArray[np.bool_]:
        """Returns which clips share more than `least` (in `unit`) with a removed span, bool [N]."""
        shares = self.named(clips["source_id"], self.spans)
        rows, start, end = np.flatnonzero(shares), f"start_{unit}", f"end_{unit}"
        names = {"source_id", start, end, "fps"}.intersection(clips.column_names)
        for row, clip in zip(
            rows.tolist(), clips.select(sorted(names)).take(pa.array(rows)).to_pylist(), strict=True
        ):
            shares[row] = any(
                min(clip[end], getattr(span, end)) - max(clip[start], getattr(span, start))
                > least(clip)
                for span in self.spans_of(clip["source_id"])
            )
        return shares

    def rows(self, table: pa.Table) -> NDArray[np.bool_]:
        """Returns which rows of any table are of removed footage, bool [N]."""
        names = set(table.column_names)
        is_removed = np.zeros(table.num_rows, bool)
        if "clip_id" in names:
            is_removed |= self.named(table["clip_id"], self.clip_ids)
            if {"source_id", "start_s", "end_s", "fps"} <= names:
                is_removed |= self.overlapping(table)
        # An address counts only in rows without a content id.
        unknown = np.ones(table.num_rows, bool)
        if "source_id" in names:
            is_removed |= self.named(table["source_id"], self.sources)
            unknown = _truth(pc.is_null(table["source_id"]))
        if "error_code" in names:
            # A row with REMOVED only reports a refusal, and has no footage.
            unknown &= ~_truth(pc.equal(table["error_code"], str(ErrorCode.REMOVED)))
        for name in {"uri", "source_uri"} & names:
            is_removed |= unknown & self.named(table[name], self.uris)
        return is_removed


def _truth(mask: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(pc.fill_null(mask, False).to_numpy(zero_copy_only=False), bool)


def read_removals(store: Store, *, repair: bool = False) -> Removals:
    """Reads all records; replaces a lost or damaged record by its copy, with a warning.

    With `repair`, also writes such records again, and missing copies. Raises `UsageError` if
    neither a record nor its copy can be read, because a run without it may use removed footage.
    """
    return _whole_chain(store, repair=repair).removals()


def finished_removals(store: Store) -> Removals:
    """Reads and repairs all records, and all that `tables.lasting_objects` keeps.

    Raises `UsageError` if an object is lost with its copy, or a removal is not finished.
    """
    removals = read_removals(store, repair=True)
    removals.require_finished(store.uri)
    repair_lasting(store, kept_objects(store, removals))
    return removals


def kept_objects(store: Store, removals: Removals) -> list[str]:
    """Returns the objects that `tables.lasting_objects` keeps: listed ones, and named footage."""
    return [*lasting_names(store), *removals.footage]


def head_of_records(store: Store) -> dict[str, str]:
    """Returns SHA-256 of each record by name, in order; repairs and raises as `read_removals`."""
    records = _whole_chain(store, repair=True).records
    return {name: record.sha256 for name, record in records.items()}


def _whole_chain(store: Store, *, repair: bool) -> "RecordChain":
    chain = RecordChain.read(store)
    for name, why in chain.damaged.items():
        logger.warning("%s/%s %s; its copy in %s/ replaces it", store.uri, name, why, SNAPSHOTS)
    chain.require_whole()
    if repair:
        for name in chain.damaged:
            store.write(name, chain.records[name].data)
        for record in chain.records.values():
            if record_copy(record.sha256) not in chain.copies:
                store.write(record_copy(record.sha256), record.data)
    return chain


@dataclass(frozen=True, kw_only=True)
class Record:
    """The bytes and the content of a record."""

    name: str
    data: bytes
    value: Mapping[str, Any]

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the bytes."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordChain:
    """All records of an output root, checked by their chain and by the newest snapshot."""

    uri: str
    records: Mapping[str, Record]
    """Valid records by name, in order; a copy may replace its record."""
    finished: frozenset[str]
    """Names of records of finished removals."""
    copies: frozenset[str]
    """Names of valid copies."""
    damaged: Mapping[str, str]
    """Why records could not be read, by name; they have valid copies."""
    lost: Mapping[str, str]
    """Why records could not be read, by name; they have no valid copy."""

    @classmethod
    def read(cls, store: Store) -> "RecordChain":
        """Reads records and copies."""
        listed = {info.key for info in store.list(f"{REMOVED}/")}
        read = {name: _read(store, name) for name in sorted(filter(_NAME.fullmatch, listed))}
        whole = {record_copy(r.sha256): r for r in read.values() if isinstance(r, Record)}
        copies: dict[str, Record] = {}
        for name in [info.key for info in store.list(_COPIES)]:
            same = whole.get(name)
            # A copy with the bytes of a valid record need not be parsed; records may be large.
            is_known = same is not None and store.read(name) == same.data
            copy = same if is_known else _read(store, name)
            if isinstance(copy, Record) and record_copy(copy.sha256) == name:
                copies[name] = copy
        heads = _heads(store, every=bool(read or copies))
        expected = _expected(heads, copies)
        records: dict[str, Record] = {}
        problems: dict[str, str] = {}
        for name in sorted({*expected, *read}):
            sha256 = expected.get(name)
            entry: Record | str | None = read.get(name, "is missing")
            if isinstance(entry, Record) and sha256 not in (None, entry.sha256):
                entry = "is not the record whose SHA-256 a snapshot or a copy names"
            if isinstance(entry, str):
                problems[name] = entry
                entry = copies.get(record_copy(sha256)) if sha256 is not None else None
            if entry is not None:
                records[name] = entry if entry.name == name else replace(entry, name=name)
        given_up = {name for record in records.values() for name in record.value.get(LOST, ())}
        lost: dict[str, str] = {}
        for record in records.values():
            before = record.value.get(PREVIOUS)
            if before is not None and before["name"] not in given_up:
                there = records.get(before["name"])
                if there is None or there.sha256 != before["sha256"]:
                    lost[before["name"]] = f"is not the record whose SHA-256 is in {record.name}"
        lost |= {name: why for name, why in problems.items() if name not in {*records, *given_up}}
        return cls(
            uri=store.uri,
            records=records,
            finished=frozenset(
                name
                for name, record in records.items()
                if _mark(name) in listed and _is_named(record, heads)
            ),
            copies=frozenset(copies),
            damaged={name: why for name, why in problems.items() if name in records},
            lost=lost,
        )

    def require_whole(self) -> None:
        """Raises `UsageError`, with a remedy, if a record is lost."""
        for name, why in self.lost.items():
            raise UsageError(
                f"{self.uri}/{name} {why}, and it has no whole copy, so removed footage could "
                f"come back; {restore_remedy(self.uri)}; this command changed nothing"
            )

    def removals(self) -> Removals:
        """Returns the footage that all records name."""
        removals = removals_of([record.value for record in self.records.values()])
        return replace(removals, unfinished=tuple(sorted(self.records.keys() - self.finished)))


def removals_of(records: Sequence[Mapping[str, Any]]) -> Removals:
    """Returns the footage that some records name."""
    sources: dict[str, str] = {}
    spans: defaultdict[str, list[RemovedSpan]] = defaultdict(list)
    for record in records:
        for source in record["sources"]:
            sources.setdefault(source, record["created_at"])
        for clip in record["clips"]:
            span = {name: value for name, value in clip.items() if name != "source"}
            spans[clip["source"]].append(RemovedSpan(**span))
    sets: dict[str, Any] = {
        name: frozenset().union(*(record[name] for record in records)) for name in _SETS
    }
    given_up = {name for record in records for name in record.get(LOST, ())}
    packed = b"".join(base64.b64decode(record[HASHES]) for record in records)
    return Removals(
        sources=sources,
        spans={source: tuple(pairs) for source, pairs in spans.items()},
        frames=np.unique(np.frombuffer(packed, "<u8").astype(np.uint64)),
        caption_lengths=frozenset().union(*(record[LENGTHS] for record in records)),
        n_records=len(records),
        footage=tuple(sorted({r[KNOWN_BY] for r in records if r.get(KNOWN_BY)} - given_up)),
        **sets,
    )


def packed_hashes(hashes: NDArray[np.uint64]) -> str:
    """Returns hashes of frames in the form of records: 8 bytes each, in base64."""
    return base64.b64encode(hashes.astype("<u8").tobytes()).decode()


def restore_remedy(out: str) -> str:
    """Returns the remedy for a record that is lost with its copy."""
    return (
        "restore the record from a copy of OUT, or give it up with "
        f"`curate remove {out} --give-up-lost` and remove the footage again"
    )


def record_bytes(record: Mapping[str, Any], name: str) -> bytes:
    """Returns the bytes of a record that is stored as `name`."""
    return sealed_json(record, lambda value: json.dumps(value, indent=1).encode() + b"\n", name)


def empty_record(named_by: str) -> dict[str, Any]:
    """Returns a record without footage."""
    lists: dict[str, Any] = {name: [] for name in ("sources", "clips", *_SETS, LENGTHS)}
    return {"created_at": _now(), "named_by": named_by, **lists, HASHES: ""}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def add_record(store: Store, record: Mapping[str, Any]) -> str:
    """Adds a record to the chain, and its copy; returns its name.

    Raises `CuratorError` if another removal began meanwhile. Raises `UsageError` if a record is
    lost, unless `record` gives lost records up.
    """
    chain = RecordChain.read(store)
    if not record.get(LOST):
        chain.require_whole()
    matches = map(_NAME.fullmatch, (*chain.records, *chain.lost))
    number = max((int(match[1]) for match in matches if match), default=0) + 1
    before = None
    for last in list(chain.records.values())[-1:]:
        before = {"name": last.name, "sha256": last.sha256}
    name = f"{REMOVED}/{number:08d}.json"
    data = record_bytes({"number": number, PREVIOUS: before, **record}, name)
    if not created(store, name, data):
        raise CuratorError(f"{store.uri}/{name} is there already: another removal began meanwhile")
    store.write(record_copy(hashlib.sha256(data).hexdigest()), data)
    return name


def mark_finished(store: Store, names: Iterable[str]) -> None:
    """Writes a mark for each named record: its removal is finished."""
    for name in names:
        store.write(_mark(name), record_bytes({"finished": _now()}, _mark(name)))


def _mark(name: str) -> str:
    return name.replace(".json", ".finished.json")


def _read(store: Store, name: str) -> Record | str:
    """Reads a record or a copy; returns why it cannot be read."""
    try:
        value, data = read_json_bytes(store, name)
    except DamagedError as error:
        return f"is damaged ({error.why})"
    return Record(name=name, data=data, value=value)


def _heads(store: Store, *, every: bool) -> list[Mapping[str, str]]:
    """Returns SHA-256 of records by name, as snapshots name them, the newest first.

    `summary.json` is the last, or the only one if there is no snapshot. Without `every`, returns
    only the first.
    """
    heads: list[Mapping[str, str]] = []
    for _, snapshot in listed_snapshots(store):
        if not isinstance(snapshot, DamagedError):
            heads.append(snapshot.get(REMOVALS, {}))
            if not every:
                return heads
    with suppress(DamagedError):
        if (summary := find_summary(store)) is not None:
            heads.append(summary.get(REMOVALS, {}))
    return heads


def _is_named(record: Record, heads: Sequence[Mapping[str, str]]) -> bool:
    """Returns whether all snapshots name a record.

    Without snapshots, a removal writes no summary.
    """
    return len(heads) < 2 or all(record.name in named for named in heads)


def _expected(heads: Sequence[Mapping[str, str]], copies: Mapping[str, Record]) -> dict[str, str]:
    """Returns SHA-256 of the records that must exist, by name.

    The newest snapshot names the records of its time; without snapshots, the summary names them.
    The existence of a copy proves that its record was written before.
    """
    expected = {
        f"{REMOVED}/{copy.value['number']:08d}.json": copy.sha256 for copy in copies.values()
    }
    return {**expected, **(heads[0] if heads else {})}
