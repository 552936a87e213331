"""Stores candidate clips with their scores, so a rerun with other bounds only applies its rules.

Object names contain the fingerprint of `ProposeStage`, which does not depend on bounds of rules. An
object holds the candidates of many tracks:

    candidates/sources   measured facts of each source, its part of `tracks` and its payload
    candidates/clips     candidates_schema
    candidates/shots     SHOTS_SCHEMA
    candidates/vectors   embeddings_schema
    candidates/clip_vectors  embeddings_schema; only if the recipe names a CLIP model
    candidates/footage   FOOTAGE_SCHEMA: vectors among which duplicates are searched
    candidates/pictures  PICTURES_SCHEMA: small row groups, because few pictures are read

`footage` and `pictures` are payload: the worker that proposes the clips of a unit writes them, and
the driver only gets their name. Workers join small payload afterwards. The other kinds pass through
the driver, which decides by them; a part of theirs has many units.

`sources` is written last. The row of a source is valid while its payload exists, its part of
`tracks` exists with the same size, and its spans and moments are the same. If the row is not
valid, its clips are proposed again.

New candidates wait in memory until they have `FLUSH_CLIPS` clips or `FLUSH_BYTES` bytes, mostly of
vectors. So they take `FLUSH_BYTES` and one unit more, and up to three times as much during a
write. Merging small parts takes as much.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import DamagedError
from curator.fingerprints import fingerprint
from curator.packing import pack
from curator.records.sources import SourceRef
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.clip_vectors import like_vectors
from curator.tables.fenced_store import Digest, FencedStore
from curator.tables.footage_store import FootageStore, read_groups
from curator.tables.frame_hashes import frame_regions, overlapping_regions
from curator.tables.long_columns import joined_chunks, sorted_rows, take_values
from curator.tables.out_layout import find_unlisted
from curator.tables.parts import to_parquet, with_column
from curator.tables.removal_records import Removals
from curator.tables.schemas import (
    FOOTAGE_SCHEMA,
    PICTURES_SCHEMA,
    SOURCES_SCHEMA,
    embeddings_schema,
)
from curator.tables.snapshot_store import CANDIDATES
from curator.tables.track_items import FRAMES
from curator.tables.track_parts import TRACKS

logger = logging.getLogger(__name__)

FOLDER = "candidates"
FLUSH_CLIPS = 50_000  # clips that are collected before a write
FLUSH_BYTES = 128 << 20  # bytes in memory that are collected before a write
PACK_UNITS = 256  # units that are merged into one, because each table takes KB besides its rows
LARGE_BYTES = 16 << 10  # mean size of tables that are not merged
SMALL = 0.5  # a part is small if its valid rows have less than this share of both bounds
MAX_PARTS = 16  # with more small or unused parts, small parts are merged
LISTED_PER_FIND = 100  # objects that take the driver as long to list as one takes to find
REMAINDERS_S = (256 << 20) / 16_000  # seconds of remainders per part; pictures take 7 to 16 KB/s
JOIN_BYTES = 128 << 20  # stored bytes of joined payload; smaller than half of it is small
ROWS_PER_GROUP = {"footage": 64, "pictures": 8}  # clips per row group, for reads by clip id

_KINDS = ("clips", "shots", "vectors", "clip_vectors", "sources")
PAYLOAD = ("footage", "pictures")
_READERS = 16
_VECTORS = ("vectors", "clip_vectors")
_PAYLOAD_SCHEMAS = {"footage": FOOTAGE_SCHEMA, "pictures": PICTURES_SCHEMA}
PLACES_KEY = "places_key"
"""Column of `candidates/sources`: `SourceRef.places_key` of the spans and moments of its clips."""
_PLACE = ("source_id", "track_part", "track_bytes", "payload", PLACES_KEY)
_BYTES = b"curate.bytes"
"""Metadata of `sources`: bytes in memory of all tables of the part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedUnit:
    """Tables of shots, candidate clips and measured facts of some sources."""

    # By source id, the part of `tracks` with the frames of the source. Empty if the unit was read
    # from the store: `sources` has the column `track_part` then.
    track_parts: Mapping[str, str] = field(default_factory=dict)
    # Columns of `sources`. Rows without a `source_id` are failures, which the next run tries again.
    sources: pa.Table
    shots: pa.Table  # rows of `SHOTS_SCHEMA`
    clips: pa.Table  # rows of `candidates_schema`
    vectors: pa.Table  # rows of `embeddings_schema`
    # Vectors of the CLIP model; no rows without a CLIP model.
    clip_vectors: pa.Table = field(default_factory=lambda: embeddings_schema(1).empty_table())
    # Footage and pictures of these clips. None without clips, and if the unit was read from the
    # store: `sources` has the column `payload` then.
    payload: "Payload | None" = None
    # By clip id, seconds to the first key frame, and between key frames or to the end at most.
    # Empty if the unit was read from the store.
    key_gaps_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # Number of clips that were left out because they show removed footage.
    n_excluded: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Footage and pictures of some clips, as a worker stored them.

    Attributes:
        name: Name of the objects, without folders.
        objects: Digest of each object, by its name.
    """

    name: str
    objects: Mapping[str, Digest]

    @property
    def n_bytes(self) -> int:
        """Stored bytes."""
        return sum(digest.n_bytes for digest in self.objects.values())


Join = Callable[[Mapping[str, Sequence[str]]], Iterable[Payload]]
"""Joins payload on workers; gets the names to join by the name of the joined payload."""


class Candidates:
    """The candidates of a run, stored and new.

    Objects in `earlier`, which only older snapshots use, are ignored, or written again.
    """

    def __init__(
        self, store: Store, fingerprint: str, *, has_clip: bool, earlier: Collection[str] = ()
    ) -> None:
        self._store = store
        self.fingerprint = fingerprint
        self._earlier = earlier
        self._kinds = [kind for kind in _KINDS if kind != "clip_vectors" or has_clip]
        self._used: set[str] = set()  # parts with clips of sources that were loaded or added
        self._places: dict[str, pa.Table] = {}  # by part: its sources and their parts of `tracks`
        self._parts: list[str] = []  # names, without folders, of the current parts
        self._written: list[str] = []  # names of the parts that this object wrote
        self._remainders: list[str] = []  # names of the parts that hold remainders of clips
        self._payload_bytes: dict[str, int] = {}  # stored bytes of known payload, by name
        self._new: list[ProposedUnit] = []
        self._n_new = self._n_loose = self._n_bytes = self._n_tracks = 0
        self.track_part: dict[str, str] = {}  # the part of `tracks` with each source's frames

    @classmethod
    def of_snapshot(cls, store: Store, summary: Mapping[str, Any]) -> "Candidates":
        """Returns the candidates that a snapshot names; only their pictures can be read."""
        candidates = cls(store, summary["fingerprints"].get(FOLDER, ""), has_clip=False)
        names = stored_candidates(summary, "pictures")
        candidates._remainders = [name.rpartition("/")[2] for name in names]
        return candidates

    def load(self, of: Iterable[SourceRef], *, all_: bool = True) -> Iterator[ProposedUnit]:
        """Reads the stored rows of some sources, one part at a time.

        With `all_`, small parts may be merged, which drops rows of other sources.

        Yields:
            Rows with the current addresses, after `track_part` got their sources.
        """
        self._parts, self._used = self._whole_parts(), set()
        uris, spans = dict[str, str](), dict[str, str | None]()
        for source in of:
            uris[str(source.source_id)] = source.uri
            spans[str(source.source_id)] = source.places_key
        if not self._parts or not uris:
            return
        sizes = self._all_track_sizes()
        seen: set[str] = set()
        small: dict[str, pa.Array] = {}  # by part: which sources are valid
        for part in list(self._parts):
            sources = None
            if part not in self._places:
                sources = self._read("sources", part)
                self._places[part] = sources.select(_PLACE)
            columns = (self._places[part][name].to_pylist() for name in _PLACE)
            valid = [
                source_id in uris
                and source_id not in seen
                and sizes.get(track) == n_bytes
                and (payload is None or payload in self._payload_bytes)
                and key == spans[source_id]
                for source_id, track, n_bytes, payload, key in zip(*columns, strict=True)
            ]
            if not any(valid):
                continue
            self._used.add(part)
            unit = self._unit(part, pa.array(valid), sources)
            if self._share(part, unit.clips.num_rows, sum(valid) / len(valid)) < SMALL:
                small[part] = pa.array(valid)
            ids, parts = (unit.sources[name].to_pylist() for name in ("source_id", "track_part"))
            seen.update(ids)
            self.track_part |= zip(ids, parts, strict=True)
            yield _moved(unit, uris)
        large = [part for part in self._parts if part in self._used and part not in small]
        if all_ and seen and len(self._parts) - len(large) > MAX_PARTS:
            self._parts = large
            self._put_together(small)

    def add(self, unit: ProposedUnit) -> None:
        """Adds new candidates; writes all new candidates if they have many clips or bytes."""
        source_ids = unit.sources["source_id"].drop_null().to_pylist()
        if not source_ids:
            return
        if unit.payload is not None:
            self._note(unit.payload)
        self._new.append(_with_payload(unit))
        self._n_loose += 1
        self._n_new += unit.clips.num_rows
        # `nbytes` would take half a millisecond.
        self._n_bytes += sum(getattr(unit, kind).get_total_buffer_size() for kind in _KINDS)
        if self._n_loose >= PACK_UNITS:
            self._new[-self._n_loose :] = [_packed(self._new[-self._n_loose :])]
            self._n_loose = 0
        self.track_part |= {source_id: unit.track_parts[source_id] for source_id in source_ids}
        if self._n_new >= FLUSH_CLIPS or self._n_bytes >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes the candidates that were added since the last write."""
        if not self._new:
            return
        parts = {part for unit in self._new for part in unit.track_parts.values()}
        sizes = dict(self._track_sizes(parts))
        sizes |= {name: i.bytes for name, i in find_unlisted(self._store, parts, sizes).items()}
        if gone := parts.difference(sizes):
            raise DamagedError(self._store.uri, min(gone), "it is missing")
        units = [_placed(unit, sizes) for unit in self._new]
        self._new, self._n_new, self._n_loose, self._n_bytes = [], 0, 0, 0
        self._write(units)

    def join_payload(self, join: Join) -> None:
        """Joins small payload by `join` if there is much of it, and names the joined payload.

        Only sources of parts that this object wrote get other names: snapshots name other parts,
        which must not change.
        """
        loose = [name for unit in self._new for name in _payload_of(unit.sources)]
        stored = [name for part in self._written for name in _payload_of(self._place(part))]
        small = [
            name
            for name in dict.fromkeys((*stored, *loose))
            if self._payload_bytes.get(name, JOIN_BYTES) < JOIN_BYTES / 2
        ]
        if len(small) <= MAX_PARTS:
            return
        groups = list(
            pack(
                small,
                max_items=len(small),
                weight=lambda name: float(self._payload_bytes[name]),
                max_weight=float(JOIN_BYTES),
            )
        )
        into = {self._joined_name(group): group for group in groups if len(group) > 1}
        for payload in join(into):
            self._note(payload)
        now = {old: name for name, group in into.items() for old in group}
        self._new = [replace(unit, sources=_renamed(unit.sources, now)) for unit in self._new]
        for part in self._written:
            if not now.keys().isdisjoint(_payload_of(self._place(part))):
                self._places[part] = _renamed(self._place(part), now)
                name = f"{FOLDER}/sources/{part}"
                table = _renamed(self._read("sources", part), now)
                self._store.write(name, to_parquet(joined_chunks(table), name))

    def _note(self, payload: "Payload") -> None:
        """Notes what a worker wrote, so that the commit does not read it for its hash."""
        self._payload_bytes[payload.name] = payload.n_bytes
        if isinstance(self._store, FencedStore):
            self._store.written |= payload.objects

    def _joined_name(self, names: Sequence[str]) -> str:
        digest = hashlib.sha256(chr(10).join(sorted(names)).encode()).hexdigest()[:16]
        return f"{self.fingerprint}-{digest}.parquet"

    def remainders(
        self,
        parts: pa.Table,
        uris: Mapping[str, str],
        propose: Callable[[pa.Table], list[ProposedUnit]],
        join: Join,
    ) -> ProposedUnit:
        """Returns clips that are `parts` of other clips.

        `uris` has the address of each source id. Calls `propose` for parts that are not stored;
        parts of the same sources, up to `REMAINDERS_S` or a source, are stored together, and `join`
        joins their payload.
        """
        stored = [self._remainder(rows, propose, join) for rows in _by_sources(parts)]
        self._remainders = sorted({*self._remainders, *stored})
        return _moved(_merged([self._unit(part) for part in stored]), uris)

    def _remainder(
        self,
        parts: pa.Table,
        propose: Callable[[pa.Table], list[ProposedUnit]],
        join: Join,
    ) -> str:
        """Returns the stored object of parts of clips; `propose` makes it if it is missing."""
        wanted = fingerprint(parts.to_pylist())
        part = f"{remainders_fingerprint(self.fingerprint)}-{wanted}.parquet"
        names = [f"{FOLDER}/{kind}/{part}" for kind in (*self._kinds, *PAYLOAD)]
        if any(name in self._earlier or not self._store.exists(name) for name in names):
            units = propose(parts)
            made = [unit.payload.name for unit in units if unit.payload is not None]
            for payload in join({part: made}):
                self._note(payload)
            self._write_as(part, [_placed(_with_payload(unit), {}) for unit in units])
        return part

    def keep_remainders(self, summary: Mapping[str, Any]) -> None:
        """Keeps the remainders that a snapshot names, for a run that reuses their clips."""
        names = stored_candidates(summary, "clips")
        own = remainders_fingerprint(self.fingerprint)
        parts = (name.rpartition("/")[2] for name in names)
        self._remainders = [part for part in parts if part.startswith(own)]

    def pictures(self, clip_ids: Iterable[str]) -> dict[str, bytes]:
        """Returns a thumbnail of each clip; leaves out clips without thumbnails."""
        names = [f"{FOLDER}/pictures/{name}" for name in self._payload()]
        return read_pictures(self._store, names, clip_ids)

    def footage(self) -> FootageStore:
        """Returns the vectors by which duplicates are found; workers can read them too."""
        self.flush()
        return FootageStore(self._store, tuple(self._payload()), writes_index=True)

    def _payload(self) -> list[str]:
        """Returns the names of the payload of all clips that were loaded or added."""
        parts = [part for part in self._parts if part in self._used]
        own = {name for part in parts for name in _payload_of(self._place(part))}
        # A custom stage may have made clips of parts of others before the comparison.
        return [*sorted(own), *self._remainders]

    def names(self) -> set[str]:
        """Returns the names of all current objects."""
        parts = {*self._parts, *self._remainders}
        own = {name for part in self._parts for name in _payload_of(self._place(part))}
        named = {f"{FOLDER}/{kind}/{part}" for part in parts for kind in self._kinds}
        own.update(self._remainders)
        return named | {f"{FOLDER}/{kind}/{name}" for name in own for kind in PAYLOAD}

    def _place(self, part: str) -> pa.Table:
        """Returns the sources of a part, with their parts of `tracks` and their payload."""
        if part not in self._places:
            self._places[part] = self._read("sources", part).select(_PLACE)
        return self._places[part]

    def _whole_parts(self) -> list[str]:
        """Returns the names of complete parts: an object of each kind exists."""
        sizes = {info.key: info.bytes for info in self._store.list(f"{FOLDER}/")}
        there = sizes.keys() - self._earlier
        payload = [{n.rpartition("/")[2] for n in there if f"/{kind}/" in n} for kind in PAYLOAD]
        self._payload_bytes |= {
            name: sum(sizes[f"{FOLDER}/{kind}/{name}"] for kind in PAYLOAD)
            for name in set.intersection(*payload)
        }
        prefix = f"{FOLDER}/sources/{self.fingerprint}-"
        stored = [key.rpartition("/")[2] for key in there if key.startswith(prefix)]
        names = [f"{FOLDER}/{kind}/{part}" for part in stored for kind in self._kinds]
        lost = [name for name in names if name not in there]
        if lost:
            logger.warning(
                "missing objects of stored candidates: %d, such as %s/%s; the clips of their "
                "sources are proposed again",
                len(lost),
                self._store.uri,
                min(lost),
            )
        gone = {name.rpartition("/")[2] for name in lost}
        return sorted(part for part in stored if part not in gone)

    def _all_track_sizes(self) -> dict[str, int]:
        sizes = {i.key: i.bytes for i in self._store.list(f"{TRACKS}/{FRAMES}/")}
        self._n_tracks = len(sizes)
        return sizes

    def _track_sizes(self, parts: Collection[str]) -> Mapping[str, int]:
        """Returns sizes of parts of `tracks`, by a listing unless it has many other parts."""
        if self._n_tracks <= LISTED_PER_FIND * len(parts):
            return self._all_track_sizes()
        with ThreadPoolExecutor(_READERS) as pool:
            found = pool.map(self._store.find, parts)
            return {info.key: info.bytes for info in found if info is not None}

    def _share(self, part: str, n_clips: int, share: float) -> float:
        """Returns how full a part is: its valid clips, and this share of its bytes, per bound."""
        metadata = self._places[part].schema.metadata or {}
        return max(n_clips / FLUSH_CLIPS, share * int(metadata.get(_BYTES, 0)) / FLUSH_BYTES)

    def _read(self, kind: str, part: str) -> pa.Table:
        return read_parquet(self._store, f"{FOLDER}/{kind}/{part}")

    def _unit(
        self, part: str, valid: pa.Array | None = None, sources: pa.Table | None = None
    ) -> ProposedUnit:
        """Reads the rows of valid sources."""
        tables = {} if sources is None else {"sources": sources}
        for kind in self._kinds:
            if kind not in tables:
                tables[kind] = self._read(kind, part)
        if valid is not None and pc.all(valid).as_py() is not True:
            tables["sources"] = tables["sources"].filter(valid)
            for kind in ("clips", "shots"):
                tables[kind] = _only(tables[kind], "source_id", tables["sources"])
            for kind in tables.keys() & {*_VECTORS}:
                tables[kind] = _only(tables[kind], "clip_id", tables["clips"])
        return ProposedUnit(**tables)

    def _put_together(self, small: Mapping[str, pa.Array]) -> None:
        """Merges small parts into larger ones; leaves out rows of sources that are not valid."""
        units: list[ProposedUnit] = []
        n_clips = n_bytes = 0
        for name, valid in small.items():
            unit = self._unit(name, valid)
            n_clips += unit.clips.num_rows
            n_bytes += _n_bytes(unit)
            if units and (n_clips > FLUSH_CLIPS or n_bytes > FLUSH_BYTES):
                self._write(units)
                units, n_clips, n_bytes = [], unit.clips.num_rows, _n_bytes(unit)
            units.append(unit)
        if units:
            self._write(units)

    def _write(self, units: list[ProposedUnit]) -> None:
        """Writes units as one part, and empties the list."""
        rows = ((unit.sources[n].to_pylist() for n in ("source_id", PLACES_KEY)) for unit in units)
        names = sorted(i + (key or "") for row in rows for i, key in zip(*row, strict=True))
        digest = hashlib.sha256(chr(10).join(names).encode()).hexdigest()[:16]
        part = f"{self.fingerprint}-{digest}.parquet"
        self._places[part] = pa.concat_tables([unit.sources.select(_PLACE) for unit in units])
        self._write_as(part, units)
        self._parts.append(part)
        self._written.append(part)
        self._used.add(part)

    def _write_as(self, part: str, units: list[ProposedUnit]) -> None:
        merged = _merged(units)
        tables = {kind: getattr(merged, kind) for kind in self._kinds}
        n_bytes = _n_bytes(merged)
        tables["sources"] = tables["sources"].replace_schema_metadata({_BYTES: str(n_bytes)})
        # Each table is freed when it is written.
        units.clear()
        del merged
        for kind in self._kinds:
            name = f"{FOLDER}/{kind}/{part}"
            self._store.write(name, to_parquet(joined_chunks(tables.pop(kind)), name))


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadJoin:
    """Payload to join: objects of `names` become one of name `into`."""

    into: str
    names: tuple[str, ...]


