"""Records of footage that `curate remove` took out: they prove it, and keep it from coming back.

    removed/00000002.json    one record per removal, written before anything else changes

A record holds no id, address, picture or caption, only hashes of them, so that it can be compared
and not read. Clips are named by their span in the source too, because another recipe gives the
same footage another id. A removal that was broken off is finished by the record alone.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import UsageError
from curator.storage import Store
from curator.tables.checksums import read_json, sealed_json
from curator.tables.out_layout import REMOVED

LEAST_CAPTION = 16
"""Characters below which a text is too common to be found by its hash."""
CAPTION_COLUMNS = {"clips": ("caption",), "annotations": ("short", "medium", "long")}
"""Tables that hold captions, and their columns."""
_NAME = re.compile(rf"{REMOVED}/(\d{{8}})\.json")
_SETS = ("uris", "clip_ids", "mp4", "captions", "pictures")


def removal_hash(text: str) -> str:
    """Returns the hash by which records name an id or an address."""
    return hashlib.sha256(f"curate remove {text}".encode("utf-8", "surrogatepass")).hexdigest()


def caption_hash(text: str) -> str | None:
    """Returns the hash of a text, whatever its case and spaces; None for one that is too short."""
    plain = " ".join(text.split()).casefold()
    return removal_hash(plain) if len(plain) >= LEAST_CAPTION else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedSpan:
    """A removed clip's half-open span in its source: frames in decode order, and seconds."""

    start_s: float
    end_s: float
    start_frame: int
    end_frame: int


@dataclass(frozen=True, kw_only=True)
class Removals:
    """What all records of an output root name, by hash.

    Attributes:
        sources: When each source was removed whole.
        spans: Removed spans of other sources.
        uris: Addresses that held nothing but removed sources.
        clip_ids: Ids of removed clips.
        mp4: SHA-256 of their files.
        captions: As `caption_hash`, without those that other clips share.
        pictures: SHA-256 of their thumbnails.
        unfinished: Records of removals that were begun and not finished.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    spans: Mapping[str, tuple[RemovedSpan, ...]] = field(default_factory=dict)
    uris: frozenset[str] = frozenset()
    clip_ids: frozenset[str] = frozenset()
    mp4: frozenset[str] = frozenset()
    captions: frozenset[str] = frozenset()
    pictures: frozenset[str] = frozenset()
    unfinished: tuple[str, ...] = ()
    n_records: int = 0

    def __bool__(self) -> bool:
        return self.n_records > 0

    @cached_property
    def ids(self) -> frozenset[str]:
        """Hashes of the ids of sources and clips."""
        return self.clip_ids | self.sources.keys()

    def date_of(self, source_id: str | None) -> str | None:
        """Returns when a source was removed whole; None for one that was not."""
        return self.sources.get(removal_hash(source_id)) if source_id and self.sources else None

    def spans_of(self, source_id: str) -> tuple[RemovedSpan, ...]:
        """Returns the removed spans of a source."""
        return self.spans.get(removal_hash(source_id), ()) if self.spans else ()

    def named(self, column: pa.ChunkedArray, hashes: Iterable[str]) -> NDArray[np.bool_]:
        """Returns bool [N]: which values of a column have one of some hashes."""
        wanted = frozenset(hashes)
        if not wanted or not len(column):
            return np.zeros(len(column), bool)
        distinct = column.unique().drop_null().to_pylist()
        found = [value for value in distinct if removal_hash(value) in wanted]
        return _truth(pc.is_in(column, value_set=pa.array(found, column.type)))

    def overlapping(self, clips: pa.Table) -> NDArray[np.bool_]:
        """Returns bool [N]: which clips share more than a frame with a removed span."""
        found = np.zeros(clips.num_rows, bool)
        rows = np.flatnonzero(self.named(clips["source_id"], self.spans))
        if not len(rows):
            return found
        names = ("source_id", "start_s", "end_s", "fps")
        own = clips.select(names).take(pa.array(rows)).to_pylist()
        for row, clip in zip(rows.tolist(), own, strict=True):
            frame_s = 1.001 / (clip["fps"] or 25.0)
            found[row] = any(
                min(clip["end_s"], span.end_s) - max(clip["start_s"], span.start_s) > frame_s
                for span in self.spans_of(clip["source_id"])
            )
        return found

    def rows(self, table: pa.Table) -> NDArray[np.bool_]:
        """Returns bool [N]: which rows of any table are of removed footage."""
        names = set(table.column_names)
        found = np.zeros(table.num_rows, bool)
        if "source_id" in names:
            found |= self.named(table["source_id"], self.sources)
        if "clip_id" in names:
            found |= self.named(table["clip_id"], self.clip_ids)
            if {"source_id", "start_s", "end_s", "fps"} <= names:
                found |= self.overlapping(table)
        # An address counts only where no content says what it held.
        for name in {"uri", "source_uri"} & names:
            unknown = np.ones(table.num_rows, bool)
            if "source_id" in names:
                unknown = _truth(pc.is_null(table["source_id"]))
            found |= unknown & self.named(table[name], self.uris)
        return found


def _truth(mask: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(pc.fill_null(mask, False).to_numpy(zero_copy_only=False), bool)


def record_names(store: Store) -> list[str]:
    """Returns the records, the oldest first."""
    return [info.key for info in store.list(f"{REMOVED}/") if _NAME.fullmatch(info.key)]


def next_record(store: Store) -> str:
    """Returns a name for the next record."""
    last = max((int(name[len(REMOVED) + 1 : -5]) for name in record_names(store)), default=0)
    return f"{REMOVED}/{last + 1:08d}.json"


def record_bytes(record: Mapping[str, Any]) -> bytes:
    """Returns a record as it is stored."""
    return sealed_json(record, lambda value: json.dumps(value, indent=1).encode() + b"\n")


def read_removals(store: Store) -> Removals:
    """Reads all records.

    Raises:
        DamagedError: One cannot be read: no run may go on without it.
    """
    names = record_names(store)
    records = [read_json(store, name) for name in names]
    if not records:
        return Removals()
    sources: dict[str, str] = {}
    spans: dict[str, list[RemovedSpan]] = {}
    for record in records:
        for source in record["sources"]:
            sources.setdefault(source, record["made"])
        for clip in record["clips"]:
            of = {name: value for name, value in clip.items() if name != "source"}
            spans.setdefault(clip["source"], []).append(RemovedSpan(**of))
    sets = {name: frozenset().union(*(record[name] for record in records)) for name in _SETS}
    return Removals(
        sources=sources,
        spans={source: tuple(found) for source, found in spans.items()},
        unfinished=tuple(n for n, record in zip(names, records, strict=True) if not record["done"]),
        n_records=len(records),
        **sets,
    )


def finished_removals(store: Store) -> Removals:
    """Reads all records, for a command that writes.

    Raises:
        UsageError: A removal was begun and not finished.
    """
    removals = read_removals(store)
    if removals.unfinished:
        raise UsageError(
            f"a removal from {store.uri} was begun and not finished ({removals.unfinished[0]}): "
            f"run `curate remove {store.uri} --finish` first; nothing was changed"
        )
    return removals
