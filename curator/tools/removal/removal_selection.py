"""Selects the footage of a removal in all snapshots, from clips and sources that a user names."""

import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curator.errors import UsageError, ambiguous_id
from curator.records.clips import Reason
from curator.storage import Store
from curator.storage.base import has_scheme
from curator.tables.candidate_store import FOLDER as CANDIDATES
from curator.tables.candidate_store import read_all_pictures
from curator.tables.checksums import read_parquet, read_rows
from curator.tables.frame_hashes import (
    NO_HASHES,
    Regions,
    frame_regions,
    overlapping_regions,
    span_hashes,
    stored_luma,
)
from curator.tables.out_layout import is_own
from curator.tables.removal_records import (
    CAPTION_COLUMNS,
    HASHES,
    LENGTHS,
    Removals,
    RemovedSpan,
    caption_hash,
    empty_record,
    packed_hashes,
    plain_caption,
    removal_hash,
)
from curator.tables.schemas import clips_schema, scores_in
from curator.tables.sql_condition import matching_clips
from curator.tables.track_items import FRAMES
from curator.tables.track_parts import TRACKS
from curator.tables.track_table import ORIGIN
from curator.tools.report.page_templates import card_picture
from curator.tools.verify.shared_content import picture_hash, pictures_that_stay

By = Literal["clips", "sources", "where", "returned"]
Summaries = Mapping[int, Mapping[str, Any]]
"""Summaries of all snapshots by number."""

_SPAN = ("start_s", "end_s", "start_frame", "end_frame")
_CLIP = ("clip_id", "source_id", *_SPAN, "fps")
_OF_KEPT = ("decision", "reason", "duplicate_of", "shard", "mp4_sha256", "caption")


class Duplicate(NamedTuple):
    """A clip that was rejected as the duplicate of a removed clip."""

    clip_id: str
    source_uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalSelection:
    """The footage that a removal takes.

    Attributes:
        record: The record to write before any other change.
        footage_ids: Clips whose whole footage is removed, not clips that merely overlap removed
            footage.
        clip_ids: Removed clips that are in the shards of a snapshot; `seconds` is their total.
        shards: Tars that hold the clips of `clip_ids`.
        n_overlapping: Clips that share footage with named clips and were not named.
        n_same: Clips of other files with the same frames or the same MP4.
        n_unhashed: Removed sources without hashes of their frames.
        duplicates: Clips that stay and were rejected as duplicates of removed clips.
        example: A removed clip and its source, as text; None if no snapshot keeps one.
    """

    record: dict[str, Any]
    footage_ids: frozenset[str]
    clip_ids: frozenset[str]
    seconds: float
    shards: frozenset[str]
    n_overlapping: int
    n_same: int
    n_unhashed: int
    duplicates: tuple[Duplicate, ...]
    example: str | None