class PayloadJoiner:
    """The step of a worker that joins payload."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, unit: PayloadJoin) -> Payload:
        """Writes the joined payload."""
        objects: dict[str, Digest] = {}
        for kind, schema in _PAYLOAD_SCHEMAS.items():
            tables = [read_parquet(self._store, f"{FOLDER}/{kind}/{name}") for name in unit.names]
            rows = pa.concat_tables([schema.empty_table(), *(t.cast(schema) for t in tables)])
            tables.clear()
            objects |= _write_payload(self._store, kind, unit.into, rows)
        return Payload(name=unit.into, objects=objects)


def write_payload(
    store: Store, fingerprint_of_candidates: str, footage: pa.Table, pictures: pa.Table
) -> Payload | None:
    """Writes the payload of clips; returns None for no clips."""
    ids = sorted(pictures["clip_id"].to_pylist())
    if not ids:
        return None
    digest = hashlib.sha256(chr(10).join(ids).encode()).hexdigest()[:16]
    name = f"{fingerprint_of_candidates}-{digest}.parquet"
    objects = {
        **_write_payload(store, "footage", name, footage),
        **_write_payload(store, "pictures", name, pictures),
    }
    return Payload(name=name, objects=objects)


def _write_payload(store: Store, kind: str, name: str, rows: pa.Table) -> dict[str, Digest]:
    key = f"{FOLDER}/{kind}/{name}"
    data = to_parquet(sorted_rows(rows, "clip_id"), key, rows_per_group=ROWS_PER_GROUP[kind])
    store.write(key, data)
    return {key: Digest.of(data)}


def remainders_fingerprint(fingerprint_of_candidates: str) -> str:
    """Returns the fingerprint in the names of objects that hold remainders of clips."""
    return fingerprint("remainders", fingerprint_of_candidates)


def stored_candidates(summary: Mapping[str, Any], kind: str) -> list[str]:
    """Returns the objects of one kind, such as `pictures`, that a snapshot names."""
    return [name for name in summary[CANDIDATES] if name.startswith(f"{FOLDER}/{kind}/")]


def read_pictures(store: Store, names: Sequence[str], clip_ids: Iterable[str]) -> dict[str, bytes]:
    """Reads the middle thumbnail of each clip from objects of `candidates/pictures`."""
    pictures = read_all_pictures(store, names, clip_ids)
    return {clip_id: jpegs[len(jpegs) // 2] for clip_id, jpegs in pictures.items() if jpegs}


def read_all_pictures(
    store: Store, names: Sequence[str], clip_ids: Iterable[str]
) -> dict[str, list[bytes]]:
    """Reads all thumbnails of clips; of each object, reads only the row groups with these clips."""
    missing = set(clip_ids)
    pictures: dict[str, list[bytes]] = {}
    for name in names:
        if not missing:
            break
        for table in read_groups(store, name, missing, ["clip_id", "jpeg"]):
            pictures |= zip(table["clip_id"].to_pylist(), table["jpeg"].to_pylist(), strict=True)
        missing -= pictures.keys()
    return pictures


def _with_payload(unit: ProposedUnit) -> ProposedUnit:
    """Returns the unit with the columns `payload` and `PLACES_KEY` of `sources`."""
    rows = unit.sources
    if PLACES_KEY not in rows.column_names:  # sources without spans
        rows = rows.append_column(PLACES_KEY, pa.nulls(rows.num_rows, pa.string()))
    own = None if unit.payload is None else unit.payload.name
    names = pa.repeat(pa.scalar(own, pa.string()), rows.num_rows)
    return replace(unit, sources=rows.append_column("payload", names), payload=None)


def _payload_of(sources: pa.Table) -> list[str]:
    names: list[str] = sources["payload"].unique().drop_null().to_pylist()
    return names


def _renamed(sources: pa.Table, now: Mapping[str, str]) -> pa.Table:
    """Returns rows of `sources` with other names of payload."""
    names = [now.get(name, name) for name in sources["payload"].to_pylist()]
    return with_column(sources, "payload", pa.array(names, pa.string()))


def _placed(unit: ProposedUnit, sizes: Mapping[str, int]) -> ProposedUnit:
    """Returns the unit with sources that can be stored, and adds their parts of `tracks`."""
    rows = unit.sources.filter(pc.is_valid(unit.sources["source_id"]))
    parts = [unit.track_parts[source_id] for source_id in rows["source_id"].to_pylist()]
    rows = rows.append_column("track_part", pa.array(parts, pa.string()))
    n_bytes = pa.array([sizes[part] for part in parts], pa.int64())
    rows = rows.append_column("track_bytes", n_bytes)
    # Columns of `sources` that other stages fill are null.
    all_columns = [SOURCES_SCHEMA.empty_table(), rows]
    return replace(unit, sources=pa.concat_tables(all_columns, promote_options="default"))


def _merged(units: Sequence[ProposedUnit]) -> ProposedUnit:
    """Concatenates the tables of several units without copying data."""
    if len(units) == 1:
        return units[0]

    def joined(kind: str) -> pa.Table:
        tables = [getattr(unit, kind) for unit in units]
        return pa.concat_tables(like_vectors(tables) if kind in _VECTORS else tables)

    return ProposedUnit(**{kind: joined(kind) for kind in _KINDS})


def _n_bytes(unit: ProposedUnit) -> int:
    """Returns the bytes of a unit in memory."""
    return sum(getattr(unit, kind).nbytes for kind in _KINDS)


def _by_sources(parts: pa.Table) -> Iterator[pa.Table]:
    """Yields parts of clips in groups of about `REMAINDERS_S`, each source in one group."""
    ids, seconds = (
        parts["source_id"].to_pylist(),
        pc.subtract(parts["part_end_s"], parts["part_start_s"]),
    )
    of_source: Counter[str] = Counter()
    for source_id, part_s in zip(ids, seconds.to_pylist(), strict=True):
        of_source[source_id] += part_s
    groups = pack(
        sorted(of_source),
        max_items=len(of_source),
        weight=of_source.__getitem__,
        max_weight=REMAINDERS_S,
    )
    for group in groups:
        yield parts.filter(pc.is_in(parts["source_id"], value_set=pa.array(group, pa.string())))


def _packed(units: Sequence[ProposedUnit]) -> ProposedUnit:
    merged = _merged(units)
    tables = {kind: getattr(merged, kind) for kind in _KINDS}
    # To copy large tables would take longer than a few KB are worth.
    least = len(units) * LARGE_BYTES
    tables = {
        k: t if t.get_total_buffer_size() > least else joined_chunks(t) for k, t in tables.items()
    }
    parts = {source_id: part for unit in units for source_id, part in unit.track_parts.items()}
    return ProposedUnit(track_parts=parts, **tables)


def _only(table: pa.Table, column: str, of: pa.Table) -> pa.Table:
    """Returns the rows of a table with a value of `column` that the table `of` also has."""
    return table.filter(pc.is_in(table[column], value_set=of[column]))


def _moved(unit: ProposedUnit, uris: Mapping[str, str]) -> ProposedUnit:
    """Returns the unit with the current addresses of its sources."""
    rows = []
    for table in (unit.sources, unit.clips):
        ids = table["source_id"].unique()
        own = pa.array([uris[source_id] for source_id in ids.to_pylist()], pa.string())
        places = pc.index_in(table["source_id"], value_set=ids)
        rows.append(take_values(pa.chunked_array([own]), places))
    now, of_clip = rows
    sources, clips = with_column(unit.sources, "uri", now), unit.clips
    return replace(unit, sources=sources, clips=with_column(clips, "source_uri", of_clip))


def removed_clips(
    store: Store, clips: pa.Table, tracks: Iterable[str], removals: Removals
) -> NDArray[np.bool_]:
    """Returns which candidates share more than a frame with removed footage, bool [N].

    Removed footage is a removed clip of the same source, or equal decoded frames of another file.
    `tracks` are the parts of `tracks` with the frames of the clips' sources.
    """
    if not removals or not clips.num_rows:
        return np.zeros(clips.num_rows, bool)
    regions = frame_regions(store, removals.frames, sorted(set(tracks)))
    is_gone: NDArray[np.bool_] = removals.rows(clips) | overlapping_regions(clips, regions)
    return is_gone


def subtract_counts(sources: pa.Table, column: str, lost: Mapping[str, int]) -> pa.Table:
    """Returns rows of `sources`, and subtracts `lost` clips, by source id, from `column`."""
    rows = zip(sources["source_id"].to_pylist(), sources[column].to_pylist(), strict=True)
    now = [max(0, count - lost.get(name, 0)) if count else count for name, count in rows]
    return with_column(sources, column, pa.array(now, pa.int32()))
