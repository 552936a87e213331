"""Finds what footage that stays shares with removed footage, byte for byte.

Sources share title cards, black pictures and captions. A record may name such a picture, because
footage that has it too came later, or because an earlier version wrote the record. It is then no
sign of removed footage.
"""

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curator.errors import DamagedError
from curator.stage import THUMBNAILS
from curator.storage import Store
from curator.tables.candidate_store import FOLDER as CANDIDATES
from curator.tables.caption_search import CaptionSearch
from curator.tables.checksums import read_parquet, read_rows
from curator.tables.frame_hashes import frame_regions, overlapping_regions
from curator.tables.removal_records import CAPTION_COLUMNS, Removals
from curator.tables.snapshot_store import listed_snapshots
from curator.tables.track_parts import TRACKS, without_removed_thumbnails
from curator.tools.report.page_templates import card_picture

_CLIP = ("clip_id", "source_id", "start_s", "end_s", "start_frame", "end_frame", "fps")


def without_shared(store: Store, removals: Removals) -> Removals:
    """Returns removals without captions and pictures that footage that stays has too.

    A caption may also be a part of one that stays. If stored results are damaged, all pictures
    count as those of removed footage.
    """
    try:
        pictures = _shared_pictures(store, removals)
    except DamagedError:
        pictures = set()
    return replace(
        removals,
        captions=removals.captions - _shared_captions(store, removals),
        pictures=removals.pictures - pictures,
    )


def parts_of_snapshots(store: Store, table: str) -> Iterator[str]:
    """Yields the parts of a table in all readable snapshots."""
    for _, summary in listed_snapshots(store):
        if not isinstance(summary, Exception):
            yield from summary["tables"].get(table, ())


def pictures_that_stay(
    store: Store, ids: Collection[str], gone: Removals
) -> Iterator[pa.ChunkedArray]:
    """Yields the thumbnails of candidates that stay, and of tracks, block by block.

    Args:
        store: Output root.
        ids: Removed clips besides those that `gone` names.
        gone: Removed footage.
    """
    own = pa.array(sorted(ids), pa.string())
    for name in [info.key for info in store.list(f"{CANDIDATES}/pictures/")]:
        table = read_rows(store, name, partial(pq.ParquetFile.read, columns=["clip_id", "jpeg"]))
        is_named = pa.array(gone.named(table["clip_id"], gone.clip_ids))
        stays = pc.invert(pc.or_(pc.is_in(table["clip_id"], value_set=own), is_named))
        yield pc.list_flatten(table.filter(stays)["jpeg"])
    columns = ["source_id", *THUMBNAILS]
    for name in [info.key for info in store.list(f"{TRACKS}/pictures/")]:
        table = read_rows(store, name, partial(pq.ParquetFile.read, columns=columns))
        table = without_removed_thumbnails(table, gone)
        stays = pa.array(~gone.named(table["source_id"], gone.sources))
        yield pc.list_flatten(table.filter(stays)[THUMBNAILS[1]])


def picture_hash(jpeg: bytes) -> str:
    """Returns the hash of a picture, as records have it."""
    return hashlib.sha256(jpeg).hexdigest()


def _shared_pictures(store: Store, removals: Removals) -> set[str]:
    shared: set[str] = set()
    ids = _removed_clips(store, removals) if removals.pictures else ()
    for pictures in pictures_that_stay(store, ids, removals) if removals.pictures else ():
        for jpeg in pictures.to_pylist():
            if (digest := picture_hash(jpeg)) in removals.pictures - shared:
                # Reports show a smaller copy, which a record names, too.
                shared |= {digest, picture_hash(card_picture(jpeg))}
    return shared


def _removed_clips(store: Store, removals: Removals) -> set[str]:
    """Returns the ids of clips that are removed footage by id, span, frames or MP4."""
    ids: set[str] = set()
    regions = frame_regions(store, removals.frames)
    for info in store.list(f"{CANDIDATES}/clips/"):
        rows = read_rows(store, info.key, partial(pq.ParquetFile.read, columns=[*_CLIP]))
        is_gone = removals.rows(rows) | overlapping_regions(rows, regions)
        ids.update(rows["clip_id"].filter(pa.array(is_gone)).to_pylist())
    mp4 = pa.array(sorted(removals.mp4), pa.string())
    for part in parts_of_snapshots(store, "clips"):
        rows = read_parquet(store, part, ("clip_id", "mp4_sha256"))
        ids.update(rows.filter(pc.is_in(rows["mp4_sha256"], value_set=mp4))["clip_id"].to_pylist())
    return ids


def _shared_captions(store: Store, removals: Removals) -> set[str]:
    shared: set[str] = set()
    search = CaptionSearch(removals.captions, removals.caption_lengths)
    for table, columns in CAPTION_COLUMNS.items() if removals.captions else ():
        for part in parts_of_snapshots(store, table):
            try:
                rows = read_parquet(store, part, ("clip_id", *columns))
            except DamagedError:
                # Only more would be found: a caption of a clip that stays counts as removed.
                continue
            rows = rows.filter(pc.invert(pa.array(removals.rows(rows))))
            for name in columns:
                for text in rows[name].unique().drop_null().to_pylist():
                    shared.update(search.found_in(text))
    return shared