def select(
    store: Store,
    summaries: Summaries,
    by: By,
    named: Sequence[str],
    *,
    with_duplicates: bool = False,
    before: Removals | None = None,
) -> RemovalSelection:
    """Selects the footage of a removal, in snapshots and in stored results of interrupted runs.

    Args:
        store: Output root.
        summaries: Summaries of all snapshots by number.
        by: Kind of the names in `named`.
        named: Ids of clips, or beginnings that no other clip has; addresses or ids of sources; a
            condition over columns of `clips`; nothing for footage of earlier removals that came
            back.
        with_duplicates: Whether to remove clips that were rejected as duplicates of removed clips.
        before: Footage that earlier removals took.

    Raises:
        UsageError: No clip or source has a given name, or the condition is wrong.
    """
    columns = None if by == "where" else (*_CLIP, "source_uri", *_OF_KEPT)
    tables = tables_of(store, summaries, "clips", columns)
    whole = clips_schema(scores_in(pa.schema([]))).empty_table()
    clips = pa.concat_tables([*tables, whole], promote_options="default")
    sources = _sources_of(store, summaries)
    footage = pa.concat_tables([clips.select(_CLIP), *stored_clips(store)])
    selection = _Selection(store, clips, footage)
    uris: set[str] = set()
    if by == "sources":
        contents, uris = _sources(store, clips, sources, named)
        selection.sources = {removal_hash(item) for item in contents}
    elif by == "returned":
        selection.take_returned(before or Removals())
        named = sorted(selection.ids())
    else:
        if by == "where":
            named = matching_clips(
                clips,
                named[0],
                example="source_uri LIKE '%/private/%'",
                instead="name what to remove by --clips or --sources",
            )
        footage_ids = sorted(footage["clip_id"].unique().to_pylist())
        named = list(dict.fromkeys(_clip_id(store, footage_ids, name) for name in named))
        selection.add(named)
    named_ids = selection.ids()
    duplicates = selection.grow(with_duplicates=with_duplicates)
    ids, own_ids, gone = selection.ids(), selection.own_ids(), selection.removals()
    rows = clips.filter(pa.array(gone.rows(clips)))
    kept = rows.filter(pc.equal(rows["decision"], "kept"))
    # A clip of several snapshots counts once.
    named_columns = ["clip_id", "source_uri", "start_s", "end_s"]
    own = {row["clip_id"]: row for row in kept.select(named_columns).to_pylist()}
    captions = _captions(store, summaries, clips, gone)
    record = empty_record(by) | {
        "n_named": len(named),
        "n_clips": len(own),
        "n_sources": len(gone.sources),
        "sources": sorted(gone.sources),
        "uris": sorted(map(removal_hash, uris | _uris(sources, gone))),
        "clips": [
            {"source": source, **asdict(span)}
            for source, spans in sorted(gone.spans.items())
            for span in spans
        ],
        "clip_ids": sorted(gone.clip_ids),
        "mp4": sorted(set(rows["mp4_sha256"].drop_null().to_pylist())),
        "captions": sorted(captions),
        LENGTHS: sorted(set(captions.values())),
        "pictures": _pictures(store, own_ids, ids, gone),
        HASHES: packed_hashes(selection.frames),
    }
    return RemovalSelection(
        record=record,
        footage_ids=frozenset(own_ids),
        clip_ids=frozenset(own),
        seconds=sum(row["end_s"] - row["start_s"] for row in own.values()),
        shards=frozenset(kept["shard"].drop_null().to_pylist()),
        n_overlapping=len(named_ids) - len(named) if by in ("clips", "where") else 0,
        n_same=len(ids) - len(named_ids),
        n_unhashed=selection.n_unhashed,
        duplicates=duplicates,
        example=next((f"{name} of {row['source_uri']}" for name, row in own.items()), None),
    )


class _Selection:
    """Collects the footage that a removal takes.

    Args:
        store: Output root.
        clips: Rows of `clips` of all snapshots.
        footage: Those and stored candidates, in the columns `_CLIP`.
    """

    def __init__(self, store: Store, clips: pa.Table, footage: pa.Table) -> None:
        self._store, self._clips, self._footage = store, clips, footage
        self.sources: set[str] = set()
        """Hashes of the ids of whole sources."""
        self._spans: defaultdict[str, list[RemovedSpan]] = defaultdict(list)
        self._same: defaultdict[str, list[RemovedSpan]] = defaultdict(list)
        """Spans with frames of the others, by the hash of the source's id."""
        self._named: set[str] = set()
        self.frames = NO_HASHES
        self.n_unhashed = 0

    def add(self, clip_ids: Collection[str]) -> None:
        """Adds clips, each with the widest span that it had."""
        self._named.update(clip_ids)
        for source, spans in _spans_of(self._footage, clip_ids).items():
            self._spans[source] += spans

    def take_returned(self, before: Removals) -> None:
        """Adds clips of removed footage that returned, by their MP4s and frames.

        A thumbnail proves nothing: later sources may have the same title card or black picture.
        """
        mp4 = pa.array(sorted(before.mp4), pa.string())
        is_back = pc.is_in(self._clips["mp4_sha256"], value_set=mp4)
        back = set(self._clips.filter(is_back)["clip_id"].to_pylist())
        removed_ids = self._footage.filter(pa.array(before.rows(self._footage)))["clip_id"]
        self.add(back.difference(removed_ids.to_pylist()))
        self._take_regions(frame_regions(self._store, before.frames), before)

    def removals(self) -> Removals:
        """Returns the footage collected so far."""
        spans = {
            source: tuple(dict.fromkeys(self._spans[source] + self._same[source]))
            for source in sorted({*self._spans, *self._same} - self.sources)
        }
        removals = Removals(
            sources=dict.fromkeys(sorted(self.sources), ""),
            spans=spans,
            clip_ids=frozenset(map(removal_hash, self._named)),
        )
        ids = self._footage.filter(pa.array(removals.rows(self._footage)))["clip_id"].unique()
        hashes = frozenset(map(removal_hash, ids.to_pylist()))
        return replace(removals, clip_ids=removals.clip_ids | hashes)

    def ids(self) -> set[str]:
        """Returns the ids of all clips to remove."""
        is_gone = pa.array(self.removals().rows(self._footage))
        return set(self._footage.filter(is_gone)["clip_id"].to_pylist())

    def own_ids(self) -> set[str]:
        """Returns the ids of clips whose whole footage is removed."""
        gone = self.removals()
        own = set(self._named)
        for row in self._footage.filter(pa.array(gone.rows(self._footage))).to_pylist():
            source = removal_hash(row["source_id"])
            if source in gone.sources or any(
                span.start_frame <= row["start_frame"] and row["end_frame"] <= span.end_frame
                for span in gone.spans.get(source, ())
            ):
                own.add(row["clip_id"])
        return own

    def grow(self, *, with_duplicates: bool) -> tuple[Duplicate, ...]:
        """Adds the same footage in other files; returns duplicates that stay."""
        while True:
            self._hash_frames()
            self._take_regions(frame_regions(self._store, self.frames), Removals())
            ids = self.ids()
            rows = self._clips.filter(_among(self._clips["clip_id"], ids))
            mp4s = rows["mp4_sha256"].drop_null().to_pylist()
            same = self._clips.filter(_among(self._clips["mp4_sha256"], mp4s))
            reasons = [str(Reason.DUPLICATE), str(Reason.DIVIDED)]
            is_duplicate = pc.and_(
                _among(self._clips["reason"], reasons), _among(self._clips["duplicate_of"], ids)
            )
            copies = self._clips.filter(is_duplicate).select(["clip_id", "source_uri"])
            duplicates = {row["clip_id"]: row["source_uri"] for row in copies.to_pylist()}
            duplicates = {name: uri for name, uri in duplicates.items() if name not in ids}
            more = set(same["clip_id"].to_pylist()) - ids
            if with_duplicates:
                more |= duplicates.keys()
            if not more:
                return tuple(map(Duplicate._make, sorted(duplicates.items())))
            self.add(more)

    def _hash_frames(self) -> None:
        """Hashes the frames of footage that was found by id, if its tracks are stored."""
        hashes, hashed = [], set()
        for source_id, mean, spread in stored_luma(self._store):
            source = removal_hash(source_id)
            spans = [(span.start_frame, span.end_frame) for span in self._spans.get(source, ())]
            if source in self.sources:
                spans = [(0, len(mean))]
            if spans:
                hashed.add(source)
                hashes.append(span_hashes(mean, spread, spans))
        self.frames = np.unique(np.concatenate(hashes)) if hashes else NO_HASHES
        self.n_unhashed = len({*self.sources, *self._spans} - hashed)

    def _take_regions(self, regions: Mapping[str, Regions], before: Removals) -> None:
        """Adds the parts of other clips that have the same frames."""
        removed = replace(before, sources={**before.sources, **dict.fromkeys(self.sources, "")})
        is_same = overlapping_regions(self._footage, regions)
        is_same &= ~removed.rows(self._footage)
        for row in self._footage.filter(pa.array(is_same)).to_pylist():
            source, fps = removal_hash(row["source_id"]), row["fps"] or 25.0
            spans = self._same[source]
            for start, end in regions[row["source_id"]].tolist():
                start, end = max(start, row["start_frame"]), min(end, row["end_frame"])
                if end - start > 1:
                    span = RemovedSpan(
                        start_s=row["start_s"] + (start - row["start_frame"]) / fps,
                        end_s=row["end_s"] - (row["end_frame"] - end) / fps,
                        start_frame=start,
                        end_frame=end,
                    )
                    if span not in spans:
                        spans.append(span)


def _among(column: pa.ChunkedArray, values: Collection[str]) -> pa.ChunkedArray:
    return pc.is_in(column, value_set=pa.array(sorted(values), pa.string()))


def tables_of(
    store: Store, summaries: Summaries, name: str, columns: Sequence[str] | None = None
) -> list[pa.Table]:
    """Reads the parts of a table of all snapshots, each once."""
    parts = dict.fromkeys(
        p for summary in summaries.values() for p in summary["tables"].get(name, ())
    )
    return [read_parquet(store, part, columns) for part in parts]


def stored_clips(store: Store) -> Iterator[pa.Table]:
    """Reads all stored candidates, of any recipe."""
    read = partial(pq.ParquetFile.read, columns=list(_CLIP))
    for info in store.list(f"{CANDIDATES}/clips/"):
        yield read_rows(store, info.key, read)


def _sources_of(store: Store, summaries: Summaries) -> pa.Table:
    """Returns addresses and ids of the sources of all snapshots, and of stored results."""
    empty = pa.schema([("uri", pa.string()), ("source_id", pa.string())]).empty_table()
    tables = [*tables_of(store, summaries, "sources", ("uri", "source_id")), empty]
    tables += _stored_sources(store, f"{CANDIDATES}/sources", "uri")
    tables += _stored_sources(store, f"{TRACKS}/{FRAMES}", ORIGIN[0])
    sources = pa.concat_tables(tables)
    # The probe of a large file gives a provisional id; analysis settles the id.
    scanned = pa.concat_tables([empty, *_stored_sources(store, "scan", "uri")])
    is_known = pc.is_in(scanned["uri"], value_set=sources["uri"])
    return pa.concat_tables([sources, scanned.filter(pc.invert(is_known))])


def _stored_sources(store: Store, folder: str, uri: str) -> Iterator[pa.Table]:
    read = partial(pq.ParquetFile.read, columns=[uri, "source_id"])
    for name in [info.key for info in store.list(f"{folder}/") if is_own(info.key)]:
        table = read_rows(store, name, read)
        yield table.select([uri, "source_id"]).rename_columns(["uri", "source_id"])


def _clip_id(store: Store, clip_ids: Sequence[str], name: str) -> str:
    """Returns the one of some ids, in ascending order, that is or begins with a name."""
    first = bisect_left(clip_ids, name)
    # No id has a character as high as the last one.
    last = bisect_left(clip_ids, f"{name}\U0010ffff")
    if first == last:
        raise UsageError(
            f"{store.uri} has no clip {name!r} in any snapshot, and no stored candidate of that "
            "id; nothing was removed"
        )
    if last - first > 1 and clip_ids[first] != name:
        raise UsageError(f"{ambiguous_id(name, clip_ids[first:last])}; nothing was removed")
    return clip_ids[first]


def _sources(
    store: Store, clips: pa.Table, sources: pa.Table, named: Sequence[str]
) -> tuple[set[str], set[str]]:
    """Returns the ids of named sources, and named addresses that never had an id."""
    pairs = set(zip(sources["uri"].to_pylist(), sources["source_id"].to_pylist(), strict=True))
    pairs |= set(zip(clips["source_uri"].to_pylist(), clips["source_id"].to_pylist(), strict=True))
    of_uri: defaultdict[str, set[str | None]] = defaultdict(set)
    for uri, source_id in pairs:
        of_uri[uri].add(source_id)
    source_ids = {source_id for _, source_id in pairs} - {None}
    ids: set[str] = set()
    uris: set[str] = set()
    for name in named:
        path = name if has_scheme(name) else os.path.abspath(name)
        if name in source_ids:
            ids.add(name)
        elif (uri := name if name in of_uri else path) in of_uri:
            ids |= {source_id for source_id in of_uri[uri] if source_id is not None}
            uris.add(uri)
        else:
            raise UsageError(
                f"{store.uri} has no source {name!r} in any snapshot or stored result; nothing was "
                "removed"
            )
    return ids, {uri for uri in uris if of_uri[uri] <= {None}}


def _uris(sources: pa.Table, gone: Removals) -> set[str]:
    """Returns the addresses that held only removed sources."""
    is_gone = pa.array(gone.named(sources["source_id"], gone.sources))
    removed = set(sources.filter(is_gone)["uri"].to_pylist()) - {None}
    others = sources.filter(pc.and_(pc.invert(is_gone), pc.is_valid(sources["source_id"])))
    return removed - set(others["uri"].to_pylist())


def _spans_of(clips: pa.Table, named: Collection[str]) -> dict[str, list[RemovedSpan]]:
    """Returns the widest span of each clip: a written clip may be shorter than its candidate."""
    own = clips.filter(_among(clips["clip_id"], named))
    wanted = [("start_s", "min"), ("end_s", "max"), ("start_frame", "min"), ("end_frame", "max")]
    widest = own.group_by(["clip_id", "source_id"]).aggregate(wanted).sort_by("clip_id")
    spans: defaultdict[str, list[RemovedSpan]] = defaultdict(list)
    for row in widest.to_pylist():
        span = RemovedSpan(**{name: row[f"{name}_{how}"] for name, how in wanted})
        spans[removal_hash(row["source_id"])].append(span)
    return spans


def _captions(
    store: Store, summaries: Summaries, clips: pa.Table, gone: Removals
) -> dict[str, int]:
    """Returns hash and length of the captions that only removed clips have."""
    own: set[str] = set()
    others: set[str] = set()
    texts = CAPTION_COLUMNS["annotations"]
    annotations = tables_of(store, summaries, "annotations", ("clip_id", *texts))
    for table, names in [(clips, CAPTION_COLUMNS["clips"]), *((t, texts) for t in annotations)]:
        is_gone = pa.array(gone.rows(table.select(["clip_id"])))
        for name in names:
            texts = table[name]
            own.update(map(plain_caption, texts.filter(is_gone).unique().drop_null().to_pylist()))
            rest = texts.filter(pc.invert(is_gone)).unique().drop_null()
            others.update(map(plain_caption, rest.to_pylist()))
    hashes = {text: caption_hash(text) for text in own - others}
    return {name: len(text) for text, name in hashes.items() if name is not None}


def _pictures(
    store: Store, own_ids: Collection[str], ids: Collection[str], gone: Removals
) -> list[str]:
    """Returns hashes of the thumbnails of `own_ids`, without those of footage that stays.

    Sources may share title cards and black pictures. `ids` are all clips that are removed.
    """
    n_bytes: dict[str, int] = {}
    cards: dict[str, str] = {}
    for info in store.list(f"{CANDIDATES}/pictures/"):
        for jpegs in read_all_pictures(store, [info.key], own_ids).values():
            n_bytes |= {picture_hash(jpeg): len(jpeg) for jpeg in jpegs}
            if jpegs:
                # Reports show a smaller copy of the middle picture.
                middle = jpegs[len(jpegs) // 2]
                cards[picture_hash(middle)] = picture_hash(card_picture(middle))
    lengths = pa.array(sorted(set(n_bytes.values())), pa.int32())
    own = set(n_bytes)
    for pictures in pictures_that_stay(store, ids, gone) if own else ():
        # Hashing all pictures would take longer than reading them.
        alike = pictures.filter(pc.is_in(pc.binary_length(pictures), value_set=lengths))
        own.difference_update(map(picture_hash, alike.to_pylist()))
    return sorted(own | {cards[picture] for picture in own & cards.keys()})
